"""What decoding, training and rendering should reach on a GPU, by arithmetic: python -m scripts.dev.arithmetic

No GPU is needed. Bytes and kernel launches of a code, and the memory of a training step, are counted on models of the
published width with two layers and with three; each further layer takes what the third did. The built-in model is
counted as it is. A code is spoken with the alignment guard, without and with adapters; its kernels are Triton's where
the GPU has them. A step's memory is that of `core.training.run_plan`, from which a run's plan is made; beyond eight
clips each takes what the last four did. On a CPU without bfloat16 the memory takes hours: --dtype float32. With
--measure it is compared with what this CPU takes.

A rendering, of codes or frames to sound, is counted at full size on fake tensors, which say that they are on a GPU, so
that the code takes the branches that it takes there. With --launches the kernels of a training step's forward and
backward pass, and of a text's prefill, are counted instead. Prints Markdown.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from config.schema import Scope
from core.model.precision import Precision
from core.training import memory_plan, run_plan
from core.training.memory_plan import MicrobatchPlan
from models.base import PreparedVoice, Sampling, Voice
from models.chatterbox import flow, s3gen
from models.chatterbox.flow import Flow, FlowPrompt
from models.chatterbox.flow_encoder import MEL_FRAMES_PER_CODE
from models.chatterbox.hift import HiFT
from models.generate import Stepper, cache_capacity
from models.indextts2 import s2mel, vocoder
from models.indextts2.bigvgan import BigVGAN
from models.indextts2.s2mel import S2Mel, S2MelPrompt
from models.indextts2.vocoder import FRAME_RATE
from scripts.command import exit_with
from scripts.dev.benchmark import builtin, gpt, t3, training
from scripts.dev.benchmark.bench import Bench
from scripts.dev.benchmark.sizes import FULL, QUICK, BenchmarkSizes, shallower

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
POSITIONS = 300  # positions in the cache
LAUNCH_S = 58e-6  # seconds to launch a kernel by PyTorch: 59.8 ms for 1,029, measured on the host of an H100
REPLAY_S = 2.8e-6  # seconds for a kernel within a CUDA graph: 2.91 ms for the same
RESERVED = 0.08  # share of a GPU's memory: its context, libraries and the gaps of the allocator; assumed
BATCHES = (1, 2, 4, 8, 16, 32)
_COUNTED, _SHALLOW = (1, 2, 4, 8), (2, 3)  # clips and layers that are counted
_TEXT = 20  # ids of a text that is decoded
_PREFILLED = 60  # ids of a text whose prefill is counted
SCOPES: tuple[Scope, ...] = ("rows", "gated", "full")


@dataclass(frozen=True)
class GPU:
    """Figures of NVIDIA's data sheets, of the SXM version where there are several.

    Operations a second are those of products of dense matrices: half of what a sheet states "with sparsity".
    """

    name: str
    bytes_a_second: float
    memory: int  # bytes
    half: float  # operations a second in bfloat16 or float16, on tensor cores
    tf32: float  # the same in TF32
    single: float  # the same in float32
    triton: bool = True  # whether Triton's kernels run on it


GPUS = (GPU("T4", 320e9, 16 * 10**9, 65e12, 8.1e12, 8.1e12, triton=False),  # it has no TF32
        GPU("L4", 300e9, 24 * 10**9, 121e12, 60e12, 30.3e12),
        GPU("A100", 2039e9, 80 * 10**9, 312e12, 156e12, 19.5e12),
        GPU("H100", 3350e9, 80 * 10**9, 989e12, 494e12, 67e12),
        GPU("H200", 4800e9, 141 * 10**9, 989e12, 494e12, 67e12))


@dataclass(frozen=True)
class DecodingModel:
    """A model that is counted: how the benchmark makes it, puts adapters into it, and begins to decode with it."""

    title: str
    make: Callable[[Bench], Any]
    adapt: Callable[[Bench, Any], None]
    begin: Callable[[Stepper, Any], None]
    depth: Callable[[BenchmarkSizes], int]  # layers
    longest_s: float = math.inf  # longest duration of a clip
    small: bool = False

    def depths(self, sizes: BenchmarkSizes) -> tuple[int, ...]:
        """Layers with which it is counted."""
        return (self.depth(sizes),) if self.small else _SHALLOW


MODELS = {
    "chatterbox": DecodingModel("Chatterbox", lambda bench: t3.make(bench)["float32"], t3.adapt,
                                lambda stepper, model: t3.begin(stepper, model, _TEXT, 0.5, CPU),
                                lambda sizes: sizes.language.decoder.layers),
    "indextts2": DecodingModel("IndexTTS2", lambda bench: gpt.make(bench)["float32"], gpt.adapt,
                               lambda stepper, model: gpt.begin(stepper, model, _TEXT, CPU),
                               lambda sizes: sizes.voice.decoder.layers),
    "tiny": DecodingModel("The built-in model", builtin.load, builtin.adapt,
                          lambda stepper, model: builtin.begin(stepper, model, _TEXT, CPU),
                          lambda sizes: builtin.load(Bench(sizes, CPU, None, print)).config.decoder.layers,
                          longest_s=9.0, small=True),  # a clip has at most 128 text ids and 255 codes
}


@dataclass(frozen=True)
class Decoding:
    """Of one code of one text: weights and cache that are read, in bytes, and kernels that are launched."""

    weights: float
    cache: float
    launches: float  # launches of torch's operations
    triton_launches: float  # launches of Triton's kernels and of the operations that remain
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
        counted = _COUNTED[-1]
        if self.total(counted) > memory:
            return max((batch for batch in range(1, counted) if self.total(batch) <= memory), default=0)
        assert self.further_clip > 0, self
        return counted + int((memory - self.total(counted)) // self.further_clip)


def further(counted: Sequence[float], layers: int) -> float:
    """What a model of `layers` layers takes, from that with two and with three, or from itself alone."""
    return counted[0] + (counted[-1] - counted[0]) * (layers - _SHALLOW[0])


def decoding(name: str, sizes: BenchmarkSizes, positions: int = POSITIONS, *, adapters: bool = False) -> Decoding:
    """Of the model `name` at these sizes, in bfloat16, with guidance where it has it; with `adapters` as by default."""
    kind, counts = MODELS[name], []
    layers = kind.depth(sizes)

    # Two shallow models are counted; the full depth follows from their difference.
    for counted in kind.depths(sizes):
        bench = Bench(shallower(sizes, counted), CPU, None, lambda text: None)
        model = kind.make(bench)
        if adapters:
            kind.adapt(bench, model)
        Precision("cpu", torch.bfloat16, "for the count").cast(model, ())
        read = [(".lora_" in key or key.startswith("lora_"), value.nbytes)
                for part in (*model.transformer.layers, model.speech_head) for key, value in part.named_parameters()]
        counts.append((sum(size for of_adapter, size in read if not of_adapter), launches(name, model),
                       launches(name, model, triton=True), sum(size for of_adapter, size in read if of_adapter)))

    # Guidance decodes each text in two rows.
    rows, width = 2 if model.guided else 1, model.config.decoder.width
    value_bytes = next(model.speech_head.parameters()).element_size()  # the cache of a GPU has the same type
    cache = rows * layers * 2 * width * positions * value_bytes
    weights, plain, fused, lora = (further(counted, layers) for counted in zip(*counts, strict=True))
    return Decoding(weights, cache, plain, fused, lora)


def launches(name: str, model: Any, *, triton: bool = False) -> int:
    """Kernels of a decoding step: operations that compute or copy, counted on the CPU, and Triton's."""
    stepper = Stepper(model, 1, model.config.conditioning_length + 64, 8, CPU)
    with torch.inference_mode(), _triton_kernels() if triton else nullcontext():
        MODELS[name].begin(stepper, model)
        stepper.advance()
        with _Operations() as counted:
            stepper.advance()
    return counted.count


