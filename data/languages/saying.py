"""Numbers as they are written, said by the speller of a language: what dates, amounts and counts are made of."""

from __future__ import annotations

import re
from dataclasses import dataclass

from config.text_rules import TextRules
from data.languages import patterns
from data.languages.number_words import Speller

LEADING_ZERO = re.compile("0[0-9]")
_LONGEST = 40  # digits; a longer number has no name in any language


@dataclass(frozen=True)
class Saying:
    """How one language says numbers; `rules.numbers.engine` is not `keep`."""

    rules: TextRules
    speller: Speller

    def say(self, written: str) -> str:
        """A number as it is written, with groups and decimals; digit by digit where it has no name.

        Without a word for the decimal sign it stays, so that the tokenizer reports it.
        """
        numbers, point = self.rules.numbers, self.rules.numbers.point or self.speller.point
        plain = written.replace(numbers.thousands, "") if numbers.thousands else written
        whole, *parts = plain.split(numbers.decimal)
        return f" {point} ".join([self.whole(whole), *map(self.digits, parts)]) if point or not parts else written

    def whole(self, digits: str) -> str:
        """A number without decimals."""
        nameless = LEADING_ZERO.match(digits) or len(digits) > _LONGEST
        named = None if nameless else self.speller.cardinal(int(digits))
        return self.digits(digits) if named is None else named

    def digits(self, digits: str) -> str:
        """One digit after another."""
        return " ".join(self.speller.cardinal(int(digit)) or digit for digit in digits)

    def ordinal(self, digits: str) -> str | None:
        """`1st`; None where it has no name."""
        return self.speller.ordinal(int(re.sub(r"\D", "", digits)[:_LONGEST]))

    def beside(self, match: re.Match[str], said: str) -> str:
        """`said` with a space where letters stand beside the match that do not belong to it."""
        before = patterns.letters_before(match.string, match.start())
        after = patterns.letters_after(match.string, match.end())
        numbers = self.rules.numbers
        left = " " if before and before not in numbers.attached_before else ""
        if after in numbers.elided:
            return f"{left}{said.removesuffix(numbers.elided[after])}"
        right = " " if after and after not in numbers.attached_after else ""
        return f"{left}{said}{right}"

    def value(self, written: str) -> float:
        """Of what `amount` matches."""
        numbers = self.rules.numbers
        return float(written.replace(numbers.thousands or " ", "").replace(numbers.decimal, "."))

    @property
    def integer(self) -> str:
        """A pattern of a number without decimals."""
        group = re.escape(self.rules.numbers.thousands)
        return rf"(?:\d{{1,3}}(?:{group}\d{{3}})+(?!\d)|\d+)" if group else r"\d+"

    @property
    def amount(self) -> str:
        """A pattern of a number with decimals, or without."""
        return rf"{self.integer}(?:{re.escape(self.rules.numbers.decimal)}\d+)?"
