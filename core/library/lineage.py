"""What a model is, by its reference: folder, base, family, languages, voices and trainings. Never loads torch.

`Model.open` is the one answer to what `base:tiny`, `run:first@400` or `export:mine` names. Its properties read the
records beside the weights and the catalog; `core.model.loading` loads the weights of the same model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from config import foreign
from config.errors import UserError, join_names
from config.foreign import file_stamp
from core.jobs.checkpoint_names import BEST, CHECKPOINTS, CHOICE, NAMES, checkpoint_steps, folder_of, pinned_names
from core.jobs.job import Job, load_job
from core.jobs.state import STATUS_TITLES, JobBoard, JobReader, JobState
from core.jobs.verbs import RUN_VERBS
from core.library import catalog, records, reference_voices
from core.library.catalog import CatalogEntry
from core.library.certificate import CERTIFICATE
from core.library.checkpoints import RANKING, best_step
from core.library.records import CheckpointRecord, EarlierTrainingRecord, ExportRecord
from core.workspace import Workspace, resolve_inside, restore_hint
from data.durable_files import hash_file
from data.front_end import SETTINGS_FILE, FrontEnd

_SOUNDS = (".ogg", ".wav", ".flac")


@dataclass(frozen=True)
class Model:
    """A model of the workspace: `reference` as given, with the whole id of a run, and the folder that it names.

    The properties read files, so each may raise `UserError` for a model that is incomplete or damaged.
    """

    workspace: Workspace
    reference: str
    kind: Literal["base", "run", "export"]
    name: str
    folder: Path  # models/NAME, a checkpoint's folder, or exports/NAME
    step: int | None = None  # None unless it is a run's checkpoint

    @classmethod
    def open(cls, workspace: Workspace, reference: str) -> Model:
        """The model behind `base:NAME`, `run:ID`, `run:ID@STEP` (or `@NAME`, `@best`) or `export:NAME`.

        `run:ID` refers to the checkpoint that a person chose, else to the best one. The ID may be a short one.
        """
        reference = workspace.whole_reference(reference)
        kind, _, name = reference.partition(":")
        match kind:
            case "base":
                return cls(workspace, reference, kind, name, workspace.model(name))
            case "export":
                return cls(workspace, reference, kind, name, workspace.export(name))
            case "run":
                run, _, checkpoint = name.partition("@")
                job = find_training(workspace, run)
                step = find_checkpoint(job, checkpoint)
                return cls(workspace, reference, kind, run, folder_of(job.directory, step), step)
        raise UserError(
            f"{reference!r} is no reference to a model.",
            "Write base:NAME, run:ID (its best checkpoint), run:ID@STEP or export:NAME.",
        )

    @classmethod
    def find(cls, workspace: Workspace, name: str) -> Model:
        """The model to build upon: a reference, or the plain name of a base, else of an export, else of a run."""
        if ":" in name:
            return cls.open(workspace, name)
        if name not in workspace.list_models():
            if name in workspace.list_exports():
                return cls.open(workspace, f"export:{name}")
            if name in workspace.list_runs():
                return cls.open(workspace, f"run:{name}")
        return cls.open(workspace, f"base:{name}")

    @property
    def label(self) -> str:
        """The name on the page."""
        return f"{self.name}, step {self.step}" if self.kind == "run" else f"{self.name} ({self.kind})"

    @property
    def record(self) -> CheckpointRecord | ExportRecord:
        """The record of a checkpoint or an export."""
        if self.kind == "export":
            return records.read_export_record(self.folder)
        return records.read_checkpoint(self.folder)

    @property
    def certificate_path(self) -> Path:
        """Where the certificate of its run or export lies, or would lie; it may be of another checkpoint of the run."""
        return (self.folder.parent.parent if self.kind == "run" else self.folder) / CERTIFICATE

    @property
    def base_name(self) -> str:
        """The name of the base model that it was made from; of a base model its own."""
        return self.name if self.kind == "base" else self.record.origin.model

    @property
    def base(self) -> Model:
        """The base model that it was made from, which must be there."""
        return self if self.kind == "base" else Model.open(self.workspace, f"base:{self.base_name}")

    @property
    def family_name(self) -> str:
        """The name of its family. A base model without `model.json` is built in, and is called what its family is."""
        if self.kind != "base":
            return self.record.origin.family
        record = records.read_model_record(self.folder)
        return record.family if record else self.name

    @property
    def family(self) -> CatalogEntry:
        return catalog.find_entry(self.family_name)

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of its languages, those that were added here first."""
        try:
            return _front_end_languages(self._front_end_folder / SETTINGS_FILE)
        except (OSError, ValueError, KeyError, TypeError):
            record = records.read_model_record(self.folder) if self.kind == "base" else None
            family = self.family
            return catalog.variant(family, record.variant).codes if record and family.variants else ()

    @property
    def base_languages(self) -> tuple[str, ...]:
        """Codes of the languages of its base model; none where that is missing or its record cannot be read."""
        return languages_of(self.workspace, f"base:{self.base_name}")

    @property
    def added_languages(self) -> tuple[str, ...]:
        """Codes of the languages that were added to its base here."""
        if self.kind == "base":
            return ()
        base_languages = self.base_languages
        return tuple(code for code in self.languages if code not in base_languages)

    @property
    def trainings(self) -> tuple[EarlierTrainingRecord, ...]:
        """Its trainings since the base; the last one without the hash of its frozen tensors."""
        if self.kind == "base":
            return ()
        record = self.record
        origin = record.origin
        earlier_languages = {*origin.earlier_languages, *languages_of(self.workspace, f"base:{origin.model}")}
        last = EarlierTrainingRecord(",".join(code for code in self.languages if code not in earlier_languages),
                                     self.reference, record.scope, record.dataset, origin.size, origin.fingerprint, "")
        return (*origin.earlier_trainings, last)

    @property
    def stem(self) -> str:
        """What names begin with that are made of it: that of its base and its added languages, such as `tiny-am`."""
        return "-".join((self.base_name, *chain.from_iterable(training.languages for training in self.trainings)))

    @property
    def front_end(self) -> FrontEnd:
        """Its text front-end, which is read once; `UserError` if it cannot be read."""
        return _front_end(self._front_end_folder / SETTINGS_FILE)

    @property
    def voices(self) -> tuple[str, ...]:
        """Names of the voices that come with its base model."""
        try:
            base = self.base
        except UserError:
            return ()
        names = {path.stem for path in (base.folder / "voices").glob("*") if path.suffix in _SOUNDS}
        try:
            built_in = base.family.own_voice
        except UserError:
            built_in = None
        return (*sorted(names), *([built_in[1]] if built_in and (base.folder / built_in[0]).is_file() else []))

    def speakers(self, language: str = "") -> Mapping[str, Path]:
        """Speakers of the data that it was trained on, and a clip of each; none of a base model.

        Those of the data of `language` come first. A model that cannot be read has none.
        """
        if self.kind == "base":
            return {}
        try:
            record = self.record
        except UserError:
            return {}
        datasets: dict[str, str] = {}
        for training in record.origin.earlier_trainings:
            datasets |= dict.fromkeys(training.languages, training.dataset)
        clips: dict[str, Path] = {}
        names = [datasets.get(language, record.dataset), record.dataset, *datasets.values()]
        for name in filter(None, dict.fromkeys(names)):
            with suppress(UserError):  # a record of others may name anything
                folder = resolve_inside(self.workspace.datasets, name)
                for speaker, clip in reference_voices.list_speakers(folder).items():
                    clips.setdefault(speaker, clip)
        return clips

    def weights_hash(self, base_hash: str) -> str:
        """SHA-256 that names the weights: of an export's list of files, of a checkpoint's record, or of the base."""
        if self.kind == "export":
            return hash_file(self.folder / records.EXPORT_SUMS)
        if self.kind == "run":
            return hash_file(self.folder / records.CHECKPOINT)
        return hashlib.sha256(base_hash.encode()).hexdigest()

    @property
    def _front_end_folder(self) -> Path:
        return self.folder if self.kind == "base" else self.folder / records.FRONT_END


