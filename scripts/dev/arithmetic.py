"""What decoding and training should reach on a GPU, by arithmetic: python -m scripts.dev.arithmetic

No GPU is needed. Bytes and kernel launches of a code, and the memory of a training step, are counted on models of the
published width with two layers and with three; each further layer takes what the third did. A code is spoken with the
alignment guard, without and with adapters; its kernels are Triton's where the GPU has them. A step's memory is that of
`core.training.run_plan`, from which a run's plan is made; beyond eight clips each takes what the last four did. On a
CPU without bfloat16 the memory takes hours: --dtype float32. With --measure the first step of the benchmark's own clips
is computed in the same way, and measured on this CPU at the published depth. Prints Markdown.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from config.schema import Scope
from core.model.precision import Precision
from core.training import memory_plan, run_plan
from core.training.memory_plan import MicrobatchPlan
from models.generate import Stepper
from scripts.command import exit_with
from scripts.dev.benchmark import gpt, t3, training
from scripts.dev.benchmark.bench import Bench
from scripts.dev.benchmark.sizes import FULL, BenchmarkSizes, shallower

CPU = torch.device("cpu")
POSITIONS = 300  # in the cache
LAUNCH_S = 58e-6  # of a kernel that PyTorch launches by itself: 59.8 ms for 1,029, measured on the host of an H100
REPLAY_S = 2.8e-6  # of a kernel within a CUDA graph: 2.91 ms for the same
RESERVED = 0.08  # of a GPU's memory: its context, libraries and the gaps of the allocator; assumed
BATCHES = (1, 2, 4, 8, 16, 32)
_COUNTED, _SHALLOW = (1, 2, 4, 8), (2, 3)  # clips and layers that are counted
SCOPES: tuple[Scope, ...] = ("rows", "gated", "full")


@dataclass(frozen=True)
class GPU:
    """Figures of NVIDIA's data sheets, of the SXM version where there are several."""

    name: str
    bytes_a_second: float
    memory: int  # bytes
    triton: bool = True  # whether Triton's kernels run on it


GPUS = (GPU("T4", 320e9, 16 * 10**9, triton=False), GPU("L4", 300e9, 24 * 10**9), GPU("A100", 2039e9, 80 * 10**9),
        GPU("H100", 3350e9, 80 * 10**9), GPU("H200", 4800e9, 141 * 10**9))
MODELS: dict[str, tuple[str, Callable[[Bench], Any], Callable[[Bench, Any], None], Callable[[BenchmarkSizes], Any]]] = {
    "chatterbox": ("Chatterbox", lambda bench: t3.make(bench)["float32"], t3.adapt, lambda sizes: sizes.language),
    "indextts2": ("IndexTTS2", lambda bench: gpt.make(bench)["float32"], gpt.adapt, lambda sizes: sizes.voice),
}


@dataclass(frozen=True)
class Decoding:
    """Of one code of one text: weights and cache that are read, in bytes, and kernels that are launched."""

    weights: float
    cache: float
    launches: float  # of torch's operations
    triton_launches: float  # of Triton's kernels and the operations that remain
    adapters: float = 0.0  # torch's operations read them too; for Triton's they are merged into the weights

    def kernels(self, gpu: GPU) -> float:
        """Those that are launched on this GPU."""
        return self.triton_launches if gpu.triton else self.launches

    def seconds(self, gpu: GPU, launch_s: float) -> float:
        """What the slower of memory and launches takes."""
        return max(self.read(gpu) / gpu.bytes_a_second, self.kernels(gpu) * launch_s)

    def read(self, gpu: GPU) -> float:
        """Bytes that are read on this GPU."""
        return self.weights + self.cache + (0.0 if gpu.triton else self.adapters)


