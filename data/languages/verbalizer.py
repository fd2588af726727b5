"""Verbalization: text as it is spoken, by the rules of its language, in steps of a fixed order.

The order: Unicode form, characters, whole words; numerals, dates, times and years; abbreviations; amounts and numbers;
signs, Latin words, initials; spelling variants and marks; last, characters outside the alphabet. Verbalized text passes
unchanged, and no text raises an error.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property, lru_cache
from itertools import groupby
from pathlib import Path

import yaml
from icu4py.messageformat import MessageFormat

from config.errors import UserError
from config.text_rules import VERSION, Numbers, Table, TextRules, parse_rules
from data.languages import patterns
from data.languages.latin import say_latin, sound_of
from data.languages.number_reader import (
    PACKAGES,
    NumberReader,
    library_languages,
    library_version,
    number_speller,
    to_ascii_digits,
)
from data.languages.patterns import NEVER, abbreviation, one_of
from data.languages.span_map import SpanMap
from data.languages.words import JOINERS, SPOKEN_PUNCTUATION

_MOST_PASSES = 5
_MAX_OUTPUT = 2000  # characters
_CLUSTER = re.compile(r"[^\u0300-\u036f][\u0300-\u036f]+|[^\x00-\x7f]", re.DOTALL)
_UNWRITTEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff"
                        r"\ufff0-\uffff\ud800-\udfff\ue000-\uf8ff]")
_HYPHENS = re.compile(r"[\u2010\u2011\ufe63\uff0d](?=[^\w\s]?\d)")  # a minus, as it is typed otherwise
_CONTROLS = frozenset(map(chr, (*range(0x20), 0x85)))  # a space each; NEL ends a line
_SPACES = re.compile(r"[^\S\n]{2,}|[^\S\n ]")
_INITIALS = re.compile(r"(?<![^\W_])((?:[^\W\d_]\.){2,}[^\W\d_]?)(?![^\W_])\.?")


@dataclass(frozen=True)
class VerbalizedText:
    """A verbalized text with its source spans; `left_out` counts characters outside the alphabet that were dropped."""

    traced: SpanMap
    left_out: dict[str, int]


@dataclass(frozen=True)
class Verbalizer:
    """The rules of one language with the patterns made from them. Make one with `load_verbalizer`."""

    rules: TextRules

    def verbalize(self, text: str) -> str:
        """`text` as it is spoken."""
        return self._until_stable(SpanMap.of(text)).text

    def verbalize_traced(self, text: str) -> VerbalizedText:
        """`text` as it is spoken, with the source of each part."""
        prepared = self._before_alphabet(SpanMap.of(text, track=True))
        left_out = Counter(character for character in prepared.text if character != " " == self._sound(character))
        return VerbalizedText(self._until_stable(self._within_alphabet(prepared)), dict(sorted(left_out.items())))

    def _until_stable(self, text: SpanMap) -> SpanMap:
        """Apply the steps until nothing changes: one step may write what an earlier one reads."""
        for _ in range(_MOST_PASSES):
            again = self._within_alphabet(self._before_alphabet(text))
            if again.text == text.text:
                break
            text = again
        return text

    def _before_alphabet(self, text: SpanMap) -> SpanMap:
        rules = self.rules
        # Characters are cleaned first, because the tables match them.
        text = text.sub(_UNWRITTEN, lambda match: " " if match.group() in _CONTROLS else "", "Unicode")
        text = text.sub(_HYPHENS, lambda match: "-", "Unicode")
        text = _in_form(text, rules.unicode)
        text = text.sub(self._table_pattern("characters"), lambda match: rules.characters[match.group()], "character")
        text = text.sub(
            self._words, lambda match: f"{match[1] or ''}{rules.words[match[2]]}{match[3] or ''}", "word")

        # The order matters: dates before abbreviations, and numbers after these.
        if rules.native_digits:
            text = to_ascii_digits(text)
        if self._numbers:
            text = self._numbers.read_dates(text)
        text = text.sub(self._abbreviations, self._abbreviated, "abbreviation")
        if self._numbers:
            text = self._numbers.read_numbers(text)
        if rules.join_initials:
            text = text.sub(_INITIALS, lambda match: match[1].replace(".", ""), "initials")
        text = text.sub(self._table_pattern("symbols"), lambda match: f" {rules.symbols[match.group()]} ", "sign")
        text = say_latin(text, rules.latin, self._attached)
        text = text.sub(self._folded, lambda match: self._folds[ord(match.group())], "folded")
        return text.sub(self._table_pattern("marks"), lambda match: rules.marks[match.group()], "mark")

    def _within_alphabet(self, text: SpanMap) -> SpanMap:
        if self.rules.alphabet:
            text = text.sub(self._outside_run, lambda match: self._sounded(match.group()), "foreign letter")
        return text.sub(_SPACES, lambda match: " ", "space")

    def _sounded(self, run: str) -> str:
        """The replacement of characters outside the alphabet; consecutive letters are one word."""
        parts = []
        for letters, characters in groupby(run, key=lambda character: unicodedata.category(character)[0] in "LM"):
            part = "".join(characters)
            sound = letters and self.rules.foreign == "sound" and sound_of(part, self.rules.latin)
            parts.append(sound or "".join(map(self._sound, part)))
        return "".join(parts)

    def _sound(self, character: str) -> str:
        """The replacement of one character: itself, its sound, or a space if it is left out."""
        if not self.rules.alphabet or not self._outside.fullmatch(character):
            return character
        kind = unicodedata.category(character)[0]
        if kind == "L":
            return character if self.rules.foreign == "keep" else self._foreign(character)
        if kind == "N" and self._numbers:
            value = unicodedata.numeric(character, -1.0)
            if value >= 0 and value % 1 == 0:
                return f" {self._numbers.whole(str(int(value)))} "
        return "" if kind == "M" else " "

    def _foreign(self, letter: str) -> str:
        """The sound of a letter; without one, the last word of its Unicode name."""
        name = unicodedata.name(letter, "letter").split()
        spelled = (letter, unicodedata.normalize("NFKD", letter), name[-1], "letter")
        return next(filter(None, (sound_of(text, self.rules.latin) for text in spelled)), " ")

    def _abbreviated(self, match: re.Match[str]) -> str:
        words = next(expansion for pattern, expansion in self._abbreviation_list
                     if pattern.match(match.string, match.start(2))) + (match[3] or "")
        if match[1]:
            prefix = next((prefix for prefix in self.rules.replaced_prefixes if words.startswith(prefix)), "")
            return match[1] + words.removeprefix(prefix)
        return words

    @cached_property
    def _attached(self) -> tuple[frozenset[str], frozenset[str]]:
        """What may be attached before and after a Latin word or digits."""
        numbers = self.rules.numbers
        return frozenset(numbers.attached_before), frozenset(numbers.attached_after)

    @cached_property
    def _numbers(self) -> NumberReader | None:
        speller = number_speller(self.rules.numbers)
        return NumberReader(self.rules, speller) if speller else None

    @cached_property
    def _abbreviation_list(self) -> tuple[tuple[re.Pattern[str], str], ...]:
        longest_first = sorted(self.rules.abbreviations.items(), key=lambda entry: len(entry[0]), reverse=True)
        return tuple((re.compile(abbreviation(entry, last_dot=True)), expansion) for entry, expansion in longest_first)

    @cached_property
    def _abbreviations(self) -> re.Pattern[str]:
        if not self.rules.abbreviations:
            return NEVER
        every = "|".join(pattern.pattern for pattern, _ in self._abbreviation_list)
        prefixes, suffixes = map(one_of, self._attached)
        return re.compile(rf"(?<![^\W\d_])({prefixes})?({every})(?:\.({suffixes})(?![\w{patterns.MARKS}]))?")

    def _table_pattern(self, name: str) -> re.Pattern[str]:
        """Any entry of a table of the rules."""
        if name not in self._table_patterns:
            self._table_patterns[name] = re.compile(one_of(getattr(self.rules, name)))
        return self._table_patterns[name]

    @cached_property
    def _table_patterns(self) -> dict[str, re.Pattern[str]]:
        return {}

    @cached_property
    def _words(self) -> re.Pattern[str]:
        """A whole word; a Latin word also with what another script attaches to it."""
        prefixes, suffixes = map(one_of, self._attached)
        latin = one_of(word for word in self.rules.words if word[0].isascii() and word[0].isalpha())
        edge = rf"[\w{patterns.MARKS}]"
        return re.compile(rf"(?<!{edge})(?:({prefixes})(?={latin}(?![A-Za-z0-9])))?({one_of(self.rules.words)})"
                          rf"(?:({suffixes})(?<=[^A-Za-z0-9]))?(?!{edge})")

    @cached_property
    def _folds(self) -> dict[int, str]:
        folds: dict[int, str] = {}
        for name in self.rules.fold:
            folds |= self.rules.folds[name].table()
        return folds

    @cached_property
    def _folded(self) -> re.Pattern[str]:
        return re.compile(one_of(map(chr, self._folds)))

    @cached_property
    def _outside(self) -> re.Pattern[str]:
        """A character outside the alphabet that is no space and no silent mark."""
        inside = "".join(re.escape(entry) if len(entry) == 1 else f"{re.escape(entry[0])}-{re.escape(entry[2])}"
                         for entry in self.rules.alphabet)
        inside = inside + (inside.upper() if "a-z" in self.rules.alphabet else "") + (
            "A-Za-z" if self.rules.latin.words == "keep" else "") + ("" if self._numbers else "0-9")
        return re.compile(rf"[^\s{inside}{_silent_marks()}]")

    @cached_property
    def _outside_run(self) -> re.Pattern[str]:
        return re.compile(f"{self._outside.pattern}+")


@lru_cache(maxsize=32)
def load_verbalizer(content: bytes, location: str = "the rules") -> Verbalizer:
    """The verbalizer of a rules file; `UserError` for rules that cannot be used."""
    verbalizer = Verbalizer(parse_rules(content, location))
    # A missing package, or another version of it, is reported now.
    number_speller(verbalizer.rules.numbers)
    return verbalizer


def check_tables(rules: TextRules, location: str) -> None:
    """Refuse rules that rewrite their own output without end, such as a to b and b to a."""
    verbalizer = Verbalizer(rules)
    for name in ("characters", "words", "abbreviations", "units", "symbols", "marks"):
        table: Table = getattr(rules, name)
        for entry, expansion in table.items():
            once = verbalizer.verbalize(f"{expansion} ")
            if verbalizer.verbalize(once) != once or len(once) > _MAX_OUTPUT:
                raise UserError(
                    f"The rules in {location} cannot be used: {name}: {entry!r} becomes {expansion!r}, and the rules "
                    "change that again without end.", "Take out one of the entries that form a circle.",
                )


def _in_form(text: SpanMap, form: str) -> SpanMap:
    """In a Unicode form; sequence by sequence if that gives the same, so that spans stay small."""
    if form == "keep" or unicodedata.is_normalized(form, text.text):  # type: ignore[arg-type]
        return text
    expected = unicodedata.normalize(form, text.text)  # type: ignore[arg-type]

    def normal(match: re.Match[str]) -> str:
        return unicodedata.normalize(form, match.group())  # type: ignore[arg-type]

    parts = text.sub(_CLUSTER, normal, "Unicode")
    if parts.text == expected:
        return parts
    return text.sub(re.compile(r".+", re.DOTALL), lambda match: expected, "Unicode")


@lru_cache(maxsize=1)
def _silent_marks() -> str:
    """Punctuation that is not read aloud, as part of a character class; the normalisers handle it."""
    marks = [chr(code) for code in range(0x3100) if unicodedata.category(chr(code))[0] == "P"]
    return re.escape("".join(mark for mark in marks if mark not in SPOKEN_PUNCTUATION)) + JOINERS


FOLDER = Path(__file__).with_name("rules")
ENGINES = Path(__file__).with_name("number_engines.yaml")
_IN_CLDR = {"kz": "kk", "tet": "und"}
"""Substitutes for languages that CLDR lacks; ICU would take the machine's own language."""


