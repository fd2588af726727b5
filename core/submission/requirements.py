"""What a job needs: all of it must exist before the job is queued, or a living job must be making it.

The checks here are those of several verbs; what one verb alone refuses stands in its module (`core.verbs`). Only files
are read. What they do not say (the languages of a model that does not exist yet) the job itself checks.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from config import schema
from config.errors import UserError, join_names
from config.schema import (
    AS_IS,
    DATASET_RECOGNISER,
    EvaluateOptions,
    ExportOptions,
    Options,
    PrepareOptions,
    ResynthesizeOptions,
    ServeOptions,
    TokenizerOptions,
    TrainOptions,
    option_value,
    without_sections,
)
from core.dataset import languages
from core.dataset.languages import describe_language
from core.jobs.job import Job
from core.jobs.state import JobBoard, JobState
from core.jobs.verbs import VERBS
from core.library import records, segments
from core.library.artefacts import languages_of_dataset
from core.library.lineage import Model
from core.library.reference_voices import SPEAKER
from core.library.segments import PREFIX
from core.sources import recognisers
from core.text import text_rules
from core.workspace import Reference, Workspace
from data import augmentation

_REFERENCES = {"base": "model", "run": "run", "export": "export"}  # kind of need, by the prefix of a reference
_LOADS_BASE = ("preflight", "train", "synthesize", "book", "compare", "evaluate", "serve", "piper_dataset", "certify",
               "export")
"""The verbs that load the base model of an extension, a run or an export."""
_NEVER_MADE = ("source", "file", "recogniser")  # no job makes these: a person must mend the option


@dataclass(frozen=True)
class PlannedJob:
    """A job that was checked and is not created yet. `after`: ids of the jobs that it waits for."""

    id: str
    verb: str
    options: Options
    after: tuple[str, ...]

    @property
    def settings(self) -> dict[str, object]:
        return without_sections(type(self.options), self.options.model_dump(mode="json"))


def find_makers(workspace: Workspace, verb: str, options: Options,
                planned: Sequence[Job | PlannedJob] = ()) -> tuple[str, ...]:
    """Ids of living jobs that make what `options`, with whole ids, need and what does not exist yet; they finish first.

    `planned` are jobs that will have finished before. Raises `UserError` for what does not exist and is not being made.
    """
    faults: list[tuple[Need, UserError]] = []
    named = [*needs(verb, options)]
    if verb in _LOADS_BASE:
        named = [*named, *_base_models(workspace, named)]
    for need in sorted(named, key=lambda need: need.kind not in _NEVER_MADE):
        try:
            _find(workspace, need, options)
        except UserError as error:
            faults.append((need, error))
        except OSError as error:
            # A name may be one that no file can have.
            faults.append((need, UserError(f"{need.name[:200]!r} cannot be looked up: {error.strerror or error}.",
                                           "Give another name or path.")))

    # The run whose certificate an export waits for.
    certified_run = ""
    if isinstance(options, ExportOptions) and not options.unproven:
        certified_run = Reference.parse(options.run).run

    # A living job may make what is missing; without one the fault is final.
    living = JobBoard(workspace).queue() if faults or certified_run else []
    makers = [state.id for state in living if certified_run and state.certifies == certified_run]
    for need, fault in faults:
        if any(makes(job, need.kind, need.name) for job in planned):
            continue
        maker_ids = [state.id for state in living if makes(state.job, need.kind, need.name)]
        if not maker_ids:
            raise fault
        makers.append(maker_ids[-1])
    return tuple(dict.fromkeys(makers))


def check_rules(workspace: Workspace, names: str, dataset: str) -> None:
    """Text rules must be there, and fit the languages of a dataset that is there."""
    if names in ("", schema.NO_RULES):
        return
    codes = languages_of_dataset(workspace, dataset) if dataset else ()
    if codes:
        text_rules.for_languages(workspace, names, codes)
    for name in filter(None, names.split(",")):
        text_rules.load(workspace, name)


@dataclass(frozen=True)
class Need:
    """An artefact that must be there before the work can begin, and the option that names it."""

    field: str
    kind: str
    name: str


def needs(verb: str, options: Options) -> Iterator[Need]:
    """The artefacts that `options` name, by the table of verbs."""
    for field, kind in VERBS[verb].needs.items():
        if isinstance(options, EvaluateOptions) and field == "models":
            yield from _evaluated_models(options.models)
            continue

        value = str(option_value(options, field))
        if not value and (kind not in ("source", "export") or isinstance(options, ResynthesizeOptions)):
            continue
        if isinstance(options, TokenizerOptions) and field == "tokenizer" and options.part != "report":
            # The job makes it.
            continue

        # What a value names may depend on its prefix.
        match kind:
            case "dataset" if isinstance(options, TrainOptions) and field == "replay_datasets":
                for name in languages.split_names(value) if options.scope == "full" else ():
                    yield Need(field, kind, name)
            case "reference" if isinstance(options, ServeOptions):
                for name in options.models:
                    yield Need(field, _REFERENCES.get(name.partition(":")[0], kind), name)
            case "reference":
                yield Need(field, _REFERENCES.get(value.partition(":")[0], kind), value)
            case "recogniser" if value == recognisers.BUILT_IN:
                yield Need(field, "model", "tiny")
            case "recogniser" if value.startswith(DATASET_RECOGNISER):
                yield Need(field, "dataset", value.removeprefix(DATASET_RECOGNISER))
            case "source" if value == AS_IS and isinstance(options, PrepareOptions):
                yield Need(field, "dataset", options.dataset)
            case "source" if value.startswith(PREFIX):
                yield Need(field, "transcripts", value.removeprefix(PREFIX))
            case "file" if value.startswith(("export:", "run:")):
                yield Need(field, value.partition(":")[0], value)
            case "model" if Path(value).is_absolute():
                yield Need(field, "file", value)
            case _:
                yield Need(field, kind, value)


def _evaluated_models(names: Sequence[str]) -> Iterator[Need]:
    """The models, and the folders of recordings, that an evaluation names."""
    for name in names:
        kind, _, model = name.partition(":")
        if kind == "folder":
            yield Need("folder", "file", model)
        elif kind == "codec":
            yield Need("models", "model", f"base:{model}")
        elif kind in _REFERENCES:
            yield Need("models", _REFERENCES[kind], name.partition("+")[0])


def _base_models(workspace: Workspace, named: Sequence[Need]) -> Iterator[Need]:
    """The base models of the extensions, runs and exports among what is `named`."""
    for need in named:
        # What is missing is reported with the other needs.
        with suppress(UserError, OSError):
            if need.kind == "extension":
                yield Need("base", "model", records.read_extension(workspace.extension(need.name)).origin.model)
            elif need.name.startswith(("run:", "export:")):
                yield Need("base", "model", Model.open(workspace, need.name).base_name)


def _find(workspace: Workspace, need: Need, options: Options) -> None:
    """Raise `UserError` when the artefact is not there."""
    kind, name = need.kind, need.name
    if kind == "reference" or name.startswith(("base:", "run:", "export:")):
        Model.open(workspace, name)
    elif kind == "dataset":
        dataset = workspace.dataset(name)
        if need.field == "dataset" and isinstance(options, TrainOptions) and options.data.augmentation:
            augmentation.require(dataset)
    elif kind == "transcripts":
        segments.find_segments(workspace, name)
    elif kind == "recogniser":
        if Path(name).is_absolute():
            recognisers.local_recogniser(Path(name))

    elif kind == "source":
        if not name:
            raise UserError("No source was given.", "Give the path of a folder or file on this machine, or a URL.")
        # A URL is checked by the job, which can reach the network.
        elsewhere = name.lower().startswith(("http://", "https://", "hub:"))
        if name not in ("demo", AS_IS) and not elsewhere and not Path(name).exists():
            check_upload(workspace, name)
            raise UserError(f"There is no source {name}.",
                            "Give the path of a folder or file on this machine, a URL, hub:OWNER/NAME, or `demo`.")

    elif kind == "file":
        if not Path(name).exists():
            raise UserError(f"There is no {need.field.removesuffix('_file')} {name}.",
                            "Give the path of a file or folder on this machine.")
    else:
        # A model to build upon may be a run or an export too.
        if need.field == "model":
            Model.find(workspace, name)
            return
        {"model": workspace.model, "tokenizer": workspace.tokenizer, "extension": workspace.extension,
         "segments": workspace.segment_folder, "export": workspace.export, "run": workspace.run}[kind](name)


def makes(job: Job | PlannedJob, kind: str, name: str) -> bool:
    """Whether the job will make this artefact."""
    name = Reference.parse(name).name if ":" in name else name
    for field, made_kind in VERBS[job.verb].makes.items():
        value = job.id if field == "job" else job.settings.get(field)
        # A download without a name makes one up.
        if job.verb == "download" and not value:
            value = name
        if value == name and kind in (made_kind, "segments" if made_kind == "transcripts" else made_kind):
            return True
    return False


def check_not_being_made(states: Iterable[JobState], kind: str, name: str, values: Mapping[str, object]) -> None:
    """No living job may be about to make an artefact `name` with other options."""
    for state in states:
        if state.alive and makes(state.job, kind, name) and any(
                state.job.settings.get(field, value) != value for field, value in values.items()):
            raise UserError(f"{state.id} is making the {kind} {name!r} with other options.",
                            f"Choose another {kind} name, or wait for that job.")


def check_named(options: Options, name: str, field: str) -> None:
    """Refuse the demo's default `name` for an artefact whose `field` is not the demo's."""
    value = getattr(options, field)
    if name not in options.model_fields_set and value != type(options).model_fields[field].default:
        raise UserError(f"The {name} made of the {field} {value!r} has no name.",
                        f"Give one, such as --{name} {value}.")


def check_new_export(workspace: Workspace, name: str) -> None:
    """The name must be free, and no living job about to take it."""
    workspace.new_export(name)
    for state in JobBoard(workspace).queue():
        if makes(state.job, "export", name):
            raise UserError(f"{state.id} is making an export named {name!r}.",
                            "Choose another name, or wait for that job and take what it makes.")


def check_new_archive(archive: str) -> None:
    """The file that a job writes last can be written."""
    if not archive:
        return
    if Path(archive).exists():
        raise UserError(f"There already is a file {archive}.", "Give another name: none is replaced.")
    folder = Path(archive).parent
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.", "Make it first, or give another path for the archive.")
    if not os.access(folder, os.W_OK):
        raise UserError(f"{folder} cannot be written: {os.strerror(errno.EACCES)}.",
                        "Give another path for the archive.")


def check_upload(workspace: Workspace, path: str) -> None:
    """`UserError` for an uploaded file that was deleted since."""
    if Path(path).is_relative_to(workspace.uploads) and not Path(path).exists():
        raise UserError("This upload is no longer here: it was removed after its import, or after a day.",
                        "Upload it again.")


def check_speaks(workspace: Workspace, reference: str, codes: Iterable[str], voice: str) -> None:
    try:
        model = Model.open(workspace, reference)
        # The base stands in the record of a run or an export.
        model.base_name  # noqa: B018
    except UserError:
        # A missing model is reported with the other needs, a damaged record when it is loaded.
        return
    known_codes, voices = model.languages, model.voices
    for code in codes:
        if known_codes and code not in known_codes:
            raise UserError(f"{reference} does not speak {describe_language(code)}.",
                            f"Choose one of its languages ({', '.join(known_codes)}), or a model of this language.")
    if voice.startswith(SPEAKER):
        speakers = model.speakers()
        if voice.removeprefix(SPEAKER) not in speakers and not (voice == SPEAKER and speakers):
            raise UserError(f"{voice.removeprefix(SPEAKER)!r} is no speaker of the data of {reference}.",
                            f"Its speakers: {join_names(list(speakers))}.")
    elif voice and voices and voice not in voices and not Path(voice).expanduser().is_file():
        raise UserError(f"{voice!r} is neither a voice of {reference} nor a recording.",
                        f"Its voices: {', '.join(voices)}. A reference recording is given by its path.")
