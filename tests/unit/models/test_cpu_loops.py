"""Compiled products and attention of a few rows, against torch and against sums of whole numbers."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from models import cpu_loops
from models.cpu_loops import GELU, MAX_WEIGHT, PLAIN, SWIGLU, attend, multiply
from models.quantize import Int8Linear

ROOT = Path(__file__).parents[3]
KINDS = ["float32", "bfloat16", "int8"]  # of weights


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights as int8 and their scales."""
    scale = weight.abs().amax(1) / MAX_WEIGHT
    return (weight / scale[:, None]).round().to(torch.int8), scale


@settings(deadline=None)  # the loops are compiled in the first
@given(rows=st.integers(1, 40), units=st.sampled_from([1, 2, 3, 4, 5, 31, 32, 33, 80]), outputs=st.integers(1, 90),
       matrices=st.integers(1, 3), kind=st.sampled_from(KINDS), activation=st.sampled_from([PLAIN, GELU, SWIGLU]),
       biased=st.booleans(), norm=st.sampled_from(["", "layer", "root"]), added=st.booleans(), joined=st.booleans(),
       seed=st.integers(0, 99))
def test_products_are_those_of_torch(rows: int, units: int, outputs: int, matrices: int, kind: str,
                                     activation: int, biased: bool, norm: str, added: bool, joined: bool,
                                     seed: int) -> None:
    width = units * 64
    if activation == SWIGLU:
        matrices = 2
    plain = noise(rows, width, seed=seed)
    weights = [noise(outputs, width, seed=seed + 1 + index) / width ** 0.5 for index in range(matrices)]
    biases = [noise(outputs, seed=seed + 4) if biased else None for _ in weights]
    residual = noise(rows, outputs * (1 if activation == SWIGLU else matrices), seed=seed + 5) if added else None
    scale, shift = noise(width, seed=seed + 6), noise(width, seed=seed + 7)
    parameters = {"": None, "layer": (scale, shift, 1e-5), "root": (scale, None, 1e-5)}[norm]
    scales: list[torch.Tensor] = []
    stored = weights
    if kind == "bfloat16":
        stored = [weight.bfloat16() for weight in weights]
        weights = [weight.float() for weight in stored]
    elif kind == "int8":
        stored, scales = (list(part) for part in zip(*map(quantized, weights), strict=True))
        weights = [weight.float() * each[:, None] for weight, each in zip(stored, scales, strict=True)]
    if activation == SWIGLU and joined:
        found = multiply(plain, [torch.cat(stored)], [torch.cat(biases) if biased else None],
                         [torch.cat(scales)] if scales else [], parameters, residual, activation)
    else:
        found = multiply(plain, stored, biases, scales, parameters, residual, activation)

    if norm == "layer":
        plain = F.layer_norm(plain, (width,), scale, shift, 1e-5)
    elif norm == "root":
        plain = F.rms_norm(plain, (width,), scale, 1e-5)
    parts = [F.linear(plain.double(), weight.double(), None if bias is None else bias.double())
             for weight, bias in zip(weights, biases, strict=True)]
    wanted = F.silu(parts[0]) * parts[1] if activation == SWIGLU else torch.cat(parts, 1)
    if activation == GELU:
        wanted = F.gelu(wanted, approximate="tanh")
    if residual is not None:
        wanted = wanted + residual
    assert found.shape == wanted.shape
    assert (found - wanted).norm() <= (3e-4 if kind == "int8" else 3e-6) * (wanted.norm() + wanted.numel() ** 0.5)


@pytest.mark.parametrize("width", [64, 1024, 4096, 5120, 8192])
@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_sums_of_the_largest_integers_do_not_overflow(width: int, rows: int) -> None:
    """All weights and all numbers of a row at their largest, where 32 bits would overflow first."""
    weight = torch.full((7, width), MAX_WEIGHT, dtype=torch.int8)
    given_rows = torch.ones(rows, width)
    found = multiply(given_rows, [weight], [None], [torch.ones(7)])
    assert (found - width * MAX_WEIGHT).abs().max() <= 1e-6 * width * MAX_WEIGHT


