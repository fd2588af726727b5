"""What a job needs, checked before it is queued: all of it must be there, or a living job must be making it.

Only files are read. What they do not say (the languages of a model that is not there yet) the job itself checks.
"""

from __future__ import annotations

import errno
import importlib.util
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from config import confinement, schema
from config.errors import UserError, join_names
from config.schema import (
    AS_IS,
    DATASET_RECOGNISER,
    BookOptions,
    CompareOptions,
    CompareTokenizersOptions,
    DoctorOptions,
    EvaluateOptions,
    ExportOptions,
    ExtendOptions,
    ImportModelOptions,
    ListeningTestOptions,
    Options,
    PackOptions,
    PiperDatasetOptions,
    PreflightOptions,
    PrepareOptions,
    PushOptions,
    ResynthesizeOptions,
    ReviseOptions,
    ServeOptions,
    SweepOptions,
    SynthesizeOptions,
    TokenizerOptions,
    TrainOptions,
)
from core.dataset import languages, review
from core.dataset.languages import describe_language
from core.jobs.job import with_whole_ids
from core.jobs.reporter import pluralize
from core.jobs.state import JobBoard, JobState
from core.jobs.verbs import VERBS
from core.library import catalog, certificate, evaluation_report, listening, model_info, records, segments, sweeps
from core.library.records import ExtensionRecord
from core.library.reference_voices import SPEAKER
from core.library.segments import PREFIX
from core.sources import recognisers
from core.sources.downloader import public_name
from core.sources.hub import check_repository_name
from core.text import text_rules
from core.text.manuscript import language_of, open_book, read_pronunciations
from core.workspace import Workspace
from data import augmentation, manifest
from data.ffmpeg_audio import INSTALL, ffmpeg_path
from data.splits import why_untrainable

_REFERENCES = {"base": "model", "run": "run", "export": "export"}  # kind of need, by the prefix of a reference
_LOADS_BASE = ("preflight", "train", "synthesize", "book", "compare", "evaluate", "serve", "piper_dataset", "certify",
               "export")
"""The verbs that load the base model of an extension, a run or an export."""
_NEVER_MADE = ("source", "file", "recogniser")  # no job makes these: a person must mend the option