@foreign.cached_by_file(1 << 14)  # Start names the languages of every run
def _front_end_languages(path: Path) -> tuple[str, ...]:
    front_end = foreign.read_json(path)
    codes, base = list(front_end["languages"]), list(front_end["base_languages"])
    if not all(isinstance(code, str) for code in (*codes, *base)):
        raise ValueError("a code of a language is no text")
    return tuple(sorted(codes, key=lambda code: (code in base, code)))


@foreign.cached_by_file(4)  # a tokenizer takes some megabytes
def _front_end(path: Path) -> FrontEnd:
    return FrontEnd.load(path.parent)


def find_base_or_shipped(workspace: Workspace, name: str) -> Model:
    """The base of the model `name` (see `Model.find`), or the shipped files of a built-in one that is not installed."""
    if name not in workspace.list_models():
        for entry in catalog.CATALOG:
            if entry.name == name and not entry.variants:
                return Model(workspace, f"base:{name}", "base", name, catalog.pack_folder(name))
    return Model.find(workspace, name).base


def languages_of(workspace: Workspace, name: str) -> tuple[str, ...]:
    """Codes of the languages of a model to build upon; none where it is not there or its record cannot be read."""
    try:
        return Model.find(workspace, name).languages
    except UserError:
        return ()


def find_training(workspace: Workspace, name: str) -> Job:
    """The training or import with the whole or short id `name`; `UserError` lists those with a checkpoint, or alive."""
    name = workspace.whole_id(name, *RUN_VERBS)
    job = load_job(workspace, name) if resolve_inside(workspace.runs, name).is_dir() else None
    if job and job.verb in RUN_VERBS:
        return job
    run_ids = [state.id for state in JobBoard(workspace).states()
               if state.verb in RUN_VERBS and (state.alive or run_model(state))]
    raise UserError(f"There is no run named {name!r} (there: {join_names(run_ids)}).",
                    restore_hint(workspace.runs, name) or "Choose one of these, or train first.")


