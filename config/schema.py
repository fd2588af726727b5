"""The options of each verb as a frozen model with units and ranges, read by command line, form and worker.

The options of a job are in its `config.yaml`; those of a training change when it is resumed with others. Titles are
the labels of the page, descriptions the help texts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationInfo,
    model_validator,
)
from pydantic.fields import FieldInfo

from config import confinement
from config.errors import UserError
from config.languages import code_of

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NO_NAME = "cannot be a name"
NAME_RULE = "Use 1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit"
_ELSEWHERE = ("http://", "https://", "hub:", "segments:")
AS_IS = "as-is"
"""The source of a dataset that is there, and is to stay as it stands."""
DATASET_RECOGNISER = "dataset:"
"""`dataset:NAME` is the recogniser that was trained on that dataset."""
NO_RULES = "none"
"""Text rules where others would be taken by themselves, and texts are to stay as they stand."""
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d{1,2}|[+-]?0?,\d+")
ANY_STEPS = 1_000_000
"""The value of `steps` if epochs or minutes are the length of a training."""
LENGTHS = ("steps", "max_epochs", "max_minutes")
"""The units in which the length of a training is given."""
SHARD_IMPORT, SHARD_MERGE = "import", "merge"
"""Steps of a preparation or transcription in shards, before and after the shards themselves."""
_SHARD = re.compile(r"([1-9]\d{0,3}|merge)/([1-9]\d{0,3})")
AUTO_BATCH = 0
"""The value of `batch_size` if the device decides."""
_LARGEST = 2**53
"""A bound for whole numbers that need none: up to there each is exact in a browser too."""
# Tags of BCP 47, without its rarer parts.
_CODE = re.compile(r"[a-z]{2,3}(-[a-z0-9]{2,8}){0,3}|x(-[a-z0-9]{1,8}){1,3}")


def _safe_name(value: str) -> str:
    if not value:
        raise ValueError("it is empty; give a name of letters and digits, such as `my-voice`")
    if not _NAME.fullmatch(value) or ".." in value:
        raise ValueError(f"{value!r} {NO_NAME}")
    return value


def _model(value: str) -> str:
    """A name, or a reference to a run or an export, which is taken with all its languages."""
    kind, colon, name = value.partition(":")
    if not colon:
        return _safe_name(value)
    if kind not in ("base", "run", "export"):
        raise ValueError(f"{value!r} names no model: give a name, `run:ID`, `run:ID@STEP` or `export:NAME`")
    for part in name.split("@", 1) if kind == "run" else (name,):
        _safe_name(part)
    return value


def _text(value: object) -> object:
    """An empty dropdown of the page means an empty text."""
    return "" if value is None else value


def _channel(value: str) -> str:
    """A channel of recordings: `auto`, `mix`, or a number from 1, with two words for the first two."""
    text = value.strip().lower()
    number = {"left": "1", "right": "2"}.get(text, text)
    if number in ("auto", "mix"):
        return number
    digits = re.fullmatch("0*([1-9][0-9]?)", number)
    if digits and int(digits[1]) <= 64:
        return digits[1]
    raise ValueError(f"{value[:40]!r} is not a channel: write auto, mix, left, right or a number from 1 to 64")


def _language(value: str) -> str:
    """A language code in lower case, such as `am` or `pt-br`."""
    code = value.strip().lower().replace("_", "-")
    if not code:
        raise ValueError("it is empty; give the code of the language, such as `sw` for Swahili")
    if not _CODE.fullmatch(code):
        code_of_name = code_of(code)
        raise ValueError(f"{value!r} is no language code: write its two or three letters, such as "
                         f"{f'`{code_of_name}`' if code_of_name else '`am`'}; a region may follow, as in `pt-br`")
    return code


def is_zero(value: object) -> bool:
    """Whether a number is left out or 0, as text of a form or as a number."""
    text = "" if value is None else str(value).strip().replace(",", ".")
    with suppress(ValueError):
        return not text or float(text) == 0
    return False


def _length(steps: int) -> int:
    if steps == 0:  # epochs or minutes would have replaced it
        raise ValueError("should be 1 or more, if neither epochs nor minutes are given (given: 0)")
    return steps


def _batch_size(value: object) -> object:
    return AUTO_BATCH if isinstance(value, str) and value.strip().lower() == "auto" else value


def _shard(value: str) -> str:
    match = _SHARD.fullmatch(value)
    if value in ("", SHARD_IMPORT) or (match and (match[1] == SHARD_MERGE or int(match[1]) <= int(match[2]))):
        return value
    raise ValueError(f"{value!r} is not a shard: give I/N with I from 1 to N, such as 2/8, or merge/8 after all shards")


def _rate(value: int) -> int:
    """A sample rate high enough for speech, or 0."""
    if 0 < value < 8000:
        raise ValueError(f"{value} Hz is too low for speech: give 8000 or more, or 0 to keep the recording's own")
    return value


def _source(value: str) -> str:
    """An absolute path, as the worker runs in another folder; `demo` is included."""
    value = value.strip()
    if not value:
        raise ValueError("it is empty; give `demo`, a folder, a file, a URL, or `hub:OWNER/NAME`")
    if value.startswith("hf://datasets/"):
        value = "hub:" + value.removeprefix("hf://datasets/")
    if value in ("demo", AS_IS) or value.lower().startswith(_ELSEWHERE):
        return value
    return _absolute(value)


def _recording(value: str) -> str:
    """A source of long recordings, which is no dataset."""
    value = value.strip()
    if value in ("", "demo", AS_IS) or value.lower().startswith(("hub:", "hf://", "segments:")):
        fault = f"{value!r} is a dataset of clips" if value else "it is empty"
        raise ValueError(f"{fault}; give a recording, a film, a folder of them, an archive, or a URL of one of these")
    return _source(value)


def _recogniser(value: str) -> str:
    """`built-in`, `dataset:NAME`, OWNER/NAME on the Hub, or an absolute folder, as the worker runs in another one."""
    value = value.strip().removeprefix("hub:")
    if value == "built-in":
        return value
    if value.startswith(DATASET_RECOGNISER):
        return DATASET_RECOGNISER + _safe_name(value.removeprefix(DATASET_RECOGNISER))
    # What a person at the page writes tells nothing of the folder that the app was started in.
    is_here = not confinement.is_confined() and Path(value).is_dir()
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", value) and not is_here:
        return value
    if not value or ("/" not in value and not is_here):
        raise ValueError(f"{value[:200]!r} names no recogniser; give `built-in`, `dataset:NAME`, OWNER/NAME of the hub, or a folder")
    return _absolute(value)


def _recogniser_language(value: str) -> str:
    """A recogniser's name of a language, which is a part of the name of a file in its folder."""
    if re.search(r"[/\\\0]", value):
        raise ValueError(f"{value!r} is no name of a language: give one such as `amh` or `amharic`, without slashes")
    return value


@dataclass(frozen=True)
class PathOption:
    """Marks an option that may name a file or folder of this machine; `prefix` stands before it.

    Such a value is a path if it is absolute, which the validators make it. `path_options` lists them for
    worker and page, which check each before it is used (`config.confinement`).
    """

    prefix: str = ""


WEIGHT_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")


def _place(value: str) -> str:
    """A name in the workspace, or an absolute path, as the worker runs in another folder."""
    value = value.strip()
    if _NAME.fullmatch(value) and Path(value).suffix not in WEIGHT_SUFFIXES:
        return value
    return _absolute(value)


def _absolute(value: str) -> str:
    value = value.strip()
    if len(value.encode("utf-8", "replace")) > confinement.LONGEST_PATH:
        raise ValueError(f"it has {len(value)} characters, and a path has at most {confinement.LONGEST_PATH}")
    try:
        return str(Path(value).expanduser().absolute())
    except RuntimeError:  # the home of a user that does not exist
        raise ValueError(f"{value[:100]!r} is not a path: there is no such user") from None


def _voice(value: str) -> str:
    """A voice of the model, or the absolute path of a recording, as the worker runs in another folder."""
    name = value.strip()
    is_here = not confinement.is_confined() and bool(Path(name).suffix) and os.path.isfile(name)
    is_path = "/" in name or name.startswith("~") or is_here
    return _absolute(name) if is_path and not name.startswith("speaker:") else value


_SENTENCES_WITH_CATEGORIES = Path(__file__).resolve().parents[1] / "data" / "evaluation" / "categories.tsv"


def _sentence_file(value: str) -> str:
    """An absolute path; `categories` is the list that ships with Lisan."""
    return str(_SENTENCES_WITH_CATEGORIES) if value.strip() == "categories" else _absolute(value)


def _checkpoint(value: str) -> str:
    kind, _, name = value.strip().partition(":")
    return f"{kind}:{_safe_name(name)}" if kind in ("export", "run") else _absolute(value)


def _or_nothing(check: Callable[[str], str]) -> AfterValidator:
    return AfterValidator(lambda value: check(value) if value.strip() else "")


TextOrNothing = Annotated[str, BeforeValidator(_text)]
Channel = Annotated[str, AfterValidator(_channel)]  # "auto", "mix" or the number of a channel
LanguageCode = Annotated[str, AfterValidator(_language)]  # language code in lower case
LanguageOrNothing = Annotated[str, _or_nothing(_language)]
LanguageCodes = Annotated[str, AfterValidator(lambda value: ",".join(map(_language, value.split(","))))]
Name = Annotated[str, AfterValidator(_safe_name)]  # name of a folder in the workspace
ModelName = Annotated[str, AfterValidator(_model)]  # a model to build upon
NameOrNothing = Annotated[TextOrNothing, _or_nothing(_safe_name)]
NamesOrNothing = Annotated[TextOrNothing, _or_nothing(lambda value: ",".join(map(_safe_name, value.split(","))))]
Source = Annotated[str, AfterValidator(_source), PathOption()]  # source of a dataset
Recording = Annotated[str, AfterValidator(_recording), PathOption()]  # a source of long recordings
Length = Annotated[int, AfterValidator(_length)]  # steps
BatchSize = Annotated[int, BeforeValidator(_batch_size)]  # clips, or 0 for `auto`
SampleRate = Annotated[int, AfterValidator(_rate)]  # Hz, or 0
Recogniser = Annotated[str, AfterValidator(_recogniser), PathOption()]
RecogniserOrNothing = Annotated[str, _or_nothing(_recogniser), PathOption()]  # empty: the model's own
RecogniserLanguage = Annotated[str, AfterValidator(_recogniser_language)]
Place = Annotated[str, _or_nothing(_place), PathOption()]  # a name in the workspace, or an absolute path
AbsolutePath = Annotated[str, _or_nothing(_absolute), PathOption()]
SentenceFile = Annotated[str, _or_nothing(_sentence_file), PathOption()]
VoiceOrPath = Annotated[str, _or_nothing(_voice), PathOption()]  # a voice's name, or an absolute path
Checkpoint = Annotated[str, _or_nothing(_checkpoint), PathOption()]  # an absolute path, `export:NAME` or `run:ID`

Scope = Literal["rows", "gated", "full"]
AdapterKind = Literal["lora", "dora", "adalora"]
FullChanges = Literal["everything", "layers", "heads", "adapters"]
Initialisation = Literal["random", "mean", "neighbours", "romanised", "factored", "fitted"]
SpeakingPrecision = Literal["auto", "float32", "bfloat16", "int8"]
UnknownCharacters = Literal["refuse", "leave_out", "unk"]
Device = Literal["auto", "cpu", "cuda"]
WeightSet = Literal["auto", "raw", "ema"]
EngineName = Literal["here", "processes", "ray"]


