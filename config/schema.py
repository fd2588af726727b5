"""Every option once: one frozen model a verb, with units and ranges, read by command line, form and worker.

A verb's options are written to its job's `config.yaml` when the job is queued and never
change after that. Field titles are the labels people see; descriptions are the help texts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, ValidationInfo

from config.languages import code_of

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ELSEWHERE = ("http://", "https://", "hub:", "segments:")
AS_IS = "as-is"
"""The source of a dataset that is there, and is to stay as it stands."""
_CODE = re.compile(r"[a-z]{2,3}(-[a-z0-9]{2,8}){0,3}|x(-[a-z0-9]{1,8}){1,3}")  # of BCP 47, without its rarer parts


def _safe_name(value: str) -> str:
    if not _NAME.fullmatch(value) or ".." in value:
        raise ValueError(
            f"{value!r} cannot be a name: use 1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit"
        )
    return value


def _safe_name_or_nothing(value: str) -> str:
    return _safe_name(value) if value else value


def _text(value: object) -> object:
    """What an empty choice of the page gives is nothing."""
    return "" if value is None else value


def _language(value: str) -> str:
    """A language code in lower case, such as `am` or `pt-br`."""
    code = value.strip().lower().replace("_", "-")
    if not _CODE.fullmatch(code):
        known = code_of(code)
        raise ValueError(f"{value!r} is no language code: write its two or three letters, such as "
                         f"{f'`{known}`' if known else '`am`'}; a region may follow, as in `pt-br`")
    return code


def _rate(value: int) -> int:
    """A rate that speech survives, or 0."""
    if 0 < value < 8000:
        raise ValueError(f"{value} Hz is too low for speech: give 8000 or more, or 0 to keep the recording's own")
    return value


def _source(value: str) -> str:
    """Absolute, because a worker runs in another folder than who asked; `demo` ships with the app."""
    value = value.strip()
    if not value:
        raise ValueError("it is empty; give `demo`, a folder, a file, a URL, or `hub:OWNER/NAME`")
    if value.startswith("hf://datasets/"):
        value = "hub:" + value.removeprefix("hf://datasets/")
    if value in ("demo", AS_IS) or value.lower().startswith(_ELSEWHERE):
        return value
    return str(Path(value).expanduser().absolute())


def _recording(value: str) -> str:
    """`_source` for long recordings, which no dataset is."""
    value = value.strip()
    if value in ("", "demo", AS_IS) or value.lower().startswith(("hub:", "hf://", "segments:")):
        given = f"{value!r} is a dataset of clips" if value else "it is empty"
        raise ValueError(f"{given}; give a recording, a film, a folder of them, an archive, or a URL of one of these")
    return _source(value)


def _longest(value: float, given: ValidationInfo) -> float:
    """So long that any recording can be cut into clips between both bounds."""
    shortest = given.data.get("shortest_s", 0.0)
    if value < 2 * shortest + 1:
        raise ValueError(f"clips of {shortest:g} to {value:g} s cannot be cut from any recording: let the longest be "
                         f"more than twice the shortest and a second, here at least {2 * shortest + 1:g}")
    return value


def _recogniser(value: str) -> str:
    """`built-in`, OWNER/NAME of the hub, or a folder, absolute because a worker runs elsewhere."""
    value = value.strip().removeprefix("hub:")
    if value == "built-in":
        return value
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", value) and not Path(value).is_dir():
        return value
    if not value or ("/" not in value and not Path(value).is_dir()):
        raise ValueError(f"{value!r} names no recogniser; give `built-in`, OWNER/NAME of the hub, or a folder")
    return str(Path(value).expanduser().absolute())


def _recogniser_or_nothing(value: str) -> str:
    return _recogniser(value) if value.strip() else ""


LanguageCode = Annotated[str, AfterValidator(_language)]
"""A code of a language, in lower case."""

LanguageOrNothing = Annotated[str, AfterValidator(lambda value: _language(value) if value.strip() else "")]
"""A `LanguageCode`, or nothing where none need be known."""

Name = Annotated[str, AfterValidator(_safe_name)]
"""A name that becomes a folder in the workspace."""

NameOrNothing = Annotated[str, BeforeValidator(_text), AfterValidator(_safe_name_or_nothing)]
"""A `Name`, or nothing for one that is made up."""

Scope = Literal["rows", "gated", "full"]
AdapterKind = Literal["lora", "dora", "adalora"]
FullChanges = Literal["everything", "layers", "heads", "adapters"]
Initialisation = Literal["random", "mean", "neighbours", "romanised", "factored", "fitted"]
SpeakingPrecision = Literal["auto", "float32", "bfloat16", "int8"]
Device = Literal["auto", "cpu", "cuda"]


class Options(BaseModel):
    """Base of all options: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DownloadOptions(Options):
    """Get a base model into the workspace."""

    model: Name = Field("tiny", title="Model", description="Family of the base model; `tiny` ships with the app.")
    variant: NameOrNothing = Field("", title="Variant", description="Which of the family's checkpoints, such as `multilingual-v3`; nothing takes the recommended one.")
    folder: str = Field("", title="Folder", description="A folder on this machine that has the files already: it is used instead of the hub. The files are linked where that can be done, copied otherwise, and never moved.")
    save_as: NameOrNothing = Field("", title="Name in the workspace", description="Name of the model in the workspace; nothing makes one of family and variant.")
    revision: str = Field("main", min_length=1, max_length=200, title="Revision", description="Branch, tag or commit of the repository on the hub.")


