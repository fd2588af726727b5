"""The model doctor's findings in a checkpoint, as `diagnosis.json` holds them. Never loads torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from config import loading
from data.durable_files import write_json

DIAGNOSIS = "diagnosis.json"
OLD_ROWS, NEW_ROWS, UNUSED = "old rows", "new rows", "unused"  # parts of a table with one row a text id, or of none
State = Literal["equal", "rounded", "shrunk", "low rank", "trained", "permuted", "transposed", "replaced", "noise",
                "broken", "misshapen", "missing", "extra", "untrained", "new"]
"""How a tensor, or its old or new rows, differs from the base; `untrained` are new rows that are alike, `noise` are old
rows of which none resembles one of the base."""
Level = Literal["good", "changed", "bad"]
Languages = Literal["kept", "rounded", "changed", "lost"]
"""Whether the base languages still work: unchanged, changed by rounding alone, changed (the measured drift says by how
much), no."""


@dataclass(frozen=True)
class TensorFinding:
    """One tensor. `change` is the length of the difference over that of the base tensor; so are moves of rows."""

    name: str
    # Part of the model, such as "layers"; "old rows" and "new rows" of a table with one row a text id.
    part: str
    state: State
    words: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    change: float = 0.0
    rows: int = 0
    rows_moved: int = 0  # rows that moved more than their rounding
    largest: float = 0.0  # move of a row
    median: float = 0.0  # move of those that moved
    rank: int | None = None  # rank of the difference if it is low
    rows_behind: int = 0  # old rows that stand among the new ones
    distinct: int | None = None  # new rows that have a piece and can be told apart

    @property
    def touched(self) -> bool:
        """Whether its values differ from the base by more than rounding."""
        return self.state not in ("equal", "rounded", "new", "untrained", "extra")


@dataclass(frozen=True)
class TokenizerFit:
    """A tokenizer beside the rows and the tokenizer of the base."""

    path: str
    size: int  # highest id and one
    rows: int  # rows of the checkpoint's text embedding
    base_size: int  # text rows of the base
    spare: int  # rows that no piece has
    moved: tuple[tuple[str, int, int], ...]  # base pieces with another id: piece, id before, id now (the first few)
    moved_count: int
    lost: tuple[str, ...]  # base pieces that are gone (the first few)
    lost_count: int
    following: int  # moved pieces whose row moved with them
    trespassing: tuple[tuple[str, int], ...]  # new pieces on rows of the base (the first few)
    trespassing_count: int
    added: int  # pieces on rows after the base's
    beyond: int  # pieces whose id has no row

    @property
    def base_ids_unchanged(self) -> bool:
        """Whether every base piece has the id it had."""
        return not (self.moved_count or self.lost_count)

    @property
    def rows_follow(self) -> bool:
        """Whether the rows were moved with the pieces, so that each piece still reads its own."""
        return self.moved_count > 0 and self.following == self.moved_count and not self.lost_count

    @property
    def fits(self) -> bool:
        """Whether each piece has a row, and each base piece its own."""
        in_place = self.base_ids_unchanged and not self.trespassing_count
        return not self.beyond and (in_place or self.rows_follow)


@dataclass(frozen=True)
class LanguageDrift:
    """The samples of one base language through both models; see `ProbeDrift`."""

    language: str
    samples: int
    agreement: float
    divergence: float


@dataclass(frozen=True)
class ProbeDrift:
    """Teacher-forced base-language samples through both models."""

    samples: int
    equal: int  # whose logits are bit-identical
    agreement: float  # share of codes whose likeliest is the same
    divergence: float  # mean Kullback-Leibler divergence, nats a code
    languages: tuple[str, ...]
    by_language: tuple[LanguageDrift, ...] = ()


@dataclass(frozen=True)
class Assessment:
    """What the findings mean, in words."""

    level: Level
    headline: str
    base_languages: Languages
    sentences: tuple[str, ...]
    advice: str
    restorable: bool  # rows alone were damaged, and there are new ones to keep


@dataclass(frozen=True)
class Diagnosis:
    """Everything that the doctor found."""

    base: str
    checkpoint: str
    family: str
    prefix: str  # before every name in the checkpoint
    dtypes: tuple[str, ...]
    findings: tuple[TensorFinding, ...]  # the worst first
    tokenizer: TokenizerFit | None
    drift: ProbeDrift | None
    assessment: Assessment


def write(folder: Path, diagnosis: Diagnosis) -> None:
    """Write `diagnosis.json` into `folder`."""
    write_json(folder / DIAGNOSIS, dataclasses.asdict(diagnosis))


def read(folder: Path) -> Diagnosis:
    """What `write` wrote; `UserError` when there is none, or it is damaged."""
    return loading.read_record(folder / DIAGNOSIS, Diagnosis, "Examine the model again.")