class Options(BaseModel):
    """Base of all options: frozen, and an unknown key is an error. A number may have a decimal comma."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _decimal_comma(cls, values: object) -> object:
        """Read `0,3` as `0.3` in fields with fractions; `1,000` stays unchanged and is refused."""
        if not isinstance(values, dict):
            return values
        fractions = [name for name in _fractions(cls) if isinstance(values.get(name), str)]
        return {**values, **{name: values[name].replace(",", ".") for name in fractions
                             if _DECIMAL_COMMA.fullmatch(values[name].strip())}}


SomeOptions = TypeVar("SomeOptions", bound=Options)


class Section(Options):
    """Options of a verb that belong together, as a file and the code group them.

    Flags, forms, stored settings and sweeps name an option of a section without the section.
    """


def about(field: FieldInfo, key: str, default: Any = None) -> Any:
    """What a field says in `json_schema_extra` beside its type: its group, whether a resume may change it, and so on."""
    extra = field.json_schema_extra
    return extra.get(key, default) if isinstance(extra, dict) else default


@cache
def option_fields(model: type[Options]) -> Mapping[str, FieldInfo]:
    """The options of `model` by name, with those of its sections, which inherit what their section says of itself."""
    fields = dict[str, FieldInfo]()
    for name, field in model.model_fields.items():
        section = _section_of(field)
        if section is None:
            fields[name] = field
            continue
        for inner_name, inner in section.model_fields.items():
            assert inner_name not in fields, f"two options of {model.__name__} are named {inner_name}"
            merged = copy(inner)
            merged.json_schema_extra = {**_extra(field), **_extra(inner)}
            fields[inner_name] = merged
    return fields


@cache
def option_path(model: type[Options], name: str) -> tuple[str, ...]:
    """The section of the option `name`, if it is in one, and the name."""
    for section_name, field in model.model_fields.items():
        section = _section_of(field)
        if section is not None and name in section.model_fields:
            return section_name, name
    return (name,)


def option_value(options: Options, name: str) -> Any:
    """The value of the option `name`, in whichever section it is."""
    value: object = options
    for part in option_path(type(options), name):
        value = getattr(value, part)
    return value


def with_values(options: SomeOptions, values: Mapping[str, object]) -> SomeOptions:
    """`options` with other `values`, by their names without sections; they are not checked."""
    sections = dict[str, dict[str, object]]()
    changes = dict[str, object]()
    for name, value in values.items():
        assert name in option_fields(type(options)), f"{name} is not an option of {type(options).__name__}"
        *section, last = option_path(type(options), name)
        (sections.setdefault(section[0], {}) if section else changes)[last] = value
    for section_name, section_values in sections.items():
        changes[section_name] = getattr(options, section_name).model_copy(update=section_values)
    return options.model_copy(update=changes)


def without_sections(model: type[Options], values: Mapping[str, Any], *, strict: bool = True) -> dict[str, Any]:
    """`values` of a file or a dump by the names of the options alone, in the order of `values`.

    `UserError` for what a section does not have. Without `strict` it is kept under its section and name, for a reader
    that must list the file of another version; checking the options then refuses it by that name.
    """
    names = dict[str, Any]()
    unknown: list[str] = []
    for name, value in values.items():
        field = model.model_fields.get(name)
        section = _section_of(field) if field else None
        if section is None:
            _add_once(names, {name: value})
            continue

        # A section holds its own options alone, so that a name in the wrong place is not taken for another one's.
        if not isinstance(value, Mapping):
            if not strict:
                names[name] = value
                continue
            raise UserError(f"{name} is a section of options, and its value is {repr(value)[:80]}.",
                            f"Write its options below it: {', '.join(section.model_fields)}.")
        for inner, inner_value in value.items():
            if inner in section.model_fields:
                _add_once(names, {inner: inner_value})
            elif strict:
                unknown.append(f"{str(inner)[:80]} is not an option of the section {name} "
                               f"({', '.join(section.model_fields)})")
            else:
                names[f"{name}.{inner}"] = inner_value

    if unknown:
        raise UserError("Options that cannot be used: " + "; ".join(unknown) + ".",
                        "Move each into the section that has it, or delete it.")
    return names


def in_sections(model: type[Options], values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` as `model` takes them: an option that is named without its section is moved into it."""
    result = dict[str, Any]()
    for name, value in without_sections(model, values).items():
        *sections, last = option_path(model, name)
        inside = result
        for section in sections:
            inside = inside.setdefault(section, {})
        inside[last] = value
    return result


def _add_once(names: dict[str, Any], values: Mapping[str, Any]) -> None:
    repeated = next((name for name in values if name in names), None)
    if repeated is not None:
        raise UserError(f"The option {repeated!r} is given twice: by itself and in its section.", "Delete one of them.")
    names.update(values)


def _section_of(field: FieldInfo) -> type[Section] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _extra(field: FieldInfo) -> dict[str, JsonValue]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def path_options(options: Options) -> Iterator[tuple[str, str]]:
    """The options of `options` that name a file or folder of this machine, and its absolute path."""
    for name, field in type(options).model_fields.items():
        value = getattr(options, name)
        if isinstance(value, Options):
            yield from path_options(value)
        for marker in field.metadata:
            if isinstance(marker, PathOption):
                for path_value in value if isinstance(value, tuple) else (value,):
                    path = path_value.removeprefix(marker.prefix)
                    if path_value.startswith(marker.prefix) and os.path.isabs(path):
                        yield name, path


@cache
def _fractions(kind: type[Options]) -> tuple[str, ...]:
    """Names of the fields that take a number with a fraction."""
    return tuple(name for name, field in kind.model_fields.items()
                 if float in (field.annotation, *get_args(field.annotation)))


# The fields of the verbs whose batches can run in several processes (`core.jobs.engines`).
_ENGINE: Any = Field("here", title="Engine", description="Where batches run: `here`, in the job's own process; `processes` of this machine, one per GPU or `workers`; or a `ray` cluster. All write the same bytes on the same processor with as many threads each.")
_WORKERS = Field(0, ge=0, le=1024, title="Workers", description="Number of workers of the engines `processes` and `ray`; 0 is one per GPU, else as many as the cores have room for. A worker loads the model once.")
_RAY_ADDRESS = Field("", max_length=200, title="Ray address", description="Address of a running Ray cluster, such as `10.0.0.5:6379`, for the engine `ray`; empty starts one on this machine. Whoever runs the cluster can run code in the job.", json_schema_extra={"command_line_only": True})

_SHARD_FIELD = Field("", title="Shard", description="`I/N`: do every N-th batch, beginning with the I-th, on one of several machines that share the workspace's folder, without waiting in its queue; then `merge/N` checks that no batch is missing and goes on. Of a preparation, `import` writes the dataset before the first shard.", json_schema_extra={"command_line_only": True})


class DownloadOptions(Options):
    """Download a base model into the workspace."""

    model: Name = Field("tiny", title="Model", description="Family of the base model; `tiny` is included.")
    variant: NameOrNothing = Field("", title="Variant", description="Checkpoint of the family, such as `multilingual-v3`; empty is the recommended one.")
    folder: AbsolutePath = Field("", title="Folder", description="Local folder with the files, used instead of the Hub. Files are linked where possible, else copied, never moved.")
    save_as: NameOrNothing = Field("", title="Name in the workspace", description="Name of the model in the workspace; empty is family and variant.")
    revision: str = Field("", max_length=200, title="Revision", description="Branch, tag or commit of the repository on the Hub; empty is the tested one, where there is one, else `main`.")
    accept_licence: tuple[str, ...] = Field((), title="Accept licence", description="Names of the licences that you accept; a model whose parts come under several is downloaded only when all are named.")
    accept_unknown: tuple[str, ...] = Field((), title="Accept unknown files", description="Names of files that you accept although they are not the published ones; the error names them. Certificates then say `unknown base`.")
    probe: bool = Field(True, title="Probe", description="Check that a new base model predicts speech and speaks three sentences in two of its languages. On the CPU: minutes for a large model.")


class DoctorOptions(Options):
    """Diagnose a fine-tuned checkpoint against its base; without arguments, diagnose this machine."""

    part: Literal["machine", "model"] = Field("machine", title="Part", description="`model` diagnoses a fine-tuned checkpoint, `machine` this machine.", json_schema_extra={"positional": True})
    base: Place = Field("", title="Base", description="The base model of the checkpoint: a name in the workspace, or a file or folder of weights.", json_schema_extra={"positional": True})
    checkpoint: Checkpoint = Field("", title="Checkpoint", description="The fine-tuned weights: a .safetensors or .pt file, their folder, a folder of peft adapters, `export:NAME`, or `run:ID` of an imported finetune.", json_schema_extra={"positional": True})
    tokenizer: AbsolutePath = Field("", title="Checkpoint tokenizer", description="Tokenizer file (JSON) of the checkpoint; empty uses the one in its folder.")
    weights: WeightSet = Field("auto", title="Weights", description="Of a file with raw and averaged weights: `auto` takes the average (EMA), `raw` the others.")
    measure: bool = Field(True, title="Measure", description="Also run base-language samples through both models, where the base is in the workspace. Takes the loading time and some seconds per language.")
    restore: NameOrNothing = Field("", title="Restore as", description="Where only embedding rows were damaged: name of an export with the base's rows and the new rows. No existing file is changed.")
    language: LanguageOrNothing = Field("", title="New language", description="Language code of the new rows, such as `am`; required to restore.")


class ImportModelOptions(Options):
    """Import a checkpoint that was fine-tuned elsewhere as a run, with its tokenizer; no existing file is changed."""

    base: ModelName = Field("", title="Base model", description="The base model that was fine-tuned, a name in the workspace. The import compares every tensor with it.", json_schema_extra={"positional": True})
    checkpoint: AbsolutePath = Field("", title="Checkpoint", description="The fine-tuned weights: a .safetensors or PyTorch file (`model_step38000.pth`), their folder, or a folder of peft adapters.", json_schema_extra={"positional": True})
    tokenizer: AbsolutePath = Field("", title="Tokenizer", description="Tokenizer of the fine-tuned model (JSON, `vocab.json` or SentencePiece), or its folder; empty uses the one in the checkpoint's folder.")
    language: LanguageOrNothing = Field("", title="Language", description="Code of the language that it was fine-tuned for, such as `am`. A base language keeps its tokenizer: for a finetune of one give a code of its own, such as `en-studio`.")
    weights: WeightSet = Field("auto", title="Weights", description="Of a file with raw and averaged weights: `auto` takes the average (EMA), `raw` the others.")


