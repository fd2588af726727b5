"""Is what a job asks for there, or in the making? Said when it is asked, not at its turn. Never loads torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from config import sharding_checks
from config.errors import UserError
from config.schema import (
    AS_IS,
    AlignOptions,
    CompareOptions,
    DoctorOptions,
    ExportOptions,
    ExtendOptions,
    LabOptions,
    Options,
    PrepareOptions,
    PushOptions,
    ReviseOptions,
    SegmentOptions,
    SynthesizeOptions,
    TokenizerOptions,
    TrainOptions,
    TranscribeOptions,
)
from core import review
from core.dataset import languages
from core.incoming import recognisers
from core.incoming.recognisers import BUILT_IN
from core.job import speakable
from core.job.reader import JobBoard
from core.job.state import JobState
from core.library import catalog, offers, records
from core.library.records import ExtensionRecord
from core.segments import folder
from core.segments.folder import PREFIX
from core.workspace import Workspace
from data import augmentation, manifest

_ALSO = {"transcribe": "align", "segment": "align"}  # what else makes segments, and their texts


@dataclass(frozen=True)
class _Need:
    """`find` raises `UserError` when the thing called `name` is not there; a job of `verb` could be making it."""

    verb: str
    name: str
    find: Callable[[str], object]


def check(workspace: Workspace, verb: str, options: Options) -> tuple[str, ...]:
    """Ids of living jobs that make what `options` need and what is not there yet; they must finish first.

    Raises `UserError` for what is not there and not in the making.
    """
    if isinstance(options, PrepareOptions | SegmentOptions | AlignOptions):
        _check_source(options.source)
    if isinstance(options, AlignOptions) and options.text and not Path(options.text).is_file():
        raise UserError(f"There is no text {options.text}.", "Give the path of a text file or subtitles, or nothing.")
    if isinstance(options, DoctorOptions):
        _check_files(options)
    if isinstance(options, LabOptions) and options.text and not Path(options.text).is_file():
        raise UserError(f"There is no text file {options.text}.", "Give the path of a text file, or nothing.")
    if isinstance(options, LabOptions | TokenizerOptions) and options.tokenizer_file and not Path(
        options.tokenizer_file).exists():
        raise UserError(f"There is no tokenizer {options.tokenizer_file}.",
                        "Give the path of a tokenizer's file, or nothing.")
    for chosen in _recognisers(options):
        if Path(chosen).is_absolute():
            recognisers.on_this_machine(Path(chosen))
    if isinstance(options, ReviseOptions):
        _check_revised(workspace, options)
    if isinstance(options, TrainOptions):
        _check_tracker(options.tracker)
        sharding_checks.check(options, sharding_checks.number_of_processes(options.processes))
        _check_languages(workspace, options)
    if isinstance(options, LabOptions | TokenizerOptions) and options.model in workspace.list_models():
        languages.check_new(options.dataset, _language_of(workspace, options.dataset),
                            offers.known(workspace, options.model))
    _check_new_export(workspace, options)
    speakable.check(workspace, options)
    missing: list[tuple[_Need, UserError]] = []
    for need in _needs(workspace, options):
        try:
            need.find(need.name)
        except UserError as error:
            missing.append((need, error))
    living = JobBoard(workspace).queue() if missing else []
    return tuple(dict.fromkeys(_maker(need, living, error) for need, error in missing))


def _check_revised(workspace: Workspace, options: ReviseOptions) -> None:
    if not review.decisions(workspace, options.dataset):
        raise UserError(f"Nothing was decided about {options.dataset!r} that differs from it.",
                        "Exclude a clip, mend one or write a text anew first.")
    if options.save_as in workspace.list_datasets():
        raise UserError(f"There already is a dataset named {options.save_as!r}.",
                        "Choose another name: none is written over.")


def _check_new_export(workspace: Workspace, options: Options) -> None:
    """The name of what will be exported must be free, and no living job about to take it."""
    match options:
        case ExportOptions():
            catalog.run_to_export(options.run)
            name = options.export
        case DoctorOptions() if options.restore:
            name = options.restore
        case _:
            return
    workspace.new_export(name)
    for state in JobBoard(workspace).queue():
        if name == state.job.settings.get({"export": "export", "doctor": "restore"}.get(state.verb, "")):
            raise UserError(f"{state.id} is making an export named {name!r}.",
                            "Choose another name, or wait for that job and take what it makes.")


def _check_tracker(name: str) -> None:
    """Its package has its name."""
    if name != "none" and importlib.util.find_spec(name) is None:
        raise UserError(f"The tracker {name!r} was chosen, and its package is not installed.",
                        f"Install it (pip install {name}), or choose no tracker.")


def _check_languages(workspace: Workspace, options: TrainOptions) -> None:
    """What is there must be in a language that it can be used for; what is not there yet is looked at by the worker."""
    try:
        record = records.read(workspace.extension(options.extension) / records.EXTENSION, ExtensionRecord)
        base = offers.known(workspace, record.origin.model)
    except UserError:
        return
    if language := _language_of(workspace, options.dataset):
        languages.check_target(options.dataset, language, record.languages, base)
    for name in languages.names(options.replay_datasets) if options.scope == "full" else ():
        if language := _language_of(workspace, name):
            languages.check_rehearsed(name, language, base)


def _language_of(workspace: Workspace, dataset: str) -> str:
    try:
        return manifest.load_card(workspace.dataset(dataset)).language
    except UserError:
        return ""


def _maker(need: _Need, living: list[JobState], error: UserError) -> str:
    verbs = (need.verb, _ALSO.get(need.verb))
    made_by = [state for state in living if state.verb in verbs and _makes(state, need.name)]
    if not made_by:
        raise error
    return made_by[-1].id


def _makes(state: JobState, name: str) -> bool:
    settings = state.job.settings
    match state.verb:
        case "download":
            return name in (settings.get("save_as"), settings.get("model")) or not settings.get("save_as")
        case "prepare":
            return settings.get("dataset") == name
        case "train":
            return state.id == name.partition(":")[2].partition("@")[0]
        case "export":
            return settings.get("export") == name.removeprefix("export:")
    return settings.get({"tokenizer": "tokenizer", "extend": "extension"}.get(state.verb, "segments")) == name


def _needs(workspace: Workspace, options: Options) -> Iterator[_Need]:
    """What must be there before the work can begin, in the order in which it is best said."""
    yield from _to_make_data(workspace, options)
    yield from _to_make_models(workspace, options)
    yield from _to_use_models(workspace, options)


def _to_make_data(workspace: Workspace, options: Options) -> Iterator[_Need]:
    match options:
        case PrepareOptions():
            yield _Need("download", options.model, workspace.model)
            if options.source == AS_IS:
                yield _Need("prepare", options.dataset, workspace.dataset)
            if options.source.startswith(PREFIX):
                name = options.source.removeprefix(PREFIX)
                yield _Need("transcribe", name, lambda name: folder.find(workspace, name))
        case TranscribeOptions():
            yield _Need("segment", options.segments, workspace.segment_folder)
            if options.recogniser == BUILT_IN:
                yield _Need("download", "tiny", workspace.model)
        case AlignOptions() if options.recogniser == BUILT_IN:
            yield _Need("download", "tiny", workspace.model)
        case ReviseOptions():
            yield _Need("download", options.model, workspace.model)


def _to_make_models(workspace: Workspace, options: Options) -> Iterator[_Need]:
    match options:
        case TokenizerOptions():
            if options.part == "report":
                yield _Need("tokenizer", options.tokenizer, workspace.tokenizer)
            yield _Need("download", options.model, workspace.model)
            yield _Need("prepare", options.dataset, workspace.dataset)
        case LabOptions():
            yield _Need("download", options.model, workspace.model)
            yield _Need("prepare", options.dataset, workspace.dataset)
        case ExtendOptions():
            yield _Need("download", options.model, workspace.model)
            yield _Need("tokenizer", options.tokenizer, workspace.tokenizer)
        case TrainOptions():
            yield _Need("extend", options.extension, workspace.extension)
            yield _Need("prepare", options.dataset, workspace.dataset if options.augmentation == 0 else
                        lambda name: augmentation.require(workspace.dataset(name)))
            for name in languages.names(options.replay_datasets) if options.scope == "full" else ():
                yield _Need("prepare", name, workspace.dataset)
            if options.init_from:
                yield _voice_model(workspace, options.init_from)
            if options.judge == BUILT_IN:
                yield _Need("download", "tiny", workspace.model)


def _to_use_models(workspace: Workspace, options: Options) -> Iterator[_Need]:
    match options:
        case SynthesizeOptions():
            yield _voice_model(workspace, options.voice_model)
        case CompareOptions():
            yield _voice_model(workspace, options.base)
            yield _voice_model(workspace, options.finetuned)
        case ExportOptions():
            yield _voice_model(workspace, options.run)
        case DoctorOptions() if options.base and not Path(options.base).is_absolute():
            yield _Need("download", options.base, workspace.model)
        case PushOptions():
            yield _Need("export", options.export, workspace.export)


def _voice_model(workspace: Workspace, reference: str) -> _Need:
    kind, _, name = reference.partition(":")
    verb = {"base": "download", "run": "train", "export": "export"}.get(kind, "")
    return _Need(verb, name if kind == "base" else reference, lambda _name: catalog.resolve(workspace, reference))


def _recognisers(options: Options) -> Iterator[str]:
    """What is to hear, where a person chooses that."""
    if isinstance(options, TranscribeOptions | AlignOptions):
        yield options.recogniser
    if isinstance(options, TrainOptions):
        yield options.judge


def _check_source(source: str) -> None:
    elsewhere = source.lower().startswith(("http://", "https://", "hub:", PREFIX))
    if not source:
        raise UserError("No source was given.", "Give the path of a folder or file on this machine, or a URL.")
    if source not in ("demo", AS_IS) and not elsewhere and not Path(source).exists():
        raise UserError(f"There is no source {source}.",
                        "Give the path of a folder or file on this machine, a URL, hub:OWNER/NAME, or `demo`.")


def _check_files(options: DoctorOptions) -> None:
    """What the doctor is to look at must be there: it is a path, never a thing in the making."""
    base = options.base if Path(options.base).is_absolute() else ""
    for what, given in (("base", base), ("checkpoint", options.checkpoint), ("tokenizer", options.tokenizer)):
        if given and not Path(given).exists():
            raise UserError(f"There is no {what} {given}.", "Give the path of a file or folder on this machine.")
