"""The captured step's bookkeeping; `tests.contract.test_cuda` compares what it computes for every family."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from models.base import Sampling, Voice
from models.cuda_graph_decode import CUDAGraphStepper, span_for
from models.decoder import DecoderConfig
from models.generate import Stepper, cache_capacity, generate, prepare_voice, repetition
from models.speech_network import T3, T3Config
from tests.emulated_cuda import CUDA, REAL, emulated_cuda

CPU = torch.device("cpu")
CONFIG = T3Config(DecoderConfig(width=32, layers=2, heads=2, mlp_width=48), 30, 60, 58, 59, 64, 300, 8,
                        prompt_queries=2)


class Replayed(CUDAGraphStepper):
    """Instead of a CUDA graph, the step itself; `captures` counts how often one was made."""

    captures = 0
    process = Stepper.process

    def _capture(self) -> SimpleNamespace:  # type: ignore[override]
        self.captures += 1
        span = self.cache.span  # type: ignore[union-attr]

        def replay() -> None:
            assert self.cache is not None
            assert self.cache.span == span
            self.compute()

        return SimpleNamespace(replay=replay)


@pytest.fixture(scope="module")
def model() -> T3:
    torch.manual_seed(0)
    return T3(CONFIG).eval()


def voice(seed: int = 0) -> Voice:
    noise = np.random.default_rng(seed)
    return Voice({"speaker_embedding": noise.standard_normal(8).astype(np.float32),
                  "prompt_codes": noise.integers(0, 58, 5)})


@pytest.mark.parametrize("sampling", [Sampling(temperature=1.0, guidance=0.5), Sampling(temperature=1.0, guidance=0.0),
                                      Sampling(temperature=1.0, top_p=0.8, repetition_penalty=1.5)])
def test_it_speaks_what_the_plain_step_speaks_over_every_span(model: T3, sampling: Sampling) -> None:
    texts, cap = [np.arange(3, 20), np.arange(1, 9)], 250
    stepper = Replayed(model, 2, cache_capacity(CONFIG, 17, cap), cap, CPU)
    for seed in (1, 2):
        asked = Sampling(**{**vars(sampling), "seed": seed})
        plain = generate(model, texts, [voice()] * 2, asked, [cap] * 2, CPU)
        replayed = generate(model, texts, [voice()] * 2, asked, [cap] * 2, CPU, stepper)
        assert [(one.finish_reason, one.codes.tolist()) for one in plain] == [
            (one.finish_reason, one.codes.tolist()) for one in replayed]
    assert stepper.captures <= 2  # of 128 and 256 positions, kept for the second text


def test_new_controls_need_no_new_graph_and_other_rows_do(model: T3) -> None:
    text, cap = [np.arange(3, 20)], 16
    stepper = Replayed(model, 1, cache_capacity(CONFIG, 17, cap), cap, CPU)
    said = []
    for temperature, guidance in ((1.0, 0.5), (0.5, 2.0), (1.0, 0.5), (1.0, 0.0)):
        sampling = Sampling(temperature=temperature, guidance=guidance)
        said.append(generate(model, text, [voice()], sampling, [cap], CPU, stepper)[0].codes.tolist())
    assert stepper.captures == 2  # with and without guidance
    assert said[0] == said[2] != said[1]


def steps(model: T3, kind: type[Stepper], device: torch.device, codes: int) -> list[int]:
    """The codes of a text, one after another, without a look at stops."""
    stepper = kind(model, 1, cache_capacity(CONFIG, 17, codes), codes, device)
    with torch.inference_mode():
        stepper.prefill([torch.arange(3, 20, device=device)], [prepare_voice(model, voice(), device)],
                        Sampling(temperature=1.0))
        for _ in range(codes):
            stepper.advance()
    return stepper.codes[0].tolist()


def test_a_graph_is_captured_at_the_last_code_that_the_buffers_hold(model: T3) -> None:
    """The warm-up must not go on from there: 22 positions and 107 codes end at position 129, in a new span."""
    wanted = steps(model, Stepper, CPU, 107)
    with emulated_cuda() as state:
        assert steps(deepcopy(model).to(CUDA), CUDAGraphStepper, CUDA, 107) == wanted
        assert REAL or state.captures == 2


@pytest.mark.parametrize("guided", [True, False])
@pytest.mark.parametrize("guarded", [True, False])
def test_a_prefill_is_a_graph_from_the_second_text_of_its_length_on(model: T3, guarded: bool, guided: bool) -> None:
    """Texts of 17 and 20 ids are padded to 32 positions, of 40 ids to 64; another voice and text need no new graph."""
    plain_model = deepcopy(model)
    plain_model.config = replace(CONFIG, aligned_heads=((0, 1), (1, 0)) if guarded else ())
    sampling = Sampling(temperature=1.0, guidance=0.5 if guided else 0.0, alignment_guard=guarded)
    texts = [torch.arange(3, 3 + length) % 28 for length in (17, 20, 12, 40, 45)]

    def codes(kind: type[Stepper], device: torch.device, network: T3) -> list[list[int]]:
        stepper = kind(network, 1, cache_capacity(CONFIG, 45, 40), 40, device, guided)
        results = []
        with torch.inference_mode():
            for number, text in enumerate(texts):
                stepper.prefill([text.to(device)], [prepare_voice(network, voice(number), device)], sampling)
                for _ in range(10):
                    stepper.advance()
                results.append([*stepper.codes[0, :10].tolist(), stepper.length])
        return results

    wanted = codes(Stepper, CPU, plain_model)
    with emulated_cuda() as state:
        network = deepcopy(plain_model).to(CUDA)
        assert codes(Stepper, CUDA, network) == wanted
        state.captures = 0
        assert codes(CUDAGraphStepper, CUDA, network) == wanted
        assert REAL or state.captures == 2 + 1  # both lengths, and the step, whose span is 128 for all


def test_a_prefill_of_many_positions_is_no_graph(model: T3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels take longer than their launches."""
    monkeypatch.setattr("models.cuda_graph_decode._MAX_PREFILL_POSITIONS", 63)
    with emulated_cuda() as state, torch.inference_mode():
        network = deepcopy(model).to(CUDA)
        stepper = CUDAGraphStepper(network, 1, cache_capacity(CONFIG, 20, 40), 40, CUDA)
        prepared = prepare_voice(network, voice(), CUDA)
        for _ in range(3):
            stepper.prefill([torch.arange(3, 20, device=CUDA)], [prepared], Sampling())
        assert len(stepper._prefills) == state.captures == 0


