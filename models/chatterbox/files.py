"""Which files of a folder are the model: one T3, S3Gen, the voice encoder, and a built-in voice where there is one.

Both formats of the published files are taken: safetensors first, else `.pt`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from config.errors import UserError
from models import weights
from models.base import Voice

MERGED = "t3-merged.safetensors"  # of an export: not the pattern of the others, so that it is never taken for the model
VOICE = "built-in"
_T3 = "t3_*.safetensors"


@dataclass(frozen=True)
class Files:
    """The files of one model."""

    t3: Path
    s3gen: Path
    voice_encoder: Path
    conditionals: Path | None  # the built-in voice

    @property
    def all(self) -> tuple[Path, ...]:
        """Every one that is there."""
        found = (self.t3, self.s3gen, self.voice_encoder, self.conditionals)
        return tuple(path for path in found if path is not None)


def language_model(folder: Path) -> Path:
    """The T3 in `folder`; `UserError` when there is none or there are several."""
    t3 = sorted(folder.glob(_T3))
    if len(t3) != 1:
        what = ", ".join(path.name for path in t3) or "none"
        raise UserError(f"{folder} should hold one T3 checkpoint ({_T3}); there: {what}.",
                        "Keep the one to use in it." if t3 else "Download the model again.")
    return t3[0]


def find(folder: Path) -> Files:
    """The model in `folder`; `UserError` when a part is missing, or when there are several T3."""
    conditionals = folder / "conds.pt"
    return Files(
        language_model(folder), _first(folder, "s3gen.safetensors", "s3gen.pt", "s3gen_v3.safetensors", "s3gen_v3.pt"),
        _first(folder, "ve.safetensors", "ve.pt"), conditionals if conditionals.is_file() else None,
    )


def _first(folder: Path, *names: str) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{folder} lacks {' or '.join(names)}.", "Download the model again.")


def voice(path: Path) -> Voice:
    """The voice in a published `conds.pt`; `UserError` when something of it is missing."""
    held = weights.read_nested(path)
    try:
        language, sound = held["t3"], held["gen"]
        codes, mel = _row(sound["prompt_token"]), _row(sound["prompt_feat"])
        length = min(len(codes), len(mel) // 2)
        return Voice(
            _row(language["speaker_emb"]).astype(np.float32),
            _row(language["cond_prompt_speech_tokens"]).astype(np.int64),
            {"codes": codes[:length].astype(np.int64), "mel": mel[:2 * length].astype(np.float32),
             "speaker": _row(sound["embedding"]).astype(np.float32)},
        )
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{path} is no voice of Chatterbox: {error!r}.",
                        "Delete it, and give a reference recording instead, or download the model again.") from error


def _row(value: torch.Tensor) -> np.ndarray:
    """The only row of (1, ...)."""
    return value[0].detach().cpu().numpy()
