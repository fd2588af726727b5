"""Everything with digits as words: telephone numbers, dates, times, years, money, units, ordinals, fractions, numbers.

Each step is a pattern and a template of the rules. What a template cannot say is left to the steps after it, the last
of which reads digit by digit, so no number is lost.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import unicodedata
from collections.abc import Iterator, Set
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, cached_property
from typing import Protocol

from icu4py.messageformat import MessageFormat

from config.errors import UserError, missing_package
from config.text_rules import Currency, Grammar, Numbers, Ordinals, TextRules
from data.languages.patterns import MARKS, NEVER, abbreviation, letters_after, letters_before, one_of
from data.languages.span_map import SpanMap

_LEADING_ZERO = re.compile("0[0-9]")
_LONGEST = 40  # digits; a longer number has no name in any language

# Telephone numbers: one kind of separator throughout; neither a date nor the end of a number with spaces in it.
_DATE_LIKE = r"\d{1,2}([ \u00a0-])\d{1,2}\1\d{4}(?!\d)"
_TELEPHONE = re.compile(rf"(?<![\w.,:/+-])(?<!\d[ \u00a0])(?!{_DATE_LIKE})"
                        r"(?:\+\d{1,3}|0\d{1,3})(?:([ \u00a0-])\d{2,7}(?:\2\d{2,7}){0,4})(?![\w-]|[.,:/]\d)")
_TELEPHONE_DIGITS = range(9, 16)  # digits with the country code (E.164 has at most 15)
# Groups of three digits (ISO 80000-1, 7.3.1). One group after a plain space may be a number by itself; it is not where
# it begins with 0, and where the language groups by spaces, unless more digits follow. After a space that keeps a line
# together it never is.
_KEPT_TOGETHER = r"[1-9]\d{0,2}(?:[ \u00a0\u2009\u202f]\d{3}){1,12}"
_SPACED_RANGE = re.compile(rf"(?<![\d.,:/+-]){_KEPT_TOGETHER}-{_KEPT_TOGETHER}(?![\d:/-]| \d)")
_GROUPED = (r"(?<![\d.,:/+])(?<!\w-)[1-9]\d{{0,2}}"
            r"(?:(?:[\u00a0\u2009\u202f]\d{{3}})+|(?: \d{{3}}){{2,}}|{one}(?! \d))(?![\d:/-])")
_SPACED = re.compile(_GROUPED.format(one=r" 0\d\d"))
_SPACED_EVER = re.compile(_GROUPED.format(one=r" \d{3}"))
_DASH = r"(?:-|\s?[–—]\s?)"
_SPAN = re.compile(rf"(?<=[\d%٪]){_DASH}(?=[^\w\s]{{0,2}}\d)")
_FRACTION = re.compile(r"(?<![\d.,/-])([1-9]\d?)/([1-9]\d?)(?![\d/]|[.,]\d)")
_ARABIC_SIGN = re.compile(r"(?<=\d)(?:٫(?=\d)|٬(?=\d{3}))")
_MONEY_SIGN = "[$¢£¤¥฿\u20a0-\u20c0]"
_FAR = 40  # characters that a quantity is at most long

_DATE = re.compile(r"(?<![\d./-])(\d{1,4})([./-])(\d{1,2})\2(\d{4}|\d{2})(?![\d/]|[.-]\d)")
_ISO = re.compile(r"(?<![\d-])(\d{4})-(\d{2})-(\d{2})(?![\d-])")
_YEAR = r"(?<![\d.,:/-])(?:1[1-9]\d\d|2[01]\d\d)(?![\d:/]|[.,]\d)"

_GEEZ = {chr(0x1369 + index): value for index, value in enumerate((*range(1, 10), *range(10, 100, 10), 100, 10000))}
_GEEZ_RUN = re.compile(f"[{min(_GEEZ)}-{max(_GEEZ)}]+")
# Tens, then units; ፻ and ፼ after them. ፩፪፫ is three digits, not a numeral.
_NUMERAL = re.compile("(?:[፲-፺]?[፩-፱]?(?:፻[፲-፺]?[፩-፱]?)?፼)*[፲-፺]?[፩-፱]?(?:፻[፲-፺]?[፩-፱]?)?")
_LONGEST_NUMERAL = 64  # characters; with each ፼ the number has four digits more
_OTHER = re.compile(r"(?![0-9])\d")
_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e\u2189]")


@dataclass(frozen=True)
class NumberReader:
    """Reads the numbers of one language; `rules.numbers.engine` is not `keep`."""

    rules: TextRules
    speller: NumberSpeller

    def say(self, number: str) -> str:
        """A written number with groups and decimals in words; digit by digit if it has no name.

        Without a word for the decimal sign, decimals are said as tenths, hundredths and so on. If the language has no
        such words either, the number stays, and the tokenizer reports it.
        """
        numbers, point = self.rules.numbers, self.rules.numbers.point or self.speller.point
        plain = number.replace(numbers.thousands, "") if numbers.thousands else number
        integer_part, *parts = plain.split(numbers.decimal)
        if len(parts) == 1 and not point:
            return self.speller.decimal(f"{integer_part}.{parts[0]}") or number
        between = f"{self.speller.joint}{point}{self.speller.joint}"
        return between.join([self.whole(integer_part), *map(self.digits, parts)]) if point or not parts else number

    def whole(self, digits: str) -> str:
        """A number without decimals."""
        nameless = _LEADING_ZERO.match(digits) or len(digits) > _LONGEST
        named = None if nameless else self.speller.cardinal(int(digits))
        return self.digits(digits) if named is None else named

    def digits(self, digits: str) -> str:
        """One digit after another."""
        return self.speller.joint.join(self.speller.cardinal(int(digit)) or digit for digit in digits)

    def beside(self, match: re.Match[str], words: str) -> str:
        """`words` with a space, if the language has any, beside letters that may not be attached."""
        preceding = letters_before(match.string, match.start())
        following = letters_after(match.string, match.end())
        numbers = self.rules.numbers
        space_before = self.speller.joint if preceding and preceding not in numbers.attached_before else ""
        if following in numbers.elided:
            return f"{space_before}{words.removesuffix(numbers.elided[following])}"
        space_after = self.speller.joint if following and following not in numbers.attached_after else ""
        return f"{space_before}{words}{space_after}"

    def value(self, number: str) -> float:
        """The value of a match of `amount`."""
        numbers = self.rules.numbers
        return float(number.replace(numbers.thousands or " ", "").replace(numbers.decimal, "."))

    @property
    def integer(self) -> str:
        """A pattern of a number without decimals."""
        group = re.escape(self.rules.numbers.thousands)
        return rf"(?:\d{{1,3}}(?:{group}\d{{3}})+(?!\d)|\d+)" if group else r"\d+"

    @property
    def amount(self) -> str:
        """A pattern of a number with decimals, or without."""
        return rf"{self.integer}(?:{re.escape(self.rules.numbers.decimal)}\d+)?"

    def read_dates(self, text: SpanMap) -> SpanMap:
        """Digits that spaces and dashes join, dates, times and years: the steps before abbreviations."""
        # Signs within numbers are read before those between numbers.
        text = text.sub(_TELEPHONE, self._telephone, "number")
        text = text.sub(_ARABIC_SIGN, lambda match: self.rules.numbers.decimal if match.group() == "٫"
                        else self.rules.numbers.thousands, "number")
        spaced = _SPACED_EVER if self.rules.numbers.grouped_by_space else _SPACED
        text = text.sub(_SPACED_RANGE, lambda match: re.sub(r"[^\d-]", "", match.group()), "number")
        text = text.sub(spaced, lambda match: re.sub(r"\D", "", match.group()), "number")
        text = text.sub(self._joined_year_pattern, lambda match: match[1], "year")
        text = text.sub(_SPAN if self._link else NEVER, self._span, "range")
        if self.rules.dates.order != "keep":
            text = text.sub(_ISO, lambda match: self._date_words(
                match, match[3], match[2], match[1], foreign=True), "date")
            text = text.sub(_DATE, self._date, "date")
        text = text.sub(self._clock_pattern, self._time, "time")
        return text.sub(self._year_pattern, self._years, "year")

    def read_numbers(self, text: SpanMap) -> SpanMap:
        """Signs of numbers, money, percent and units, then every number that is left: the steps after abbreviations."""
        text = text.sub(self._sign_pattern, self._sign, "number")
        text = text.sub(self._money_pattern, self._money, "currency")
        text = text.sub(self._percent_pattern, lambda match: self.beside(
            match, self.rules.percent.format(number=self.say(match[1]))), "percent")
        text = text.sub(self._unit_pattern, lambda match: self.beside(
            match, f"{self.say(match[1])} {self.rules.units[match[2]]}"), "unit")
        text = text.sub(self._ordinal_pattern, self._ordinal, "ordinal")
        text = text.sub(self._range_pattern, self._range, "range")
        fractions = self.rules.numbers.fraction or self.rules.numbers.fractions
        text = text.sub(_FRACTION if fractions else NEVER, self._fraction, "fraction")
        return text.sub(self._number_pattern, self._number, "number")

    @cached_property
    def _sign_pattern(self) -> re.Pattern[str]:
        """A sign before a number, its currency included on either side. An en dash after a number is a range's."""
        sign = f"(?:{self._money_sign}|{_MONEY_SIGN})"
        attached = one_of(self.rules.numbers.attached_before)
        # Without spaces between words, a word may stand directly before the sign.
        letters = r"\w" if self.speller.joint else r"A-Za-z\d"
        return re.compile(rf"(?:(?<![{letters}.,:/+\u2212-])|(?<!\w)({attached}))({sign}?)"
                          rf"(\+(?!\d{{7}})|[\u2212-]|(?<!\d )\u2013)(?={sign}?\d)")

    def _sign(self, match: re.Match[str]) -> str | None:
        numbers = self.rules.numbers
        word = numbers.plus if match[3] == "+" else numbers.minus or self.speller.minus
        if not word:
            return None  # an unread sign is reported by the tokenizer
        return f"{match[1] or ''}{word}{self.speller.joint}{match[2]}"

    @cached_property
    def _money_sign(self) -> str:
        """A pattern of the signs of money, not of its codes and words."""
        return one_of(name for name in self.rules.money.currencies if not name.isalpha())

    def _telephone(self, match: re.Match[str]) -> str | None:
        digits = re.sub(r"\D", "", match.group())
        return self.beside(match, self.digits(digits)) if len(digits) in _TELEPHONE_DIGITS else None

    @property
    def _link(self) -> str:
        """The words between both ends of a range; empty if the template puts them elsewhere."""
        start, end, template = "{first}", "{last}", self.rules.numbers.range
        between = template.startswith(start) and template.endswith(end)
        return template.removeprefix(start).removesuffix(end) if between else ""

    def _span(self, match: re.Match[str]) -> str | None:
        """The dash between two times, two dates, or two increasing numbers."""
        preceding = match.string[max(0, match.start() - _FAR):match.start()]
        date = r"\d{1,2}[./]\d{1,2}[./]\d{4}" if self.rules.dates.order != "keep" else "(?!)"
        separators = self.rules.clock.separators
        time = rf"\d{{1,2}}[{re.escape(separators)}][0-5]\d" if separators else "(?!)"

        # Between two times or two dates the dash is always a range.
        for kind in (time, date):
            if re.search(rf"(?<![\d.,:/-]){kind}$", preceding) and re.compile(
                    rf"{kind}(?![\d:/-])").match(match.string, match.end()):
                return self._link

        # Between numbers it is one only if they increase.
        attached = one_of(self.rules.numbers.attached_before)
        low_match = re.search(rf"(?:(?:(?<![\w.,:/\u2212-])|(?<!\w){attached})([\u2212-])|(?<![\d.,:/\u2212-]))"
                          rf"({self.amount})[%٪]?$", preceding)
        high_match = re.compile(rf"([\u2212-]?){self._money_sign}?({self.amount})(?![\d:/-]|[.,]\d)").match(
            match.string, match.end())
        if not low_match or not high_match or any(_LEADING_ZERO.match(match[2]) for match in (low_match, high_match)):
            return None
        low, high = (self.value(end[2]) * (-1 if end[1] else 1) for end in (low_match, high_match))
        return self._link if low < high else None

    def _date(self, match: re.Match[str]) -> str | None:
        first_part, _, second_part, third_part = match.groups()
        parts = dict(zip(self.rules.dates.order, (first_part, second_part, third_part), strict=True))
        if len(parts["y"]) == 3 or any(len(parts[part]) > 2 for part in "dm"):
            return None
        cue = self._foreign_cue.match(match.string, match.end())
        return self._date_words(match, parts["d"], parts["m"], parts["y"], foreign=cue is not None)

    def _date_words(self, match: re.Match[str], day: str, month: str, year: str, *, foreign: bool) -> str | None:
        dates = self.rules.dates
        months = dates.foreign_months if foreign and dates.foreign_months else dates.months
        days = 31 if len(months) != 13 else 6 if int(month) == 13 else 30  # a calendar of 13 months
        if not (1 <= int(month) <= len(months) and 1 <= int(day) <= days):
            return None
        return self.beside(match, dates.format.format(
            day=self.whole(str(int(day))), month=months[int(month) - 1], year=self._year_words(year)))

    @cached_property
    def _foreign_cue(self) -> re.Pattern[str]:
        cues = self.rules.dates.foreign_cues
        return re.compile(rf"\s*(?:{'|'.join(map(abbreviation, cues))})") if cues else NEVER

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
        words = template.format(hours=self.whole(str(hours)), minutes=self.whole(str(minutes)))
        if int(match[3] or 0):
            words = clock.seconds.format(time=words, seconds=self.whole(str(int(match[3]))))
        return self.beside(match, words)

    @cached_property
    def _joined_year_pattern(self) -> re.Pattern[str]:
        """A hyphen that only joins a year to a prefix: በ-1999."""
        attached = one_of(self.rules.numbers.attached_before)
        return re.compile(rf"(?<!\w)({attached})-(?=(?:1[1-9]|2[01])\d\d(?![\d.,:/%°]))")

    @cached_property
    def _year_pattern(self) -> re.Pattern[str]:
        """A year with its cue after it, or after the last of several; or one or two with a cue before them."""
        years = self.rules.numbers.years
        if years.style == "cardinal":
            return NEVER
        after = "|".join(abbreviation(cue) for cue in years.after) or "(?!)"
        attached = one_of(self.rules.numbers.attached_before)
        era = "|".join(map(abbreviation, self.rules.dates.foreign_cues)) or "(?!)"
        words = one_of({self._link.strip(), *self.rules.numbers.attached_before} - {""})

        # Each text matches in one way only, so that the pattern is fast.
        between = rf"\s*(?:(?:[-–,፣]|{words}(?!\d))\s*{attached}?|{words})"
        return re.compile(
            rf"(?P<cue>(?<!\w){one_of(years.before)}\s+|(?:{era})\.?\s*{attached})?(?P<first>{_YEAR})"
            rf"(?(cue)(?:(?P<link>{between})(?P<last>(?<!\d)(?:1[1-9]|2[01])\d\d)(?![\d:/]|[.,]\d))?"
            rf"|(?=(?:{between}(?<!\d)\d{{4}}(?!\d)){{0,9}}\s*(?:{after})))")

    def _years(self, match: re.Match[str]) -> str:
        words = (match["cue"] or "") + self._year_words(match["first"])
        if match["last"]:
            words += f"{match['link']}{self._year_words(match['last'])}"
        return self.beside(match, words)

    def _year_words(self, year: str) -> str:
        style, (century, year_of_century) = self.rules.numbers.years.style, divmod(int(year), 100)
        if style == "cardinal" or not 11 <= century <= 21 or century == 20:
            return self.whole(str(int(year)) if len(year) == 4 else year)
        words = [self.whole(str(century))]
        grammar = self.rules.numbers.grammar
        if (style == "hundreds" or not year_of_century) and grammar:
            words.append(grammar.hundred)
        return " ".join([*words, self.whole(str(year_of_century))] if year_of_century else words)

    @cached_property
    def _money_pattern(self) -> re.Pattern[str]:
        if not self.rules.money.currencies:
            return NEVER
        sign = "|".join(_edged(name) for name in sorted(self.rules.money.currencies, key=len, reverse=True))
        grammar = self.rules.numbers.grammar
        scale = one_of(grammar.scales if grammar else ())
        amount = rf"({self.amount})(?:\s*({scale})(?!\w))?"
        codes = one_of(name for name in self.rules.money.currencies if not name.isalpha() or name.isupper())
        # In `2016 $20` and, after a year, `2012 ETB 500` it is of what follows; in `10 USD 20 EUR` it is not.
        of_next = rf"(?!{codes}\d)(?!(?<=(?<!\d)(?:19|20)\d\d\s){codes}\s\d)"
        return re.compile(rf"(?:({sign})\s?{amount}|(?<![\d.,]){amount}\s?{of_next}({sign}))")

    def _money(self, match: re.Match[str]) -> str | None:
        sign_before, amount, scale, amount_after, scale_after, sign_after = match.groups()
        money = self.rules.money
        currency = money.currencies[sign_before or sign_after]
        number, times = amount or amount_after, scale or scale_after
        if times:
            return self.beside(match, money.whole.format(amount=f"{self.say(number)} {times}", name=currency.name))
        return self.beside(match, self._money_words(number, currency))

    def _money_words(self, amount: str, currency: Currency) -> str:
        money, decimal = self.rules.money, self.rules.numbers.decimal
        units, _, cents = amount.partition(decimal)
        if currency.cent and len(cents) == 2 and cents.isdigit():
            if int(cents) == 0:
                return money.whole.format(amount=self.say(units), name=currency.name)
            return money.with_cents.format(amount=self.say(units), name=currency.name,
                                           cents=self.whole(str(int(cents))), cent=currency.cent)
        return money.whole.format(amount=self.say(amount), name=currency.name)

    @cached_property
    def _percent_pattern(self) -> re.Pattern[str]:
        return re.compile(rf"(?<![\d.,])({self.amount})\s?[%٪]") if self.rules.percent else NEVER

    @cached_property
    def _unit_pattern(self) -> re.Pattern[str]:
        names = "|".join(_edged(name) for name in sorted(self.rules.units, key=len, reverse=True))
        return re.compile(rf"(?<![\d.,])({self.amount})[ \u00a0]?({names})") if names else NEVER

    @cached_property
    def _ordinal_pattern(self) -> re.Pattern[str]:
        markers = one_of(self.rules.numbers.ordinals.markers)
        dotted = r"\d{1,3}\.(?=\s+[^\W\d_])" if self.rules.numbers.ordinals.dotted else "(?!)"
        return re.compile(rf"(?<![\d.,:/-])({dotted})|(?<![\d.,])({self.integer})-?{markers}")

    def _ordinal(self, match: re.Match[str]) -> str | None:
        if match[1] and not match.string[match.end():].lstrip()[:1].islower():
            return None  # the end of a sentence
        words = self.speller.ordinal(int(re.sub(r"\D", "", match[1] or match[2])[:_LONGEST]))
        preceding = letters_before(match.string, match.start())
        space = " " if preceding and preceding not in self.rules.numbers.attached_before else ""
        return None if words is None else space + words

    @cached_property
    def _range_pattern(self) -> re.Pattern[str]:
        ranges = rf"(?<![\d.,/-])({self.amount})(?:-|\s?[–—]\s?)({self.amount})(?![\d/-])"
        return re.compile(ranges) if self.rules.numbers.range else NEVER

    def _range(self, match: re.Match[str]) -> str | None:
        if any(_LEADING_ZERO.match(number) for number in match.groups()):
            return None  # a telephone number
        if self.value(match[1]) >= self.value(match[2]):
            return self.beside(match, f"{self.say(match[1])} {self.say(match[2])}")
        return self.beside(match, self.rules.numbers.range.format(first=self.say(match[1]), last=self.say(match[2])))

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
        return re.compile(rf"(?<![\w.,:/+-])\+(?=\d)|{self.integer}{decimals}")

    def _number(self, match: re.Match[str]) -> str:
        numbers, number = self.rules.numbers, match.group()
        if number == "+":
            return f"{numbers.plus or number} "
        if match.string[match.start() - 1:match.start()] == "+":
            return self.beside(match, self.digits(re.sub(r"\D", "", number)))  # an international telephone number
        return self.beside(match, self.say(number))


