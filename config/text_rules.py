"""Text rules: how the text of one language is verbalized, as data that is validated on reading.

A rules file is YAML (shipped or the user's) or JSON (beside a tokenizer); `data.languages.verbalizer` applies it.
`version` names the order and the meaning of the steps: it changes when the same rules would give another text.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from config import foreign
from config.errors import UserError
from config.loading import plain_fault

VERSION = 1
_MOST_ENTRIES, _LONGEST = 2000, 200  # entries of a table; characters of an entry


def _table(value: dict[str, str]) -> dict[str, str]:
    if len(value) > _MOST_ENTRIES:
        raise ValueError(f"{len(value)} entries, at most {_MOST_ENTRIES} are taken")
    for entry, reading in value.items():
        if not entry.strip() or max(len(entry), len(reading)) > _LONGEST:
            raise ValueError(f"the entry {entry[:40]!r} is empty, or longer than {_LONGEST} characters")
    return {unicodedata.normalize("NFC", entry): unicodedata.normalize("NFC", reading)
            for entry, reading in value.items()}


def _ranges(value: tuple[str, ...]) -> tuple[str, ...]:
    for entry in value:
        if not (len(entry) == 1 or (len(entry) == 3 and entry[1] == "-" and entry[0] <= entry[2])):
            raise ValueError(f"{entry!r} is neither one character nor a range such as `a-z`")
    return value


def _check_template(template: str, name: str, fields: tuple[str, ...]) -> None:
    """A template may use the names in `fields` and no other; its braces must be whole."""
    remainder = template
    for field in fields:
        remainder = remainder.replace("{" + field + "}", "")
    if "{" in remainder or "}" in remainder:
        places = ", ".join("{" + field + "}" for field in fields)
        raise ValueError(f"{name}: {template!r} may hold {places} and no other brace")


Table = Annotated[dict[str, str], AfterValidator(_table)]
"""Written form to spoken form."""


class RulesPart(BaseModel):
    """Base of all rules: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Grammar(RulesPart):
    """Cardinal numbers from words. A number is terms (thousands, hundreds, tens and units) with a link between them."""

    units: tuple[str, ...] = Field(min_length=10, max_length=10, description="0 to 9")
    teens: tuple[str, ...] = Field(min_length=10, max_length=10, description="10 to 19")
    tens: tuple[str, ...] = Field(min_length=8, max_length=8, description="20, 30 to 90")
    tens_before_unit: tuple[str, ...] = Field((), max_length=8, description="20 to 90 as said before a unit")
    hundred: str
    scales: tuple[str, ...] = Field(min_length=1, max_length=6, description="1000, a million, a billion ...")
    bare: tuple[str, ...] = Field((), description="hundred or scales that stand without `one` before them")
    multiplier: Literal["before", "after"] = Field("before", description="`three thousand`, or `thousand three`")
    link: str = Field(" ", description="between terms")
    unit_is_term: bool = Field(False, description="whether link and suffix stand between tens and unit, too")
    suffix: str = Field("", description="added to every term when there is more than one")
    suffixed: Table = Field({}, description="words with an irregular form of the suffix")

    @model_validator(mode="after")
    def _whole(self) -> Grammar:
        if self.tens_before_unit and len(self.tens_before_unit) != len(self.tens):
            raise ValueError("tens_before_unit: 8 words are wanted, for 20 to 90")
        unknown = set(self.bare) - {self.hundred, *self.scales}
        if unknown:
            raise ValueError(f"bare: {', '.join(sorted(unknown))} is neither the hundred nor a scale")
        return self

    @property
    def limit(self) -> int:
        """The first number that has no name."""
        return 1000 ** (len(self.scales) + 1)


class Ordinals(RulesPart):
    """`1st`: what marks it in writing, and how it is said."""

    markers: tuple[str, ...] = Field((), description="what follows the digits, such as `st`")
    dotted: bool = Field(False, description="whether a dot before a word in small letters marks one (3. etasje)")
    values: dict[int, str] = Field({}, description="ordinals with an irregular word")
    words: Table = Field({}, description="last word of the cardinal: the same in an ordinal")
    prefix: str = ""
    suffix: str = Field("", description="for a last word that is not in `words`")