class TokenizerOptions(Options):
    """Learn pieces on a dataset's texts and append them to the base tokenizer."""

    part: Literal["all", "train", "merge", "report"] = Field("all", title="Part", description="`train` learns pieces, `merge` appends them to the base tokenizer, `report` checks the result; `all` does the three.", json_schema_extra={"positional": True})
    model: ModelName = Field("tiny", title="Model", description="Base model whose tokenizer is extended. A finished run or export (`run:ID`, `export:NAME`, or its name alone) is a base for the next language.")
    dataset: Name = Field("amharic-demo", title="Dataset", description="Dataset whose training texts are used.", json_schema_extra={"shown_default": "the one made last"})
    tokenizer: Name = Field("tiny-am", title="Tokenizer name", description="Name of the merged tokenizer.", json_schema_extra={"shown_default": "model and languages"})
    variant_of: LanguageOrNothing = Field("", title="Variant of", description="A language of the model that the dataset's language is a variant of (a dialect, a voice, a domain, under a separate code such as `en-studio`): it keeps that language's tokens and gets a tag, and the language itself stays untouched. Empty: a new language.")
    algorithm: Literal["bpe", "sentencepiece"] = Field("bpe", title="Algorithm", description="Training algorithm: `bpe` (Hugging Face tokenizers) or `sentencepiece`.")
    merges: int = Field(0, ge=0, le=20000, title="Merges", description="Vocabulary size: tokens beyond single characters. Every character of the texts is always a token.")
    rules: NamesOrNothing = Field("", title="Text rules", description="Rules that write out numbers, dates and abbreviations as spoken: `am`, `om`, `ti`, a language code that ICU or num2words counts in, or your own; with commas between those of several languages; empty keeps the text.")
    case: Literal["auto", "keep", "fold"] = Field("auto", title="Case", description="`fold` reads capitals as small letters (IndexTTS2: the reverse); `keep` makes them letters of their own, as in Ibibio (`bON` beside `bon`); `auto` keeps them if 2% of the dataset's words, and at least 5, have capitals within.")
    tokenizer_file: AbsolutePath = Field("", title="Custom tokenizer", description="Tokenizer file (JSON of BPE or Unigram, or a SentencePiece model) whose pieces are used instead of learning new ones; only its pieces are used, not its ids.")
    byte_fallback: bool = Field(False, title="Byte fallback", description="Encode characters that the recordings lack as bytes instead of refusing them. Adds 256 rows, which no training text uses.")


def _sizes(values: tuple[int, ...]) -> tuple[int, ...]:
    wrong = [value for value in values if not 1 <= value <= 20_000]
    if wrong:
        raise ValueError(f"{wrong[0]} pieces cannot be learned: ask for 1 to 20000")
    return values


class CompareTokenizersOptions(Options):
    """Compare tokenizers of several sizes on a dataset's texts, and map its characters."""

    model: ModelName = Field("tiny", title="Model", description="Base model whose tokenizer would be extended. A finished run or export (`run:ID`, `export:NAME`, or its name alone) is a base for the next language.")
    dataset: Name = Field("amharic-demo", title="Dataset", description="Dataset whose texts the candidates are trained on.", json_schema_extra={"shown_default": "the one made last"})
    rules: NameOrNothing = Field("", title="Text rules", description="Text rules, as for the tokenizer; empty uses those of the language's newest tokenizer, `none` keeps the text.")
    sizes: Annotated[tuple[int, ...], AfterValidator(_sizes)] = Field((50, 200, 800), title="Sizes", description="Number of pieces longer than one character of each candidate; characters alone are always compared.")
    text: AbsolutePath = Field("", title="Text of the language", description="Text file (UTF-8) of the language: shows characters that the dataset lacks, and sentences to record for them.")
    tokenizer_file: AbsolutePath = Field("", title="Custom tokenizer", description="Tokenizer file (JSON of BPE or Unigram, or a SentencePiece model) whose pieces are one more candidate; only its pieces are used, not its ids.")
    sentences: int = Field(20, ge=0, le=1000, title="Sentences", description="Maximum number of sentences to record that are listed.")
    byte_fallback: bool = Field(False, title="Byte fallback", description="Also compare characters with byte fallback.")


class ExtendOptions(Options):
    """Append embedding rows for the new tokens to the base model."""

    model: ModelName = Field("tiny", title="Model", description="Base model to extend. A finished run or export (`run:ID`, `export:NAME`, or its name alone) is a base for the next language.")
    tokenizer: Name = Field("tiny-am", title="Tokenizer", description="Merged tokenizer that begins with the model's own.", json_schema_extra={"shown_default": "the one made last"})
    extension: Name = Field("tiny-am", title="Extension name", description="Name of the extended model.", json_schema_extra={"shown_default": "that of the tokenizer"})
    initialisation: Initialisation = Field("romanised", title="New-token initialisation", description="`random`: like the base rows; `mean` of all base rows with noise; mean of the `neighbours` (base tokens of the same text), of the `romanised` spelling, or `factored` (consonant plus vowel, for syllabaries); `fitted`: romanised, then a short fit to the model's own states, without audio.")
    seed: int = Field(0, ge=0, le=_LARGEST, title="Seed", description="Seed of the noise.")


def _longest(value: float, info: ValidationInfo) -> float:
    """Refuse bounds between which some recordings cannot be cut."""
    shortest = info.data.get("min_clip_s", 0.0)
    if value < 2 * shortest + 1:
        raise ValueError(f"clips of {shortest:g} to {value:g} s cannot be cut from every recording: the maximum must be "
                         f"at least twice the minimum plus a second, here {2 * shortest + 1:g}")
    return value


_CHANNELS: dict[str, JsonValue] = {"suggestions": ["auto", "mix", "left", "right"]}
_CHANNEL_HELP = "Of recordings with several channels: `auto` measures each and says what it found, `mix` is the mean of all; or one alone: `left` (1), `right` (2), or its number."


class ClipOptions(Options):
    """Length and audio processing of clips that are cut from long recordings."""

    min_clip_s: float = Field(2.0, ge=0.5, le=10.0, title="Minimum clip length (s)", description="Including padding.")
    max_clip_s: Annotated[float, AfterValidator(_longest)] = Field(15.0, ge=3.0, le=30.0, validate_default=True, title="Maximum clip length (s)", description="Including padding. Speech without a pause is cut at its quietest point, with a warning. The built-in model needs at most 10 s.")
    padding_s: float = Field(0.2, ge=0.0, le=1.0, title="Padding (s)", description="Silence kept before and after the speech, where there is any.")
    lufs: float = Field(-23.0, ge=-50.0, le=0.0, title="Loudness (LUFS)", description="Target loudness of each clip (ITU-R BS.1770), limited by its peak; 0 keeps the loudness.")
    sample_rate: SampleRate = Field(0, ge=0, le=192_000, title="Sample rate (Hz)", description="Resample clips to this rate; 0 keeps the recording's rate. Features are always extracted at the model's rate.")
    denoise: bool = Field(False, title="Denoise", description="Reduce steady noise, estimated from the pauses. Only for noisy recordings: it also alters the voice.")
    channel: Channel = Field("auto", title="Channel", description=_CHANNEL_HELP, json_schema_extra=_CHANNELS)
    speakers: Literal["one", "recording", "folder"] = Field("one", title="Speakers", description="One speaker in all (`one`), per `recording`, or per `folder`.")


class SegmentOptions(ClipOptions):
    """Segment long recordings without text at their pauses."""

    source: Recording = Field("", title="Long recordings", description="Path or URL of a recording, a video, a folder of them, or an archive.")
    segments: Name = Field("", validate_default=True, title="Name", description="Name of the segments in the workspace.")
    language: LanguageCode = Field("", validate_default=True, title="Language", description="Language code of the speech, such as `sw`.")
    threshold: float = Field(0.5, ge=0.05, le=0.95, title="VAD threshold", description="Speech probability (Silero VAD) above which audio counts as speech; lower finds fainter speech, and more noise.")
    engine: EngineName = _ENGINE
    workers: int = _WORKERS
    ray_address: str = _RAY_ADDRESS


class TranscribeOptions(Options):
    """Transcribe segments with a speech recogniser (ASR)."""

    segments: Name = Field("recordings", title="Segments", description="Name of the segments in the workspace.", json_schema_extra={"shown_default": "the one made last"})
    recogniser: Recogniser = Field("openai/whisper-small", title="Recogniser (ASR)", description="OWNER/NAME of a speech recogniser on the Hub that transformers supports, such as `openai/whisper-large-v3` or `facebook/mms-1b-all`; a folder; or `built-in`, for the built-in model's synthetic voices only.")
    recogniser_language: RecogniserLanguage = Field("", max_length=40, title="Recogniser language", description="The recogniser's name of the language where it is not the code, such as `amh` for MMS.")
    revision: str = Field("main", min_length=1, max_length=200, title="Revision", description="Branch, tag or commit of the recogniser on the Hub.")
    flag_below: float = Field(0.5, ge=0.0, le=1.0, title="Flag below", description="Clips with a lower recogniser confidence are flagged for review.")
    drop_below: float = Field(0.0, ge=0.0, le=1.0, title="Drop below", description="Clips with a lower recogniser confidence are excluded from the dataset; 0 keeps all.")
    device: Device = Field("auto", title="Device", description="`auto` uses CUDA when available.")
    engine: EngineName = _ENGINE
    workers: int = _WORKERS
    ray_address: str = _RAY_ADDRESS
    shard: Annotated[str, AfterValidator(_shard)] = _SHARD_FIELD


class AlignOptions(ClipOptions):
    """Align long recordings with their texts or subtitles, and cut a clip per sentence."""

    source: Recording = Field("", title="Long recordings", description="Path or URL of a recording, a video, a folder of them, or an archive. Without Text, each needs a text, subtitle or label file of the same name.")
    text: AbsolutePath = Field("", title="Text", description="Text of a single recording: plain text (UTF-8) or subtitles, whose timestamps are ignored. Empty: the file beside each recording.")
    segments: Name = Field("", validate_default=True, title="Name", description="Name of the segments in the workspace.")
    language: LanguageCode = Field("", validate_default=True, title="Language", description="Language code of the speech, such as `sw`.")
    recogniser: Recogniser = Field("facebook/mms-1b-all", title="Recogniser (CTC)", description="OWNER/NAME of a CTC recogniser on the Hub, such as `facebook/mms-1b-all`; a folder; `dataset:NAME`, trained on that dataset; or `built-in`, for the built-in model's synthetic voices only. The text is romanised where the recogniser lacks the script.")
    recogniser_language: RecogniserLanguage = Field("", max_length=40, title="Recogniser language", description="The recogniser's name of the language where it is not the code, such as `amh` for MMS.")
    revision: str = Field("main", min_length=1, max_length=200, title="Revision", description="Branch, tag or commit of the recogniser on the Hub.")
    rules: NameOrNothing = Field("", title="Text rules", description="Rules that write out numbers, dates and abbreviations for the alignment; the clips keep the original text.")
    flag_below: float = Field(0.3, ge=0.0, le=1.0, title="Flag below", description="Clips with a lower alignment score are flagged for review.")
    drop_below: float = Field(0.1, ge=0.0, le=1.0, title="Drop below", description="Clips with a lower alignment score are excluded, and listed.")
    device: Device = Field("auto", title="Device", description="`auto` uses CUDA when available.")
    engine: EngineName = _ENGINE
    workers: int = _WORKERS
    ray_address: str = _RAY_ADDRESS


DEMO = "demo"
"""The source that is included."""
DEMO_DATASET: Mapping[str, str] = {"dataset": "amharic-demo", "language": "am"}
"""Name and language of the source `demo`; every other source is given its own."""


_CLEAN_UP: dict[str, JsonValue] = {"group": "Clean up"}


