"""Watches over which text a model speaks, and decides when it may stop and when it must.

Some heads of T3 attend to the text that is spoken. The published multilingual package follows them while it speaks
(AlignmentStreamAnalyzer of resemble-ai/chatterbox, MIT): it suppresses the stop until the position nears the end of the
text, and forces it where the end lasts too long, where the text is read again, and where a code comes twice. The same
rules here, for texts of a batch, on the device: the sums that they need are carried from code to code, so that the host
is never asked. `tests/reference/make_alignment.py` records the published decisions.
"""

from __future__ import annotations

import math

import torch

_LARGE = 2.0**15  # as published: safe in half precision
_LAST = 3  # text ids at the end that count as the end
_MIN_TEXT = 5  # ids; the stop of a text of no more is not suppressed
_REREAD = 5  # text ids at the end that do not count as read again
_MAX_TAIL, _MAX_REPEATED = 5.0, 5.0  # attention in codes: to one of the last ids, to the text before them
_BACK, _AHEAD = 4, 7  # a position that moves as far is taken for noise


class AlignmentGuard:
    """The state of B texts; its tensors keep their addresses across `reset`."""

    def __init__(self, texts: int, device: torch.device) -> None:
        self._length, self._end, self._reread, self._suppress_before, self._frames, self._position, self._last_code = (
            torch.zeros(texts, dtype=torch.long, device=device) for _ in range(7))
        self._last_ids = torch.zeros(texts, _LAST, dtype=torch.long, device=device)
        self._complete, self._suppress, self._force = (
            torch.zeros(texts, dtype=torch.bool, device=device) for _ in range(3))
        self._tail = torch.zeros(texts, _LAST, device=device)
        self._repeated = torch.zeros(texts, device=device)

    def reset(self, lengths: torch.Tensor) -> None:
        """Start texts of `lengths` (B,) ids, start and stop included."""
        self._length.copy_(lengths)
        self._end.copy_(lengths - _LAST)
        self._reread.copy_(lengths - _REREAD)
        self._suppress_before.copy_(torch.where(lengths > _MIN_TEXT, self._end, 0))
        self._last_ids.copy_((self._end[:, None] + torch.arange(_LAST, device=lengths.device)).clamp(min=0))
        for value in (self._position, self._complete, self._tail, self._repeated):
            value.zero_()
        self._frames.fill_(1)
        self._last_code.fill_(-1)

    def observe(self, attention: torch.Tensor, codes: torch.Tensor | None = None) -> None:
        """Attention (B, T) of the newest position to the text, the mean of the heads; and the `codes` (B,) there."""
        columns = torch.arange(attention.shape[1], device=attention.device)
        seen = attention * (columns < torch.minimum(self._frames, self._length)[:, None])
        newest = seen.argmax(-1)
        moved = newest - self._position
        torch.where(moved.clamp(1 - _BACK, _AHEAD - 1) == moved, newest, self._position, out=self._position)

        # what follows the code at which the text was complete
        was_complete = self._complete.to(seen.dtype)
        self._tail.addcmul_(was_complete[:, None], seen.gather(1, self._last_ids))
        self._repeated.addcmul_(was_complete, (seen * (columns < self._reread[:, None])).amax(-1))
        self._complete |= self._position >= self._end

        torch.lt(newest, self._suppress_before, out=self._suppress)
        torch.logical_or(self._tail.amax(-1) >= _MAX_TAIL, self._repeated > _MAX_REPEATED, out=self._force)
        if codes is not None:
            self._force |= codes == self._last_code
            self._last_code.copy_(codes)
        self._frames += 1

    def apply(self, logits: torch.Tensor, is_stop: torch.Tensor) -> torch.Tensor:
        """Logits (B, V) in which the stop is suppressed or forced; `is_stop` (V,) is True there."""
        logits = torch.where(self._suppress[:, None] & is_stop, -_LARGE, logits)
        return torch.where(self._force[:, None], torch.where(is_stop, _LARGE, -_LARGE), logits)

    def state(self) -> tuple[torch.Tensor, ...]:
        """All tensors that `observe` changes."""
        return (self._frames, self._position, self._last_code, self._complete, self._suppress, self._force, self._tail,
                self._repeated)


def text_attention(queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor, start: int) -> torch.Tensor:
    """Mean attention (B, T - start) of H heads: queries (B, H, D) over keys (B, H, T, D), where mask (B, T) is True."""
    scores = (keys.float() @ queries.float()[..., None])[..., 0] / math.sqrt(queries.shape[-1])
    scores = scores.masked_fill(~mask[:, None], -torch.inf)
    return scores.softmax(-1).mean(1)[:, start:]
