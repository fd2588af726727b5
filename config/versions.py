"""The versions of Python and torch that Lisan runs with. Standard library only: the installer reads it too.

`docs/lightning.md` says what was tried with each torch.
"""

from __future__ import annotations

import re

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH, NEWEST_TORCH = (2, 8), (2, 11)
"""Minor versions: one of them that is installed already is kept, with the torchaudio of the same version."""


def public_version(version: str) -> str:
    """`version` without what follows its plus sign: `2.8.0+cu128` is built from 2.8.0."""
    return version.partition("+")[0]


def torch_fits(version: str) -> bool:
    """Whether Lisan was tried with this torch."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and OLDEST_TORCH <= (int(numbers[1]), int(numbers[2])) <= NEWEST_TORCH
