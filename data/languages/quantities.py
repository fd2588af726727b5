"""Everything with digits, written out: the steps of one language together."""

from __future__ import annotations

from dataclasses import dataclass

from data.languages.amounts import Amounts
from data.languages.calendar_words import Calendar
from data.languages.counts import Counts
from data.languages.runs import Runs


@dataclass(frozen=True)
class Quantities(Runs, Calendar, Amounts, Counts):
    """Runs of digits; dates, times and years; amounts; numbers. `rules.numbers.engine` is not `keep`."""