@dataclass(frozen=True)
class StepMemory:
    """Bytes of a training step: the model with what its optimizer keeps, and the peaks of counted batches."""

    model: float
    peaks: tuple[float, ...]

    def total(self, batch: int) -> float:
        """Of so many clips; between counted batches on a straight line."""
        if batch <= _COUNTED[-1]:
            return self.model + float(np.interp(batch, _COUNTED, self.peaks))
        return self.model + self.peaks[-1] + self.further_clip * (batch - _COUNTED[-1])

    @property
    def further_clip(self) -> float:
        """Bytes of each clip beyond those that were counted."""
        return (self.peaks[-1] - self.peaks[-2]) / (_COUNTED[-1] - _COUNTED[-2])

    def largest_batch(self, memory: float) -> int:
        """The most clips that fit into `memory`; 0 if not one does."""
        most = _COUNTED[-1]
        if self.total(most) > memory:
            return max((batch for batch in range(1, most) if self.total(batch) <= memory), default=0)
        assert self.further_clip > 0, self
        return most + int((memory - self.total(most)) // self.further_clip)


def further(fewer: float, more: float, layers: int) -> float:
    """With `layers` layers, what is `fewer` with two and `more` with three."""
    return fewer + (more - fewer) * (layers - _SHALLOW[0])


def decoding(name: str, sizes: BenchmarkSizes, positions: int = POSITIONS, *, adapters: bool = False) -> Decoding:
    """Of the model `name` at these sizes, in bfloat16, with guidance where it has it; with `adapters` as by default."""
    _, make, adapt, config_of = MODELS[name]
    found = []
    for layers in _SHALLOW:
        bench = Bench(shallower(sizes, layers), CPU, None, lambda text: None)
        model = make(bench)
        if adapters:
            adapt(bench, model)
        Precision("cpu", torch.bfloat16, "for the count").cast(model, ())
        read = [(".lora_" in key or key.startswith("lora_"), value.nbytes)
                for part in (*model.transformer.layers, model.speech_head) for key, value in part.named_parameters()]
        found.append((sum(size for of_adapter, size in read if not of_adapter), launches(name, model),
                      launches(name, model, triton=True), sum(size for of_adapter, size in read if of_adapter)))
    config, layers = config_of(sizes), config_of(sizes).decoder.layers
    rows = 2 if model.guided else 1
    value_bytes = next(model.speech_head.parameters()).element_size()  # as the cache has on a GPU
    cache = rows * layers * 2 * config.decoder.width * positions * value_bytes
    weights, plain, fused, lora = (further(fewer, more, layers) for fewer, more in zip(*found, strict=True))
    return Decoding(weights, cache, plain, fused, lora)


def launches(name: str, model: Any, *, triton: bool = False) -> int:
    """Kernels of a decoding step: operations that compute or copy, counted on the CPU, and Triton's."""
    guidance = 0.5 if model.guided else 0.0
    stepper = Stepper(model, 1, model.config.conditioning_length + 64, 8, CPU)
    with torch.inference_mode(), _triton_kernels() if triton else nullcontext():
        if name == "chatterbox":
            t3.begin(stepper, model, 20, guidance, CPU)
        else:
            gpt.begin(stepper, model, 20, CPU)
        stepper.advance()
        with _Operations() as counted:
            stepper.advance()
    return counted.count


@contextmanager
def _triton_kernels() -> Iterator[None]:
    """Let a step on a CPU call Triton's kernels, which count as one operation each and compute nothing but zeros."""
    from models import triton_kernels, triton_sampling

    scratch, codes = torch.zeros(1), triton_sampling._sample.arg_names.index("sampled")

    class Kernel:
        def __init__(self, written: int | None = None) -> None:
            self.written = written

        def __getitem__(self, grid: object) -> Callable[..., torch.Tensor]:
            return lambda *arguments, **_: (scratch if self.written is None else arguments[self.written]).zero_()

    def chosen(hidden: torch.Tensor, decoder: Any, *more: Any) -> Any:
        head, layers = decoder.config.width // decoder.config.heads, [*decoder.linear_layers, *more]
        return triton_kernels if triton_kernels.supports(hidden, head, layers) else None

    with (mock.patch("models.decoder.step_kernels", chosen), mock.patch("models.gpt2.step_kernels", chosen),
          mock.patch("models.generate._kernels", return_value=triton_sampling),
          mock.patch.multiple(triton_kernels, _few_rows=Kernel(), _many_rows=Kernel(), _attend=Kernel(),
                              merged_adapters=_Unmerged),
          mock.patch.multiple(triton_sampling, _sample=Kernel(codes), _observe=Kernel())):
        yield


class _Unmerged:
    """Stands for `models.merged_adapters`: weights of the same size that are not merged."""

    @staticmethod
    def weight(layer: Any) -> torch.Tensor:
        return getattr(layer, "base_layer", layer).weight


class _Operations(TorchDispatchMode):
    """Counts operations that write memory: those whose result is neither a view, the input itself nor left empty."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {tensor.untyped_storage()._cdata for tensor in tree_leaves((args, kwargs))
                 if isinstance(tensor, torch.Tensor)}
        made = func(*args, **(kwargs or {}))
        self.count += "empty" not in func._schema.name and (func._schema.is_mutable or any(
            tensor.untyped_storage()._cdata not in given for tensor in tree_leaves(made)
            if isinstance(tensor, torch.Tensor)))
        return made


def step_memory(name: str, sizes: BenchmarkSizes, scope: Scope, dtype: torch.dtype, *, checkpointing: bool
                ) -> StepMemory:
    """Of clips that all have the length of the longest one of the benchmark."""
    alike = replace(sizes, clips=_COUNTED[-1], clip_s=(sizes.clip_s[-1],) * 3)
    found = []
    for layers in _SHALLOW:
        bench = Bench(shallower(alike, layers), CPU, None, lambda text: None)
        trainer = training.make(bench, scope, name, Precision("cpu", dtype, "for the count"))
        trainer.set_microbatch_plan(MicrobatchPlan(activation_checkpointing=checkpointing))
        counted = [run_plan.peak_of_longest(trainer, clips, None) or 0 for clips in _COUNTED]
        found.append((training.size(trainer) + trainer.optimizer_bytes, *counted))
    layers = depth(name, sizes)
    model, *peaks = (further(fewer, more, layers) for fewer, more in zip(*found, strict=True))
    return StepMemory(model, tuple(peaks))


def depth(name: str, sizes: BenchmarkSizes) -> int:
    """Layers of the model `name`."""
    return MODELS[name][-1](sizes).decoder.layers


def benchmark_memory(name: str, sizes: BenchmarkSizes, scope: Scope, dtype: torch.dtype, layers: int, *,
                     checkpointing: bool) -> int:
    """Bytes of the model and of the first step of the benchmark's clips, measured with so many layers."""
    bench = Bench(shallower(sizes, layers), CPU, None, lambda text: None)
    trainer = training.make(bench, scope, name, Precision("cpu", dtype, "for the count"))
    trainer.set_microbatch_plan(MicrobatchPlan(activation_checkpointing=checkpointing))
    return training.size(trainer) + memory_plan.peak_bytes(CPU, trainer.train_step)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables of each model."""
    parser = argparse.ArgumentParser(prog="python -m scripts.dev.arithmetic", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="default: %(default)s")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16",
                        help="of the training step (default: %(default)s)")
    parser.add_argument("--measure", action="store_true",
                        help="only compare the memory of a step of the benchmark's clips with what this CPU takes")
    args = parser.parse_args(arguments)
    for name in args.models.split(","):
        if args.measure:
            print(_measured_table(name, args.dtype), flush=True)
            continue
        print(_decoding_table(name), flush=True)
        print(_memory_table(name, args.dtype), flush=True)
    return 0


def _decoding_table(name: str) -> str:
    lines = []
    for adapters in (False, True):
        found = decoding(name, FULL, adapters=adapters)
        lines += [f"**{MODELS[name][0]}, one code of one text at {POSITIONS} positions in half precision, "
                  f"{'adapters on' if adapters else 'no adapter'}**: {found.weights / 1e9:.2f} GB of weights, "
                  f"{found.cache / 1e6:.0f} MB of cache ({found.cache / POSITIONS / 1e3:.0f} kB a position)", "",
                  "| | kernels | bytes alone, ms | with CUDA graphs, ms | without, ms |", "|---|---|---|---|---|"]
        for gpu in GPUS:
            bare = found.read(gpu) / gpu.bytes_a_second
            times = [f"{1000 * time:.2f}" for time in (bare, found.seconds(gpu, REPLAY_S),
                                                       found.seconds(gpu, LAUNCH_S))]
            lines.append(f"| {gpu.name} | {found.kernels(gpu):,.0f} | {' | '.join(times)} |")
        lines.append("")
    return "\n".join(lines)


def _memory_table(name: str, dtype: str) -> str:
    lines = [f"**{MODELS[name][0]}, peak memory of a step of clips of {FULL.clip_s[2]:g} s in {dtype}, GiB, and "
             "the largest batch that fits**", "",
             f"| | {' | '.join(f'{batch} clips' for batch in BATCHES)} | {' | '.join(gpu.name for gpu in GPUS)} |",
             "|---" * (1 + len(BATCHES) + len(GPUS)) + "|"]
    for scope in SCOPES:
        for checkpointing in (False, True):
            print(f"{name}: {scope}", file=sys.stderr)
            found = step_memory(name, FULL, scope, getattr(torch, dtype), checkpointing=checkpointing)
            peaks = [f"{found.total(batch) / 2**30:.1f}" for batch in BATCHES]
            largest = [str(found.largest_batch((1 - RESERVED) * gpu.memory)) for gpu in GPUS]
            lines.append(f"| {scope}{', activation checkpointing' if checkpointing else ''} | "
                         f"{' | '.join((*peaks, *largest))} |")
    return "\n".join((*lines, ""))


def _measured_table(name: str, dtype: str) -> str:
    layers, kind = depth(name, FULL), getattr(torch, dtype)
    lines = [f"**{MODELS[name][0]}, peak memory of the first step of the benchmark's clips in {dtype}, GiB**", "",
             f"| | computed from {_SHALLOW[0]} and {_SHALLOW[1]} layers | measured with {layers} | measured/computed |",
             "|---|---|---|---|"]
    for scope in SCOPES:
        checkpointing = scope == "full"  # as the benchmark's own plan was
        counted = []
        for depth_counted in (*_SHALLOW, layers):
            print(f"{name}: {scope}, {depth_counted} layers", file=sys.stderr)
            counted.append(benchmark_memory(name, FULL, scope, kind, depth_counted, checkpointing=checkpointing))
        computed, measured = further(counted[0], counted[1], layers), counted[2]
        lines.append(f"| {scope}{', activation checkpointing' if checkpointing else ''} | {computed / 2**30:.2f} | "
                     f"{measured / 2**30:.2f} | {measured / computed:.3f} |")
    return "\n".join((*lines, ""))


if __name__ == "__main__":
    exit_with(main)
