"""Every family on CUDA: where there is no GPU, on the one of `tests.emulated_cuda`.

Values are compared with those of the CPU in float32, and of half precision with and without graphs.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from core import compute
from core.model import loading
from core.model.adapters import AdapterPlan, Adapters
from core.model.loading import TTSModel, load_extension
from core.model.precision import Precision
from core.speech.evaluation import SpeechEvaluator
from core.training import dataloader, replay, setup
from core.training.trainer import Trainer
from data.acoustics import audio
from models.base import Generated, Sampling, VocoderOptions, Voice
from models.cuda_graph_decode import CUDAGraphStepper
from tests.contract.conftest import CPU, World, single_start
from tests.emulated_cuda import CUDA, REAL, State, emulated_cuda
from tests.worlds import ENGLISH, RATE, CodesAsSound, tone, train_options

pytestmark = pytest.mark.covering(whole="chatterbox")

WITHOUT_GUARD = ("indextts2",)  # models whose aligned heads are not known
WITHOUT_FLOW = ("tiny",)  # families whose vocoder has no steps
KINDS = ("none", "lora", "dora", "adalora")
SAMPLING = Sampling(temperature=1.0, guidance=0.5, repetition_penalty=1.2)


def model(world: World, device: torch.device, kind: str = "none", dtype: torch.dtype = torch.float32) -> TTSModel:
    """The extended model with adapters that act; on any device the same. It speaks few codes, to save time."""
    tts = with_guard(single_start(load_extension(world.workspace, "tiny-am", device)))
    tts.lm.base_code_limit, tts.lm.codes_per_token = 10, 0  # type: ignore[attr-defined]
    if kind != "none":
        names = {name: 4 for part in ("attention", "heads") for name in tts.lm.adapter_targets[part]}
        adapters = Adapters.fresh(tts.lm.module, AdapterPlan(kind, names), seed=0)  # type: ignore[arg-type]
        change(adapters, 1)
        tts.lm.module.to(device).eval()
        tts = replace(tts, adapters=adapters, scope="gated")
    Precision(device.type, dtype, "for the test").cast(tts.lm.module, ())
    return tts


def with_guard(tts: TTSModel) -> TTSModel:
    """With heads for the guard and the guided attention loss, which a Chatterbox of two layers has not."""
    if tts.family.name == "chatterbox":
        network = tts.lm.module
        network.config = replace(network.config, aligned_heads=((0, 0), (1, 1)))
    return tts


@torch.no_grad()
def change(adapters: Adapters, seed: int) -> None:
    """Other factors, in the tensors that are there."""
    noise = torch.Generator().manual_seed(seed)
    for value in adapters.parameters().values():
        value.add_((0.1 * torch.randn(value.shape, generator=noise)).to(value.device))


@pytest.fixture(scope="session")
def voice(world: World) -> Voice:
    return next(iter(world.voices(world.base()).values()))


def speak(tts: TTSModel, voice: Voice, sampling: Sampling = SAMPLING, languages: tuple[str, ...] = ("am", "en"),
          text: str = "ሀለመ ሰረቀ") -> list[list[int]]:
    """The codes of a text in each language, spoken together."""
    texts = [tts.front_end.encode(text if language == "am" else ENGLISH[0], language) for language in languages]
    voices = []
    for language in languages:
        with tts.adapters_for(language):
            voices.append(tts.lm.prepare(voice))
    return [one.codes.tolist() for one in tts.generate(texts, languages, voices, sampling)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_of_each_language_is_spoken_as_on_the_cpu(world: World, voice: Voice, kind: str) -> None:
    """Adapters act on one of two rows. Without a GPU every code is a replay of a captured graph."""
    wanted = speak(model(world, CPU, kind), voice)
    with emulated_cuda() as state:
        assert speak(model(world, CUDA, kind), voice) == wanted
        assert REAL or state.replays >= max(map(len, wanted))


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_graphs_compute_the_plain_step_in_half_precision(world: World, voice: Voice, kind: str, dtype: torch.dtype,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a text with adapters, and of one with them beside one without."""
    with emulated_cuda():
        tts = model(world, CUDA, kind, dtype)
        captured = [speak(tts, voice, languages=languages) for languages in (("am",), ("am", "en"))]
        monkeypatch.setattr(type(tts.lm), "_stepper_for", lambda *_: None)
        assert [speak(tts, voice, languages=languages) for languages in (("am",), ("am", "en"))] == captured


