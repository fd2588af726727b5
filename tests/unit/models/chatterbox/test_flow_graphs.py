"""CUDA graphs of the flow that are kept between utterances, on the emulated GPU: equal to the plain computation."""

from __future__ import annotations

import gc
import weakref
from copy import deepcopy

import pytest
import torch

from models.chatterbox.flow import Flow, FlowGraphs, FlowPrompt
from models.convolutions import full_precision
from models.cuda_graph_decode import GraphCache
from models.indextts2.s2mel import S2Mel, S2MelConfig, S2MelPrompt
from scripts.dev.random_weights import fill
from tests.emulated_cuda import CUDA, REAL, emulated_cuda
from tests.parity import relative_error
from tests.unit.models.chatterbox.test_flow import SMALL, made, seeded, small_inputs

LENGTHS = (11, 59, 3, 61, 11)  # with a prompt of 5 codes, 64 codes hold all but the fourth


def moved(prompt: FlowPrompt) -> FlowPrompt:
    return FlowPrompt(prompt.codes.to(CUDA), prompt.mel.to(CUDA), prompt.speaker.to(CUDA))


def mel(flow: Flow, rows: int, length: int, device: torch.device, guidance: float = 0.7, prompt: int = 5,
        steps: int = 3) -> torch.Tensor:
    codes, clip = small_inputs(rows, prompt, length)
    clip = moved(clip) if device == CUDA else clip
    return flow.mel(codes.to(device), clip, steps=steps, guidance=guidance, generator=seeded(4)).cpu()


