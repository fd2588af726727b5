"""Variants of recordings: as long, as high and as loud as was asked, the same each time, and for training alone."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from config.errors import UserError
from config.schema import PrepareOptions
from core import prepare, train
from core.jobs.reporter import StopRequested
from core.model.loading import TTSModel, load_extension
from core.submission.jobs import check_requirements
from core.training import dataloader
from core.workspace import Workspace
from data import augmentation, manifest
from data.augmentation import AudioVariant, AugmentationRecipe
from data.feature_cache import FeatureCache
from data.manifest import TRAIN, PreparedDataset
from tests.unit.small_data import Recorder, SmallExtractor, SmallFamily, base, write_dataset
from tests.worlds import RATE, Listener, extended_world, tone, train_options

ROOT = Path(__file__).resolve().parents[3]
CPU = torch.device("cpu")
SHA = "ab" * 32
KEY = "cd" * 32
RECIPE = AugmentationRecipe(3, 0.1, 0.5, 30.0)


def decibels(ratio: float) -> float:
    return 20 * math.log10(ratio)


def level(samples: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64))))


def pitch(samples: np.ndarray) -> float:
    """Hz of the strongest part."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples)), 2**18))
    return float(np.argmax(spectrum) * RATE / 2**18)


def sine(hertz: float = 220.0, seconds: float = 1.5) -> np.ndarray:
    return (0.2 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * RATE)) / RATE)).astype(np.float32)


ONLY_TEMPORARY = """
import os, tempfile
make = tempfile.TemporaryFile
def refuse(*arguments, dir=None, **others):
    if dir is not None and "numba-" not in str(dir) and {refused}:
        raise PermissionError(f"{{dir}} cannot be written")
    return make(*arguments, dir=dir, **others)
tempfile.TemporaryFile = refuse
import numpy as np
from data import augmentation
made = augmentation.apply(np.ones(4000, np.float32), 16000, augmentation.AudioVariant(0.9, 0.0, None), "ab" * 32)
import numba
print(len(made), numba.config.CACHE_DIR or "usual")
"""


@pytest.mark.parametrize(("refused", "usual"), [
    ("True", False), ("'.cache' in str(dir)", True)], ids=["neither home nor environment", "not home"])
