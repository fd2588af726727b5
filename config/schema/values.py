"""Types of options: names, codes, paths, and the base class of all options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from config.languages import code_of

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ELSEWHERE = ("http://", "https://", "hub:", "segments:")
AS_IS = "as-is"
"""The source of a dataset that is there, and is to stay as it stands."""
NO_RULES = "none"
"""Text rules where others would be taken by themselves, and texts are to stay as they stand."""
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
    """An empty dropdown of the page means an empty text."""
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
    return str(Path(value).expanduser().absolute())


def _recording(value: str) -> str:
    """A source of long recordings, which is no dataset."""
    value = value.strip()
    if value in ("", "demo", AS_IS) or value.lower().startswith(("hub:", "hf://", "segments:")):
        given = f"{value!r} is a dataset of clips" if value else "it is empty"
        raise ValueError(f"{given}; give a recording, a film, a folder of them, an archive, or a URL of one of these")
    return _source(value)


def _recogniser(value: str) -> str:
    """`built-in`, OWNER/NAME on the Hub, or an absolute folder, as the worker runs in another one."""
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


_WEIGHTS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")


def _place(value: str) -> str:
    """A name in the workspace, or an absolute path, as the worker runs in another folder."""
    value = value.strip()
    if _NAME.fullmatch(value) and Path(value).suffix not in _WEIGHTS:
        return value
    return _absolute(value)


def _absolute(value: str) -> str:
    return str(Path(value.strip()).expanduser().absolute()) if value.strip() else ""


LanguageCode = Annotated[str, AfterValidator(_language)]
"""A code of a language, in lower case."""

LanguageOrNothing = Annotated[str, AfterValidator(lambda value: _language(value) if value.strip() else "")]
"""A `LanguageCode`, or nothing where none need be known."""

Name = Annotated[str, AfterValidator(_safe_name)]
"""A name that becomes a folder in the workspace."""

NameOrNothing = Annotated[str, BeforeValidator(_text), AfterValidator(_safe_name_or_nothing)]
"""A `Name`, or nothing for one that is made up."""

Source = Annotated[str, AfterValidator(_source)]
"""Where a dataset comes from."""

Recording = Annotated[str, AfterValidator(_recording)]
"""Where long recordings come from."""

SampleRate = Annotated[int, AfterValidator(_rate)]
"""Samples a second, or 0."""

Recogniser = Annotated[str, AfterValidator(_recogniser)]
"""A speech recogniser."""

RecogniserOrNothing = Annotated[str, AfterValidator(_recogniser_or_nothing)]
"""A `Transcriber`, or nothing for the one there is."""

TextOrNothing = Annotated[str, BeforeValidator(_text)]
"""A text; an empty choice of the page is none."""

Place = Annotated[str, AfterValidator(_place)]
"""A name in the workspace, or an absolute path."""

AbsolutePath = Annotated[str, AfterValidator(_absolute)]
"""A path on this machine, or nothing."""

Scope = Literal["rows", "gated", "full"]
AdapterKind = Literal["lora", "dora", "adalora"]
FullChanges = Literal["everything", "layers", "heads", "adapters"]
Initialisation = Literal["random", "mean", "neighbours", "romanised", "factored", "fitted"]
SpeakingPrecision = Literal["auto", "float32", "bfloat16", "int8"]
Device = Literal["auto", "cpu", "cuda"]


class Options(BaseModel):
    """Base of all options: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