class PrepareOptions(Options):
    """Import, check and split a dataset, and extract its features."""

    @model_validator(mode="before")
    @classmethod
    def _name_demo(cls, values: object) -> object:
        if isinstance(values, dict) and str(values.get("source", "demo")).strip() == "demo":
            return {**values, **{name: value for name, value in DEMO_DATASET.items() if not values.get(name)}}
        return values

    source: Source = Field("demo", title="Source", description="Path or URL of a folder, file or archive; `hub:OWNER/NAME`; `segments:NAME` for segments of long recordings; `demo`, included; or `as-is`, this dataset itself, to extract features for another model.")
    dataset: Name = Field("", validate_default=True, title="Dataset name", description="Name of the dataset in the workspace; of `demo` it is `amharic-demo`.")
    language: LanguageCodes = Field("", validate_default=True, title="Language", description="Language code of the speech, such as `sw`; of `demo` it is `am`. Recordings in a language of the base model can only be replayed (scope `full`).")
    add_to: NameOrNothing = Field("", title="Add to", description="An existing dataset: the new one has its clips and the clips of the source that it lacks. The existing one is unchanged. Clips in another language make a dataset of both, whose languages are trained in one run.")
    max_clips: int = Field(0, ge=0, le=_LARGEST, title="Max clips", description="Use only the first clips of the source; 0 uses all.")
    rules: NamesOrNothing = Field("", title="Text rules", description="Rules that write out numbers, dates and abbreviations before texts are checked; use those of the tokenizer. The dataset keeps the original texts.", json_schema_extra=_CLEAN_UP)
    remove_unspoken: bool = Field(False, title="Remove unspoken text", description="Take out of the texts what is not spoken: sounds in brackets, tags, speaker labels, times. Without this they are reported and kept.", json_schema_extra=_CLEAN_UP)
    any_script: bool = Field(False, title="Accept any script", description="Import texts in a script that is unusual for the language, or with Latin, Greek and Cyrillic letters in one word, without asking.", json_schema_extra=_CLEAN_UP)
    channel: Channel = Field("auto", title="Channel", description=_CHANNEL_HELP, json_schema_extra=_CHANNELS)
    licence: str = Field("", max_length=200, title="Licence", description="Licence of the recordings, such as `CC-BY-4.0`; shown with the dataset and with every export trained on it.")
    held_out: float = Field(0.1, ge=0.0, le=0.5, title="Held-out share", description="Share of clips held out from training where the source defines no split.")
    keep_edges: bool = Field(False, title="Keep silent edges", description="Keep all silence at the start and end of the clips. By default it is trimmed to 0.1 s, because a model that learns it begins its sentences with silence; the recordings themselves are not modified.", json_schema_extra=_CLEAN_UP)
    test: float = Field(0.0, ge=0.0, le=0.5, title="Test share", description="Share of clips for a test set, where the source has none of its own. It selects no checkpoint, and `evaluate` uses it first.")
    split_disjoint_by: Literal["source", "speaker"] = Field("source", title="Held-out split by", description="Held-out and training clips share no `source` (sentence or recording), or no `speaker` either. A split of the source is kept.")
    model: ModelName = Field("tiny", title="Model", description="Base model that extracts the features.")
    compare_all_texts: bool = Field(False, title="Compare all texts", description="Let the model's recogniser, if it knows the language, compare every clip with its own and ten other texts. Off: of more than 300 clips a sample of 100 first, and the rest only if another text fits one of them better.")
    variants: int = Field(0, ge=0, le=10, title="Augmented variants", description="Variants of each training clip in speed, pitch and noise, for augmentation in training. Each takes as long to extract as the clip. 0 adds none and keeps existing ones.")
    variant_speed: float = Field(0.1, ge=0.0, le=0.1, title="Variant speed", description="Largest relative change of speed at the same pitch; 0 keeps the speed.")
    variant_pitch: float = Field(0.5, ge=0.0, le=0.5, title="Variant pitch (semitones)", description="Largest change of pitch at the same speed; 0 keeps the pitch.")
    variant_noise: float = Field(30.0, ge=0.0, le=60.0, title="Variant SNR (dB)", description="Lowest signal-to-noise ratio of added noise; 0 adds none.")
    recogniser: bool = Field(True, title="Train recogniser", description="Also train a recogniser (ASR) on a dataset of 10 minutes or more in a new language, which measures the speech of its models: at most 3 minutes on two cores per hour of speech. Not for `demo`.")
    seed: int = Field(0, ge=0, le=_LARGEST, title="Seed", description="Seed of the split and the variants.")
    device: Device = Field("auto", title="Device", description="Device for feature extraction; `auto` uses CUDA when available.")
    engine: EngineName = _ENGINE
    workers: int = _WORKERS
    ray_address: str = _RAY_ADDRESS
    shard: Annotated[str, AfterValidator(_shard)] = _SHARD_FIELD


class ResynthesizeOptions(Options):
    """Pass recordings through a model's codec and vocoder: the best that the model can ever sound in this voice."""

    source: Annotated[str, _or_nothing(_source), PathOption()] = Field("", title="Source", description="Path of a folder, file or archive of recordings with their texts, or `demo`; empty for a prepared dataset.")
    dataset: NameOrNothing = Field("", title="Dataset", description="A prepared dataset, used instead of a source.")
    language: LanguageOrNothing = Field("", title="Language", description="Language code of the speech, such as `sw`; needed for `demo` only.")
    model: ModelName = Field("tiny", title="Model", description="Base model whose codec and vocoder are used.")
    clips: int = Field(3, ge=1, le=20, title="Clips", description="Number of clips, all of one speaker. One clip has no similarity: it needs others of its speaker.")
    device: Device = Field("auto", title="Device", description="`auto` uses CUDA when available.")


class RecogniserOptions(Options):
    """Train a recogniser (ASR) on a dataset: it measures speech in its language where no other recogniser can."""

    dataset: Name = Field("amharic-demo", title="Dataset", description="The dataset; its held-out clips test the recogniser and are not trained on.", json_schema_extra={"shown_default": "the one made last"})
    again: bool = Field(False, title="Train again", description="Replace the recogniser that the dataset has.")
    seed: int = Field(0, ge=0, le=_LARGEST, title="Seed", description="Seed of the initial weights and the order of clips.")
    device: Device = Field("auto", title="Device", description="`auto` uses CUDA when available.")


class ReviseOptions(Options):
    """Save a new version of a dataset with the decisions of its review; the old one is unchanged."""

    dataset: Name = Field("amharic-demo", title="Dataset", description="The reviewed dataset.", json_schema_extra={"shown_default": "the one made last"})
    save_as: Name = Field("amharic-demo-2", title="Save as", description="Name of the new version.", json_schema_extra={"shown_default": "that of the dataset, and -2"})
    language: LanguageOrNothing = Field("", title="Language", description="The code of the right language, where the dataset was given a wrong one; its texts are then read without text rules. Empty keeps the language.")
    model: ModelName = Field("tiny", title="Model", description="Base model that extracts the features of fixed clips.")
    device: Device = Field("auto", title="Device", description="Device for feature extraction; `auto` uses CUDA when available.")
    engine: EngineName = _ENGINE
    workers: int = _WORKERS
    ray_address: str = _RAY_ADDRESS


GROUPS = ("Clean up", "Data", "Optimizer", "Adapters", "Losses and regularization", "Checkpoints and evaluation",
          "Hardware and tracking")
"""The groups of a form's fields, in their order."""
_DATA: dict[str, JsonValue] = {"group": "Data"}
_OPTIMIZER: dict[str, JsonValue] = {"group": "Optimizer"}
_ADAPTERS: dict[str, JsonValue] = {"group": "Adapters"}
_REGULARIZATION: dict[str, JsonValue] = {"group": "Losses and regularization"}
_CHECKPOINTS: dict[str, JsonValue] = {"group": "Checkpoints and evaluation"}
_HARDWARE: dict[str, JsonValue] = {"group": "Hardware and tracking"}
_SWEEP: dict[str, JsonValue] = {"group": "Sweep"}
_MADE_LAST: dict[str, JsonValue] = {"shown_default": "the one made last"}

# The options that act in the scope `full` alone, some of them for some values of `full_trainable`.
_FULL: dict[str, JsonValue] = {"scope": "full"}
_FULL_BASE: dict[str, JsonValue] = {**_FULL, "full_trainable": ["everything", "layers", "heads"]}
_FULL_LAYERS: dict[str, JsonValue] = {**_FULL, "full_trainable": ["everything", "layers"]}

# Whether an option may change when a run is resumed, and why not; see `config.resume_options`.
_MAY_CHANGE: dict[str, JsonValue] = {"may_change": True}
_FIXED_ORDER: dict[str, JsonValue] = {"fixed_because": "the order of the clips depends on it"}
_FIXED_SCHEDULE: dict[str, JsonValue] = {"fixed_because": "the learning rate depends on it, and would jump"}
_FIXED_GROUPS: dict[str, JsonValue] = {"fixed_because": "the optimizer's parameter groups depend on it"}
_FIXED_SHAPES: dict[str, JsonValue] = {"fixed_because": "the checkpoint's adapters and optimizer state have other shapes"}
_FIXED_OPTIMIZER: dict[str, JsonValue] = {"fixed_because": "the checkpoint holds the state of the other optimizer"}
_FIXED_PRECISION: dict[str, JsonValue] = {"fixed_because": "rounding depends on it"}
_FIXED_VOCABULARY: dict[str, JsonValue] = {"fixed_because": "new rows belong to its vocabulary"}


class LengthOptions(Section):
    """How long a training takes. Of several lengths the shortest ends it."""

    steps: Length = Field(800, ge=0, le=ANY_STEPS, title="Steps", description="Length in optimizer steps. 0, or left out beside epochs or minutes: they decide. Of several lengths the shortest ends the run.", json_schema_extra=_FIXED_SCHEDULE)
    max_minutes: float = Field(0.0, ge=0.0, le=10_000.0, title="Time limit (minutes)", description="Length in minutes: as many steps as fit. Measured before the first step and during training; the learning-rate schedule ends with the last step. 0 is no limit.", json_schema_extra=_MAY_CHANGE)
    decoder_minutes: float = Field(0.0, ge=0.0, le=120.0, title="Decoder training (minutes)", description="Before the first step, train a copy of the decoder from codes to sound on the recordings, for the new language alone; within the time limit. It brings back a voice that the codec does not know. Built-in family only; 0 is none.", json_schema_extra=_OPTIMIZER)
    max_epochs: float = Field(0.0, ge=0.0, le=10_000.0, title="Max epochs", description="Length in passes over the training clips; the learning-rate schedule ends with the last step. 0 is no limit.", json_schema_extra=_FIXED_SCHEDULE)

    @property
    def minutes_of_steps(self) -> float:
        """What the training of the decoder leaves of the time limit; 0 is no limit."""
        return max(0.0, self.max_minutes - self.decoder_minutes)

    @model_validator(mode="after")
    def _time_for_steps(self) -> LengthOptions:
        """A limit that the decoder takes whole would leave 0 for the steps, which means no limit."""
        if 0 < self.max_minutes <= self.decoder_minutes:
            raise ValueError(f"decoder_minutes is {self.decoder_minutes:g} of a time limit of {self.max_minutes:g} "
                             "minutes, which leaves no time for steps: lower it, or raise the limit")
        return self

    @model_validator(mode="before")
    @classmethod
    def _one_length(cls, values: object) -> object:
        """Without `steps` (or 0) a length in epochs or minutes decides; without any it is the default number of steps."""
        if not isinstance(values, dict) or not is_zero(values.get("steps")):
            return values
        if not all(is_zero(values.get(name)) for name in LENGTHS):
            return {**values, "steps": ANY_STEPS}
        if values.get("steps") is None or values["steps"] == "":
            return {name: value for name, value in values.items() if name != "steps"}
        return values