def check_requirements(workspace: Workspace, verb: str, options: Options) -> tuple[str, ...]:
    """Ids of living jobs that make what `options` need and what is not there yet; they must finish first.

    Raises `UserError` for what is not there and not being made, and for what these options are known not to achieve.
    """

    options = with_whole_ids(workspace, verb, options)
    for _name, path in schema.path_options(options):
        confinement.check(path)
    model_languages: tuple[tuple[str, ...], tuple[str, ...]] = (), ()  # languages of the base, and of earlier trainings
    match options:
        case ReviseOptions():
            corrected = options.language not in ("", _language_of(workspace, options.dataset))
            if not corrected and not review.read_decisions(workspace, options.dataset):
                raise UserError(f"Nothing was decided about {options.dataset!r} that differs from it.",
                                "Exclude or repair a clip, edit a transcript or correct the language first.")
            if options.save_as in workspace.list_datasets():
                raise UserError(f"There already is a dataset named {options.save_as!r}.",
                                "Choose another name: none is written over.")
        case PrepareOptions():
            check_new_dataset(workspace, options)
            _check_rules(workspace, options.rules, "")
        case TrainOptions():
            if isinstance(options, SweepOptions):
                sweeps.check_sweep(options)
            _check_training(workspace, options)
        case ImportModelOptions():
            _check_import(options)
        case CompareTokenizersOptions() | TokenizerOptions():
            # A missing model is reported with the other needs.
            with suppress(UserError):
                model = catalog.resolve_model(workspace, options.model)
                base = model_info.base_languages(workspace, model_info.base_model_of(model))
                model_languages = base, model_info.added_languages(workspace, model)
            for language in _language_of(workspace, options.dataset).split(","):
                languages.check_new(options.dataset, language, *model_languages)
            _check_rules(workspace, options.rules, options.dataset)
            if isinstance(options, TokenizerOptions) and options.part == "all":
                _check_new_tokenizer(workspace, options)
        case ExtendOptions():
            _check_new_extension(workspace, options)
        case ResynthesizeOptions() if bool(options.source) == bool(options.dataset):
            raise UserError("Give a source or a dataset: one of the two.",
                            "Give --source PATH for recordings that are not prepared, else --dataset NAME.")
        case ResynthesizeOptions():
            # The base must exist, or ship with the app.
            model_info.base_files(workspace, options.model)
        case EvaluateOptions() if not options.models:
            raise UserError("There is nothing to evaluate.", "Give models: --models base:tiny run:ID recordings.")
        case ListeningTestOptions():
            listening.plan(evaluation_report.read(workspace.run(options.evaluation)), options)
        case ExportOptions():
            catalog.require_run(options.run)
            _check_new_export(workspace, options.export)
            unknown = [name for name in options.override if name not in certificate.CHECKS]
            if unknown:
                raise UserError(f"There is no check named {', '.join(unknown)}.",
                                f"The checks are: {', '.join(certificate.CHECKS)}.")
        case DoctorOptions() if options.restore:
            _check_new_export(workspace, options.restore)
        case PackOptions():
            catalog.require_run_or_export(options.item)
        case SynthesizeOptions():
            if not options.text.strip() and not options.file:
                raise UserError("There is no text to synthesize.", "Give one: --text TEXT, or --file FILE.")
            if options.text.strip() and options.file:
                raise UserError("Give a text or a text file, not both.", "Leave one out.")
            _check_new_archive(options.archive)
            _check_speaks(workspace, options.voice_model, (options.language,), options.voice)
        case BookOptions():
            _check_book(workspace, options)
        case PiperDatasetOptions():
            if not options.voice_model:
                raise UserError("There is no model to make a dataset with.", "Choose export:NAME or run:ID.")
            _check_new_archive(options.archive)
            _check_speaks(workspace, options.voice_model, filter(None, (options.language,)), options.voice)
        case CompareOptions():
            if not options.finetuned:
                raise UserError("There is no finetuned model to compare with.", "Choose run:ID or export:NAME.")
            if any(not text.strip() for _, text in options.texts):
                raise UserError("One of the texts to compare is empty.", "Write at least one word, or leave it out.")
            # The speaker belongs to the data of the finetuned model; the base borrows the voice.
            data_speaker = options.voice.startswith(SPEAKER)
            _check_speaks(workspace, options.base, (), "" if data_speaker else options.voice)
            _check_speaks(workspace, options.finetuned, (language for language, _ in options.texts), options.voice)

    _check_named(options)
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
        certified_run = options.run.removeprefix("run:").partition("@")[0]

    # A living job may make what is missing; without one the fault is final.
    living = JobBoard(workspace).queue() if faults or certified_run else []
    makers = [state.id for state in living if certified_run and state.certifies == certified_run]
    for need, fault in faults:
        maker_ids = [state.id for state in living if _makes(state, need.kind, need.name)]
        if not maker_ids:
            raise fault
        makers.append(maker_ids[-1])
    if isinstance(options, PushOptions):
        check_repository_name(options.repository)
    return tuple(dict.fromkeys(makers))


def _check_rules(workspace: Workspace, names: str, dataset: str) -> None:
    """Text rules must be there, and fit the languages of a dataset that is there."""
    if names in ("", schema.NO_RULES):
        return
    codes = _language_of(workspace, dataset) if dataset else ""
    if codes:
        text_rules.for_languages(workspace, names, codes.split(","))
    for name in filter(None, names.split(",")):
        text_rules.load(workspace, name)