def _edged(name: str) -> str:
    """A sign, or a word with its edges."""
    start_edge = r"(?<![^\W\d_])" if name[0].isalpha() else ""
    end_edge = rf"(?![^\W\d_]|[{MARKS}])" if name[-1].isalpha() else ""
    return start_edge + re.escape(name) + end_edge


def geez_value(numeral: str) -> int:
    """The value of a Ge'ez numeral: ፻ multiplies what stands before it in its group, ፼ all that stands before it.

    Unicode Standard 16.0, section 19.1.
    """
    total, group = 0, 0
    for character in numeral:
        value = _GEEZ[character]
        if value == 10000:
            total, group = (total + group or 1) * value, 0
        elif value == 100:
            group = (group or 1) * value
        else:
            group += value
    return total + group


def is_geez_numeral(digits: str) -> bool:
    """Whether Ge'ez digits form one numeral; a longer run than any numeral is a row of digits."""
    return len(digits) <= _LONGEST_NUMERAL and _NUMERAL.fullmatch(digits) is not None


def to_ascii_digits(text: SpanMap) -> SpanMap:
    """Ge'ez numerals, decimal digits of any script and fractions such as ½ in ASCII.

    Ge'ez digits that form no numeral stand one by one.
    """
    def geez(match: re.Match[str]) -> str:
        numerals = [match.group()] if is_geez_numeral(match.group()) else match.group()
        return " ".join(str(geez_value(numeral)) for numeral in numerals)

    text = text.sub(_GEEZ_RUN, geez, "numeral")
    text = text.sub(_VULGAR, _plain_fraction, "numeral")
    return text.sub(_OTHER, lambda match: str(unicodedata.decimal(match.group())), "numeral")