_WEIGHTS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")


def _place(value: str) -> str:
    """A path, absolute because a worker runs in another folder than who asked; a plain name stays one."""
    value = value.strip()
    if _NAME.fullmatch(value) and Path(value).suffix not in _WEIGHTS:
        return value
    return _absolute(value)


def _absolute(value: str) -> str:
    return str(Path(value.strip()).expanduser().absolute()) if value.strip() else ""


class DoctorOptions(Options):
    """Say what a finetune from elsewhere changed against its base, or, without words, what this machine lacks."""

    part: Literal["machine", "model"] = Field("machine", title="Part", description="`model` examines a checkpoint from elsewhere; without a word the machine is examined.", json_schema_extra={"positional": True})
    base: Annotated[str, AfterValidator(_place)] = Field("", title="Base", description="The model it was made from: a name in the workspace, or a file or folder of weights.", json_schema_extra={"positional": True})
    checkpoint: Annotated[str, AfterValidator(_absolute)] = Field("", title="Checkpoint", description="The finetune: a .safetensors or .pt file (of tensors alone), or the folder of one.", json_schema_extra={"positional": True})
    tokenizer: Annotated[str, AfterValidator(_absolute)] = Field("", title="Its tokenizer", description="The tokenizer file (JSON) that it was trained with; nothing takes one that lies in the checkpoint's folder.")
    measure: bool = Field(True, title="Measure", description="Also run base-language samples through both models where the base is in the workspace; takes as long as loading it and some seconds a language.")
    restore: NameOrNothing = Field("", title="Restore as", description="Where rows alone were damaged: write an export of this name with the base's rows and the new ones. Nothing that is there is changed.")
    language: LanguageOrNothing = Field("", title="New language", description="Code of the language that the new rows are for, such as `am`; needed to restore.")


class ClipOptions(Options):
    """How clips are cut out of long recordings, and what is done to their sound."""

    shortest_s: float = Field(2.0, ge=0.5, le=10.0, title="Shortest clip (seconds)", description="With its padding.")
    longest_s: Annotated[float, AfterValidator(_longest)] = Field(15.0, ge=3.0, le=30.0, validate_default=True, title="Longest clip (seconds)", description="With its padding. A voice that makes no pause for so long is cut where it is quietest, and that is said.")
    padding_s: float = Field(0.2, ge=0.0, le=1.0, title="Padding (seconds)", description="Silence that is kept before and after the speech, where there is so much.")
    lufs: float = Field(-23.0, ge=-50.0, le=0.0, title="Loudness (LUFS)", description="Each clip is made so loud (ITU-R BS.1770), or as near as its peak allows; 0 leaves the loudness it has.")
    sample_rate: Annotated[int, AfterValidator(_rate)] = Field(0, ge=0, le=192_000, title="Sample rate (Hz)", description="Clips are resampled once to this rate (soxr); 0 keeps the recording's own, and the model's own rate is made of it when features are extracted.")
    denoise: bool = Field(False, title="Denoise", description="Take steady noise off by what the recording's pauses sound like. Only for recordings that need it: it takes some of the voice too.")
    speakers: Literal["one", "recording", "folder"] = Field("one", title="Speakers", description="Whose voice it is: `one` in all, one a `recording`, or one a `folder`.")


class SegmentOptions(ClipOptions):
    """Cut long recordings without text into clips at their pauses, to be transcribed."""

    source: Annotated[str, AfterValidator(_recording)] = Field("", title="Long recordings", description="Path or URL of a recording, a film, a folder of them or an archive.")
    segments: Name = Field("recordings", title="Name", description="Name of the segments in the workspace.")
    language: LanguageCode = Field("am", title="Language", description="Code of the language that is spoken.")
    threshold: float = Field(0.5, ge=0.05, le=0.95, title="Voice threshold", description="Probability from which silero-vad's ear takes a sound for a voice; lower hears fainter voices, and more noise.")


class TranscribeOptions(Options):
    """Find the text of segments with a speech recogniser."""

    segments: Name = Field("recordings", title="Segments", description="Name of the segments in the workspace.")
    recogniser: Annotated[str, AfterValidator(_recogniser)] = Field("openai/whisper-small", title="Recogniser", description="OWNER/NAME on the hub of any recogniser that transformers knows, such as `openai/whisper-large-v3` or `facebook/mms-1b-all`; a folder with one; or `built-in`, which knows the built-in model's synthetic voices alone and writes letters without spaces.")
    recogniser_language: str = Field("", max_length=40, title="Its name of the language", description="What the recogniser calls the language, where it is not the code, such as `amh` for MMS.")
    revision: str = Field("main", min_length=1, max_length=200, title="Revision", description="Branch, tag or commit of the recogniser on the hub.")
    doubtful_below: float = Field(0.5, ge=0.0, le=1.0, title="Doubtful below", description="Clips whose recogniser is less sure than this are flagged, to be listened to.")
    leave_out_below: float = Field(0.0, ge=0.0, le=1.0, title="Left out below", description="Clips whose recogniser is less sure than this get no text, and stay out of the dataset; 0 keeps all.")
    device: Device = Field("auto", title="Device", description="`auto` is CUDA when there is one.")


