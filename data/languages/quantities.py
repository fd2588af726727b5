"""Dates, times, years, amounts, ordinals, ranges, fractions and numbers, written out.

Each step is a pattern and a template of the rules. What a template cannot say is left to the
steps after it, the last of which reads digit by digit; so no number is lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from config.text_rules import Currency, TextRules
from data.languages import patterns
from data.languages.number_words import Speller
from data.languages.patterns import NEVER, abbreviation, one_of
from data.languages.traced import Traced

_DATE = re.compile(r"(?<![\d./-])(\d{1,4})([./-])(\d{1,2})\2(\d{4}|\d{2})(?![\d/]|[.-]\d)")
_ISO = re.compile(r"(?<![\d-])(\d{4})-(\d{2})-(\d{2})(?![\d-])")
_YEAR = r"(?<![\d.,:/-])(1[1-9]\d\d|2[01]\d\d)(?![\d:/]|[.,]\d)"
_LONGEST = 40  # digits; a longer number has no name in any language
_LEADING_ZERO = re.compile("0[0-9]")


@dataclass(frozen=True)
class Quantities:
    """The steps of one language; `rules.numbers.engine` is not `keep`."""

    rules: TextRules
    speller: Speller

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

    def amounts(self, text: Traced) -> Traced:
        """Money, percent, units."""
        text = text.sub(self._money_pattern, self._money, "currency")
        text = text.sub(self._percent_pattern, self._percent, "percent")
        return text.sub(self._unit_pattern, self._unit, "unit")

    def numbers(self, text: Traced) -> Traced:
        """Everything with digits that is left."""
        text = text.sub(self._ordinal_pattern, self._ordinal, "ordinal")
        text = text.sub(self._range_pattern, self._range, "range")
        text = text.sub(self._fraction_pattern, self._fraction, "fraction")
        return text.sub(self._number_pattern, self._number, "number")

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
        nameless = _LEADING_ZERO.match(digits) or len(digits) > _LONGEST
        named = None if nameless else self.speller.cardinal(int(digits))
        return self.digits(digits) if named is None else named

    def digits(self, digits: str) -> str:
        """One digit after another."""
        return " ".join(self.speller.cardinal(int(digit)) or digit for digit in digits)

    def _sub(self, match: re.Match[str], said: str) -> str:
        """`said` with a space where letters stand beside the match that do not belong to it."""
        before = patterns.letters_before(match.string, match.start())
        after = patterns.letters_after(match.string, match.end())
        numbers = self.rules.numbers
        left = " " if before and before not in numbers.attached_before else ""
        if after in numbers.elided:
            return f"{left}{said.removesuffix(numbers.elided[after])}"
        right = " " if after and after not in numbers.attached_after else ""
        return f"{left}{said}{right}"

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
        if not (1 <= int(month) <= len(months) and 1 <= int(day) <= 31):
            return None
        return self._sub(match, dates.format.format(
            day=self.whole(str(int(day))), month=months[int(month) - 1], year=self._said_year(year)))

    @cached_property
    def _foreign_cue(self) -> re.Pattern[str]:
        return _any(self.rules.dates.foreign_cues, r"\s*{}")

    @cached_property
    def _clock_pattern(self) -> re.Pattern[str]:
        clock = self.rules.clock
        if not clock.separators:
            return NEVER
        word = one_of(clock.swallowed)
        time = rf"(?<![\d.,:/])(\d{{1,2}})[{re.escape(clock.separators)}]([0-5]\d)(?!\d|[.,:/]\d)"
        return re.compile(rf"(?:(?<!\w){word}\s+)?{time}(?:\s*{word}(?!\w))?")

    def _time(self, match: re.Match[str]) -> str | None:
        clock, hours, minutes = self.rules.clock, int(match[1]), int(match[2])
        if hours > 24:
            return None
        said = self.whole(str(hours))
        if minutes == 0:
            return self._sub(match, clock.whole.format(hours=said))
        if minutes in clock.named:
            return self._sub(match, clock.named[minutes].format(hours=said))
        return self._sub(match, clock.minutes.format(hours=said, minutes=self.whole(str(minutes))))

    @cached_property
    def _year_pattern(self) -> re.Pattern[str]:
        years = self.rules.numbers.years
        if years.style == "cardinal":
            return NEVER
        after = "|".join(abbreviation(cue) for cue in years.after) or "(?!)"
        before = one_of(years.before)
        return re.compile(rf"((?<!\w){before}\s+)?{_YEAR}(?(1)|(?=\s*(?:{after})))")

    def _year(self, match: re.Match[str]) -> str:
        return (match[1] or "") + self._sub(match, self._said_year(match[2]))

    def _said_year(self, year: str) -> str:
        style, (first, last) = self.rules.numbers.years.style, divmod(int(year), 100)
        if style == "cardinal" or not 11 <= first <= 21 or first == 20:
            return self.whole(str(int(year)) if len(year) == 4 else year)
        words = [self.whole(str(first))]
        grammar = self.rules.numbers.grammar
        if (style == "hundreds" or not last) and grammar:
            words.append(grammar.hundred)
        return " ".join([*words, self.whole(str(last))] if last else words)

    @cached_property
    def _money_pattern(self) -> re.Pattern[str]:
        if not self.rules.money.currencies:
            return NEVER
        sign = "|".join(_edged(name) for name in sorted(self.rules.money.currencies, key=len, reverse=True))
        grammar = self.rules.numbers.grammar
        scale = one_of(grammar.scales if grammar else ())
        amount = rf"({self._amount})(?:\s*({scale})(?!\w))?"
        return re.compile(rf"(?:({sign})\s?{amount}|(?<![\d.,]){amount}\s?({sign}))")

    def _money(self, match: re.Match[str]) -> str | None:
        before, amount, scale, amount_after, scale_after, after = match.groups()
        money = self.rules.money
        currency = money.currencies[before or after]
        written, times = amount or amount_after, scale or scale_after
        if times:
            return self._sub(match, money.whole.format(amount=f"{self.say(written)} {times}", name=currency.name))
        return self._sub(match, self._said_money(written, currency))

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
        return re.compile(rf"(?<![\d.,])({self._amount})\s?[%٪]") if self.rules.percent else NEVER

    def _percent(self, match: re.Match[str]) -> str:
        return self._sub(match, self.rules.percent.format(number=self.say(match[1])))

    @cached_property
    def _unit_pattern(self) -> re.Pattern[str]:
        names = "|".join(_edged(name) for name in sorted(self.rules.units, key=len, reverse=True))
        return re.compile(rf"(?<![\d.,])({self._amount})[ \u00a0]?({names})") if names else NEVER

    def _unit(self, match: re.Match[str]) -> str:
        return self._sub(match, f"{self.say(match[1])} {self.rules.units[match[2]]}")

    @cached_property
    def _ordinal_pattern(self) -> re.Pattern[str]:
        markers = one_of(self.rules.numbers.ordinals.markers)
        return re.compile(rf"(?<![\d.,])({self._integer})-?{markers}")

    def _ordinal(self, match: re.Match[str]) -> str | None:
        said = self.speller.ordinal(int(re.sub(r"\D", "", match[1])[:_LONGEST]))
        before = patterns.letters_before(match.string, match.start())
        space = " " if before and before not in self.rules.numbers.attached_before else ""
        return None if said is None else space + said

    @cached_property
    def _range_pattern(self) -> re.Pattern[str]:
        if not self.rules.numbers.range:
            return NEVER
        number = rf"({self._amount})"
        return re.compile(rf"(?<![\d.,/-]){number}(?:-|\s?[–—]\s?){number}(?![\d/-])")

    def _range(self, match: re.Match[str]) -> str | None:
        if any(_LEADING_ZERO.match(number) for number in match.groups()):
            return None  # a telephone number
        if self._value(match[1]) >= self._value(match[2]):
            return self._sub(match, f"{self.say(match[1])} {self.say(match[2])}")
        return self._sub(match, self.rules.numbers.range.format(first=self.say(match[1]), last=self.say(match[2])))

    def _value(self, written: str) -> float:
        numbers = self.rules.numbers
        return float(written.replace(numbers.thousands or " ", "").replace(numbers.decimal, "."))

    @cached_property
    def _fraction_pattern(self) -> re.Pattern[str]:
        plain = bool(self.rules.numbers.fraction or self.rules.numbers.fractions)
        return re.compile(r"(?<![\d.,/-])([1-9]\d?)/([1-9]\d?)(?![\d/]|[.,]\d)") if plain else NEVER

    def _fraction(self, match: re.Match[str]) -> str | None:
        numbers = self.rules.numbers
        if match.group() in numbers.fractions:
            return self._sub(match, numbers.fractions[match.group()])
        numerator, denominator = int(match[1]), int(match[2])
        ordinal = self.speller.ordinal(denominator)
        if not numbers.fraction or numerator >= denominator or ordinal is None:
            return None
        return self._sub(match, numbers.fraction.format(numerator=self.whole(match[1]), ordinal=ordinal))

    @cached_property
    def _number_pattern(self) -> re.Pattern[str]:
        decimals = rf"(?:{re.escape(self.rules.numbers.decimal)}\d+)*"
        return re.compile(rf"(?<![\w.,:/+-])[+\u2212-](?=\d)|{self._integer}{decimals}")

    def _number(self, match: re.Match[str]) -> str:
        numbers, written = self.rules.numbers, match.group()
        if not written[0].isdigit():
            return f"{numbers.plus if written == '+' else numbers.minus} "
        if match.string[match.start() - 1:match.start()] == "+":
            return self._sub(match, self.digits(re.sub(r"\D", "", written)))  # an international telephone number
        return self._sub(match, self.say(written))

    @property
    def _integer(self) -> str:
        group = re.escape(self.rules.numbers.thousands)
        return rf"(?:\d{{1,3}}(?:{group}\d{{3}})+(?!\d)|\d+)" if group else r"\d+"

    @property
    def _amount(self) -> str:
        return rf"{self._integer}(?:{re.escape(self.rules.numbers.decimal)}\d+)?"


def _any(cues: tuple[str, ...], frame: str) -> re.Pattern[str]:
    """A pattern of abbreviations, in the place `{}` of `frame`."""
    return re.compile(frame.format("(?:" + "|".join(abbreviation(cue) for cue in cues) + ")")) if cues else NEVER


def _edged(name: str) -> str:
    """A sign, or a word with its edges."""
    before = r"(?<![^\W\d_])" if name[0].isalpha() else ""
    after = rf"(?![^\W\d_]|[{patterns.MARKS}])" if name[-1].isalpha() else ""
    return before + re.escape(name) + after
