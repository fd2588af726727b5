"""Speech of several requests at once, by continuous batching: a request that comes joins those that are computed.

`advance` decodes a few codes of every text chunk in the batch, so a new request waits for eight codes at most, and
the rows of a request that is cancelled are free after as many. The first chunk of a request goes before later chunks,
its own and those of others, because somebody waits for it. Chunks have the seeds of `Synthesizer.synthesize`: a request
that is alone has the same codes.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from config.errors import UserError
from config.schema import SamplingOptions
from core import compute
from core.model.adapters import Adapters
from core.speech.synthesis import (
    MAX_BATCH_SIZE,
    ChunkSynthesis,
    SynthesizedChunk,
    Synthesizer,
)
from data.text_chunking import TextChunk
from models.base import ContinuousBatch, Generated, Sampling

_RESERVED_SHARE = 4  # a quarter of the rows is left to first chunks
_CHUNKS_AT_ONCE = 4  # chunks of one request
_MEMORY_SHARE = 0.8  # share of the free memory that a larger batch may take


@dataclass(eq=False)
class SpeechRequest:
    """A text to be spoken: its chunks, and who gets the speech.

    `deliver` gets the parts in order. `finish` is called once: with None, or with the error that ended the request.
    """

    synthesizer: Synthesizer
    language: str
    chunks: Sequence[TextChunk]
    options: SamplingOptions
    deliver: Callable[[SynthesizedChunk], None]
    finish: Callable[[Exception | None], None]
    arrived: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class _Chunk:
    """A text chunk of a request; it waits until `speech` is set, and is then decoded."""

    request: SpeechRequest
    text: TextChunk
    sampling: Sampling
    last: bool
    position: tuple[int, ...]  # place in the text; halves have a number more
    first: bool = False
    speech: ChunkSynthesis | None = None
    parts: list[SynthesizedChunk] = field(default_factory=list)  # ready, but held back by chunks before it
    replaced: bool = False  # replaced by its halves

    @property
    def priority(self) -> tuple[bool, float, tuple[int, ...]]:
        return (not self.first, self.request.arrived, self.position)


@dataclass(eq=False)
class _Batch:
    """A batch of chunks that one model decodes with the same sampling and adapters."""

    synthesizer: Synthesizer
    rows: ContinuousBatch
    chunks: dict[int, _Chunk] = field(default_factory=dict)


class ContinuousSynthesizer:
    """Computes the speech of requests together, `max_texts` text chunks at once. For one thread."""

    def __init__(self, max_texts: int = 2 * MAX_BATCH_SIZE) -> None:
        self._max_texts = max_texts
        self._chunks: dict[SpeechRequest, list[_Chunk]] = {}  # those that are not delivered, in order
        self._batches: dict[tuple[object, ...], _Batch] = {}
        self._keys = itertools.count()

    @property
    def requests(self) -> int:
        """The number of requests that have not ended."""
        return len(self._chunks)

    @property
    def open_requests(self) -> list[SpeechRequest]:
        """The requests that have not ended."""
        return list(self._chunks)

    @property
    def rows(self) -> int:
        """The chunks that are decoded now."""
        return sum(len(batch.chunks) for batch in self._batches.values())

    def add(self, request: SpeechRequest) -> None:
        """Let the request join at the next `advance`."""
        sampling = request.synthesizer.sampling(request.options)
        seeds = _chunk_seeds(sampling.seed, len(request.chunks))
        self._chunks[request] = [
            _Chunk(request, text, replace(sampling, seed=seed), index == len(request.chunks) - 1, (index,), index == 0)
            for index, (text, seed) in enumerate(zip(request.chunks, seeds, strict=True))]

    def cancel(self, request: SpeechRequest) -> None:
        """Forget a request, and free its rows; without effect if it has ended."""
        for chunk in self._chunks.pop(request, []):
            self._free(chunk)

    def advance(self) -> None:
        """Let waiting chunks join, decode a few codes of all chunks, and deliver what is ready."""
        self._join_waiting()
        for key, batch in list(self._batches.items()):
            languages = [batch.chunks[row].request.language for row in batch.rows.keys]
            try:
                with batch.synthesizer.model.adapters_for_batch(languages):
                    decoded = batch.rows.decode()
            except torch.OutOfMemoryError as error:  # the other batches go on
                for request in {chunk.request for chunk in batch.chunks.values()}:
                    self._end(request, error)
                self._batches.pop(key, None)
                continue
            # Give each chunk its codes; one that has ended frees its row.
            for codes in decoded:
                chunk = batch.chunks.get(codes.key)
                if chunk is not None:
                    if codes.result is not None:
                        del batch.chunks[codes.key]
                    self._push(chunk, codes.codes, codes.result)
            if not batch.chunks:
                self._batches.pop(key, None)

        # Parts are delivered in the order of the text.
        for request in list(self._chunks):
            self._deliver(request)

    def _join_waiting(self) -> None:
        # A request begins with its first chunk alone, because only that is streamed.
        candidates: list[_Chunk] = []
        for chunks in self._chunks.values():
            count = 1 if chunks and chunks[0].first else _CHUNKS_AT_ONCE
            candidates += [chunk for chunk in chunks[:count] if chunk.speech is None]

        for chunk in sorted(candidates, key=lambda candidate: candidate.priority):
            # Some rows are kept for first chunks, so that a new request is heard soon.
            limit = self._max_texts if chunk.first else self._max_texts - self._max_texts // _RESERVED_SHARE
            if self.rows >= limit or chunk.request not in self._chunks:
                continue
            try:
                self._begin(chunk)
            except (UserError, torch.OutOfMemoryError) as error:  # the other requests go on
                self._end(chunk.request, error)

    def _begin(self, chunk: _Chunk) -> None:
        """Prepare a chunk, and let it join a batch if there is memory for it."""
        request, synthesizer = chunk.request, chunk.request.synthesizer
        stream = synthesizer.vocoder_stream(request.options.seed, request.language) if chunk.first else None
        speech = ChunkSynthesis(synthesizer, chunk.text, request.language, chunk.sampling, chunk.last, stream,
                                request.options.seed)
        if self.rows and not self._fits(synthesizer, speech):
            return
        chunk.speech = speech
        self._join(chunk, speech)

    def _fits(self, synthesizer: Synthesizer, speech: ChunkSynthesis) -> bool:
        """Whether there is memory for a copy of the batch with one more row."""
        model = synthesizer.model
        needed = (self.rows + 1) * model.lm.decode_bytes(len(speech.text_ids), speech.sampling)
        free = compute.free_bytes(model.device)
        return free is None or needed <= _MEMORY_SHARE * free

    def _join(self, chunk: _Chunk, speech: ChunkSynthesis) -> None:
        synthesizer, language = chunk.request.synthesizer, chunk.request.language
        model = synthesizer.model
        key = (id(model), self._adapters(synthesizer, language), replace(speech.sampling, seed=0))
        # Chunks share a batch if model, adapters and sampling are the same; each has a seed of its own.
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = _Batch(synthesizer, model.lm.continuous_batch(synthesizer.vocoder))

        # A batch that got no row is removed again.
        row = next(self._keys)
        try:
            with model.adapters_for(language):
                batch.rows.join(row, speech.text_ids, speech.voice, speech.sampling,
                                model.lm.code_limit(len(speech.text_ids)))
        finally:
            if not batch.chunks and row not in batch.rows.keys:
                self._batches.pop(key)
        batch.chunks[row] = chunk

    def _adapters(self, synthesizer: Synthesizer, language: str) -> Adapters | None:
        """The adapters that a text of the language shares a batch with, see `TTSModel.generate`."""
        model = synthesizer.model
        adapters = model.adapters_of(language)
        return adapters if adapters is not None or model.lm.merges_adapters else model.adapters

    def _push(self, chunk: _Chunk, codes: np.ndarray, result: Generated | None) -> None:
        """Give codes to a chunk; where it starts again or is halved, what comes of it joins at once."""
        request, speech = chunk.request, chunk.speech
        assert speech is not None
        if request not in self._chunks:
            return
        attempt = speech.sampling
        try:
            for piece in filter(len, [codes]):
                chunk.parts += speech.push(piece)
            if result is not None and speech.sampling is attempt:
                chunk.parts += speech.push(result)

            # A chunk that is too long is halved; one that is silent starts again.
            if speech.halves is not None:
                self._halve(chunk, speech.halves)
            elif speech.sampling is not attempt:
                self._free(chunk)
                self._join(chunk, speech)
        except (UserError, torch.OutOfMemoryError) as error:  # the other requests go on
            self._end(request, error)

    def _halve(self, chunk: _Chunk, halves: tuple[TextChunk, TextChunk]) -> None:
        """Put two halves, which wait, in the place of a chunk that is too long."""
        chunks = self._chunks[chunk.request]
        place = chunks.index(chunk)
        chunks[place:place + 1] = [
            _Chunk(chunk.request, half, chunk.sampling, chunk.last and number == 1, (*chunk.position, number))
            for number, half in enumerate(halves)]

    def _deliver(self, request: SpeechRequest) -> None:
        """Deliver the parts of the first chunk, and of those behind it once it has ended."""
        chunks = self._chunks[request]
        while chunks:
            chunk = chunks[0]
            parts, chunk.parts = chunk.parts, []
            for part in parts:
                request.deliver(part)
            if chunk.speech is None or not chunk.speech.ended:
                return
            del chunks[0]
        self._end(request, None)

    def _free(self, chunk: _Chunk) -> None:
        """Free the row of a chunk, if it has one."""
        for key, batch in list(self._batches.items()):
            rows = [row for row, other in batch.chunks.items() if other is chunk]
            if rows:
                batch.rows.leave(rows)
                for row in rows:
                    del batch.chunks[row]
            if not batch.chunks:
                self._batches.pop(key)

    def _end(self, request: SpeechRequest, error: Exception | None) -> None:
        if request in self._chunks:
            self.cancel(request)
            request.finish(error)


def _chunk_seeds(seed: int, count: int) -> list[int]:
    """The seed of each chunk, as in the rounds of `Synthesizer.synthesize`: of one, two, four, and then eight."""
    seeds: list[int] = []
    size = 1
    while len(seeds) < count:
        seeds += [seed] * size
        seed += size
        size = min(2 * size, MAX_BATCH_SIZE)
    return seeds[:count]