class AlignOptions(ClipOptions):
    """Find where in a long recording its text is said, sentence by sentence, and cut clips there; also for subtitles."""

    source: Annotated[str, AfterValidator(_recording)] = Field("", title="Long recordings", description="Path or URL of a recording, a film, a folder of them or an archive. Without a text, each with a text, subtitles or labels of the same name beside it.")
    text: Annotated[str, AfterValidator(_absolute)] = Field("", title="Text", description="File with the text of the one recording: plain text (UTF-8) or subtitles, whose times are not believed; nothing takes what lies beside each recording.")
    segments: Name = Field("recordings", title="Name", description="Name of the segments in the workspace.")
    language: LanguageCode = Field("am", title="Language", description="Code of the language that is spoken.")
    recogniser: Annotated[str, AfterValidator(_recogniser)] = Field("facebook/mms-1b-all", title="Recogniser", description="A CTC recogniser: OWNER/NAME on the hub, such as `facebook/mms-1b-all`, a folder with one, or `built-in`, which knows the built-in model's synthetic voices alone. Where it does not know the script, the text is romanised.")
    recogniser_language: str = Field("", max_length=40, title="Its name of the language", description="What the recogniser calls the language, where it is not the code, such as `amh` for MMS.")
    revision: str = Field("main", min_length=1, max_length=200, title="Revision", description="Branch, tag or commit of the recogniser on the hub.")
    rules: NameOrNothing = Field("", title="Text rules", description="Rules that write numbers, dates and abbreviations out as they are spoken, so that they are found; the clips keep their text as it was written.")
    doubtful_below: float = Field(0.3, ge=0.0, le=1.0, title="Doubtful below", description="Clips that fit their text less than this are flagged, to be listened to.")
    leave_out_below: float = Field(0.1, ge=0.0, le=1.0, title="Left out below", description="Clips that fit their text less than this are left out, and named.")
    device: Device = Field("auto", title="Device", description="`auto` is CUDA when there is one.")


class PrepareOptions(Options):
    """Import a dataset, check it, split it, and cache its features."""

    source: Annotated[str, AfterValidator(_source)] = Field("demo", title="Source", description="Path or URL of a folder, file or archive, `hub:OWNER/NAME`, or `segments:NAME` for long recordings that were cut and transcribed; `demo` ships with the app; `as-is` takes the dataset of this name as it stands, to make its features for another model.")
    dataset: Name = Field("amharic-demo", title="Dataset name", description="Name of the dataset in the workspace.")
    language: LanguageCode = Field("am", title="Language", description="Code of the language that is spoken, such as `am`. Recordings in a language that the model speaks already are not trained on; a training in scope `full` can rehearse them.")
    add_to: NameOrNothing = Field("", title="Add to", description="Name of a dataset that is there: the new one has its clips and those of the source that it lacks. The old one stays as it is.")
    most_clips: int = Field(0, ge=0, title="Most clips", description="Take no more than so many clips of the source, the first ones; 0 takes all.")
    rules: NameOrNothing = Field("", title="Text rules", description="Rules that write numbers, dates and abbreviations out before a text is checked: those that the tokenizer will be made with. The dataset keeps its texts as they were written.")
    licence: str = Field("", max_length=200, title="Licence", description="What the recordings may be used for, such as `CC-BY-4.0`; it is told on the dataset and on every export that learned from it.")
    held_out: float = Field(0.1, ge=0.0, le=0.5, title="Held-out share", description="Share of clips kept from training when the source names no split.")
    held_out_apart: Literal["source", "speaker"] = Field("source", title="Held-out clips share no", description="`source`: sentence and recording; `speaker`: no speaker either, so that it is heard how it does with voices it was not trained on. Where the source names splits, these are kept.")
    model: Name = Field("tiny", title="Model", description="Base model whose extractor makes the features.")
    variants: int = Field(0, ge=0, le=10, title="Augmented variants", description="Versions of each training clip, a little faster or slower, higher or lower, or with light noise, that a training may hear in its place; each takes as long to make as the clip's own features. 0 makes none, and keeps those that were made.")
    variant_speed: float = Field(0.1, ge=0.0, le=0.1, title="Variants, speed", description="Variants are at most this share faster or slower, at the same pitch; 0 leaves the speed.")
    variant_pitch: float = Field(0.5, ge=0.0, le=0.5, title="Variants, pitch", description="Variants are at most so many semitones higher or lower, at the same speed; 0 leaves the pitch.")
    variant_noise: float = Field(30.0, ge=0.0, le=60.0, title="Variants, noise", description="The voice is at least so many decibels above the noise that is added; 0 adds none.")
    seed: int = Field(0, ge=0, title="Seed", description="Seed of the split and of the variants.")
    device: Device = Field("auto", title="Device", description="Where features are extracted; `auto` is CUDA when there is one.")


