"""Who measures how well speech is understood: the judge that comes with a model, and a recogniser of one's choice.

A recogniser judges the new language of a run alone. What it hears is compared with the text by letters: spaces,
case and signs are not pronounced.
"""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from config.errors import UserError
from config.languages import language_name
from config.schema import TrainOptions
from core.jobs.reporter import Reporter, stage
from core.library import exports, records
from core.library.catalog import resolve
from core.library.records import CheckpointRecord, ExportRecord
from core.segments.language_codes import names_of
from core.segments.recogniser import Recogniser
from core.sources import recognisers
from core.sources.recognisers import AS_JUDGE, BUILT_IN
from core.voice_model.loading import VoiceModel
from core.workspace import Workspace
from data.acoustics import audio
from models.base import Verdict
from models.registry import family

_BUILT_IN_MODEL, _REVISION = "tiny", "main"
_WANTED = ("*.json", "*.txt", "*.model", "*model*.safetensors", "pytorch_model*.bin")
_OTHERS = ("*/*",)  # files in folders are of other programs


class Hearing(Protocol):
    """What can tell an error."""

    @property
    def languages(self) -> tuple[str, ...]:
        """Those that it can judge."""
        ...

    def verdict(self, waveform: torch.Tensor, sample_rate: int, text: str, language: str) -> Verdict:
        """Compare what is heard in waveform (S,) with `text`."""
        ...


class Choice(Protocol):
    """What names a judge: the options of a training, the record of a checkpoint or of an export."""

    @property
    def judge(self) -> str:
        """A recogniser; empty is the judge that comes with the model."""
        ...

    @property
    def recogniser_language(self) -> str:
        """What it calls the language; empty where that need not be said."""
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
class Without:
    """The model's own judge, but for a language whose chosen judge cannot be had."""

    own: Hearing | None
    missing: str  # the language
    reason: str  # without a path: it may be published

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(code for code in self.own.languages if code != self.missing) if self.own else ()

    def verdict(self, waveform: torch.Tensor, sample_rate: int, text: str, language: str) -> Verdict:
        assert self.own is not None
        return self.own.verdict(waveform, sample_rate, text, language)


def letters_of(text: str) -> str:
    """Letters, digits and the marks on them, in one case."""
    return "".join(sign for sign in unicodedata.normalize("NFKC", text).casefold()
                   if sign.isalnum() or unicodedata.category(sign)[0] == "M")


def bring(choice: Choice, language: str, workspace: Workspace, reporter: Reporter) -> None:
    """Fetch the recogniser where it has to be; nothing for none, or the built-in one."""
    if choice.judge not in ("", BUILT_IN):
        with stage(reporter, "recogniser"):
            recognisers.ensure_recogniser(choice.judge, _REVISION, names_of(language, choice.recogniser_language),
                                          workspace,
                              reporter,
                              asked=AS_JUDGE)


def choosing_judge(workspace: Workspace, model: VoiceModel, choice: Choice) -> Hearing | None:
    """The judge of a training, which may choose its best checkpoint; `UserError` where it cannot be had."""
    own, language = _own(model), _new_language(model)
    if not choice.judge or not language:
        return own
    try:
        return _both(_load(workspace, model, choice, language), own)
    except UserError as error:
        raise UserError(f"{error.message} It is to judge what is spoken.", error.hint) from error


def judge_of(workspace: Workspace, model: VoiceModel, warn: Callable[[str], None], choice: Choice | None = None,
             spoken: Collection[str] | None = None) -> Hearing | None:
    """The judge of what is trained: the model's own, and the recogniser of `choice`, else that of its training.

    Where the recogniser cannot be had, `warn` is told why, and nobody judges in its place: errors of two judges would
    stand side by side. It is loaded only where its language is among those `spoken`, if these are known.
    """
    own, language = _own(model), _new_language(model)
    choice = choice or _of_training(workspace, model)
    if choice is None or not choice.judge or not language or (spoken is not None and language not in spoken):
        return own
    try:
        return _both(_load(workspace, model, choice, language), own)
    except UserError as error:
        return without(workspace, model, warn, choice, error)


def without(workspace: Workspace, model: VoiceModel, warn: Callable[[str], None], choice: Choice,
            error: UserError) -> Without:
    """What is left when `error` keeps the recogniser of `choice` from judging; `warn` is told."""
    language, folder = _new_language(model), _folder(workspace, choice.judge)
    gone = folder is not None and not folder.is_dir()
    shown = folder.name if folder is not None and Path(choice.judge).is_absolute() else choice.judge
    reason = f"the recogniser {shown}, the judge of its training, {_fault(choice, gone)}"
    said = f": {error.message}" if not gone else "." if _is_elsewhere(choice) else f" ({folder})."
    warn(f"{language_name(language)} is not measured: {reason}{said} {_way_out(choice, language, folder, gone)}")
    return Without(_own(model), language, reason)


def unmeasured(judge: Hearing | None, language: str) -> str:
    """Why the judge that was chosen for `language` is not heard; empty where none was, or it is."""
    return judge.reason if isinstance(judge, Without) and language == judge.missing else ""


