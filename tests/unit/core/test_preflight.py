"""The trial before a training: each part is tried, one that fails says what to do; and warnings before the start."""

from __future__ import annotations

import dataclasses
import re
import shutil

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from config.errors import UserError
from config.loading import parse_options
from config.schema import LengthOptions, PreflightOptions, TrainOptions, about, option_fields
from core import preflight, train
from core.jobs.verbs import read_preset
from core.model.loading import load_extension
from core.training import checkpoint_evaluation, dataloader, run_plan, weight_regularization
from core.training.dataloader import TrainLoader
from core.training.memory_plan import MicrobatchPlan
from core.training.run_plan import Estimate
from core.workspace import Workspace
from data import manifest
from models.base import Generated
from models.language_model import TransformerLanguageModel
from models.tiny.family import Tiny
from tests.worlds import Listener, train_options, train_settings, write_dataset

CPU = torch.device("cpu")


def options(**changes: object) -> PreflightOptions:
    return parse_options(PreflightOptions, {**train_settings(steps=800), **changes})


def tried(world: Workspace, **changes: object) -> tuple[Listener, dict]:
    listener = Listener(world.runs / "trial")
    return listener, preflight.run(options(**changes), world, listener)


@pytest.mark.parametrize("changes", [{}, {"scope": "full", "ema": 0.9}], ids=["gated", "full, averaged"])
def test_every_part_is_tried_and_only_the_sound_is_kept(
        world: Workspace, changes: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_evaluation, "drift_warning", lambda *given: "It drifted.")
    before = sorted(world.extensions.rglob("*")) + sorted(world.cache.rglob("*"))
    listener, result = tried(world, **changes)
    parts = [event.name for event in listener.of("stage") if event.seconds is not None]
    assert parts == ["load", "memory plan", "setup", "prepare", "two steps and save", "reload", "speak"]
    assert (result["ready"], result["clips"], result["steps"], result["features_alike"]) == (True, 8, 2, 1.0)
    warned = [event.message for event in listener.of("warning")]
    assert any(message.startswith("It drifted.") for message in warned)
    assert result["warnings"] == len(warned)
    assert "for 800 steps" in str(result["training"])
    assert [step.learning_rates["rows"] for step in listener.of("step")][0] == pytest.approx(5e-3)
    (spoken,) = [event for event in listener.of("sample") if event.path == "spoken.wav"]
    assert (listener.directory / spoken.path).stat().st_size > 1000
    assert not (listener.directory / "checkpoints").exists()
    assert sorted(world.extensions.rglob("*")) + sorted(world.cache.rglob("*")) == before


def test_drift_past_the_bound_ends_the_run_where_that_is_asked_for(
        world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_evaluation, "drift_warning", lambda *given: "It drifted.")
    with pytest.raises(UserError, match="It drifted") as caught:
        tried(world, scope="full", drift_action="stop")
    assert "run:ID@STEP" in caught.value.hint


