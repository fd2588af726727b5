"""The flow: equal to the published package, and to itself whatever else is in the batch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from models import matmul_backends
from models.chatterbox.flow import Flow, FlowConfig, FlowPrompt, schedule, start_noise
from models.chatterbox.flow_encoder import FlowEncoderConfig, shift_relative
from models.chatterbox.flow_estimator import FlowEstimator, FlowEstimatorConfig
from models.matmul_backends import attend, linear
from scripts.dev.random_weights import fill
from tests.parity import relative_error
from tests.reference.synthesis_inputs import FLOW_SEEDS, GUIDANCE, STEPS, FlowInputs

REFERENCE = Path(__file__).parents[3] / "reference" / "chatterbox" / "synthesis.safetensors"
PUBLISHED_KEYS = "20a903910b207ff792de86de132e66b49bcf6920edde6ae6c0b7c4c96f61b6a8"  # of sorted "key shape" lines
SHALLOW = FlowConfig(encoder=FlowEncoderConfig(blocks=1), estimator=FlowEstimatorConfig(transformers=1, mid_blocks=1))
SMALL = FlowConfig(
    n_codes=50, speaker_embedding_size=12,
    encoder=FlowEncoderConfig(width=32, heads=4, hidden=48, blocks=2, up_blocks=1),
    estimator=FlowEstimatorConfig(n_mels=8, width=24, heads=2, head_size=8, hidden=32, transformers=1, mid_blocks=2),
)


def made(config: FlowConfig, seed: int) -> Flow:
    flow = Flow(config).eval()
    fill(flow, seed, "flow.")
    return flow


def small_inputs(rows: int, prompt: int, length: int) -> tuple[torch.Tensor, FlowPrompt]:
    generator = torch.Generator().manual_seed(rows + prompt + length)
    codes = torch.randint(0, 50, (rows, length), generator=generator)
    prompt_codes = torch.randint(0, 50, (1, prompt), generator=generator)
    mel = torch.randn(1, 2 * prompt, 8, generator=generator)
    return codes, FlowPrompt(prompt_codes, mel, torch.randn(1, 12, generator=generator))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@torch.inference_mode()
def compare(flow: Flow, seed: int, name: str) -> dict[str, float]:
    """Errors of states, one velocity and the mel against the stored ones."""
    wanted, given = load_file(REFERENCE), FlowInputs.made(seed)
    codes = torch.cat([given.prompt_codes, given.codes], 1)
    states = flow.encode(codes)
    cond = torch.zeros_like(given.noise)
    cond[..., : given.prompt_mel.shape[1]] = given.prompt_mel.transpose(1, 2)
    mu, speaker = flow.encoder_proj(states).transpose(1, 2), flow.speaker(given.speaker)
    velocity = flow.estimate(given.noise, mu, given.times, speaker, cond)
    prompt = FlowPrompt(given.prompt_codes, given.prompt_mel, given.speaker)
    mel = flow.mel(given.codes, prompt, steps=STEPS, guidance=GUIDANCE, noise=given.noise)
    found = {"states": states[:, :, ::8], "velocity": velocity, "mel": mel}
    return {part: relative_error(value, wanted[f"{name}.{seed}.{part}"]) for part, value in found.items()}


@pytest.mark.parametrize("seed", FLOW_SEEDS)
def test_one_block_of_each_kind_is_as_published(seed: int):
    errors = compare(made(SHALLOW, seed), seed, "shallow")
    assert errors["states"] < 1e-4
    assert errors["velocity"] < 1e-4
    assert errors["mel"] < 1e-4


@pytest.mark.slow
def test_the_whole_flow_is_as_published():
    flow = made(FlowConfig(), FLOW_SEEDS[0])
    errors = compare(flow, FLOW_SEEDS[0], "full")
    assert max(errors.values()) < 1e-4
    flow.cast_(torch.bfloat16)
    assert compare(flow, FLOW_SEEDS[0], "full")["mel"] < 0.03


def test_a_prompt_of_another_direction_is_heard():
    flow, (codes, prompt) = made(SMALL, 1), small_inputs(1, 4, 6)
    louder = FlowPrompt(prompt.codes, prompt.mel, 7 * prompt.speaker)
    other = FlowPrompt(prompt.codes, prompt.mel, -prompt.speaker)
    mel = flow.mel(codes, prompt, steps=2, generator=seeded(0))
    assert torch.allclose(flow.mel(codes, louder, steps=2, generator=seeded(0)), mel, atol=1e-5)
    assert not torch.allclose(flow.mel(codes, other, steps=2, generator=seeded(0)), mel, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_does_not_depend_on_its_neighbours(dtype: torch.dtype):
    flow, (codes, prompt) = made(SMALL, 2), small_inputs(3, 5, 11)
    flow.cast_(dtype)
    together = flow.mel(codes, prompt, steps=3, generator=seeded(4))
    changed = codes.clone()
    changed[1] = 3  # a neighbour
    assert torch.equal(flow.mel(changed, prompt, steps=3, generator=seeded(4))[0], together[0])
    for row in range(3):
        alone = flow.mel(codes[row : row + 1], prompt, steps=3, generator=seeded(4))[0]
        assert relative_error(together[row], alone) < (1e-5 if dtype == torch.float32 else 0.05)


def test_the_seed_decides_and_longer_noise_begins_as_shorter():
    flow, (codes, prompt) = made(SMALL, 3), small_inputs(1, 3, 5)
    first, second, third = (flow.mel(codes, prompt, steps=1, generator=seeded(seed)) for seed in (5, 5, 6))
    assert torch.equal(first, second)
    assert not torch.allclose(first, third, atol=1e-2)
    assert torch.equal(start_noise(7, 80, seeded(1)), start_noise(90, 80, seeded(1))[..., :7])


def test_without_guidance_the_second_row_is_not_computed(monkeypatch: pytest.MonkeyPatch):
    flow, (codes, prompt) = made(SMALL, 4), small_inputs(2, 3, 5)
    rows = []
    forward = FlowEstimator.forward
    monkeypatch.setattr(FlowEstimator, "forward", lambda self, inputs, *rest: rows.append(len(inputs)) or forward(
        self, inputs, *rest))
    noise = start_noise(16, 8, seeded(0))
    plain = flow.mel(codes, prompt, steps=2, guidance=0.0, noise=noise)
    nearly = flow.mel(codes, prompt, steps=2, guidance=1e-7, noise=noise)
    assert rows == [2, 2, 4, 4]
    assert torch.allclose(plain, nearly, atol=1e-4)


def test_a_shorter_prompt_is_the_end_of_the_whole_one():
    codes, prompt = small_inputs(1, 9, 4)
    short = prompt.last(3)
    assert torch.equal(short.codes, prompt.codes[:, -3:])
    assert torch.equal(short.mel, prompt.mel[:, -6:])
    assert prompt.last(20).codes.shape == prompt.codes.shape
    assert made(SMALL, 5).mel(codes, short, steps=1).shape == (1, 8, 8)
    assert made(SMALL, 5).mel(codes, prompt.last(0), steps=1).shape == (1, 8, 8)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_scores_shift_relative_are_read_at_the_right_place(length: int):
    distances = torch.arange(length - 1, -length, -1)
    read = shift_relative(distances.expand(2, 3, length, -1).contiguous())
    positions = torch.arange(length)
    assert torch.equal(read[1, 2], positions[:, None] - positions)


def test_times_are_dense_at_the_noisy_end():
    times = schedule(4, torch.device("cpu"))
    assert times[0] == pytest.approx(0, abs=5e-6)
    assert times[-1] == pytest.approx(1, abs=5e-6)
    assert times[1] == pytest.approx(1 - 0.9238795, abs=5e-6)  # 1 - cos(pi / 8), of a cosine in float32


@pytest.mark.parametrize("products", [True, False])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_our_products_are_those_of_torch(dtype: torch.dtype, bound: float, products: bool,
                                         monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(matmul_backends, "_HAS_AVX512", True)
    monkeypatch.setattr(matmul_backends, "_products_attend_faster", lambda: products)
    monkeypatch.setattr(matmul_backends, "_SMALL", 0)
    query, key, value = torch.randn(3, 2, 4, 9, 8, generator=seeded(0))
    with torch.no_grad():  # else torch's own are used
        found = attend(query.to(dtype), key.to(dtype), value.to(dtype))
        weight, bias = torch.randn(5, 8, generator=seeded(1)), torch.randn(5, generator=seeded(2))
        assert relative_error(linear(query, weight, bias), query @ weight.t() + bias) < 1e-5
    wanted = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    assert relative_error(found.float(), wanted) < bound


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of remembered choices, which is not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    matmul_backends._remembered_choice.cache_clear()
    yield tmp_path / "cache" / "lisan" / "attention.json"
    matmul_backends._remembered_choice.cache_clear()


@pytest.mark.parametrize(("ratio", "products"), [(0.7, True), (0.9, False), (1.3, False)])
def test_the_faster_attention_is_measured_once_on_a_machine(ratio: float, products: bool, cache: Path,
                                                            monkeypatch: pytest.MonkeyPatch):
    """And again where the file is damaged or for another number of threads."""
    measured: list[float] = []
    monkeypatch.setattr(matmul_backends, "_measured_ratio", lambda: measured.append(ratio) or ratio)
    threads = torch.get_num_threads()
    for _ in range(2):
        assert matmul_backends._products_attend_faster() is products
        matmul_backends._remembered_choice.cache_clear()  # as another process
    assert len(measured) == 1
    for damaged in ("[", "[1]", "1", "null", "{}"):
        cache.write_text(damaged, encoding="utf-8")
        matmul_backends._remembered_choice.cache_clear()
        assert matmul_backends._products_attend_faster() is products
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    assert matmul_backends._products_attend_faster() is products
    monkeypatch.setenv("DNNL_MAX_CPU_ISA", "AVX512_CORE_VNNI")  # a processor that is simulated
    assert matmul_backends._products_attend_faster() is products
    assert len(measured) == 8
    assert list(json.loads(cache.read_text()).values()) == [products] * 3


def test_without_a_cache_each_process_measures(cache: Path, monkeypatch: pytest.MonkeyPatch):
    cache.parent.parent.write_text("a file in the way", encoding="utf-8")
    monkeypatch.setattr(matmul_backends, "_measured_ratio", lambda: 0.7)
    assert matmul_backends._products_attend_faster()


def test_the_measured_ratio_is_the_median_of_products_over_the_fused_kernel(monkeypatch: pytest.MonkeyPatch):
    """The first pair, of a cold cache, does not count."""
    calls: list[str] = []
    seconds = iter([900.0, 1.0, *[3.0, 4.0] * 4, *[1.0, 4.0] * 3, *[9.0, 1.0] * 2])

    def timed(attention: Callable[[], torch.Tensor], number: int) -> float:
        assert attention().shape == (1, 2, 5, 4)
        return next(seconds)

    by_products, fused = matmul_backends._attend_by_products, torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(matmul_backends, "_MEASURED_SHAPE", (1, 2, 5, 4))
    monkeypatch.setattr(matmul_backends.timeit, "timeit", timed)
    monkeypatch.setattr(matmul_backends, "_attend_by_products", lambda *given, **named: calls.append(
        "products") or by_products(*given, **named))
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda *given: calls.append(
        "fused") or fused(*given))
    assert matmul_backends._measured_ratio() == 0.75
    assert calls == ["products", "fused"] * 10


def test_keys_and_shapes_are_the_published_ones():
    with torch.device("meta"):
        tensors = Flow().state_dict()
    lines = sorted(f"{key} {tuple(value.shape)}" for key, value in tensors.items())
    assert len(lines) == 1121
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == PUBLISHED_KEYS