def _check_named(options: Options) -> None:
    """What is made of other things than the demo's is given its own name, not the demo's."""
    for kind, field, name in ((TokenizerOptions, "dataset", "tokenizer"), (ExtendOptions, "tokenizer", "extension")):
        if not isinstance(options, kind) or name in options.model_fields_set:
            continue
        value = getattr(options, field)
        if value != kind.model_fields[field].default:
            raise UserError(f"The {name} made of the {field} {value!r} has no name.",
                            f"Give one, such as --{name} {value}.")


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

        value = str(getattr(options, field))
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
                yield Need("base", "model", model_info.model_of_extension(workspace, need.name))
            elif need.name.startswith(("run:", "export:")):
                yield Need("base", "model", model_info.base_model_of(catalog.resolve(workspace, need.name)))


def _find(workspace: Workspace, need: Need, options: Options) -> None:
    """Raise `UserError` when the artefact is not there."""
    kind, name = need.kind, need.name
    if kind == "reference" or name.startswith(("base:", "run:", "export:")):
        catalog.resolve(workspace, name)
    elif kind == "dataset":
        dataset = workspace.dataset(name)
        if need.field == "dataset" and isinstance(options, TrainOptions) and options.augmentation:
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
            _check_upload(workspace, name)
            raise UserError(f"There is no source {name}.",
                            "Give the path of a folder or file on this machine, a URL, hub:OWNER/NAME, or `demo`.")

    elif kind == "file":
        if not Path(name).exists():
            raise UserError(f"There is no {need.field.removesuffix('_file')} {name}.",
                            "Give the path of a file or folder on this machine.")
    else:
        # A model to build upon may be a run or an export too.
        if need.field == "model":
            catalog.resolve_model(workspace, name)
            return
        {"model": workspace.model, "tokenizer": workspace.tokenizer, "extension": workspace.extension,
         "segments": workspace.segment_folder, "export": workspace.export, "run": workspace.run}[kind](name)


def _makes(state: JobState, kind: str, name: str) -> bool:
    """Whether the job will make this artefact."""
    name = name.partition(":")[2].partition("@")[0] if ":" in name else name
    for field, made_kind in VERBS[state.verb].makes.items():
        value = state.id if field == "job" else state.job.settings.get(field)
        # A download without a name makes one up.
        if state.verb == "download" and not value:
            value = name
        if value == name and kind in (made_kind, "segments" if made_kind == "transcripts" else made_kind):
            return True
    return False


def _check_import(options: ImportModelOptions) -> None:
    """Base, checkpoint and language must be given; the job compares the files."""
    for field in ("base", "checkpoint", "language"):
        if not getattr(options, field):
            title = ImportModelOptions.model_fields[field].title
            raise UserError(f"{title} is missing.", f"{ImportModelOptions.model_fields[field].description}")


def _check_training(workspace: Workspace, options: TrainOptions) -> None:
    """What is there must be in a language that it can be used for; what is not there yet is checked by the worker."""
    # A tracker is named as its package.
    if options.tracker != "none" and importlib.util.find_spec(options.tracker) is None:
        raise UserError(f"The tracker {options.tracker!r} was chosen, and its package is not installed.",
                        f"Install it (pip install {options.tracker}), or choose no tracker.")

    schema.check_sharding(options, schema.get_world_size(options.processes))
    if options.dataset in workspace.list_datasets() and not isinstance(options, PreflightOptions):
        review.check_texts_match(workspace, options.dataset, options.mismatch_action)

    try:
        record = records.read_record(workspace.extension(options.extension) / records.EXTENSION, ExtensionRecord)
        base = model_info.base_languages(workspace, record.origin.model)
    except UserError:
        return
    if options.adapter_rank_conditioner and not catalog.find_entry(record.origin.family).conditioner_adapters:
        raise catalog.no_conditioner_layers(options.adapter_rank_conditioner)
    language = _language_of(workspace, options.dataset)
    if language:
        languages.check_targets(options.dataset, language.split(","), record.languages, base,
                                record.origin.earlier_languages)
        try:
            clips = manifest.load(workspace.dataset(options.dataset)).clips
        except UserError:
            # A damaged dataset is reported by the worker.
            return
        fault = why_untrainable(clips)
        if fault:
            raise UserError(f"The dataset {options.dataset!r} cannot be trained on: {fault}.",
                            "Add recordings of the same speakers, or prepare it with another held-out share "
                            "(--held-out); clips without a speaker share one.")

    for name in languages.split_names(options.replay_datasets) if options.scope == "full" else ():
        for language in filter(None, _language_of(workspace, name).split(",")):
            languages.check_replayed(name, language, base)


