"""Text rules of a workspace: shipped ones, the user's own, edits of them, their effect on texts, and their uses.

The user's rules are `rules/NAME.yaml`. A tokenizer takes a copy, and its extensions, runs and exports take the
tokenizer's, so an edit never reaches a trained model. Rules that something was made with are not overwritten: the edit
is saved under another name. The YAML is edited as text, so that the user's comments and order stay.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from pathlib import Path

from config import foreign
from config.errors import UserError
from config.languages import code_of
from config.text_rules import TextRules, parse_rules
from core.workspace import Workspace, free_name, resolve_inside
from data.durable_files import write_text
from data.languages import verbalizer as shipped
from data.languages.span_map import TextChange
from data.languages.verbalizer import Verbalizer
from data.manifest import PreparedDataset, read_json_lines
from data.normalisers import TextNormaliser

LARGEST_FILE = 512 * 1024  # bytes of rules
TABLES = ("abbreviations", "words", "symbols", "units", "characters", "marks")
"""Tables that an entry can be added to."""
_COPIES = (
    ("tokenizer", "tokenizers/*/rules-*.json"),
    ("extension", "extensions/*/front_end/rules-*.json"),
    ("run", "runs/*/checkpoints/step-*/front_end/rules-*.json"),
    ("export", "exports/*/front_end/rules-*.json"),
)
_NAME_LINE = re.compile(r"^name:.*$", re.MULTILINE)


@dataclass(frozen=True)
class RulesUse:
    """Something that was made with rules: its kind, its name, and the hash of the rules it took."""

    kind: str
    name: str
    rules: str
    hash: str


@dataclass(frozen=True)
class RulesInfo:
    """Rules that can be chosen. `edited` names the artefacts made with an earlier version."""

    name: str
    language: str
    own: bool
    hash: str
    about: str
    used_by: tuple[str, ...] = ()
    edited: tuple[str, ...] = ()
    fault: str = ""


@dataclass(frozen=True)
class SavedRules:
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
    """Rules from the editor; `UserError` names the fault."""
    return shipped.checked_rules(text, "the editor")


def read(workspace: Workspace, name: str) -> str:
    """The YAML of `name`: the user's own, else shipped; `UserError` when there is none."""
    if shipped.has_rules(name):
        return shipped.rules_text(name)
    path = _path(workspace, name)
    if not path.is_file():
        own_rules = _own(workspace)
        near = [*filter(ships, [code_of(name)]), *get_close_matches(name, (*own_rules, *shipped.rule_names()), 3)]
        raise UserError(f"There are no text rules named {name!r} (your own: {', '.join(own_rules) or 'none'}).",
                        (f"Near: {', '.join(near)}. " if near else "")
                        + "List all: python -m scripts rules; on the page: Text rules on the Tokenizer tab.")
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


def for_languages(workspace: Workspace, names: str, languages: Sequence[str]) -> dict[str, TextRules | None]:
    """The rules of each language, of `names` with commas between them; None for a language without."""
    if len(languages) == 1 and "," not in names:
        return {languages[0]: for_dataset(workspace, names, languages[0])}
    rules_of: dict[str, TextRules | None] = dict.fromkeys(languages)
    for name in filter(None, names.split(",")):
        rules_language = _language_of(workspace, name) or name
        fitting = [code for code in languages if code.partition("-")[0] == rules_language.partition("-")[0]]
        # Without a fitting language, the first one says why the rules do not fit.
        for code in fitting or languages[:1]:
            other = rules_of[code]
            if other is not None:
                raise UserError(f"The rules {other.name!r} and {name!r} are both chosen, and the texts in {code!r} go "
                                "through one of them.", "Choose one for each language of the dataset.")
            rules_of[code] = for_dataset(workspace, name, code)
    return rules_of


def reading(workspace: Workspace, name: str, language: str, normaliser: str) -> TextNormaliser:
    """How texts of a new language are read: by the rules `name`, if any, then by the normaliser."""
    rules = for_dataset(workspace, name, language)
    return TextNormaliser(normaliser, shipped.verbalizer_of(rules).verbalize if rules else str, name)


def list_rules(workspace: Workspace, *, own: bool = False) -> tuple[RulesInfo, ...]:
    """All rules that were written by hand, the user's own first; only these with `own`."""
    names = (*_own(workspace), *(() if own else shipped.written_by_hand()))
    uses = find_uses(workspace) if names else ()
    listed = []
    for name in names:
        try:
            rules = load(workspace, name)
        except UserError as error:
            listed.append(RulesInfo(name, "", not shipped.has_rules(name), "", "", fault=error.message))
            continue
        # Artefacts made with an older version are listed apart.
        current_hash = content_hash(rules)
        rule_uses = [use for use in uses if use.rules == name]
        listed.append(RulesInfo(name, rules.language, not shipped.has_rules(name), current_hash, rules.about,
                                tuple(f"{use.kind} {use.name}" for use in rule_uses if use.hash == current_hash),
                                tuple(f"{use.kind} {use.name}" for use in rule_uses if use.hash != current_hash)))
    return tuple(listed)