class BatchOptions(Section):
    """The clips of a step."""

    batch_size: BatchSize = Field(16, ge=0, le=512, title="Batch size", description="Clips per process and accumulation step, replayed clips included; split into micro-batches if memory is short. `auto` (0) fills a GPU; on a CPU it is that of the preset.", json_schema_extra=_FIXED_ORDER)
    gradient_accumulation: int = Field(1, ge=1, le=256, title="Gradient accumulation", description="Batches accumulated per optimizer step.", json_schema_extra=_FIXED_ORDER)

    def clips_a_step(self, world_size: int) -> int:
        """Clips of an optimizer step over all processes."""
        return self.batch_size * self.gradient_accumulation * world_size


class OptimizationOptions(Section):
    """Learning rates, their schedule, and the optimizer."""

    scale_lr: Literal["off", "sqrt", "linear"] = Field("off", title="Scale learning rates", description="Multiply the learning rates by the clips of a step relative to the preset's: `sqrt`, the square root, fits AdamW; `linear` the ratio itself.", json_schema_extra={"bare": "sqrt", **_FIXED_GROUPS})
    row_lr: float = Field(5e-3, gt=0.0, le=1.0, title="Learning rate, rows", description="Peak learning rate of the new embedding rows.", json_schema_extra=_FIXED_GROUPS)
    adapter_lr: float = Field(2e-3, gt=0.0, le=1.0, title="Learning rate, adapters", description="Peak learning rate of the adapters.", json_schema_extra=_FIXED_GROUPS)
    weight_decay: float = Field(0.01, ge=0.0, le=1.0, title="Weight decay", description="Decoupled weight decay of the adapters; new rows, DoRA magnitudes and base weights have none.", json_schema_extra=_FIXED_GROUPS)
    schedule: Literal["cosine", "linear", "constant"] = Field("cosine", title="LR schedule", description="Decay of the learning rates after the warmup.", json_schema_extra=_FIXED_SCHEDULE)
    min_lr_ratio: float = Field(0.03, ge=0.0, le=1.0, title="Min LR ratio", description="Learning rate at the last step, relative to the peak.", json_schema_extra=_FIXED_SCHEDULE)
    warmup: int = Field(30, ge=0, le=100_000, title="Warmup steps", description="Steps of linear warmup.", json_schema_extra=_FIXED_SCHEDULE)
    optimizer: Literal["adamw", "adamw8bit"] = Field("adamw", title="Optimizer", description="`adamw8bit` stores the optimizer state in 8 bits, a quarter of the memory; needs `pip install bitsandbytes`.", json_schema_extra=_FIXED_OPTIMIZER)
    ema: float = Field(0.0, ge=0.0, lt=1.0, title="EMA decay", description="Decay of an exponential moving average of the trained weights, such as 0.999; it is evaluated, saved and exported. 0 is off.")
    max_grad_norm: float = Field(1.0, gt=0.0, le=1000.0, title="Max gradient norm", description="Gradient clipping by global norm.")


class AdapterOptions(Section):
    """Low-rank adapters of the scopes that have them."""

    adapter: AdapterKind = Field("lora", title="Adapter type", description="`lora`; `dora`, which also trains weight magnitudes; `adalora`, which distributes a rank budget over the layers.", json_schema_extra=_FIXED_SHAPES)
    adapter_rank: int = Field(16, ge=0, le=512, title="Adapter rank", description="Rank in the attention layers; with `adalora` the mean final rank. 0 is none.", json_schema_extra=_FIXED_SHAPES)
    adapter_rank_mlp: int | None = Field(None, ge=0, le=512, title="Adapter rank, MLP", description="Rank in the MLP layers; empty is the rank of attention, 0 is none.", json_schema_extra=_FIXED_SHAPES)
    adapter_rank_conditioner: int = Field(0, ge=0, le=512, title="Adapter rank, conditioner", description="IndexTTS2: rank in the last layers of the voice conditioner, which make speaker and emotion; 0 is none, so they act as in the base.", json_schema_extra=_FIXED_SHAPES)
    adapter_rank_heads: int | None = Field(None, ge=0, le=512, title="Adapter rank, heads", description="Rank at the speech head; empty is the rank of attention, 0 is none.", json_schema_extra=_FIXED_SHAPES)
    adapter_scale: float = Field(2.0, gt=0.0, le=64.0, title="Adapter scale", description="Alpha divided by rank.", json_schema_extra=_FIXED_SHAPES)
    adapter_dropout: float = Field(0.1, ge=0.0, le=0.9, title="Adapter dropout", description="Dropout before each adapter.")


class TrainingLossOptions(Section):
    """What a step computes its loss from."""

    text_dropout: float = Field(0.1, ge=0.0, le=0.9, title="Text dropout", description="Share of samples without text, as classifier-free guidance needs.")
    code_dropout: float = Field(0.7, ge=0.0, le=0.9, title="Code dropout", description="Largest share of input codes that are masked in a sample.")
    text_loss_weight: float = Field(0.1, ge=0.0, le=10.0, title="Text loss weight", description="Weight of the next-token loss on text, relative to the speech loss.")
    guided_attention_weight: float = Field(0.1, ge=0.0, le=10.0, title="Guided attention weight", description="Weight of a loss for monotonic text alignment in the alignment heads; families without such heads ignore it.")


class FullOptions(Section):
    """Options of the scope `full` alone: which base weights it trains, and what keeps the base as it is."""

    full_trainable: FullChanges = Field("everything", title="Trainable in full", description="Base weights that scope `full` trains beside the new rows: `everything`; `layers` (layers and heads); `heads` (last norm and speech head); or `adapters` (no base weights, adapters for every language).", json_schema_extra=_OPTIMIZER | _FIXED_GROUPS)
    layer_lr: float = Field(5e-5, gt=0.0, le=1.0, title="Learning rate, layers", description="Peak learning rate of the base's layers and embeddings; scope `full` only.", json_schema_extra=_OPTIMIZER | _FULL_LAYERS | _FIXED_GROUPS)
    head_lr: float = Field(1e-4, gt=0.0, le=1.0, title="Learning rate, heads", description="Peak learning rate of the base's last norm and speech head; scope `full` only.", json_schema_extra=_OPTIMIZER | _FULL_BASE | _FIXED_GROUPS)
    layer_lr_decay: float = Field(1.0, gt=0.0, le=1.0, title="Layer-wise LR decay", description="Learning rate of each base layer relative to the layer above it; 1 is the same for all. Scope `full` only.", json_schema_extra=_OPTIMIZER | _FULL_LAYERS | _FIXED_GROUPS)
    distillation: float = Field(0.0, ge=0.0, le=100.0, title="Distillation weight", description="Weight of the KL divergence from the base model on replayed clips; scope `full` only.", json_schema_extra=_REGULARIZATION)
    l2_sp: float = Field(0.0, ge=0.0, le=1000.0, title="L2-SP weight", description="Weight of the squared distance of trained base weights from their start (L2-SP); scope `full` only.", json_schema_extra=_REGULARIZATION | _FULL_BASE)
    ewc: float = Field(0.0, ge=0.0, le=10_000.0, title="EWC weight", description="Weight of the Fisher-weighted squared distance of trained base weights from their start (EWC); scope `full` only.", json_schema_extra=_REGULARIZATION | _FULL_BASE)
    fisher_clips: int = Field(32, ge=1, le=10_000, title="Fisher clips", description="Number of replayed clips for the Fisher information of EWC.", json_schema_extra=_REGULARIZATION | _FULL_BASE)
    drift_bound: float = Field(0.2, gt=0.0, le=100.0, title="Drift bound", description="Largest allowed rise of a base language's loss since step 0, in nats per code; scope `full` only.", json_schema_extra=_REGULARIZATION | _MAY_CHANGE)
    drift_action: Literal["warn", "stop"] = Field("warn", title="On drift", description="Above the drift bound: `warn`, or `stop` the run.", json_schema_extra=_REGULARIZATION | _MAY_CHANGE)
    replay: float = Field(0.3, ge=0.0, le=0.9, title="Replay ratio", description="Share of base-language clips in each batch; scope `full` only.", json_schema_extra=_DATA | _FIXED_ORDER)
    replay_datasets: TextOrNothing = Field("", title="Replay datasets", description="Datasets in base languages, comma-separated. Empty: the replay texts, else the model's included clips, else speech that the base model synthesizes. Scope `full` only.", json_schema_extra=_DATA)
    replay_texts: AbsolutePath = Field("", title="Replay texts", description="Text file of sentences that the base model synthesizes for replay: language code, tab, sentence per line. Empty: the model's included clips, else built-in sentences. Scope `full` only.", json_schema_extra=_DATA)


class DataOptions(Section):
    """Checks and changes of the clips."""

    mismatch_action: Literal["warn", "stop"] = Field("warn", title="Texts that do not match", description="If the lengths of the texts prove that they belong to other clips, such as those of the next row: `warn`, or `stop` before the training.", json_schema_extra=_MAY_CHANGE)
    augmentation: float = Field(0.0, ge=0.0, le=1.0, title="Augmentation", description="Share of clips per epoch that are replaced by an augmented variant; needs a dataset with variants. 0 is off. Validation is never augmented.")


class CheckpointOptions(Section):
    """Checkpoints: where a run starts, how often it saves, and what it keeps."""

    checkpoint_every: int = Field(200, ge=1, le=1_000_000, title="Checkpoint every (steps)", description="Steps between checkpoints, each with scored samples.", json_schema_extra=_MAY_CHANGE)
    init_from: str = Field("", title="Initialise from run", description="`run:ID` (its best checkpoint) or `run:ID@STEP`: start from its rows and adapters with a new optimizer. Rows are matched by token, so tokenizers may differ. Empty: the extension.")
    keep_last: int = Field(2, ge=1, le=1000, title="Keep last", description="Number of last checkpoints to keep, beside the best and pinned ones; use 2 or more, as the last may be damaged.", json_schema_extra=_MAY_CHANGE)