def _language_of(workspace: Workspace, dataset: str) -> str:
    """Of several languages their codes with commas between them; empty where the dataset is not there."""
    try:
        return manifest.load_card(workspace.dataset(dataset)).language
    except UserError:
        return ""


def check_new_dataset(workspace: Workspace, options: PrepareOptions) -> None:
    """The name must be free, or that of a dataset of the same source; no living job may be about to take it."""
    name, source = options.dataset, public_name(options.source)
    if name in workspace.list_datasets() and options.source != AS_IS:
        card = manifest.load_card(workspace.dataset(name))
        earlier_source, codes = "", options.language.split(",")
        if options.add_to and options.add_to in workspace.list_datasets():
            added_to = manifest.load_card(workspace.dataset(options.add_to))
            earlier_source, codes = f"{added_to.source} + ", [*added_to.languages, *codes]
        if (card.source, card.languages) != (earlier_source + source, tuple(dict.fromkeys(codes))):
            raise UserError(f"There already is a dataset named {name!r}: {pluralize(card.clips, 'clip')} in "
                            f"{describe_language(card.language)} from {card.source}.",
                            "Choose another dataset name.")

    for state in JobBoard(workspace).queue():
        if _makes(state, "dataset", name) and state.job.settings.get("source") not in (options.source, AS_IS):
            raise UserError(f"{state.id} is preparing a dataset named {name!r} from another source.",
                            "Choose another dataset name, or wait for that job.")


_OF_A_TOKENIZER = ("model", "dataset", "variant_of", "algorithm", "merges", "rules", "tokenizer_file", "byte_fallback")
"""The options that decide what a tokenizer holds."""


def is_other_tokenizer(workspace: Workspace, name: str, options: Mapping[str, object],
                       states: Iterable[JobState]) -> bool:
    """Whether there is a tokenizer `name` that none of the finished jobs made with these `options`.

    What `options` lacks has its default; values may be those of the schema or their text.
    """
    fields = TokenizerOptions.model_fields

    def content(values: Mapping[str, object]) -> list[str]:
        return [str(values.get(field, fields[field].default)) for field in _OF_A_TOKENIZER]

    return name in workspace.list_tokenizers() and not any(
        state.verb == "tokenizer" and state.status == "finished"
        and state.job.settings.get("tokenizer", fields["tokenizer"].default) == name
        and content(state.job.settings) == content(options) for state in states)


def _check_new_tokenizer(workspace: Workspace, options: TokenizerOptions) -> None:
    """The name must be free, or that of a tokenizer with the same options; no living job may be about to take it.

    Of a tokenizer that no known job made, such as an unpacked one, the job finds out whether it is the same.
    """
    name, values, states = options.tokenizer, options.model_dump(), JobBoard(workspace).states()
    made_here = any(state.status == "finished" and _makes(state, "tokenizer", name) for state in states)
    if made_here and is_other_tokenizer(workspace, name, values, states):
        raise UserError(f"There already is a tokenizer named {name!r}, which was not made with these options.",
                        "Choose another tokenizer name.")
    _check_not_being_made(states, "tokenizer", name, {**values, "part": "all"})


def is_other_extension(workspace: Workspace, name: str, tokenizer: str, initialisation: str, seed: str) -> bool:
    """Whether there is an extension `name` of another tokenizer, initialisation or seed, or one that is damaged."""
    if name not in workspace.list_extensions():
        return False
    try:
        record = records.read_record(workspace.extensions / name / records.EXTENSION, ExtensionRecord)
    except UserError:
        return True
    return (record.tokenizer, record.initialisation, str(record.seed)) != (tokenizer, initialisation, seed)