class ReviseOptions(Options):
    """Write a reviewed dataset anew, with what was decided about its clips; the old one stays as it is."""

    dataset: Name = Field("amharic-demo", title="Dataset", description="Dataset that was reviewed.")
    save_as: Name = Field("amharic-demo-2", title="Save as", description="Name of the new version.")
    model: Name = Field("tiny", title="Model", description="Base model whose extractor makes the features of mended clips.")
    device: Device = Field("auto", title="Device", description="Where features are extracted; `auto` is CUDA when there is one.")


class TokenizerOptions(Options):
    """Train new pieces on a dataset's text and merge them into the base tokenizer."""

    part: Literal["all", "train", "merge", "report"] = Field("all", title="Part", description="`train` learns the pieces, `merge` appends what was learned to the base tokenizer, `report` checks the merged tokenizer; `all` does the three.", json_schema_extra={"positional": True})
    model: Name = Field("tiny", title="Model", description="Base model whose tokenizer is extended.")
    dataset: Name = Field("amharic-demo", title="Dataset", description="Dataset whose training text is used.")
    tokenizer: Name = Field("tiny-am", title="Tokenizer name", description="Name of the merged tokenizer.")
    algorithm: Literal["bpe", "sentencepiece"] = Field("bpe", title="Algorithm", description="Library that learns the merges.")
    merges: int = Field(0, ge=0, le=20000, title="Merges", description="Pieces longer than one character to learn; every character of the text comes first and is always there.")
    rules: NameOrNothing = Field("", title="Text rules", description="Rules that write numbers, dates and abbreviations out as they are spoken: `am`, `om`, `ti`, the code of a language that num2words knows, or your own; nothing leaves the text as it stands.")
    own: Annotated[str, AfterValidator(_absolute)] = Field("", title="Your own tokenizer", description="File of a tokenizer (JSON of BPE or Unigram, or a SentencePiece model) whose pieces are taken instead of learning some; they are matched by piece, and their ids there mean nothing here.")
    byte_fallback: bool = Field(False, title="Byte fallback", description="Spell a character that the recordings lack in bytes instead of refusing it: 256 more rows, which no text teaches, as every character of the recordings has a row of its own.")


def _sizes(values: tuple[int, ...]) -> tuple[int, ...]:
    if wrong := [value for value in values if not 1 <= value <= 20_000]:
        raise ValueError(f"{wrong[0]} pieces cannot be learned: ask for 1 to 20000")
    return values


class LabOptions(Options):
    """Compare tokenizers of several sizes on a dataset's text, and map the characters that it covers."""

    model: Name = Field("tiny", title="Model", description="Base model whose tokenizer is to be extended.")
    dataset: Name = Field("amharic-demo", title="Dataset", description="Dataset whose text the candidates are learned from.")
    rules: NameOrNothing = Field("", title="Text rules", description="Rules that write numbers, dates and abbreviations out, as for the tokenizer; nothing leaves the text as it stands.")
    sizes: Annotated[tuple[int, ...], AfterValidator(_sizes)] = Field((50, 200, 800), title="Sizes", description="Pieces longer than one character of each candidate; characters alone are always among them.")
    text: Annotated[str, AfterValidator(_absolute)] = Field("", title="Text of the language", description="A text file (UTF-8) of the language: characters that it has and the dataset lacks are shown, with the sentences to record that would close the gaps.")
    own: Annotated[str, AfterValidator(_absolute)] = Field("", title="Your own tokenizer", description="File of a tokenizer (JSON of BPE or Unigram, or a SentencePiece model) whose pieces are taken as one more candidate; they are matched by piece, and their ids there mean nothing here.")
    sentences: int = Field(20, ge=0, le=1000, title="Sentences", description="At most so many sentences to record are named.")
    byte_fallback: bool = Field(False, title="Byte fallback", description="Compare characters with byte fallback too.")


class ExtendOptions(Options):
    """Give the base model rows for the new tokens."""

    model: Name = Field("tiny", title="Model", description="Base model to extend.")
    tokenizer: Name = Field("tiny-am", title="Tokenizer", description="Merged tokenizer; its base part must be the model's own.")
    extension: Name = Field("tiny-am", title="Extension name", description="Name of the extended model.")
    initialisation: Initialisation = Field("romanised", title="Start of new rows", description="`random`: drawn like the old rows, to compare with; `mean` of all old rows with noise, mean of the `neighbours` (base tokens that spell the same text), the `romanised` spelling, the `factored` one (consonant plus vowel, for syllabaries), or `fitted`: the romanised start, then a short fit to the model's own states for that spelling, without audio.")
    seed: int = Field(0, ge=0, title="Seed", description="Seed of the noise.")