def _plain_fraction(match: re.Match[str]) -> str:
    preceding = match.string[match.start() - 1:match.start()]
    return (" " if preceding.isdigit() else "") + unicodedata.normalize("NFKD", match.group()).replace("\u2044", "/")


PACKAGES = {"num2words": "num2words==0.5.14", "icu": "icu4py==1.2.0"}
"""What to install for each engine that is a library."""
# ICU 78.3 has spell-out rules for these (CLDR 48, common/rbnf). For others it would take the machine's own language.
ICU_LANGUAGES = frozenset({
    "af", "ar", "az", "be", "bg", "ca", "cs", "cy", "da", "de", "el", "en", "en_IN", "eo", "es", "es_CO", "es_GT",
    "es_NI", "es_VE", "et", "fa", "fi", "fr", "fr_BE", "fr_CH", "he", "hi", "hr", "hu", "hy", "id", "is", "it", "ja",
    "ka", "kk", "ko", "ky", "lb", "lt", "lv", "ms", "mt", "nb", "nl", "nn", "pl", "pt", "pt_PT", "ro", "ru", "sk", "sl",
    "sq", "sr", "sv", "sw", "th", "tr", "uk", "vi", "yue", "zh",
})
_REFUSED = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)  # the libraries' errors
_UNSEEN = str.maketrans("", "", "\u00ad\u200b")  # characters at which ICU would let a line break


