"""Triton kernels for the parts of a decoding step outside the network: sampling, and the alignment guard.

By torch's own operations these were 80 of the 251 kernels of a code of T3. Here each is one: `sample` computes what
`Sampler.sample` does without top-k and top-p and advances the step, `observe` what `text_attention` and
`AlignmentGuard.observe` do. The classes hold the state, and their torch code is the reference. Results differ from it
by the rounding of sums. Only `models.generate` imports this module, on a GPU where Triton can compile.

A text is divided among programs, as one alone would take several microseconds. Each writes its part to memory and adds
one to a counter of the text; the program that finds all others done reads the parts and resets the counter. The
barrier makes the writes of all threads precede the addition, which releases and acquires, and `.cg` reads past the
first-level cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from models import alignment_guard
from models.alignment_guard import AlignmentGuard
from models.sampling import Sampler

_CODES, _KEYS, _COLUMNS = 1024, 128, 256  # block sizes: codes, positions of the cache, positions of the text
_LARGE, _LAST = tl.constexpr(alignment_guard.LARGE), tl.constexpr(alignment_guard.LAST)
_MAX_TAIL, _MAX_REPEATED = tl.constexpr(alignment_guard.MAX_TAIL), tl.constexpr(alignment_guard.MAX_REPEATED)
_BACK, _AHEAD = tl.constexpr(alignment_guard.BACK), tl.constexpr(alignment_guard.AHEAD)


def sample(logits: torch.Tensor, sampler: Sampler, guard: AlignmentGuard | None, arrived: torch.Tensor,
           codes: torch.Tensor, steps: torch.Tensor, code_position: torch.Tensor,
           positions: torch.Tensor) -> torch.Tensor:
    """`Sampler.sample` of logits (rows, V): the code of each row, (rows,); with guidance B rows without text follow.

    It is written to `codes` (B, max codes) at `steps` (B,); `steps`, `code_position` (B,) and `positions` (rows, 1)
    are then one more. `arrived` (B,) int32 is zero before and after.
    """
    assert not sampler.uses_top_p
    assert not sampler.top_k
    assert sampler.keys.shape == codes.shape
    texts, (rows, vocabulary) = len(steps), logits.shape
    blocks = triton.cdiv(vocabulary, _CODES)
    sampled = torch.empty(rows, dtype=torch.long, device=logits.device)
    scores, noise = torch.empty(2, texts, blocks * _CODES, device=logits.device).unbind()
    highest = torch.empty(texts, blocks, device=logits.device)
    suppress, force = (guard.suppress, guard.force) if guard is not None else (None, None)
    _sample[(texts, blocks)](
        logits.contiguous(), sampler.used, sampler.forbidden, sampler.keys, suppress, force, sampler.guidance,
        sampler.penalty, sampler.temperature, sampler.log_min_p, sampler.noise_scale, codes, steps, code_position,
        positions, sampled, scores, noise, highest, arrived, texts, vocabulary, codes.shape[1], sampler.stop,
        GUIDED=sampler.uses_guidance, BLOCKS=blocks, BLOCK=_CODES, num_warps=8)
    return sampled


def observe(guard: AlignmentGuard, queries: Sequence[torch.Tensor], keys: Sequence[torch.Tensor],
            positions: torch.Tensor, codes: torch.Tensor, start: int, arrived: torch.Tensor) -> None:
    """`AlignmentGuard.observe` of the `text_attention` of some heads at one position, and of the `codes` (B,) there.

    Of each head there are queries (B, 1, D) and keys (B, T, D), all of the same strides. The text begins at `start` of
    `positions` (B,) and what is before them. `arrived` (B,) int32 is zero before and after.
    """
    texts, span, size = keys[0].shape
    heads, blocks = len(keys), triton.cdiv(span, _KEYS)
    scores = torch.empty(texts, heads, blocks * _KEYS, device=positions.device)
    highest, totals = torch.empty(2, texts, heads, blocks, device=positions.device).unbind()
    _observe[(texts, heads, blocks)](
        tuple(queries), tuple(keys), positions, codes, guard.length, guard.end, guard.reread, guard.suppress_before,
        guard.last_ids, *guard.state(), scores, highest, totals, arrived, queries[0].stride(0), keys[0].stride(0),
        start, span, blocks, size**-0.5, HEADS=heads, HEADS_BLOCK=triton.next_power_of_2(heads), SIZE=size,
        SIZE_BLOCK=triton.next_power_of_2(size), BLOCKS_BLOCK=triton.next_power_of_2(blocks), BLOCK=_KEYS,
        COLUMNS=_COLUMNS, num_warps=4)


@triton.jit
def _hash(value):
    """`models.sampling._hash` of uint32."""
    value = (value ^ (value >> 16)) * 0x85EBCA6B
    value = (value ^ (value >> 13)) * 0xC2B2AE35
    return value ^ (value >> 16)


@triton.jit
def _sample(logits, used, forbidden, keys, suppress, force, guidance, penalty, temperature, log_min_p, noise_scale,
            codes, steps, code_position, positions, sampled, scores, noise, highest, arrived,
            texts, vocabulary, max_codes, stop, GUIDED: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    """Scores and noise of a block of codes of one text; the last program of the text chooses a code."""
    text, block = tl.program_id(0), tl.program_id(1)
    j = tl.arange(0, BLOCK)
    column = block * BLOCK + j
    inside = column < vocabulary
    step, place, code_place = tl.load(steps + text), tl.load(positions + text), tl.load(code_position + text)
    bound = tl.load(log_min_p)
    score = tl.load(logits + text * vocabulary + column, mask=inside, other=0.0).to(tl.float32)

    # Guidance, the guard's decisions, the penalty for used codes and the temperature, in this order.
    if GUIDED:
        without = tl.load(logits + (texts + text) * vocabulary + column, mask=inside, other=0.0).to(tl.float32)
        score += tl.load(guidance) * (score - without)
        place_without = tl.load(positions + texts + text)
    # The guard suppresses the stop code, or forces it.
    if suppress is not None:
        score = tl.where((column == stop) & tl.load(suppress + text), -_LARGE, score)
        score = tl.where(tl.load(force + text), tl.where(column == stop, _LARGE, -_LARGE), score)
    factor = tl.load(penalty)
    penalised = tl.minimum(tl.div_rn(score, factor), score * factor)
    score = tl.where(tl.load(used + text * vocabulary + column, mask=inside, other=0) != 0, penalised, score)
    excluded = tl.load(forbidden + tl.minimum(step, 1) * vocabulary + column, mask=inside, other=1) != 0
    score = tl.where(excluded, float("-inf"), tl.div_rn(score, tl.load(temperature)))
    bits = _hash(tl.load(keys + text * max_codes + step).to(tl.uint32) ^ column.to(tl.uint32))
    uniform = ((bits >> 9).to(tl.float32) + 0.5) * (1.0 / (1 << 23))
    gumbel = -tl.log(-tl.log(uniform)) * tl.load(noise_scale)

    # Each block stores its scores; the last one of a text reads them all.
    row = text * (BLOCKS * BLOCK)
    tl.store(scores + row + column, score)
    tl.store(noise + row + column, gumbel)
    tl.store(highest + text * BLOCKS + block, tl.max(score, 0))
    tl.debug_barrier()
    if tl.atomic_add(arrived + text, 1) == BLOCKS - 1:
        tl.store(arrived + text, 0)
        # The sum of the softmax is left out: it moves scores and the bound of min-p alike.
        top = float("-inf")
        for number in tl.static_range(BLOCKS):
            top = tl.maximum(top, tl.load(highest + text * BLOCKS + number, cache_modifier=".cg"))
        weakest = top + bound
        best = tl.full([BLOCK], float("-inf"), tl.float32)
        best_column = j
        for number in tl.static_range(BLOCKS):
            score = tl.load(scores + row + number * BLOCK + j, cache_modifier=".cg")
            noisy = score - top + tl.load(noise + row + number * BLOCK + j, cache_modifier=".cg")
            better = (score >= weakest) & (noisy > best)
            best = tl.where(better, noisy, best)
            best_column = tl.where(better, number * BLOCK + j, best_column)
        code = tl.min(tl.where(best == tl.max(best, 0), best_column, vocabulary - 1), 0)  # the first of equal ones
        tl.store(used + text * vocabulary + code, 1)
        tl.store(codes + text * max_codes + step, code)
        tl.store(steps + text, step + 1)
        tl.store(sampled + text, code)
        tl.store(positions + text, place + 1)
        if GUIDED:
            tl.store(sampled + texts + text, code)
            tl.store(positions + texts + text, place_without + 1)
        tl.store(code_position + text, code_place + 1)


@triton.jit
def _observe(queries, keys, positions, codes, length, end, reread, suppress_before, last_ids,
             frames, position, last_code, complete, suppress, force, tail, repeated,
             scores, highest, totals, arrived, query_stride, key_stride, start, span, blocks, scale,
             HEADS: tl.constexpr, HEADS_BLOCK: tl.constexpr, SIZE: tl.constexpr, SIZE_BLOCK: tl.constexpr,
             BLOCKS_BLOCK: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr):
    """Scores of a block of keys of one head of one text; the last program of the text updates the guard."""
    text, head, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    query, key = queries[0], keys[0]
    for other in tl.static_range(1, HEADS):
        if head == other:
            query, key = queries[other], keys[other]

    # The guard's state, all of it at once: each read that is waited for takes half a microsecond.
    i = tl.arange(0, 4)
    is_last = i < _LAST
    last = tl.load(last_ids + text * _LAST + i, mask=is_last, other=0)
    tails = tl.load(tail + text * _LAST + i, mask=is_last, other=0.0)
    repeats, was_complete = tl.load(repeated + text), tl.load(complete + text) != 0
    frame, old = tl.load(frames + text), tl.load(position + text)
    reread_end, bound, final = tl.load(reread + text), tl.load(suppress_before + text), tl.load(end + text)
    code, code_before = tl.load(codes + text), tl.load(last_code + text)
    limit = tl.minimum(frame, tl.load(length + text))
    newest_key = tl.load(positions + text)

    d, cache_position = tl.arange(0, SIZE_BLOCK), block * BLOCK + tl.arange(0, BLOCK)
    vector = tl.load(query + text * query_stride + d, mask=d < SIZE, other=0.0).to(tl.float32)
    # It is not masked by the position, which would have to be read first.
    read = tl.load(key + text.to(tl.int64) * key_stride + cache_position[:, None] * SIZE + d[None, :],
                   mask=(cache_position < span)[:, None] & (d < SIZE)[None, :], other=0.0).to(tl.float32)
    score = tl.where(cache_position <= newest_key, tl.sum(read * vector[None, :], 1) * scale, float("-inf"))
    # The maximum is finite, so that two infinities are never subtracted.
    top = tl.maximum(tl.max(score, 0), -1e30)
    row = text * HEADS + head
    tl.store(scores + row * (blocks * BLOCK) + cache_position, score)
    tl.store(highest + row * blocks + block, top)
    tl.store(totals + row * blocks + block, tl.sum(tl.exp(score - top), 0))
    tl.debug_barrier()
    if tl.atomic_add(arrived + text, 1) == HEADS * blocks - 1:
        tl.store(arrived + text, 0)

        # Maximum and sum of each head's softmax.
        h, b = tl.arange(0, HEADS_BLOCK), tl.arange(0, BLOCKS_BLOCK)
        rows = text * HEADS + h
        parts = rows[:, None] * blocks + b[None, :]
        present = (h < HEADS)[:, None] & (b < blocks)[None, :]
        tops = tl.load(highest + parts, mask=present, other=-1e30, cache_modifier=".cg")
        sums = tl.load(totals + parts, mask=present, other=0.0, cache_modifier=".cg")
        maximum = tl.max(tops, 1)
        total = tl.sum(sums * tl.exp(tops - maximum[:, None]), 1)
        divisor = tl.where(h < HEADS, total * HEADS, 1.0)  # divides by the number of heads too

        # The text position with the most attention, and how much the text before the end has.
        of_head = scores + rows[:, None] * (blocks * BLOCK) + start
        of_last = tl.load(of_head + last[None, :], mask=(h < HEADS)[:, None] & (is_last & (last < limit))[None, :],
                          other=float("-inf"), cache_modifier=".cg")
        j = tl.arange(0, COLUMNS)
        best, newest_column, again = tl.zeros([COLUMNS], tl.float32), j, tl.zeros([COLUMNS], tl.float32)
        column_start = limit * 0
        while column_start < limit:
            column = (column_start + j).to(tl.int32)
            of_text = tl.load(of_head + column[None, :], mask=(h < HEADS)[:, None] & (column < limit)[None, :],
                              other=float("-inf"), cache_modifier=".cg")
            seen = tl.sum(tl.exp(of_text - maximum[:, None]) / divisor[:, None], 0)
            newest_column = tl.where(seen > best, column, newest_column)
            best = tl.maximum(best, seen)
            again = tl.maximum(again, tl.where(column < reread_end, seen, 0.0))
            column_start += COLUMNS
        newest = tl.min(tl.where(best == tl.max(best, 0), newest_column, 0x7FFFFFFF), 0)
        moved = newest - old
        new = tl.where((moved > -_BACK) & (moved < _AHEAD), newest, old)

        # What follows the code at which the text was complete.
        at_last = tl.sum(tl.exp(of_last - maximum[:, None]) / divisor[:, None], 0)
        tails += tl.where(was_complete, at_last, 0.0)
        repeats += tl.where(was_complete, tl.max(again, 0), 0.0)

        tl.store(tail + text * _LAST + i, tails, mask=is_last)
        tl.store(repeated + text, repeats)
        tl.store(position + text, new)
        tl.store(complete + text, was_complete | (new >= final))
        tl.store(suppress + text, newest < bound)
        tl.store(force + text, (tl.max(tails, 0) >= _MAX_TAIL) | (repeats > _MAX_REPEATED) | (code == code_before))
        tl.store(last_code + text, code)
        tl.store(frames + text, frame + 1)
