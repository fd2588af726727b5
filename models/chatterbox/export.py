"""Chatterbox's files in an export: T3 under the published names at its new size, and all that speaking needs.

What is not trained is linked where the disk allows it, since it is a gigabyte. A script
shows how the published package loads the files, and what must be set by hand there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

from data.normalisers import DATA_FILES
from models import weights
from models.base import ExportFile
from models.chatterbox import files, published_script
from models.chatterbox.text import TOKENIZERS

LANGUAGE_MODEL = "t3_finetuned.safetensors"
SCRIPT = "load_with_chatterbox.py"
_PURPOSES = {"s3gen": "speech tokenizer, speaker encoder, flow and vocoder, as published",
             "ve": "voice encoder, as published", "conds": "the built-in voice"}


def write(base: Path, folder: Path, tensors: Mapping[str, torch.Tensor],
          merged: Mapping[str, torch.Tensor] | None) -> tuple[ExportFile, ...]:
    """Write the export's model files into `folder`; what they are."""
    weights.write(folder / LANGUAGE_MODEL, tensors)
    written = [ExportFile(LANGUAGE_MODEL, "T3: base rows, then new rows; without adapters")]
    if merged is not None:
        weights.write(folder / files.MERGED, merged)
        written.append(ExportFile(files.MERGED, "T3 with the adapters folded in; it CHANGES the base languages"))
    for path in files.find(base).all[1:]:
        link(path, folder / path.name)
        written.append(ExportFile(path.name, _PURPOSES[path.name.split(".")[0].removesuffix("_v3")]))
    for name in (*TOKENIZERS, *DATA_FILES):
        if (base / name).is_file():
            link(base / name, folder / name)
            written.append(ExportFile(name, "of the base model's text front-end, as published"))
    (folder / SCRIPT).write_text(published_script.TEXT, encoding="utf-8")
    return (*written, ExportFile(SCRIPT, "speaks with these files through the published package chatterbox-tts"))


def link(source: Path, target: Path) -> None:
    """The same file under another name, or a copy where the disk cannot do that."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