def training_launches(scope: Scope, layers: int, *, fused: bool = True) -> int:
    """Kernels of the forward and backward pass of a training step of Chatterbox with so many layers.

    Counted on a narrow model, as their number does not depend on the width, with operations of the host among those
    beside the layers. Without `fused`, layers with adapters are called one by one, as peft computes them.
    """
    from models import triton_training

    bench = Bench(shallower(QUICK, layers), CPU, None, lambda text: None)
    trainer = training.make(bench, scope, "chatterbox", Precision("cpu", torch.bfloat16, "for the count"))
    clips = trainer.loader.by_length()[:4]
    kernels: dict[str, Any] = dict.fromkeys(
        ("_add_norm", "_add_norm_backward", "_rotate", "_swiglu", "_swiglu_backward"), _OneOperation())
    one_by_one: dict[str, Any] = {} if fused else {"_product": lambda layer: triton_training._Product(
        layer, layer.weight) if triton_training._is_plain(layer) else None}

    def dropout(layer: nn.Dropout, rows: torch.Tensor) -> torch.Tensor:
        """As on a GPU."""
        return torch.native_dropout(rows, layer.p, layer.training)[0]

    with (mock.patch("models.decoder.training_kernels", return_value=triton_training),
          mock.patch("core.model.adapters.FastCpuDropout.forward", dropout),
          mock.patch.multiple(triton_training, **kernels, **one_by_one)):
        trainer.profile_forward_backward(clips)
        with _Operations() as counted:
            trainer.profile_forward_backward(clips)
    return counted.count