class NumberSpeller(Protocol):
    """Numbers of one language; None for a number without a name. `point` and `minus` are empty if unknown."""

    @property
    def joint(self) -> str:
        """Between words: a space, or nothing if the language has none."""
        ...

    @property
    def point(self) -> str: ...

    @property
    def minus(self) -> str: ...

    def cardinal(self, number: int) -> str | None: ...

    def decimal(self, number: str) -> str | None:
        """`3.25` as a whole, such as three and twenty-five hundredths; for languages without a word for the point."""
        ...

    def ordinal(self, number: int) -> str | None: ...


def number_speller(numbers: Numbers) -> NumberSpeller | None:
    """The speller for `numbers`; None if digits stay. `UserError` for another version of its library."""
    if numbers.engine == "grammar":
        assert numbers.grammar is not None
        return GrammarSpeller(numbers.grammar, numbers.ordinals)
    if numbers.engine in PACKAGES:
        installed = library_version(numbers.engine)
        if not installed:
            name = PACKAGES[numbers.engine].partition("==")[0]
            raise missing_package("This language's", name, PACKAGES[numbers.engine])
        if numbers.library not in ("", installed):
            raise UserError(
                f"The rules were made with {numbers.library}; {installed} is installed, which may say numbers "
                "otherwise.",
                f"Install that version: python -m pip install {numbers.library.replace(' ', '==')}.")
        return IcuSpeller(numbers) if numbers.engine == "icu" else Num2WordsSpeller(numbers)
    return None


