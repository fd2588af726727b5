"""Dates, times and years, written out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from data.languages.patterns import NEVER, abbreviation, one_of
from data.languages.saying import Saying
from data.languages.traced import Traced

_DATE = re.compile(r"(?<![\d./-])(\d{1,4})([./-])(\d{1,2})\2(\d{4}|\d{2})(?![\d/]|[.-]\d)")
_ISO = re.compile(r"(?<![\d-])(\d{4})-(\d{2})-(\d{2})(?![\d-])")
_YEAR = r"(?<![\d.,:/-])(1[1-9]\d\d|2[01]\d\d)(?![\d:/]|[.,]\d)"


@dataclass(frozen=True)
class Calendar(Saying):
    """The steps of one language."""

    def dates(self, text: Traced) -> Traced:
        """Before abbreviations, because the calendar is told by one."""
        if self.rules.dates.order == "keep":
            return text
        text = text.sub(_ISO, self._iso_date, "date")
        return text.sub(_DATE, self._date, "date")

    def clock(self, text: Traced) -> Traced:
        return text.sub(self._clock_pattern, self._time, "time")

    def years(self, text: Traced) -> Traced:
        return text.sub(self._year_pattern, self._year, "year")

    def _date(self, match: re.Match[str]) -> str | None:
        first, _, second, third = match.groups()
        parts = dict(zip(self.rules.dates.order, (first, second, third), strict=True))
        if len(parts["y"]) == 3 or any(len(parts[part]) > 2 for part in "dm"):
            return None
        cue = self._foreign_cue.match(match.string, match.end())
        return self._said_date(match, parts["d"], parts["m"], parts["y"], foreign=cue is not None)

    def _iso_date(self, match: re.Match[str]) -> str | None:
        year, month, day = match.groups()
        return self._said_date(match, day, month, year, foreign=True)

    def _said_date(self, match: re.Match[str], day: str, month: str, year: str, *, foreign: bool) -> str | None:
        dates = self.rules.dates
        months = dates.foreign_months if foreign and dates.foreign_months else dates.months
        if not (1 <= int(month) <= len(months) and 1 <= int(day) <= self._days(months, int(month))):
            return None
        return self.beside(match, dates.format.format(
            day=self.whole(str(int(day))), month=months[int(month) - 1], year=self._said_year(year)))

    def _days(self, months: tuple[str, ...], month: int) -> int:
        """The most that `month` has. A calendar of 13 months has 30 days in each, and at most 6 in the last."""
        if len(months) != 13 or self.rules.version == 1:
            return 31
        return 6 if month == 13 else 30

    @cached_property
    def _foreign_cue(self) -> re.Pattern[str]:
        return _any(self.rules.dates.foreign_cues, r"\s*{}")

    @cached_property
    def _clock_pattern(self) -> re.Pattern[str]:
        clock = self.rules.clock
        if not clock.separators:
            return NEVER
        word = one_of(clock.swallowed)
        separator = f"[{re.escape(clock.separators)}]"
        seconds = rf"(?:{separator}([0-5]\d))?" if clock.seconds else "()"
        time = rf"(?<![\d.,:/])(\d{{1,2}}){separator}([0-5]\d){seconds}(?!\d|[.,:/]\d)"
        return re.compile(rf"(?:(?<!\w){word}\s+)?{time}(?:\s*{word}(?!\w))?")

    def _time(self, match: re.Match[str]) -> str | None:
        clock, hours, minutes = self.rules.clock, int(match[1]), int(match[2])
        if hours > 24:
            return None
        template = clock.whole if minutes == 0 else clock.named.get(minutes, clock.minutes)
        said = template.format(hours=self.whole(str(hours)), minutes=self.whole(str(minutes)))
        if int(match[3] or 0):
            said = clock.seconds.format(time=said, seconds=self.whole(str(int(match[3]))))
        return self.beside(match, said)

    @cached_property
    def _year_pattern(self) -> re.Pattern[str]:
        years = self.rules.numbers.years
        if years.style == "cardinal":
            return NEVER
        after = "|".join(abbreviation(cue) for cue in years.after) or "(?!)"
        before = one_of(years.before)
        return re.compile(rf"((?<!\w){before}\s+)?{_YEAR}(?(1)|(?=\s*(?:{after})))")

    def _year(self, match: re.Match[str]) -> str:
        return (match[1] or "") + self.beside(match, self._said_year(match[2]))

    def _said_year(self, year: str) -> str:
        style, (first, last) = self.rules.numbers.years.style, divmod(int(year), 100)
        if style == "cardinal" or not 11 <= first <= 21 or first == 20:
            return self.whole(str(int(year)) if len(year) == 4 else year)
        words = [self.whole(str(first))]
        grammar = self.rules.numbers.grammar
        if (style == "hundreds" or not last) and grammar:
            words.append(grammar.hundred)
        return " ".join([*words, self.whole(str(last))] if last else words)


def _any(cues: tuple[str, ...], frame: str) -> re.Pattern[str]:
    """A pattern of abbreviations, in the place `{}` of `frame`."""
    return re.compile(frame.format("(?:" + "|".join(abbreviation(cue) for cue in cues) + ")")) if cues else NEVER