@pytest.mark.parametrize(("rows", "outputs"), [(0, 3), (2, 0)])
def test_nothing_is_multiplied_where_there_are_no_rows_or_no_outputs(rows: int, outputs: int) -> None:
    assert multiply(torch.randn(rows, 64), [torch.randn(outputs, 64)], [None]).shape == (rows, outputs)


@pytest.mark.parametrize("count", [5, 19])
def test_integers_of_16_bits_are_multiplied_exactly(count: int) -> None:
    """Rows that are whole numbers up to the limit of their width keep every digit, below what float32 can hold."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(-300, 301, (count, 64), generator=generator).float()
    rows[:, 0] = 32_767  # the largest, so that the scale is one
    weight = torch.randint(-MAX_WEIGHT, MAX_WEIGHT + 1, (33, 64), generator=generator, dtype=torch.int8)
    found = multiply(rows, [weight], [None], [torch.ones(33)])
    assert torch.equal(found.double(), rows.double() @ weight.double().t())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [64, 1024, 2048, 2112, 4096, 5120])
def test_a_row_is_the_same_bits_among_any_others_and_with_any_threads(width: int, kind: str, threads: None,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    rows, weight = noise(19, width) + 1, noise(300, width, seed=1) + 1  # sums beyond 2^24, which float32 would round
    stored, scale = quantized(weight)
    arguments: tuple[list, ...] = {"float32": ([weight], [None]), "bfloat16": ([weight.bfloat16()], [None]),
                                   "int8": ([stored], [None], [scale])}[kind]
    whole = multiply(rows, *arguments)
    for count in (1, 2, 3, 4, 7, 8, 16):
        torch.set_num_threads(count % 3 + 1)
        assert torch.equal(multiply(rows[:count].contiguous(), *arguments), whole[:count])
    monkeypatch.setattr(cpu_loops, "_OPENMP", 0)
    assert torch.equal(multiply(rows, *arguments), whole)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 19])
@pytest.mark.parametrize("width", [32, 192, 1024, 2080, 5120])
def test_bfloat16_weights_give_the_bits_of_the_same_weights_in_float32(width: int, rows: int) -> None:
    given_rows, weight = noise(rows, width), noise(77, width, seed=1).bfloat16()
    assert torch.equal(multiply(given_rows, [weight], [None]), multiply(given_rows, [weight.float()], [None]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", [PLAIN, GELU, SWIGLU])
@pytest.mark.parametrize("outputs", [1, 7, 64, 129, 300])
@pytest.mark.parametrize("width", [192, 320, 2112])
def test_steps_one_by_one_give_the_same_bits_as_all_in_one(width: int, outputs: int, activation: int,
                                                           kind: str) -> None:
    """As layers with adapters need them; parts of the weights end at other outputs."""
    norm = (noise(width, seed=1), noise(width, seed=2), 1e-5)
    rows, weights = noise(3, width), [noise(outputs, width, seed=seed) for seed in (3, 4)]
    biases = [noise(outputs, seed=5), None]
    residual = noise(3, outputs if activation == SWIGLU else 2 * outputs, seed=6)
    scales: list[torch.Tensor] = []
    if kind == "bfloat16":
        weights = [weight.bfloat16() for weight in weights]
    elif kind == "int8":
        weights, scales = (list(part) for part in zip(*map(quantized, weights), strict=True))
    for parameters in (norm, (norm[0], None, 1e-5)):
        normal = cpu_loops.normalize(rows, parameters)
        parts = [multiply(normal, [weight], [bias], [scale] if scales else [])
                 for weight, bias, scale in zip(weights, biases, scales or weights, strict=True)]
        found = cpu_loops.finish(parts, activation, residual)
        assert torch.equal(found, multiply(rows, weights, biases, scales, parameters, residual, activation))
        if activation == SWIGLU:
            bias = torch.cat([biases[0], torch.zeros(outputs)])
            joined = multiply(rows, [torch.cat(weights)], [bias], [torch.cat(scales)] if scales else [], parameters,
                              residual, activation)
            assert torch.equal(found, joined)


def test_nothing_is_made_of_no_rows() -> None:
    assert multiply(torch.empty(0, 64), [noise(3, 64)], [None]).shape == (0, 3)
    assert Int8Linear(noise(3, 64))(torch.empty(2, 0, 64)).shape == (2, 0, 3)
    mixed, queries = attend(torch.empty(0, 96), 2, None, noise(2, 0, 2, 5, 16), torch.empty(0, dtype=torch.int64))
    assert mixed.shape == (0, 32)
    assert queries.shape == (0, 2, 1, 16)


@pytest.mark.parametrize("wrong", [
    lambda: multiply(noise(2, 96), [noise(3, 64)], [None]),
    lambda: multiply(noise(2, 64), [noise(3, 64).double()], [None]),
    lambda: multiply(noise(2, 64), [noise(3, 64).half()], [None]),
    lambda: multiply(noise(2, 64), [noise(3, 64).bfloat16()], [None], [noise(3)]),
    lambda: multiply(noise(2, 64), [noise(3, 64).bfloat16(), noise(3, 64)], [None, None]),
    lambda: multiply(noise(2, 64), [noise(3, 64).bfloat16()], [noise(3).bfloat16()]),
    lambda: multiply(noise(2, 64), [noise(3, 64).to(torch.int8)], [None]),
    lambda: multiply(noise(64, 2).t(), [noise(3, 64)], [None]),
    lambda: multiply(noise(2, 48), [noise(3, 48)], [None]),
    lambda: multiply(noise(2, 64), [noise(3, 64)], [noise(1)]),
    lambda: multiply(noise(2, 64), [noise(3, 64).to("meta")], [None]),
    lambda: multiply(noise(2, 64), [noise(3, 64)], [None], residual=noise(2, 3).double()),
    lambda: Int8Linear(noise(3, 64))(noise(2, 65)),
    lambda: Int8Linear(noise(3, 64)).to(torch.bfloat16)(noise(2, 64)),
    lambda: attend(noise(2, 96), 2, None, noise(2, 2, 2, 5, 16).half(), torch.tensor([0, 1])),
    lambda: attend(noise(2, 96), 2, None, noise(2, 2, 2, 5, 16), torch.tensor([0, 1], dtype=torch.int32)),
    lambda: attend(noise(2, 96), 2, None, noise(2, 2, 2, 5, 16), torch.tensor([0, 5])),
    lambda: attend(noise(2, 96), 2, None, noise(2, 2, 2, 5, 16), torch.tensor([-1, 0]))])
def test_tensors_that_the_loops_would_misread_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(AssertionError):
        wrong()


@pytest.mark.parametrize("size", [16, 64, 80])
@pytest.mark.parametrize("rotated", [True, False])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_attention_is_that_of_torch(kind: torch.dtype, size: int, rotated: bool) -> None:
    rows, heads, capacity = 3, 2, 900
    storage = noise(2, rows + 1, heads, capacity, size).to(kind)[:, :rows]  # of more rows, as in a larger cache
    before = storage.clone()
    joined, positions = noise(rows, 3 * heads * size, seed=1), torch.tensor([0, 6, 899])
    cosines, sines = noise(rows, size, seed=2), noise(rows, size, seed=3)
    mixed, queries = attend(joined, heads, (cosines, sines) if rotated else None, storage, positions)
    for row, position in enumerate(positions.tolist()):
        query, key, value = joined[row].view(3, heads, size)
        if rotated:
            query, key = (part * cosines[row] + part.roll(size // 2, -1) * sines[row] for part in (query, key))
        keys, values = before[:, row, :, :position + 1].float().clone()
        keys[:, position], values[:, position] = storage[:, row, :, position].float()
        wanted = F.scaled_dot_product_attention(query[:, None], keys, values)[:, 0].flatten()
        assert torch.allclose(mixed[row], wanted, rtol=1e-5, atol=2e-6)
        assert torch.allclose(queries[row, :, 0], query, rtol=1e-6, atol=1e-6)
        step = {torch.float32: 1e-6, torch.bfloat16: 2**-7}[kind]  # a rotated key may be just above a half
        assert torch.allclose(storage[0, row, :, position].float(), key, rtol=step, atol=1e-6)
        assert torch.equal(storage[1, row, :, position], value.to(kind))
        assert torch.equal(storage[:, row, :, :position], before[:, row, :, :position])
        assert torch.equal(storage[:, row, :, position + 1:], before[:, row, :, position + 1:])


def test_a_cache_of_bfloat16_rounds_as_torch_does() -> None:
    """To the nearest, to even ones between two, beyond the largest to infinity; NaN stays NaN."""
    bits = torch.randint(-2**31, 2**31, (4096,), generator=torch.Generator().manual_seed(0))
    middles = (bits & ~0xFFFF) | 0x8000
    values = torch.cat([bits, middles, middles + 1, middles - 1]).to(torch.int32).view(torch.float32)
    values = torch.cat([values, torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 3.4e38, 1e-45, 65280.0])])
    rows = values.view(-1, 8)
    joined = torch.cat([torch.zeros(len(rows), 16), rows], 1)
    storage = torch.zeros(2, len(rows), 1, 1, 8, dtype=torch.bfloat16)
    attend(joined, 1, None, storage, torch.zeros(len(rows), dtype=torch.int64))
    found, wanted = storage[1].flatten(), values.bfloat16()
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found[~found.isnan()].view(torch.int16), wanted[~wanted.isnan()].view(torch.int16))


def test_loops_are_compiled_where_no_folder_can_keep_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.core.caching.CompileResultCacheImpl._locator_classes", [])
    assert cpu_loops._compiled(lambda value: value + 1)(2) == 3
    assert cpu_loops._thread_function(lambda address: None)()


def test_processors_other_than_x86_multiply_pairs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_loops, "_is_x86", lambda builder: False)
    loop = cpu_loops._products_of_rows(1, 2)
    made = np.zeros(2, np.float32)  # the loop adds to it
    rows = np.arange(-128, 128, dtype=np.int16).reshape(2, 128) * 99
    weights = np.arange(-64, 64, dtype=np.int8)

    @njit
    def call(rows: int, weights: int, made: int) -> None:
        loop(rows, 256, weights, 128, 128, made, 4, 0)

    call(rows.ctypes.data, weights.ctypes.data, made.ctypes.data)
    assert made.tolist() == (rows.astype(np.int64) @ weights.astype(np.int64)).tolist()


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="code of x86 processors")
@pytest.mark.parametrize(("processor", "instruction", "register"), [
    ("nehalem", "pmaddwd", "xmm"), ("haswell", "vpmaddwd", "ymm"), ("skylake-avx512", "vpmaddwd", "zmm"),
    ("cascadelake", "vpdpwssd", "zmm"), ("znver4", "vpdpwssd", "zmm")])
def test_every_processor_gets_its_widest_products(processor: str, instruction: str, register: str,
                                                  tmp_path: Path) -> None:
    """Compiled for it, and run where this processor has the instructions: the other tests then pass as they are."""
    from llvmlite import binding

    here = binding.get_host_cpu_features()
    needed = {"nehalem": "sse4.2", "haswell": "avx2", "skylake-avx512": "avx512bw"}.get(processor, "avx512vnni")
    program = ("import re; from models import cpu_loops; cpu_loops._multiply_parts(); "
               "print(re.findall(r'\\b(v?p(?:maddwd|dpwssd))\\b.*?%([xyz]mm)', "
               "cpu_loops._compiled_functions[0]._library.get_asm_str()))")
    settings = {**os.environ, "NUMBA_CPU_NAME": processor, "NUMBA_CACHE_DIR": str(tmp_path)}
    features = {"nehalem": "+sse4.2", "haswell": "+avx2,+fma", "skylake-avx512": "+avx2,+fma,+avx512f,+avx512bw"}
    settings["NUMBA_CPU_FEATURES"] = features.get(
        processor, "+avx2,+fma,+avx512f,+avx512bw,+avx512vl,+avx512vnni")
    made = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=settings, capture_output=True, text=True,
                          check=True)
    assert repr((instruction, register)) in made.stdout
    if here.get(needed):
        subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not processor",
                        "tests/unit/models/test_cpu_loops.py"], cwd=ROOT, env=settings, check=True)