def library_version(engine: str) -> str:
    """Such as `num2words 0.5.14`; empty when it is not installed."""
    name = PACKAGES[engine].partition("==")[0]
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return ""


@cache
def library_languages() -> frozenset[str]:
    """Codes that num2words knows; none when it is not installed."""
    if importlib.util.find_spec("num2words") is None:
        return frozenset()
    from num2words import CONVERTER_CLASSES

    return frozenset(CONVERTER_CLASSES)


class GrammarSpeller:
    """Numbers by a grammar."""

    def __init__(self, grammar: Grammar, ordinals: Ordinals) -> None:
        self._grammar, self._ordinals = grammar, ordinals
        self.joint, self.point, self.minus = " ", "", ""  # the rules have the two signs

    def cardinal(self, number: int) -> str | None:
        grammar = self._grammar
        if not 0 <= number < grammar.limit:
            return None
        if number < 10:
            return grammar.units[number]
        # Compound numbers may have a suffix at the last word of each term.
        terms = list(self._terms(number))
        if grammar.suffix and len(terms) > 1:
            for place, term in enumerate(terms):
                head, space, last = term.rpartition(" ")
                terms[place] = head + space + grammar.suffixed.get(last, last + grammar.suffix)
        return grammar.link.join(terms) if grammar.unit_is_term else grammar.link.join(terms).strip()

    def decimal(self, number: str) -> str | None:
        return None

    def ordinal(self, number: int) -> str | None:
        ordinals = self._ordinals
        if number in ordinals.values:
            return ordinals.values[number]
        words = self.cardinal(number)
        if words is None:
            return None
        head, space, last = words.rpartition(" ")
        words = ordinals.words.get(last, last + ordinals.suffix)
        return f"{ordinals.prefix}{head}{space}{words}"

    def _terms(self, number: int) -> Iterator[str]:
        """Thousands and above, hundreds, then the rest below 100."""
        grammar = self._grammar
        for power in range(len(grammar.scales), 0, -1):
            count, number = divmod(number, 1000 ** power)
            if count:
                yield self._multiplied(count, grammar.scales[power - 1])
        count, number = divmod(number, 100)
        if count:
            yield self._multiplied(count, grammar.hundred)
        yield from self._below_hundred(number)

    def _multiplied(self, count: int, word: str) -> str:
        if count == 1 and word in self._grammar.bare:
            return word
        times = self.cardinal(count)
        assert times is not None  # it is smaller than the number it is part of
        return f"{times} {word}" if self._grammar.multiplier == "before" else f"{word} {times}"

    def _below_hundred(self, number: int) -> Iterator[str]:
        grammar = self._grammar
        tens, unit = divmod(number, 10)
        if number == 0:
            return
        if tens == 0:
            yield grammar.units[unit]
        elif tens == 1:
            yield grammar.teens[unit]
        elif unit == 0:
            yield grammar.tens[tens - 2]
        else:
            ten = (grammar.tens_before_unit or grammar.tens)[tens - 2]
            yield from (ten, grammar.units[unit]) if grammar.unit_is_term else (f"{ten} {grammar.units[unit]}",)


