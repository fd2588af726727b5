"""Whether a model can reproduce a voice: recordings through its codec and vocoder, which is the best it can ever sound.

`python -m scripts.dev.same_voice FOLDER` measures what the limit of the similarity separates: on 12 readers (Hausa,
Swahili, Mbosi, Twi, Griko, Ibibio, Spanish, French, Italian, Russian) a person's own clips have a median of 0.86 and
97.5% of the comparisons are above it, another person's 0.56 and 97.8% below. Never loads torch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from config.errors import UserError
from core.jobs.events import Result
from core.library.catalog import CATALOG, find_entry

# Between the similarity of a speaker to himself and that of two people.
LEAST_SIMILARITY = 0.7


class Reproduction(StrEnum):
    """What a model's codec and vocoder leave of a voice."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not_reproduced"
    NOT_MEASURED = "not_measured"


@dataclass(frozen=True)
class ReproductionMeasurements:
    """Medians over clips of one speaker. Similarity: cosine with his other recordings; naturalness: 1 to 5."""

    model: str  # name of the base model
    family: str
    clips: int
    similarity: float  # similarity of the resynthesized clips
    recordings_similarity: float
    naturalness: float
    recordings_naturalness: float

    @classmethod
    def from_clips(cls, model: str, family: str, similarity: Sequence[float], recordings_similarity: Sequence[float],
                   naturalness: Sequence[float], recordings_naturalness: Sequence[float]) -> ReproductionMeasurements:
        """The medians of the values of each clip, rounded."""
        medians = [round(statistics.median(values), 3) if values else math.nan for values in (
            similarity, recordings_similarity, naturalness, recordings_naturalness)]
        return cls(model, family, len(naturalness), *medians)

    @classmethod
    def from_result(cls, result: Mapping[str, object] | None) -> ReproductionMeasurements | None:
        """What a job stored; None where a value is missing."""
        values = result or {}
        try:
            return cls(str(values["model"]), str(values["family"]), int(str(values["clips"])), *(
                float(str(values[name])) for name in ("similarity", "recordings_similarity", "naturalness",
                                                      "recordings_naturalness")))
        except (KeyError, ValueError):
            return None

    @property
    def reproduction(self) -> Reproduction:
        """Not measured where the recordings themselves are not like each other: they are of several people."""
        if not self.recordings_similarity >= LEAST_SIMILARITY or not math.isfinite(self.similarity):
            return Reproduction.NOT_MEASURED
        return Reproduction.REPRODUCED if self.similarity >= LEAST_SIMILARITY else Reproduction.NOT_REPRODUCED

    def to_result(self) -> Result:
        values: Result = {name: None if isinstance(value, float) and math.isnan(value) else value
                          for name, value in vars(self).items()}
        return {**values, "reproduction": self.reproduction.value}

    @property
    def headline(self) -> str:
        """The outcome, a sentence."""
        match self.reproduction:
            case Reproduction.REPRODUCED:
                return f"{_title(self.family)} can reproduce this voice."
            case Reproduction.NOT_REPRODUCED:
                return f"{_title(self.family)} cannot reproduce this voice."
            case _:
                return "Whether the model can reproduce this voice was not measured."

    @property
    def values(self) -> str:
        """The numbers behind it, a sentence."""
        measure = ("The clips are not like each other, as of several people or with much noise: speaker similarity"
                   if self.reproduction is Reproduction.NOT_MEASURED else "Speaker similarity")
        return (f"{measure} {self.similarity:.2f}, of the recordings themselves "
                f"{self.recordings_similarity:.2f} ({LEAST_SIMILARITY:.2f} is the same person); naturalness "
                f"{self.naturalness:.1f} of 5, of the recordings {self.recordings_naturalness:.1f}.")

    def describe(self) -> str:
        """The outcome with its numbers."""
        return f"{self.headline} {self.values}"

    def advise(self) -> str:
        """What to do about it; empty where nothing must be done."""
        if self.reproduction is not Reproduction.NOT_REPRODUCED:
            return ""
        titles = [entry.title for entry in CATALOG if entry.clones_voices and entry.name != self.family]
        return ("A training teaches it the language, in a voice that is not this one. For this voice choose "
                f"{' or '.join(titles)}, which {'were' if len(titles) > 1 else 'was'} made to speak in any voice and "
                f"{'need' if len(titles) > 1 else 'needs'} a GPU to train; or go on with it as a trial.")


def _title(family: str) -> str:
    try:
        return find_entry(family).title
    except UserError:
        return family