_ADAPTERS: dict[str, JsonValue] = {"group": "Adapters"}
_OPTIMIZER: dict[str, JsonValue] = {"group": "Optimizer"}
_PROTECTION: dict[str, JsonValue] = {"group": "Base protection"}
_LEARNED: dict[str, JsonValue] = {"group": "What is learned from"}
_CHECKPOINTS: dict[str, JsonValue] = {"group": "Validation and checkpoints"}
_MACHINES: dict[str, JsonValue] = {"group": "Tracking and machines"}
GROUPS = ("Adapters", "Optimizer", "Base protection", "What is learned from", "Validation and checkpoints",
          "Tracking and machines")
"""The folds of a form that a field stands in, in their order."""


class TrainOptions(Options):
    """Train the extended model on a dataset."""

    extension: Name = Field("tiny-am", title="Extension", description="Extended model to train.")
    dataset: Name = Field("amharic-demo", title="Dataset", description="Dataset to train on.")
    scope: Scope = Field("gated", title="Scope", description="`rows`: only the new rows. `gated`: new rows, and adapters that act on the new language alone. `full`: the base itself but for its old rows, with replay of its languages; the drift is measured.")
    steps: int = Field(800, ge=1, le=1_000_000, title="Steps", description="Optimizer steps.")
    max_minutes: float = Field(0.0, ge=0.0, le=10_000.0, title="Time limit (minutes)", description="Stop and save after this long; 0 is no limit.")
    batch_size: int = Field(16, ge=1, le=512, title="Batch size", description="Clips in one forward pass.", json_schema_extra=_OPTIMIZER)
    processes: int = Field(1, ge=1, le=64, title="Processes", description="Processes of this machine that share each step, one a GPU; each takes batches of this size, so that two with 8 clips do what one does with 16. Over several machines, start it with torchrun and leave this at 1.", json_schema_extra=_MACHINES)
    sharding: Literal["none", "full"] = Field("none", title="Sharding", description="`none`: each process holds all of the model, which is fastest. `full`: each holds only its part of what is trained, its gradients and its optimizer state (torch's FSDP), for a model that one GPU cannot train; scope `full` with several processes only. Checkpoints are the same files.", json_schema_extra=_MACHINES)
    accumulation: int = Field(1, ge=1, le=256, title="Accumulation", description="Forward passes in one step.", json_schema_extra=_OPTIMIZER)
    row_rate: float = Field(5e-3, gt=0.0, le=1.0, title="Learning rate, rows", description="Peak learning rate of the new rows.", json_schema_extra=_OPTIMIZER)
    adapter_rate: float = Field(2e-3, gt=0.0, le=1.0, title="Learning rate, adapters", description="Peak learning rate of the adapters.", json_schema_extra=_OPTIMIZER)
    weight_decay: float = Field(0.01, ge=0.0, le=1.0, title="Weight decay", description="Decoupled decay of the adapters; new rows and what came with the base are not decayed.", json_schema_extra=_OPTIMIZER)
    full_changes: FullChanges = Field("everything", title="Changed in full", description="What of the base scope `full` trains beside the new rows; the old rows never. `everything`; `layers`: the layers and the heads; `heads`: the last norm and the speech head; `adapters`: no tensor of the base, but adapters that act on every language.", json_schema_extra=_PROTECTION)
    layer_rate: float = Field(5e-5, gt=0.0, le=1.0, title="Learning rate, layers", description="Peak learning rate of the base's layers and embeddings; scope `full` only.", json_schema_extra=_PROTECTION)
    head_rate: float = Field(1e-4, gt=0.0, le=1.0, title="Learning rate, heads", description="Peak learning rate of the base's last norm and speech head; scope `full` only.", json_schema_extra=_PROTECTION)
    layer_decay: float = Field(1.0, gt=0.0, le=1.0, title="Layer decay", description="Each layer of the base learns at this share of the rate of the layer above it, embeddings least; 1 is the same for all. Scope `full` only.", json_schema_extra=_PROTECTION)
    distillation: float = Field(0.0, ge=0.0, le=100.0, title="Distillation", description="Weight of the divergence from the unchanged base on replayed clips; scope `full` only.", json_schema_extra=_PROTECTION)
    l2_sp: float = Field(0.0, ge=0.0, le=1000.0, title="Pull to the base", description="Strength with which every changed number of the base is pulled back to where it was (L2-SP); scope `full` only.", json_schema_extra=_PROTECTION)
    ewc: float = Field(0.0, ge=0.0, le=1000.0, title="Pull by importance", description="The same, weighed by how much the base languages depend on each number (EWC); it is estimated on replayed clips. Scope `full` only.", json_schema_extra=_PROTECTION)
    fisher_clips: int = Field(32, ge=1, le=10_000, title="Clips for importance", description="Replayed clips that the importance is estimated on.", json_schema_extra=_PROTECTION)
    drift_bound: float = Field(0.2, gt=0.0, le=100.0, title="Drift bound", description="Rise of the loss of a base language, in nats a code since before the first step, that is too much; scope `full` only.", json_schema_extra=_PROTECTION)
    drift_action: Literal["warn", "stop"] = Field("warn", title="Past the drift bound", description="`warn` and go on, or `stop` the run.", json_schema_extra=_PROTECTION)
    schedule: Literal["cosine", "linear", "constant"] = Field("cosine", title="Schedule", description="How the learning rates fall after the warmup.", json_schema_extra=_OPTIMIZER)
    rate_floor: float = Field(0.03, ge=0.0, le=1.0, title="Rate floor", description="Share of the peak rates that is left at the last step.", json_schema_extra=_OPTIMIZER)
    warmup: int = Field(30, ge=0, le=100_000, title="Warmup", description="Steps of linear warmup before the schedule.", json_schema_extra=_OPTIMIZER)
    optimizer: Literal["adamw", "adamw8bit"] = Field("adamw", title="Optimizer", description="`adamw8bit` keeps the optimizer's moments in 8 bits: a quarter of their memory, by the package bitsandbytes (`pip install bitsandbytes`).", json_schema_extra=_OPTIMIZER)
    ema: float = Field(0.0, ge=0.0, lt=1.0, title="Averaging", description="Decay of a moving average of what is trained, such as 0.999, which is then what is measured, saved and exported; 0 is none.", json_schema_extra=_OPTIMIZER)
    clip: float = Field(1.0, gt=0.0, le=1000.0, title="Gradient clipping", description="Largest norm of all gradients together.", json_schema_extra=_OPTIMIZER)
    adapter: AdapterKind = Field("lora", title="Adapters", description="Kind of the low-rank adapters. `lora`; `dora` also learns the length of each row of the weights; `adalora` shares one budget of ranks out over the layers while it trains.", json_schema_extra=_ADAPTERS)
    adapter_rank: int = Field(16, ge=0, le=512, title="Adapter rank", description="Rank of the adapters in the attention layers; with `adalora` the mean rank at the end. 0 is none there.", json_schema_extra=_ADAPTERS)
    adapter_rank_mlp: int | None = Field(None, ge=0, le=512, title="Adapter rank, MLP", description="Rank in the MLP layers; empty is that of attention, 0 is no adapters there.", json_schema_extra=_ADAPTERS)
    adapter_rank_heads: int | None = Field(None, ge=0, le=512, title="Adapter rank, heads", description="Rank at the speech head; empty is that of attention, 0 is no adapter there.", json_schema_extra=_ADAPTERS)
    adapter_scale: float = Field(2.0, gt=0.0, le=64.0, title="Adapter scale", description="Alpha divided by rank: how strongly the adapters act.", json_schema_extra=_ADAPTERS)
    adapter_dropout: float = Field(0.1, ge=0.0, le=0.9, title="Adapter dropout", description="Dropout before each adapter.", json_schema_extra=_ADAPTERS)
    text_dropout: float = Field(0.1, ge=0.0, le=0.9, title="Text dropout", description="Share of samples whose text is hidden, so that guidance keeps working.", json_schema_extra=_LEARNED)
    code_dropout: float = Field(0.7, ge=0.0, le=0.9, title="Code dropout", description="Largest share of input codes that are hidden in a sample.", json_schema_extra=_LEARNED)
    text_loss_weight: float = Field(0.1, ge=0.0, le=10.0, title="Text loss weight", description="Weight of the next-token loss on text beside that on speech.", json_schema_extra=_LEARNED)
    attention_weight: float = Field(0.1, ge=0.0, le=10.0, title="Guided attention", description="Weight of a loss that asks the model's aligned heads to read the text at an even pace; families without such heads skip it.", json_schema_extra=_LEARNED)
    augmentation: float = Field(0.0, ge=0.0, le=1.0, title="Augmentation", description="Share of the clips of an epoch that are heard as one of their variants, chosen anew each epoch; the dataset must have been prepared with variants. 0 is none. Validation and samples are never augmented.", json_schema_extra=_LEARNED)
    replay: float = Field(0.3, ge=0.0, le=0.9, title="Replay", description="Share of base-language clips in each batch; scope `full` only.", json_schema_extra=_PROTECTION)
    replay_datasets: Annotated[str, BeforeValidator(_text)] = Field("", title="Datasets to replay", description="Your own recordings in languages that the base speaks: prepared datasets, with commas between them. Empty takes the texts to replay, or else the clips that come with the model, or else what the base model itself speaks. Scope `full` only.", json_schema_extra=_PROTECTION)
    replay_texts: str = Field("", title="Texts to replay", description="A text file of what the base model speaks, to be rehearsed: a language code, a tab and a sentence a line. Empty takes the clips that come with the model, or else lets it speak the sentences that come with the app. Scope `full` only.", json_schema_extra=_PROTECTION)
    precision: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", title="Precision", description="What is frozen and computed; what is trained is always float32. `auto` is bfloat16 where the hardware has it, float16 with a scaled loss on the cards before (compute capability 7), else float32.", json_schema_extra=_MACHINES)
    activation_checkpointing: Literal["auto", "on", "off"] = Field("auto", title="Activation checkpointing", description="Compute a layer's activations again in the backward pass: less memory, the same result, about a third more time. `auto` does it when memory asks for it.", json_schema_extra=_MACHINES)
    compile: Literal["off", "on"] = Field("off", title="Compile", description="Let torch compile the layers: some minutes at the start, then faster steps on CUDA.", json_schema_extra=_MACHINES)
    checkpoint_every: int = Field(200, ge=1, le=1_000_000, title="Checkpoint every", description="Steps between checkpoints, each with rendered and judged samples.", json_schema_extra=_CHECKPOINTS)
    adopt_weights: str = Field("", title="Begin on the weights of", description="`run:ID` (its best checkpoint) or `run:ID@STEP`: the run begins on those rows and adapters, with a fresh optimizer; rows are told by their tokens, so the vocabulary may be another. Nothing begins on the extension as it was made.", json_schema_extra=_CHECKPOINTS)
    keep_last: int = Field(2, ge=1, le=1000, title="Keep last", description="Last checkpoints that are kept, beside the best one and those that were given a name; one more than a single one is there when the last turns out to be damaged.", json_schema_extra=_CHECKPOINTS)
    judged_sentences: int = Field(20, ge=0, le=200, title="Judged sentences", description="Held-out sentences spoken and judged at each checkpoint; 0 chooses the best by speech loss.", json_schema_extra=_CHECKPOINTS)
    judge: Annotated[str, AfterValidator(_recogniser_or_nothing)] = Field("", title="Judge", description="Who hears how well the new language can be understood: nothing is the judge that comes with the model, if it knows the language; else OWNER/NAME on the hub of a recogniser that does, such as `facebook/mms-1b-all`, a folder with one, or `built-in`. Its own errors count too: look at those on recordings beside them.", json_schema_extra=_CHECKPOINTS)
    judge_language: str = Field("", max_length=40, title="The judge's name of the language", description="What the recogniser that judges calls the language, where it is not the code, such as `amh` for MMS or `amharic` for Whisper. Empty tries the code and the usual names.", json_schema_extra=_CHECKPOINTS)
    choose_by: Literal["auto", "speech_loss", "judged_error"] = Field("auto", title="Best by", description="What makes a checkpoint the best: `speech_loss` on held-out clips, or the `judged_error` of the sentences it speaks. `auto` is the error where a judge knows the language, since loss turns up before speech stops getting better, else the loss.", json_schema_extra=_CHECKPOINTS)
    validate_every: int = Field(0, ge=0, le=1_000_000, title="Validate every", description="Steps between validations without samples; 0 validates at checkpoints alone. When the best is chosen by loss, a better step is saved at once.", json_schema_extra=_CHECKPOINTS)
    validate_apart: Literal["source", "speaker"] = Field("source", title="Validation shares no", description="Held-out clips that share this with a training clip are left out of validation: the `source` (the recording they were cut from), or the `speaker`.", json_schema_extra=_CHECKPOINTS)
    patience: int = Field(0, ge=0, le=1000, title="Patience", description="Validations in a row without a better value after which the training ends; 0 is never.", json_schema_extra=_CHECKPOINTS)
    seed: int = Field(0, ge=0, title="Seed", description="Seed of order, dropout and samples.", json_schema_extra=_MACHINES)
    tracker: Literal["none", "trackio", "wandb"] = Field("none", title="Tracker", description="Where the numbers and samples of the run go as well, beside its own journal and TensorBoard's event files: `trackio`, or `wandb` (Weights & Biases); their package must be installed.", json_schema_extra=_MACHINES)
    wait_for_gpu_gib: float = Field(0.0, ge=0.0, le=1000.0, title="Wait for GPU memory (GiB)", description="At its turn in the queue the run waits until a GPU has so much free memory beside other programs, and takes that one; jobs behind it go ahead meanwhile. 0 does not wait. On a processor it does not apply.", json_schema_extra=_MACHINES)
    wait_for_idle_gpu: bool = Field(False, title="Wait for an idle GPU", description="The same, until no other program is at work on it.", json_schema_extra=_MACHINES)
    tries: int = Field(1, ge=1, le=20, title="Tries", description="How often the run is begun at most: after a crash it goes on by itself from its last checkpoint. What a person must mend, and a stop, end it at once.", json_schema_extra=_MACHINES)
    device: Device = Field("auto", title="Device", description="`auto` is CUDA when there is one.")