def find_checkpoint(job: Job, checkpoint: str = "") -> int:
    """The step of a training's checkpoint by its step or name; empty: the chosen one, else the best one.

    The run's folder says which one is the best; the job's journal only reports it.
    """
    run_dir = job.directory
    steps, pinned = checkpoint_steps(run_dir), pinned_names(run_dir)
    if not steps:
        raise UserError(
            f"The run {job.id!r} has no checkpoint ({STATUS_TITLES[JobReader(job).state().status]}).",
            "Let it train to its first checkpoint, or choose another run.",
        )

    if checkpoint in ("", BEST):
        choice = None if checkpoint else pinned.get(CHOICE)
        step = choice if choice in steps else best_step(run_dir)
        assert step is not None
        return step

    # A checkpoint is named by its step or by a name that a person pinned.
    step = pinned.get(checkpoint, int(checkpoint) if checkpoint.isascii() and checkpoint.isdigit() else None)
    if step in steps:
        return step
    raise UserError(
        f"The run {job.id!r} has no checkpoint of step {checkpoint!r}, nor one of that name.",
        f"There are checkpoints of steps {', '.join(map(str, steps))}"
        f"{'; names: ' + ', '.join(pinned) if pinned else ''}.",
    )


def require_run_or_export(reference: str) -> str:
    """`reference` where it names a run or an export; nothing else is packed."""
    if reference.partition(":")[0] not in ("run", "export"):
        raise UserError(f"{reference!r} is neither an export nor a run.", "Give export:NAME or run:ID.")
    return reference