class Years(RulesPart):
    """Numbers of four digits beside a cue."""

    style: Literal["cardinal", "hundreds", "pairs"] = Field(
        "cardinal", description="1967 as any number, as 19 hundreds and 67, or as 19, 67")
    after: tuple[str, ...] = Field((), description="words after a year")
    before: tuple[str, ...] = Field((), description="words before a year")


class Numbers(RulesPart):
    """How digits become words."""

    engine: Literal["keep", "grammar", "num2words", "icu"] = "keep"
    library: str = Field("", description="for num2words and icu: name and version that the rules were made with")
    language: str = Field("", description="for num2words and icu: its code of the language")
    amend: Table = Field({}, description="for icu: what it says, and what is said instead")
    grammar: Grammar | None = None
    ordinals: Ordinals = Ordinals()
    years: Years = Years()
    thousands: str = Field(",", max_length=1, description="between groups of three digits")
    grouped_by_space: bool = Field(
        False, description="whether one group of three digits after a space is of the number before it (5 200)")
    decimal: Literal[".", ","] = "."
    point: str = Field("", description="said for the decimal sign; the digits after it are said one by one")
    minus: str = ""
    plus: str = ""
    range: str = Field("", description="`{first}` and `{last}`: 10-20")
    fraction: str = Field("", description="`{numerator}` and `{ordinal}`: 2/3")
    fractions: Table = Field({}, description="fractions with a name")
    attached_before: tuple[str, ...] = Field((), description="what may be written together with the digits after it")
    attached_after: tuple[str, ...] = Field((), description="what may be written together with the digits before it")
    elided: Table = Field({}, description="what follows the digits, too, and the letter of the number it takes")

    @model_validator(mode="after")
    def _whole(self) -> Numbers:
        if self.engine == "grammar" and self.grammar is None:
            raise ValueError("grammar: it is empty, and the engine needs it")
        if self.engine in ("num2words", "icu") and not self.language:
            raise ValueError(f"language: the engine {self.engine} needs a code")
        if self.thousands == self.decimal:
            raise ValueError("thousands and decimal are the same sign")
        _check_template(self.range, "range", ("first", "last"))
        _check_template(self.fraction, "fraction", ("numerator", "ordinal"))
        return self


class Clock(RulesPart):
    """Times such as 10:30."""

    separators: str = Field("", description="signs between hours and minutes")
    whole: str = Field("", description="`{hours}`: 10:00")
    minutes: str = Field("", description="`{hours}` and `{minutes}`: 10:20")
    named: dict[int, str] = Field({}, description="minutes with a name, such as 30; `{hours}`")
    seconds: str = Field("", description="`{time}` as the others say it, and `{seconds}`: 10:20:30")
    swallowed: tuple[str, ...] = Field((), description="words beside the time that the templates say already")

    @model_validator(mode="after")
    def _whole(self) -> Clock:
        if self.separators and not (self.whole and self.minutes):
            raise ValueError("whole and minutes: neither may be empty")
        _check_template(self.minutes, "minutes", ("hours", "minutes"))
        _check_template(self.seconds, "seconds", ("time", "seconds"))
        for template in (self.whole, *self.named.values()):
            _check_template(template, "whole or named", ("hours",))
        return self


class Dates(RulesPart):
    """Dates in digits, and ISO dates (2021-05-12)."""

    order: Literal["dmy", "mdy", "ymd", "keep"] = "keep"
    format: str = Field("", description="`{day}`, `{month}` and `{year}`")
    months: tuple[str, ...] = Field((), max_length=13)
    foreign_months: tuple[str, ...] = Field((), max_length=13, description="of the calendar that the cues name")
    foreign_cues: tuple[str, ...] = Field((), description="words after a date; an ISO date is foreign, too")

    @model_validator(mode="after")
    def _whole(self) -> Dates:
        if self.order != "keep":
            _check_template(self.format, "format", ("day", "month", "year"))
            if not self.months:
                raise ValueError("months: it is empty")
        return self