class PreflightOptions(TrainOptions):
    """Try a training on eight clips in about a minute, before it is started: prepare, two steps, save, reload, speak."""


class SamplingOptions(Options):
    """How codes are drawn. What is left empty is what the model speaks best with."""

    temperature: float | None = Field(None, ge=0.0, le=2.0, title="Temperature", description="0 always takes the likeliest code; empty is the model's own (0.2 built-in, 0.8 Chatterbox).")
    top_p: float | None = Field(None, gt=0.0, le=1.0, title="Top p", description="Smallest set of codes with this probability; empty is the model's own (1).")
    min_p: float | None = Field(None, ge=0.0, le=1.0, title="Min p", description="Codes below this share of the likeliest are left out; empty is the model's own (0.05).")
    repetition_penalty: float | None = Field(None, ge=1.0, le=3.0, title="Repetition penalty", description="Above 1, codes already used become less likely; empty is the model's own (1 built-in, 2 Chatterbox).")
    guidance: float | None = Field(None, ge=0.0, le=3.0, title="Guidance", description="Weight of the difference to speech without text; 0 is off and faster; empty is the model's own (0.5).")
    seed: int = Field(0, ge=0, title="Seed", description="Same seed, text, voice and device: same audio.")


class SoundOptions(Options):
    """How codes become sound, for the families that have these controls (Chatterbox)."""

    exaggeration: float = Field(0.5, ge=0.0, le=2.0, title="Exaggeration", description="How lively the voice is; 0.5 is neutral. Chatterbox only.")
    flow_steps: int = Field(10, ge=1, le=100, title="Flow steps", description="Fewer are faster and rougher; 4 or 5 are usable. Chatterbox only.")
    flow_prompt_s: float = Field(10.0, ge=1.0, le=10.0, title="Timbre prompt (seconds)", description="How much of the reference recording gives the timbre; less is faster and less like it. Chatterbox only.")
    watermark: bool = Field(True, title="Watermark", description="Mark the sound, inaudibly, as made by a machine (Perth). Chatterbox only.")