def _own(model: VoiceModel) -> Hearing | None:
    return model.family.judge(model.base_folder)


def _new_language(model: VoiceModel) -> str:
    """The language that a chosen recogniser judges; empty for a model that was taught none."""
    return next((code for code in model.front_end.languages if model.front_end.is_new(code)), "")


def _both(chosen: Hearing | None, own: Hearing | None) -> Hearing | None:
    return _Both(chosen, own) if chosen is not None and own is not None else chosen or own


def _of_training(workspace: Workspace, model: VoiceModel) -> Choice | None:
    """Who judged the training of a checkpoint or an export; None for other models."""
    if model.ref.startswith("export:"):
        return _where_it_was_trained(workspace, exports.record_of(model))
    if model.ref.startswith("run:"):
        return records.read_record(resolve(workspace, model.ref).folder / records.CHECKPOINT, CheckpointRecord)
    return None


def _where_it_was_trained(workspace: Workspace, record: ExportRecord) -> ExportRecord:
    """`record` with the folder of its judge, of which it tells the name: by the record of its run, where that is here.

    Older ones tell the folder, which is another machine's, or gone, where there is none.
    """
    folder = Path(record.judge)
    if record.judge in ("", BUILT_IN) or ("/" in record.judge and not folder.is_absolute()) or folder.is_dir():
        return record
    with suppress(UserError):
        run = records.read_record(resolve(workspace, f"run:{record.run}@{record.step}").folder / records.CHECKPOINT,
                           CheckpointRecord)
        if run.origin == record.origin and records.strip_folder(run.judge) == folder.name:
            return replace(record, judge=run.judge)
    return replace(record, judge=folder.name)


def _folder(workspace: Workspace, name: str) -> Path | None:
    """Where a recogniser lies, or would; None for the built-in one."""
    if name == BUILT_IN:
        return None
    if Path(name).is_absolute():
        return Path(name)
    try:
        return recognisers.folder_of(workspace, name, _REVISION)
    except UserError:  # its record is damaged, which the check of its files says
        return workspace.recognisers / recognisers.folder_name(name)


def _load(workspace: Workspace, model: VoiceModel, choice: Choice, language: str) -> Hearing | None:
    """The recogniser of `choice`; `UserError` where it is not there, or cannot be loaded."""
    folder = _folder(workspace, choice.judge)
    if folder is None:
        return family(_BUILT_IN_MODEL).judge(workspace.model(_BUILT_IN_MODEL))
    if not folder.is_dir():
        raise UserError(f"There is no recogniser {folder}.", f"Put it back, or choose another ({AS_JUDGE.option}).")
    if not Path(choice.judge).is_absolute():
        recognisers.check(folder, AS_JUDGE)
    from core.segments.hub_recogniser import HubRecogniser  # loads transformers

    loaded = HubRecogniser.load(folder, model.device, language, choice.recogniser_language, AS_JUDGE)
    return RecogniserJudge(loaded, language)


def _is_elsewhere(choice: Choice) -> bool:
    """Whether it was a folder, of which an export tells the name alone."""
    return choice.judge != BUILT_IN and "/" not in choice.judge


def _fault(choice: Choice, gone: bool) -> str:
    if not gone:
        return "cannot be loaded"
    if _is_elsewhere(choice):
        return "is on the machine that it was trained on"
    return "is not here" if isinstance(choice, ExportRecord) else "is not there any more"


def _way_out(choice: Choice, language: str, folder: Path | None, gone: bool) -> str:
    """How to have the recogniser again; who has an export alone has neither dataset nor extension."""
    if folder is None:
        return f"Get the built-in model (python -m scripts.download --model {_BUILT_IN_MODEL}), then do this again."
    if _is_elsewhere(choice) and gone:
        return f"Copy it into {folder}, then do this again."
    if _is_elsewhere(choice) or Path(choice.judge).is_absolute():
        return f"Put a whole recogniser into {folder}, then do this again."
    fetch = "Fetch" if gone else f"Delete {folder}, then fetch"
    if not isinstance(choice, TrainOptions | CheckpointRecord):
        return f"{fetch} it ({_download(choice, language, folder)}), then do this again."
    called = f" {AS_JUDGE.language_option} {choice.recogniser_language}" if choice.recogniser_language else ""
    return (f"{fetch} it anew by the check of a training that names it (python -m scripts.preflight --dataset "
            f"{choice.dataset} --extension {choice.extension} {AS_JUDGE.option} {choice.judge}{called}; on the page: "
            "Train, Check first), and do this again.")


def _download(choice: Choice, language: str, folder: Path) -> str:
    """A command that fetches a recogniser without Lisan: of the parts that MMS has for 1,100 languages, one."""
    adapter = f"adapter.{names_of(language, choice.recogniser_language)[0]}*.safetensors"
    wanted = [word for pattern in (*_WANTED, adapter) for word in ("--include", pattern)]
    others = [word for pattern in _OTHERS for word in ("--exclude", pattern)]
    return shlex.join(["hf", "download", choice.judge, *wanted, *others, "--local-dir", str(folder)])
