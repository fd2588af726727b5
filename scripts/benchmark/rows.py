"""One measured thing, beside the published package and beside what was aimed at."""

from __future__ import annotations

from dataclasses import dataclass

from scripts.benchmark.timing import Spread


@dataclass(frozen=True)
class Bound:
    """A limit on what was measured itself, on the device that it names."""

    value: float
    device: str = "H100"


@dataclass(frozen=True)
class Row:
    """A speed or a size. `package` is the published package at its defaults, measured in turns with ours.

    `times` is how many times the package's speed was aimed at on a processor; `bound` is a limit in `unit`.
    """

    part: str
    what: str
    unit: str
    ours: Spread
    package: Spread | None = None
    times: float | None = None
    bound: Bound | None = None
    more_is_better: bool = False
    against: str = "published package"  # what `package` is, where it is something else of ours

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the package, by the medians."""
        if self.package is None:
            return None
        ratio = self.package.median / self.ours.median
        return 1 / ratio if self.more_is_better else ratio

    def result(self, device: str) -> str:
        """What came of the aim on the device of this name; empty where there was none."""
        if "cuda" not in device.lower() and self.times is not None:
            return "not measured" if self.ratio is None else _word(self.ratio >= self.times)
        if self.bound is None:
            return ""
        if self.bound.device not in device:
            return "not measured"
        better = self.ours.median >= self.bound.value if self.more_is_better else self.ours.median <= self.bound.value
        return _word(better)


@dataclass(frozen=True)
class Cost:
    """What a faster way costs in accuracy."""

    part: str
    what: str
    value: float
    unit: str
    note: str = ""


@dataclass(frozen=True)
class Found:
    """All of one part."""

    rows: tuple[Row, ...] = ()
    costs: tuple[Cost, ...] = ()


def _word(met: bool) -> str:
    return "met" if met else "MISSED"
