"""A text that rules rewrite step by step, with the span of the source for each character.

The preview of the rules shows these spans. difflib would have to guess them from both texts, and could not name the
steps. Without `track`, the same steps run on the text alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

Replace = Callable[[re.Match[str]], str | None]
"""The replacement of a match; None leaves it."""


@dataclass(frozen=True)
class TextChange:
    """A span of the source and its replacement; `rules` name the steps that made it."""

    start: int
    end: int
    before: str
    after: str
    rules: tuple[str, ...]
    after_start: int  # position in the output


@dataclass(frozen=True)
class SpanMap:
    """`text`, and for each of its characters the span of the source it comes from, with the step that wrote it."""

    source: str
    text: str
    origins: tuple[tuple[int, int, str], ...] | None  # start, end, step ("": unchanged); None without tracking

    @classmethod
    def of(cls, text: str, track: bool = False) -> SpanMap:
        return cls(text, text, tuple((place, place + 1, "") for place in range(len(text))) if track else None)

    def sub(self, pattern: re.Pattern[str], replacement: Replace, step: str) -> SpanMap:
        """Each match of `pattern` replaced."""
        parts: list[str] = []
        origins: list[tuple[int, int, str]] = []
        copied_to = 0
        for match in pattern.finditer(self.text):
            new = replacement(match)
            if new is None or new == match.group():
                continue
            start, end = match.span()
            parts += (self.text[copied_to:start], new)
            # Each new character refers to the span that it replaced.
            if self.origins is not None:
                origins += self.origins[copied_to:start]
                origins += [(*self._span(start, end), step)] * len(new)
            copied_to = end
        # Without a change, the map stays as it is.
        if not copied_to and not parts:
            return self
        parts.append(self.text[copied_to:])
        if self.origins is None:
            return SpanMap(self.source, "".join(parts), None)
        return SpanMap(self.source, "".join(parts), (*origins, *self.origins[copied_to:]))

    def changes(self) -> tuple[TextChange, ...]:
        """The changed spans in order, without changes of white space alone."""
        assert self.origins is not None, "made without `track`"
        changes: list[TextChange] = []
        open_span: tuple[int, int, int] | None = None  # span of the source, and where its output begins
        seen = 0  # position in the source
        for place, (start, end, step) in enumerate((*self.origins, (len(self.source), len(self.source), ""))):

            # White space that stays white space, and text without a step, are unchanged.
            stays = not step or (self.text[place].isspace() and self.source[start:end].isspace())
            if open_span and (stays or start >= open_span[1]):
                changes.append(self._change(*open_span, place))
                open_span = None
            if start > seen:
                changes.append(self._change(seen, start, place, place))
            if not stays:
                extended = open_span or (start, end, place)
                open_span = (extended[0], max(extended[1], end), extended[2])
            seen = max(seen, end)
        return tuple(change for change in changes if change.before.split() != change.after.split())

    def _change(self, start: int, end: int, after_start: int, after_end: int) -> TextChange:
        assert self.origins is not None
        source_text, output_text = self.source[start:end], self.text[after_start:after_end]
        steps = dict.fromkeys(step for _, _, step in self.origins[after_start:after_end] if step != "space")
        kinds = tuple(steps) if output_text.strip() else ("left out",)
        return TextChange(start, end, source_text, output_text, kinds, after_start)

    def _span(self, start: int, end: int) -> tuple[int, int]:
        assert self.origins is not None
        if start < end:
            return self.origins[start][0], self.origins[end - 1][1]
        place = self.origins[start][0] if start < len(self.origins) else len(self.source)
        return place, place
