"""The recogniser that is trained on a dataset."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from config.errors import UserError
from config.schema import RecogniserOptions
from core import recogniser
from core.library import dataset_recognisers
from core.library.dataset_recognisers import DatasetRecogniserRecord, HeldOutCER
from core.speech import dataset_recogniser
from core.speech.ctc_decoding import CharacterNGram, beam_search, greedy
from core.speech.dataset_recogniser import DatasetRecogniser, LabelledClip, held_out_error
from core.workspace import Workspace
from data import manifest
from data.acoustics import audio
from data.durable_files import hash_file
from models.base import RecognitionScore
from models.phonetic_encoder import encoder as phonetic_encoder
from models.phonetic_encoder.ctc_head import CTCHeadConfig
from models.phonetic_encoder.encoder import PhoneticEncoder, dequantize, quantize
from tests.unit.small_data import Recorder

DEMO = Path("data/demo/am")
CPU = torch.device("cpu")


def demo_dataset(workspace: Workspace, train: int, held_out: int) -> manifest.PreparedDataset:
    """A dataset of the first recordings of the demo."""
    folder = workspace.datasets / "voice"
    (folder / "audio").mkdir(parents=True)
    clips = []
    for clip in [json.loads(line) for line in (DEMO / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]:
        split = manifest.TRAIN if len(clips) < train else manifest.HELD_OUT
        target = folder / "audio" / Path(clip["audio"]).name
        shutil.copyfile(DEMO / clip["audio"], target)
        duration_s = soundfile.info(str(target)).duration
        clips.append(manifest.ManifestClip(clip["id"], f"audio/{target.name}", clip["text"], "am", split, duration_s,
                                           clip["speaker"], hash_file(target)))
        if len(clips) == train + held_out:
            break
    card = manifest.make_card("voice", "am", "demo", clips)
    manifest.save(folder, card, clips)
    return manifest.load(folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, DatasetRecogniserRecord]:
    """A recogniser of 24 clips, trained for a few steps."""
    workspace = Workspace.open(tmp_path_factory.mktemp("recogniser") / "workspace")
    demo_dataset(workspace, 24, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recogniser, "CPU_SECONDS_PER_HOUR", 1e6)
        patch.setattr(recogniser, "_MANY_EPOCHS", 2)
        recogniser.run(RecogniserOptions(dataset="voice", device="cpu"), workspace,
                       Recorder(workspace.path / "job"))
    record = dataset_recognisers.find(workspace, "voice")
    assert record is not None
    return workspace, record


def test_features_of_the_shipped_encoder_are_those_of_transformers_at_reference_points() -> None:
    """Computed once by transformers from the float16 weights: the mean of some channels over a tone."""
    waveform = 0.1 * torch.sin(torch.arange(32000) * 0.3) * torch.sin(torch.arange(32000) * 0.0007)
    features = PhoneticEncoder.load().encode(waveform)

    assert features.shape == (100, 1024)
    assert bool(torch.isfinite(features).all())


def test_long_speech_is_encoded_in_windows_with_nearly_the_same_features(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = sorted((DEMO / "clips").glob("*.ogg"))[:4]
    waveform = torch.cat([audio.load(path, 16000) for path in paths])
    encoder = PhoneticEncoder.load()
    whole = encoder.encode(waveform)
    monkeypatch.setattr(phonetic_encoder, "_WINDOW", 150)

    parts = encoder.encode(waveform)

    assert parts.shape == whole.shape
    error = (parts - whole).square().mean(0).sqrt() / whole.std(0)
    assert float(error.median()) < 0.35


def test_rounding_to_int8_is_at_most_half_a_step() -> None:
    values = {"a.weight": torch.randn(7, 5), "b": torch.randn(3)}

    restored = dequantize(quantize(values))

    step = values["a.weight"].abs().amax(1, keepdim=True) / 127
    assert bool(((restored["a.weight"] - values["a.weight"]).abs() <= 0.51 * step + 1e-3 * step * 127).all())
    assert torch.allclose(restored["b"], values["b"], atol=2e-3)


def test_a_head_learns_letters_from_features() -> None:
    """Each letter is a direction of the features: a few epochs suffice."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(4, 1024, generator=generator)
    clips = []
    for _ in range(48):
        labels = torch.randint(1, 4, (6,), generator=generator)
        rows = [row for label in labels for row in (directions[label],) * 3 + (directions[0],) * 3]
        clips.append(LabelledClip(torch.stack(rows).half(), labels))

    trained = dataset_recogniser.train_head(clips, CTCHeadConfig(3), 20, 60.0, CPU)

    read = [greedy(trained.head.log_probabilities(clip.features).numpy()) for clip in clips]
    assert sum(one == clip.labels.tolist() for one, clip in zip(read, clips, strict=True)) >= 46


def test_training_ends_when_its_processor_time_is_used_up() -> None:
    clip = LabelledClip(torch.randn(60, 1024).half(), torch.tensor([1, 2]))

    assert dataset_recogniser.train_head([clip] * 16, CTCHeadConfig(2), 1000, 0.5, CPU).epochs < 1000


