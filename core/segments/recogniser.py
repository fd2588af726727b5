"""Who hears: the built-in model's recogniser, or one that transformers loads; whole texts, or letters by frame."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from config.errors import UserError
from core import compute
from core.jobs.reporter import Reporter, stage
from core.segments.language_codes import names_of
from core.sources import recognisers
from core.sources.recognisers import BUILT_IN
from core.workspace import Workspace
from data import sound_files
from data.acoustics.voice_activity import SecondsCallback
from data.languages.latin import romanise
from models.base import Judge
from models.registry import family

_CORE_S, _CONTEXT_S = 16.0, 2.0  # of a recording that is heard at once, and what is heard on either side of it
_BUILT_IN_MODEL = "tiny"


@dataclass(frozen=True)
class Heard:
    """What was said in a clip, and how sure that is: the mean probability of its signs, 0 to 1."""

    text: str
    score: float


class Recogniser(Protocol):
    """Writes down what is said."""

    sample_rate: int  # Hz

    def transcribe(self, waveforms: Sequence[np.ndarray]) -> list[Heard]:
        """Clips (S,) at `sample_rate`, each by itself."""
        ...


class Listener(Protocol):
    """Hears letters frame by frame, by CTC."""

    sample_rate: int  # Hz
    frame_s: float
    blank: int
    separator: int | None  # what stands between words, where it writes that

    def heard(self, waveform: np.ndarray) -> np.ndarray:
        """Log-probabilities (F, V) of (S,)."""
        ...

    def spelled(self, word: str) -> list[int]:
        """A word in its letters; what it has no letter for is left out."""
        ...


class BuiltIn:
    """The judge of the built-in model: it knows that model's synthetic voices, and writes letters without spaces."""

    blank = 0
    separator: int | None = None

    def __init__(self, judge: Judge, language: str) -> None:
        if language not in judge.languages:
            raise UserError(f"The built-in recogniser does not know {language!r}; it knows "
                            f"{', '.join(judge.languages)}, in synthetic voices.",
                            "Choose another recogniser, such as openai/whisper-small or facebook/mms-1b-all.")
        self._judge, self._language = judge, language
        self.sample_rate, self.frame_s = judge.sample_rate, judge.frame_s
        self._ids = {letter: number for number, letter in enumerate(judge.letters, 1)}

    def heard(self, waveform: np.ndarray) -> np.ndarray:
        return self._judge.heard(torch.from_numpy(waveform), self._language).numpy()

    def spelled(self, word: str) -> list[int]:
        return [self._ids[letter] for letter in self._judge.spelled(word, self._language) if letter in self._ids]

    def transcribe(self, waveforms: Sequence[np.ndarray]) -> list[Heard]:
        found = []
        for waveform in waveforms:
            ids, score = best_path(self.heard(waveform), self.blank)
            found.append(Heard("".join(self._judge.letters[number - 1] for number in ids), score))
        return found


def best_path(heard: np.ndarray, blank: int) -> tuple[list[int], float]:
    """The labels of the likeliest path through (F, V), and their mean probability; 0 where nothing is heard."""
    best = heard.argmax(1)
    starts = [frame for frame in range(len(best)) if best[frame] != blank and (frame == 0 or best[frame - 1] != best[
        frame])]
    score = float(np.exp(heard[starts, best[starts]]).mean()) if starts else 0.0
    return best[starts].tolist(), score


@dataclass(frozen=True)
class Speller:
    """Words in the signs of a vocabulary; romanised where that does not know their script."""

    signs: Mapping[str, int]
    romanised: bool = False

    @classmethod
    def of(cls, vocabulary: Mapping[str, int], sample: str) -> Speller:
        """For a language of which `sample` is some text."""
        signs = {sign: number for sign, number in vocabulary.items() if len(sign) == 1}
        plain, latin = cls(signs), cls(signs, romanised=True)
        letters = [letter for letter in sample if letter.isalpha()][:5000]
        known = sum(bool(plain.spelled(letter)) for letter in letters)
        return latin if letters and known < len(letters) / 2 else plain

    def spelled(self, word: str) -> list[int]:
        text = romanise(word) if self.romanised else unicodedata.normalize("NFC", word)
        return [number for letter in text if letter.isalnum() or unicodedata.category(letter)[0] == "M" or letter == "'"
                for number in self._signs_of(letter)]

    def _signs_of(self, letter: str) -> list[int]:
        for form in (letter, letter.lower(), letter.upper()):
            if form in self.signs:
                return [self.signs[form]]
        parts = unicodedata.normalize("NFKD", letter)
        return [self.signs[form] for part in parts for form in (part.lower(), part.upper()) if form in self.signs][:4]


def load(name: str, revision: str, language: str, called: str, device: str, workspace: Workspace,
         reporter: Reporter, begun: bool = False) -> Recogniser:
    """The recogniser `name`, fetched where it has to be; `called` is what it calls the language, where that is told.

    `begun`: it has written texts so already.
    """
    if name == BUILT_IN:
        return _built_in(language, workspace)
    from core.segments.hub_recogniser import HubRecogniser  # loads transformers

    return HubRecogniser.load(_brought(name, revision, language, called, workspace, reporter),
                              compute.setup_device(device), language, called, begun=begun)


def load_listener(name: str, revision: str, language: str, called: str, sample: str, device: str,
                  workspace: Workspace, reporter: Reporter) -> Listener:
    """The same, for letters frame by frame; `sample` is some text of the language."""
    if name == BUILT_IN:
        return _built_in(language, workspace)
    from core.segments.hub_recogniser import HubListener

    return HubListener.load(_brought(name, revision, language, called, workspace, reporter),
                            compute.setup_device(device), language, called, sample)


def _brought(name: str, revision: str, language: str, called: str, workspace: Workspace, reporter: Reporter) -> Path:
    with stage(reporter, "recogniser"):
        return recognisers.ensure_recogniser(name, revision, names_of(language, called), workspace, reporter)


def _built_in(language: str, workspace: Workspace) -> BuiltIn:
    judge = family(_BUILT_IN_MODEL).judge(workspace.model(_BUILT_IN_MODEL))
    assert judge is not None
    return BuiltIn(judge, language)


def frames_of(listener: Listener, path: Path, heard: SecondsCallback) -> Iterator[np.ndarray]:
    """What is heard in a recording, in blocks (F, V) that follow each other; `heard` is told the seconds."""
    rate = listener.sample_rate
    core, context = round(_CORE_S * rate), round(_CONTEXT_S * rate)
    wanted, skipped = round(_CORE_S / listener.frame_s), round(_CONTEXT_S / listener.frame_s)
    waiting, before, done = np.zeros(0, np.float32), 0, 0  # `before`: samples of `waiting` that were heard already
    for block in sound_files.read_resampled(path, rate):
        waiting = np.concatenate([waiting, block])
        while len(waiting) - before >= core + context:
            rows = listener.heard(waiting[:before + core + context])
            yield rows[skipped if before else 0:][:wanted]
            waiting, before = waiting[before + core - context:], context
            done += core
            heard(done / rate)
    if len(waiting) > before:
        rest = -(-(len(waiting) - before) * wanted // core)
        silence = np.zeros(rate // 2, np.float32)
        yield listener.heard(np.concatenate([waiting, silence]))[skipped if before else 0:][:rest]
        heard((done + len(waiting) - before) / rate)