def require_run(reference: str) -> str:
    """`reference` where it names a run; bases and exports cannot be exported."""
    if not reference.startswith("run:"):
        raise UserError(f"{reference!r} is not a run to export.", "Give run:ID (its best checkpoint) or run:ID@STEP.")
    return reference


def list_models(workspace: Workspace, runs: Sequence[JobState]) -> list[Model]:
    """All models for synthesis: bases, exports, and the chosen or best checkpoint of each of `runs` that has one."""
    models = []
    for reference in (*(f"base:{name}" for name in workspace.list_models()),
                      *(f"export:{name}" for name in workspace.list_exports())):
        # A folder may have a name that Lisan does not give.
        with suppress(UserError):
            models.append(Model.open(workspace, reference))
    checkpoints = (run_model(state) for state in runs if state.verb in RUN_VERBS)
    return [*models, *(checkpoint for checkpoint in checkpoints if checkpoint is not None)]


def list_checkpoints(state: JobState) -> list[Model]:
    """Every checkpoint that a training keeps, newest first: `run:ID@NAME` where it was pinned, else `run:ID@STEP`."""
    names = {step: name for name, step in listed_names(state).items() if name != CHOICE}
    job = state.job
    return [Model(job.workspace, f"run:{job.id}@{names.get(step, step)}", "run", job.id,
                  folder_of(job.directory, step), step) for step in reversed(checkpoint_steps(job.directory))]


_KNOWN_RUNS: dict[str, tuple[object, Model | None]] = {}
"""By folder: the state of the files that name a run's checkpoints, and the answer of `run_model`."""
_MOST_KNOWN = 1 << 15


def run_model(state: JobState) -> Model | None:
    """The checkpoint that `run:ID` refers to; None if there is none yet.

    Cached while nothing has changed, because the page asks for thousands of runs each second.
    """
    job = state.job
    folder = str(job.directory)
    stamp = tuple(file_stamp(f"{folder}/{CHECKPOINTS}{file}") for file in ("", f"/{NAMES}", f"/{RANKING}"))
    cached = _KNOWN_RUNS.get(folder)
    if cached and cached[0] == stamp:
        return cached[1]
    # Without the folder of checkpoints nothing is selected yet.
    step = _selected_step(job.directory) if stamp[0] else None
    model = None if step is None else Model(job.workspace, f"run:{job.id}", "run", job.id,
                                            folder_of(job.directory, step), step)

    # The cache is emptied rather than trimmed: runs are rarely that many.
    if len(_KNOWN_RUNS) > _MOST_KNOWN:
        _KNOWN_RUNS.clear()
    _KNOWN_RUNS[folder] = stamp, model
    return model


def _selected_step(run_dir: Path) -> int | None:
    """For a list of runs: the step that was chosen, else the best, else the last; damaged files choose nothing."""
    steps = checkpoint_steps(run_dir)
    with suppress(UserError):
        choice = pinned_names(run_dir).get(CHOICE)
        if choice in steps:
            return choice
    with suppress(UserError):
        return best_step(run_dir)
    return steps[-1] if steps else None


def models_stamp(workspace: Workspace, models: Sequence[Model]) -> tuple[object, ...]:
    """What changes when a list of models does, or one of their records, for as long as the list itself is kept."""
    bases = [(name, *(file_stamp(f"{workspace.models}/{name}/{file}") for file in ("model.json", "front_end.json")))
             for name in workspace.list_models()]
    return str(workspace.path), bases, [
        (id(model), file_stamp(f"{model.folder}/checkpoint.json")) if model.kind == "run"
        else (model.reference, file_stamp(f"{model.folder}/export.json")) for model in models]


def listed_names(state: JobState) -> Mapping[str, int]:
    """The names of a run's checkpoints for a list of runs: none where the file of one of them is damaged.

    `Model.open` refuses that run, so that nothing is made of another checkpoint than the one that was chosen.
    """
    try:
        return pinned_names(state.job.directory)
    except UserError:
        return {}