@pytest.mark.slow
def test_librosa_works_where_folder_and_home_cannot_be_written(refused: str, usual: bool, tmp_path: Path) -> None:
    inherited = {name: value for name, value in os.environ.items() if name not in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR")}
    done = subprocess.run([sys.executable, "-c", ONLY_TEMPORARY.format(refused=refused)], cwd=ROOT,
                          env={**inherited, "HOME": str(tmp_path)}, capture_output=True, text=True, check=True)
    length, folder = done.stdout.split()
    assert 4400 < int(length) < 4500
    assert (folder == "usual") == usual
    assert usual or not Path(folder).exists()  # it went with the process


@settings(max_examples=8, deadline=None)
@given(some.floats(0.9, 1.1), some.floats(-0.5, 0.5))
def test_length_follows_the_speed_alone_and_pitch_the_semitones_alone(speed: float, semitones: float) -> None:
    made = augmentation.apply(sine(), RATE, AudioVariant(speed, semitones, None), KEY)
    assert abs(len(made) - len(sine()) / speed) <= 2
    assert pitch(made) == pytest.approx(220.0 * 2 ** (semitones / 12), rel=2e-3)
    assert abs(decibels(level(made) / level(sine()))) < 0.1
    assert np.abs(made).max() <= 1.0


@settings(max_examples=8, deadline=None)
@given(some.floats(20.0, 60.0))
def test_noise_is_as_far_below_the_voice_as_was_asked(noise_db: float) -> None:
    voice = tone(3, 2.0).numpy()
    plain, noisy = (augmentation.apply(voice, RATE, AudioVariant(1.0, 0.0, each), KEY) for each in (None, noise_db))
    assert decibels(level(voice) / level(noisy - plain)) == pytest.approx(noise_db, abs=0.2)
    assert not np.array_equal(noisy, augmentation.apply(voice, RATE, AudioVariant(1.0, 0.0, noise_db), "0" * 64))


def test_a_loud_recording_is_not_clipped() -> None:
    loud = tone(5, 1.0).numpy()
    loud = loud / np.abs(loud).max()
    for number in range(5):
        [*_, (key, variant)] = replace(RECIPE, seed=number).of(SHA)
        assert np.abs(augmentation.apply(loud, RATE, variant, key)).max() <= 1.0


@settings(max_examples=50, deadline=None)
@given(some.integers(0, 10), some.floats(0, 0.1), some.floats(0, 0.5), some.floats(0, 60), some.integers(0, 99))
def test_variants_stay_within_the_recipe_and_follow_from_it(
        variants: int, speed: float, semitones: float, noise_db: float, seed: int) -> None:
    recipe = AugmentationRecipe(variants, speed, semitones, noise_db, seed)
    made = recipe.of(SHA)
    assert made == recipe.of(SHA)
    assert len({key for key, _ in made}) == variants
    for key, one in made:
        assert key != SHA
        assert abs(one.speed - 1) <= speed + 1e-4
        assert abs(one.semitones) <= semitones + 1e-3
        assert one.noise_db is None if noise_db == 0 else one.noise_db is not None and one.noise_db >= noise_db - 0.05
    assert made[:1] == replace(recipe, variants=1).of(SHA)[:variants]


def test_a_variant_is_the_same_each_time_and_keyed_by_recording_recipe_and_number() -> None:
    [(key, one), (other, _), _] = RECIPE.of(SHA)
    voice = tone(3, 1.0).numpy()
    assert np.array_equal(augmentation.apply(voice, RATE, one, key), augmentation.apply(voice, RATE, one, key))
    keys = {key, other, RECIPE.of("12" * 32)[0][0], replace(RECIPE, seed=1).of(SHA)[0][0],
            replace(RECIPE, speed=0.05).of(SHA)[0][0]}
    assert len(keys) == 5


@pytest.fixture
def extractor(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> SmallExtractor:
    family = SmallFamily()
    monkeypatch.setattr(prepare, "family", lambda name: family)
    base().save(workspace.models / "tiny")
    return family.small_extractor


def prepared(source: Path, workspace: Workspace, recorder: Recorder | None = None,
             **changes: object) -> PreparedDataset:
    options = PrepareOptions(source=str(source), dataset="d", language="am", held_out=0.3,
                             **changes)  # type: ignore[arg-type]
    prepare.run(options, workspace, recorder or Recorder())
    return manifest.load(workspace.dataset("d"))


def test_variants_of_the_training_clips_are_cached_and_the_rest_is_as_it_was(
        tmp_path: Path, workspace: Workspace, extractor: SmallExtractor) -> None:
    source = write_dataset(tmp_path / "in")
    before = prepared(source, workspace)
    cache = FeatureCache(workspace.cache, extractor.fingerprint)
    files = {path: path.read_bytes() for path in (workspace.cache / extractor.fingerprint).glob("*.safetensors")}
    assert augmentation.load(before.folder) is None
    after = prepared(source, workspace, variants=2)
    assert after.card.fingerprint == before.card.fingerprint
    assert {path: path.read_bytes() for path in files} == files
    assert extractor.calls == 6 + 2 * len(after.split(TRAIN))
    recipe = augmentation.require(after.folder)
    pack = cache.load_pack(after.card.fingerprint)
    made = {key for clip in after.split(TRAIN) for key, _ in recipe.of(clip.sha256)}
    assert {path.stem for path in (workspace.cache / extractor.fingerprint).glob("*.safetensors")} == made | {
        path.stem for path in files}
    assert made < set(pack.index)
    prepared(source, workspace)  # without a word of variants they stay
    assert augmentation.load(after.folder) == recipe
    assert made < set(cache.load_pack(after.card.fingerprint).index)
    assert extractor.calls == 6 + 2 * len(after.split(TRAIN))


def test_a_stop_among_the_variants_keeps_them_and_goes_on(
        tmp_path: Path, workspace: Workspace, extractor: SmallExtractor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "_BATCH_CLIPS", 2)
    source = write_dataset(tmp_path / "in")
    prepared(source, workspace)
    recorder = Recorder()
    monkeypatch.setattr(recorder, "stop_requested", lambda: "variants" in repr(recorder.events[-1:]))
    with pytest.raises(StopRequested, match="Stopped after 2 of 8 variants"):
        prepared(source, workspace, recorder, variants=2)
    assert augmentation.load(workspace.dataset("d")) is None  # what is not whole is not said to be there
    assert extractor.calls == 6 + 2
    prepared(source, workspace, variants=2)
    assert extractor.calls == 6 + 8
    recorder = Recorder()
    prepared(source, workspace, recorder, variants=3, variant_noise=0.0)
    assert "The dataset's variants change: 3 a clip" in recorder.warnings


def test_training_with_variants_that_were_never_made_is_refused_when_it_is_asked_for(
        tmp_path: Path, workspace: Workspace, extractor: SmallExtractor, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_dataset(tmp_path / "in")
    prepared(source, workspace)
    monkeypatch.setattr(workspace.__class__, "extension", lambda self, name: self.path)
    options = train_options(dataset="d", augmentation=0.5)
    with pytest.raises(UserError, match="'d' was prepared without variants") as caught:
        check_requirements(workspace, "train", options)
    assert "--variants 2" in caught.value.hint
    prepared(source, workspace, variants=2)
    assert check_requirements(workspace, "train", options) == ()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A world whose dataset has two variants a clip."""
    workspace = extended_world(tmp_path_factory.mktemp("augmented"))
    tts = load_extension(workspace, "tiny-am", CPU)
    extractor = tts.family.load_extractor(tts.base_folder, CPU)
    prepare.extract_features(manifest.load(workspace.dataset("demo-am")), extractor, workspace, Recorder(),
                             replace(RECIPE, variants=2))
    return workspace


@pytest.fixture(scope="module")
def tts(made: Workspace) -> TTSModel:
    return load_extension(made, "tiny-am", CPU)


def test_what_is_not_asked_for_changes_nothing_of_the_data(made: Workspace, tts: TTSModel) -> None:
    plain, augmented = (dataloader.load_training_data(made, "demo-am", tts, augmented=each) for each in (False, True))
    assert not plain.variants
    assert plain.content_hash == replace(augmented, variants={}).content_hash
    assert plain.content_hash != augmented.content_hash
    assert plain.fingerprint == augmented.fingerprint
    options = train_options()
    for epoch in range(3):
        assert all(dataloader.choose_variant(augmented, at, options, epoch) is augmented.train[at] for at in range(12))


def test_training_opens_no_audio_and_variants_keep_the_text(
        made: Workspace, tts: TTSModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data.acoustics.audio.read", lambda *given: pytest.fail(str(given)))
    data = dataloader.load_training_data(made, "demo-am", tts, augmented=True)
    assert {item.id for item in data.train} == set(data.variants)
    pairs = [(item, one) for item in data.train for one in data.variants[item.id]]
    assert all(np.array_equal(one.text_ids, item.text_ids) for item, one in pairs)
    same = sum(np.array_equal(one.speech_codes, item.speech_codes) for item, one in pairs)
    assert same < 0.2 * len(pairs)  # the codes of a tone are few: a variant of one may have the same


def test_each_epoch_chooses_anew_the_asked_share_and_the_same_each_time(made: Workspace, tts: TTSModel) -> None:
    data = dataloader.load_training_data(made, "demo-am", tts, augmented=True)
    options = train_options(augmentation=0.5)
    chosen = {(at, epoch): dataloader.choose_variant(data, at, options,
                                                     epoch) for epoch in range(100) for at in range(12)}
    again = {place: dataloader.choose_variant(data, place[0], options, place[1]) for place in reversed(chosen)}
    assert all(chosen[place] is again[place] for place in chosen)
    counted = Counter(0 if one is data.train[at] else 1 + [one is each for each in data.variants[one.id]].index(True)
                      for (at, _), one in chosen.items())
    share = counted[0] / len(chosen)
    assert abs(share - 0.5) < 4 * math.sqrt(0.25 / len(chosen))  # four standard deviations
    assert min(counted[1], counted[2]) > 0.2 * len(chosen)
    assert all(dataloader.choose_variant(data, at, train_options(augmentation=1.0),
                                   0) is not data.train[at] for at in range(12))


def test_the_order_is_that_of_a_run_without_and_prompts_are_as_recorded(made: Workspace, tts: TTSModel) -> None:
    data = dataloader.load_training_data(made, "demo-am", tts, augmented=True)
    plain, augmented = (dataloader.TrainLoader(train_options(augmentation=share), data, (), tts.lm)
                        for share in (0.0, 1.0))
    differing = 0
    for _ in range(7):
        [one], [other] = plain.next_batches(), augmented.next_batches()
        assert one.clip_ids == other.clip_ids
        for mine, theirs in zip(one.samples, other.samples, strict=True):
            assert mine.conditioning.keys() == theirs.conditioning.keys()
            assert all(np.array_equal(mine.conditioning[name], theirs.conditioning[name]) for name in mine.conditioning)
            differing += not np.array_equal(mine.speech_codes, theirs.speech_codes)
    assert differing > 0.8 * 7 * 4
    longest = augmented.profiling_samples(augmented.by_length()[-1:])[0]  # the longest that is ever heard, text counted
    assert len(longest.speech_codes) + len(longest.text_ids) == max(
        one.batch_clip.length for item in data.train for one in (item, *data.variants[item.id]))


def followed(world: Workspace, name: str, stop_after: int | None = None, **changes: object) -> Listener:
    """A run to its last step, or to a stop, without its certificate."""
    listener = Listener(world.runs / name, stop_after)
    run, _ = train.prepare_run(train_options(evaluation_sentences=0, steps=5, validate_every=2,
                                                    checkpoint_every=9,
                                              **changes), world, listener)
    try:
        train.train_loop(run)
    except StopRequested:
        assert stop_after is not None
    return listener


def test_a_run_that_is_augmented_resumes_to_the_bit_and_is_measured_on_what_was_recorded(
        made: Workspace, tmp_path: Path) -> None:
    world = Workspace.open(shutil.copytree(made.path, tmp_path / "copy"))
    whole, plain = followed(world, "whole", augmentation=0.7), followed(world, "plain")
    assert plain.of("step")[0].speech_loss != whole.of("step")[0].speech_loss
    assert any("24 variants, chosen at random in each epoch" in line for line in whole.of("plan")[0].lines)
    assert not any("variants" in line for line in plain.of("plan")[0].lines)
    followed(world, "cut", stop_after=4, augmentation=0.7)  # within the second epoch
    rest = followed(world, "cut", augmentation=0.7)
    assert [(one.step, one.speech_loss, one.text_loss) for one in rest.of("step")] == [
        (one.step, one.speech_loss, one.text_loss) for one in whole.of("step")[4:]]
    rows = [next(iter(sorted((world.runs / name / "checkpoints").glob("step-000005")))) / "rows.safetensors"
            for name in ("whole", "cut")]
    assert rows[0].read_bytes() == rows[1].read_bytes()
    stored = json.loads((world.dataset("demo-am") / augmentation.FILE).read_text())
    augmentation.save(world.dataset("demo-am"), AugmentationRecipe(**{**stored, "variants": 1}))
    with pytest.raises(UserError, match="features or ids of its clips"):
        followed(world, "cut", augmentation=0.7)
