"""What happens when the memory of a real GPU runs out, in training and in speech; `make gpu STAGE=memory`.

T3 has its published width and four layers: less would vanish in the blocks of the allocator.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from core.training import memory_plan
from core.training.trainer import StepLosses, Trainer
from models.base import Sampling
from scripts.dev.benchmark import t3, training
from scripts.dev.benchmark.bench import Bench
from scripts.dev.benchmark.sizes import FULL, shallower

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU: make gpu")
CUDA = torch.device("cuda")


def trainer(scope: str) -> Trainer:
    return training.make(Bench(shallower(FULL, 4), CUDA, None, lambda text: None), scope)  # type: ignore[arg-type]


@pytest.fixture
def cap() -> Iterator[Callable[[int], None]]:
    """Leaves so many bytes to this process beyond what it holds, until the test ends."""
    def limit(more: int) -> None:
        gc.collect()
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(CUDA).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(CUDA) + more) / total)

    yield limit
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_step_that_does_not_fit_is_taken_again_in_smaller_micro_batches(cap: Callable[[int], None]) -> None:
    roomy, tight, warned = trainer("full"), trainer("full"), list[str]()
    tight._warn = warned.append
    tight.train_step()
    roomy.train_step()
    wanted = list[StepLosses]()
    peak = memory_plan.peak_bytes(CUDA, lambda: wanted.append(roomy.train_step()))
    cap(peak // 2)
    found = tight.train_step()
    assert tight.microbatch_plan.splits > 1
    assert "Out of memory at step 2" in warned[0]
    assert math.isclose(found.speech, wanted[0].speech, rel_tol=1e-2)


def test_texts_that_do_not_fit_together_are_spoken_in_turn(cap: Callable[[int], None],
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    tts = trainer("rows").tts
    voice, generate, sizes = t3._voice(tts.lm.module, CUDA), tts.lm.generate, list[int]()
    texts, sampling = [np.arange(1, 91)] * 32, Sampling(temperature=0.0, guidance=0.5)

    def counted(given: list[np.ndarray], *others: object) -> list[object]:
        made = generate(given, *others)  # type: ignore[arg-type]
        sizes.append(len(given))
        return list(made)

    monkeypatch.setattr(tts.lm, "generate", counted)
    monkeypatch.setattr("core.compute.free_bytes", lambda device: None)  # so that the estimate does not prevent it
    cap(8 * tts.lm.decode_bytes(90, sampling))
    assert len(tts.generate(texts, ["en"] * 32, [voice] * 32, sampling)) == 32
    assert max(sizes) < 32