@cache
def written_by_hand() -> tuple[str, ...]:
    """Codes of the languages with shipped rules."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def rule_names() -> tuple[str, ...]:
    """All names of shipped rules, the hand-written ones first."""
    return (*written_by_hand(), *sorted(_by_library()))


def has_rules(name: str) -> bool:
    return name in written_by_hand() or name in _by_library()


def rules_text(name: str) -> str:
    """The shipped rules `name` as YAML; `UserError` for an unknown name."""
    if name in written_by_hand():
        return (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    if name in _by_library():
        return _numbers_alone(name)
    raise UserError(f"No text rules named {name!r} ship.", f"There are: {', '.join(rule_names())}.")


@lru_cache(maxsize=64)
def checked_rules(text: str | bytes, location: str) -> TextRules:
    """Rules that are valid and stable, with their packages installed; `UserError` otherwise."""
    rules = parse_rules(text, location)
    if rules.numbers.engine in PACKAGES and not rules.numbers.library:
        numbers = rules.numbers.model_copy(update={"library": library_version(rules.numbers.engine)})
        rules = rules.model_copy(update={"numbers": numbers})
    check_tables(rules, location)
    return rules


def verbalizer_of(rules: TextRules) -> Verbalizer:
    """The verbalizer of `rules`, as a saved front-end has it."""
    return load_verbalizer(rules.to_json(), rules.name or "the rules")


@cache
def _by_library() -> dict[str, Numbers]:
    """How a library says the numbers of a language without rules of ours: ICU if a table says so, else num2words."""
    languages = {code.lower().replace("_", "-"): code for code in library_languages()}
    languages |= {"kk": languages["kz"]} if "kz" in languages else {}
    numbers_of = {code: Numbers(engine="num2words", language=language) for code, language in languages.items()}
    tables = yaml.safe_load(ENGINES.read_text(encoding="utf-8"))
    for code, entry in tables["icu"].items():
        numbers_of[code] = Numbers(engine="icu", language=entry["icu"], amend=entry.get("amend", {}))
    for code, word in tables["minus"].items():
        numbers_of[code] = numbers_of[code].model_copy(update={"minus": word})
    return {code: numbers for code, numbers in numbers_of.items() if code not in written_by_hand()}


def _numbers_alone(name: str) -> str:
    language, numbers = name.partition("-")[0], _by_library()[name]
    minus = numbers.minus or '""'
    decimal, thousands = (",", ".") if _has_decimal_comma(language) else (".", ",")
    amend = "".join(f"\n    {json.dumps(word, ensure_ascii=False)}: {json.dumps(replacement, ensure_ascii=False)}"
                    for word, replacement in numbers.amend.items())
    no_entries = "{}"
    return f"""# Numbers by {numbers.engine}. Add what your texts need: words, abbreviations, symbols, units, dates.
