"""The guard decides as the published analyzer on its recorded attention, and watches what the model attends to."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from models.alignment_guard import AlignmentGuard
from models.base import Sampling, Voice
from models.chatterbox.family import Chatterbox
from models.cuda_graph_decode import CUDAGraphStepper
from models.decoder import DecoderConfig
from models.generate import Stepper, cache_capacity, generate, prepare_voice
from models.indextts2.family import IndexTTS2
from models.speech_network import T3, T3Config
from models.teacher_forcing import GuidedAttention
from models.tiny.family import Tiny
from tests.emulated_cuda import CUDA, emulated_cuda

CPU = torch.device("cpu")
RECORDED = load_file(str(Path(__file__).parents[2] / "reference" / "chatterbox" / "alignment.safetensors"))
STOP = 7
CONFIG = T3Config(DecoderConfig(width=32, layers=3, heads=2, mlp_width=48), 30, 60, 58, 59, 64, 300, 8,
                        prompt_queries=2, doubled_start=True, aligned_heads=((2, 1), (0, 0)))
GUARDED = Sampling(temperature=1.0, alignment_guard=True)


def decisions(rows: torch.Tensor) -> list[list[int]]:
    """For these cases, spoken together, at each code: -1 the stop is suppressed, 1 it is forced."""
    attention, codes, lengths = (RECORDED[name][rows] for name in ("attention", "codes", "lengths"))
    guard, found = AlignmentGuard(len(rows), CPU), []
    guard.reset(lengths)
    for frame in range(attention.shape[1]):
        guard.observe(attention[:, frame], codes[:, frame - 1] if frame else None)
        logits = guard.apply(torch.zeros(len(rows), 100), torch.arange(100) == STOP)
        found.append(logits[:, STOP].sign().long())
        others = torch.cat([logits[:, :STOP], logits[:, STOP + 1:]], 1)
        assert torch.equal(others, torch.where(found[-1] == 1, -2.0**15, 0.0)[:, None].expand_as(others))
    return torch.stack(found, 1).tolist()


def test_it_decides_as_the_published_analyzer() -> None:
    wanted = RECORDED["decisions"]
    assert {value for row in wanted.tolist() for value in row} == {-1, 0, 1}
    assert decisions(torch.arange(len(wanted))) == wanted.tolist()


def test_a_text_does_not_depend_on_its_batch() -> None:
    for case in (0, 5, 9):
        assert decisions(torch.tensor([case])) == RECORDED["decisions"][case:case + 1].tolist()


@pytest.fixture(scope="module")
def model() -> T3:
    torch.manual_seed(0)
    return T3(CONFIG).eval().requires_grad_(False)


def voice() -> Voice:
    noise = np.random.default_rng(0)
    return Voice({"speaker_embedding": noise.standard_normal(8).astype(np.float32),
                  "prompt_codes": noise.integers(0, 58, 5)})


def test_it_sees_the_attention_of_a_forward_pass_over_the_whole_row(
        model: T3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of two lengths in one batch, against the attention that the training loss computes."""
    seen: list[torch.Tensor] = []
    observe = AlignmentGuard.observe
    monkeypatch.setattr(AlignmentGuard, "observe", lambda guard, attention, codes=None: seen.append(
        attention.clone()) or observe(guard, attention, codes))
    texts, count = [torch.arange(3, 20), torch.arange(1, 9)], 6
    stepper = Stepper(model, 2, cache_capacity(CONFIG, 17, count), count, CPU)
    with torch.inference_mode():
        prepared = prepare_voice(model, voice(), CPU)
        stepper.prefill(texts, [prepared] * 2, GUARDED)
        for _ in range(count):
            stepper.advance()
        for row, text in enumerate(texts):
            conditioning = model.embed_voice(voice(), CPU)[0]
            speech = model.embed_speech(torch.cat([torch.tensor([58]), stepper.codes[row]])[None])[0]
            whole = torch.cat([conditioning, model.embed_text(text[None])[0], speech[:1], speech])[None]
            positions = torch.arange(whole.shape[1])
            with GuidedAttention(model.tfmr, CONFIG.aligned_heads) as guide:
                model.hidden_states(whole)
                heads = torch.stack([guide._attention(layer, [head])[0, 0] for layer, head in CONFIG.aligned_heads])
            start = CONFIG.conditioning_length
            for frame, attention in enumerate(seen):
                wanted = heads.mean(0)[positions[start + len(text) + 1 + frame], start:start + len(text)]
                torch.testing.assert_close(attention[row, :len(text)], wanted, rtol=1e-4, atol=1e-5)
    assert len(seen) == count + 1


def test_captured_steps_are_guarded_as_plain_ones_and_the_stop_is_held_back(model: T3) -> None:
    texts, most = [np.arange(3, 20), np.arange(1, 9)], 110
    plain = generate(model, texts, [voice()] * 2, GUARDED, [most] * 2, CPU)
    free = generate(model, texts, [voice()] * 2, replace(GUARDED, alignment_guard=False), [most] * 2, CPU)
    assert [one.codes.tolist() for one in plain] != [one.codes.tolist() for one in free]
    with emulated_cuda():
        moved = deepcopy(model).to(CUDA)
        stepper = CUDAGraphStepper(moved, 2, cache_capacity(CONFIG, 17, most), most, CUDA)
        for guarded, wanted in ((True, plain), (False, free), (True, plain)):
            found = generate(moved, texts, [voice()] * 2, replace(GUARDED, alignment_guard=guarded), [most] * 2, CUDA,
                             stepper)
            assert [(one.finish_reason, one.codes.tolist()) for one in found] == [
                (one.finish_reason, one.codes.tolist()) for one in wanted]


def test_the_multilingual_model_is_guarded_and_english_speaks_with_its_own_penalty() -> None:
    """mtl_tts.py and tts.py of the published package: penalties of 2.0 and 1.2."""
    multilingual, english = Chatterbox().sampling_for(["en", "fr"]), Chatterbox().sampling_for(["en"])
    assert (multilingual.alignment_guard, multilingual.repetition_penalty) == (True, 2.0)
    assert (english.alignment_guard, english.repetition_penalty) == (False, 1.2)
    assert not Tiny().sampling_for(["en", "fr"]).alignment_guard
    assert not IndexTTS2().sampling_for(["en", "zh"]).alignment_guard