def test_a_code_takes_no_walk_over_the_modules(model: T3, monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[int] = []
    plain = T3.modules
    monkeypatch.setattr(T3, "modules", lambda module, **options: walks.append(1) or plain(module, **options))
    stepper = Replayed(model, 1, cache_capacity(CONFIG, 17, 20), 20, CPU)
    with torch.inference_mode():
        stepper.prefill([torch.arange(3, 20)], [prepare_voice(model, voice(), CPU)], Sampling())
        before = len(walks)
        for _ in range(20):
            stepper.advance()
    assert len(walks) == before


def test_spans_are_powers_of_two() -> None:
    assert [span_for(count) for count in (1, 128, 129, 256, 1000)] == [128, 128, 256, 256, 1024]


@pytest.mark.parametrize("period", [1, 3, 25])
def test_what_repeats_itself_is_cut_after_its_first_saying(period: int) -> None:
    noise = np.random.default_rng(period)
    start, pattern = noise.integers(0, 1000, 40), np.arange(2000, 2000 + period)
    codes = np.concatenate([start, np.tile(pattern, 100)])[:40 + 4 * 25 + 2 * period]
    assert repetition(codes) == 40 + period
    assert repetition(codes[:40 + 25]) is None
    assert repetition(noise.integers(0, 6561, 500)) is None