class LibrarySpeller:
    """Numbers by a library. An answer without words, or with digits, is no answer."""

    def __init__(self, numbers: Numbers, languages: Set[str]) -> None:
        if numbers.language not in languages:
            raise UserError(f"{numbers.engine} does not know the language {numbers.language!r}.",
                            f"Write a grammar in the rules, or take one of: {', '.join(sorted(languages))}.")
        self._language, self._amend = numbers.language, numbers.amend

    def cardinal(self, number: int | Decimal) -> str | None:
        return self._plain(self._words(number))

    def ordinal(self, number: int) -> str | None:
        return self._plain(self._words(number, ordinal=True))

    def decimal(self, number: str) -> str | None:
        return self.cardinal(Decimal(number))

    @cached_property
    def joint(self) -> str:
        return "" if self._half and " " not in self._half else " "

    @cached_property
    def point(self) -> str:
        """The words between 3 and 5 in 3.5; empty for languages in which it is 3.50, or three and a half."""
        return self._between(f"{self.cardinal(3)}{self.joint}", f"{self.joint}{self.cardinal(5)}", self._half)

    @cached_property
    def minus(self) -> str:
        """The words before 5 in -5."""
        return self._between("", f"{self.joint}{self.cardinal(5)}", self.cardinal(-5) or "")

    @cached_property
    def _half(self) -> str:
        return self.cardinal(Decimal("3.5")) or ""

    @staticmethod
    def _between(start: str, end: str, words: str) -> str:
        """The letters between `start` and `end` in `words`; empty if there are none."""
        match = re.fullmatch(f"{re.escape(start)}(.+){re.escape(end)}", words)
        return match[1].strip() if match and any(map(str.isalpha, match[1])) else ""

    def _plain(self, words: str) -> str | None:
        words = self._amended.sub(lambda match: self._amend[match.group()], words.translate(_UNSEEN))
        words = " ".join(words.replace(",", " ").split())
        return None if not words or any(map(str.isdecimal, words)) else words

    @cached_property
    def _amended(self) -> re.Pattern[str]:
        return re.compile(one_of(self._amend))

    def _words(self, number: int | Decimal, *, ordinal: bool = False) -> str:
        """The library's reading; empty without one."""
        raise NotImplementedError