@pytest.fixture
def base_that_speaks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A base that comes with no clips and speaks what it is asked to; the numbers of texts it was asked for."""
    asked: list[int] = []

    def generate(self: object, ids: list[np.ndarray], *others: object) -> list[Generated]:
        asked.append(len(ids))
        return [Generated(np.arange(8) % 27, "limit") for _ in ids]

    monkeypatch.setattr(Tiny, "load_replay_clips", lambda self, folder: [])
    monkeypatch.setattr(TransformerLanguageModel, "generate", generate)
    return asked


def test_a_trial_of_full_speaks_and_weighs_few_clips_and_says_so(
        world: Workspace, base_that_speaks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    weighed: list[int] = []
    monkeypatch.setattr(weight_regularization.WeightRegularizer, "estimate_importance",
                        lambda self, model, precision, clips: weighed.append(len(clips)))
    monkeypatch.setattr(weight_regularization.WeightRegularizer, "add_gradients", lambda self, l2_sp, ewc: None)
    listener, result = tried(world, scope="full", ewc=0.1, evaluation_sentences=0)
    assert base_that_speaks[0] == 4
    assert weighed == [2]
    assert "the preflight has 4 of them; the training synthesizes all of them" in str(result["not_tried"])
    assert "estimated on 2 clips, not on 32" in str(result["not_tried"])
    assert sorted(path.name for path in listener.directory.glob("spoken*")) == ["spoken.wav"]


def test_the_warnings_of_a_trial_are_those_of_the_training(world: Workspace) -> None:
    said = " ".join(event.message for event in tried(world, steps=60)[0].of("warning"))
    assert "8 s in 12 clips" in said
    assert "clips is used" not in said
    assert "held out" not in said
    assert "Each of the 12 clips is used 267 times" in " ".join(
        event.message for event in tried(world)[0].of("warning"))


def test_what_cannot_be_tried_in_a_minute_is_named_with_the_reason(
        world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried(world)[1]["not_tried"] == ""
    seen: list[str] = []
    monkeypatch.setattr(preflight, "_compile", lambda device: seen.append(device.type))
    said = str(tried(world, compile="on", processes=3)[1]["not_tried"])
    assert seen == ["cpu"]
    assert "layers are not compiled, which takes minutes" in said
    assert "The 3 processes are not started: the preflight is one process" in said


def test_a_machine_that_cannot_compile_is_found(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_nothing(function: object) -> object:
        raise RuntimeError("Failed to find C compiler.")

    monkeypatch.setattr(torch, "compile", compile_nothing)
    with pytest.raises(UserError, match="failed at 'compile': RuntimeError: Failed to find C compiler") as caught:
        tried(world, compile="on")
    assert "compile off" in caught.value.hint


def test_a_run_that_cannot_be_sharded_fails_before_anything_is_loaded(world: Workspace) -> None:
    with pytest.raises(UserError, match="failed at 'setup': This run cannot be sharded"):
        tried(world, sharding="full")


def test_a_recording_that_is_gone_fails_in_plain_words(world: Workspace) -> None:
    for path in (world.dataset("demo-am") / "audio").glob("*.wav"):
        path.unlink()
    with pytest.raises(UserError, match="The preflight failed at 'prepare': .*.wav") as caught:
        tried(world)
    assert caught.value.hint


def test_features_of_other_recordings_are_found(world: Workspace) -> None:
    for path in world.cache.rglob("*.safetensors"):
        arrays = load_file(path)
        arrays["speech_codes"] = (arrays["speech_codes"] + 5) % 27
        save_file(arrays, path)
    with pytest.raises(UserError, match="failed at 'prepare': The cached features do not belong to the recordings: "):
        tried(world)


def test_a_step_without_memory_says_so(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(run: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(train, "train_loop", full)
    with pytest.raises(UserError, match="failed at 'two steps and save': out of memory") as caught:
        tried(world)
    assert "smaller batch" in caught.value.hint


def test_a_loss_that_is_no_number_says_so(world: Workspace) -> None:
    for path in world.cache.rglob("*.safetensors"):
        arrays = load_file(path)
        arrays["speaker_embedding"][:] = float("nan")
        save_file(arrays, path)
    with pytest.raises(UserError, match="The preflight failed at '"):
        tried(world)


def test_a_checkpoint_that_reads_back_otherwise_is_found(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(*given: object):
        tts = load_checkpoint(*given)
        with torch.no_grad():
            tts.lm.module.get_parameter("text_emb.new")[0, 0] += 1
        return tts

    from core.model.loading import load_checkpoint

    monkeypatch.setattr(preflight, "load_checkpoint", moved)
    with pytest.raises(UserError, match="failed at 'reload': The reloaded checkpoint differs from .*text_emb.new"):
        tried(world)


def test_silence_is_no_speech(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.tiny.family.TinyVocoder.decode", lambda *given, **named: torch.zeros(16000))
    with pytest.raises(UserError, match="failed at 'speak': The synthesized audio is silent"):
        tried(world)


def test_the_trial_takes_what_was_written_for_the_training() -> None:
    assert read_preset("config/presets/demo.yaml", "preflight") == read_preset("config/presets/demo.yaml", "train")
    assert set(PreflightOptions.model_fields) == set(TrainOptions.model_fields)


def advised(world: Workspace, **changes: object) -> str:
    trainer = train.prepare_run(train_options(**changes), world, Listener(world.runs / "advice"))[0].trainer
    return "\n".join(run_plan.training_warnings(trainer, world.runs / "advice"))


def test_little_data_and_rates_far_from_the_preset_are_told_with_numbers(world: Workspace) -> None:
    said = advised(world, row_lr=0.5, adapter_lr=1e-4, steps=800)
    assert "8 s in 12 clips; 10 min is the least" in said
    assert "rate of the rows is 0.5, 100 times that of the preset for tiny (0.005): the training may diverge" in said
    assert "of the adapters is 0.0001, 1/20 of that of the preset for tiny (0.002): the training may be" in said
    assert "Each of the 12 clips is used 267 times in 800 steps" in said
    assert "one speaker" not in said
    assert "learning rate of" not in advised(world, row_lr=1e-2)
    assert "adapters" not in advised(world, scope="rows", adapter_lr=1e-6)


def test_a_single_speaker_and_few_held_out_clips_are_told(world: Workspace) -> None:
    there = manifest.load(world.dataset("demo-am"))
    clips = [clip for clip in there.clips if clip.speaker == "s0" and clip.id != "014"]
    (world.datasets / "one").mkdir()
    manifest.save(world.datasets / "one", manifest.make_card("one", "am", "changed", clips), clips)
    said = advised(world, dataset="one")
    assert "All 6 clips have one speaker, 's0'" in said
    assert "Only 1 clip is held out" in said


def test_a_disk_that_will_not_hold_the_checkpoints_is_told(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = train.prepare_run(train_options(), world, Listener(world.runs / "advice"))[0].trainer
    monkeypatch.setattr(run_plan.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 0, 100_000))
    said = "\n".join(run_plan.training_warnings(trainer, world.runs / "advice"))
    one = 12 * sum(value.numel() for value in trainer.trainables.named.values())
    assert f"3 of about {one / 1e3:.1f} kB are there at once, {3 * one / 1e3:.1f} kB, and 100.0 kB are free" in said


def test_new_rows_that_no_clip_trains_are_told(world: Workspace) -> None:
    there = manifest.load(world.dataset("demo-am"))
    first = there.clips[0].text.split()[0]
    clips = [dataclasses.replace(clip, text=first) for clip in there.clips]
    (world.datasets / "same").mkdir()
    manifest.save(world.datasets / "same", manifest.make_card("same", "am", "changed", clips), clips)
    said = advised(world, dataset="same")
    assert re.search(r"\d+ of \d+ new pieces occur in no training text", said)
    assert "occur in no training text" not in advised(world)


def test_unknown_characters_are_counted(world: Workspace) -> None:
    there = manifest.load(world.dataset("demo-am"))
    clips = [dataclasses.replace(clip, text=clip.text + "ፐ") if clip.id in ("000", "001") else clip
             for clip in there.clips]
    (world.datasets / "odd").mkdir()
    manifest.save(world.datasets / "odd", manifest.make_card("odd", "am", "changed", clips), clips)
    (note,) = dataloader.load_training_data(world, "odd", load_extension(world, "tiny-am", CPU)).notes
    assert note.startswith("2 clips left out (characters outside the vocabulary): 000, 001.")
    assert note.endswith("how many texts have them: 'ፐ' in 2.")


def test_a_trial_takes_the_longest_clip_and_company_for_each(world: Workspace) -> None:
    write_dataset(world, "more", train=30)
    data = dataloader.load_training_data(world, "more", load_extension(world, "tiny-am", CPU))
    few = dataloader.subset(data, 8)
    assert len(few.train) == 8
    assert few.train[0].batch_clip.length == max(item.batch_clip.length for item in data.train)
    speakers = [item.speaker for item in few.train]
    assert all(speakers.count(speaker) > 1 for speaker in speakers)
    assert len({item.id for item in few.train}) == 8
    timed = TrainLoader(train_options(), few, (),
                        10).by_length()  # of all clips, or the time that is told is of the longest
    assert len(timed) == len(data.train) > 8


@pytest.mark.parametrize(("changes", "told"), [
    ({"scope": "full", "adapter": "dora"}, True), ({"scope": "rows", "adapter": "adalora"}, True),
    ({"scope": "full", "adapter": "dora", "full_trainable": "adapters"}, False), ({"adapter": "dora"}, False),
    ({"scope": "full"}, False)])
def test_adapters_that_a_scope_has_none_of_are_told(changes: dict[str, object], told: bool) -> None:
    said = list(run_plan.unused_option_warnings(parse_options(TrainOptions, changes)))
    assert bool(said) is told
    assert not said or str(changes["adapter"]) in said[0]


@pytest.mark.parametrize(("changes", "told"), [
    ({"scope": "rows"}, True), ({"scope": "full"}, True), ({"scope": "gated"}, False),
    ({"scope": "full", "full_trainable": "adapters"}, False)])
def test_a_rank_in_the_conditioner_without_adapters_is_told(changes: dict[str, object], told: bool) -> None:
    options = parse_options(TrainOptions, {"adapter_rank_conditioner": 8, **changes})
    said = [line for line in run_plan.unused_option_warnings(options) if "voice conditioner has no effect" in line]
    assert bool(said) is told


@pytest.mark.parametrize("scope", ["gated", "rows"])
def test_what_protects_the_base_is_told_where_nothing_of_it_changes(scope: str) -> None:
    odd = {"full_trainable": "heads", "layer_lr": 1e-4, "head_lr": 1e-3, "layer_lr_decay": 0.5, "distillation": 1.0,
           "l2_sp": 0.1, "ewc": 0.1, "fisher_clips": 5, "drift_bound": 1.0, "drift_action": "stop", "replay": 0.5,
           "replay_datasets": "mine", "replay_texts": "/texts.txt"}
    fields = option_fields(TrainOptions).items()
    assert set(odd) == {name for name, field in fields if about(field, "scope") == "full"}
    (said,) = run_plan.unused_option_warnings(parse_options(TrainOptions, {"scope": scope, **odd}))
    assert [name for name in odd if f"({name} " not in said] == []
    assert said.startswith(f"Scope {scope!r} does not change the base, so these have no effect: ")
    assert list(run_plan.unused_option_warnings(parse_options(TrainOptions, {"scope": scope}))) == []


@pytest.mark.parametrize(("changes", "named"), [
    ({"full_trainable": "adapters", "l2_sp": 0.1}, "L2-SP weight (l2_sp 0.1)"),
    ({"full_trainable": "heads", "layer_lr_decay": 0.5}, "Layer-wise LR decay (layer_lr_decay 0.5)"),
    ({"replay": 0.0, "distillation": 1.0}, "Distillation 1 has no effect"),
    ({"fisher_clips": 5}, "Fisher clips (fisher_clips 5)"),
    ({"replay_datasets": "mine", "replay_texts": "/t"}, "replay_texts (/t) is ignored"),
    ({"full_trainable": "heads", "head_lr": 1e-3, "l2_sp": 0.1}, ""),
    ({"layer_lr": 1e-4, "ewc": 0.1, "fisher_clips": 5, "distillation": 1.0}, "")])
def test_what_full_leaves_unused_is_told(changes: dict[str, object], named: str) -> None:
    said = " ".join(run_plan.unused_option_warnings(parse_options(TrainOptions, {"scope": "full", **changes})))
    assert named in said
    assert bool(said) is bool(named)


def test_the_expected_time_respects_the_limit() -> None:
    estimate = Estimate(MicrobatchPlan(), 1, None, (0.4, 0.6))
    told = preflight._expected(estimate, LengthOptions(steps=800, max_minutes=5))
    assert told.startswith("the time limit of 5 min, which holds about 600 of the 800 steps")
    assert "for 800 steps" in preflight._expected(estimate, LengthOptions(steps=800, max_minutes=50))