def prefill_launches(layers: int, *, triton: bool = True) -> tuple[int, int]:
    """Kernels of the prefill of one text by Chatterbox with guidance: those of its graph, and those beside it."""
    from models import triton_training

    model = t3.make(Bench(shallower(QUICK, layers), CPU, None, lambda text: None))["float32"].bfloat16()
    config, decoder = model.config, model.config.decoder
    kernels: dict[str, Any] = dict.fromkeys(("_add_norm", "_rotate", "_swiglu"), _AnyKernel())
    with (_fake_gpu(model, triton=False), mock.patch("models.decoder.has_triton", return_value=triton),
          mock.patch.multiple(triton_training, **kernels), torch.inference_mode(),
          mock.patch.object(torch, "tensor", _without_values(torch.tensor)),
          mock.patch.object(torch, "as_tensor", _without_values(torch.as_tensor))):
        stepper = Stepper(model, 1, cache_capacity(config, _PREFILLED, 64), 64, CUDA)
        shape = decoder.layers, 2, decoder.heads, config.conditioning_length, decoder.width // decoder.heads
        voice = PreparedVoice(Voice({}), torch.zeros(shape, dtype=torch.bfloat16, device=CUDA))
        ids = torch.zeros(_PREFILLED, dtype=torch.long, device=CUDA)
        stepper.prefill([ids], [voice], Sampling(guidance=0.5))
        with _GPUKernels() as whole:
            stepper.prefill([ids], [voice], Sampling(guidance=0.5))
        with _GPUKernels() as in_graph:
            stepper.process(torch.zeros(2, 64, decoder.width, dtype=torch.bfloat16, device=CUDA))
    return len(in_graph.kernels), len(whole.kernels) - len(in_graph.kernels)


