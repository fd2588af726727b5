"""Text rules of a workspace: shipped ones, a person's own, what they do to texts, and what was trained with them.

A person's rules are `rules/NAME.yaml`. A tokenizer takes a copy, and its extensions, runs and
exports take the tokenizer's, so an edit never reaches what is trained. Rules that something was
made with are not overwritten: the edit is saved under another name. Never loads torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from config.errors import UserError
from config.text_rules import TextRules, parse_rules
from core.workspace import Workspace, resolve_inside
from data.languages import shipped_rules as shipped
from data.languages.verbalizer import Verbalizer
from data.manifest import PreparedDataset
from data.normalisers import TextNormaliser

LARGEST_FILE = 512 * 1024  # bytes of rules
_COPIES = (
    ("tokenizer", "tokenizers/*/rules-*.json"),
    ("extension", "extensions/*/front_end/rules-*.json"),
    ("run", "runs/*/checkpoints/step-*/front_end/rules-*.json"),
    ("export", "exports/*/front_end/rules-*.json"),
)
_NAME_LINE = re.compile(r"^name:.*$", re.MULTILINE)


@dataclass(frozen=True)
class Use:
    """Something that was made with rules: its kind, its name, and the hash of the rules it took."""

    kind: str
    name: str
    rules: str
    hash: str


@dataclass(frozen=True)
class Entry:
    """Rules that can be chosen. `edited` names what was made with another text of the same name."""

    name: str
    language: str
    own: bool
    hash: str
    about: str
    used_by: tuple[str, ...] = ()
    edited: tuple[str, ...] = ()
    fault: str = ""


@dataclass(frozen=True)
class Saved:
    """Rules on the disk; `state` is `written` or `already there`."""

    name: str
    hash: str
    path: Path
    state: str


def content_hash(rules: TextRules) -> str:
    """sha256 of the rules as they are saved beside a tokenizer."""
    return hashlib.sha256(rules.to_json()).hexdigest()


def label(writer: Verbalizer | None) -> str:
    """Name and hash of a front-end's rules, for a report; empty when it has none."""
    return f"{writer.rules.name or 'unnamed'} ({content_hash(writer.rules)[:12]})" if writer else ""


def ships(name: str) -> bool:
    """Whether rules of this name come with the app."""
    return shipped.has_rules(name)


def checked(text: str) -> TextRules:
    """Rules that a person is writing; `UserError` names what is wrong."""
    return shipped.checked_rules(text, "the editor")


def read(workspace: Workspace, name: str) -> str:
    """The YAML of `name`: a person's own, else shipped; `UserError` when there is none."""
    if shipped.has_rules(name):
        return shipped.rules_text(name)
    path = _path(workspace, name)
    if not path.is_file():
        own = ", ".join(_own(workspace)) or "none"
        raise UserError(f"There are no text rules named {name!r} (your own: {own}).",
                        f"These ship: {', '.join(shipped.rule_names())}.")
    return _read_file(path)


def load(workspace: Workspace, name: str) -> TextRules:
    """The rules `name`, checked, under that name."""
    return shipped.checked_rules(read(workspace, name), f"rules {name!r}").model_copy(update={"name": name})


def for_dataset(workspace: Workspace, name: str, language: str) -> TextRules | None:
    """The rules that texts in `language` shall go through; None for no name."""
    if not name:
        return None
    rules = load(workspace, name)
    if rules.language and rules.language.partition("-")[0] != language.partition("-")[0]:
        raise UserError(f"The rules {name!r} are for {rules.language!r}, the texts are in {language!r}.",
                        f"Choose rules for {language!r}, or write `language: {language}` in a copy of these.")
    return rules


def reading(workspace: Workspace, name: str, language: str, normaliser: str) -> TextNormaliser:
    """How texts of a new language are read: by the rules `name`, if any, then by the normaliser."""
    rules = for_dataset(workspace, name, language)
    return TextNormaliser(normaliser, shipped.verbalizer_of(rules).verbalize if rules else str)


def entries(workspace: Workspace, *, own: bool = False) -> tuple[Entry, ...]:
    """All rules that were written by hand, a person's own first, or these alone."""
    names = (*_own(workspace), *(() if own else shipped.written_by_hand()))
    uses = find_uses(workspace) if names else ()
    return tuple(_entry(workspace, name, uses) for name in names)


def numbers_alone() -> tuple[str, ...]:
    """Codes of languages whose numbers alone are known, by num2words."""
    return tuple(name for name in shipped.rule_names() if name not in shipped.written_by_hand())


def choices(workspace: Workspace, language: str = "") -> list[str]:
    """Names that can be chosen for a language: own rules, then shipped ones of it; of every language when empty."""
    own = [name for name in _own(workspace) if not language or _language_of(workspace, name) in ("", language)]
    ready = [name
             for name in shipped.rule_names() if not language or name.partition("-")[0] == language.partition("-")[0]]
    return [*own, *ready]


