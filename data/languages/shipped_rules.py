"""Rules in the package: hand-written for some languages, numbers only for every language of num2words.

The texts are YAML in `rules/`. The decimal signs of the other languages are from CLDR.
"""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path

from config.errors import UserError
from config.text_rules import VERSION, TextRules, parse_rules
from data.languages.number_words import library_languages, library_version
from data.languages.verbalizer import Verbalizer, check_tables, load_verbalizer

FOLDER = Path(__file__).with_name("rules")
# The decimal sign is a comma (CLDR 46, `decimal` of the default numbering system).
_COMMA = frozenset({
    "az", "be", "ca", "cs", "da", "de", "es", "fi", "fr", "hu", "id", "is", "it", "kk", "kz", "lt", "lv", "nl", "no",
    "pl", "pt", "ro", "ru", "sk", "sl", "sr", "sv", "tr", "uk", "vi",
})


@cache
def written_by_hand() -> tuple[str, ...]:
    """Codes of the languages with rules of their own."""
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
def checked_rules(text: str | bytes, where: str) -> TextRules:
    """Rules that are valid and stable, with their packages installed; `UserError` otherwise."""
    rules = parse_rules(text, where)
    if rules.numbers.engine == "num2words" and not rules.numbers.library:
        numbers = rules.numbers.model_copy(update={"library": library_version()})
        rules = rules.model_copy(update={"numbers": numbers})
    check_tables(rules, where)
    return rules


def verbalizer_of(rules: TextRules) -> Verbalizer:
    """The verbalizer of `rules`, as a saved front-end has it."""
    return load_verbalizer(rules.to_json(), rules.name or "the rules")


def _by_library() -> dict[str, str]:
    """Our codes of the languages that num2words knows, and its own."""
    ours = {code.lower().replace("_", "-"): code for code in library_languages()}
    ours |= {"kk": ours["kz"]} if "kz" in ours else {}
    return {code: own for code, own in ours.items() if code not in written_by_hand()}


def _numbers_alone(name: str) -> str:
    language = name.partition("-")[0]
    decimal, thousands = (",", ".") if language in _COMMA else (".", ",")
    return f"""# Numbers by num2words. Add what your texts need: words, abbreviations, symbols, units, dates.
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
  engine: num2words
  library: {library_version()}
  language: {_by_library()[name]}
  thousands: "{thousands}"
  decimal: "{decimal}"
  point: ""  # empty: as num2words says it; where it is not sure, numbers with decimals stay
"""
