"""Everything with digits, written out: the steps of one language together."""

from __future__ import annotations

from dataclasses import dataclass

from config.text_rules import TextRules
from data.languages.amounts import Amounts
from data.languages.calendar_words import Calendar
from data.languages.counts import Counts
from data.languages.number_words import Speller
from data.languages.runs import Runs
from data.languages.traced import Traced


@dataclass(frozen=True)
class Quantities:
    """What is read before abbreviations and after them. `rules.numbers.engine` is not `keep`."""

    version: int
    runs: Runs
    calendar: Calendar
    amounts: Amounts
    counts: Counts

    @classmethod
    def of(cls, rules: TextRules, speller: Speller) -> Quantities:
        return cls(rules.version, Runs(rules, speller), Calendar(rules, speller), Amounts(rules, speller),
                   Counts(rules, speller))

    def dated(self, text: Traced) -> Traced:
        """Runs of digits (not in rules of version 1), dates, times and years."""
        text = self.runs.runs(text) if self.version > 1 else text
        return self.calendar.years(self.calendar.clock(self.calendar.dates(text)))

    def counted(self, text: Traced) -> Traced:
        """Money, percent and units, then every number that is left."""
        return self.counts.numbers(self.amounts.amounts(text))
