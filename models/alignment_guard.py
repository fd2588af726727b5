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

LARGE = 2.0**15  # large logit, as published: safe in half precision
LAST = 3  # text ids at the end that count as the end
_MIN_TEXT = 5  # ids; the stop of a text of no more is not suppressed
_REREAD = 5  # text ids at the end that do not count as read again
MAX_TAIL, MAX_REPEATED = 5.0, 5.0  # attention in codes: to one of the last ids, to the text before them
BACK, AHEAD = 4, 7  # a position that moves as far is taken for noise


class AlignmentGuard:
    """The state of B texts; its tensors keep their addresses across `reset`."""

    def __init__(self, texts: int, device: torch.device) -> None:
        self.length, self.end, self.reread, self.suppress_before, self.frames, self.position, self.last_code = (
            torch.zeros(texts, dtype=torch.long, device=device) for _ in range(7))
        self.last_ids = torch.zeros(texts, LAST, dtype=torch.long, device=device)
        self.complete, self.suppress, self.force = (
            torch.zeros(texts, dtype=torch.bool, device=device) for _ in range(3))
        self.tail = torch.zeros(texts, LAST, device=device)
        self.repeated = torch.zeros(texts, device=device)

    def reset(self, lengths: torch.Tensor) -> None:
        """Start texts of `lengths` (B,) ids, start and stop included."""
        self.length.copy_(lengths)
        self.end.copy_(lengths - LAST)
        self.reread.copy_(lengths - _REREAD)
        self.suppress_before.copy_(torch.where(lengths > _MIN_TEXT, self.end, 0))
        self.last_ids.copy_((self.end[:, None] + torch.arange(LAST, device=lengths.device)).clamp(min=0))
        for value in (self.position, self.complete, self.tail, self.repeated):
            value.zero_()
        self.frames.fill_(1)
        self.last_code.fill_(-1)

    def observe(self, attention: torch.Tensor, codes: torch.Tensor | None = None) -> None:
        """Attention (B, T) of the newest position to the text, the mean of the heads; and the `codes` (B,) there."""
        columns = torch.arange(attention.shape[1], device=attention.device)
        seen = attention * (columns < torch.minimum(self.frames, self.length)[:, None])
        newest = seen.argmax(-1)
        moved = newest - self.position
        # The position follows small moves only.
        torch.where(moved.clamp(1 - BACK, AHEAD - 1) == moved, newest, self.position, out=self.position)

        # From the code at which the text was complete, sum the attention to its end and to text that was read before.
        was_complete = self.complete.to(seen.dtype)
        self.tail.addcmul_(was_complete[:, None], seen.gather(1, self.last_ids))
        self.repeated.addcmul_(was_complete, (seen * (columns < self.reread[:, None])).amax(-1))
        self.complete |= self.position >= self.end

        torch.lt(newest, self.suppress_before, out=self.suppress)
        torch.logical_or(self.tail.amax(-1) >= MAX_TAIL, self.repeated > MAX_REPEATED, out=self.force)
        if codes is not None:
            self.force |= codes == self.last_code
            self.last_code.copy_(codes)
        self.frames += 1

    def apply(self, logits: torch.Tensor, is_stop: torch.Tensor) -> torch.Tensor:
        """Logits (B, V) in which the stop is suppressed or forced; `is_stop` (V,) is True there."""
        logits = torch.where(self.suppress[:, None] & is_stop, -LARGE, logits)
        return torch.where(self.force[:, None], torch.where(is_stop, LARGE, -LARGE), logits)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors, each with an entry for each text."""
        return (self.length, self.end, self.reread, self.suppress_before, self.last_ids, *self.state())

    def state(self) -> tuple[torch.Tensor, ...]:
        """All tensors that `observe` changes."""
        return (self.frames, self.position, self.last_code, self.complete, self.suppress, self.force, self.tail,
                self.repeated)


def text_attention(queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor, start: int) -> torch.Tensor:
    """Mean attention (B, T - start) of H heads: queries (B, H, D) over keys (B, H, T, D), where mask (B, T) is True."""
    scores = (keys.float() @ queries.float()[..., None])[..., 0] / math.sqrt(queries.shape[-1])
    scores = scores.masked_fill(~mask[:, None], -torch.inf)
    return scores.softmax(-1).mean(1)[:, start:]
