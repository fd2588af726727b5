"""Hebrew: vowel points, by `dicta-onnx` and the Dicta model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from data.languages.packages import missing_model, missing_package

MODEL_VARIABLE = "DICTA_MODEL"
_DEFAULT = "~/.cache/dicta/dicta-1.0.onnx"
_SOURCE = "https://github.com/thewh1teagle/dicta-onnx/releases/tag/model-files-v1.0"


def diacritics(text: str, files: Mapping[str, bytes]) -> str:
    """`text` (NFKD) with the points that the model hears; points that were there are set anew."""
    return str(_dicta().add_diacritics(text))


@cache
def _dicta() -> Any:
    try:
        from dicta_onnx import Dicta
    except ImportError as error:
        raise missing_package("Hebrew", "dicta-onnx", "dicta-onnx==1.0.9") from error
    path = Path(os.environ.get(MODEL_VARIABLE) or _DEFAULT).expanduser()
    hint = f"Download dicta-1.0.onnx from {_SOURCE} to {path}, or give its place in {MODEL_VARIABLE}."
    if not path.is_file():
        raise missing_model("Hebrew", "dicta-onnx", f"there is no file {path}", hint)
    try:
        return Dicta(str(path))
    except (OSError, ValueError, RuntimeError) as error:
        hint += " Its letters (dicta-il/dictabert-large-char-menaked) come from the Hugging Face hub at the first use."
        raise missing_model("Hebrew", "dicta-onnx", error, hint) from error
