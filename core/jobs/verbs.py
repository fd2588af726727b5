"""The table of verbs: what can run as a job. The worker, the queue, the page and the command line read it.

To add a verb: its options class, one entry here, its work `core.NAME.run`, and what it refuses before its work in
`core.verbs.NAME`, if that is more than a missing artefact (see `VerbModule`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import yaml

from config import foreign, foreign_settings
from config.errors import UserError
from config.schema import (
    AlignOptions,
    BookOptions,
    CertifyOptions,
    CompareOptions,
    CompareTokenizersOptions,
    DoctorOptions,
    DownloadOptions,
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
    RecogniserOptions,
    ResynthesizeOptions,
    ReviseOptions,
    SegmentOptions,
    ServeOptions,
    SweepOptions,
    SynthesizeOptions,
    TokenizerOptions,
    TrainOptions,
    TranscribeOptions,
    UnpackOptions,
    without_sections,
)
from core.jobs.events import Result
from core.workspace import Workspace

PRESET_ABOUT = "preset"
"""The section of a preset file that describes it; it holds no options."""
_TRAINING_NEEDS = {"extension": "extension", "dataset": "dataset", "replay_datasets": "dataset",
                   "init_from": "reference", "recogniser": "recogniser", "evaluation_texts": "file"}


@dataclass(frozen=True)
class Verb:
    """One verb. `needs` and `makes` map its option fields to kinds of artefacts, for `core.submission.requirements`.

    The kinds: model, dataset, tokenizer, extension, segments (clips without text), transcripts (segments with text),
    export and run; in `needs` also reference (`base:`, `run:` or `export:` and a name), recogniser, source and file (a
    path on this machine). In `makes` the field `job` means the job's own id.
    """

    title: str
    options: type[Options]
    tab: str  # the page's tab
    example: str  # example of its command line
    # What a job is about, from its options; of several templates the first that says something.
    subject: str | tuple[str, ...]
    takes_device: bool = True  # it waits in the queue of a device
    resumes: bool = False  # a second start continues where the first ended
    model_server: bool = False  # the model server may run it
    removes_uploads: bool = False  # uploads that it read are deleted when it has finished
    preempted_by: tuple[str, ...] = ()  # verbs to which it leaves its device when they are next in the queue
    presets_of: str = ""  # another verb whose presets it accepts too
    needs: Mapping[str, str] = field(default_factory=dict)
    makes: Mapping[str, str] = field(default_factory=dict)


VERBS: Mapping[str, Verb] = {
    "download": Verb(
        "Download base model", DownloadOptions, "model",
        "--model chatterbox", ("{save_as}", "{model} {variant}"),
        takes_device=False, resumes=True, makes={"save_as": "model"}),
    "import_model": Verb(
        "Import a finetune", ImportModelOptions, "model",
        "chatterbox finetuned.pt --tokenizer tokenizer.json --language am --name am-finetune", "{checkpoint}",
        takes_device=False,
        resumes=True, needs={"base": "model", "checkpoint": "file", "tokenizer": "file"}, makes={"job": "run"}),
    "segment": Verb(
        "Segment recordings", SegmentOptions, "data",
        "--source talks --segments talks --language am", "{segments}",
        takes_device=False, resumes=True, removes_uploads=True,
        needs={"source": "source"}, makes={"segments": "segments"}),
    "transcribe": Verb(
        "Transcribe segments", TranscribeOptions, "data",
        "--segments talks --recogniser facebook/mms-1b-all", "{segments}",
        resumes=True, needs={"segments": "segments", "recogniser": "recogniser"}, makes={"segments": "transcripts"}),
    "align": Verb(
        "Align text", AlignOptions, "data",
        "--source film.mkv --text film.srt --segments film --language am", "{segments}",
        resumes=True, removes_uploads=True,
        needs={"source": "source", "text": "file", "recogniser": "recogniser"}, makes={"segments": "transcripts"}),
    "prepare": Verb(
        "Prepare dataset", PrepareOptions, "data",
        "--source recordings.zip --dataset my-voice --language sw", "{dataset} from {source}",
        resumes=True, removes_uploads=True,
        needs={"source": "source", "model": "model", "add_to": "dataset"}, makes={"dataset": "dataset"}),
    "resynthesize": Verb(
        "Hear the voice through the model", ResynthesizeOptions, "data",
        "--source recordings.zip --model tiny", "{dataset}{source} through {model}",
        needs={"source": "source", "dataset": "dataset"}),
    "recogniser": Verb(
        "Train recogniser", RecogniserOptions, "data",
        "--dataset my-voice", "{dataset}",
        needs={"dataset": "dataset"}),
    "revise": Verb(
        "Save dataset version", ReviseOptions, "data",
        "--dataset my-voice --save-as my-voice-2", "{dataset} as {save_as}",
        resumes=True, needs={"model": "model", "dataset": "dataset"}, makes={"save_as": "dataset"}),
    "tokenizer": Verb(
        "Build tokenizer", TokenizerOptions, "tokenizer",
        "--dataset my-voice --tokenizer tiny-sw", "{tokenizer}",
        takes_device=False,
        needs={"tokenizer": "tokenizer", "model": "model", "dataset": "dataset", "tokenizer_file": "file"},
        makes={"tokenizer": "tokenizer"}),
    "compare_tokenizers": Verb(
        "Compare tokenizers", CompareTokenizersOptions, "tokenizer",
        "--dataset my-voice", "{dataset}",
        takes_device=False, needs={"model": "model", "dataset": "dataset", "text": "file", "tokenizer_file": "file"}),
    "extend": Verb(
        "Extend embeddings", ExtendOptions, "embeddings",
        "--tokenizer tiny-sw --extension tiny-sw", "{extension}",
        needs={"model": "model", "tokenizer": "tokenizer"}, makes={"extension": "extension"}),
    "preflight": Verb(
        "Preflight check", PreflightOptions, "train",
        "--extension tiny-sw --dataset my-voice", "{extension} on {dataset}",
        presets_of="train", needs=_TRAINING_NEEDS),
    "train": Verb(
        "Train", TrainOptions, "train",
        "--extension tiny-sw --dataset my-voice --name first", "{extension} on {dataset}",
        resumes=True, needs=_TRAINING_NEEDS, makes={"job": "run"}),
    "sweep": Verb(
        "Sweep", SweepOptions, "train",
        "--grid plan.yaml", "{extension} on {dataset}",
        takes_device=False, resumes=True, presets_of="train", needs=_TRAINING_NEEDS),
    "synthesize": Verb(
        "Synthesize", SynthesizeOptions, "listen",
        '--voice-model run:first --language sw --text "Habari yako."', "{voice_model}: {text}{file}",
        model_server=True, needs={"voice_model": "reference", "file": "file"}),
    "book": Verb(
        "Read a book", BookOptions, "listen",
        "book.epub --voice-model run:first", "{book} by {voice_model}",
        resumes=True, removes_uploads=True,
        needs={"book": "file", "voice_model": "reference", "pronunciations": "file"}),
    "compare": Verb(
        "Compare", CompareOptions, "listen",
        '--finetuned run:first --texts sw "Habari yako."', "{base} and {finetuned}",
        model_server=True, needs={"base": "reference", "finetuned": "reference"}),
    "evaluate": Verb(
        "Evaluate", EvaluateOptions, "listen",
        "--models base:tiny run:first recordings", "{models}",
        resumes=True, needs={"models": "reference", "dataset": "dataset", "recogniser": "recogniser"}),
    "listening_test": Verb(
        "Make listening test", ListeningTestOptions, "listen",
        "--evaluation EVALUATION --kind rating", "{kind} of {evaluation}",
        takes_device=False, needs={"evaluation": "run"}),
    "certify": Verb(
        "Compute certificate", CertifyOptions, "share",
        "--run run:first", "{run}",
        resumes=True,
        preempted_by=("synthesize", "compare", "transcribe", "align", "prepare", "revise", "extend", "preflight",
                      "resynthesize"),
        needs={"run": "reference"}),
    "export": Verb(
        "Export", ExportOptions, "share",
        "--run run:first --export my-voice-1", "{run} as {export}",
        takes_device=False, resumes=True, needs={"run": "reference"}, makes={"export": "export"}),
    "serve": Verb(
        "Serve speech", ServeOptions, "share",
        "export:my-voice-1", "{models}",
        resumes=True, needs={"models": "reference"}),
    "piper_dataset": Verb(
        "Make dataset for Piper", PiperDatasetOptions, "share",
        "export:my-voice-1 --file sentences.txt", "{voice_model}",
        resumes=True, needs={"voice_model": "reference", "file": "file"}),
    "push": Verb(
        "Push to the Hub", PushOptions, "share",
        "my-voice-1 me/my-voice", "{export} to {repository}",
        takes_device=False, resumes=True, needs={"export": "export"}),
    "pack": Verb(
        "Pack archive", PackOptions, "share",
        "run:first", "{item}",
        takes_device=False, needs={"item": "reference"}),
    "unpack": Verb(
        "Import archive", UnpackOptions, "storage",
        "first.run.tar", "{archive}",
        takes_device=False, removes_uploads=True, needs={"archive": "file"}),
    "doctor": Verb(
        "Diagnose checkpoint", DoctorOptions, "doctor",
        "model tiny finetuned.safetensors --tokenizer tokenizer.json", "{checkpoint}",
        takes_device=False,
        needs={"base": "model", "checkpoint": "file", "tokenizer": "file"}, makes={"restore": "export"}),
}
RUN_VERBS = tuple(name for name, verb in VERBS.items() if verb.makes.get("job") == "run")
"""The verbs whose jobs are runs: a folder of checkpoints, which `run:ID` refers to."""
SYNTHESIS_VERBS = tuple(name for name, verb in VERBS.items() if verb.model_server)
"""The verbs that the model server may run; they synthesize audio."""


VerbFunction = Callable[[Any, Workspace, Any], Result]
"""`run(options, workspace, reporter)`; each verb takes its own class of options."""


class VerbModule(Protocol):
    """`core.verbs.NAME`: what the verb of that name refuses. Importing it loads no torch.

    It may also have `suggest_name(workspace, settings)`: a name for what it makes; `settings` are all options as text.
    """

    def check(self, workspace: Workspace, options: Any) -> None:
        """Raise `UserError` for options that are known not to work, before a job is created."""


def verb_module(name: str) -> VerbModule | None:
    """The module of a verb, imported at its first use: the table is read by modules that stand below it.

    None for a verb whose needs are all that can be checked before the work.
    """
    module = f"core.verbs.{name}"
    try:
        return cast(VerbModule, importlib.import_module(module))
    except ModuleNotFoundError as error:
        # A module that exists and lacks one of its imports is a fault.
        if error.name != module:
            raise
        return None


def import_work(name: str) -> VerbFunction:
    """The function that does the work of a verb, for the worker: importing it loads torch, which takes seconds."""
    return cast(VerbFunction, importlib.import_module(f"core.{name}").run)


def read_preset(path: str | Path, verb: str) -> dict[str, object]:
    """Options of `verb` in a YAML file, by their names without sections.

    The file holds only these options, or a section for each of several verbs (`presets/demo.yaml`), or it is the
    `config.yaml` of a job, to repeat the job. Settings of another training program are translated for `train`.
    """
    try:
        values = foreign.read_yaml(Path(path))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"The preset {path} could not be read: {error}.", "Give a YAML file of options.") from error
    if not isinstance(values, dict):
        raise UserError(f"The preset {path} holds no options.", "Write one `name: value` a line.")
    values.pop(PRESET_ABOUT, None)
    other = VERBS[verb].presets_of
    if values and set(values) <= set(VERBS):
        values = values.get(verb) or values.get(other) or {}
    elif "train" in (verb, other) and foreign_settings.is_foreign(values):
        return dict(foreign_settings.translate(values).options)
    if "verb" in values and values["verb"] not in (verb, other):
        raise UserError(f"The preset {path} is for {values['verb']!r}, not for {verb!r}.", "Give the right file.")
    options = values.get("options", {}) if "verb" in values else values
    return without_sections(VERBS[verb].options, {str(name): value for name, value in options.items()})
