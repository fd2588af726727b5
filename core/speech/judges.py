"""Who measures how well speech is understood: the judge that comes with a model, and a recogniser of one's choice.

A recogniser judges the new language of a run alone. What it hears is compared with the text by letters: spaces,
case and signs are not pronounced.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from config.errors import UserError
from core.incoming import recognisers
from core.incoming.recognisers import BUILT_IN
from core.job.reporter import Reporter, stage
from core.library import records
from core.library.catalog import resolve
from core.library.records import CheckpointRecord
from core.segments.language_codes import names_of
from core.segments.recogniser import Recogniser
from core.voice_model.loading import VoiceModel
from core.workspace import Workspace
from data import audio
from models.base import Verdict
from models.registry import family

_BUILT_IN_MODEL, _REVISION = "tiny", "main"


class Hearing(Protocol):
    """What can tell an error."""

    @property
    def languages(self) -> tuple[str, ...]:
        """Those that it can judge."""
        ...

    def verdict(self, waveform: torch.Tensor, sample_rate: int, text: str, language: str) -> Verdict:
        """Compare what is heard in waveform (S,) with `text`."""
        ...


class RecogniserJudge:
    """A recogniser that hears one language."""

    def __init__(self, recogniser: Recogniser, language: str) -> None:
        self._recogniser = recogniser
        self.languages: tuple[str, ...] = (language,)

    def verdict(self, waveform: torch.Tensor, sample_rate: int, text: str, language: str) -> Verdict:
        """See `Hearing`."""
        sound = audio.resample(waveform.float().cpu(), sample_rate, self._recogniser.sample_rate)
        heard = self._recogniser.transcribe([sound.numpy()])[0].text
        return Verdict.of(letters_of(text), letters_of(heard))


@dataclass(frozen=True)
class _Both:
    """The chosen one for its languages, the model's own for the others."""

    chosen: Hearing
    own: Hearing

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.chosen.languages, *self.own.languages)))

    def verdict(self, waveform: torch.Tensor, sample_rate: int, text: str, language: str) -> Verdict:
        judge = self.chosen if language in self.chosen.languages else self.own
        return judge.verdict(waveform, sample_rate, text, language)


@dataclass(frozen=True)
class _Without:
    """The model's own judge, but for a language that another one judged who is not here any more."""

    own: Hearing
    missing: str

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(code for code in self.own.languages if code != self.missing)

    def verdict(self, waveform: torch.Tensor, sample_rate: int, text: str, language: str) -> Verdict:
        return self.own.verdict(waveform, sample_rate, text, language)


def letters_of(text: str) -> str:
    """Letters, digits and the marks on them, in one case."""
    return "".join(sign for sign in unicodedata.normalize("NFKC", text).casefold()
                   if sign.isalnum() or unicodedata.category(sign)[0] == "M")


def bring(name: str, language: str, workspace: Workspace, reporter: Reporter) -> None:
    """Fetch the recogniser `name` where it has to be; nothing for none, or the built-in one."""
    if name not in ("", BUILT_IN):
        with stage(reporter, "recogniser"):
            recognisers.bring(name, _REVISION, names_of(language), workspace, reporter)


def judge_of(workspace: Workspace, model: VoiceModel, name: str | None = None) -> Hearing | None:
    """The judge of `model`: its own, and the recogniser `name` (else the one that its run was judged by).

    Nobody takes the place of a recogniser that was deleted since: errors of two judges would stand side by side.
    """
    own: Hearing | None = model.family.judge(model.base_folder)
    name = _of_run(workspace, model) if name is None else name
    new = [code for code in model.front_end.languages if model.front_end.is_new(code)]
    chosen = _load(workspace, model, name, new[0]) if name and new else None
    if chosen is None and own is not None and name and new:
        return _Without(own, new[0])
    if chosen is None or own is None:
        return own if chosen is None else chosen
    return _Both(chosen, own)


def _of_run(workspace: Workspace, model: VoiceModel) -> str:
    """The recogniser that judged the run of a checkpoint; empty for other models."""
    if not model.ref.startswith("run:"):
        return ""
    return records.read(resolve(workspace, model.ref).folder / records.CHECKPOINT, CheckpointRecord).judge


def _load(workspace: Workspace, model: VoiceModel, name: str, language: str) -> Hearing | None:
    """A recogniser that is here; None for one that was deleted since."""
    if name == BUILT_IN:
        return family(_BUILT_IN_MODEL).judge(workspace.model(_BUILT_IN_MODEL))
    folder = Path(name) if Path(name).is_absolute() else recognisers.folder_of(workspace, name, _REVISION)
    if not folder.is_dir():
        return None
    from core.segments.hub_recogniser import HubRecogniser  # loads transformers

    try:
        return RecogniserJudge(HubRecogniser.load(folder, model.device, language, ""), language)
    except UserError as error:
        raise UserError(f"{error.message} It is to judge what is spoken.",
                        f"Put it right, or move {folder} away: then nothing is judged in that language.") from error
