"""Signs in transcripts of what nobody speaks: sounds in brackets, tags, speaker labels, times and HTML entities.

They are found in texts of any source. Which of them are spoken in a language nobody can tell from the signs alone, so
they are reported, and removed only on request.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field

_LONGEST_LABEL = 30  # characters
_TIME = r"\d{1,2}:\d{2}:\d{2}(?:[.,]\d{1,3})?"
_SPAN = rf"(?:{_TIME}|\d{{1,2}}:\d{{2}}\.\d{{1,3}})(?:\s*-{{1,2}}>\s*(?:{_TIME}|[\d:.]+))?"
_STARRED_KIND = "text in * *"
_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("HTML entities", re.compile(r"&(?:[A-Za-z]{2,10}|#\d{1,6}|#[xX][0-9A-Fa-f]{1,5});")),
    ("tags in < >", re.compile(r"</?[A-Za-z|][^<>]{0,200}>|<\d[\d:.]*>")),
    # No space is looked for in front of a time but behind its bracket: a run of spaces would take quadratic time.
    ("times", re.compile(rf"[\[(]\s{{0,9}}{_SPAN}\s*[\])]|{_SPAN}|"
                         r"[\[(]\d{1,3}:\d{2}[\])]|^\s*0\d?:\d{2}\s+(?=[^\W\d])")),
    ("text in [ ]", re.compile(r"\[[^\[\]]{1,200}\]|【[^【】]{1,200}】")),
    ("text in ( )", re.compile(r"\([^()]{1,200}\)|（[^（）]{1,200}）")),
    ("text in { }", re.compile(r"\{[^{}]{1,200}\}")),
    ("music signs", re.compile(r"[♪♫♬♩]")),
    (_STARRED_KIND, re.compile(r"(?<!\*)\*{1,2}([^*\s][^*]{0,200})\*{1,2}(?!\*)")),
    ("signs for a new speaker", re.compile(r"(?:^|(?<=\s))(?:>{2,}|»{2,})\s*|^\s*[-–—]\s+(?=\S)"
                                           r"|(?<=[.?!…]\s)[-–—]\s+(?=\S)")),
)
_BRACKETED, _DEEPEST = ("text in [ ]", "text in ( )", "text in { }"), 4  # brackets may stand within brackets
LABEL = "a speaker's name before a colon"
KINDS = (*(kind for kind, _ in _KINDS), LABEL)
_LABEL = re.compile(r"\s*(?:[-–—>]+\s*)?([^\W_][^:：\n]*)[:：]\s+(?=\S)")


@dataclass
class UnspokenSigns:
    """Counts of texts with signs of each kind, and the first place and an example."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, tuple[str, str]] = field(default_factory=dict)  # location and sign of the first by kind

    def add(self, text: str, location: str) -> None:
        for kind, sign in signs(text).items():
            self.counts[kind] = self.counts.get(kind, 0) + 1
            self.examples.setdefault(kind, (location, sign))


def signs(text: str) -> dict[str, str]:
    """The first sign of each kind in a text, by the kind."""
    first_signs = {}
    for kind, pattern in _KINDS:
        match = pattern.search(text)
        if match:
            first_signs[kind] = match.group().strip()
            # The content of a tag or a time must not count as another sign.
            if kind != "HTML entities":
                text = pattern.sub(" ", text)
    label = _label_of(text)
    if label:
        first_signs[LABEL] = label.strip()
    return first_signs


def without_signs(text: str) -> str:
    """A text without labels, times, tags and the content of brackets; entities become characters."""
    text = html.unescape(html.unescape(text))
    for kind, pattern in _KINDS[1:]:
        # What was in the inner brackets leaves the outer ones empty: ((unclear)).
        for _ in range(_DEEPEST):
            text, count = pattern.subn(_without_stars if kind == _STARRED_KIND else " ", text)
            if not count or kind not in _BRACKETED:
                break
    return " ".join(text[len(_label_of(text)):].split())


def _without_stars(match: re.Match[str]) -> str:
    """Within a sentence, `They painted *the old* door`, stars are emphasis, and the text between them is spoken."""
    preceding, following = match.string[:match.start()].rstrip(), match.string[match.end():].lstrip()
    is_within = preceding[-1:] not in ("", ".", "?", "!", "…") and following[:1] not in ("", ".", "?", "!")
    return match[1] if is_within else " "


def _label_of(text: str) -> str:
    """The label at the start of a text, with its colon; empty if there is none.

    `NARRATOR:`, `Anna Maria:`, `SPEAKER_00:`, `Speaker 1:` are labels: up to three words, each with a capital or a
    number. Scripts without capitals have one word. `He said: go` is none.
    """
    match = _LABEL.match(text)
    if match is None or len(match[1]) > _LONGEST_LABEL:
        return ""
    words = match[1].replace("_", " ").split()
    cased = match[1].lower() != match[1].upper()
    if cased:
        is_label = len(words) <= 3 and all(word[0].isupper() or word.lstrip("#")[:1].isdigit() for word in words) and (
            words[0][0].isupper())
    else:
        is_label = len(words) == 1 and not match[1].strip().isdecimal()
    return match.group() if is_label else ""
