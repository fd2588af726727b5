"""What text rules do to some texts: before and after, and what a folding costs. Never loads torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from config.text_rules import TextRules
from core.workspace import Workspace
from data.languages import shipped_rules as shipped
from data.languages.span_map import TextChange
from data.manifest import read_json_lines


@dataclass(frozen=True)
class Line:
    """A text before and after."""

    before: str
    after: str
    changes: tuple[TextChange, ...]
    left_out: dict[str, int]


@dataclass(frozen=True)
class FoldCost:
    """What a folding does to some texts: distinct words and letters before and after, and words that fall together."""

    name: str
    about: str
    words: int
    words_after: int
    letters: int
    letters_after: int
    occurrences: int  # of words whose spelling changes
    total: int  # words in all
    merged: tuple[tuple[str, ...], ...]  # the largest groups of words that become one

    @property
    def fallen_together(self) -> int:
        return self.words - self.words_after


def show(rules: TextRules, texts: Iterable[str]) -> list[Line]:
    """Each text before and after, with the spans that changed."""
    writer = shipped.verbalizer_of(rules)
    lines = []
    for text in texts:
        done = writer.verbalize_traced(text)
        lines.append(Line(text, done.traced.text, done.traced.changes(), done.left_out))
    return lines


def fold_costs(rules: TextRules, texts: Iterable[str], most: int = 12) -> list[FoldCost]:
    """What each folding of `rules`, chosen or not, would do to `texts` after the other rules."""
    writer = shipped.verbalizer_of(rules.model_copy(update={"fold": ()}))
    words = [word for text in texts for word in re.findall(r"[^\W\d_]+", writer.verbalize(text))]
    return [_cost(name, fold.about, fold.table(), words, most) for name, fold in rules.folds.items()]


def dataset_texts(workspace: Workspace, name: str, most: int | None = None) -> list[str]:
    """Texts of a dataset as they were imported; those with digits, signs or Latin letters among Ethiopic first."""
    path = workspace.dataset(name) / "manifest.jsonl"
    return list(_texts(path, path.stat().st_mtime_ns if path.is_file() else 0, most))


@lru_cache(maxsize=4)
def _texts(path: Path, changed_ns: int, most: int | None) -> tuple[str, ...]:
    """The page asks every second or two, and a manifest may have 100,000 lines."""
    texts = [str(row.get("text", "")) for _, row in read_json_lines(path)]
    return tuple(texts) if most is None else tuple(sorted(texts, key=_plainness)[:most])


def _plainness(text: str) -> int:
    return -len(re.findall(r"\d|[/%$€£@&+]|[A-Za-z]{2,}|\w\.\w", text))


def _cost(name: str, about: str, table: dict[int, str], words: list[str], most: int) -> FoldCost:
    groups: dict[str, set[str]] = {}
    for word in words:
        groups.setdefault(word.translate(table), set()).add(word)
    together = [tuple(sorted(group)) for group in groups.values() if len(group) > 1]
    merged = sorted(together, key=lambda group: -len(group))
    letters = set("".join(words))
    return FoldCost(
        name, about, len(set(words)), len(groups), len(letters), len({table.get(ord(one), one) for one in letters}),
        sum(word.translate(table) != word for word in words), len(words), tuple(merged[:most]),
    )