class Currency(RulesPart):
    """One currency; `cent` may be empty."""

    name: str
    cent: str = ""


class Money(RulesPart):
    """Amounts with a sign or code before or after."""

    currencies: dict[str, Currency] = {}
    whole: str = "{amount} {name}"
    with_cents: str = Field("{amount} {name} {cents} {cent}", description="an amount with two digits after the point")

    @model_validator(mode="after")
    def _whole(self) -> Money:
        _check_template(self.whole, "whole", ("amount", "name"))
        _check_template(self.with_cents, "with_cents", ("amount", "name", "cents", "cent"))
        return self


class Latin(RulesPart):
    """Words in Latin letters, in a language of another script.

    `keep` leaves them, `letters` names each letter, `sound` writes what is heard, `auto` names the
    letters of words in capitals and of words without a vowel, and writes the sound of others.
    """

    words: Literal["keep", "letters", "sound", "auto"] = "keep"
    letters: Table = Field({}, description="names of the letters a to z")
    consonants: Table = Field({}, description="letters: the row of syllables, one for each of `orders`")
    vowels: Table = Field({}, description="letters: one of `orders`")
    alone: Table = Field({}, description="one of `orders`: how it is written without a consonant")
    orders: str = Field("", max_length=12, description="one character a column of `consonants`; `-` is no vowel")
    dot: str = Field("", description="said for the dot inside of example.com")

    @model_validator(mode="after")
    def _whole(self) -> Latin:
        unnamed = set("abcdefghijklmnopqrstuvwxyz") - set(self.letters)
        if self.words in ("letters", "auto") and unnamed:
            raise ValueError(f"letters: no name for {' '.join(sorted(unnamed))}")
        for letters, row in self.consonants.items():
            if len(row) != len(self.orders):
                raise ValueError(f"consonants: {letters!r} has {len(row)} syllables, {len(self.orders)} are wanted")
        wrong = [order for order in self.vowels.values() if order not in self.orders or order not in self.alone]
        if wrong or (self.consonants and "-" not in self.orders):
            raise ValueError(f"vowels: {' '.join(wrong) or '-'} is not in `orders`, or has no way to stand alone")
        if self.words in ("sound", "auto") and not self.consonants:
            raise ValueError("consonants: it is empty, and words are to be written by sound")
        return self


class SpellingFold(RulesPart):
    """Spelling variants to merge: each entry maps a row of letters to the row that replaces it."""

    about: str = ""
    letters: Table

    @model_validator(mode="after")
    def _whole(self) -> SpellingFold:
        for row, instead in self.letters.items():
            if len(row) != len(instead):
                raise ValueError(f"letters: {row!r} has {len(row)} letters, {instead!r} {len(instead)}")
        return self

    def table(self) -> dict[int, str]:
        """For `str.translate`."""
        table: dict[int, str] = {}
        for row, instead in self.letters.items():
            table |= {ord(old): new for old, new in zip(row, instead, strict=True)}
        return table


