"""How a front-end stands on disk: `front_end.json` with what it knows, beside the files that it names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from config.errors import UserError
from config.rules_file import parse
from data import normalise as normalisers
from data.bpe import vocabulary
from data.entries import BASE_FILE, Language, language_from_json

SETTINGS_FILE = "front_end.json"
AGAIN = "Get the model or make the tokenizer again."
_DATA = normalisers.DATA_FILES


@dataclass(frozen=True)
class Stored:
    """What was read. `size`: how many ids the front-end must have with these files."""

    by_code: dict[str, Language]
    files: dict[str, bytes]
    prefix_size: int
    style: normalisers.Style
    size: int


def read(folder: Path) -> Stored:
    """What `write` wrote; a missing or damaged file raises `UserError` naming it."""
    try:
        settings = json.loads((folder / SETTINGS_FILE).read_text("utf-8"))
        by_code = {code: language_from_json(code, entry) for code, entry in settings["languages"].items()}
        names = sorted({entry.file for entry in by_code.values()} | {BASE_FILE})
        data = [_DATA[_DATA.index(name)] for name in settings.get("data", ())]  # none but these
        rules = [entry.rules for entry in by_code.values() if entry.rules]
        files = {name: (folder / name).read_bytes() for name in (*names, *data, *rules)}
        for name in names:
            vocabulary(files[name], str(folder / name))
        for name in rules:
            parse(files[name], str(folder / name))
        style = normalisers.style(settings.get("style", "words"))
        return Stored(by_code, files, int(settings["prefix_size"]), style, int(settings["size"]))
    except FileNotFoundError as error:
        raise UserError(f"The front-end in {folder} lacks {Path(error.filename).name}.", AGAIN) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / SETTINGS_FILE} is damaged: {error!r}.", AGAIN) from error


def write(folder: Path, files: Mapping[str, bytes], settings: bytes) -> None:
    """The settings, and beside them one file a tokenizer, those of rules, and those that normalisers need."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / SETTINGS_FILE).write_bytes(settings)
