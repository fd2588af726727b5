"""The CUDA path under torch's own fake tensors, which know CUDA's rules and compute nothing.

An operation on tensors of two devices raises, and so does a read by the host. `tests.emulated_cuda` has values and
graphs, but its rules are ours; these are torch's. Extraction looks at recordings on the CPU, so it has that test alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode, unset_fake_temporarily

from core.training import dataloader, setup
from core.training.dataloader import make_sample
from data.acoustics import audio
from models import teacher_forcing
from models.base import LossOptions, VocoderOptions, Voice
from models.generate import Stepper, cache_capacity
from tests.contract.conftest import CPU, World, single_start
from tests.contract.test_cuda import KINDS, SAMPLING, WITHOUT_GUARD, model, voice, with_guard
from tests.emulated_cuda import CUDA
from tests.triton_stand_in import patch_triton
from tests.worlds import train_options

pytestmark = pytest.mark.covering(whole="chatterbox")
__all__ = ["voice"]


def _move(module: nn.Module) -> None:
    """Fake parameters and buffers on the GPU, each a tensor of its own."""
    for part in module.modules():
        for name, value in part.named_parameters(recurse=False):
            there = torch.empty(value.shape, dtype=value.dtype, device=CUDA)
            setattr(part, name, nn.Parameter(there, requires_grad=value.requires_grad))
        for name, value in part.named_buffers(recurse=False):
            setattr(part, name, torch.empty(value.shape, dtype=value.dtype, device=CUDA))


def _without_values(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`make`, which looks for a driver itself; here it only says of what shape and type its tensor is."""
    def made(*given: Any, device: torch.device = CPU, **options: Any) -> torch.Tensor:
        with unset_fake_temporarily():
            real = make(*given, **options)
        return torch.empty(real.shape, dtype=real.dtype, device=device)
    return made


@contextmanager
def fake_cuda(*modules: nn.Module, triton: bool = False) -> Iterator[None]:
    """Inside, the modules are on a GPU that is not there; with `triton` its kernels have their stand-ins."""
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.cuda._lazy_init", lambda: None)
        patch.setattr("torch.cuda.get_device_capability", lambda device=None: (9, 0))
        patch.setattr("models.cuda_graph_decode.DelayedGraph.__call__", lambda graph, compute: compute())
        patch.setattr("models.cuda_graph_decode.GraphCache.check_weights", lambda cache, module: False)  # no addresses
        patch.setattr("models.matmul_backends._has_flash_attention", lambda device: True)
        patch.setattr(torch.Tensor, "pin_memory", lambda value: value)
        for name in ("tensor", "as_tensor", "hann_window"):
            patch.setattr(torch, name, _without_values(getattr(torch, name)))
        patch.setattr(audio, "mel_filterbank", _without_values(audio.mel_filterbank))
        patch.setattr(audio, "_inverse_filterbank", audio._inverse_filterbank.__wrapped__)  # whose cache would keep it
        patch.setattr("models.decoder.has_triton", lambda device: triton)
        if triton:
            patch_triton(patch)
        for module in modules:
            _move(module)
        yield


def test_fake_tensors_see_what_is_wrong() -> None:
    with fake_cuda():
        there = torch.zeros(3, device=CUDA)
        with pytest.raises(RuntimeError, match="device"):
            there + torch.zeros(3)
        with pytest.raises(DataDependentOutputException):
            there.sum().item()


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("triton", [False, True], ids=["torch", "triton"])
def test_a_voice_a_prefill_and_steps_stay_on_the_gpu(world: World, voice: Voice, kind: str, dtype: torch.dtype,
                                                     triton: bool) -> None:
    """One text with adapters beside one without; no step reads a value."""
    if triton:
        pytest.importorskip("triton")
    tts = model(world, CPU, kind, dtype)
    texts = [tts.front_end.encode("ሀለመ ሰረቀ", "am"), tts.front_end.encode("a word", "en")]
    with fake_cuda(tts.lm.module, triton=triton), torch.inference_mode():
        tts.lm.device = CUDA
        voices = []
        for language in ("am", "en"):
            with tts.adapters_for(language):
                voices.append(tts.lm.prepare(voice))
        network = tts.lm.module
        stepper = Stepper(network, 2, cache_capacity(network.config, max(map(len, texts)), 8), 8, CUDA)
        with tts.adapters_for_batch(["am", "en"]):
            stepper.prefill([torch.as_tensor(text, device=CUDA) for text in texts], voices,
                            replace(SAMPLING, alignment_guard=True))
            for _ in range(3):
                stepper.advance()
        assert stepper.guarded == (world.case.model not in WITHOUT_GUARD)
        assert stepper.codes.device.type == "cuda"


