"""Amounts of money, percent and units, written out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from config.text_rules import Currency
from data.languages import patterns
from data.languages.patterns import NEVER, one_of
from data.languages.saying import Saying
from data.languages.traced import Traced


@dataclass(frozen=True)
class Amounts(Saying):
    """The steps of one language."""

    def amounts(self, text: Traced) -> Traced:
        """Money, percent, units."""
        text = text.sub(self._money_pattern, self._money, "currency")
        text = text.sub(self._percent_pattern, self._percent, "percent")
        return text.sub(self._unit_pattern, self._unit, "unit")

    @cached_property
    def _money_pattern(self) -> re.Pattern[str]:
        if not self.rules.money.currencies:
            return NEVER
        sign = "|".join(_edged(name) for name in sorted(self.rules.money.currencies, key=len, reverse=True))
        grammar = self.rules.numbers.grammar
        scale = one_of(grammar.scales if grammar else ())
        amount = rf"({self.amount})(?:\s*({scale})(?!\w))?"
        if self.rules.version == 1:
            return re.compile(rf"(?:({sign})\s?{amount}|(?<![\d.,]){amount}\s?({sign}))")
        codes = one_of(name for name in self.rules.money.currencies if not name.isalpha() or name.isupper())
        # In `2016 $20` and, after a year, `2012 ETB 500` it is of what follows; in `10 USD 20 EUR` it is not.
        of_next = rf"(?!{codes}\d)(?!(?<=(?<!\d)(?:19|20)\d\d\s){codes}\s\d)"
        return re.compile(rf"(?:({sign})\s?{amount}|(?<![\d.,]){amount}\s?{of_next}({sign}))")

    def _money(self, match: re.Match[str]) -> str | None:
        before, amount, scale, amount_after, scale_after, after = match.groups()
        money = self.rules.money
        currency = money.currencies[before or after]
        written, times = amount or amount_after, scale or scale_after
        if times:
            return self.beside(match, money.whole.format(amount=f"{self.say(written)} {times}", name=currency.name))
        return self.beside(match, self._said_money(written, currency))

    def _said_money(self, written: str, currency: Currency) -> str:
        money, decimal = self.rules.money, self.rules.numbers.decimal
        whole, _, cents = written.partition(decimal)
        if currency.cent and len(cents) == 2 and cents.isdigit():
            if int(cents) == 0:
                return money.whole.format(amount=self.say(whole), name=currency.name)
            return money.with_cents.format(amount=self.say(whole), name=currency.name,
                                           cents=self.whole(str(int(cents))), cent=currency.cent)
        return money.whole.format(amount=self.say(written), name=currency.name)

    @cached_property
    def _percent_pattern(self) -> re.Pattern[str]:
        return re.compile(rf"(?<![\d.,])({self.amount})\s?[%٪]") if self.rules.percent else NEVER

    def _percent(self, match: re.Match[str]) -> str:
        return self.beside(match, self.rules.percent.format(number=self.say(match[1])))

    @cached_property
    def _unit_pattern(self) -> re.Pattern[str]:
        names = "|".join(_edged(name) for name in sorted(self.rules.units, key=len, reverse=True))
        return re.compile(rf"(?<![\d.,])({self.amount})[ \u00a0]?({names})") if names else NEVER

    def _unit(self, match: re.Match[str]) -> str:
        return self.beside(match, f"{self.say(match[1])} {self.rules.units[match[2]]}")


def _edged(name: str) -> str:
    """A sign, or a word with its edges."""
    before = r"(?<![^\W\d_])" if name[0].isalpha() else ""
    after = rf"(?![^\W\d_]|[{patterns.MARKS}])" if name[-1].isalpha() else ""
    return before + re.escape(name) + after