class SynthesizeOptions(Options):
    """Speak a text."""

    voice_model: str = Field("base:tiny", title="Model", description="`base:NAME`, `run:ID` (its best checkpoint), `run:ID@STEP` or `export:NAME`.")
    text: str = Field("", title="Text", description="What to say.")
    language: LanguageCode = Field("en", title="Language", description="Language of the text.")
    voice: str = Field("", title="Voice", description="A voice of the model, or a path to a reference recording; empty is the model's first voice.")
    sampling: SamplingOptions = Field(default_factory=SamplingOptions, title="Sampling", description="How codes are drawn.")
    sound: SoundOptions = Field(default_factory=SoundOptions, title="Sound", description="How codes become sound.")
    precision: SpeakingPrecision = Field("auto", title="Precision", description="Of the language model while it speaks. `auto` is bfloat16 for large models where the hardware has it; `int8` is fastest on a CPU and costs some accuracy.")
    device: Device = Field("auto", title="Device", description="`auto` is CUDA when there is one.")


class CompareOptions(Options):
    """Speak the same texts with the base and the finetuned model, and judge both."""

    base: str = Field("base:tiny", title="Base", description="Model on the left.")
    finetuned: str = Field("", title="Finetuned", description="Model on the right: `run:ID` or `export:NAME`.")
    texts: tuple[tuple[str, str], ...] = Field((), title="Texts", description="Pairs of language and text; none takes a held-out sentence of each language.")
    voice: str = Field("", title="Voice", description="A voice of the model, or a path to a reference recording; empty is the model's first voice.")
    sampling: SamplingOptions = Field(default_factory=SamplingOptions, title="Sampling", description="How codes are drawn.")
    sound: SoundOptions = Field(default_factory=SoundOptions, title="Sound", description="How codes become sound.")
    precision: SpeakingPrecision = Field("auto", title="Precision", description="Of the language model while it speaks. `auto` is bfloat16 for large models where the hardware has it; `int8` is fastest on a CPU and costs some accuracy.")
    device: Device = Field("auto", title="Device", description="`auto` is CUDA when there is one.")