def numbers_alone() -> tuple[str, ...]:
    """Codes of languages for which only a library's numbers are known."""
    return tuple(name for name in shipped.rule_names() if name not in shipped.written_by_hand())


def choices(workspace: Workspace, language: str = "") -> list[str]:
    """Names that can be chosen for a language: own rules, then shipped ones of it; of every language when empty."""
    own_rules = [name for name in _own(workspace) if not language or _language_of(workspace, name) in ("", language)]
    ready = [name
             for name in shipped.rule_names() if not language or name.partition("-")[0] == language.partition("-")[0]]
    return [*own_rules, *ready]


def save(workspace: Workspace, name: str, text: str) -> SavedRules:
    """Check `text` and save it as `name`; if something was made with these rules, refuse and suggest a free name."""
    if shipped.has_rules(name):
        raise UserError(f"The rules {name!r} ship with the app and are not changed.",
                        f"Save yours under another name, such as {copy_name(workspace, name)!r}.")

    path = _path(workspace, name)
    if len(text.encode("utf-8", "replace")) > LARGEST_FILE:
        raise UserError(f"The rules are larger than {LARGEST_FILE // 1024} KiB.",
                        "Leave out what the texts do not hold.")

    rules = shipped.checked_rules(text, f"rules {name!r}").model_copy(update={"name": name})

    # An artefact keeps its copy of the rules, and the name must go on meaning that copy.
    new_hash = content_hash(rules)
    outdated = [use for use in find_uses(workspace) if use.rules == name and use.hash != new_hash]
    if outdated:
        users = ", ".join(f"{use.kind} {use.name}" for use in outdated[:4])
        users += " and others" if len(outdated) > 4 else ""
        raise UserError(
            f"{users[0].upper()}{users[1:]} {'was' if len(outdated) == 1 else 'were'} made with the rules {name!r}: "
            "another text under that name would not be what they read by.",
            f"Save the edit under another name, such as {copy_name(workspace, name)!r}, and make a tokenizer with it.",
        )

    # The name inside the file is the name of the file.
    line = f"name: {name}"
    text = _NAME_LINE.sub(line, text, count=1) if _NAME_LINE.search(text) else f"{line}\n{text}"
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return SavedRules(name, new_hash, path, "already there")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return SavedRules(name, new_hash, path, "written")


def save_copy(workspace: Workspace, name: str, text: str) -> SavedRules:
    """Like `save`; if that name may not be written, under a free one."""
    is_taken = shipped.has_rules(name) or any(use.rules == name for use in find_uses(workspace))
    return save(workspace, copy_name(workspace, name) if is_taken else name, text)


def copy_name(workspace: Workspace, name: str) -> str:
    """Such as `am-2`, which nothing has yet."""
    stem = re.sub(r"-\d+$", "", name)
    used_names = {stem, *(use.rules for use in find_uses(workspace)), *_own(workspace), *shipped.rule_names()}
    return free_name(stem, used_names.__contains__)


def find_uses(workspace: Workspace) -> tuple[RulesUse, ...]:
    """Everything in the workspace that holds a copy of rules; one entry for all checkpoints of a run."""
    uses: dict[RulesUse, None] = {}
    for kind, pattern in _COPIES:
        for path in sorted(workspace.path.glob(pattern)):
            artefact = path.relative_to(workspace.path).parts[1]
            try:
                content = foreign.read_bytes(path)
                name = str(foreign.parse_json(content, path)["name"])
            except (OSError, ValueError, KeyError, TypeError):
                continue  # loading it reports a damaged copy
            uses[RulesUse(kind, artefact, name, hashlib.sha256(content).hexdigest())] = None
    return tuple(uses)


def hint_unused_rules(dataset: PreparedDataset, chosen: str) -> str:
    """A hint when no rules were chosen, some ship for the language, and the texts have digits; else empty."""
    unread = [code for code in dataset.card.languages if shipped.has_rules(code)]
    language = unread[0] if unread else ""
    texts = [clip.text for clip in dataset.clips if clip.language == language and any(map(str.isnumeric, clip.text))]
    if chosen or not texts:
        return ""
    return (f"{len(texts)} texts have digits, each of which becomes a token, such as in {texts[0][:60]!r}. The text "
            f"rules {language!r} write them out as they are spoken: --rules {language}; on the page: {language} under "
            "Text rules.")


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
        return foreign.read_bytes(path, LARGEST_FILE).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} could not be read: {error}.", "Write it as UTF-8 text.") from error