version: {VERSION}
name: {name}
language: {language}
unicode: NFC

words: {{}}
abbreviations: {{}}
symbols: {{}}
units: {{}}
marks: {{}}

percent: ""  # such as "{{number}} percent"
numbers:
  engine: {numbers.engine}
  library: {library_version(numbers.engine)}
  language: {json.dumps(numbers.language)}
  amend: {amend or no_entries}
  thousands: "{thousands}"
  grouped_by_space: {str(_groups_by_space(language)).lower()}  # 5 200 is one number
  decimal: "{decimal}"
  point: ""  # empty: as the library says it, else as tenths and hundredths; where it says none, the number stays
  minus: {minus}  # empty: as the library says it
  ordinals:
    dotted: {str(_has_dotted_ordinals(language)).lower()}  # a number with a dot before a small letter
"""


def _has_dotted_ordinals(language: str) -> bool:
    """Whether the day of a date has a dot (CLDR 48); Turkish has it with other ordinals alone."""
    return language == "tr" or "12." in _shown("{0,date,long}", language, datetime(2001, 5, 12, 12, tzinfo=UTC))


def _has_decimal_comma(language: str) -> bool:
    """Whether the decimal sign is a comma (CLDR 48)."""
    return "," in _shown("{0,number}", language, 1.5)


def _groups_by_space(language: str) -> bool:
    """Whether groups of three digits are parted by a space (CLDR 48)."""
    return _shown("{0,number}", language, 1234567)[1].isspace()


def _shown(pattern: str, language: str, value: float | datetime) -> str:
    return MessageFormat(pattern, _IN_CLDR.get(language, language)).format({"0": value})
