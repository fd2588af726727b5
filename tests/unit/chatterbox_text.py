"""A model folder with the text files of Chatterbox, as they were made up for the comparison with the published code."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

from data.front_end import FrontEnd
from data.languages import chatterbox_normaliser
from data.segmenters import highest_id, vocabulary
from models.chatterbox.front_end import base_front_end

REFERENCE = Path(__file__).parents[1] / "reference"
MADE_UP = REFERENCE / "chatterbox"
TOKENIZER = MADE_UP / "tokenizer.json"
ROWS = highest_id(vocabulary(TOKENIZER.read_bytes(), "tokenizer.json")) + 1
TEXTS = Path(__file__).parents[2] / "scripts" / "dev" / "tiny" / "udhr.jsonl"
MULTILINGUAL = "grapheme_mtl_merged_expanded_v1.json"
TOOLS = (chatterbox_normaliser._segmenter, chatterbox_normaliser._dicta, chatterbox_normaliser._converter,
         chatterbox_normaliser._stresser)


def model_folder(folder: Path) -> Path:
    """The files of a multilingual model that its text needs."""
    shutil.copyfile(TOKENIZER, folder / MULTILINGUAL)
    shutil.copyfile(MADE_UP / chatterbox_normaliser.CODES_FILE, folder / chatterbox_normaliser.CODES_FILE)
    return folder


def multilingual(folder: Path) -> FrontEnd:
    return base_front_end(model_folder(folder), ROWS)


def english_file() -> bytes:
    """The same tokenizer without the tags of the multilingual ones."""
    content = json.loads(TOKENIZER.read_text("utf-8"))
    for code in ("en", "da"):
        content["model"]["vocab"][f"[PLACEHOLDER-{code}]"] = content["model"]["vocab"].pop(f"[{code}]")
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] not in ("[en]", "[da]")]
    return json.dumps(content, ensure_ascii=False).encode()


def paragraphs() -> dict[str, list[str]]:
    """Real text by language."""
    rows = [json.loads(line) for line in TEXTS.read_text("utf-8").splitlines()]
    return {row["language"]: row["paragraphs"] for row in rows}


def forget_tools() -> None:
    """Look for the optional packages anew."""
    for tool in TOOLS:
        tool.cache_clear()


def install_stand_ins(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Stand-ins for the packages whose models come from the network."""
    spec = importlib.util.spec_from_file_location("stand_ins", REFERENCE / "stand_ins.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, stand_in in module.modules().items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    if "pykakasi" in sys.modules and sys.modules["pykakasi"] is None:  # taken away by `remove_packages`
        monkeypatch.delitem(sys.modules, "pykakasi")
    model = folder / "dicta.onnx"
    model.touch()
    monkeypatch.setenv(chatterbox_normaliser.MODEL_VARIABLE, str(model))
    forget_tools()


def remove_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no optional package were installed."""
    for name in ("spacy_pkuseg", "pykakasi", "dicta_onnx", "russian_text_stresser",
                 "russian_text_stresser.text_stresser"):
        monkeypatch.setitem(sys.modules, name, None)
    forget_tools()