def _without_values(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`make`, which looks for a driver itself; here it only says of what shape and type its tensor is."""
    def made(*arguments: Any, device: torch.device = CPU, **options: Any) -> torch.Tensor:
        with unset_fake_temporarily():
            real = make(*arguments, **options)
        return torch.empty(real.shape, dtype=real.dtype, device=device)
    return made


@contextmanager
def _triton_kernels() -> Iterator[None]:
    """Let a step on a CPU call Triton's kernels, which count as one operation each and compute nothing but zeros."""
    from models import triton_kernels, triton_sampling

    codes = triton_sampling._sample.arg_names.index("sampled")

    def chosen(hidden: torch.Tensor, decoder: Any, *extra: Any) -> Any:
        head, layers = decoder.config.width // decoder.config.heads, [*decoder.linear_layers, *extra]
        return triton_kernels if triton_kernels.supports(hidden, head, layers) else None

    with (mock.patch("models.decoder.step_kernels", chosen), mock.patch("models.gpt2.step_kernels", chosen),
          mock.patch("models.generate._kernels", return_value=triton_sampling),
          mock.patch.multiple(triton_kernels, _few_rows=_OneOperation(), _many_rows=_OneOperation(),
                              _attend=_OneOperation(), merged_adapters=_Unmerged),
          mock.patch.multiple(triton_sampling, _sample=_OneOperation(codes), _observe=_OneOperation())):
        yield


class _OneOperation:
    """Stands for a kernel of Triton's: one operation, on nothing or on the argument `output`, which becomes zero."""

    def __init__(self, output: int | None = None) -> None:
        self.output, self.scratch = output, torch.zeros(1)

    def __getitem__(self, grid: object) -> Callable[..., torch.Tensor]:
        return lambda *arguments, **_: (self.scratch if self.output is None else arguments[self.output]).zero_()


class _Unmerged:
    """Stands for `models.merged_adapters`: weights of the same size that are not merged."""

    @staticmethod
    def weight(layer: Any) -> torch.Tensor:
        return getattr(layer, "base_layer", layer).weight


def _writes(func: Any, inputs: list[torch.Tensor], results: list[torch.Tensor]) -> bool:
    """Whether an operation writes memory: its result is neither a view, the input itself nor left empty."""
    storages = {value.untyped_storage()._cdata for value in inputs}
    return "empty" not in func._schema.name and (func._schema.is_mutable or any(
        value.untyped_storage()._cdata not in storages for value in results))


def _tensors(values: object) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


class _Operations(TorchDispatchMode):
    """Counts operations that write memory."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.count += _writes(func, _tensors((args, kwargs)), _tensors(result))
        return result


def step_memory(name: str, sizes: BenchmarkSizes, scope: Scope, dtype: torch.dtype, *, checkpointing: bool
                ) -> StepMemory:
    """Of clips that all have the length of the longest one of the benchmark."""
    counts = [_peaks(name, sizes, scope, dtype, layers, _COUNTED, checkpointing=checkpointing)
              for layers in MODELS[name].depths(sizes)]
    # Peaks of two depths give that of the full model.
    model, *peaks = (further(counted, MODELS[name].depth(sizes)) for counted in zip(*counts, strict=True))
    return StepMemory(model, tuple(peaks))


def _peaks(name: str, sizes: BenchmarkSizes, scope: Scope, dtype: torch.dtype, layers: int, batches: Sequence[int], *,
           checkpointing: bool) -> tuple[int, ...]:
    """Bytes of the model and its optimizer, and of a step of each batch, with so many layers."""
    alike = replace(sizes, clips=batches[-1], clip_s=(min(sizes.clip_s[-1], MODELS[name].longest_s),) * 3)
    bench = Bench(shallower(alike, layers), CPU, None, lambda text: None)
    trainer = training.make(bench, scope, name, Precision("cpu", dtype, "for the count"))
    trainer.set_microbatch_plan(MicrobatchPlan(activation_checkpointing=checkpointing))
    return (training.size(trainer) + trainer.optimizer_bytes,
            *(run_plan.peak_of_longest(trainer, clips, None) or 0 for clips in batches))


def benchmark_memory(name: str, sizes: BenchmarkSizes, scope: Scope, dtype: torch.dtype, layers: int, *,
                     checkpointing: bool) -> int:
    """Bytes of the model and of the first step of the benchmark's clips, measured with so many layers."""
    bench = Bench(shallower(sizes, layers), CPU, None, lambda text: None)
    trainer = training.make(bench, scope, name, Precision("cpu", dtype, "for the count"))
    trainer.set_microbatch_plan(MicrobatchPlan(activation_checkpointing=checkpointing))
    return training.size(trainer) + memory_plan.peak_bytes(CPU, trainer.train_step)


@dataclass(frozen=True)
class GPUKernel:
    """An operation as a GPU runs it."""

    kind: str  # a name in `KINDS`
    precision: str  # precision of its products: the name of a peak of `GPU`
    operations: float  # operations of products, convolutions and attention: two for each multiplication with its sum
    moved: float  # bytes of all that it reads and writes, once each

    def seconds(self, gpu: GPU) -> float:
        """What the slower of its operations and its bytes takes."""
        peak: float = getattr(gpu, self.precision)
        return max(self.operations / peak, self.moved / gpu.bytes_a_second)


KINDS = ("attention", "products", "convolutions", "the rest")


@dataclass(frozen=True)
class Rendering:
    """Of one text, by one network: its kernels in their order, and bytes of weights and of tensors at their peak."""

    kernels: tuple[GPUKernel, ...]
    weights: int
    activations: int

    def operations(self, precision: str) -> float:
        """Of the kernels that multiply in this precision."""
        return sum(kernel.operations for kernel in self.kernels if kernel.precision == precision)

    def seconds(self, gpu: GPU, least_s: float = 0.0, kinds: Sequence[str] = KINDS) -> float:
        """Of the kernels of these kinds, one after another, none of which takes less than `least_s`."""
        return sum(max(kernel.seconds(gpu), least_s) for kernel in self.kernels if kernel.kind in kinds)

    def without_graphs(self, gpu: GPU) -> float:
        """The slower of the GPU and of the host, which launches every kernel while the GPU computes."""
        return max(self.seconds(gpu, REPLAY_S), len(self.kernels) * LAUNCH_S)


Network = tuple[nn.Module, Callable[[], object]]  # and a rendering by it


def _flow(sizes: BenchmarkSizes, dtype: torch.dtype, steps: int) -> Network:
    model, prompt = Flow(sizes.sound.flow), round(max(sizes.prompts_s) * s3gen.CODE_RATE)
    model.cast_(dtype)
    model.decoder.estimator.order_taps_()
    config = model.config

    def render() -> object:
        flow_prompt = FlowPrompt(torch.zeros(1, prompt, dtype=torch.long, device=CUDA),
                                 torch.zeros(1, MEL_FRAMES_PER_CODE * prompt, config.estimator.n_mels, device=CUDA),
                                 torch.zeros(1, config.speaker_embedding_size, device=CUDA))
        return model.mel(torch.zeros(1, sizes.sound_codes, dtype=torch.long, device=CUDA), flow_prompt, steps=steps)

    return model, render


def _hift(sizes: BenchmarkSizes, dtype: torch.dtype, steps: int) -> Network:
    model, frames = HiFT(sizes.sound.vocoder), MEL_FRAMES_PER_CODE * sizes.sound_codes
    model.fold_weight_norm()
    return model, lambda: model.waveform(torch.zeros(1, model.config.n_mels, frames, device=CUDA))


def _s2mel_frames(sizes: BenchmarkSizes) -> int:
    """As long as S3Gen's sound, whose codes come at half the rate."""
    return int(s2mel.MEL_FRAMES_PER_CODE * 2 * sizes.sound_codes)


def _s2mel(sizes: BenchmarkSizes, dtype: torch.dtype, steps: int) -> Network:
    model, prompt, config = S2Mel(sizes.s2mel), round(max(sizes.prompts_s) * FRAME_RATE), sizes.s2mel
    model.estimator.cast_(dtype)

    def render() -> object:
        shapes = (1, prompt, config.width), (1, prompt, config.n_mels), (1, config.style)
        mel_prompt = S2MelPrompt(*(torch.zeros(shape, device=CUDA) for shape in shapes))
        return model.mel(torch.zeros(1, _s2mel_frames(sizes), config.width, device=CUDA), mel_prompt, steps=steps)

    return model, render


def _bigvgan(sizes: BenchmarkSizes, dtype: torch.dtype, steps: int) -> Network:
    model = BigVGAN(sizes.bigvgan)
    return model, lambda: model.waveform(torch.zeros(1, model.config.n_mels, _s2mel_frames(sizes), device=CUDA))


NETWORKS: dict[str, tuple[Callable[[BenchmarkSizes, torch.dtype, int], Network], int]] = {  # and published steps
    "S3Gen's flow": (_flow, flow.FLOW_STEPS), "HiFT": (_hift, 0), "S2Mel": (_s2mel, vocoder.FLOW_STEPS),
    "BigVGAN": (_bigvgan, 0),
}
RENDERINGS = {"s3gen": ("S3Gen's flow", "HiFT"), "s2mel": ("S2Mel", "BigVGAN")}


def rendering(network: str, sizes: BenchmarkSizes, *, triton: bool = True, steps: int | None = None) -> Rendering:
    """Of the sound of `sizes.sound_codes` after the longest prompt, in half precision where the code has it.

    Counted is the second text of its length, for which tables of times and buffers are there. `steps` are by default
    the published ones.
    """
    make, published = NETWORKS[network]
    with torch.device("meta"):
        model, render = make(sizes, torch.bfloat16 if triton else torch.float16, published if steps is None else steps)
    with _fake_gpu(model.requires_grad_(False).eval(), triton=triton):
        peak = memory_plan.peak_bytes(CPU, render)
        with _GPUKernels() as counted:
            render()
    weights = sum(value.nbytes for value in (*model.parameters(), *model.buffers()))
    return Rendering(tuple(counted.kernels), weights, peak)


@contextmanager
def _fake_gpu(model: nn.Module, *, triton: bool) -> Iterator[None]:
    """Tensors without values that say that they are on a GPU, those of the model too; graphs compute at each replay."""
    from models import triton_vocoder

    with (FakeTensorMode(allow_non_fake_inputs=True), mock.patch("torch.cuda._lazy_init"),
          mock.patch("models.cuda_graph_decode.DelayedGraph.__call__", lambda _, compute: compute()),
          mock.patch("models.cuda_graph_decode.GraphCache.check_weights", return_value=False),  # no addresses
          mock.patch("models.matmul_backends._has_flash_attention", return_value=triton),  # equal for both
          mock.patch("models.decoder.has_triton", return_value=triton),
          mock.patch.multiple(triton_vocoder, _normalise=_AnyKernel(), _rotate_pairs=_AnyKernel(),
                              _snake=_AnyKernel(), _anti_aliased_snake=_AnyKernel())):
        for part in model.modules():
            for name, weight in part.named_parameters(recurse=False):
                setattr(part, name, nn.Parameter(torch.empty_like(weight, device=CUDA), requires_grad=False))
            for name, buffer in part.named_buffers(recurse=False):
                setattr(part, name, torch.empty_like(buffer, device=CUDA))
        yield


class _AnyKernel:
    """Stands for a kernel of Triton's: one operation on all of its tensors, each of which it reads or writes."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *arguments, **_: torch._foreach_zero_(_tensors(arguments))


class _GPUKernels(TorchDispatchMode):
    """The operations on a GPU that write memory, as kernels; those that consist of others are taken apart."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[GPUKernel] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, packet = kwargs or {}, func._overloadpacket
        if not (packet in flop_registry or packet is torch.ops.aten.scaled_dot_product_attention
                or func.namespace == "prim"):
            with self:
                result = func.decompose(*args, **kwargs)
                if result is not NotImplemented:
                    return result
        result = func(*args, **kwargs)
        inputs, results = _tensors((args, kwargs)), _tensors(result)
        if _writes(func, inputs, results) and any(value.is_cuda for value in (*inputs, *results)):
            self._count(func, args, kwargs, inputs, results)
        return result

    def _count(self, func, args, kwargs, inputs: list[torch.Tensor], results: list[torch.Tensor]) -> None:
        packet, aten = func._overloadpacket, torch.ops.aten
        formula = flop_registry.get(aten._scaled_dot_product_efficient_attention
                                    if packet is aten.scaled_dot_product_attention else packet)
        operations = formula(*args, **kwargs, out_val=results[0]) if formula else 0
        moved = sum(map(_bytes, (*inputs, *results)))

        if packet in (aten.copy_, aten.fill_, aten.zero_):
            moved -= _bytes(inputs[0])  # is not read
        # Kernels without a formula count by the bytes that they move.
        kind = KINDS[-1]

        if operations:
            kind = ("attention" if "attention" in packet.__name__ else
                    "convolutions" if packet is aten.convolution else "products")
        tf32 = (torch.backends.cudnn.allow_tf32 if kind == "convolutions"
                else torch.backends.cuda.matmul.allow_tf32)
        precision = "half" if results and results[0].itemsize == 2 else "tf32" if tf32 else "single"

        self.kernels.append(GPUKernel(kind, precision, operations, moved))
        if kind == "convolutions" and args[2] is not None:  # cuDNN adds no bias, so that torch does
            # The bias of a convolution is a kernel of its own.
            self.kernels.append(GPUKernel(KINDS[-1], precision, 0, 2 * _bytes(results[0])))


def _bytes(value: torch.Tensor) -> int:
    """Bytes of memory behind a tensor: an axis that repeats has them once."""
    return math.prod(size for size, stride in zip(value.shape, value.stride(), strict=True) if stride) * value.itemsize


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables of each model."""
    parser = argparse.ArgumentParser(prog="python -m scripts.dev.arithmetic", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join((*MODELS, *RENDERINGS)), help="default: %(default)s")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16",
                        help="of the training step (default: %(default)s)")
    parser.add_argument("--measure", action="store_true",
                        help="only compare the memory of a training step with what this CPU takes")
    parser.add_argument("--launches", action="store_true",
                        help="only count the kernels of a training step and of a prefill of Chatterbox")
    args = parser.parse_args(arguments)
    if args.launches:
        print(_launches_table())
        return 0
    for name in args.models.split(","):
        if name in RENDERINGS:
            if not args.measure:
                print(_rendering_tables(RENDERINGS[name]), flush=True)
        elif args.measure:
            print((_batch_table if MODELS[name].small else _measured_table)(name, args.dtype), flush=True)
        else:
            print(_decoding_table(name), flush=True)
            print(_memory_table(name, args.dtype), flush=True)
    return 0


def _decoding_table(name: str) -> str:
    lines = []
    for adapters in (False, True):
        costs = decoding(name, FULL, adapters=adapters)
        lines += [f"**{MODELS[name].title}, one code of one text at {POSITIONS} positions in half precision, "
                  f"{'adapters on' if adapters else 'no adapter'}**: {costs.weights / 1e6:,.0f} MB of weights, "
                  f"{costs.cache / 1e6:.0f} MB of cache ({costs.cache / POSITIONS / 1e3:.0f} kB a position)", "",
                  "| | kernels | bytes alone, ms | with CUDA graphs, ms | without, ms |", "|---|---|---|---|---|"]
        for gpu in GPUS:
            # Decoding can be no faster than the memory is read.
            bare = costs.read(gpu) / gpu.bytes_a_second
            times = [f"{1000 * time:.3g}" for time in (bare, costs.seconds(gpu, REPLAY_S),
                                                       costs.seconds(gpu, LAUNCH_S))]
            lines.append(f"| {gpu.name} | {costs.kernels(gpu):,.0f} | {' | '.join(times)} |")
        lines.append("")
    return "\n".join(lines)


def _launches_table() -> str:
    layers = FULL.language.decoder.layers
    lines = [f"**Chatterbox with {layers} layers, kernels of the forward and backward pass of a training step**", "",
             "| | a layer | beside the layers, with operations of the host | all |", "|---|---|---|---|"]
    for scope, fused in (("rows", True), ("gated", True), ("gated", False)):
        counted = [training_launches(scope, depth, fused=fused) for depth in _SHALLOW]  # type: ignore[arg-type]
        each, total = counted[1] - counted[0], further(counted, layers)
        lines.append(f"| {scope}{'' if fused else ', adapters by peft'} | {each} | {total - each * layers:,.0f} | "
                     f"{total:,.0f} |")
    lines += ["", f"**A prefill of {_PREFILLED} text ids with guidance**", "",
              "| | a layer | all, in its graph | beside it |", "|---|---|---|---|"]
    for triton in (True, False):
        counts = [prefill_launches(depth, triton=triton) for depth in _SHALLOW]
        in_graph = [count for count, _ in counts]
        lines.append(f"| {'with' if triton else 'without'} Triton's kernels | {in_graph[1] - in_graph[0]} | "
                     f"{further(in_graph, layers):,.0f} | {counts[0][1]} |")
    return "\n".join((*lines, ""))


def _memory_table(name: str, dtype: str) -> str:
    length_s = min(FULL.clip_s[-1], MODELS[name].longest_s)
    lines = [f"**{MODELS[name].title}, peak memory of a step of clips of {length_s:g} s in {dtype}, GiB, and "
             "the largest batch that fits**", "",
             f"| | {' | '.join(f'{batch} clips' for batch in BATCHES)} | {' | '.join(gpu.name for gpu in GPUS)} |",
             "|---" * (1 + len(BATCHES) + len(GPUS)) + "|"]
    for scope in SCOPES:
        for checkpointing in (False, True):
            print(f"{name}: {scope}", file=sys.stderr)
            memory = step_memory(name, FULL, scope, getattr(torch, dtype), checkpointing=checkpointing)
            peaks = [f"{memory.total(batch) / 2**30:.{2 if MODELS[name].small else 1}f}" for batch in BATCHES]
            largest = [f"{memory.largest_batch((1 - RESERVED) * gpu.memory):,}" for gpu in GPUS]
            lines.append(f"| {scope}{', activation checkpointing' if checkpointing else ''} | "
                         f"{' | '.join((*peaks, *largest))} |")
    return "\n".join((*lines, ""))


def _measured_table(name: str, dtype: str) -> str:
    layers, kind = MODELS[name].depth(FULL), getattr(torch, dtype)
    lines = [f"**{MODELS[name].title}, peak memory of the first step of the benchmark's clips in {dtype}, GiB**", "",
             f"| | computed from {_SHALLOW[0]} and {_SHALLOW[1]} layers | measured with {layers} | measured/computed |",
             "|---|---|---|---|"]
    for scope in SCOPES:
        checkpointing = scope == "full"  # the benchmark planned the same
        counted = []
        for depth_counted in (*_SHALLOW, layers):
            print(f"{name}: {scope}, {depth_counted} layers", file=sys.stderr)
            counted.append(benchmark_memory(name, FULL, scope, kind, depth_counted, checkpointing=checkpointing))
        *shallow, measured = counted
        computed = further(shallow, layers)
        lines.append(f"| {scope}{', activation checkpointing' if checkpointing else ''} | {computed / 2**30:.2f} | "
                     f"{measured / 2**30:.2f} | {measured / computed:.3f} |")
    return "\n".join((*lines, ""))


def _batch_table(name: str, dtype: str) -> str:
    batch, layers = BATCHES[-1], MODELS[name].depth(FULL)
    lines = [f"**{MODELS[name].title}, peak memory of a step of {batch} clips in {dtype}, GiB**", "",
             f"| | computed from at most {_COUNTED[-1]} clips | measured | measured/computed |", "|---|---|---|---|"]
    for scope in SCOPES:
        for checkpointing in (False, True):
            print(f"{name}: {scope}", file=sys.stderr)
            computed = step_memory(name, FULL, scope, getattr(torch, dtype), checkpointing=checkpointing).total(batch)
            measured = sum(_peaks(name, FULL, scope, getattr(torch, dtype), layers, (batch,),
                                  checkpointing=checkpointing))
            lines.append(f"| {scope}{', activation checkpointing' if checkpointing else ''} | "
                         f"{computed / 2**30:.3f} | {measured / 2**30:.3f} | {measured / computed:.3f} |")
    return "\n".join((*lines, ""))


def _rendering_tables(networks: Sequence[str]) -> str:
    """What is counted, the times of each GPU, and those of the H100 by kinds of kernels."""
    lines = ["**Rendering, what is counted**", "",
             "| | 1e12 operations in half precision | TF32 | float32 | of all, attention | GB moved | kernels "
             "| on a T4 | weights, GB | peak of other tensors, GiB |", "|---" * 10 + "|"]
    renderings = {name: {triton: rendering(name, FULL, triton=triton) for triton in (True, False)} for name in networks}

    for name, by_triton in renderings.items():
        network = by_triton[True]
        operations = [network.operations(precision) / 1e12 for precision in ("half", "tf32", "single")]
        attention = sum(kernel.operations for kernel in network.kernels if kernel.kind == KINDS[0]) / 1e12
        lines.append(f"| {name} | {' | '.join(f'{value:.2f}' for value in (*operations, attention))} | "
                     f"{sum(kernel.moved for kernel in network.kernels) / 1e9:.1f} | {len(network.kernels):,} | "
                     f"{len(by_triton[False].kernels):,} | {network.weights / 1e9:.2f} | "
                     f"{network.activations / 2**30:.2f} |")
    lines += ["", "**Rendering, ms**", "",
              f"| | {' | '.join(f'{name}: work alone | with graphs | without' for name in networks)} |",
              "|---" * (1 + 3 * len(networks)) + "|"]

    for gpu in GPUS:
        usable = [variants[gpu.triton] for variants in renderings.values()]
        times = [1000 * time for variant in usable
                 for time in (variant.seconds(gpu), variant.seconds(gpu, REPLAY_S), variant.without_graphs(gpu))]
        lines.append(f"| {gpu.name} | {' | '.join(f'{time:.1f}' for time in times)} |")

    gpu = GPUS[-2]
    lines += ["", f"**On one {gpu.name} with graphs, ms (kernels)**", "", f"| | {' | '.join(KINDS)} |",
              "|---" * 5 + "|"]
    for name, by_triton in renderings.items():
        network = by_triton[gpu.triton]
        cells = [f"{1000 * network.seconds(gpu, REPLAY_S, (kind,)):.1f} "
                 f"({sum(kernel.kind == kind for kernel in network.kernels):,})" for kind in KINDS]
        lines.append(f"| {name} | {' | '.join(cells)} |")

    return "\n".join((*lines, ""))


if __name__ == "__main__":
    exit_with(main)