class TextRules(RulesPart):
    """All rules of one language, in the order in which they are applied."""

    version: int = Field(VERSION, ge=VERSION, le=VERSION)
    name: str = Field("", max_length=64)
    language: str = ""
    about: str = ""
    unicode: Literal["NFC", "NFKC", "NFD", "NFKD", "keep"] = Field("NFC", description="Unicode form of the text")
    characters: Table = Field({}, description="signs and spellings that are made one, before all else")
    words: Table = Field({}, description="whole words, as written: what is said")
    abbreviations: Table = Field({}, description="dots and slashes are one; `*` at the end: the word goes on")
    replaced_prefixes: tuple[str, ...] = Field(
        (), description="what an abbreviation's words begin with, and an attached prefix stands instead of")
    join_initials: bool = Field(False, description="letters with dots between them are one word")
    native_digits: bool = Field(True, description="digits of any script, and Ge'ez numerals, as 0 to 9")
    dates: Dates = Dates()
    clock: Clock = Clock()
    money: Money = Money()
    percent: str = Field("", description="`{number}`: 50%")
    units: Table = Field({}, description="what follows a number, such as `km`")
    numbers: Numbers = Numbers()
    symbols: Table = Field({}, description="signs that are read aloud, such as `&`")
    latin: Latin = Latin()
    foreign: Literal["keep", "sound"] = Field("keep", description="letters of other scripts: left, or by sound")
    folds: dict[str, SpellingFold] = Field({}, description="foldings that can be chosen")
    fold: tuple[str, ...] = Field((), description="the foldings that are chosen")
    marks: Table = Field({}, description="punctuation marks: what stands for them")
    sentence_ends: str = Field("", max_length=40, description="signs that end a sentence, beside the usual ones")
    alphabet: Annotated[tuple[str, ...], AfterValidator(_ranges)] = Field(
        (), description="letters that may come out, single or as ranges; empty: any")

    @model_validator(mode="after")
    def _whole(self) -> TextRules:
        unknown = [name for name in self.fold if name not in self.folds]
        if unknown:
            raise ValueError(f"fold: {', '.join(unknown)} is not one of {', '.join(self.folds) or 'none'}")
        if self.percent:
            _check_template(self.percent, "percent", ("number",))
        if self.foreign == "sound" and not self.latin.consonants and "a-z" not in self.alphabet:
            raise ValueError("foreign: letters by sound need the rows of `latin`, or an alphabet of Latin letters")
        return self

    def to_json(self) -> bytes:
        """The JSON beside a tokenizer: what differs from the defaults, so later options change no file."""
        values = {"version": self.version, **self.model_dump(mode="json", exclude_defaults=True)}
        return (json.dumps(values, ensure_ascii=False, indent=1) + "\n").encode("utf-8")


MOST_LINES = 20_000  # lines of rules; more take longer to check than a person waits


class _StrictLoader(yaml.BaseLoader):
    """YAML in which every value is text (`no` is not false, 007 is not 7) and a repeated key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(set(keys)) < len(keys):
            doubled = next(key for key, count in Counter(keys).items() if count > 1)
            raise yaml.constructor.ConstructorError(None, None, f"{doubled!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def parse_rules(content: str | bytes, source: str) -> TextRules:
    """Rules from YAML or JSON; `UserError` lists every fault with its place in `source`."""
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        # Lines are counted before YAML is parsed, which may take very long.
        lines = text.count("\n")
        if lines > MOST_LINES:
            raise ValueError(f"it has {lines} lines, at most {MOST_LINES} are read")
        foreign.check_yaml(text)
        values = yaml.load(text, _StrictLoader)
    except (ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        place = getattr(error, "problem_mark", None)
        line = f", line {place.line + 1}" if place else ""
        problem = getattr(error, "problem", None) or str(error)
        raise UserError(f"The rules in {source}{line} could not be read: {problem}.",
                        "Fix the line; text with : # or quotes in it stands between double quotes.") from error

    if not isinstance(values, dict):
        raise UserError(f"{source} holds no rules.", "Write one `name: value` a line; start from the shipped rules.")

    # Every fault is collected before the rules are refused.
    try:
        rules = TextRules.model_validate(values)
        # Half of a surrogate pair cannot be saved, so the rules are written once as a check.
        rules.to_json()
        return rules
    except UnicodeEncodeError as error:
        hint = "Write the character itself."
        raise UserError(f"The rules in {source} hold half a character: {error}.", hint) from error
    except ValidationError as error:
        faults = "; ".join(_fault(fault["loc"], fault["msg"], fault["input"]) for fault in error.errors())
        raise UserError(f"The rules in {source} cannot be used: {faults}.", "Fix these values.") from error


def _fault(place: Iterable[int | str], message: str, value: object) -> str:
    name = ".".join(str(part) for part in place)
    problem = plain_fault(message, value if not isinstance(value, dict | list | BaseModel) else "...")
    return f"{name}: {problem}".removesuffix(" (given: '...')").removeprefix(": ")