@pytest.mark.parametrize("changes", [{"scope": "rows"}, {"adapter": "lora"}, {"adapter": "dora"},
                                     {"adapter": "adalora"}, {"scope": "full"}],
                         ids=lambda changes: next(iter(changes.values())))
@pytest.mark.parametrize("triton", [False, True], ids=["torch", "triton"])
def test_the_losses_of_a_training_stay_on_the_gpu(world: World, changes: dict[str, object], triton: bool) -> None:
    """Batches are put together on the CPU; from there on nothing is read before the backward pass."""
    if triton:
        pytest.importorskip("triton")
    options = train_options(**{"scope": "gated", **changes})
    tts = with_guard(single_start(setup.new_model(options, world.workspace, CPU)))
    clips = dataloader.load_training_data(world.workspace, options.dataset, tts).train[:3]
    samples = [make_sample(clip, clip, tts.lm) for clip in clips]
    asked = LossOptions(text_dropout=0.1, code_dropout=0.2, attention=True)
    network = tts.lm.module
    batch = teacher_forcing.collate(samples, network.config, CPU, asked, range(3))
    with fake_cuda(network, triton=triton):
        found = teacher_forcing.losses(network, teacher_forcing._to_device(batch, CUDA), asked)
        assert {found.speech_sum.device.type, found.text_sum.device.type} == {"cuda"}
        assert (found.attention_sum is None) == (world.case.model in WITHOUT_GUARD)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_codes_are_decoded_on_one_device(world: World, voice: Voice, dtype: torch.dtype) -> None:
    base = world.base()
    vocoder = base.family.load_vocoder(base.base_folder, CPU)
    parts = [getattr(value, "__self__", value) for value in vars(vocoder).values()]  # of a bound method too
    networks = [value for value in parts if isinstance(value, nn.Module)]
    assert networks
    options = VocoderOptions(flow_steps=5, watermark=False)
    vocoder.cast_(dtype)
    with fake_cuda(*networks):
        if hasattr(vocoder, "device"):
            vocoder.device = CUDA
        assert vocoder.decode(np.arange(12) % world.case.codes, voice, options).device == CPU
        if (stream := vocoder.stream(voice, options)) is not None:
            parts = [stream.push(np.arange(count) % world.case.codes) for count in (12, 24, 40)]
            assert any(map(len, parts))
            assert {part.device for part in (*parts, stream.finish())} == {CPU}


def test_nothing_fake_is_left_for_other_tests(world: World, voice: Voice) -> None:
    """In a cache, as of the filters that one vocoder needs."""
    if world.case.name != "tiny":
        pytest.skip("the filters are of the built-in model")
    base = world.base()

    def sound() -> torch.Tensor:
        return base.family.load_vocoder(base.base_folder, CPU).decode(
            np.arange(12) % world.case.codes, voice, VocoderOptions(flow_steps=2, watermark=False))

    wanted = sound()
    audio.mel_filterbank.cache_clear()
    audio._inverse_filterbank.cache_clear()
    test_codes_are_decoded_on_one_device(world, voice, torch.float32)
    assert torch.equal(sound(), wanted)
