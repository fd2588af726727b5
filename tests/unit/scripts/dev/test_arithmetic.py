"""The figures of `scripts.dev.arithmetic` beside what the same models take."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from config.schema import Scope
from core.model.precision import Precision
from core.training import memory_plan
from scripts.dev import arithmetic
from scripts.dev.arithmetic import GPU, Decoding, GPUKernel, Rendering, StepMemory
from scripts.dev.benchmark import t3, training
from scripts.dev.benchmark.bench import Bench
from scripts.dev.benchmark.sizes import QUICK, shallower

LAYERS = 5
SIZES = replace(shallower(QUICK, LAYERS), clips=16, clip_s=(1.5, 1.5, 1.5))
CPU = torch.device("cpu")


@pytest.mark.parametrize("name", list(arithmetic.MODELS))
def test_bytes_and_kernels_of_a_code_are_those_of_the_model_at_its_depth(name: str) -> None:
    found = arithmetic.decoding(name, SIZES, positions=100)
    model = arithmetic.MODELS[name].make(Bench(SIZES, CPU, None, lambda text: None)).bfloat16()
    layers = sum(value.nbytes for value in model.transformer.layers.parameters())
    assert found.weights == layers + sum(value.nbytes for value in model.speech_head.parameters())
    assert found.launches == arithmetic.launches(name, model)
    assert found.triton_launches == arithmetic.launches(name, model, triton=True)
    cache = (2 if model.guided else 1) * 2 * len(model.transformer.layers) * model.config.decoder.width * 100 * 2
    assert found.cache == cache


def test_a_layer_has_five_triton_kernels_and_the_guard_counts() -> None:
    """Of T3: queries, keys and values together, attention, its output, gate and up together, down."""
    found = [t3.make(Bench(shallower(QUICK, layers), CPU, None, lambda text: None))["float32"].bfloat16()
             for layers in (2, 3)]
    assert arithmetic.launches("chatterbox", found[1], triton=True) - arithmetic.launches(
        "chatterbox", found[0], triton=True) == 5
    guarded = arithmetic.launches("chatterbox", found[0])
    found[0].config = replace(found[0].config, aligned_heads=())
    assert arithmetic.launches("chatterbox", found[0]) < guarded - 20


def test_adapters_add_few_kernels_to_a_layer_in_training() -> None:
    """Of four groups of layers 17 in the forward pass and 26 in the backward pass; by peft they are 115."""
    def of_a_layer(scope: Scope, *, fused: bool = True) -> int:
        counts = [arithmetic.training_launches(scope, layers, fused=fused) for layers in (2, 3)]
        return counts[1] - counts[0]

    rows = of_a_layer("rows")
    assert (rows, of_a_layer("gated") - rows, of_a_layer("gated", fused=False) - rows) == (24, 43, 115)


def test_a_layer_of_a_prefill_has_few_kernels_and_all_of_them_are_in_the_graph() -> None:
    counts = {triton: [arithmetic.prefill_launches(layers, triton=triton) for layers in (2, 3)]
              for triton in (True, False)}
    assert {triton: three[0] - two[0] for triton, (two, three) in counts.items()} == {True: 14, False: 35}
    assert {beside for pair in counts.values() for _, beside in pair} == {37}


@pytest.mark.parametrize(("scope", "checkpointing"), [("rows", False), ("full", True)])
def test_the_memory_of_the_benchmarks_clips_follows_from_shallow_models(scope, checkpointing: bool) -> None:
    two, three, measured = (arithmetic.benchmark_memory(
        "chatterbox", SIZES, scope, torch.float32, layers, checkpointing=checkpointing) for layers in (2, 3, LAYERS))
    assert arithmetic.further((two, three), LAYERS) == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(("scope", "checkpointing"), [("rows", True), ("full", False)])
def test_the_memory_of_a_deep_model_follows_from_shallow_ones(scope, checkpointing: bool) -> None:
    """Measured with five layers and 16 clips; counted with at most three and eight."""
    found = arithmetic.step_memory("chatterbox", SIZES, scope, torch.float32, checkpointing=checkpointing)
    precision = Precision("cpu", torch.float32, "also where the processor has bfloat16")
    trainer = training.make(Bench(SIZES, CPU, None, lambda text: None), scope, "chatterbox", precision)
    trainer.set_microbatch_plan(replace(trainer.microbatch_plan, activation_checkpointing=checkpointing))
    clips = trainer.loader.by_length()[-16:]
    peak = memory_plan.peak_bytes(CPU, lambda: trainer.profile_forward_backward(clips))
    assert found.total(16) == pytest.approx(training.size(trainer) + trainer.optimizer_bytes + peak, rel=0.1)


def test_the_memory_of_a_large_batch_of_the_built_in_model_follows_from_small_ones() -> None:
    found = arithmetic.step_memory("tiny", SIZES, "rows", torch.float32, checkpointing=False)
    precision = Precision("cpu", torch.float32, "also where the processor has bfloat16")
    trainer = training.make(Bench(SIZES, CPU, None, lambda text: None), "rows", "tiny", precision)
    clips = trainer.loader.by_length()[-16:]
    peak = memory_plan.peak_bytes(CPU, lambda: trainer.profile_forward_backward(clips))
    assert found.total(16) == pytest.approx(training.size(trainer) + trainer.optimizer_bytes + peak, rel=0.1)


@pytest.mark.parametrize("network", list(arithmetic.NETWORKS))
def test_the_operations_of_a_rendering_are_those_that_torch_counts(network: str, monkeypatch: pytest.MonkeyPatch
                                                                   ) -> None:
    """On a CPU without padding, by torch's counter, which knows neither oneDNN's products nor fused attention there."""
    monkeypatch.setattr("models.chatterbox.flow._CODES_UNIT", 1)
    monkeypatch.setattr("models.indextts2.s2mel._FRAMES_UNIT", 1)
    found = arithmetic.rendering(network, QUICK, triton=False, steps=2)
    with torch.device("meta"):
        model, render = arithmetic.NETWORKS[network][0](QUICK, torch.float32, 2)
    model = model.to_empty(device="cpu").requires_grad_(False).eval()
    for value in (*model.parameters(), *model.buffers()):
        value.zero_()
    monkeypatch.setattr(arithmetic, "CUDA", CPU)
    monkeypatch.setattr("models.matmul_backends._HAS_ONEDNN", False)
    monkeypatch.setattr("models.matmul_backends.uses_loops", lambda *_: False)
    monkeypatch.setattr("models.matmul_backends.F.scaled_dot_product_attention", plain_attention)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        render()
    assert sum(kernel.operations for kernel in found.kernels) == pytest.approx(counter.get_total_flops(), rel=0.01)


def plain_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **given: object) -> torch.Tensor:
    return (query @ key.transpose(-1, -2)).softmax(-1) @ value


@pytest.mark.parametrize("network", ["S3Gen's flow", "S2Mel"])
def test_each_step_of_a_flow_takes_the_same(network: str) -> None:
    renderings = [arithmetic.rendering(network, QUICK, steps=steps) for steps in (1, 2, 3)]
    for count in (lambda rendering: len(rendering.kernels), lambda rendering: rendering.operations("half")):
        few, more, most = map(count, renderings)
        assert most - more == more - few > 0


def test_a_norm_of_the_flow_is_one_kernel_where_triton_runs() -> None:
    with_triton, without = (arithmetic.rendering("S3Gen's flow", QUICK, triton=triton, steps=1)
                             for triton in (True, False))
    assert len(with_triton.kernels) < 0.8 * len(without.kernels)
    assert with_triton.operations("half") == without.operations("half")


def test_a_kernel_takes_the_slower_of_its_operations_and_bytes() -> None:
    gpu = GPU("one", 1e9, 10**9, half=4e9, tf32=2e9, single=1e9)
    bound = [GPUKernel("products", "half", 8e6, 1e6), GPUKernel("products", "single", 2e6, 4e6)]
    found = Rendering((*bound, GPUKernel("the rest", "single", 0, 1e3)), 0, 0)
    assert [kernel.seconds(gpu) for kernel in found.kernels] == pytest.approx([2e-3, 4e-3, 1e-6])
    assert found.seconds(gpu, 1e-5) == pytest.approx(6.01e-3)
    assert found.seconds(gpu, 0, ["products"]) == pytest.approx(6e-3)
    assert found.without_graphs(gpu) == pytest.approx(max(6e-3, 3 * arithmetic.LAUNCH_S), rel=1e-2)


def test_the_slower_of_memory_and_launches_counts_and_batches_fill_what_is_free() -> None:
    gpu = GPU("one", 1e9, 10**9, 1e9, 1e9, 1e9)
    assert Decoding(2e6, 1e6, 100, 50).seconds(gpu, 1e-5) == pytest.approx(3e-3)
    assert Decoding(2e6, 1e6, 2000, 1000).seconds(gpu, 1e-5) == pytest.approx(1e-2)
    assert Decoding(2e6, 1e6, 2000, 1000).seconds(replace(gpu, triton=False), 1e-5) == pytest.approx(2e-2)
    memory = StepMemory(100.0, (50.0, 60.0, 100.0, 180.0))
    assert [memory.total(batch) for batch in arithmetic.BATCHES[:4]] == [150, 160, 200, 280]
    assert [memory.largest_batch(free) for free in (149, 150, 160, 179, 180, 279, 280)] == [0, 1, 2, 2, 3, 7, 8]
    assert [memory.largest_batch(free) for free in (299, 300, 280 + 92 * 20)] == [8, 9, 100]  # 20 for each after four
    with pytest.raises(AssertionError):
        StepMemory(100.0, (50.0, 60.0, 100.0, 100.0)).largest_batch(500)
