"""What a run sees of a dataset and of the base languages."""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from config.errors import UserError
from core.model.loading import TTSModel, load_base, load_extension
from core.training import dataloader, replay
from core.workspace import Workspace
from data import manifest
from data.feature_cache import FeatureCache
from models.tiny.family import MAX_PROMPT_CODES
from tests.worlds import extended_world, train_options

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return extended_world(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def tts(world: Workspace) -> TTSModel:
    return load_extension(world, "tiny-am", CPU)


def changed(world: Workspace, name: str, **changes: object) -> None:
    """The demo dataset under another name, with some fields of the clip `000` (or of all) changed."""
    there = manifest.load(world.dataset("demo-am"))
    every = bool(changes.pop("every", False))
    clips = [dataclasses.replace(clip, **changes) if every or clip.id == "000" else clip  # type: ignore[arg-type]
             for clip in there.clips]
    folder: Path = world.datasets / name
    folder.mkdir()
    manifest.save(folder, manifest.make_card(name, str(changes.get("language", "am")), "changed", clips), clips)


def test_held_out_clips_are_not_trained_on(world: Workspace, tts: TTSModel) -> None:
    data = dataloader.load_training_data(world, "demo-am", tts)
    assert (len(data.train), len(data.held_out), data.notes) == (12, 4, ())
    assert not {item.id for item in data.train} & {item.id for item in data.held_out}
    assert [sentence.text for sentence in data.sentences] == [item.text for item in data.held_out]
    assert all(sentence.original is not None and sentence.original.is_file() for sentence in data.sentences)


def test_no_audio_file_is_opened(world: Workspace, tts: TTSModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*given: object) -> None:
        raise AssertionError(given)

    monkeypatch.setattr("data.acoustics.audio.load", opened)
    assert len(dataloader.load_training_data(world, "demo-am", tts).train) == 12


def test_a_pack_is_all_that_is_read_and_its_codes_stay_small(
        world: Workspace, tts: TTSModel, tmp_path: Path) -> None:
    wanted = dataloader.load_training_data(world, "demo-am", tts)
    copied = Workspace.open(shutil.copytree(world.path, tmp_path / "copy"))
    cache = FeatureCache(copied.cache, tts.family.extractor_fingerprint(tts.base_folder))
    dataset = manifest.load(copied.dataset("demo-am"))
    cache.save_pack(dataset.card.fingerprint, [clip.sha256 for clip in dataset.clips])
    for clip in dataset.clips:
        cache.path(clip.sha256).unlink()
    seen = dataloader.load_training_data(copied, "demo-am", tts)
    for one, other in zip((*wanted.train, *wanted.held_out), (*seen.train, *seen.held_out), strict=True):
        assert other.speech_codes.dtype == other.conditioning["prompt_codes"].dtype == np.uint16
        assert other.speech_codes.base is not None
        for name in ("text_ids", "speech_codes"):
            assert np.array_equal(getattr(one, name), getattr(other, name))
        assert one.conditioning.keys() == other.conditioning.keys()
        assert all(np.array_equal(one.conditioning[name], other.conditioning[name]) for name in one.conditioning)


def test_a_sample_is_prompted_by_the_prompt_codes_of_the_other_clip(world: Workspace, tts: TTSModel) -> None:
    target, other = dataloader.load_training_data(world, "demo-am", tts).train[:2]
    codes = np.arange(MAX_PROMPT_CODES + 5, dtype=np.uint16)
    other = dataclasses.replace(other, conditioning={**other.conditioning, "prompt_codes": codes})
    made = dataloader.make_sample(target, other, tts.lm)
    assert made.conditioning["prompt_codes"].tolist() == list(range(MAX_PROMPT_CODES))
    assert made.conditioning["prompt_codes"].dtype == made.speech_codes.dtype == np.int64
    assert made.conditioning["speaker_embedding"] is other.conditioning["speaker_embedding"]


def test_what_is_random_in_the_conditioning_of_a_sample_follows_from_seed_epoch_and_clip(world: Workspace,
                                                                                         tts: TTSModel) -> None:
    class Mixing:
        """Conditioning from the target for some samples and from the prompt for others, by chance."""

        def sample_conditioning(self, target: Mapping[str, np.ndarray], prompt: Mapping[str, np.ndarray],
                                rng: random.Random) -> dict[str, np.ndarray]:
            return {"number": np.array([rng.random()])}

    data = dataloader.load_training_data(world, "demo-am", tts)

    def numbers(batches: int, seed: int = 0, skip: int = 0) -> list[float]:
        loader = dataloader.TrainLoader(train_options(seed=seed), data, (), Mixing())  # type: ignore[arg-type]
        if skip:
            before = dataloader.TrainLoader(train_options(seed=seed), data, (), Mixing())  # type: ignore[arg-type]
            for _ in range(skip):
                before.next_batches()
            loader.load_state_dict(*before.state_dict())
        return [float(sample.conditioning["number"][0]) for _ in range(batches)
                for batch in loader.next_batches() for sample in batch.samples]

    whole = numbers(6)
    assert len(set(whole)) == len(whole)  # each clip anew in each epoch
    assert numbers(4, skip=2) == whole[2 * len(whole) // 6:]
    assert numbers(6, seed=1) != whole


@pytest.mark.parametrize(("name", "changes", "reason"), [
    ("unknown", {"text": "ጨጨ"}, "characters outside the vocabulary"),
    ("long", {"text": "ሀለ " * 30}, "longer than the model takes: more than its 48 text ids or 63 codes"),
    ("single", {"speaker": "only one"}, "the only clip of the speaker"),
    ("missing", {"sha256": "0" * 64}, "no features in the cache"),
])
def test_a_clip_that_cannot_be_used_is_named(world: Workspace, tts: TTSModel, name: str, changes: dict[str, object],
                                             reason: str) -> None:
    changed(world, name, **changes)
    data = dataloader.load_training_data(world, name, tts)
    assert len(data.train) == 11
    assert data.notes[0].startswith("1 clip left out (" + reason)
    assert "000." in data.notes[0]
    assert ("'ጨ' in 1" in data.notes[0]) == (name == "unknown")


def test_nothing_to_train_on_is_an_error(world: Workspace, tts: TTSModel) -> None:
    changed(world, "nothing", every=True, sha256="0" * 64)
    with pytest.raises(UserError, match="no clip to train on: 16 clips left out .no features"):
        dataloader.load_training_data(world, "nothing", tts)


@pytest.mark.parametrize(("changes", "way_out"), [
    ({"text": "ጸሐይ"}, "Make a new tokenizer from this dataset"), ({"sha256": "0" * 64}, "Prepare the dataset again"),
    ({"split": "held_out"}, "smaller held-out share"),
])
def test_the_way_out_follows_from_the_reason(world: Workspace, tts: TTSModel, changes: dict[str, object],
                                             way_out: str) -> None:
    name = f"no-way-{len(world.list_datasets())}"
    changed(world, name, every=True, **changes)
    with pytest.raises(UserError, match="no clip to train on") as caught:
        dataloader.load_training_data(world, name, tts)
    assert way_out in caught.value.hint


def test_speakers_with_one_clip_each_need_more_of_their_recordings(world: Workspace, tts: TTSModel) -> None:
    there = manifest.load(world.dataset("demo-am"))
    clips = [dataclasses.replace(clip, speaker=clip.id) for clip in there.clips]
    folder = world.datasets / "strangers"
    folder.mkdir()
    manifest.save(folder, manifest.make_card("strangers", "am", "changed", clips), clips)
    with pytest.raises(UserError, match="the only clip of the speaker") as caught:
        dataloader.load_training_data(world, "strangers", tts)
    assert "more recordings of the same speaker" in caught.value.hint


def test_nothing_to_measure_on_is_an_error(world: Workspace, tts: TTSModel) -> None:
    changed(world, "unmeasured", every=True, split="train")
    with pytest.raises(UserError, match="no held-out clip") as caught:
        dataloader.load_training_data(world, "unmeasured", tts)
    assert "held-out share above 0" in caught.value.hint


def test_a_dataset_of_a_known_or_an_unknown_language_is_refused(world: Workspace, tts: TTSModel) -> None:
    changed(world, "english", every=True, language="en")
    with pytest.raises(UserError, match="which the base model already speaks"):
        dataloader.load_training_data(world, "english", tts)
    changed(world, "swahili", every=True, language="sw")
    with pytest.raises(UserError, match="is in Swahili .sw.; the extended model learns Amharic .am. and speaks en, fr"):
        dataloader.load_training_data(world, "swahili", tts)


def test_probes_are_never_rehearsed_and_cover_every_base_language(world: Workspace) -> None:
    base = load_base(world, "tiny", CPU)
    found = replay.load(base, base.family.load_voices(base.base_folder))
    probed = {item.id for item in found.drift_clips}
    assert not probed & {item.id for item in found.replayed}
    assert {item.language for item in found.drift_clips} == {"en", "fr"}
    for item in replay.probes(found.drift_clips, base.lm):
        assert len(item.sample.conditioning["prompt_codes"]) > 0


@pytest.mark.parametrize(("apart", "left"), [("source", {"013", "014", "015"}), ("speaker", {"015"})])
def test_held_out_clips_that_share_something_are_left_out_of_validation(
        world: Workspace, tts: TTSModel, apart: str, left: set[str]) -> None:
    """Of the held-out clips 012 to 015, 012 is cut from the recording of 000, and 015 alone is of another speaker."""
    there = manifest.load(world.dataset("demo-am"))
    clips = [dataclasses.replace(clip, source="talk.wav" if clip.id in ("000", "012") else "",
                                 speaker="other" if clip.id == "015" else clip.speaker) for clip in there.clips]
    name = f"apart-{apart}"
    (world.datasets / name).mkdir()
    manifest.save(world.datasets / name, manifest.make_card(name, "am", "changed", clips), clips)
    data = dataloader.load_training_data(world, name, tts, apart)
    assert {item.id for item in data.held_out} == left
    assert "held out, but shared with a training clip: the source): 012" in " ".join(data.notes)


def test_validation_without_a_clip_of_another_speaker_is_refused(world: Workspace, tts: TTSModel) -> None:
    with pytest.raises(UserError, match="no held-out clip.* 4 clips left out .held out, but shared") as caught:
        dataloader.load_training_data(world, "demo-am", tts, "speaker")
    assert "--split-disjoint-by" in caught.value.hint