@pytest.mark.parametrize(("flash", "triton"), [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize(("rows", "guidance"), [(1, 0.7), (2, 0.7), (1, 0.0)])
def test_utterances_of_any_length_are_those_of_the_cpu(rows: int, guidance: float, dtype: torch.dtype, bound: float,
                                                       flash: bool, triton: bool) -> None:
    plain = made(SMALL, 1)
    plain.cast_(dtype)
    wanted = [mel(plain, rows, length, torch.device("cpu"), guidance) for length in LENGTHS]
    with emulated_cuda((9, 0) if flash else (7, 5), triton=triton) as state:
        flow, captures = deepcopy(plain).to(CUDA), []
        for length, whole in zip(LENGTHS, wanted, strict=True):
            assert relative_error(mel(flow, rows, length, CUDA, guidance), whole) < bound
            captures.append(state.captures)
    # of the first utterance the steps after the first are a graph, of the second also what comes before the steps
    assert REAL or captures == [1, 2, 2, 3, 3]


def kept_frames(flow: Flow) -> torch.Tensor:
    """The buffer of the graphs that were used last."""
    found = next(reversed(flow.graphs._kept.values()))
    assert isinstance(found, FlowGraphs)
    return found.frames


def test_weights_of_another_type_or_address_drop_the_graphs() -> None:
    plain = made(SMALL, 2)
    wanted = mel(plain, 1, 9, torch.device("cpu"))
    with emulated_cuda() as state:
        flow = deepcopy(plain).to(CUDA)
        for _ in range(2):
            assert relative_error(mel(flow, 1, 9, CUDA), wanted) < 1e-5
        assert REAL or state.captures == 2
        kept = weakref.ref(kept_frames(flow))
        flow.cast_(torch.bfloat16)
        half = mel(flow, 1, 9, CUDA)
        assert kept() is None
        assert REAL or state.captures == 3
        assert 1e-5 < relative_error(half, wanted) < 0.05
        flow.cast_(torch.float32)
        flow.input_embedding.weight = torch.nn.Parameter(0 * flow.input_embedding.weight.detach())
        assert relative_error(mel(flow, 1, 9, CUDA), wanted) > 0.05


def test_graphs_are_freed_and_made_again() -> None:
    with emulated_cuda() as state:
        flow = made(SMALL, 3).to(CUDA)
        first = [mel(flow, 1, 9, CUDA) for _ in range(2)]
        kept = weakref.ref(kept_frames(flow))
        flow.graphs.clear()
        assert kept() is None
        assert not len(flow.graphs)
        assert all(relative_error(mel(flow, 1, 9, CUDA), one) < 1e-5 for one in first)
        assert REAL or state.captures == 4


def test_the_lengths_used_last_are_kept() -> None:
    cache, made_for = GraphCache(2), list[str]()

    def used(key: str) -> str:
        return cache.get(key, lambda: made_for.append(key) or key)  # type: ignore[func-returns-value]

    assert [used(key) for key in "abacab"] == list("abacab")
    assert made_for == ["a", "b", "c", "b"]
    assert len(cache) == 2


def test_into_a_pool_whose_graphs_are_gone_nothing_is_captured() -> None:
    """They were dropped for others; a real GPU refuses such a capture."""
    with emulated_cuda():
        cache, value, pools = GraphCache(1), torch.zeros(1, device=CUDA), []
        for key in "aabb":
            cache.get(key, cache.graph)(lambda: value.add_(1))
            pools.append(cache._pool)
    assert pools[0] is None
    assert pools[1] == pools[2] != pools[3]


def test_a_flow_that_nobody_has_frees_its_memory_at_once() -> None:
    """Not at the next collection of garbage, as the next model is loaded before that."""
    with emulated_cuda():
        flow = made(SMALL, 4).to(CUDA)
        mel(flow, 1, 9, CUDA)
        assert len(flow.graphs)
        weight = weakref.ref(flow.encoder_proj.weight)
        gc.disable()
        try:
            del flow
            assert weight() is None
        finally:
            gc.enable()


def test_a_copy_of_a_flow_has_graphs_of_its_own() -> None:
    with emulated_cuda():
        flow = made(SMALL, 4).to(CUDA)
        mel(flow, 1, 9, CUDA)
        assert len(deepcopy(flow.graphs)) == 0 < len(flow.graphs)


def test_another_guidance_or_number_of_steps_is_another_computation() -> None:
    plain = made(SMALL, 5)
    asked = [(0.7, 3), (0.3, 3), (0.7, 5), (0.0, 2), (0.7, 3)]
    wanted = [mel(plain, 1, 9, torch.device("cpu"), guidance, steps=steps) for guidance, steps in asked]
    with emulated_cuda():
        flow = deepcopy(plain).to(CUDA)
        for (guidance, steps), whole in zip(asked, wanted, strict=True):
            assert relative_error(mel(flow, 1, 9, CUDA, guidance, steps=steps), whole) < 1e-5


def test_a_prompt_leaves_nothing_for_the_next_one() -> None:
    plain = made(SMALL, 6)
    prompts = (20, 3, 0, 8)
    wanted = [mel(plain, 1, 9, torch.device("cpu"), prompt=prompt) for prompt in prompts]
    with emulated_cuda():
        flow = deepcopy(plain).to(CUDA)
        for prompt, whole in zip(prompts, wanted, strict=True):
            assert relative_error(mel(flow, 1, 9, CUDA, prompt=prompt), whole) < 1e-5


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize("guidance", [0.7, 0.0])
@torch.inference_mode()
def test_texts_of_any_length_are_those_of_the_cpu_in_indextts2(guidance: float, dtype: torch.dtype, bound: float,
                                                              flash: bool) -> None:
    """With flash attention and Triton's kernels, which newer GPUs have, and without; convolutions not in TF32."""
    config = S2MelConfig(n_mels=8, width=32, heads=4, hidden=48, layers=3, wave_layers=2, style=6, content=16,
                         latent=(12, 8), regulator_layers=1)
    plain = S2Mel(config).eval()
    fill(plain, 1)
    plain.estimator.cast_(dtype)
    noise = torch.Generator().manual_seed(1)
    prompt = S2MelPrompt(*(torch.randn(1, *shape, generator=noise) for shape in ((9, 32), (9, 8), (6,))))
    lengths = (20, 128, 5, 129, 20)
    contents = [torch.randn(1, length, 32, generator=noise) for length in lengths]

    def said(model: S2Mel, content: torch.Tensor, prompt: S2MelPrompt) -> torch.Tensor:
        with full_precision():
            return model.mel(content, prompt, steps=3, guidance=guidance, generator=seeded(2)).cpu()

    wanted = [said(plain, content, prompt) for content in contents]
    with emulated_cuda((9, 0), triton=True) if flash else emulated_cuda((7, 5)) as state:
        model, captures = deepcopy(plain).to(CUDA), []
        there = S2MelPrompt(*(part.to(CUDA) for part in (prompt.condition, prompt.mel, prompt.style)))
        for content, whole in zip(contents, wanted, strict=True):
            assert relative_error(said(model, content.to(CUDA), there), whole) < bound
            captures.append(state.captures)
        assert REAL or not flash or all(state.kernels[name].launches for name in ("normalise", "rotate_pairs"))
    assert REAL or captures == [1, 1, 1, 2, 2]
