"""What a front-end says of each language and each new token, and how that stands in its settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BASE_FILE = "tokenizer.json"


@dataclass(frozen=True)
class NewToken:
    """A token that an extension added: `kind` is `tag`, `character`, `merge` or `byte`."""

    id: int
    text: str
    language: str
    kind: str


@dataclass(frozen=True)
class Language:
    """How one language is written down for the model. A model of one language may have no tag (empty)."""

    code: str
    tag: str
    normaliser: str
    file: str
    added: tuple[NewToken, ...] = ()
    rules: str = ""  # file of the rules that write text out before the normaliser; empty: none


def name_characters(characters: Sequence[str], limit: int = 10) -> str:
    """Characters as people can find them: `ሀ (U+1200)`."""
    shown = ", ".join(f"{character} (U+{ord(character):04X})" for character in characters[:limit])
    return shown + (f" and {len(characters) - limit} more" if len(characters) > limit else "")


def language_from_json(code: str, entry: dict) -> Language:
    file = str(entry["tokenizer"])
    if file not in (BASE_FILE, f"language-{code}.json"):
        raise ValueError(f"tokenizer file {file!r} of {code!r}")
    added = tuple(
        NewToken(int(token["id"]), str(token["text"]), code, str(token["kind"])) for token in entry.get("added", ())
    )
    rules = str(entry.get("rules", ""))
    if rules not in ("", rules_file(code)) or (rules and file == BASE_FILE):
        raise ValueError(f"rules file {rules!r} of {code!r}")
    return Language(code, str(entry["tag"]), str(entry["normaliser"]), file, added, rules)


def language_to_json(entry: Language) -> dict:
    added = [{"id": token.id, "text": token.text, "kind": token.kind} for token in entry.added]
    rules = {"rules": entry.rules} if entry.rules else {}  # left out where there are none, so that fingerprints stay
    return {"tag": entry.tag, "normaliser": entry.normaliser, **rules, "tokenizer": entry.file, "added": added}


def rules_file(code: str) -> str:
    """Where the rules of a language stand beside its tokenizer."""
    return f"rules-{code}.json"