class Num2WordsSpeller(LibrarySpeller):
    """Numbers by num2words, without its commas."""

    def __init__(self, numbers: Numbers) -> None:
        super().__init__(numbers, library_languages())

    def _words(self, number: int | Decimal, *, ordinal: bool = False) -> str:
        from num2words import num2words

        try:
            return str(num2words(number, lang=self._language, to="ordinal" if ordinal else "cardinal"))
        except _REFUSED:
            return ""


class IcuSpeller(LibrarySpeller):
    """Numbers by ICU's spell-out rules, without hints for line breaks."""

    def __init__(self, numbers: Numbers) -> None:
        super().__init__(numbers, ICU_LANGUAGES)

    def _words(self, number: int | Decimal, *, ordinal: bool = False) -> str:
        """Ordinals by the first set of rules that the language has: without it ICU takes those of cardinals."""
        cardinal, *ordinals = (_spell_out(self._language, rules).format({"number": number}) for rules in (
            ("", ",%spellout-ordinal", ",%spellout-ordinal-masculine") if ordinal else ("",)))
        return next((words for words in ordinals if words != cardinal), "") if ordinal else cardinal


@cache
def _spell_out(language: str, rules: str) -> MessageFormat:
    return MessageFormat(f"{{number,spellout{rules}}}", language)