class ExportOptions(Options):
    """Write a finetuned model for others to load, with its certificate."""

    run: str = Field("", title="Run", description="`run:ID` (its best checkpoint) or `run:ID@STEP`.")
    export: Name = Field("tiny-am", title="Export name", description="Name of the export.")
    override: tuple[str, ...] = Field((), title="Override", description="Names of failed certificate checks to export in spite of.")


class PushOptions(Options):
    """Upload an export to a repository of the hub, as one commit. The token comes from HF_TOKEN in the environment."""

    export: NameOrNothing = Field("", title="Export", description="Name of the export in the workspace.", json_schema_extra={"positional": True})
    repository: str = Field("", title="Repository", description="OWNER/NAME on the hub; made when it is not there.", json_schema_extra={"positional": True})
    public: bool = Field(False, title="Public", description="Let everyone see it; without this the repository is private.")


VERBS: dict[str, type[Options]] = {
    "download": DownloadOptions, "prepare": PrepareOptions, "tokenizer": TokenizerOptions,
    "extend": ExtendOptions, "preflight": PreflightOptions, "train": TrainOptions, "synthesize": SynthesizeOptions,
    "compare": CompareOptions, "export": ExportOptions, "push": PushOptions,
    "doctor": DoctorOptions, "lab": LabOptions, "segment": SegmentOptions,
    "transcribe": TranscribeOptions, "align": AlignOptions, "revise": ReviseOptions,
}
"""The verbs that run as jobs, with their options."""

SCOPES: tuple[str, ...] = get_args(Scope)
