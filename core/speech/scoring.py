"""Recognisers that score synthesized speech: that of a dataset, the one that comes with a model, and a chosen one.

A chosen recogniser scores only the new languages of a run. Where none is chosen, the recogniser of the training's
dataset does, if it has one. Its transcript is compared with the text by letters, without
spaces, case and punctuation, which are not pronounced.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Protocol

import torch

from config.errors import UserError
from config.languages import language_name
from config.schema import TrainOptions
from core.jobs.reporter import Reporter, stage
from core.library import dataset_recognisers, records
from core.library.lineage import Model
from core.library.records import CheckpointRecord, ExportRecord
from core.model.loading import TTSModel
from core.sources import recognisers
from core.sources.recognisers import BUILT_IN
from core.speech.dataset_recogniser import DatasetRecogniser
from core.speech.transcription import HubTranscriber, Transcriber, recogniser_language_names
from core.workspace import Workspace
from data.acoustics import audio
from data.languages.words import scored_letters
from models.base import RecognitionScore
from models.registry import family

_BUILT_IN_MODEL, _REVISION = "tiny", "main"
_WANTED = ("*.json", "*.txt", "*.model", "*model*.safetensors", "pytorch_model*.bin")
_UNWANTED = ("*/*",)  # files in subfolders belong to other programs


class Recogniser(Protocol):
    """Waveforms and their texts to scores: how intelligible speech is."""

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages that it can score."""
        ...

    def score(self, waveform: torch.Tensor, sample_rate: int, text: str, language: str) -> RecognitionScore:
        """Compare the transcript of waveform (S,) with `text`."""
        ...

    def normalise(self, text: str, language: str) -> str:
        """`text` in the letters in which transcripts are compared."""
        ...


class RecogniserChoice(Protocol):
    """Names a recogniser: the choice of a training, the record of a checkpoint or of an export."""

    @property
    def recogniser(self) -> str:
        """The chosen recogniser; empty for the one that comes with the model."""
        ...

    @property
    def recogniser_language(self) -> str:
        """The recogniser's name of the language; empty for the usual names."""
        ...


class TranscribingRecogniser:
    """Scores one language by the transcripts of a `Transcriber`."""

    def __init__(self, transcriber: Transcriber, language: str) -> None:
        self._transcriber = transcriber
        self.languages: tuple[str, ...] = (language,)

    def score(self, waveform: torch.Tensor, sample_rate: int, text: str, language: str) -> RecognitionScore:
        """See `Recogniser`."""
        resampled = audio.resample(waveform.float().cpu(), sample_rate, self._transcriber.sample_rate)
        transcript = self._transcriber.transcribe([resampled.numpy()])[0].text
        return RecognitionScore.of(scored_letters(text), scored_letters(transcript))

    def normalise(self, text: str, language: str) -> str:
        """See `Recogniser`."""
        return scored_letters(text)


@dataclass(frozen=True)
class CompositeRecogniser:
    """The chosen recogniser for its languages, the model's own for the others."""

    chosen: Recogniser
    own: Recogniser

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.chosen.languages, *self.own.languages)))

    def score(self, waveform: torch.Tensor, sample_rate: int, text: str, language: str) -> RecognitionScore:
        return self._recogniser_of(language).score(waveform, sample_rate, text, language)

    def normalise(self, text: str, language: str) -> str:
        """See `Recogniser`."""
        return self._recogniser_of(language).normalise(text, language)

    def _recogniser_of(self, language: str) -> Recogniser:
        return self.chosen if language in self.chosen.languages else self.own


@dataclass(frozen=True)
class UnavailableRecogniser:
    """The model's own recogniser, without the languages whose chosen recogniser cannot be loaded."""

    own: Recogniser | None
    missing: tuple[str, ...]  # the languages
    reason: str  # without a path: it may be published

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(code for code in self.own.languages if code not in self.missing) if self.own else ()

    def score(self, waveform: torch.Tensor, sample_rate: int, text: str, language: str) -> RecognitionScore:
        assert self.own is not None
        return self.own.score(waveform, sample_rate, text, language)

    def normalise(self, text: str, language: str) -> str:
        """See `Recogniser`."""
        assert self.own is not None
        return self.own.normalise(text, language)


def download_recogniser(choice: RecogniserChoice, languages: Sequence[str], workspace: Workspace,
                        reporter: Reporter) -> None:
    """Download the chosen recogniser if it is on the hub and not in the workspace."""
    if choice.recogniser not in ("", BUILT_IN) and not dataset_recognisers.dataset_of(choice.recogniser):
        with stage(reporter, "recogniser"):
            for language, name in _language_names(choice, languages).items():
                names = recogniser_language_names(language, name)
                recognisers.ensure_recogniser(choice.recogniser, _REVISION, names, workspace, reporter)