class TrainingEvaluationOptions(Section):
    """What is measured during a training, how the best checkpoint is selected, and when the run stops early."""

    evaluation_sentences: int = Field(20, ge=0, le=200, title="Evaluation sentences", description="Held-out sentences synthesized and scored at each checkpoint; with fewer than 20 nothing is called learned. 0 selects the best by speech loss.", json_schema_extra=_MAY_CHANGE)
    recogniser: RecogniserOrNothing = Field("", title="Recogniser (ASR)", description="Recogniser that scores the new language: OWNER/NAME on the Hub, such as `facebook/mms-1b-all`, a folder, `built-in`, or `dataset:NAME`. Empty: that of the dataset, else the model's own, if it knows the language. Compare with its scores on original recordings.")
    recogniser_language: RecogniserLanguage = Field("", max_length=40, title="Recogniser language", description="The recogniser's name of the language, such as `amh` for MMS or `amharic` for Whisper. Empty tries the code and common names.")
    evaluation_texts: SentenceFile = Field("", title="Evaluation texts", description="Text file of your own sentences for the checkpoints: language code, tab, sentence per line (and a tab and a category); `categories` is the list that comes with Lisan. Empty: held-out sentences. The run keeps a copy.")
    evaluation_unknown: Literal["leave_out", "refuse"] = Field("leave_out", title="Unknown letters in them", description="Letters of the evaluation texts that the tokenizer lacks: `leave_out` the letters, with a warning that names the sentences, or `refuse` to start.")
    evaluation_metrics: bool = Field(False, title="All evaluation metrics", description="Measure word error, speaker similarity, naturalness, mel-cepstral distance and faults of the samples at each checkpoint, as `evaluate` does; about a second a sentence on a CPU.")
    select_best_by: Literal["auto", "speech_loss", "cer", "wer", "deletions", "similarity", "naturalness", "mcd", "repetition", "missing_stop", "long_silence", "clipping"] = Field("auto", title="Select best checkpoint by", description="`speech_loss` on held-out clips, `cer` (character error rate), or another metric of an evaluation, of synthesized sentences. `auto` is `cer` where a recogniser knows the language, else `speech_loss`.")
    validate_every: int = Field(0, ge=0, le=1_000_000, title="Validate every (steps)", description="Steps between validations without samples; 0 validates at checkpoints only. If the best is selected by loss, a better step is saved at once.")
    validation_disjoint_by: Literal["source", "speaker"] = Field("source", title="Validation split by", description="Exclude held-out clips from validation that share the `source` (recording) or the `speaker` with a training clip.")
    patience: int = Field(0, ge=0, le=1000, title="Early-stopping patience", description="Stop after this many validations without improvement; 0 never stops.")
    min_improvement: float = Field(0.0, ge=0.0, le=10.0, title="Minimum improvement", description="Early stopping ignores smaller improvements. In nats per code, or in the unit of the metric that selects the best checkpoint (for the CER 0.005 is half a point).")


class HardwareOptions(Section):
    """How the steps are computed on this machine."""

    processes: int = Field(1, ge=1, le=64, title="Processes", description="Data-parallel processes on this machine, one per GPU; the effective batch is multiplied by it. For several machines use torchrun and leave this at 1.", json_schema_extra=_FIXED_ORDER)
    sharding: Literal["none", "full"] = Field("none", title="Sharding", description="`none` (DDP): each process holds the whole model. `full` (FSDP): trained weights, gradients and optimizer state are sharded; scope `full` with several processes only. Checkpoints are the same.", json_schema_extra=_MAY_CHANGE)
    precision: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", title="Precision", description="Precision of frozen weights and computation; trained weights are always float32. `auto` is bfloat16 where supported, float16 with loss scaling on older GPUs (compute capability 7.5), else float32.", json_schema_extra=_FIXED_PRECISION)
    activation_checkpointing: Literal["auto", "on", "off"] = Field("auto", title="Activation checkpointing", description="Recompute activations in the backward pass: less memory, same result, about a third more time. `auto` turns it on when memory is short.", json_schema_extra=_MAY_CHANGE)
    compile: Literal["off", "on"] = Field("off", title="torch.compile", description="Compile the layers: some minutes at the start, then faster steps on CUDA.", json_schema_extra=_MAY_CHANGE)


class JobOptions(Section):
    """How the job of a training waits, restarts and logs."""

    tracker: Literal["none", "trackio", "wandb"] = Field("none", title="Experiment tracker", description="Also log to `trackio` or `wandb` (must be installed), beside the run's journal and TensorBoard files.", json_schema_extra=_MAY_CHANGE)
    wait_for_gpu_gib: float = Field(0.0, ge=0.0, le=1000.0, title="Wait for GPU memory (GiB)", description="Wait in the queue until a GPU has this much free memory; later jobs may run first. 0 does not wait. Ignored on a CPU.", json_schema_extra=_MAY_CHANGE)
    wait_for_idle_gpu: bool = Field(False, title="Wait for an idle GPU", description="Wait until no other program uses the GPU.", json_schema_extra=_MAY_CHANGE)
    max_attempts: int = Field(1, ge=1, le=20, title="Max attempts", description="Number of starts: after a crash the run resumes from its last checkpoint. Configuration errors and a stop request are not retried.", json_schema_extra=_MAY_CHANGE)


class TrainOptions(Options):
    """Train the extended model on a dataset."""

    extension: Name = Field("tiny-am", title="Extension", description="Extended model to train.", json_schema_extra=_MADE_LAST | _FIXED_VOCABULARY)
    dataset: Name = Field("amharic-demo", title="Dataset", description="Dataset to train on.", json_schema_extra=_MADE_LAST | _FIXED_ORDER)
    scope: Scope = Field("gated", title="Scope", description="`rows`: new embedding rows only. `gated`: new rows, and adapters active for the new language only. `full`: also base weights, with replay; drift is measured. Base embedding rows are always frozen.", json_schema_extra=_FIXED_GROUPS)
    length: LengthOptions = Field(default_factory=LengthOptions)
    batches: BatchOptions = Field(default_factory=BatchOptions, json_schema_extra=_OPTIMIZER)
    optimization: OptimizationOptions = Field(default_factory=OptimizationOptions, json_schema_extra=_OPTIMIZER)
    adapters: AdapterOptions = Field(default_factory=AdapterOptions, json_schema_extra=_ADAPTERS)
    losses: TrainingLossOptions = Field(default_factory=TrainingLossOptions, json_schema_extra=_REGULARIZATION)
    full: FullOptions = Field(default_factory=FullOptions, json_schema_extra=_FULL)
    data: DataOptions = Field(default_factory=DataOptions, json_schema_extra=_DATA)
    checkpoints: CheckpointOptions = Field(default_factory=CheckpointOptions, json_schema_extra=_CHECKPOINTS)
    evaluation: TrainingEvaluationOptions = Field(default_factory=TrainingEvaluationOptions, json_schema_extra=_CHECKPOINTS)
    hardware: HardwareOptions = Field(default_factory=HardwareOptions, json_schema_extra=_HARDWARE)
    seed: int = Field(0, ge=0, le=_LARGEST, title="Seed", description="Seed of data order, dropout and samples.", json_schema_extra=_HARDWARE | _FIXED_ORDER)
    job: JobOptions = Field(default_factory=JobOptions, json_schema_extra=_HARDWARE)
    device: Device = Field("auto", title="Device", description="`auto` uses CUDA when available.", json_schema_extra=_MAY_CHANGE)


class PreflightOptions(TrainOptions):
    """Check a training on eight clips in about a minute: features, two steps, save, reload, synthesize."""


class SweepOptions(TrainOptions):
    """Train once with each combination of some options, stop the worse runs early, and rank all of them."""

    search: Literal["grid", "learning_rate", "optuna"] = Field("grid", title="Search", description="`grid`: each combination of the values to vary. `learning_rate`: five learning rates around those of the form, with a tenth of the steps each. `optuna` (must be installed) proposes values between the smallest and the largest of each option.", json_schema_extra=_SWEEP)
    vary: str = Field("", max_length=2000, title="Values to vary", description="Options and their values, such as `adapter_lr: 0.001, 0.002; adapter_rank: 8, 16`.", json_schema_extra=_SWEEP)
    trials: int = Field(0, ge=0, le=200, title="Trials", description="Number of runs; 0 is each combination, and 10 for `optuna`.", json_schema_extra=_SWEEP)
    prune: bool = Field(True, title="Stop worse runs early", description="Stop a run if its held-out loss is above the median of the earlier runs at the same step, after a third of its steps and two earlier runs.", json_schema_extra=_SWEEP)


class SamplingOptions(Options):
    """Sampling of speech codes; empty fields take the model's defaults."""

    temperature: float | None = Field(None, ge=0.0, le=2.0, title="Temperature", description="0 is greedy decoding; empty is the model's default (0.2 built-in, 0.8 Chatterbox and IndexTTS2).")
    top_k: int | None = Field(None, ge=0, le=10_000, title="Top-k", description="Sample from this many most probable codes; 0 is off; empty is the model's default (0; 30 for IndexTTS2).")
    top_p: float | None = Field(None, gt=0.0, le=1.0, title="Top-p", description="Nucleus sampling: smallest set of codes with this probability; empty is the model's default (1; 0.8 for IndexTTS2).")
    min_p: float | None = Field(None, ge=0.0, le=1.0, title="Min-p", description="Exclude codes below this share of the highest probability; empty is the model's default (0.05; 0 for IndexTTS2).")
    repetition_penalty: float | None = Field(None, ge=1.0, le=10.0, title="Repetition penalty", description="Above 1, repeated codes become less likely; empty is the model's default (1 built-in, 2 Chatterbox, 1.2 its English model, 10 IndexTTS2).")
    guidance: float | None = Field(None, ge=0.0, le=3.0, title="Guidance scale (CFG)", description="Weight w of classifier-free guidance, cond + w * (cond - uncond); 0 is off and faster; empty is the model's default (0.5; IndexTTS2 has none).")
    seed: int = Field(0, ge=0, le=_LARGEST, title="Seed", description="Same seed, text, voice and device: same audio.")


EMOTIONS = ("happy", "angry", "sad", "afraid", "disgusted", "melancholic", "surprised", "calm")
"""The emotions of IndexTTS2, in its order."""


def _one_emotion(value: str, info: ValidationInfo) -> str:
    """Refuse a clip beside weights."""
    weighted = [name for name in EMOTIONS if info.data.get(name)]
    if value and weighted:
        raise ValueError(f"an emotion is taken from a clip or from weights, not both, and {', '.join(weighted)} has a "
                         "weight: clear the weights or the clip")
    return value


def _sum_of_emotions(value: bool, info: ValidationInfo) -> bool:
    """Refuse weights that are more than the whole."""
    total = sum(info.data.get(name, 0.0) for name in EMOTIONS)
    if not value and total > 1 + 1e-6:
        raise ValueError(f"the weights of the emotions sum to {total:g}, and at most 1 is wanted: lower them, or let "
                         "them be balanced")
    return value


def _one_duration(value: float | None, info: ValidationInfo) -> float | None:
    """Refuse a rate beside a duration."""
    if value and info.data.get("duration_s"):
        raise ValueError("a duration and a speaking rate are given, and one of them is wanted")
    return value


class EmotionOptions(Options):
    """Another emotion than that of the reference recording, for the families with this control (IndexTTS2)."""

    happy: float = Field(0.0, ge=0.0, le=1.0, title="Happy", description="Weight of this emotion; the sum is at most 1, and the rest is the emotion of the reference recording. IndexTTS2 only.")
    angry: float = Field(0.0, ge=0.0, le=1.0, title="Angry", description="As for happy.")
    sad: float = Field(0.0, ge=0.0, le=1.0, title="Sad", description="As for happy.")
    afraid: float = Field(0.0, ge=0.0, le=1.0, title="Afraid", description="As for happy.")
    disgusted: float = Field(0.0, ge=0.0, le=1.0, title="Disgusted", description="As for happy.")
    melancholic: float = Field(0.0, ge=0.0, le=1.0, title="Melancholic", description="As for happy.")
    surprised: float = Field(0.0, ge=0.0, le=1.0, title="Surprised", description="As for happy.")
    calm: float = Field(0.0, ge=0.0, le=1.0, title="Calm", description="As for happy.")
    emotion_balanced: Annotated[bool, AfterValidator(_sum_of_emotions)] = Field(False, validate_default=True, title="Balance the weights", description="Scale the weights as the published page does: some emotions are toned down, and the sum becomes at most 0.8. IndexTTS2 only.")
    emotion_clip: Annotated[AbsolutePath, AfterValidator(_one_emotion)] = Field("", title="Emotion clip", description="Path of a recording whose emotion is taken, of any speaker, in place of weights. IndexTTS2 only.")
    emotion_strength: float = Field(1.0, ge=0.0, le=1.0, title="Emotion strength", description="Strength of the clip or the weights; 0 is the emotion of the reference recording. IndexTTS2 only.")

    @property
    def weights(self) -> tuple[float, ...] | None:
        """Weights in the order of `EMOTIONS`; None if all are 0."""
        weights = tuple(getattr(self, name) for name in EMOTIONS)
        return weights if any(weights) else None