def _check_new_extension(workspace: Workspace, options: ExtendOptions) -> None:
    """The name must be free, or that of an extension with the same options; no living job may be about to take it."""
    name = options.extension
    if is_other_extension(workspace, name, options.tokenizer, options.initialisation, str(options.seed)):
        raise UserError(f"There already is an extension named {name!r}, which was not made with these options.",
                        "Choose another extension name.")
    _check_not_being_made(JobBoard(workspace).states(), "extension", name, options.model_dump())


def _check_not_being_made(states: Iterable[JobState], kind: str, name: str, values: Mapping[str, object]) -> None:
    """No living job may be about to make an artefact `name` with other options."""
    for state in states:
        if state.alive and _makes(state, kind, name) and any(
                state.job.settings.get(field, value) != value for field, value in values.items()):
            raise UserError(f"{state.id} is making the {kind} {name!r} with other options.",
                            f"Choose another {kind} name, or wait for that job.")


def _check_new_export(workspace: Workspace, name: str) -> None:
    """The name must be free, and no living job about to take it."""
    workspace.new_export(name)
    for state in JobBoard(workspace).queue():
        if _makes(state, "export", name):
            raise UserError(f"{state.id} is making an export named {name!r}.",
                            "Choose another name, or wait for that job and take what it makes.")


def _check_book(workspace: Workspace, options: BookOptions) -> None:
    """The book can be read, what writes its files is installed, and the model speaks its language."""
    if not options.book:
        raise UserError("No book was given.", "Give the path of an EPUB, HTML, Markdown or text file.")
    if not (options.m4b or options.mp3 or options.subtitles != "none"):
        raise UserError("M4B, MP3 and subtitles are all turned off, so nothing would be written.", "Turn one on.")
    if (options.m4b or options.mp3) and ffmpeg_path() is None:
        raise UserError("An audiobook is written by ffmpeg, which is not on this machine.", INSTALL)
    if options.output and Path(options.output).exists() and not Path(options.output).is_dir():
        raise UserError(f"The output folder {options.output} is a file.", "Give the path of a folder.")
    for path in filter(None, (options.book, options.pronunciations)):
        _check_upload(workspace, path)
    read_pronunciations(options.pronunciations)
    book = open_book(options.book)
    # A missing model is reported with the other needs.
    known_codes: tuple[str, ...] = ()
    with suppress(UserError):
        known_codes = model_info.languages(workspace, catalog.resolve(workspace, options.voice_model))
    codes = [language_of(book, options, known_codes)] if known_codes else []
    _check_speaks(workspace, options.voice_model, codes, options.voice)


def _check_new_archive(archive: str) -> None:
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


def _check_upload(workspace: Workspace, path: str) -> None:
    """`UserError` for an uploaded file that was deleted since."""
    if Path(path).is_relative_to(workspace.uploads) and not Path(path).exists():
        raise UserError("This upload is no longer here: it was removed after its import, or after a day.",
                        "Upload it again.")


def _check_speaks(workspace: Workspace, reference: str, codes: Iterable[str], voice: str) -> None:
    try:
        model = catalog.resolve(workspace, reference)
        base = model_info.base_model_of(model)
    except UserError:
        # A missing model is reported with the other needs.
        return
    known_codes, voices = model_info.languages(workspace, model), model_info.voice_names(workspace, base)
    for code in codes:
        if known_codes and code not in known_codes:
            raise UserError(f"{reference} does not speak {describe_language(code)}.",
                            f"Choose one of its languages ({', '.join(known_codes)}), or a model of this language.")
    if voice.startswith(SPEAKER):
        speakers = model_info.speakers(workspace, model)
        if voice.removeprefix(SPEAKER) not in speakers and not (voice == SPEAKER and speakers):
            raise UserError(f"{voice.removeprefix(SPEAKER)!r} is no speaker of the data of {reference}.",
                            f"Its speakers: {join_names(list(speakers))}.")
    elif voice and voices and voice not in voices and not Path(voice).expanduser().is_file():
        raise UserError(f"{voice!r} is neither a voice of {reference} nor a recording.",
                        f"Its voices: {', '.join(voices)}. A reference recording is given by its path.")
