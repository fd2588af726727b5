"""The benchmark runs, and says what it found: which numbers, of what, beside what. How fast is not asked here."""

from __future__ import annotations

import copy
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from config.errors import UserError
from config.schema import Scope
from core.sources.dataset_source import demo_dataset
from core.training.memory_plan import peak_bytes
from data.acoustics import audio
from data.acoustics.voice_encoder import VoiceEncoder
from data.importers import import_source
from data.sound_files import file_duration
from models.base import Features, Losses
from models.campplus import CAMPPlus
from models.chatterbox import t3 as chatterbox_t3
from models.chatterbox.hift import HiFT
from models.chatterbox.s3gen import S3Gen
from models.chatterbox.speech_tokenizer import SpeechTokenizer
from models.generate import Stepper
from models.indextts2.bigvgan import BigVGAN
from models.indextts2.extractor import IndexTTS2Extractor
from models.indextts2.semantic_codec import SemanticCodec
from models.language_model import TransformerLanguageModel
from models.tiny.codec import Codec
from models.tiny.vocoder import MelVocoder
from scripts.dev.benchmark import __main__ as command
from scripts.dev.benchmark import (
    builtin,
    certificate,
    extraction,
    gpt,
    gpu_decode,
    logits,
    machine,
    options,
    published,
    results,
    s2mel,
    s3gen,
    t3,
    training,
)
from scripts.dev.benchmark.bench import Bench
from scripts.dev.benchmark.machine import Machine
from scripts.dev.benchmark.reference import VARIABLE, PublishedPackage
from scripts.dev.benchmark.results import BenchmarkResults, BenchmarkRow, Bound, Cost
from scripts.dev.benchmark.sizes import FULL, QUICK, fill_randomly
from scripts.dev.benchmark.timing import MeasurementStats, measure_interleaved
from scripts.dev.random_weights import tensor
from tests.emulated_cuda import CUDA, REAL, emulated_cuda

CPU = torch.device("cpu")
FAKE = (sys.executable, str(Path(__file__).parents[2] / "fake_package.py"))
MACHINE = Machine("cpu", "a processor", 2, 2, 16.0, 0.5, "2.11.0", "abc")
ONE_SECOND = MeasurementStats(1.0, 0.9, 1.2, 5)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with PublishedPackage(1, "cpu", tmp_path / "log", FAKE) as reference:
        yield Bench(QUICK, torch.device("cpu"), reference, lambda text: None)


def names(found: BenchmarkResults) -> list[str]:
    return [row.what for row in found.rows]


def test_t3_is_measured_in_each_precision_with_and_without_guidance(bench: Bench) -> None:
    found = t3.measure(bench)
    kinds = list(t3.make(bench))
    assert kinds[0] == "float32"
    assert "int8" in kinds
    wanted = [f"one code, {kind}, 100 positions, {how} guidance" for how in ("with", "without") for kind in kinds]
    wanted += [f"prefill, {kind}, 20 text ids, with guidance" for kind in kinds]
    assert names(found) == wanted
    guided = [row for row in found.rows if row.what.startswith("one code") and "with guidance" in row.what]
    assert [row.package is not None for row in found.rows] == ["without" not in name for name in names(found)]
    assert {row.package.median for row in guided if row.package} == {1000 * 0.5 / QUICK.codes}
    assert [row.times for row in guided] == [t3._TIMES[kind] for kind in kinds]
    assert [cost.what.split(":")[0] for cost in found.costs] == [kind for kind in kinds[1:] for _ in range(2)]
    assert all(0 < cost.value < 5 for cost in found.costs if "error" in cost.what)


