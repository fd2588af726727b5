"""Cached features: one safetensors file a recording, in a folder named for the extractor.

The key is the hash of the audio's bytes, so a changed file has no stale features. Files are
written aside and renamed: what is there is whole.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from config.errors import UserError


@dataclass(frozen=True)
class FeatureCache:
    """Arrays by name for each recording; `fingerprint` is the extractor's."""

    root: Path
    fingerprint: str

    def path(self, sha256: str) -> Path:
        return self.root / self.fingerprint / f"{sha256}.safetensors"

    def has(self, sha256: str) -> bool:
        return self.path(sha256).is_file()

    def load(self, sha256: str) -> dict[str, np.ndarray]:
        """The arrays of a recording; raises `UserError` when they are missing or damaged."""
        path = self.path(sha256)
        try:
            return load_file(str(path))
        except FileNotFoundError as error:
            raise UserError(f"The recording {sha256[:12]} has no features.", "Prepare the dataset again.") from error
        except (SafetensorError, OSError) as error:
            raise UserError(
                f"{path} is damaged ({path.stat().st_size} bytes): {error}.", "Delete it and prepare the dataset again."
            ) from error

    def save(self, sha256: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep the arrays of a recording."""
        path = self.path(sha256)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, str(aside))
            os.replace(aside, path)
        except (OSError, SafetensorError) as error:
            aside.unlink(missing_ok=True)
            raise UserError(
                f"Features could not be written to {path.parent}: {error}.",
                "Free space on the disk, then prepare again: what is cached is kept.",
            ) from error