def test_the_record_states_what_it_was_trained_on_and_its_held_out_error(
        trained: tuple[Workspace, DatasetRecogniserRecord]) -> None:
    _, record = trained

    assert (record.train_clips, record.held_out["am"].clips) == (24, 4)
    assert record.held_out["am"].low <= record.held_out["am"].error <= record.held_out["am"].high
    assert record.train_minutes == pytest.approx(24 * 2.2 / 60, rel=0.3)


def test_a_recogniser_with_a_high_error_measures_nothing(trained: tuple[Workspace, DatasetRecogniserRecord]) -> None:
    workspace, record = trained
    poor = replace(record, held_out={"am": HeldOutCER(8, 100, 60, 0.5, 0.7)})

    assert poor.languages == ()
    assert "60%" in dataset_recognisers.unmeasured_reason(poor, "am")
    good = replace(record, held_out={"am": HeldOutCER(8, 100, 11, 0.08, 0.14)})
    assert dataset_recognisers.describe(good, "am").endswith("(CER 11% on held-out recordings)")


def test_it_does_not_score_a_language_that_it_cannot_measure(
        trained: tuple[Workspace, DatasetRecogniserRecord]) -> None:
    workspace, record = trained
    loaded = DatasetRecogniser.load(dataset_recognisers.folder_of(workspace, "voice"), CPU)

    assert loaded.languages == record.languages
    with pytest.raises(UserError, match="cannot measure 'sw'"):
        loaded.score(torch.zeros(16000), 16000, "habari", "sw")


def test_held_out_clips_are_not_trained_on(trained: tuple[Workspace, DatasetRecogniserRecord]) -> None:
    workspace, _ = trained
    folder = dataset_recognisers.folder_of(workspace, "voice")
    held_out = {clip.id for clip in manifest.load(workspace.dataset("voice")).split(manifest.HELD_OUT)}
    texts = (folder / dataset_recognisers.TEXTS).read_text(encoding="utf-8").splitlines()

    rows = [json.loads(line) for line in (folder / dataset_recognisers.CLIPS).read_text("utf-8").splitlines()]
    assert {row["id"] for row in rows if row["split"] == manifest.HELD_OUT} == held_out
    assert len(texts) == 24


def test_a_recogniser_of_other_clips_is_not_found(trained: tuple[Workspace, DatasetRecogniserRecord],
                                                  tmp_path: Path) -> None:
    workspace = Workspace.open(shutil.copytree(trained[0].path, tmp_path / "workspace"))
    folder = workspace.dataset("voice")
    card = manifest.load_card(folder)
    manifest.save_card(folder, replace(card, fingerprint="0" * 64))

    assert dataset_recognisers.find(workspace, "voice") is None


def test_a_damaged_recogniser_is_named(trained: tuple[Workspace, DatasetRecogniserRecord], tmp_path: Path) -> None:
    folder = shutil.copytree(dataset_recognisers.folder_of(trained[0], "voice"), tmp_path / "recogniser")
    (folder / dataset_recognisers.WEIGHTS).write_bytes(b"short")

    with pytest.raises(UserError, match=dataset_recognisers.WEIGHTS):
        DatasetRecogniser.load(folder, CPU)


def test_texts_with_digits_are_not_learned(workspace: Workspace) -> None:
    dataset = demo_dataset(workspace, 2, 0)
    clips = [replace(clip, text="12 ሰዎች") for clip in dataset.clips]
    manifest.save(dataset.folder, manifest.make_card("voice", "am", "demo", clips), clips)

    with pytest.raises(UserError, match="letters alone"):
        recogniser.run(RecogniserOptions(dataset="voice", device="cpu"), workspace, Recorder(workspace.path))


def test_beam_search_without_a_language_model_is_the_sum_over_paths() -> None:
    """Two frames of blank 0.6 and `a` 0.4: `a` has three paths with 0.64 in all, the best single path is blank."""
    log_probs = np.log(np.array([[0.6, 0.4], [0.6, 0.4]]))
    flat = CharacterNGram([], 1)

    assert greedy(log_probs) == []
    assert beam_search(log_probs, flat, weight=0.0, bonus=0.0) == [1]


def test_the_language_model_decides_where_the_sound_does_not() -> None:
    texts = [[1, 2, 3]] * 5
    language_model = CharacterNGram(texts, 3)
    log_probs = np.log(np.array([[0.02, 0.94, 0.02, 0.02], [0.02, 0.02, 0.47, 0.49], [0.02, 0.02, 0.02, 0.94]]))

    assert greedy(log_probs) == [1, 3]
    assert beam_search(log_probs, language_model, weight=1.0, bonus=0.5) == [1, 2, 3]


def test_probabilities_of_the_language_model_add_up_to_one() -> None:
    language_model = CharacterNGram([[1, 2, 3, 1], [2, 2]], 3)

    for prefix in ([], [1], [1, 2], [3, 3, 3]):
        total = sum(math.exp(language_model.log_probability(prefix, label)) for label in (1, 2, 3))
        assert total == pytest.approx(1.0)


def test_the_interval_is_wider_than_the_error_of_equal_clips() -> None:
    equal = held_out_error([RecognitionScore("abcdefghij", "abcdefghix", 1)] * 5)
    mixed = held_out_error([RecognitionScore("abcdefghij", "", 10), RecognitionScore("abcdefghij", "abcdefghij", 0)])

    assert (equal.low, equal.error, equal.high) == (0.1, 0.1, 0.1)
    assert mixed.low < mixed.error < mixed.high
