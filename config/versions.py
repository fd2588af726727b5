"""The versions of Python and torch that Lisan runs with, and conflicts among installed packages.

Standard library only, besides `packaging`, which pip brings too: the installer reads this module.

`docs/lightning.md` says what was tried with each torch.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class PackageConflict:
    """An installed package whose requirement another installed package does not fulfil."""

    package: str
    version: str
    requirement: str
    other_version: str  # The required package's; empty if it is not installed
    needed: bool  # whether Lisan requires the package, directly or through others

    def __str__(self) -> str:
        seen = f"which is {self.other_version}" if self.other_version else "which is not installed"
        return f"{self.package} {self.version} requires {self.requirement}, {seen}"


def find_conflicts(pins: Iterable[str], distributions: Iterable[importlib.metadata.Distribution] | None = None
                   ) -> list[PackageConflict]:
    """Conflicts among all installed packages, first those that `pins`, names of packages, require.

    Packages that a platform brings were not chosen by pip together with the pinned ones, so each of them is checked.
    """
    try:
        from packaging import requirements as packaging
    except ImportError:
        from pip._vendor.packaging import requirements as packaging  # type: ignore[no-redef]

    # The first of a name on the path is the one that is imported.
    listed_distributions = importlib.metadata.distributions() if distributions is None else distributions
    installed: dict[str, importlib.metadata.Distribution] = {}
    for distribution in listed_distributions:
        installed.setdefault(canonical_name(distribution.metadata["Name"] or ""), distribution)

    # A requirement with a marker of another system, or of an extra, does not count.
    requirements: dict[str, list[Any]] = {}
    for name, distribution in installed.items():
        requirements[name] = []
        for line in distribution.requires or ():
            try:
                requirement = packaging.Requirement(line)
            except packaging.InvalidRequirement:  # An old package's, which pip reads no better
                continue
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                requirements[name].append(requirement)

    required_names = {}
    for name, listed in requirements.items():
        required_names[name] = [canonical_name(requirement.name) for requirement in listed]
    needed = _reachable(map(canonical_name, pins), required_names)

    conflicts = []
    for name, listed in requirements.items():
        for requirement in listed:
            other = installed.get(canonical_name(requirement.name))
            if other is None or not _allows(requirement.specifier, other.version):
                conflicts.append(PackageConflict(name, installed[name].version,
                                                 f"{requirement.name}{requirement.specifier}",
                                                 str(other.version) if other else "", name in needed))
    return sorted(conflicts, key=lambda conflict: (not conflict.needed, conflict.package, conflict.requirement))


def _allows(specifier: Any, version: str | None) -> bool:
    """Whether the requirement allows this version; one that cannot be read, or is missing, is allowed nowhere."""
    try:
        return bool(specifier.contains(version, prereleases=True))
    except (ValueError, TypeError):  # InvalidVersion of packaging is a ValueError
        return not str(specifier)


def canonical_name(package: str) -> str:
    """The name of a package as pip compares it."""
    return re.sub(r"[-_.]+", "-", package).lower()


def _reachable(names: Iterable[str], requires: Mapping[str, Iterable[str]]) -> set[str]:
    """These packages and what they require, directly or through others."""
    reached: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += requires.get(name, ())
    return reached
