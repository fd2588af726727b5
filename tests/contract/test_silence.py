"""What every family does with silence while it speaks: it is no repetition, and a sentence of it is tried again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch

from config.schema import SamplingOptions
from core.model.loading import TTSModel
from core.speech.evaluation import SpeechEvaluator
from core.speech.synthesis import Synthesizer, finish_reason, join_chunks
from models import generate
from models.base import Generated, Sampling, VocoderOptions, Voice
from models.sampling import Sampler
from tests.contract.conftest import CPU, World
from tests.worlds import ENGLISH, RATE, CodesAsSound

SILENT, HUM = 3, 5  # codes
SEED, STEP = 4, 1_000_003


class ToneVocoder(CodesAsSound):
    """A tone for each code, and faint noise for the silent one."""

    def __init__(self, code_rate: int, streams: bool = False) -> None:
        self.samples, self.streams = RATE // code_rate, streams

    def decode(self, codes: np.ndarray, voice: Voice, options: VocoderOptions | None = None,
               hidden_states: torch.Tensor | None = None) -> torch.Tensor:
        times = torch.arange(len(codes) * self.samples) / RATE
        code = torch.from_numpy(np.asarray(codes, np.int64)).repeat_interleave(self.samples)
        tones = 0.1 * torch.sin(2 * np.pi * (150 + 20 * (code % 16)) * times)
        noise = 3e-4 * torch.randn(len(times), generator=torch.Generator().manual_seed(0))
        return torch.where(code == SILENT, noise, tones)

    def push(self, codes: np.ndarray) -> torch.Tensor:
        return self.decode(codes, Voice({}))

    def finish(self) -> torch.Tensor:
        return torch.zeros(0)

    def stream(self, voice: Voice, options: VocoderOptions | None = None) -> ToneVocoder | None:  # type: ignore[override]
        return self if self.streams else None


@pytest.fixture(scope="module")
def model(world: World) -> TTSModel:
    return world.base()


@pytest.fixture
def rate(model: TTSModel, monkeypatch: pytest.MonkeyPatch) -> int:
    """Codes a second. What repeats for 0.4 s is a repetition, since the small models speak for 2.5 s at most."""
    for name, seconds in (("_REPEATED_S", 0.4), ("_MAX_PERIOD_S", 0.2), ("_EDGE_S", 0.1)):
        monkeypatch.setattr(generate, name, seconds)
    network: Any = model.lm.module
    return int(network.config.code_rate)


def stop_code(model: TTSModel) -> int:
    network: Any = model.lm.module
    return int(network.config.stop_speech)


def follow(monkeypatch: pytest.MonkeyPatch, script: Callable[[int], Sequence[int]]) -> list[int]:
    """Let the sampler follow the script of the seed, whatever the logits are; the seeds that were asked for."""
    seeds: list[int] = []
    reset = Sampler.reset

    def remember(self: Any, sampling: Sampling, used: Sequence[int] = ()) -> None:
        reset(self, sampling, used)
        seeds.append(sampling.seed)
        self.script = torch.tensor(script(sampling.seed))

    def sample(self: Any, logits: torch.Tensor, step: torch.Tensor, guard: object = None) -> torch.Tensor:
        return self.script[step.clamp(max=len(self.script) - 1)].expand(len(self.used))

    monkeypatch.setattr(Sampler, "reset", remember)
    monkeypatch.setattr(Sampler, "sample", sample)
    return seeds


def speech(codes: int) -> list[int]:
    return [7 + number % 11 for number in range(codes)]


def decoded(world: World, model: TTSModel, vocoder: ToneVocoder | None, limit_s: float) -> Generated:
    """The result of `generate`, which `stream` gives too."""
    voice = next(iter(world.voices(model).values()))
    text, network = model.front_end.encode(ENGLISH[0], "en"), cast(Any, model.lm.module)
    limit = round(limit_s * network.config.code_rate)
    [result] = generate.generate(network, [text], [voice], Sampling(), [limit], CPU, None, vocoder)
    *_, last = generate.stream(network, text, voice, Sampling(), limit, CPU, None, vocoder)
    assert isinstance(last, Generated)
    assert (last.finish_reason, last.codes.tolist()) == (result.finish_reason, result.codes.tolist())
    return result


def test_silence_is_no_repetition(world: World, model: TTSModel, rate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = stop_code(model)
    spoken, pause = speech(round(0.4 * rate)), round(0.9 * rate) * [SILENT]
    vocoder = ToneVocoder(rate)
    follow(monkeypatch, lambda seed: [*spoken, *pause, *spoken, stop])
    assert decoded(world, model, None, 2.2).finish_reason == "repetition"
    result = decoded(world, model, vocoder, 2.2)
    assert (result.finish_reason, result.codes.tolist()) == ("stop", [*spoken, *pause, *spoken])

    follow(monkeypatch, lambda seed: [*spoken, *([HUM] * len(pause)), *spoken, stop])
    result = decoded(world, model, vocoder, 2.2)
    assert (result.finish_reason, result.codes.tolist()) == ("repetition", [*spoken, HUM])


def test_a_text_that_ends_in_silence_without_a_stop_reaches_its_limit_and_keeps_no_silence(
        world: World, model: TTSModel, rate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spoken = speech(round(0.4 * rate))
    follow(monkeypatch, lambda seed: [*spoken, SILENT])
    result = decoded(world, model, ToneVocoder(rate), 1.6)
    assert (result.finish_reason, result.codes.tolist()) == ("limit", [*spoken, SILENT])


def test_silence_from_the_start_is_no_speech_at_once(world: World, model: TTSModel, rate: int,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    follow(monkeypatch, lambda seed: [SILENT])
    result = decoded(world, model, ToneVocoder(rate), 2.2)
    assert (result.finish_reason, result.codes.tolist()) == ("no_speech", [SILENT])


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def synthesizer(world: World, model: TTSModel, rate: int, request: pytest.FixtureRequest) -> Synthesizer:
    voice = next(iter(world.voices(model).values()))
    return Synthesizer(model, voice, vocoder=ToneVocoder(rate, streams=request.param))


@pytest.mark.parametrize("lead_s", [0.5, 0.8])
def test_a_sentence_that_begins_with_long_silence_is_tried_with_another_seed(
        model: TTSModel, rate: int, synthesizer: Synthesizer, monkeypatch: pytest.MonkeyPatch, lead_s: float) -> None:
    stop = stop_code(model)
    lead = [SILENT, SILENT + 13] * 40  # the pair is not a repetition, and the second code is as silent
    monkeypatch.setattr(ToneVocoder, "decode", silent_also(ToneVocoder.decode, SILENT + 13))
    spoken = speech(round(0.4 * rate))

    def script(seed: int) -> list[int]:
        silence = lead[:round(lead_s * rate)] if seed == SEED else []
        return [*silence, *spoken, stop]

    seeds = follow(monkeypatch, script)
    options = SamplingOptions(seed=SEED, temperature=0.8)
    monkeypatch.setattr(generate, "_REPEATED_S", 2)
    chunks = list(synthesizer.synthesize("the cat", "en", options))
    retried = lead_s > 0.6
    assert seeds == [SEED, SEED + STEP] if retried else [SEED]
    assert finish_reason(chunks) == "stop"
    assert len(join_chunks(chunks)) / RATE == pytest.approx(0.4 + (0 if retried else lead_s), abs=0.05)
    again = list(synthesizer.synthesize("the cat", "en", options))
    assert torch.equal(join_chunks(again), join_chunks(chunks))


def silent_also(decode: Callable[..., torch.Tensor], code: int) -> Callable[..., torch.Tensor]:
    return lambda self, codes, *others: decode(self, np.where(np.asarray(codes) == code, SILENT, codes), *others)


def test_three_attempts_of_silence_are_marked_as_no_speech(
        model: TTSModel, rate: int, synthesizer: Synthesizer, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = stop_code(model)
    for silence in ([SILENT], [*[SILENT] * 8, stop]):  # without an end, and shorter than 0.6 s
        seeds = follow(monkeypatch, lambda seed, silence=silence: silence)
        chunks = list(synthesizer.synthesize("the cat", "en", SamplingOptions(seed=SEED, temperature=0.8)))
        assert seeds == [SEED, SEED + STEP, SEED + 2 * STEP]
        assert finish_reason(chunks) == "no_speech"
        assert len(join_chunks(chunks))
        monkeypatch.undo()


def test_greedy_decoding_is_not_repeated(synthesizer: Synthesizer, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = follow(monkeypatch, lambda seed: [SILENT])
    chunks = list(synthesizer.synthesize("the cat", "en", SamplingOptions(seed=SEED, temperature=0.0)))
    assert (seeds, finish_reason(chunks)) == ([SEED], "no_speech")


def test_the_sentences_of_an_evaluation_are_tried_again_too(world: World, model: TTSModel, rate: int,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    stop = stop_code(model)
    spoken = speech(round(0.4 * rate))
    follow(monkeypatch, lambda seed: [*spoken, stop] if seed > SEED + STEP else [SILENT])
    evaluator = SpeechEvaluator(ToneVocoder(rate), world.voices(model), None)
    texts, sampling = [("en", text) for text in ENGLISH[:2]], Sampling(temperature=0.8, seed=SEED)
    assert [one.finish_reason for one in evaluator.speak(model, texts, sampling)] == ["stop", "stop"]
    follow(monkeypatch, lambda seed: [SILENT])
    assert [one.finish_reason for one in evaluator.speak(model, texts, sampling)] == ["no_speech"] * 2
