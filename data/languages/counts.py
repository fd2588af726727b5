"""Ordinals, ranges, fractions and numbers, written out.

Each step is a pattern and a template of the rules. What a template cannot say is left to the
steps after it, the last of which reads digit by digit; so no number is lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from data.languages import patterns
from data.languages.patterns import NEVER, one_of
from data.languages.saying import LEADING_ZERO, Saying
from data.languages.traced import Traced


@dataclass(frozen=True)
class Counts(Saying):
    """The steps of one language."""

    def numbers(self, text: Traced) -> Traced:
        """Everything with digits that is left."""
        text = text.sub(self._ordinal_pattern, self._ordinal, "ordinal")
        text = text.sub(self._range_pattern, self._range, "range")
        text = text.sub(self._fraction_pattern, self._fraction, "fraction")
        return text.sub(self._number_pattern, self._number, "number")

    @cached_property
    def _ordinal_pattern(self) -> re.Pattern[str]:
        markers = one_of(self.rules.numbers.ordinals.markers)
        return re.compile(rf"(?<![\d.,])({self.integer})-?{markers}")

    def _ordinal(self, match: re.Match[str]) -> str | None:
        said = self.ordinal(match[1])
        before = patterns.letters_before(match.string, match.start())
        space = " " if before and before not in self.rules.numbers.attached_before else ""
        return None if said is None else space + said

    @cached_property
    def _range_pattern(self) -> re.Pattern[str]:
        if not self.rules.numbers.range:
            return NEVER
        number = rf"({self.amount})"
        return re.compile(rf"(?<![\d.,/-]){number}(?:-|\s?[–—]\s?){number}(?![\d/-])")

    def _range(self, match: re.Match[str]) -> str | None:
        if any(LEADING_ZERO.match(number) for number in match.groups()):
            return None  # a telephone number
        if self.value(match[1]) >= self.value(match[2]):
            return self.beside(match, f"{self.say(match[1])} {self.say(match[2])}")
        return self.beside(match, self.rules.numbers.range.format(first=self.say(match[1]), last=self.say(match[2])))

    @cached_property
    def _fraction_pattern(self) -> re.Pattern[str]:
        plain = bool(self.rules.numbers.fraction or self.rules.numbers.fractions)
        return re.compile(r"(?<![\d.,/-])([1-9]\d?)/([1-9]\d?)(?![\d/]|[.,]\d)") if plain else NEVER

    def _fraction(self, match: re.Match[str]) -> str | None:
        numbers = self.rules.numbers
        if match.group() in numbers.fractions:
            return self.beside(match, numbers.fractions[match.group()])
        numerator, denominator = int(match[1]), int(match[2])
        ordinal = self.speller.ordinal(denominator)
        if not numbers.fraction or numerator >= denominator or ordinal is None:
            return None
        return self.beside(match, numbers.fraction.format(numerator=self.whole(match[1]), ordinal=ordinal))

    @cached_property
    def _number_pattern(self) -> re.Pattern[str]:
        decimals = rf"(?:{re.escape(self.rules.numbers.decimal)}\d+)*"
        return re.compile(rf"(?<![\w.,:/+-])[+\u2212-](?=\d)|{self.integer}{decimals}")

    def _number(self, match: re.Match[str]) -> str:
        numbers, written = self.rules.numbers, match.group()
        if not written[0].isdigit():
            return f"{numbers.plus if written == '+' else numbers.minus} "
        if match.string[match.start() - 1:match.start()] == "+":
            return self.beside(match, self.digits(re.sub(r"\D", "", written)))  # an international telephone number
        return self.beside(match, self.say(written))