def test_t3_is_measured_as_users_have_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the heads that a published checkpoint has, and so with the alignment guard and the guided attention loss."""
    shapes = {key: tuple(value.shape) for key, value in chatterbox_t3.empty(FULL.language).state_dict().items()}
    assert chatterbox_t3.config_from_shapes(shapes, "it") == FULL.language
    model = t3.make(bench)["float32"]
    stepper = Stepper(model, 1, model.config.conditioning_length + 30, 8, CPU)
    t3.begin(stepper, model, 20, 0.5, CPU)
    assert stepper.guarded
    attention, losses = list[torch.Tensor | None](), TransformerLanguageModel.losses

    def observed(*given: Any) -> Losses:
        found = losses(*given)
        attention.append(found.attention_sum)
        return found

    monkeypatch.setattr(TransformerLanguageModel, "losses", observed)
    training.make(bench, "rows").train_step()
    assert attention
    assert None not in attention


def test_the_gpt_of_indextts2_is_measured_in_each_precision_beside_the_package(bench: Bench) -> None:
    found = gpt.measure(bench)
    kinds = list(gpt.make(bench))
    assert names(found) == [f"{what}, {kind}, {how}" for what, how in (
        ("one code", "60 positions"), ("prefill", "20 text ids")) for kind in kinds]
    assert {row.package.median for row in found.rows if row.package} == {1000 * 0.5 / QUICK.codes}
    assert [row.times for row in found.rows] == [None, *(5.0 for _ in kinds[1:]), *(None for _ in kinds)]
    assert [cost.what.split(":")[0] for cost in found.costs] == [kind for kind in kinds[1:] for _ in range(2)]
    assert all(0 < cost.value < 5 for cost in found.costs if "error" in cost.what)


@pytest.mark.slow
def test_on_a_gpu_codes_are_counted_together_with_graphs_and_adapters() -> None:
    """On the emulated one: that it computes, not how fast."""
    with emulated_cuda():
        bench = Bench(QUICK, torch.device("cuda"), None, lambda text: None)
        for part, wanted in ((t3, [Bound(1.0), Bound(15_000.0)]), (gpt, [Bound(0.7)])):
            found = part.measure(bench)
            together = {row.what: row for row in found.rows if "together" in row.what}
            assert list(together) == [f"{texts} texts together, bfloat16, {how}, {name}"
                                      for how in ("no adapter", "adapter") for texts in (1, 8, 32)
                                      for name in ("graphs", "no graphs")]
            assert [row.bound for row in together.values() if row.bound] == wanted
            assert {what for what, row in together.items() if row.bound} <= {
                f"{texts} texts together, bfloat16, adapter, graphs" for texts in (1, 32)}
            assert [cost.what.split(":")[0] for cost in found.costs[::2]] == [
                "float32", "bfloat16", "bfloat16, in steps", "float16", "float16, in steps"]
            assert found.costs[0].value < 0.01
            assert all(0 < cost.value < 5 for cost in found.costs[2::2])
        kinds = ("float32", "bfloat16", "float16")
        assert [cost.what for cost in s3gen.measure(bench).costs] == [
            *(f"{kind}: {what}" for kind in kinds for what in ("mel", "waveform")), "HiFT, float32: waveform"]
        found = s2mel.measure(bench)
        assert [cost.what for cost in found.costs][:3] == [f"{kind}: mel" for kind in kinds]
        assert found.costs[-1].what == "BigVGAN, float32: waveform"


@pytest.mark.parametrize("part", [t3, gpt])
def test_logits_of_steps_are_those_of_a_whole_pass(bench: Bench, part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, sample, lengths = part.make(bench)["float32"], part._sample(bench, 0), list[int]()
    compute = t3.guided_logits if part is t3 else gpt._logits
    wanted = compute(model, sample, CPU, False)
    plain = type(model).hidden_states

    def counted(self: Any, rows: torch.Tensor, *given: Any) -> torch.Tensor:
        lengths.append(rows.shape[1])
        return plain(self, rows, *given)

    monkeypatch.setattr(type(model), "hidden_states", counted)
    found = compute(model, sample, CPU, True)
    assert (found - wanted).norm() < 1e-5 * wanted.norm()
    passes = 2 if part is t3 else 1  # with guidance
    assert len(lengths) == passes * (1 + QUICK.compared[1])
    assert lengths.count(1) == len(lengths) - passes


def test_s3gen_is_measured_at_each_number_of_steps_and_prompt(bench: Bench) -> None:
    found = s3gen.measure(bench)
    *plain, best = s3gen.make(bench)
    ways = [f"{best}, {steps} steps, prompt of {prompt:g} s" for steps in QUICK.steps for prompt in QUICK.prompts_s]
    assert names(found) == [f"{name}, 4 steps, prompt of 3 s" for name in plain] + ways
    assert all(row.package == MeasurementStats(0.5, 0.5, 0.5, QUICK.repeats) for row in found.rows)  # a second of sound
    assert [row.what for row in found.rows if row.times == 5.0] == [f"{best}, 2 steps, prompt of 1 s"]
    assert [cost.what for cost in found.costs] == [f"{best}: {what}" for _ in plain for what in ("mel", "waveform")]
    assert all(20 < cost.value < 120 for cost in found.costs)


@pytest.mark.slow
def test_training_is_measured_in_each_scope_and_beside_the_package(bench: Bench) -> None:
    found = training.measure(bench)
    both = [f"{name}, {what}" for name in ("chatterbox", "indextts2")
            for what in ("rows", "the package's full finetune")]
    assert [name.split(", ")[1] for name in names(found)[:6]] == ["rows", "rows", "gated", "gated", "full", "full"]
    assert [", ".join(name.split(", ")[:2]) for name in names(found)[6:]] == both
    for beside in found.rows[6::2]:
        assert beside.package == MeasurementStats(200.0, 200.0, 200.0, 1)  # 100 tokens in half a second
        assert beside.more_is_better
        assert beside.times == 3.0


@pytest.mark.parametrize("scope", ["rows", "full"])
def test_the_peak_is_that_of_any_step_but_the_first(bench: Bench, scope: Scope) -> None:
    """The first step makes the moments at its end, when the activations are gone."""
    fresh, stepped, averaged = (training.make(bench, scope, ema=ema) for ema in (0.0, 0.0, 0.9))
    held = training.size(stepped) + stepped.optimizer_bytes
    trained = sum(value.nbytes for value in stepped.trainables.named.values())
    first, *later = [peak_bytes(CPU, stepped.train_step) for _ in range(1 + 2 * len(stepped.data.train))]
    found = training.epoch_peak(CPU, fresh)
    assert found == pytest.approx(held + max(later), rel=0.01)
    assert scope == "rows" or found > held - 2 * trained + first
    assert training.epoch_peak(CPU, averaged) == pytest.approx(found + trained, rel=0.02)


def test_options_are_measured_beside_none_of_them(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(options.CHOSEN, "compiled layers")  # a compiler takes its time
    monkeypatch.delitem(options.CHOSEN, "the three together")
    found = options.measure(bench)
    speeds = found.rows[:len(found.rows) // 2]
    assert [row.package is None for row in speeds] == [True, False, False, False, False]
    assert {row.package for row in speeds[1:]} == {speeds[0].ours}
    peaks = {row.what.split(", ")[2]: row.ours.median for row in found.rows[len(speeds):]}
    assert peaks["activation checkpointing"] < peaks["none"]
    assert "| none of them |" in results.as_markdown(machine.describe(torch.device("cpu")), {}, found)


def test_the_built_in_model_decodes_on_a_gpu(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer texts together than on a GPU, to save time."""
    monkeypatch.setattr(gpu_decode, "TEXTS", (1, 2))
    samples = builtin._samples
    monkeypatch.setattr(builtin, "_samples", lambda bench: [
        replace(sample, speech_codes=sample.speech_codes[:10]) for sample in samples(bench)])
    on_cpu = builtin.measure(bench)
    assert not on_cpu.rows
    assert [cost.what.split(":")[0] for cost in on_cpu.costs] == [kind for kind in bench.quantized() for _ in range(2)]
    assert all(0 < cost.value < 5 for cost in on_cpu.costs if "error" in cost.what)
    with emulated_cuda():
        found = builtin.measure(Bench(QUICK, CUDA, None, lambda text: None))
    assert [cost.what.split(":")[0] for cost in found.costs[::2]] == [
        "float32", "bfloat16", "bfloat16, in steps", "float16", "float16, in steps", "vocoder, float32"]
    errors = [cost.value for cost in found.costs if "error" in cost.what]
    assert errors[0] < 0.01
    assert all(0.01 < error < 5 for error in errors[1:])
    assert [row.unit for row in found.rows] == 2 * (2 * ["ms"] + 2 * ["codes/s"])  # without and with adapters
    assert all(row.ours.median > 0 for row in found.rows)