def with_entry(text: str, table: str, entry: str, reading: str) -> str:
    """`text` with an entry in `table`; an earlier one for `entry` is replaced."""
    if not entry.strip() or "\n" in entry + reading:
        raise UserError("The entry has nothing that is written.", "Give what stands in the text, in one line.")
    line = f"  {_quoted(entry.strip())}: {_quoted(reading.strip())}"

    # Find the table, or add it at the end.
    head = re.search(rf"^{table}:[ \t]*(\{{\}})?[ \t]*(#.*)?$", text, re.MULTILINE)
    if head is None:
        if re.search(rf"^{table}:", text, re.MULTILINE):
            raise UserError(f"The table {table!r} stands in one line.", "Write one entry a line in the rules.")
        return f"{text.rstrip()}\n{table}:\n{line}\n"
    block_end = _block_end(text, head.end())
    block = text[head.end():block_end]

    # An entry may be quoted in several ways.
    key = re.escape(entry.strip())
    existing = re.search(rf"^  (?:{key}|'{key}'|{re.escape(_quoted(entry.strip()))}):.*$", block, re.MULTILINE)
    if existing:
        block = block[:existing.start()] + line + block[existing.end():]
    else:
        block = f"\n{line}{block}"
    return f"{text[:head.start()]}{table}:{block}{text[block_end:]}"


def with_latin(text: str, choice: str) -> str:
    """`text` with `latin.words` set."""
    head = re.search(r"^latin:[ \t]*(#.*)?$", text, re.MULTILINE)
    if head is None:
        return re.sub(r"^latin:.*\n?", "", text, flags=re.MULTILINE).rstrip() + f"\nlatin:\n  words: {choice}\n"
    end = _block_end(text, head.end())
    words = re.compile(r"^  words:[ \t]*\w*", re.MULTILINE)
    block, count = words.subn(f"  words: {choice}", text[head.end():end], count=1)
    return text[:head.end()] + (block if count else f"\n  words: {choice}{block}") + text[end:]


def with_folds(text: str, names: list[str]) -> str:
    """`text` with the chosen foldings."""
    line = f"fold: [{', '.join(names)}]"
    edited, count = re.subn(r"^fold:[^\n]*(\n-[^\n]*|\n +-[^\n]*)*", line, text, count=1, flags=re.MULTILINE)
    return edited if count else f"{text.rstrip()}\n{line}\n"


def _block_end(text: str, start: int) -> int:
    """Where the indented lines after `start` end."""
    match = re.compile(r"\n(?=[^\s#])").search(text, start)
    return match.start() if match else len(text)


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class RulesPreview:
    """A text before and after."""

    before: str
    after: str
    changes: tuple[TextChange, ...]
    left_out: dict[str, int]


@dataclass(frozen=True)
class FoldCost:
    """The effect of a folding on some texts: distinct words and letters before and after, and words that it merges."""

    name: str
    about: str
    words: int
    words_after: int
    letters: int
    letters_after: int
    occurrences: int  # occurrences of words whose spelling changes
    total: int  # words in all
    merged: tuple[tuple[str, ...], ...]  # the largest groups of words that become one

    @property
    def merged_word_count(self) -> int:
        return self.words - self.words_after


def preview(rules: TextRules, texts: Iterable[str]) -> list[RulesPreview]:
    """Each text before and after, with the spans that changed."""
    writer = shipped.verbalizer_of(rules)
    traced = ((text, writer.verbalize_traced(text)) for text in texts)
    return [RulesPreview(text, result.traced.text, result.traced.changes(), result.left_out) for text, result in traced]


def fold_costs(rules: TextRules, texts: Iterable[str], limit: int = 12) -> list[FoldCost]:
    """What each folding of `rules`, chosen or not, would do to `texts` after the other rules."""
    writer = shipped.verbalizer_of(rules.model_copy(update={"fold": ()}))
    words = list(chain.from_iterable(re.findall(r"[^\W\d_]+", writer.verbalize(text)) for text in texts))
    letters = set("".join(words))
    costs = []

    # Words that become equal are the cost of a folding, fewer letters its gain.
    for name, fold in rules.folds.items():
        table = fold.table()
        groups: dict[str, set[str]] = {}
        # Words with the same folded form can no longer be told apart.
        for word in words:
            groups.setdefault(word.translate(table), set()).add(word)
        merged = sorted((tuple(sorted(group)) for group in groups.values() if len(group) > 1),
                        key=lambda group: -len(group))
        costs.append(FoldCost(
            name, fold.about, len(set(words)), len(groups), len(letters),
            len({table.get(ord(letter), letter) for letter in letters}),
            sum(word.translate(table) != word for word in words),
            len(words), tuple(merged[:limit])))
    return costs


def dataset_texts(workspace: Workspace, name: str, limit: int | None = None) -> list[str]:
    """Texts of a dataset as they were imported; with `limit`, those with digits, signs or Latin letters first."""
    return list(_texts(workspace.dataset(name) / "manifest.jsonl", limit))


@foreign.cached_by_file(4)  # a manifest may have 100,000 lines
def _texts(path: Path, limit: int | None) -> tuple[str, ...]:
    texts = [str(row.get("text", "")) for _, row in read_json_lines(path)]
    if limit is None:
        return tuple(texts)
    special = re.compile(r"\d|[/%$€£@&+]|[A-Za-z]{2,}|\w\.\w")
    return tuple(sorted(texts, key=lambda text: -len(special.findall(text)))[:limit])