class SoundOptions(Options):
    """How the speech sounds, for the families with these controls; empty fields take the model's defaults."""

    exaggeration: float = Field(0.5, ge=0.0, le=2.0, title="Exaggeration", description="Expressiveness; 0.5 is neutral. Chatterbox only.")
    flow_steps: int | None = Field(None, ge=1, le=100, title="Flow steps", description="Steps of the flow-matching decoder; fewer are faster and coarser, 4 or 5 are usable with Chatterbox; empty is the model's default (10 Chatterbox, 25 IndexTTS2).")
    flow_prompt_s: float | None = Field(None, ge=1.0, le=15.0, title="Timbre prompt (s)", description="Length of the reference recording used for the timbre; shorter is faster and less similar; empty is the model's default and its maximum (10 Chatterbox, 15 IndexTTS2).")
    watermark: bool = Field(True, title="Watermark", description="Add an inaudible watermark (Perth). Chatterbox only.")
    hebrew: Literal["unpointed", "pointed"] = Field("unpointed", title="Hebrew", description="Hebrew as it is written, which is what the published package reads, or `pointed`: with vowel points by dicta-onnx. Chatterbox only.")
    duration_s: float | None = Field(None, ge=0.2, le=36.0, title="Duration (s)", description="Wanted duration of each sentence; empty leaves it to the model. IndexTTS2 only: 2.5 stretches the sound; whether the base model of 2.0 follows it is not proven.")
    speaking_rate: Annotated[float | None, AfterValidator(_one_duration)] = Field(None, ge=1.0, le=50.0, title="Speaking rate (characters/s)", description="Wanted speed, in place of a duration: about 15 characters a second in English, 4 in Chinese; empty leaves it to the model. IndexTTS2 only: 2.5 stretches the sound; whether the base model of 2.0 follows it is not proven.")
    position_scheme: Literal["aligned", "published"] = Field("aligned", title="Code positions", description="Positions of the decoded codes: `aligned` as in training, or one higher as the `published` code decodes. Only the published weights can tell which sounds better. IndexTTS2 only; in 2.5 both have the positions of training.")
    emotion: EmotionOptions = Field(default_factory=EmotionOptions, title="Emotion", description="Another emotion than that of the reference recording.")


class SynthesizeOptions(Options):
    """Synthesize a text."""

    voice_model: str = Field("base:tiny", title="Model", description="`base:NAME`, `run:ID` (its best checkpoint), `run:ID@STEP` or `export:NAME`.")
    text: str = Field("", title="Text", description="Text to synthesize, of any length.")
    file: AbsolutePath = Field("", title="Text file", description="Text file (UTF-8) to synthesize instead: each line becomes a clip.")
    lines: bool = Field(True, title="A clip per line", description="Each line of the text file is a clip; otherwise the file is one long text.")
    archive: AbsolutePath = Field("", title="Archive", description="Also copy the ZIP file of all clips, with a table of them, to this path.")
    language: LanguageCode = Field("en", title="Language", description="Language code of the text.")
    voice: VoiceOrPath = Field("", title="Voice", description="A voice of the model, `speaker:NAME` of the data that it was trained on (`speaker:` alone: who speaks most), or the path of a reference recording; empty is the model's first voice.")
    sampling: SamplingOptions = Field(default_factory=SamplingOptions, title="Sampling", description="Sampling of speech codes.")
    sound: SoundOptions = Field(default_factory=SoundOptions, title="Sound", description="How the speech sounds.")
    precision: SpeakingPrecision = Field("auto", title="Precision", description="Precision of the language model. `auto` is half precision for large models where that is faster (float16 on GPUs of compute capability 7), else float32; `int8` is fastest on a CPU and less accurate.")
    unknown: UnknownCharacters = Field("refuse", title="Unknown characters", description="Characters that the tokenizer lacks: `refuse` the text, `leave_out` the characters, or `unk` to send [UNK] for each, as the published packages do. What is not refused is named in a warning.")
    device: Device = Field("auto", title="Device", description="`auto` uses CUDA when available.")
    engine: EngineName = _ENGINE
    workers: int = _WORKERS
    ray_address: str = _RAY_ADDRESS


class BookOptions(Options):
    """Read a book: an audiobook with chapters (M4B), a file per chapter (MP3), and subtitles (SRT, VTT)."""

    book: AbsolutePath = Field("", title="Book", description="EPUB, HTML, Markdown or plain text (UTF-8).", json_schema_extra={"positional": True})
    voice_model: str = Field("base:tiny", title="Model", description="`base:NAME`, `run:ID` (its best checkpoint), `run:ID@STEP` or `export:NAME`.")
    language: LanguageOrNothing = Field("", title="Language", description="Language code of the book; empty is what the book says.")
    voice: VoiceOrPath = Field("", title="Voice", description="A voice of the model, `speaker:NAME` of the data that it was trained on (`speaker:` alone: who speaks most), or the path of a reference recording; empty is the model's first voice.")
    pronunciations: AbsolutePath = Field("", title="Pronunciation list", description="Text file with a line `word -> spelling` for each word that is to be read differently. A word in lower case stands for any case.")
    rules: NameOrNothing = Field("", title="Number rules", description="Text rules that write out numbers before the model's own; empty takes those that come with the app if the model reads no digits, `none` takes none.")
    m4b: bool = Field(True, title="M4B", description="One file with chapter marks and the cover.")
    mp3: bool = Field(True, title="MP3", description="A file for each chapter.")
    subtitles: Literal["none", "sentences", "words"] = Field("sentences", title="Subtitles", description="SRT and VTT with the times of `sentences`; `words` adds files with the times of words, if a recogniser knows the language.")
    loudness: float = Field(-18.0, ge=-40.0, le=-9.0, title="Loudness (LUFS)", description="Integrated loudness of each chapter.")
    sentence_pause_s: float = Field(0.25, ge=0.0, le=10.0, title="Pause after a sentence (s)", description="Silence within a paragraph.")
    paragraph_pause_s: float = Field(0.6, ge=0.0, le=10.0, title="Pause after a paragraph (s)", description="Silence between paragraphs.")
    heading_pause_s: float = Field(1.2, ge=0.0, le=10.0, title="Pause after a heading (s)", description="Silence after headings, and between scenes.")
    chapter_pause_s: float = Field(2.0, ge=0.0, le=30.0, title="Pause after a chapter (s)", description="Silence at the end of a chapter.")
    retries: int = Field(2, ge=0, le=10, title="Retries", description="How often a sentence that fails the speech-health check is synthesized again, with another seed.")
    output: AbsolutePath = Field("", title="Output folder", description="Also copy the finished files to this folder.")
    sampling: SamplingOptions = Field(default_factory=SamplingOptions, title="Sampling", description="Sampling of speech codes.")
    sound: SoundOptions = Field(default_factory=SoundOptions, title="Sound", description="How the speech sounds.")
    precision: SpeakingPrecision = Field("auto", title="Precision", description="Precision of the language model, as for `synthesize`.")
    unknown: UnknownCharacters = Field("refuse", title="Unknown characters", description="Characters that the tokenizer lacks: `refuse` the book, `leave_out` the characters, or `unk` to send [UNK] for each. What is not refused is named in a warning.")
    device: Device = Field("auto", title="Device", description="`auto` uses CUDA when available.")


class ServeOptions(Options):
    """Serve models over OpenAI's speech API. The key is read from LISAN_SERVE_KEY, or from a file."""

    models: tuple[str, ...] = Field(("base:tiny",), title="Models", description="`export:NAME`, `run:ID` (its best checkpoint), `run:ID@STEP` or `base:NAME`; the first is that of clients that name none.", json_schema_extra={"positional": True})
    host: str = Field("127.0.0.1", title="Address", description="Address to listen on; any but that of this machine alone needs a key.")
    port: int = Field(8020, ge=0, le=65535, title="Port", description="0 chooses a free one.")
    key_file: AbsolutePath = Field("", title="Key file", description="File with the bearer key that clients send, instead of LISAN_SERVE_KEY.")
    allow_host: tuple[str, ...] = Field((), title="Names", description="Other names under which the server is reached, such as that of a proxy.")
    allow_origin: tuple[str, ...] = Field((), title="Origins", description="Web pages that may use the server (CORS), such as https://chat.example.org.")
    voice: VoiceOrPath = Field("", title="Default voice", description="The voice of requests that name none: a voice of the model, `speaker:NAME`, or the path of a reference recording; empty is the model's first voice.")
    language: LanguageOrNothing = Field("", title="Default language", description="Language of requests that name none; empty is the first new language of the model, else English.")
    rows: int = Field(16, ge=1, le=256, title="Sentences at once", description="Sentences that are computed together.")
    max_characters: int = Field(20_000, ge=1, le=10_000_000, title="Longest text", description="Characters of a request.")
    max_requests: int = Field(64, ge=1, le=10_000, title="Most requests", description="Requests that are computed or wait; more are answered with status 429.")
    max_seconds: int = Field(600, ge=1, le=86_400, title="Longest request (s)", description="After this time a request is ended.")
    accept_outcome: bool = Field(False, title="Serve in spite of the outcome", description="Serve a model whose preservation checks failed, whose files are not those of its certificate, or that learned nothing.")
    precision: SpeakingPrecision = Field("auto", title="Precision", description="Precision of the language model, as for `synthesize`.")
    unknown: UnknownCharacters = Field("refuse", title="Unknown characters", description="Characters that the tokenizer lacks: `refuse` the text, `leave_out` the characters, or `unk` to send [UNK] for each.")
    device: Device = Field("auto", title="Device", description="`auto` uses CUDA when available.")


class CompareOptions(Options):
    """Synthesize the same texts with the base and the fine-tuned model, and score both."""

    base: str = Field("base:tiny", title="Base", description="Model on the left.")
    finetuned: str = Field("", title="Fine-tuned", description="Model on the right: `run:ID` or `export:NAME`.")
    texts: tuple[tuple[str, str], ...] = Field((), title="Texts", description="Pairs of language and text; empty uses six held-out sentences of each new language and one of each other.")
    voice: VoiceOrPath = Field("", title="Voice", description="A voice of the model, `speaker:NAME` of the data that it was trained on (`speaker:` alone: who speaks most), or the path of a reference recording; empty is the model's first voice.")
    sampling: SamplingOptions = Field(default_factory=SamplingOptions, title="Sampling", description="Sampling of speech codes.")
    sound: SoundOptions = Field(default_factory=SoundOptions, title="Sound", description="How the speech sounds.")
    precision: SpeakingPrecision = Field("auto", title="Precision", description="Precision of the language model. `auto` is half precision for large models where that is faster (float16 on GPUs of compute capability 7), else float32; `int8` is fastest on a CPU and less accurate.")
    unknown: UnknownCharacters = Field("refuse", title="Unknown characters", description="Characters that the tokenizer lacks: `refuse` the text, `leave_out` the characters, or `unk` to send [UNK] for each, as the published packages do. What is not refused is named in a warning.")
    device: Device = Field("auto", title="Device", description="`auto` uses CUDA when available.")