@dataclass(frozen=True)
class NamedRecogniser:
    """A `RecogniserChoice`; that of a training also names the extension and the dataset, for a hint."""

    recogniser: str
    recogniser_language: str = ""
    extension: str = ""
    dataset: str = ""


def choose(workspace: Workspace, options: TrainOptions) -> NamedRecogniser:
    """The recogniser of a training: the chosen one, or that of its dataset if none is chosen and it can measure."""
    name = options.evaluation.recogniser or dataset_recognisers.default_name(workspace, options.dataset)
    return NamedRecogniser(name, options.evaluation.recogniser_language, options.extension, options.dataset)


def measured_by(recogniser: Recogniser | None, language: str) -> str:
    """Who measures `language`, if it is a recogniser of its own dataset; else empty."""
    if isinstance(recogniser, CompositeRecogniser):
        return measured_by(recogniser.chosen if language in recogniser.chosen.languages else recogniser.own, language)
    if isinstance(recogniser, DatasetRecogniser) and language in recogniser.languages:
        return dataset_recognisers.describe(recogniser.record, language)
    return ""


def load_recogniser(workspace: Workspace, model: TTSModel, choice: RecogniserChoice) -> Recogniser | None:
    """The recogniser of a training, which may select its best checkpoint; `UserError` if it cannot be loaded."""
    try:
        return _load(workspace, model, choice)
    except UserError as error:
        raise UserError(f"{error.message} It is needed to score the speech.", error.hint) from error


def load_recogniser_or_warn(workspace: Workspace, model: TTSModel, warn: Callable[[str], None],
                            choice: RecogniserChoice | None = None,
                            languages: Collection[str] | None = None) -> Recogniser | None:
    """The recogniser of `choice`, else of the training of `model`, together with the model's own.

    If it cannot be loaded, `warn` gets the reason, and its languages are not scored by another recogniser, because
    errors of two recognisers cannot be compared. If `languages` are given, it is loaded only for one of them.
    """
    # Later measurements use the recogniser of the training, so that errors can be compared.
    if choice is None:
        record = model.record
        choice = _locate_recogniser(workspace, record) if isinstance(record, ExportRecord) else record
    if choice is None or (languages is not None and not set(model.new_languages) & set(languages)):
        return model.family.load_recogniser(model.base_folder)
    try:
        return _load(workspace, model, choice)
    except UserError as error:
        return replace_unavailable(workspace, model, warn, choice, error)


def replace_unavailable(workspace: Workspace, model: TTSModel, warn: Callable[[str], None],
                        choice: RecogniserChoice, error: UserError) -> UnavailableRecogniser:
    """What remains if `error` prevents loading the recogniser of `choice`; `warn` gets the reason and a hint."""
    codes, name, folder = model.new_languages, choice.recogniser, _folder(workspace, choice.recogniser)
    absent = folder is not None and not folder.is_dir()
    # Say where it is, or why it does not load.
    if not absent:
        problem, detail = "cannot be loaded", f": {error.message}"
    elif name != BUILT_IN and "/" not in name:  # a folder of the user's, of which an export records the name alone
        problem, detail = "is on the machine that it was trained on", "."
    else:
        problem = "is not here" if isinstance(choice, ExportRecord) else "is not there any more"
        detail = f" ({folder})."

    # The reason may be published, so it names no folder of this machine.
    display_name = folder.name if folder is not None and Path(name).is_absolute() else name
    reason = f"the recogniser {display_name} of its training {problem}"
    hint = _recovery_hint(choice, codes[0], folder, absent)
    warn(f"{language_name(','.join(codes))} {'is' if len(codes) == 1 else 'are'} not measured: {reason}{detail} {hint}")
    return UnavailableRecogniser(model.family.load_recogniser(model.base_folder), codes, reason)


def unmeasured_reason(recogniser: Recogniser | None, language: str) -> str:
    """Why the recogniser that was chosen for `language` is unavailable; empty if none was chosen or it is available."""
    unavailable = isinstance(recogniser, UnavailableRecogniser) and language in recogniser.missing
    return recogniser.reason if unavailable else ""  # type: ignore[union-attr]


def _load(workspace: Workspace, model: TTSModel, choice: RecogniserChoice) -> Recogniser | None:
    base_recogniser = model.family.load_recogniser(model.base_folder)
    names = _language_names(choice, model.new_languages)
    if not choice.recogniser or not names:
        return base_recogniser

    # Chosen are a dataset's recogniser, the built-in one, or a folder with one of the hub.
    folder = _folder(workspace, choice.recogniser)
    dataset = dataset_recognisers.dataset_of(choice.recogniser)
    if dataset:
        chosen: Recogniser | None = _load_of_dataset(workspace, dataset, model.device)
    elif folder is None:
        chosen = family(_BUILT_IN_MODEL).load_recogniser(workspace.model(_BUILT_IN_MODEL))
    elif not folder.is_dir():
        raise UserError(f"There is no recogniser {folder}.",
                        "Put it back, or choose another (--recogniser).")
    else:
        if not Path(choice.recogniser).is_absolute():
            recognisers.check_content(workspace, folder)
        # A recogniser of the hub is loaded once for each language, because it is set to one.
        *further, last = (TranscribingRecogniser(HubTranscriber.load(folder, model.device, language, name), language)
                          for language, name in names.items())
        chosen = last
        for recogniser in further:
            chosen = CompositeRecogniser(recogniser, chosen)
    if chosen is not None and base_recogniser is not None:
        return CompositeRecogniser(chosen, base_recogniser)
    return chosen or base_recogniser


