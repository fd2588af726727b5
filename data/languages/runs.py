"""Digits that belong together although a space or a dash stands between them.

Telephone numbers, groups of three digits after spaces (ISO 80000-1, 7.3.1) and ranges. Rules of
version 1 know none of this.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from data.languages.patterns import NEVER, one_of
from data.languages.saying import LEADING_ZERO, Saying
from data.languages.traced import Traced

# One kind of separator throughout; neither a date nor the end of a number with spaces in it.
_DATE_LIKE = r"\d{1,2}([ \u00a0-])\d{1,2}\1\d{4}(?!\d)"
_TELEPHONE = re.compile(rf"(?<![\w.,:/+-])(?<!\d[ \u00a0])(?!{_DATE_LIKE})"
                        r"(?:\+\d{1,3}|0\d{1,3})(?:([ \u00a0-])\d{2,7}(?:\2\d{2,7}){0,4})(?![\w-]|[.,:/]\d)")
_DIGITS = range(9, 16)  # of a telephone number, with the code of its country (E.164 has at most 15)
# One group after a plain space may be a number of its own; after a space that keeps a line together it is not.
_SPACED = re.compile(r"(?<![\d.,:/+-])[1-9]\d{0,2}(?:(?:[\u00a0\u2009\u202f]\d{3})+|(?: \d{3}){2,})(?![\d:/-])")
_DASH = r"(?:-|\s?[–—]\s?)"
_FAR = 40  # characters that a quantity is at most long


@dataclass(frozen=True)
class Runs(Saying):
    """The steps of one language, before all others that read digits."""

    def runs(self, text: Traced) -> Traced:
        """Each run as one number, and what is said for the dash of a range."""
        text = text.sub(_TELEPHONE, self._telephone, "number")
        text = text.sub(_SPACED, lambda match: re.sub(r"\D", "", match.group()), "number")
        return text.sub(self._dash, self._span, "range")

    def _telephone(self, match: re.Match[str]) -> str | None:
        digits = re.sub(r"\D", "", match.group())
        return self.beside(match, self.digits(digits)) if len(digits) in _DIGITS else None

    @cached_property
    def _dash(self) -> re.Pattern[str]:
        return re.compile(rf"(?<=[\d%٪]){_DASH}(?=[^\w\s]{{0,2}}\d)") if self._link else NEVER

    @property
    def _link(self) -> str:
        """What stands between both ends of a range; empty where a template puts it elsewhere."""
        first, last, template = "{first}", "{last}", self.rules.numbers.range
        between = template.startswith(first) and template.endswith(last)
        return template.removeprefix(first).removesuffix(last) if between else ""

    def _span(self, match: re.Match[str]) -> str | None:
        """The link between two times, two dates, or two numbers of which the first is less."""
        before = match.string[max(0, match.start() - _FAR):match.start()]
        for kind in (self._time, self._date):
            if re.search(rf"(?<![\d.,:/-]){kind}$", before) and re.compile(
                    rf"{kind}(?![\d:/-])").match(match.string, match.end()):
                return self._link
        first = re.search(rf"(?<![\d.,:/-])({self.amount})[%٪]?$", before)
        last = re.compile(rf"{self._sign}?({self.amount})(?![\d:/-]|[.,]\d)").match(match.string, match.end())
        if not first or not last or any(LEADING_ZERO.match(number[1]) for number in (first, last)):
            return None
        return self._link if self.value(first[1]) < self.value(last[1]) else None

    @cached_property
    def _sign(self) -> str:
        return one_of(name for name in self.rules.money.currencies if not name.isalpha())

    @cached_property
    def _time(self) -> str:
        separators = self.rules.clock.separators
        return rf"\d{{1,2}}[{re.escape(separators)}][0-5]\d" if separators else "(?!)"

    @property
    def _date(self) -> str:
        return r"\d{1,2}[./]\d{1,2}[./]\d{4}" if self.rules.dates.order != "keep" else "(?!)"