def _evaluated_models(values: tuple[str, ...]) -> tuple[str, ...]:
    """References that an evaluation takes, each once; folders as absolute paths, as the worker runs in another one."""
    references = []
    for value in (word.strip() for word in values):
        kind, _, name = value.partition(":")
        if kind == "folder" and name:
            value = f"folder:{_absolute(name)}"
        elif value != "recordings" and (kind not in ("base", "run", "export", "codec") or not name):
            raise ValueError(f"{value!r} cannot be evaluated: write base:NAME, base:NAME+romanised, run:ID, run:ID@STEP, "
                             "export:NAME, codec:NAME, folder:PATH or recordings")
        references.append(value)
    return tuple(dict.fromkeys(references))


def _sentence_list(value: str) -> str:
    """`held-out`, `shipped`, or an absolute path."""
    value = value.strip()
    return value if value in ("held-out", "shipped") else _sentence_file(value)


class EvaluateOptions(Options):
    """Measure models on the same sentences, with intervals and paired tests, and write a report."""

    models: Annotated[tuple[str, ...], AfterValidator(_evaluated_models), PathOption("folder:")] = Field((), title="Models", description="What is measured: `base:NAME`, `run:ID` (its best checkpoint), `run:ID@STEP`, `export:NAME`; with `+romanised` a language that the model lacks is read in Latin letters; `recordings`, `codec:NAME` (recordings through a model's codec) and `folder:PATH` (sound files with a .txt of the same name) are references.")
    languages: tuple[LanguageCode, ...] = Field((), title="Languages", description="Language codes; empty is every language that the models speak and that there are sentences of.")
    sentences: Annotated[str, AfterValidator(_sentence_list), PathOption()] = Field("held-out", title="Sentences", description="`held-out` sentences of the dataset (of its test set, if it has one) and the base model; the `shipped` sentences of 23 languages; `categories`: 100 Amharic sentences of eight kinds; or a text file: language code, tab, sentence per line, and perhaps a tab and a category.")
    dataset: NameOrNothing = Field("", title="Dataset", description="Dataset whose held-out clips are sentences and recordings; empty is that of the first run or export.")
    unknown: Literal["leave_out", "refuse"] = Field("leave_out", title="Unknown letters", description="Letters of the sentences that a model lacks: `leave_out` the letters, or the whole sentence is left out (`refuse`). Both are named in a warning.")
    count: int = Field(20, ge=1, le=10_000, title="Sentences per language", description="Spread evenly over the list.")
    voices: Annotated[tuple[VoiceOrPath, ...], PathOption()] = Field((), title="Voices", description="Voices of the models, or paths of reference recordings; each sentence is spoken in each. Empty: in the model's own voice that is most like the recording of the sentence.")
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = Field((0,), title="Seeds", description="Each sentence is spoken with each seed.")
    recogniser: RecogniserOrNothing = Field("", title="Recogniser (ASR)", description="Recogniser that scores the new language: empty is that of the training or the model's own; else OWNER/NAME on the Hub, a folder, or `built-in`.")
    recogniser_language: RecogniserLanguage = Field("", max_length=40, title="Recogniser language", description="The recogniser's name of the language where it is not the code, such as `amh` for MMS.")
    sound: SoundOptions = Field(default_factory=SoundOptions, title="Sound", description="How the speech sounds.")
    precision: SpeakingPrecision = Field("auto", title="Precision", description="Precision of the language model. `auto` is half precision for large models where that is faster (float16 on GPUs of compute capability 7), else float32; `int8` is fastest on a CPU and less accurate.")
    device: Device = Field("auto", title="Device", description="`auto` uses CUDA when available.")
    engine: EngineName = _ENGINE
    workers: int = _WORKERS
    ray_address: str = _RAY_ADDRESS


class ListeningTestOptions(Options):
    """Make a listening test from the clips of an evaluation: one HTML file, and the same on the page."""

    evaluation: NameOrNothing = Field("", title="Evaluation", description="Job of the evaluation whose clips are heard.")
    kind: Literal["rating", "preference", "abx"] = Field("rating", title="Kind", description="`rating` of naturalness and intelligibility, 1 to 5 (ITU-T P.800); `preference` between two models; `abx`: which of two is the third.")
    models: Annotated[tuple[str, ...], AfterValidator(_evaluated_models), PathOption("folder:")] = Field((), title="Models", description="Models of the evaluation that are compared; empty is all. With `recordings` among its models, recordings are the hidden reference, and an anchor is made of them.")
    language: LanguageOrNothing = Field("", title="Language", description="Language of the sentences; empty is the first of the evaluation.")
    count: int = Field(20, ge=1, le=200, title="Sentences per listener", description="A listener hears each sentence once. Rounded down to a multiple of what is compared.")


class CertifyOptions(Options):
    """Compute the certificate of a run or export. With a step or name, `run:ID` refers to that checkpoint from then on."""

    run: str = Field("", title="Run or export", description="`run:ID` (its chosen checkpoint, else the best); `run:ID@STEP` or `run:ID@NAME` chooses that one, `run:ID@best` none. `export:NAME`: from its files and the base model alone.")
    again: bool = Field(False, title="Again", description="Compute it although this workspace has computed it already. A certificate from elsewhere is never used.")
    device: Device = Field("auto", title="Device", description="`auto` uses CUDA when available.")


class ExportOptions(Options):
    """Export a fine-tuned model in its original format, with its certificate."""

    run: str = Field("", title="Run", description="`run:ID` (its chosen checkpoint, else the best) or `run:ID@STEP`.")
    export: Name = Field("tiny-am", title="Export name", description="Name of the export.", json_schema_extra={"shown_default": "that of the extension"})
    override: tuple[str, ...] = Field((), title="Override", description="Names of failed certificate checks to ignore.")
    accept_learning: bool = Field(False, title="Accept the learning outcome", description="Export a model that learned nothing, or says nothing; the card and the certificate say so.")
    unproven: bool = Field(False, title="Before the certificate", description="Do not wait for error rates that are not known yet: tensors, ids and logits are checked, and card and certificate say that the rest is not proven yet.")


class PiperDatasetOptions(Options):
    """Synthesize a dataset in the layout of LJSpeech, filtered by CER, to train a voice for Piper."""

    voice_model: str = Field("", title="Model", description="`export:NAME`, `run:ID` (its best checkpoint), `run:ID@STEP` or `base:NAME`.", json_schema_extra={"positional": True})
    language: LanguageOrNothing = Field("", title="Language", description="Language code of the texts; empty is the first new language of the model, else English.")
    file: AbsolutePath = Field("", title="Text file", description="Text file (UTF-8) with one sentence on each line; empty takes the texts of the dataset that the model was trained on.")
    most: int = Field(0, ge=0, le=1_000_000, title="Most sentences", description="Only so many sentences, from the first on; 0 takes all.")
    max_cer: float = Field(0.1, ge=0, le=1, title="Largest CER", description="A sentence with a larger character error rate is synthesized again, at most twice, and then left out; 1 keeps all, and needs no recogniser.")
    voice: VoiceOrPath = Field("", title="Voice", description="As for `synthesize`; a Piper voice has one speaker.")
    archive: AbsolutePath = Field("", title="Archive", description="Also copy the ZIP file of the dataset to this path.")
    sampling: SamplingOptions = Field(default_factory=SamplingOptions, title="Sampling", description="Sampling of speech codes.")
    sound: SoundOptions = Field(default_factory=SoundOptions, title="Sound", description="How the speech sounds.")
    precision: SpeakingPrecision = Field("auto", title="Precision", description="Precision of the language model, as for `synthesize`.")
    unknown: UnknownCharacters = Field("refuse", title="Unknown characters", description="Characters that the tokenizer lacks: `refuse` leaves the sentence out, `leave_out` the characters, `unk` sends [UNK] for each.")
    device: Device = Field("auto", title="Device", description="`auto` uses CUDA when available.")


class PackOptions(Options):
    """Pack an export or a run into one archive (TAR), with the hash of every file."""

    item: str = Field("", title="Export or run", description="export:NAME or run:ID.", json_schema_extra={"positional": True})
    data: bool = Field(True, title="With data", description="Of a run, pack the extension and the datasets that it needs to resume; without, they are named.")
    model: bool = Field(False, title="With base model", description="Pack the base model too; without, it is named, and downloaded where the archive is imported.")


class UnpackOptions(Options):
    """Import an archive of an export or a run; the hash of every file is checked before anything takes its name."""

    archive: AbsolutePath = Field("", title="Archive", description="The TAR file, as packed by Lisan.", json_schema_extra={"positional": True})
    save_as: NameOrNothing = Field("", title="Name in the workspace", description="Another name for the export; empty is its own. A run keeps its id.")
    signer: str = Field("", max_length=20_000, title="Signed by", description="Import an export only if this maker signed it: a name of the workspace's trusted makers, or a public key of OpenSSH or minisign.")


class PushOptions(Options):
    """Upload an export to a repository on the Hub as one commit. The token is read from HF_TOKEN."""

    export: NameOrNothing = Field("", title="Export", description="Name of the export in the workspace.", json_schema_extra={"positional": True})
    repository: str = Field("", title="Repository", description="OWNER/NAME on the Hub; created if missing.", json_schema_extra={"positional": True})
    public: bool = Field(False, title="Public", description="Make the repository public; the default is private.")


def get_world_size(processes: int) -> int:
    """The number of ranks: torchrun's if it started this process, else `processes`."""
    started = int(os.environ.get("WORLD_SIZE", "1"))
    return started if started > 1 else processes


def check_sharding(options: TrainOptions, processes: int, *, in_float16: bool = False) -> None:
    """Raise `UserError` if a run with these options cannot be sharded, or would not gain from it.

    `in_float16`: whether it computes in float16, also if that was not asked for.
    """
    if options.hardware.sharding == "none":
        return

    # Each reason applies by itself, so that all are reported at once.
    reasons = [
        (options.scope != "full" or options.full.full_trainable == "adapters",
         "rows and adapters are small: only scope `full` that changes the base itself has weights to shard",
         "train with sharding `none`"),
        (processes == 1, "there is only one process", "set `processes` to the number of GPUs"),
        (options.full.ewc > 0, "the importance of the base's weights (ewc) is estimated on full gradients",
         "set ewc to 0; l2_sp pulls back without an estimate"),
        (options.optimization.optimizer == "adamw8bit", "bitsandbytes' optimizer does not know tensors in parts",
         "choose the optimizer `adamw`, whose state is shared out"),
        (options.hardware.compile == "on", "compiled layers were never tried in parts", "set compile to `off`"),
        (options.hardware.precision == "float16" or in_float16,
         "the scaled loss of float16 was never tried in parts", "choose the precision `bfloat16` or `float32`"),
    ]

    faults = [(reason, way) for applies, reason, way in reasons if applies]
    if faults:
        reason, way = ("; ".join(parts) for parts in zip(*faults, strict=True))
        raise UserError(f"This run cannot be sharded: {reason}.", f"{way[0].upper()}{way[1:]}.")
