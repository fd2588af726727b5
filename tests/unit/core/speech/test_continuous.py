"""Requests that are synthesized together: the sound of each alone, joining, leaving, order and errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from config.errors import UserError
from config.schema import SamplingOptions
from core.model.loading import load
from core.speech import evaluation
from core.speech.continuous import ContinuousSynthesizer, SpeechRequest
from core.speech.synthesis import SynthesizedChunk, Synthesizer, join_chunks
from core.workspace import Workspace
from models.base import VocoderOptions, Voice
from tests.trained import RUN, trained_world
from tests.worlds import CodesAsSound

LIVELY = SamplingOptions(temperature=1.0, min_p=0.0, seed=11)
LONG = "the cat sees a dog. we go home now, five green birds sing. she reads a book. we go. a dog sees a cat."
SHORT = "a dog sees a cat."


class StreamedCodes(CodesAsSound):
    """The same vocoder, which gives the sound of all codes but the last two at once."""

    def stream(self, voice: Voice, options: VocoderOptions | None = None) -> StreamedCodes:  # type: ignore[override]
        stream = StreamedCodes()
        stream.waiting = np.zeros(0, dtype=np.int64)
        return stream

    waiting: np.ndarray

    def push(self, codes: np.ndarray) -> torch.Tensor:
        codes = np.concatenate([self.waiting, codes])
        ready, self.waiting = codes[:-2], codes[-2:]
        return 0.1 + torch.from_numpy(ready).float() / 2**16

    def finish(self) -> torch.Tensor:
        return 0.1 + torch.from_numpy(self.waiting).float() / 2**16


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return trained_world(tmp_path_factory.mktemp("world") / "workspace")


@pytest.fixture(scope="module", params=["whole", "streamed"])
def voice(world: Workspace, request: pytest.FixtureRequest) -> Synthesizer:
    """A gated model, whose adapters act in the new language alone, with a vocoder that shows the codes."""
    model = load(world, f"run:{RUN}", torch.device("cpu"))
    vocoder = CodesAsSound() if request.param == "whole" else StreamedCodes()
    return Synthesizer(model, "low", evaluation.longest_texts(world, model), vocoder=vocoder)


class Caller:
    """Who sends a request and keeps what comes."""

    def __init__(self, voice: Synthesizer, text: str, language: str = "en", options: SamplingOptions = LIVELY) -> None:
        self.parts: list[SynthesizedChunk] = []
        self.ends: list[Exception | None] = []
        self.request = SpeechRequest(voice, language, voice.split(text, language), options, self.parts.append,
                                     self.ends.append)
        self.alone = (voice, text, language, options)

    @property
    def sound(self) -> torch.Tensor:
        assert self.ends == [None]
        return join_chunks(self.parts)

    def wanted(self) -> torch.Tensor:
        voice, text, language, options = self.alone
        return join_chunks(list(voice.synthesize(text, language, options)))


def finish(together: ContinuousSynthesizer, most: int = 2000) -> None:
    for _ in range(most):
        if not together.requests:
            break
        together.advance()
    assert together.requests == together.rows == 0


def test_a_request_alone_has_the_sound_of_synthesize(voice: Synthesizer) -> None:
    together, caller = ContinuousSynthesizer(), Caller(voice, LONG)
    together.add(caller.request)
    finish(together)
    assert torch.equal(caller.sound, caller.wanted())


def test_requests_in_two_languages_with_seeds_of_their_own_join_one_by_one(voice: Synthesizer) -> None:
    together = ContinuousSynthesizer()
    callers = [Caller(voice, LONG), Caller(voice, SHORT, options=LIVELY.model_copy(update={"seed": 5})),
               Caller(voice, "ሀለመ ሰረቀ።", "am"), Caller(voice, LONG, options=LIVELY.model_copy(update={"seed": 9}))]
    for caller in callers:
        together.add(caller.request)
        together.advance()
    finish(together)
    for caller in callers:
        assert torch.equal(caller.sound, caller.wanted())


def test_more_requests_than_rows_wait_and_are_all_served(voice: Synthesizer) -> None:
    together, callers = ContinuousSynthesizer(max_texts=4), [Caller(voice, SHORT) for _ in range(9)]
    for caller in callers:
        together.add(caller.request)
    while together.requests:
        together.advance()
        assert together.rows <= 4
    for caller in callers:
        assert torch.equal(caller.sound, callers[0].wanted())


def test_a_first_chunk_finds_a_row_although_a_long_text_has_many(voice: Synthesizer) -> None:
    together = ContinuousSynthesizer(max_texts=4)
    long, short = Caller(voice, " ".join([LONG] * 3)), Caller(voice, SHORT)
    together.add(long.request)
    together.advance()
    assert 0 < together.rows <= 3
    together.add(short.request)
    while not short.ends:
        together.advance()
    assert not long.ends


def test_a_cancelled_request_frees_its_rows_at_once(voice: Synthesizer) -> None:
    together, gone, other = ContinuousSynthesizer(), Caller(voice, LONG), Caller(voice, LONG)
    for caller in (gone, other):
        together.add(caller.request)
    together.advance()
    rows = together.rows
    together.cancel(gone.request)
    assert together.rows == rows // 2
    finish(together)
    assert gone.ends == []
    assert torch.equal(other.sound, other.wanted())


def test_an_error_of_one_request_ends_no_other(voice: Synthesizer, monkeypatch: pytest.MonkeyPatch) -> None:
    together, bad, good = ContinuousSynthesizer(), Caller(voice, SHORT, "fr"), Caller(voice, SHORT)

    prepare = Synthesizer._prepared_voice

    def refuse(synthesizer: Synthesizer, text: str, language: str) -> object:
        if language == "fr":
            raise UserError("No voice.", "Give one.")
        return prepare(synthesizer, text, language)

    monkeypatch.setattr(Synthesizer, "_prepared_voice", refuse)
    for caller in (bad, good):
        together.add(caller.request)
    finish(together)
    assert isinstance(bad.ends[0], UserError)
    assert bad.parts == []
    monkeypatch.undo()
    assert torch.equal(good.sound, good.wanted())


def test_a_silent_sentence_starts_again_beside_others(world: Workspace) -> None:
    model = load(world, "base:tiny", torch.device("cpu"))
    voice = Synthesizer(model, "low", evaluation.longest_texts(world, model), vocoder=SilentAtFirst())
    wanted = join_chunks(list(voice.synthesize(SHORT, "en", LIVELY)))
    assert voice.vocoder.decoded > 1
    together, callers = ContinuousSynthesizer(), []
    for _ in range(2):
        voice.vocoder.decoded = 0
        callers.append(Caller(voice, SHORT))
        together.add(callers[-1].request)
    finish(together)
    assert len(wanted)
    assert all(caller.ends == [None] for caller in callers)


class SilentAtFirst(CodesAsSound):
    """The first waveform is silent."""

    decoded = 0

    def decode(self, *arguments: object, **others: object) -> torch.Tensor:  # type: ignore[override]
        self.decoded += 1
        sound = super().decode(*arguments, **others)  # type: ignore[arg-type]
        return sound if self.decoded > 1 else torch.zeros(2 * self.sample_rate)
