"""What is saved is what is loaded; what was changed or cut off is refused."""

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from config.errors import UserError
from data import feature_cache, manifest
from data.feature_cache import FeatureCache
from data.manifest import ManifestClip

CLIPS = tuple(ManifestClip(f"c{n}", f"audio/c{n}.wav", f"ሰላም | {n}", "am", split, 1.5, "one", str(n) * 64)
              for n, split in enumerate(("train", "train", "held_out")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    manifest.save(tmp_path, manifest.make_card("d", "am", "demo", CLIPS), CLIPS)
    return tmp_path


def test_round_trip(folder: Path) -> None:
    dataset = manifest.load(folder)
    assert dataset.clips == CLIPS
    assert (dataset.card.clips, dataset.card.train_clips, dataset.card.held_out_clips) == (3, 2, 1)
    assert [clip.id for clip in dataset.split("held_out")] == ["c2"]


def test_byte_order_mark_is_tolerated(folder: Path) -> None:
    path = folder / manifest.MANIFEST_FILE
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert manifest.load(folder).clips == CLIPS


def test_fingerprint_is_of_the_content_not_of_the_order() -> None:
    assert manifest.fingerprint(CLIPS) == manifest.fingerprint(CLIPS[::-1])
    assert manifest.fingerprint(CLIPS) != manifest.fingerprint((*CLIPS[:2], replace(CLIPS[2], split="train")))


def test_lost_line_is_noticed(folder: Path) -> None:
    path = folder / manifest.MANIFEST_FILE
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(UserError, match=r"is not what dataset\.yaml describes: 2 clips, not 3"):
        manifest.load(folder)


def test_missing_and_misspelled_fields_have_their_line(folder: Path) -> None:
    path = folder / manifest.MANIFEST_FILE
    path.write_text(path.read_text().replace('"speaker"', '"voice"'))
    with pytest.raises(UserError, match=r"line 1: missing \['speaker'\], unknown \['voice'\]"):
        manifest.load(folder)


def test_a_dataset_of_before_there_was_trimming_loads_with_its_fingerprint(folder: Path) -> None:
    path = folder / manifest.MANIFEST_FILE
    path.write_text(path.read_text().replace(', "trimmed_start_s": 0.0, "trimmed_end_s": 0.0', ""))
    assert "trimmed" not in path.read_text()
    assert manifest.load(folder).clips == CLIPS


def test_a_part_of_a_recording_has_its_own_features_and_fingerprint() -> None:
    trimmed = replace(CLIPS[0], trimmed_start_s=0.25, duration_s=1.25)
    assert CLIPS[0].feature_key == CLIPS[0].sha256
    keys = {CLIPS[0].feature_key, trimmed.feature_key, replace(trimmed, trimmed_end_s=0.25).feature_key}
    assert len(keys) == 3
    assert {len(key) for key in keys} == {64}
    assert manifest.fingerprint((trimmed, *CLIPS[1:])) != manifest.fingerprint(CLIPS)
    assert manifest.fingerprint(manifest.with_edges((trimmed, *CLIPS[1:]))) == manifest.fingerprint(CLIPS)
    card = manifest.make_card("d", "am", "in", (trimmed, *CLIPS[1:]))
    assert (card.trimmed_clips, card.trimmed_s, card.duration_s) == (1, 0.25, 4.25)


def test_missing_dataset_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"dataset\.yaml could not be read"):
        manifest.load(tmp_path)


def test_features_round_trip_by_extractor(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path, "one")
    arrays = {"speech_codes": np.arange(5, dtype=np.uint16), "speaker_embedding": np.ones(3, np.float32)}
    cache.save("f00", arrays)
    loaded = cache.load("f00")
    assert loaded["speech_codes"].dtype == np.uint16
    assert all((loaded[name] == array).all() for name, array in arrays.items())
    assert not FeatureCache(tmp_path, "two").has("f00")
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["f00.safetensors"]


def test_missing_and_truncated_features_are_named(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path, "one")
    with pytest.raises(UserError, match="The recording f00 has no features"):
        cache.load("f00")
    cache.save("f00", {"speech_codes": np.arange(50)})
    path = cache.path("f00")
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(UserError, match=r"f00\.safetensors is damaged \(\d+ bytes\)"):
        cache.load("f00")


def test_a_pack_holds_what_the_recordings_files_hold(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path, "one")
    noise = np.random.default_rng(0)
    made = {key: {"speech_codes": np.arange(length, dtype=np.uint16), "speaker_embedding": np.ones(3, np.float32),
                  "speaker_latents": noise.standard_normal((4, 6)).astype(np.float16)}
            for key, length in (("a", 5), ("b", 0), ("c", 7))}
    for key, arrays in made.items():
        cache.save(key, arrays)
    cache.save_pack("dataset", ["a", "missing", "b", "a", "c"])
    pack = cache.load_pack("dataset")
    assert list(pack.index) == ["a", "b", "c"]
    assert "missing" not in pack
    for key, arrays in made.items():
        loaded = pack.arrays(key)
        assert all(np.array_equal(loaded[name], array) and loaded[name].dtype == array.dtype
                   for name, array in arrays.items())
        assert np.shares_memory(loaded["speaker_embedding"], pack.values["speaker_embedding"])  # nothing is held twice


@pytest.mark.parametrize("at_once", [1, 2, 4096])
def test_lengths_are_told_from_a_pack_without_its_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                         at_once: int) -> None:
    monkeypatch.setattr(feature_cache, "_KEYS_PER_READ", at_once)
    cache = FeatureCache(tmp_path, "one")
    made = {character * 64: length for character, length in (("a", 5), ("b", 0), ("c", 7))}
    for key, length in made.items():
        cache.save(key, {"speech_codes": np.arange(length, dtype=np.uint16), "voice": np.ones(2, np.float32)})
        cache.save_pack(key, [key])
        assert list(cache.lengths(key, "speech_codes")) == [(key, length)]
    cache.save_pack("all", made)
    assert dict(cache.lengths("all", "speech_codes")) == made
    assert list(cache.lengths("all", "other")) == list(cache.lengths("missing", "speech_codes")) == []
    cache.pack_path("all").write_bytes(b"torn")
    with pytest.raises(UserError, match=r"all\.safetensors is damaged"):
        list(cache.lengths("all", "speech_codes"))


def test_a_pack_grows_on_the_disk(tmp_path: Path) -> None:
    """Recordings of a megabyte each: one of them is in memory, not all."""
    cache = FeatureCache(tmp_path, "one")
    for key in "abcdef":
        cache.save(key, {"speech_codes": np.zeros(2**18, np.float32)})
    tracemalloc.start()
    try:
        cache.save_pack("dataset", "abcdef")
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()
    assert len(cache.load_pack("dataset").index) == 6


def test_a_dataset_without_a_pack_and_one_with_a_damaged_pack(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path, "one")
    assert "a" not in cache.load_pack("dataset")
    cache.save("a", {"speech_codes": np.arange(50)})
    cache.save_pack("dataset", ["a"])
    path = cache.pack_path("dataset")
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(UserError, match=r"dataset\.safetensors is damaged"):
        cache.load_pack("dataset")
    cache.save_pack("dataset", ["a"])
    assert "a" in cache.load_pack("dataset")


def test_a_pack_of_nothing_is_empty(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path, "one")
    cache.save_pack("dataset", ["missing"])
    assert cache.load_pack("dataset").index == {}