def _load_of_dataset(workspace: Workspace, dataset: str, device: torch.device) -> DatasetRecogniser:
    again = f"Train it: python -m scripts recogniser --dataset {dataset}."
    record = dataset_recognisers.find(workspace, dataset)
    if record is None:
        raise UserError(f"The dataset {dataset!r} has no recogniser, or one of other clips than it has now.", again)
    if not record.languages:
        reasons = (dataset_recognisers.unmeasured_reason(record, language) for language in record.held_out)
        raise UserError(f"It cannot measure: {'; '.join(reasons) or 'it was tested on no held-out clip'}.",
                        "Choose another recogniser (--recogniser).")
    return DatasetRecogniser.load(dataset_recognisers.folder_of(workspace, dataset), device)


def _language_names(choice: RecogniserChoice, languages: Sequence[str]) -> dict[str, str]:
    """By language the chosen recogniser's name of it; empty for the usual names. The option is comma-separated."""
    option = choice.recogniser_language
    option_names = [name.strip() for name in option.split(",")] if option else []
    if option_names and len(option_names) != len(languages):
        raise UserError(f"The recogniser's names of the languages are {choice.recogniser_language!r}; "
                        f"{len(languages)} are wanted, for {', '.join(languages)}.",
                        "Give them in this order, separated by commas, or leave it empty.")
    return dict(zip(languages, option_names or [""] * len(languages), strict=True))


def _locate_recogniser(workspace: Workspace, record: ExportRecord) -> ExportRecord:
    """`record` with the folder of its recogniser instead of its name, if the run of the export is in the workspace."""
    if record.recogniser in ("", BUILT_IN) or "/" in record.recogniser:
        return record
    # The export records the name alone; the run still knows the folder.
    with suppress(UserError):
        run = records.read_checkpoint(Model.open(workspace, f"run:{record.run}@{record.step}").folder)
        if run.origin == record.origin and records.strip_folder(run.recogniser) == record.recogniser:
            return replace(record, recogniser=run.recogniser)
    return record


def _folder(workspace: Workspace, name: str) -> Path | None:
    """The folder of a recogniser, whether it exists or not; None for the built-in one."""
    try:
        return recognisers.locate(workspace, name)
    except UserError:  # its record is damaged; the check of its files reports that
        return workspace.recognisers / recognisers.folder_name(name)


def _recovery_hint(choice: RecogniserChoice, language: str, folder: Path | None, absent: bool) -> str:
    """How to restore the recogniser. With only an export there is no dataset or extension for a preflight check."""
    name = choice.recogniser
    dataset = dataset_recognisers.dataset_of(name)
    if dataset:
        return f"Train it again (python -m scripts recogniser --dataset {dataset}), then do this again."
    if folder is None:
        return f"Get the built-in model (python -m scripts download --model {_BUILT_IN_MODEL}), then do this again."
    if "/" not in name and absent:
        return f"Copy it into {folder}, then do this again."
    if "/" not in name or Path(name).is_absolute():
        return f"Put a whole recogniser into {folder}, then do this again."

    # A recogniser of the hub: a check of the training fetches it, but an export only has a command.
    fetch = "Fetch" if absent else f"Delete {folder}, then fetch"
    if isinstance(choice, NamedRecogniser | CheckpointRecord) and choice.extension:
        option = f" --recogniser-language {choice.recogniser_language}" if choice.recogniser_language else ""
        return (f"{fetch} it again by the check of a training that names it (python -m scripts preflight --dataset "
                f"{choice.dataset} --extension {choice.extension} --recogniser {name}{option}; on the page: "
                "Preflight check on the Train tab), and do this again.")
    adapter = f"adapter.{recogniser_language_names(language, choice.recogniser_language)[0]}*.safetensors"
    # MMS has an adapter for each language, and one is enough.
    include = chain.from_iterable(("--include", pattern) for pattern in (*_WANTED, adapter))
    exclude = chain.from_iterable(("--exclude", pattern) for pattern in _UNWANTED)
    download = shlex.join(["hf", "download", name, *include, *exclude, "--local-dir", str(folder)])
    return f"{fetch} it ({download}), then do this again."
