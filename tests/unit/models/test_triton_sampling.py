"""The kernels of sampling and of the alignment guard against torch's own operations.

Without a GPU they run in Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from models.alignment_guard import AlignmentGuard, text_attention
from models.base import Sampling
from models.sampling import Sampler
from tests import triton_stand_in
from tests.triton_stand_in import DEVICE, Kernel, kernel_module

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("filled_memory")
MAX_CODES = 40
KERNELS = ("triton", "stand-in")  # what stands in for them in the emulation of CUDA is compared too


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return kernel_module("triton_sampling")


@pytest.fixture(params=KERNELS)
def kernels(module: ModuleType, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    if request.param == "stand-in":
        monkeypatch.setattr(module, "_sample", Kernel(triton_stand_in.sample))
        monkeypatch.setattr(module, "_observe", Kernel(triton_stand_in.observe))
    return module


class Samplers:
    """Two samplers of the same options, one for the kernel and one for torch, and what a step counts."""

    def __init__(self, texts: int, vocabulary: int, sampling: Sampling, noise: torch.Generator) -> None:
        stop = vocabulary // 2
        allowed = torch.rand(vocabulary, generator=noise) < 0.9
        allowed[stop] = True
        self.rows = texts * (2 if sampling.guidance else 1)
        self.kernel, self.torch = (Sampler(texts, allowed.to(DEVICE), stop, MAX_CODES) for _ in range(2))
        for sampler in (self.kernel, self.torch):
            sampler.reset(sampling, (1, 4))
        self.guard = AlignmentGuard(texts, DEVICE)
        self.codes = torch.zeros(texts, MAX_CODES, dtype=torch.long, device=DEVICE)
        self.steps = torch.zeros(texts, dtype=torch.long, device=DEVICE)
        self.code_position = torch.ones(texts, dtype=torch.long, device=DEVICE)
        self.positions = torch.arange(3, 3 + 2 * texts, device=DEVICE)[:, None]
        self.arrived = torch.zeros(texts, dtype=torch.int32, device=DEVICE)

    def step(self, module: ModuleType, logits: torch.Tensor, guard: AlignmentGuard | None) -> None:
        """One step, and a comparison of all that it writes."""
        logits = logits.to(DEVICE)
        step, before = self.steps[0].clone(), self.positions.clone()
        wanted = self.torch.sample(logits, step, guard)
        found = module.sample(logits, self.kernel, guard, self.arrived, self.codes, self.steps, self.code_position,
                              self.positions[:self.rows])
        assert torch.equal(found, wanted.repeat(self.rows // len(wanted)))
        assert torch.equal(self.codes[:, step], wanted)
        assert self.steps.tolist() == [int(step) + 1] * len(wanted)
        assert self.code_position.tolist() == [int(step) + 2] * len(wanted)
        assert torch.equal(self.positions[:self.rows], before[:self.rows] + 1)
        assert torch.equal(self.positions[self.rows:], before[self.rows:])
        assert torch.equal(self.kernel.used, self.torch.used)
        assert not self.arrived.any()


@pytest.mark.covering
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("guidance", [0.0, 0.7])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"min_p": 0.0, "temperature": 1.3},
                                     {"min_p": 0.3, "repetition_penalty": 2.0}], ids=str)
@torch.inference_mode()
def test_codes_are_those_of_the_sampler(kernels: ModuleType, options: dict[str, float], guidance: float,
                                        kind: torch.dtype) -> None:
    """Six steps of texts in batches of one to four, with vocabularies within and beyond one block."""
    for texts, vocabulary in ((1, 2100), (2, 60), (3, 1024), (4, 1030)):
        noise = torch.Generator().manual_seed(texts)
        sampling = Sampling(**{"temperature": 0.8, "seed": 2**32 - texts, "repetition_penalty": 1.2,
                               "guidance": guidance, **options})  # type: ignore[arg-type]
        both = Samplers(texts, vocabulary, sampling, noise)
        for number in range(6):
            logits = (4 * torch.randn(both.rows, vocabulary, generator=noise)).to(kind)
            for decision in (both.guard.suppress, both.guard.force):
                decision.copy_(torch.rand(texts, generator=noise) < 0.3)
            if number == 0:
                logits[:, vocabulary // 2] = 30  # the stop, which is forbidden at first
            both.step(kernels, logits, both.guard if number % 3 < 2 else None)


@torch.inference_mode()
def test_the_first_of_equal_codes_is_taken(kernels: ModuleType) -> None:
    both = Samplers(1, 3000, Sampling(temperature=0.0, guidance=0.0, repetition_penalty=1.0),
                    torch.Generator().manual_seed(0))
    for first in (2999, 1100, 1023, 30, 7):
        both.torch.forbidden[:, first] = both.kernel.forbidden[:, first] = False
        logits = torch.zeros(1, 3000)
        logits[0, [one for one in (2999, 1100, 1023, 30, 7) if one >= first]] = 5
        both.step(kernels, logits, None)
        assert both.codes[0, int(both.steps) - 1] == first


@torch.inference_mode()
def test_logits_that_are_no_numbers_give_a_code(module: ModuleType) -> None:
    """An index beyond the vocabulary would be read of an embedding."""
    both = Samplers(1, 60, Sampling(temperature=1.0, guidance=0.0), torch.Generator().manual_seed(0))
    found = module.sample(torch.full((1, 60), torch.nan, device=DEVICE), both.kernel, None, both.arrived, both.codes,
                          both.steps, both.code_position, both.positions[:1])
    assert 0 <= int(found) < 60


def compare(module: ModuleType, lengths: list[int], size: int, kind: torch.dtype, frames: int,
            query: Callable[[torch.Tensor, int], torch.Tensor], seen: int = 1) -> AlignmentGuard:
    """Two guards observe the same frames after `seen`; `query` changes the queries (texts, heads, size) of a frame."""
    noise = torch.Generator().manual_seed(1)
    heads, start, capacity = ((2, 1), (0, 0), (2, 3)), 5, 700
    texts, guards = len(lengths), [AlignmentGuard(len(lengths), DEVICE) for _ in range(2)]
    for guard in guards:
        guard.reset(torch.tensor(lengths, device=DEVICE))
        guard.frames.fill_(seen)
    storage = torch.randn(3, 2, texts + 1, 4, capacity, size, generator=noise).to(DEVICE, kind)
    positions = start + 1 + torch.tensor(lengths, device=DEVICE)
    arrived = torch.zeros(texts, dtype=torch.int32, device=DEVICE)
    for frame in range(frames):
        queries = query(torch.randn(texts, 3, size, generator=noise), frame).to(DEVICE, kind)
        by_head = queries.transpose(0, 1).contiguous()[:, :, None].unbind()
        codes = torch.randint(0, 8, (texts,), generator=noise).to(DEVICE)
        span = int(positions.max()) + 1 + 37 * (frame % 4)
        keys = [storage[layer, 0, :texts, head, :span] for layer, head in heads]
        mask = torch.arange(span, device=DEVICE) <= positions[:, None]
        guards[1].observe(text_attention(queries, torch.stack(keys, 1), mask, start), codes)
        module.observe(guards[0], by_head, keys, positions, codes, start, arrived)
        for found, wanted in zip(guards[0].state(), guards[1].state(), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        assert not arrived.any()
        positions += 1
    return guards[0]


@pytest.mark.covering
@pytest.mark.parametrize(("size", "kind"), [(24, torch.float32), (64, torch.float16), (64, torch.bfloat16)], ids=str)
@pytest.mark.parametrize(("lengths", "seen"), [([1], 1), ([6, 40], 30), ([70, 4, 25], 4), ([300, 5, 130, 60], 290)],
                         ids=str)
@torch.inference_mode()
def test_the_guard_sees_and_decides_what_it_does_in_torch(kernels: ModuleType, lengths: list[int], seen: int,
                                                          size: int, kind: torch.dtype) -> None:
    """Attention that goes anywhere, of texts and spans within and beyond one block."""
    compare(kernels, lengths, size, kind, 3, lambda queries, frame: queries, seen)


@torch.inference_mode()
def test_it_follows_a_text_to_its_end_and_beyond(kernels: ModuleType) -> None:
    """Attention that moves on by an id a frame, stays at the end, and begins again: both reasons to force the stop."""
    lengths, reached = [9, 14], set[tuple[bool, bool]]()
    storage = torch.randn(3, 2, 3, 4, 700, 64, generator=torch.Generator().manual_seed(1))  # that of `compare`

    def aimed(start_again: bool) -> Callable[[torch.Tensor, int], torch.Tensor]:
        def query(queries: torch.Tensor, frame: int) -> torch.Tensor:
            found = []
            for row, length in enumerate(lengths):
                at = min(frame, length - 1) if not start_again or frame < length else frame % 3
                found.append(torch.stack([storage[layer, 0, row, head, 5 + at] for layer, head in
                                          ((2, 1), (0, 0), (2, 3))]))
            return torch.stack(found)  # attention of less than one, whose sums are far from the bounds
        return query

    for start_again in (False, True):
        for frames in (8, 30):
            guard = compare(kernels, lengths, 64, torch.float32, frames, aimed(start_again))
            reached |= set(zip(guard.complete.tolist(), guard.force.tolist(), strict=True))
    assert {(False, False), (True, False), (True, True)} <= reached