@pytest.mark.parametrize("kind", KINDS[1:])
def test_graphs_of_tritons_kernels_compute_the_plain_step(world: World, voice: Voice, kind: str,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """Text after text on the graphs of the first, while what the kernels read of the adapters changes."""
    pytest.importorskip("triton")

    def story(tts: TTSModel) -> list[list[list[int]]]:
        said = []
        for seed in (2, 3):
            said.append(speak(tts, voice, replace(SAMPLING, alignment_guard=True)))
            assert tts.adapters is not None
            change(tts.adapters, seed)
        return said

    with emulated_cuda(triton=True) as state:
        captured = story(model(world, CUDA, kind, torch.bfloat16))
        launched = {name for name, kernel in state.kernels.items() if kernel.launches}
        assert REAL or launched == {
            "sample", *(() if world.case.name == "tiny" else ("linear", "attend")),  # whose heads are too small
            *(() if world.case.model in WITHOUT_GUARD else ("observe",)),
            *(() if world.case.model == "indextts2" else ("add_norm", "rotate", "swiglu"))}  # its prefill is torch's
        monkeypatch.setattr(type(model(world, CPU).lm), "_stepper_for", lambda *_: None)
        assert story(model(world, CUDA, kind, torch.bfloat16)) == captured


def test_texts_with_merged_adapters_and_without_do_not_share_a_batch(world: World, voice: Voice,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where they are merged: by Triton's kernels, in half precision."""
    pytest.importorskip("triton")
    languages, sizes = ("am", "en", "am", "en", "am"), list[int]()
    for triton, dtype, wanted in ((True, torch.bfloat16, [3, 2]), (True, torch.float32, [5]),
                                  (False, torch.bfloat16, [5])):
        if REAL and not triton:
            continue
        with emulated_cuda(triton=triton):
            tts = model(world, CUDA, "lora", dtype)
            generate = tts.lm.generate
            sizes.clear()
            monkeypatch.setattr(tts.lm, "generate", lambda texts, *others, generate=generate: sizes.append(
                len({id(text) for text in texts})) or generate(texts, *others))
            speak(tts, voice, languages=languages)
            assert sizes == wanted, (triton, dtype)


def test_the_caches_of_a_batch_are_bounded(world: World, voice: Voice, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a bounded batch keeps its buffers: the next one like it captures nothing."""
    languages, sizes = ("am", "en", "am", "en", "am"), list[int]()
    wanted = speak(model(world, CPU), voice, languages=languages)
    with emulated_cuda() as state:
        tts = model(world, CUDA)
        generate, needed = tts.lm.generate, tts.lm.decode_bytes(max(
            len(tts.front_end.encode(text, language)) for text, language in (("ሀለመ ሰረቀ", "am"), (ENGLISH[0], "en"))),
            SAMPLING)
        monkeypatch.setattr(loading, "_MAX_GPU_CACHE", 3 * needed)
        monkeypatch.setattr(tts.lm, "generate", lambda texts, *others: sizes.append(len(texts)) or generate(
            texts, *others))
        made = []
        for _ in range(2):
            assert speak(tts, voice, languages=languages) == wanted
            made.append(state.captures)
        assert sizes == [2, 2, 2] * 2
        assert made[0] == made[1]


@pytest.mark.skipif(REAL, reason="a GPU does not count what the host reads")
def test_the_host_waits_for_the_gpu_once_in_eight_codes(world: World, voice: Voice) -> None:
    """Beside what any text costs."""
    def codes_and_reads(limit: int) -> tuple[int, int]:
        with emulated_cuda() as state:
            tts = model(world, CUDA)
            tts.lm.base_code_limit = limit  # type: ignore[attr-defined]
            codes = max(map(len, speak(tts, voice, replace(
                SAMPLING, alignment_guard=world.case.name != "tiny"))))  # whose texts it would end too early
        return codes, state.host_reads

    (few, reads_of_few), (many, reads_of_many) = codes_and_reads(6), codes_and_reads(110)
    assert many >= few + 24
    assert reads_of_many - reads_of_few <= (many - few) // 8 + 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_sees_trained_parameters_and_other_options(world: World, voice: Voice, kind: str) -> None:
    """Text after text on the graphs of the first, while adapters, rows, guidance and penalty change."""
    def story(tts: TTSModel) -> list[list[list[int]]]:
        said = [speak(tts, voice), speak(tts, voice, replace(SAMPLING, seed=1))]
        for seed in (2, 3):
            if tts.adapters is not None:
                change(tts.adapters, seed)
            said.append(speak(tts, voice))
        said.append(speak(tts, voice, replace(SAMPLING, guidance=0.0)))
        said.append(speak(tts, voice, replace(SAMPLING, repetition_penalty=2.0, temperature=0.5)))
        said.append(speak(tts, voice, replace(SAMPLING, top_k=30, top_p=0.8)))
        said.append(speak(tts, voice, languages=("en", "en")))
        return said

    wanted = story(model(world, CPU, kind))
    with emulated_cuda():
        assert story(model(world, CUDA, kind)) == wanted


@pytest.mark.covering
@pytest.mark.parametrize("kind", KINDS)
def test_graphs_of_longer_spans_have_the_adapters_and_the_guard(world: World, voice: Voice, kind: str,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans of 16 positions, 32 and so on; the guard watches where the model has aligned heads."""
    monkeypatch.setattr("models.cuda_graph_decode._MIN_SPAN", 16)

    def long(device: torch.device) -> list[list[int]]:
        tts = model(world, device, kind)
        tts.lm.base_code_limit = 60  # type: ignore[attr-defined]
        return speak(tts, voice, replace(SAMPLING, alignment_guard=True))

    wanted = long(CPU)
    with emulated_cuda() as state:
        assert long(CUDA) == wanted
        assert REAL or state.captures > 1


def test_like_requests_capture_nothing_new(world: World, voice: Voice) -> None:
    """Batches of any size are and of any rows with adapters are filled up to a size that has graphs."""
    batches = [("am",), ("am", "en"), ("am", "en", "en"), ("en", "am", "am", "am")]
    plain = model(world, CPU, "lora")
    wanted = [speak(plain, voice, languages=languages) for languages in batches]
    with emulated_cuda() as state:
        tts, made = model(world, CUDA, "lora"), []
        for _ in range(3):
            assert [speak(tts, voice, languages=languages) for languages in batches] == wanted
            made.append(state.captures)
        # A step of one, two and four texts; a prefill of each when it comes for the second time.
        assert REAL or made == [3 + 1, 3 + 3, 3 + 3]


def test_longer_texts_of_a_size_capture_nothing_new(world: World, voice: Voice) -> None:
    """Each request is a little longer than the one before it, as sentences of one book are."""
    texts = [" ".join(["ሀለመ ሰረቀ"] * count) for count in (1, 2, 3)]
    wanted = [speak(model(world, CPU, "lora"), voice, text=text) for text in texts]
    with emulated_cuda() as state:
        tts, made = model(world, CUDA, "lora"), []
        for text in texts:
            assert speak(tts, voice, text=text) == wanted[len(made)]
            made.append(state.captures)
        stepper, = tts.lm._steppers.values()  # type: ignore[attr-defined]
        assert stepper.capacity == 512
        steps = sum(map(len, stepper._graphs.values()))  # of 128 and 256 positions, if the texts reach them
        prefills = sum(prefill._graph.has_graph for prefill in stepper._prefills._kept.values())
        assert REAL or made[-1] == steps + prefills
        assert prefills < len(texts)


def test_without_guidance_a_text_has_one_row(world: World, voice: Voice) -> None:
    """Its cache is half as large, and what guidance was used for before and after it keeps its graphs."""
    plain, free = model(world, CPU), replace(SAMPLING, guidance=0.0)
    asked = (SAMPLING, free) * 3  # the second prefill of each is captured
    wanted = [speak(plain, voice, sampling) for sampling in asked]
    with emulated_cuda() as state:
        tts, made = model(world, CUDA), []
        for sampling, codes in zip(asked, wanted, strict=True):
            assert speak(tts, voice, sampling) == codes
            made.append(state.captures)
        assert REAL or made[3] == made[5]
        rows = {key: stepper.cache.storage.shape[2]
                for key, stepper in tts.lm._steppers.items()}  # type: ignore[attr-defined]
        guided = tts.lm.module.guided
        assert rows == ({(2, True): 4, (2, False): 2} if guided else {(2, False): 2})


def test_texts_at_once_are_chosen_by_free_memory(world: World, voice: Voice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the estimate was wrong: memory that runs out halves the batch."""
    tts = model(world, CPU)
    languages, sizes, generate = ("am", "en", "am", "en", "am"), list[int](), tts.lm.generate
    wanted = speak(tts, voice, languages=languages)
    most = 5

    def counted(texts: list[np.ndarray], *others: object) -> list[Generated]:
        if len(texts) > most:
            raise torch.OutOfMemoryError("not on this GPU")
        sizes.append(len(texts))
        return generate(texts, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(tts.lm, "generate", counted)
    needed = tts.lm.decode_bytes(max(len(tts.front_end.encode(text, language)) for text, language in (
        ("ሀለመ ሰረቀ", "am"), (ENGLISH[0], "en"))), SAMPLING)
    for free, allowed, batches in ((None, 5, [5]), (10 * needed, 5, [5]), (6 * needed, 5, [2, 2, 1]), (0, 5, [1] * 5),
                                   (None, 2, [2, 2, 1]), (None, 3, [2, 2, 1])):
        monkeypatch.setattr(compute, "free_bytes", lambda device, free=free: free)
        most = allowed
        sizes.clear()
        assert speak(tts, voice, languages=languages) == wanted
        assert sizes == batches
    most = 0
    with pytest.raises(torch.OutOfMemoryError):
        speak(tts, voice, languages=languages)

    def free_buffers() -> None:
        nonlocal most
        most = 5  # buffers of other batches were in the way

    monkeypatch.setattr(tts.lm, "free_buffers", free_buffers)
    assert speak(tts, voice, languages=("am",)) == wanted[:1]


def test_the_copies_that_fill_a_batch_fit_into_memory_too(world: World, voice: Voice,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    languages, sizes = ("am", "en", "am", "en", "am"), list[int]()
    wanted = speak(model(world, CPU), voice, languages=languages)
    with emulated_cuda():
        tts = model(world, CUDA)
        generate, needed = tts.lm.generate, tts.lm.decode_bytes(max(
            len(tts.front_end.encode(text, language)) for text, language in (("ሀለመ ሰረቀ", "am"), (ENGLISH[0], "en"))),
            SAMPLING)

        def counted(texts: list[np.ndarray], *others: object) -> list[Generated]:
            sizes.append(len(texts))
            return generate(texts, *others)  # type: ignore[arg-type]

        monkeypatch.setattr(tts.lm, "generate", counted)
        for fitting, batches in ((5, [4, 4]), (7, [4, 4]), (8, [8]), (0, [8]), (3, [2, 2, 2]), (1, [1] * 5)):
            if fitting == 3:  # else the buffers of eight texts are there
                tts.lm.free_buffers()
            monkeypatch.setattr(compute, "free_bytes", lambda device, fitting=fitting: 2 * fitting * needed)
            sizes.clear()
            assert speak(tts, voice, languages=languages) == wanted
            assert sizes == batches


def test_the_caches_have_the_size_that_was_told_and_are_freed_after_an_evaluation(world: World) -> None:
    with emulated_cuda():
        tts = model(world, CUDA)
        made: list[CUDAGraphStepper] = []
        stepper_for = tts.lm._stepper_for  # type: ignore[attr-defined]
        tts.lm._stepper_for = lambda *given: made.append(stepper_for(*given)) or made[-1]  # type: ignore[attr-defined]
        evaluator = SpeechEvaluator(CodesAsSound(), world.voices(tts), None)
        texts = [("en", ENGLISH[0]), ("en", ENGLISH[1])]
        evaluator.speak(tts, texts, SAMPLING)
        made.clear()  # libraries have their workspaces now
        before = torch.cuda.memory_allocated() if REAL else 0
        evaluator.speak(tts, texts, SAMPLING)
        assert made[0].cache is not None
        storage = made[0].cache.storage
        longest = max(len(tts.front_end.encode(text, language)) for language, text in texts)
        states = made[0].predicting
        assert storage.nbytes + states.nbytes == 2 * tts.lm.decode_bytes(longest, SAMPLING)
        kept = weakref.ref(made.pop())
        del storage, states
        gc.collect()
        assert kept() is None
        assert not REAL or torch.cuda.memory_allocated() <= before + 2**20


def test_streaming_frees_the_buffers_of_batches_where_memory_is_short(world: World, voice: Voice,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    with emulated_cuda():
        tts = model(world, CUDA)
        ids = tts.front_end.encode(ENGLISH[0], "en")
        wanted = speak(tts, voice, languages=("en",) * 4)[0]
        for free, left in ((None, {1, 4}), (0, {1})):
            monkeypatch.setattr(compute, "free_bytes", lambda device, free=free: free)
            if free == 0:  # else it has its own buffers
                tts.lm._steppers = {key: value for key, value in tts.lm._steppers.items()  # type: ignore[attr-defined]
                                    if key[0] > 1}
            *_, made = tts.stream(ids, tts.lm.prepare(voice), SAMPLING)
            assert isinstance(made, Generated)
            assert made.codes.tolist() == wanted
            assert {texts for texts, _ in tts.lm._steppers} == left  # type: ignore[attr-defined]


@pytest.mark.parametrize("at_once", [True, False], ids=["in the call", "in the first step"])
def test_a_stream_that_runs_out_of_memory_begins_again_without_other_buffers(
        world: World, voice: Voice, at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once: what does not fit alone is an error."""
    with emulated_cuda():
        tts = model(world, CUDA)
        ids, prepared = tts.front_end.encode(ENGLISH[0], "en"), tts.lm.prepare(voice)
        wanted = speak(tts, voice, languages=("en",) * 4)[0]
        stream, free_buffers, fits = tts.lm.stream, tts.lm.free_buffers, False

        def steps(*given: Any) -> Iterator[np.ndarray | Generated]:
            if not fits:
                raise torch.OutOfMemoryError("not on this GPU")
            yield from stream(*given)

        def limited(*given: Any) -> Iterator[np.ndarray | Generated]:
            if at_once and not fits:
                raise torch.OutOfMemoryError("not on this GPU")
            return steps(*given)

        def free() -> None:
            nonlocal fits
            free_buffers()
            fits = True

        monkeypatch.setattr(tts.lm, "stream", limited)
        with pytest.raises(torch.OutOfMemoryError):
            list(tts.stream(ids, prepared, SAMPLING))
        monkeypatch.setattr(tts.lm, "free_buffers", free)
        *_, made = tts.stream(ids, prepared, SAMPLING)
        assert isinstance(made, Generated)
        assert made.codes.tolist() == wanted


def test_merged_adapters_count_where_memory_decides_on_a_batch(world: World, voice: Voice,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as they are not merged: before, and when other buffers took their place."""
    languages, sizes = ("am",) * 4, list[int]()
    with emulated_cuda(triton=True):
        tts = model(world, CUDA, "lora", torch.bfloat16)
        generate, needed = tts.lm.generate, tts.lm.decode_bytes(len(tts.front_end.encode("ሀለመ ሰረቀ", "am")), SAMPLING)
        with tts.adapters_for("am"):
            merged = tts.lm.bytes_to_merge()
        with tts.adapters_for("en"):
            assert tts.lm.bytes_to_merge() == 0
        monkeypatch.setattr(tts.lm, "generate", lambda texts, *others: sizes.append(len(texts)) or generate(
            texts, *others))
        for free, batches in ((4 * needed + merged - 1, [2, 2]), (4 * needed + merged, [4])):
            monkeypatch.setattr(compute, "free_bytes", lambda device, free=free: 2 * free)
            tts.lm.free_buffers()
            sizes.clear()
            speak(tts, voice, languages=languages)
            assert sizes == batches
            with tts.adapters_for("am"):
                assert tts.lm.bytes_to_merge() == 0
        copies = [layer.merged_weight for layer in tts.lm.module.modules() if hasattr(layer, "merged_weight")]
        assert merged == sum(value.nbytes for value in copies) > 0


def test_the_caches_are_freed_by_an_evaluation_that_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    tts, freed = model(world, CPU), list[int]()
    monkeypatch.setattr(tts.lm, "free_buffers", lambda: freed.append(1))
    evaluator = SpeechEvaluator(CodesAsSound(), world.voices(tts), None)
    monkeypatch.setattr(evaluator.vocoder, "free_buffers", lambda: freed.append(2))
    monkeypatch.setattr(evaluator, "generate", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        evaluator.speak(tts, [("en", ENGLISH[0])], SAMPLING)
    assert freed == [1, 2]


def assert_near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Waveforms (S,), or spectra, that differ by less than 1% of their norm."""
    assert found.device == CPU
    assert found.shape == wanted.shape
    assert (found - wanted).norm() < 0.01 * wanted.norm()


def magnitudes(waveform: torch.Tensor) -> torch.Tensor:
    """Magnitudes in mel bands (80, F), without the phases, of a waveform (S,)."""
    return audio.log_mel(waveform, audio.MelSettings()).exp()


def test_a_text_is_streamed_as_on_the_cpu(world: World, voice: Voice) -> None:
    """Codes and sound together; a family without streaming decodes the whole.

    Magnitudes are compared, not samples: a phase near a half turn may change its sign by rounding.
    """
    def sound(device: torch.device) -> torch.Tensor:
        tts = model(world, device)
        tts.lm.base_code_limit = 40  # type: ignore[attr-defined]
        vocoder = tts.family.load_vocoder(tts.base_folder, device)
        ids, prepared = tts.front_end.encode(ENGLISH[0], "en"), tts.lm.prepare(voice)
        options = VocoderOptions(flow_steps=5, watermark=False)
        stream, parts = vocoder.stream(voice, options), []
        for chunk in tts.lm.stream(ids, prepared, SAMPLING):
            if isinstance(chunk, Generated):
                parts.append(stream.finish() if stream else vocoder.decode(chunk.codes, voice, options,
                                                                           chunk.hidden_states))
            elif stream:
                parts.append(stream.push(chunk))
        return torch.cat(parts)

    wanted = sound(CPU)
    with emulated_cuda():
        found = sound(CUDA)
    assert found.shape == wanted.shape
    assert_near(magnitudes(found), magnitudes(wanted))


@pytest.mark.skipif(REAL, reason="a GPU does not count its captures")
def test_the_steps_of_a_streamed_flow_are_a_graph(world: World, voice: Voice) -> None:
    base = world.base()
    with emulated_cuda() as state:
        vocoder = base.family.load_vocoder(base.base_folder, CUDA)
        stream = vocoder.stream(voice, VocoderOptions(flow_steps=5, watermark=False))
        if stream is None:
            pytest.skip("the family does not stream")
        stream.push(np.arange(60) % world.case.codes)
        stream.finish()
    assert state.captures


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_codes_are_decoded_as_on_the_cpu(world: World, voice: Voice, dtype: torch.dtype) -> None:
    def sound(device: torch.device) -> torch.Tensor:
        base = world.base()
        vocoder = base.family.load_vocoder(base.base_folder, device)
        vocoder.cast_(dtype)
        spoken = np.arange(12) % world.case.codes
        return vocoder.decode(spoken, voice, VocoderOptions(flow_steps=5, watermark=False))

    wanted = sound(CPU)
    with emulated_cuda() as state:
        found = sound(CUDA)
        assert REAL or bool(state.captures) == (world.case.name not in WITHOUT_FLOW)  # a flow's steps are one graph
    if dtype is torch.float32:
        assert_near(found, wanted)
    assert found.device == CPU
    assert found.shape == wanted.shape
    assert found.isfinite().all()


def test_features_are_extracted_as_on_the_cpu(world: World) -> None:
    clips = [tone(3, 1.0), tone(4, 0.7, 220.0)]

    def extracted(device: torch.device) -> list[dict[str, np.ndarray]]:
        base = world.base()
        features = base.family.load_extractor(base.base_folder, device).extract_batch(clips)
        voice = base.family.voice_from_recording(base.base_folder, device, clips[0], RATE)
        return [*(one.arrays for one in features), dict(voice.conditioning), dict(voice.timbre)]

    wanted = extracted(CPU)
    with emulated_cuda():
        found = extracted(CUDA)
    for before, after in zip(wanted, found, strict=True):
        assert before.keys() == after.keys()
        for name in before:
            np.testing.assert_allclose(after[name], before[name], rtol=1e-2, atol=1e-3, err_msg=name)


@pytest.mark.parametrize("changes", [
    {"scope": "rows"}, {"adapter": "lora"}, {"adapter": "dora"}, {"adapter": "adalora"}, {"scope": "full"}],
    ids=lambda changes: next(iter(changes.values())))
def test_a_training_step_is_that_of_the_cpu(world: World, changes: dict[str, object],
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """The losses of two steps, without dropout in adapters, whose random numbers are those of the device.

    Without a GPU there is no backward pass on it: the gradients are ones, everywhere. The host waits for the losses
    alone, once a step.
    """
    if not REAL:
        monkeypatch.setattr(torch.Tensor, "backward", lambda loss: fill_gradients())
    trained: list[torch.nn.Parameter] = []

    def fill_gradients() -> None:
        for value in trained:
            value.grad = torch.ones_like(value)

    def losses(device: torch.device, dtype: torch.dtype = torch.float32, state: State | None = None) -> list[float]:
        options = train_options(guided_attention_weight=0.1, text_dropout=0.1, code_dropout=0.2, batch_size=3,
                                **{"scope": "gated", "adapter_dropout": 0.0, **changes})
        tts = with_guard(single_start(setup.new_model(options, world.workspace, device)))
        data = dataloader.load_training_data(world.workspace, options.dataset, tts)
        replayed = replay.load(tts, world.voices(tts)).replayed if options.scope == "full" else ()
        trainer = Trainer(options, tts, data, replayed, Precision(device.type, dtype, "for the test"))
        trained[:] = trainer.trainables.named.values()
        found = []
        for _ in range(2):
            before = state.host_reads if state else 0
            step = trainer.train_step()
            reads = state.host_reads - before if state else 0
            found += [step.speech, step.text, step.gradient_norm]
        assert reads <= 1 or changes.get("adapter") == "adalora"  # of which peft reads the ranks of each layer
        return found

    wanted = losses(CPU)
    with emulated_cuda() as state:
        np.testing.assert_allclose(losses(CUDA, state=state), wanted, rtol=2e-3)
        half = losses(CUDA, torch.bfloat16, state)
    np.testing.assert_allclose(half[:2], wanted[:2], rtol=0.05)