def save(workspace: Workspace, name: str, text: str) -> Saved:
    """Check `text` and keep it as `name`; rules that something was made with are refused, with a free name."""
    if shipped.has_rules(name):
        raise UserError(f"The rules {name!r} ship with the app and are not changed.",
                        f"Save yours under another name, such as {free_name(workspace, name)!r}.")
    path = _path(workspace, name)
    if len(text.encode("utf-8", "replace")) > LARGEST_FILE:
        raise UserError(f"The rules are larger than {LARGEST_FILE // 1024} KiB.",
                        "Leave out what the texts do not hold.")
    rules = shipped.checked_rules(text, f"rules {name!r}").model_copy(update={"name": name})
    wanted = content_hash(rules)
    made = [use for use in find_uses(workspace) if use.rules == name and use.hash != wanted]
    if made:
        raise UserError(
            f"{_named(made)} made with the rules {name!r}: another text under that name would not be "
            "what they read by.",
            f"Save the edit under another name, such as {free_name(workspace, name)!r}, and make a tokenizer with it.",
        )
    text = _with_name(text, name)
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return Saved(name, wanted, path, "already there")
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)
    return Saved(name, wanted, path, "written")


def fork(workspace: Workspace, name: str, text: str) -> Saved:
    """Like `save`; where that name may not be written, under a free one."""
    taken = shipped.has_rules(name) or any(use.rules == name for use in find_uses(workspace))
    return save(workspace, free_name(workspace, name) if taken else name, text)


def free_name(workspace: Workspace, name: str) -> str:
    """Such as `am-2`, which nothing has yet."""
    stem = re.sub(r"-\d+$", "", name)
    taken = {use.rules for use in find_uses(workspace)} | set(_own(workspace)) | set(shipped.rule_names())
    return next(made for number in range(2, 10_000) if (made := f"{stem}-{number}") not in taken)


def find_uses(workspace: Workspace) -> tuple[Use, ...]:
    """Everything in the workspace that holds a copy of rules; one entry for all checkpoints of a run."""
    found: dict[Use, None] = {}
    for kind, pattern in _COPIES:
        for path in sorted(workspace.path.glob(pattern)):
            made = path.relative_to(workspace.path).parts[1]
            try:
                content = path.read_bytes()
                name = str(json.loads(content)["name"])
            except (OSError, ValueError, KeyError, TypeError):
                continue  # a damaged copy is told where it is loaded
            found[Use(kind, made, name, hashlib.sha256(content).hexdigest())] = None
    return tuple(found)


def missed(dataset: PreparedDataset, chosen: str) -> str:
    """What to say when no rules were chosen, some ship for the language, and the texts have digits; else nothing."""
    language = dataset.card.language
    texts = [clip.text for clip in dataset.clips if any(map(str.isnumeric, clip.text))]
    if chosen or not texts or not shipped.has_rules(language):
        return ""
    return (f"{len(texts)} texts have digits, which become tokens of their own, such as in {texts[0][:60]!r}. The text "
            f"rules {language!r} write them out as they are spoken: --rules {language}, or Text rules on the page.")


def _entry(workspace: Workspace, name: str, uses: tuple[Use, ...]) -> Entry:
    own = not shipped.has_rules(name)
    try:
        rules = load(workspace, name)
    except UserError as error:
        return Entry(name, "", own, "", "", fault=error.message)
    now = content_hash(rules)
    mine = [use for use in uses if use.rules == name]
    return Entry(name, rules.language, own, now, rules.about,
                 tuple(f"{use.kind} {use.name}" for use in mine if use.hash == now),
                 tuple(f"{use.kind} {use.name}" for use in mine if use.hash != now))


def _named(uses: list[Use]) -> str:
    shown = ", ".join(f"{use.kind} {use.name}" for use in uses[:4]) + (" and others" if len(uses) > 4 else "")
    return f"{shown[0].upper()}{shown[1:]} {'was' if len(uses) == 1 else 'were'}"


def _with_name(text: str, name: str) -> str:
    return _NAME_LINE.sub(f"name: {name}", text, count=1) if _NAME_LINE.search(text) else f"name: {name}\n{text}"


def _language_of(workspace: Workspace, name: str) -> str:
    try:
        return parse_rules(_read_file(_path(workspace, name)), name).language
    except UserError:
        return ""


def _own(workspace: Workspace) -> list[str]:
    return sorted(path.stem for path in workspace.rules.glob("*.yaml") if not path.name.startswith("."))


def _path(workspace: Workspace, name: str) -> Path:
    return resolve_inside(workspace.rules, name).with_name(f"{name}.yaml")


def _read_file(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UserError(f"{path} is larger than {LARGEST_FILE // 1024} KiB.", "These are no text rules.")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} could not be read: {error}.", "Write it as UTF-8 text.") from error
