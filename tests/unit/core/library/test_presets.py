"""A training's preset: chosen by speech and memory, fitted in tokens, and honest about what nobody measured."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from config.errors import UserError
from config.schema import TrainOptions
from core.jobs import gpus
from core.jobs.gpus import Gpu
from core.library import presets, records
from core.library.presets import NAMES, SpeechAmount
from core.workspace import Workspace
from scripts import command

H = 3600.0


def gpu(gib: float, index: int = 0) -> Gpu:
    return Gpu(index, f"GPU-{index}a", "Some card", int(gib * 1024), int(gib * 1000), 0)


def speech(hours: float, clip_s: float = 6.0) -> SpeechAmount:
    return SpeechAmount(round(hours * H / clip_s), hours * H)


@pytest.mark.parametrize(("hours", "name"), [
    (0.3, "demo"), (1, "small-data"), (4.9, "small-data"), (5, "standard"), (49, "standard"), (50, "large"),
    (900, "large")])
def test_the_hours_choose_the_preset(hours: float, name: str) -> None:
    assert presets.name_for_speech(speech(hours))[0] == name


@pytest.mark.parametrize(("gib", "size"), [(15.0, 16), (16, 16), (22.5, 24), (23.6, 24), (40, 24), (79.6, 80),
                                           (139, 80), (11, 16)])
def test_the_memory_that_cards_of_a_class_tell_chooses_it(gib: float, size: int) -> None:
    assert presets.memory_class_for([gpu(gib)])[0] == size


def test_the_smallest_of_several_cards_decides_and_a_small_one_is_told() -> None:
    assert presets.memory_class_for([gpu(80), gpu(24, 1)])[0] == 24
    assert "less than the smallest class" in presets.memory_class_for([gpu(11)])[1]


def test_a_processor_is_called_one() -> None:
    chosen = presets.fit("chatterbox", speech(10), ())
    assert any("No GPU was found" in reason for reason in chosen.reasons)
    assert "activation_checkpointing" not in chosen.values
    asked = presets.fit("chatterbox", speech(10), (), memory="80")
    assert any("as requested; no GPU was found" in reason for reason in asked.reasons)


@pytest.mark.parametrize("family", ["tiny", "chatterbox"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("memory", ["16", "24", "80"])
def test_each_preset_gives_a_training_in_each_class(family: str, name: str, memory: str) -> None:
    chosen = presets.fit(family, speech(10), [gpu(80)], name, memory)
    assert isinstance(chosen.options, TrainOptions)
    assert set(chosen.values) <= set(presets.set_options())
    assert not {"extension", "dataset", "device"} & set(chosen.values)
    assert chosen.measured == (family == "tiny" and name == "demo")
    assert ("Not yet measured" in chosen.words) != chosen.measured


@pytest.mark.parametrize("name", NAMES)
def test_shape_and_rates_are_those_of_the_design(name: str) -> None:
    options = presets.fit("chatterbox", speech(10), [gpu(24)], name).options
    adapters = options.adapters
    assert (adapters.adapter_rank, adapters.adapter_rank_mlp, adapters.adapter_scale) == (32, 16, 2.0)
    assert (adapters.adapter_dropout, options.scope) == (0.05, "gated")
    assert options.optimization.row_lr == pytest.approx(10 * options.optimization.adapter_lr)


def test_sixteen_gigabytes_compute_activations_again() -> None:
    for name in ("small-data", "standard", "large"):
        assert presets.fit("chatterbox", speech(10), [gpu(16)], name).options.hardware.activation_checkpointing == "on"


@given(hours=some.floats(0.1, 500), clip_s=some.floats(0.5, 30), count=some.integers(0, 8),
       size=some.sampled_from([16, 24, 80]), name=some.sampled_from(["small-data", "standard", "large"]))
@example(hours=1.0, clip_s=2.630859375, count=0, size=16, name="small-data")  # 2000 / 105.26 is rounded to 19.0
def test_a_batch_holds_no_more_tokens_than_its_class(hours: float, clip_s: float, count: int, size: int,
                                                     name: str) -> None:
    options = presets.fit("chatterbox", speech(hours, clip_s), [gpu(size, index) for index in range(count)],
                                    name,
                                    "auto").options
    tokens = {16: 2000, 24: 4000, 80: 16000}[size if count else 16]
    clip = presets.tokens_per_second("chatterbox") * speech(hours, clip_s).clip_s
    assert options.batches.batch_size == 1 or options.batches.batch_size * clip <= tokens
    assert options.hardware.processes == (max(1, count) if name == "large" else 1)


def test_a_step_is_as_large_on_one_gpu_as_on_eight() -> None:
    one, eight = (presets.fit("chatterbox", speech(100), [gpu(24, index) for index in range(count)]).options
                  for count in (1, 8))
    clips = [each.batches.clips_a_step(each.hardware.processes) for each in (one, eight)]
    assert eight.hardware.processes == 8
    assert math.isclose(*clips, rel_tol=0.15)


def test_what_is_not_there_is_refused_with_what_is() -> None:
    with pytest.raises(UserError, match="no preset named 'huge'"):
        presets.fit("tiny", SpeechAmount(), (), "huge")
    with pytest.raises(UserError, match="memory class '12'"):
        presets.fit("tiny", SpeechAmount(), (), "demo", "12")


def test_the_driver_is_read_as_it_writes() -> None:
    text = ("0, GPU-11aa, NVIDIA GeForce RTX 4090, 24564, 23028, 3\n"
            "1, GPU-22bb, Tesla T4, 15360, 100, [N/A]\nNo devices were found\n")
    first, second = gpus.parse_nvidia_smi(text)
    assert (first.name, round(first.total_gib), first.free_mib, first.utilization_percent) == (
        "NVIDIA GeForce RTX 4090", 24, 23028, 3)
    assert second.utilization_percent is None
    assert gpus.visible_gpus((first, second), {}) == (first, second)
    assert gpus.visible_gpus((first, second), {"CUDA_VISIBLE_DEVICES": "1,0"}) == (second, first)
    assert gpus.visible_gpus((first, second), {"CUDA_VISIBLE_DEVICES": "GPU-22"}) == (second,)
    assert gpus.visible_gpus((first, second), {"CUDA_VISIBLE_DEVICES": ""}) == ()
    assert gpus.visible_gpus((first, second), {"CUDA_VISIBLE_DEVICES": "-1"}) == ()


def test_the_driver_is_asked_once_in_a_while() -> None:
    asked: list[int] = []

    def probe() -> tuple[Gpu, ...]:
        asked.append(1)
        return (gpu(24),)

    seen = gpus.CachedGpus(probe)
    assert seen() == seen() == (gpu(24),)
    assert len(asked) == 1


def world(folder: Path) -> Workspace:
    workspace = Workspace.open(folder)
    (workspace.models / "tiny").mkdir()
    (workspace.datasets / "mine").mkdir()
    about = "{clips: 4000, duration_s: 21600.0, language: am}"
    (workspace.datasets / "mine" / "dataset.yaml").write_text(about, encoding="utf-8")
    (workspace.extensions / "tiny-am").mkdir()
    origin = records.Origin("tiny", "tiny", "", 1, 2, "")
    records.write_record(workspace.extensions / "tiny-am" / records.EXTENSION,
                         records.ExtensionRecord("tiny-am", "tiny-am", ("am",), "romanised", 0, "", origin))
    return workspace


def test_the_command_line_says_what_a_preset_sets_and_flags_win(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "find_gpus", lambda: (gpu(24),))
    workspace = world(tmp_path / "workspace")
    given = command.build_parser("train").parse_args(
        ["--preset", "auto", "--dataset", "mine", "--warmup", "7"])
    options = command.options_of("train", given, workspace)
    assert isinstance(options, TrainOptions)
    assert (options.optimization.warmup, options.length.steps) == (7, 20_000)
    assert (options.dataset, options.adapters.adapter_rank) == ("mine", 32)
    said = capsys.readouterr().out
    for part in ("Preset standard", "Not yet measured", "6 h of speech", "class of 24 GB", "warmup: 500 (here 7)"):
        assert part in said


def test_without_a_preset_the_command_line_sets_what_the_schema_says(tmp_path: Path) -> None:
    given = command.build_parser("train").parse_args(["--dataset", "mine"])
    assert command.options_of("train", given, world(tmp_path / "workspace")) == TrainOptions(dataset="mine")