def test_errors_of_the_built_in_model_are_those_of_its_logits() -> None:
    """A head whose weights are 5% too large has logits that are 5% too large."""
    with emulated_cuda():
        bench = Bench(QUICK, CUDA, None, lambda text: None)
        lm: Any = builtin.family("tiny").load_language_model(builtin.PACK, CUDA)
        changed = copy.deepcopy(lm.module)
        changed.speech_head.weight.mul_(1.05)
        sample = builtin._samples(bench)[0]
        found = logits.costs(bench, builtin.PART, {"float32": lm.module, "changed": changed},
                             [replace(sample, speech_codes=sample.speech_codes[:10])], t3.guided_logits)
    assert [cost.what for cost in found[2::2]] == [
        "changed: relative error of the logits", "changed, in steps: relative error of the logits"]
    assert [cost.value for cost in found[2:]] == [pytest.approx(5.0, abs=0.01), pytest.approx(100.0, abs=1.0)] * 2


@pytest.mark.parametrize(("part", "vocoder", "method"), [
    (s3gen, HiFT, "decode"), (s2mel, BigVGAN, "waveform"), (builtin, MelVocoder, "decode")])
def test_a_waveform_of_a_gpu_is_compared_with_that_of_the_cpu(part: Any, vocoder: type, method: str,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """1% of the signal are 40 dB."""
    plain = getattr(vocoder, method)

    def louder(*given: Any) -> torch.Tensor:
        made: torch.Tensor = plain(*given)
        return made * 1.01 if made.is_cuda else made

    monkeypatch.setattr(s2mel, "_STEPS", 2)
    monkeypatch.setattr(s2mel, "_FAST_STEPS", 1)
    monkeypatch.setattr(Bench, "halves", lambda bench: [])
    found = []
    with emulated_cuda():
        bench = Bench(replace(QUICK, sound_codes=5, steps=(1,)), CUDA, None, lambda text: None)
        compute = _vocoder_costs(part, bench)
        for changed in (False, True):
            if changed:
                monkeypatch.setattr(vocoder, method, louder)
            found.append({cost.what: cost.value for cost in compute()})
    before, after = ([value for what, value in one.items() if what.endswith(", float32: waveform")] for one in found)
    assert len(before) == 1
    assert before[0] > (60 if REAL else 120)
    assert after == [pytest.approx(40, abs=0.1)]
    if part is not builtin:
        assert not [cost for cost in _vocoder_costs(part, replace(bench, device=CPU))() if ", float32" in cost.what]


def _vocoder_costs(part: Any, bench: Bench) -> Callable[[], list[Cost]]:
    if part is s3gen:
        s3gen_models = s3gen.make(bench)
        return lambda: s3gen._costs(bench, s3gen_models, np.arange(5), s3gen.random_voice(1.0))
    if part is s2mel:
        s2mel_models, vocoder, draw = s2mel.make(bench), s2mel.make_vocoder(bench), torch.Generator().manual_seed(0)
        content = torch.randn(1, 8, bench.sizes.s2mel.width, generator=draw).to(bench.device)
        prompt = s2mel._prompt(bench, 20, draw)
        return lambda: s2mel._costs(bench, s2mel_models, vocoder, content, prompt, 0.1)
    return lambda: [builtin._vocoder_cost(bench, builtin._samples(bench)[:1])]


def test_equal_waveforms_have_a_ratio_that_json_can_hold() -> None:
    waveform = torch.linspace(-1, 1, 100)
    assert results.decibels(waveform, waveform) == pytest.approx(200)
    assert results.decibels(waveform, waveform + 0.1 * waveform.flip(0)) == pytest.approx(20)


def test_the_speech_of_a_certificate_is_measured_on_a_gpu(bench: Bench) -> None:
    found = certificate.measure(bench)
    assert names(found)[0].startswith("3 sentences of 12 ids, ")
    seconds = float(names(found)[0].split("ids, ")[1].split(" s each")[0])
    assert seconds == pytest.approx(10 / 25, abs=0.1)  # all of them end where they should
    assert found.rows[1].ours.median > 0
    assert not certificate.measure(Bench(FULL, CPU, None, bench.say)).rows


@pytest.mark.parametrize("name", ["chatterbox", "indextts2"])
def test_a_useful_token_is_a_target(bench: Bench, name: str) -> None:
    trainer = training.make(bench, "rows", name)
    lengths = training.clip_lengths(bench, name)
    steps = len(lengths) // QUICK.batch_size
    assert sum(trainer.train_step().tokens for _ in range(steps)) == sum(text - 1 + codes + 1 for text,
                                                                         codes in lengths)
    assert trainer.counts.new_rows == QUICK.new_rows


def test_extraction_is_measured_in_hours_an_hour(bench: Bench) -> None:
    found = extraction.measure(bench)
    row = found.rows[0]
    assert not found.costs  # in float32 on a CPU: with itself there is nothing to compare
    assert row.package == MeasurementStats(5.0, 5.0, 5.0, QUICK.repeats)  # 2.5 s of clips in half a second
    assert row.more_is_better


def test_extraction_on_a_gpu_is_compared_with_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the first code of each clip is changed, and arrays are 1% too large; all else is equal where emulated."""
    def change(owner: Any, name: str) -> None:
        plain = getattr(owner, name)

        def changed(*given: Any) -> Any:
            made = plain(*given)
            if not made[0].is_cuda:
                return made
            return [torch.cat([row[:1] + 1, row[1:]]) for row in made] if name == "encode" else made * 1.01

        monkeypatch.setattr(owner, name, changed)

    for owner, name in ((SpeechTokenizer, "encode"), (SemanticCodec, "encode"), (Codec, "encode"),
                        (VoiceEncoder, "embed_batch"), (Codec, "embed_speaker"), (CAMPPlus, "embed"),
                        (audio, "prompt_mel")):
        change(owner, name)
    # IndexTTS2's arrays are made of one another, so that what they are stored as is changed.
    extract = IndexTTS2Extractor.extract_batch

    def extract_changed(extractor: IndexTTS2Extractor, waveforms: Sequence[torch.Tensor]) -> list[Features]:
        factor = 1.01 if next(extractor.conditioner.parameters()).is_cuda else 1.0
        return [Features(clip.speech_codes, {name: factor * array.astype(np.float64)
                                             for name, array in clip.conditioning.items()})
                for clip in extract(extractor, waveforms)]

    monkeypatch.setattr(IndexTTS2Extractor, "extract_batch", extract_changed)
    monkeypatch.setattr(extraction, "measure_interleaved", lambda measures, _: dict.fromkeys(measures, ONE_SECOND))
    with emulated_cuda():
        costs = extraction.measure(Bench(QUICK, CUDA, None, lambda text: None)).costs
    found = {cost.what: cost.value for cost in costs}
    rows = import_source(demo_dataset("am"), "am").rows[:QUICK.demo_clips]
    lengths = [math.ceil(25 * file_duration(row.audio)) for row in rows]
    of_codes = {  # clips, and all their codes; those of random clips have 1 and 1.5 s
        "Chatterbox, float32: speech codes": (2, 25 + 38), "Chatterbox, float32: prompt codes": (2, 25 + 38),
        "Chatterbox, float32, reference clip: codes": (1, 37), "IndexTTS2, float32: speech codes": (2, 49 + 74),
        "IndexTTS2, float32, reference clip: codes": (1, 74),
        "built-in model, float32: speech codes": (len(rows), sum(lengths)),
        "built-in model, float32: prompt codes": (len(rows), sum(min(length, 50) for length in lengths)),
    }
    arrays = {f"{name}: relative error of the {what}" for name, kinds in {
        "Chatterbox, float32": ("speaker embedding",), "Chatterbox, float32, reference clip": ("mel", "speaker"),
        "IndexTTS2, float32": ("speaker latents", "speaker hidden", "emotion vector", "emotion latent"),
        "IndexTTS2, float32, reference clip": ("mel", "style"),
        "built-in model, float32": ("speaker embedding",)}.items() for what in kinds}
    assert set(found) == {f"{what} that are the same" for what in of_codes} | arrays
    for what in arrays:
        assert found[what] == pytest.approx(1.0, abs=0.5 if REAL else 0.01)
    for what, (clips, total) in of_codes.items():
        same = found[f"{what} that are the same"]
        assert same == pytest.approx(100 * (1 - clips / total)) or (REAL and same < 100)


def test_the_command_writes_both_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--quick", "--only", "extraction", "--device", "cpu", "--out", str(tmp_path)]) == 0
    written = json.loads((tmp_path / "benchmark.json").read_text("utf-8"))
    assert {"machine", "command", "date", "sizes", "rows", "costs"} == set(written)
    assert written["machine"]["device"] == "cpu"
    assert written["command"].startswith("python -m scripts.dev.benchmark --quick --only extraction")
    assert [(row["part"], row["package"], row["ratio"]) for row in written["rows"]] == [("extraction", None, None)] * 3
    assert written["rows"][0]["ours"]["count"] == QUICK.repeats
    assert math.isfinite(written["rows"][0]["ours"]["median"])
    assert (tmp_path / "benchmark.md").read_text("utf-8") in capsys.readouterr().out


def test_narrow_models_have_no_ratio_to_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "PublishedPackage", lambda *given: PublishedPackage(*given, FAKE))
    assert command.main(["--quick", "--only", "S3Gen", "--device", "cpu", "--against-reference", "--out",
                         str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "benchmark.json").read_text("utf-8"))["rows"]
    assert rows
    assert all(row["package"] is not None and row["ratio"] is None and row["target"] == "" for row in rows)
    table = capsys.readouterr().out
    assert "no ratio" in table
    assert "times" not in table


def test_rows_are_written_before_their_part_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(bench: Bench) -> BenchmarkResults:
        bench.keep([BenchmarkRow("T3", "a code", "ms", ONE_SECOND)])
        bench.keep([BenchmarkRow("T3", "another", "ms", ONE_SECOND)])
        raise KeyboardInterrupt

    def whole(bench: Bench) -> BenchmarkResults:
        row = BenchmarkRow("GPT", "a code", "ms", ONE_SECOND)
        bench.keep([row])
        return BenchmarkResults((row,))

    monkeypatch.setattr(command, "PARTS", {"GPT": whole, "T3": stopped})
    with pytest.raises(KeyboardInterrupt):
        command.main(["--only", "GPT,T3", "--device", "cpu", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "benchmark.json").read_text("utf-8"))["rows"]
    assert [(row["part"], row["what"]) for row in rows] == [("GPT", "a code"), ("T3", "a code"), ("T3", "another")]


def test_an_unknown_part_and_a_missing_package_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--only", "T3,T4"])
    assert "no part T4" in capsys.readouterr().err
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nothing"))
    assert command.main(["--quick", "--against-reference", "--out", str(tmp_path)]) == 2
    assert "make reference" in capsys.readouterr().err


def test_a_package_that_fails_or_ends_is_an_error(tmp_path: Path, bench: Bench) -> None:
    assert bench.reference is not None
    with pytest.raises(UserError, match="not the package's default"):
        bench.reference.ask("render", codes=25, prompt=50, steps=4)
    with pytest.raises(UserError, match="it ended"):
        PublishedPackage(1, "cpu", tmp_path / "other", (sys.executable, "-c", "raise SystemExit('no torch')"))


@pytest.mark.parametrize(("row", "device", "ratio", "status"), [
    (BenchmarkRow("p", "w", "ms", ONE_SECOND, MeasurementStats(5.0, 5.0, 5.0, 5), times=5.0), "cpu", 5.0, "met"),
    (BenchmarkRow("p", "w", "ms", ONE_SECOND, MeasurementStats(4.9, 4.9, 9.0, 5), times=5.0), "cpu", 4.9, "missed"),
    (BenchmarkRow("p", "w", "ms", ONE_SECOND, times=5.0), "cpu", None, "not measured"),
    (BenchmarkRow("p", "w", "t/s", ONE_SECOND, MeasurementStats(0.25, 0.2, 0.3, 5), times=3.0, more_is_better=True),
     "cpu", 4.0,
     "met"),
    (BenchmarkRow("p", "w", "ms", ONE_SECOND, bound=Bound(0.9)), "cuda: NVIDIA H100", None, "missed"),
    (BenchmarkRow("p", "w", "ms", ONE_SECOND, bound=Bound(1.0)), "cuda: NVIDIA H200", None, "met"),
    (BenchmarkRow("p", "w", "codes/s", ONE_SECOND, bound=Bound(2.0), more_is_better=True), "cuda: NVIDIA H100", None,
     "missed"),
    (BenchmarkRow("p", "w", "ms", ONE_SECOND, bound=Bound(1.0)), "cuda: NVIDIA L4", None, "not measured"),
    (BenchmarkRow("p", "w", "ms", ONE_SECOND, MeasurementStats(9.0, 9.0, 9.0, 5)), "cpu", 9.0, ""),
])
def test_a_target_is_compared_with_the_medians(row: BenchmarkRow, device: str, ratio: float | None,
                                               status: str) -> None:
    assert row.ratio == (None if ratio is None else pytest.approx(ratio))
    assert row.target_status(device) == status


def test_measurements_are_taken_in_turns_after_one_to_warm_up() -> None:
    order: list[str] = []

    def measure(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = measure_interleaved({name: lambda name=name: measure(name) for name in "ab"}, 3)  # type: ignore[misc]
    assert "".join(order) == "ab" + "ababab"
    assert found["a"] == MeasurementStats(5.0, 3.0, 7.0, 3)


def test_the_table_shows_spread_ratio_aim_and_verdict() -> None:
    row = BenchmarkRow("T3", "a code", "ms", MeasurementStats(1234.5, 0.012, 4321, 5),
                       MeasurementStats(2469.0, 2469.0, 2469.0, 1),
                       times=1.8)
    text = results.as_markdown(MACHINE, {"command": "python -m scripts.dev.benchmark"}, BenchmarkResults(
        (row,), (Cost("T3", "int8: relative error", 4.0, "%", "a note"),)))
    assert "| a code | ms | 1,234 (0.012 to 4,321) | 2,469 | 2.00 | 1.8 times | met |" in text
    assert "| T3 | int8: relative error | 4 % | a note |" in text
    assert "a processor, 2 cores" in text


@torch.no_grad()
def test_drawn_weights_have_the_scales_of_those_made_from_a_seed() -> None:
    module = S3Gen(QUICK.sound)
    fill_randomly(module)
    for key, value in module.state_dict().items():
        if value.numel() < 2000 or key.rpartition(".")[2] in ("window", "_mel_filters"):
            continue
        wanted = np.asarray(tensor(key, tuple(value.shape), 0), np.float64)
        assert abs(float(value.mean()) - wanted.mean()) < 0.2 * max(abs(wanted.mean()), wanted.std()), key
        if value.ndim > 1 and not key.endswith("original0"):
            assert 0.8 < float(value.std()) / wanted.std() < 1.25, key


def test_the_full_extent_is_that_of_the_published_models() -> None:
    decoder = FULL.language.decoder
    assert (decoder.layers, decoder.width, decoder.mlp_width, decoder.heads) == (30, 1024, 4096, 16)
    gpt_decoder = FULL.voice.decoder
    assert (gpt_decoder.layers, gpt_decoder.width, gpt_decoder.mlp_width, gpt_decoder.heads) == (24, 1280, 5120, 20)
    assert (FULL.contexts, FULL.steps, FULL.prompts_s) == ((100, 400, 800), (10, 5, 4), (10.0, 3.0))
    assert FULL.batch_size == 8
    longest = max(length for pair in training.clip_lengths(Bench(FULL, torch.device("cpu"), None, print))
                  for length in pair)
    assert longest <= FULL.clip_s[-1] * 25


class Script:
    """A channel with requests written beforehand."""

    def __init__(self, *requests: dict[str, object]) -> None:
        self.requests, self.answers = list(requests), list[dict[str, float]]()

    def read(self) -> dict[str, object] | None:
        return self.requests.pop(0) if self.requests else None

    def answer(self, given: dict[str, float]) -> None:
        self.answers.append(given)


def test_the_package_is_timed_from_pass_to_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(published.time, "perf_counter", lambda: now[0])
    script = Script({"do": "decode", "codes": 2}, {"do": "decode", "codes": 2}, {"do": "done"})
    timer = published.DecodeTimer(script, torch.device("cpu"))  # type: ignore[arg-type]

    def passes(seconds: float) -> None:
        now[0] += seconds
        timer.after_pass()

    timer.start()
    for seconds in (7.0, 1.0, 2.0, 4.0):  # a prefill, two codes, and one of the next two
        passes(seconds)
    now[0] += 0.5
    timer.start()  # the loop ended early: another prefill, which does not count
    passes(7.0)
    with pytest.raises(published.Ended):
        passes(8.0)
    assert script.answers == [{"seconds": 7.0}, {"seconds": 3.0}, {"seconds": 12.5}]


@pytest.mark.slow
@pytest.mark.skipif(not Path(os.environ.get(VARIABLE) or ".reference/bin/python").is_file(),
                    reason="the published package is not there: make reference")
def test_the_published_package_answers(tmp_path: Path) -> None:
    with PublishedPackage(2, "cpu", tmp_path / "log") as reference:
        bench = Bench(QUICK, torch.device("cpu"), reference, lambda text: None)
        for part in (t3, s3gen, gpt, s2mel, training, extraction):
            packages = [row.package for row in part.measure(bench).rows if row.package]
            assert packages
            assert all(spread.least > 0 for spread in packages)
            bench.tidy()
