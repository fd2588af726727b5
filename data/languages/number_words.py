"""Numbers as words: by the grammar in the rules of a language, or by num2words."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator
from decimal import Decimal
from functools import cache, cached_property
from typing import Protocol

from config.errors import UserError
from config.text_rules import Grammar, Numbers, Ordinals
from data.languages import missing_package

PACKAGE = "num2words"
_REFUSED = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)  # what num2words raises


class NumberSpeller(Protocol):
    """Numbers of one language; None for a number without a name. `point` is empty if unknown."""

    @property
    def point(self) -> str: ...

    def cardinal(self, number: int) -> str | None: ...

    def ordinal(self, number: int) -> str | None: ...


def number_speller(numbers: Numbers) -> NumberSpeller | None:
    """The speller for `numbers`; None if digits stay. `UserError` for another version of num2words."""
    if numbers.engine == "grammar":
        assert numbers.grammar is not None
        return GrammarSpeller(numbers.grammar, numbers.ordinals)
    if numbers.engine == "num2words":
        _check_library(numbers.library)
        return LibrarySpeller(numbers.language)
    return None


def library_version() -> str:
    """Such as `num2words 0.5.14`; empty when it is not installed."""
    try:
        return f"{PACKAGE} {importlib.metadata.version(PACKAGE)}"
    except importlib.metadata.PackageNotFoundError:
        return ""


@cache
def library_languages() -> frozenset[str]:
    """Codes that num2words knows; none when it is not installed."""
    if importlib.util.find_spec(PACKAGE) is None:
        return frozenset()
    from num2words import CONVERTER_CLASSES

    return frozenset(CONVERTER_CLASSES)


class GrammarSpeller:
    """Numbers by a grammar."""

    def __init__(self, grammar: Grammar, ordinals: Ordinals) -> None:
        self._grammar, self._ordinals = grammar, ordinals
        self.point = ""  # the rules have it

    def cardinal(self, number: int) -> str | None:
        grammar = self._grammar
        if not 0 <= number < grammar.limit:
            return None
        if number < 10:
            return grammar.units[number]
        terms = list(self._terms(number))
        if grammar.suffix and len(terms) > 1:
            terms = [self._suffixed(term) for term in terms]
        if grammar.unit_is_term:
            return grammar.link.join(terms)
        return grammar.link.join(terms).strip()

    def ordinal(self, number: int) -> str | None:
        ordinals = self._ordinals
        if number in ordinals.values:
            return ordinals.values[number]
        words = self.cardinal(number)
        if words is None:
            return None
        first, space, last = words.rpartition(" ")
        words = ordinals.words.get(last, last + ordinals.suffix)
        return f"{ordinals.prefix}{first}{space}{words}"

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

    def _suffixed(self, term: str) -> str:
        first, space, last = term.rpartition(" ")
        return first + space + self._grammar.suffixed.get(last, last + self._grammar.suffix)


class LibrarySpeller:
    """Numbers by num2words, without its commas."""

    def __init__(self, language: str) -> None:
        if language not in library_languages():
            raise UserError(f"{PACKAGE} does not know the language {language!r}.",
                            f"Write a grammar in the rules, or take one of: {', '.join(sorted(library_languages()))}.")
        self._language = language

    def cardinal(self, number: int) -> str | None:
        return self._words(number, "cardinal")

    def ordinal(self, number: int) -> str | None:
        return self._words(number, "ordinal")

    @cached_property
    def point(self) -> str:
        """The words between 3 and 5 in 3.5; empty for languages in which num2words says 3.50, or three and a half."""
        words, first, last = self._words(Decimal("3.5"), "cardinal"), self.cardinal(3), self.cardinal(5)
        if not (words and first and last and words.startswith(f"{first} ") and words.endswith(f" {last}")):
            return ""
        return words[len(first):-len(last)].strip()

    def _words(self, number: int | Decimal, form: str) -> str | None:
        from num2words import num2words

        try:
            return " ".join(str(num2words(number, lang=self._language, to=form)).replace(",", " ").split())
        except _REFUSED:
            return None


def _check_library(wanted: str) -> None:
    there = library_version()
    if not there:
        raise missing_package("This language's", PACKAGE, f"{PACKAGE}==0.5.14")
    if wanted and wanted != there:
        raise UserError(
            f"The rules were made with {wanted}; {there} is installed, which may say numbers otherwise.",
            f"Install that version: python -m pip install {wanted.replace(' ', '==')}.",
        )
