"""IndexTTS2's GPT against the published package, at a small size, and against itself."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from config.errors import UserError
from models import generate
from models.base import Generated, PositionScheme, Sampling, Voice
from models.decoder import DecoderConfig
from models.gpt2 import transpose_matrices
from models.indextts2 import unified_voice
from models.indextts2.conditioning import (
    GROUP_SIZES,
    ConformerConfig,
    EmotionBanks,
    PerceiverConfig,
    balanced_weights,
)
from models.indextts2.unified_voice import (
    UnifiedVoice,
    UnifiedVoiceConfig,
    VoiceConditioning,
    config_from_shapes,
    load,
    load_voice_conditioner,
)
from models.quantize import quantize_
from scripts.dev.random_weights import tensor
from tests.parity import relative_error

REFERENCE = Path(__file__).parents[3] / "reference" / "indextts2" / "unified_voice.safetensors"
SEED, FAVOURED = 12, 0.8  # as in make_unified_voice.py
STATES, LOSSES = 1e-4, 1e-5
CPU = torch.device("cpu")
PUBLISHED_KEYS = "968eeb891edbc085143e021e6d626501c560958506932c91bcbc3d0c874d43c8"  # of sorted "key shape" lines
CONFORMER = ConformerConfig(width=16, heads=2, mlp_width=24, blocks=2)
SMALL = UnifiedVoiceConfig(
    DecoderConfig(width=128, layers=2, heads=2, mlp_width=512, rotary_theta=None), 41, 70, 32, 63,
    (CONFORMER, PerceiverConfig(latents=4, width=128, context=16, inner=128, mlp_width=85)),
    (replace(CONFORMER, blocks=1), PerceiverConfig(latents=1, width=1024, context=16, inner=128, mlp_width=682)),
)
FULL = UnifiedVoiceConfig(
    DecoderConfig(width=1280, layers=24, heads=20, mlp_width=5120, rotary_theta=None), 12001, 8194, 602, 1818,
    (ConformerConfig(), PerceiverConfig()),
    (ConformerConfig(heads=4, mlp_width=1024, blocks=4),
     PerceiverConfig(latents=1, width=1024, inner=256, mlp_width=1365)),
)


@pytest.fixture(scope="module")
def reference() -> dict[str, torch.Tensor]:
    return load_file(REFERENCE)


def published(config: UnifiedVoiceConfig) -> dict[str, torch.Tensor]:
    """A published file with weights from the seed, without the tables of positions."""
    shapes = {name: tuple(value.shape) for name, value in
              transpose_matrices(unified_voice.empty(config).state_dict()).items()}
    made = {name: torch.from_numpy(tensor(name, shape, SEED)) for name, shape in shapes.items()
            if not name.endswith(".pe")}
    made["mel_head.bias"][1] += FAVOURED
    return made


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    return published(SMALL)


@pytest.fixture
def model(tensors: dict[str, torch.Tensor]) -> UnifiedVoice:
    return load(tensors, "gpt.pth")


def voice(reference: dict[str, torch.Tensor], **more: np.ndarray) -> Voice:
    return Voice({"speaker_latents": reference["latents"][0].numpy(),
                  "emotion_vector": reference["emotion_vector_mixed"][0].numpy(), **more})


def decode(model: UnifiedVoice, text: torch.Tensor, speaker: Voice, penalty: float = 1.0,
           scheme: PositionScheme = "aligned") -> Generated:
    sampling = Sampling(temperature=0.0, min_p=0.0, repetition_penalty=penalty, position_scheme=scheme)
    return generate.generate(model, [text[0].numpy()], [speaker], sampling, [40], CPU)[0]


def features(name: str, frames: int) -> torch.Tensor:
    return torch.from_numpy(tensor(name, (1, frames, 1024), SEED))


@torch.inference_mode()
def test_conditioning_is_that_of_the_published_package(model: UnifiedVoice, reference: dict[str, torch.Tensor]) -> None:
    prompt, emotion = features("prompt", 27), features("emotion", 20)
    latents, vector = model.speaker_latents(prompt), model.emotion_vector(emotion)
    own = model.emotion_vector(prompt)
    mixed = own + 0.6 * (vector - own)
    conditioning = model.embed_conditioning(VoiceConditioning(latents, mixed, torch.zeros(1, dtype=torch.long)))
    for name, made in (("latents", latents), ("emotion_vector", vector), ("emotion_vector_of_prompt", own),
                       ("emotion_vector_mixed", mixed), ("conditioning", conditioning)):
        assert relative_error(made, reference[name]) < STATES, name


@torch.inference_mode()
def test_clips_of_a_batch_are_conditioned_as_alone(model: UnifiedVoice) -> None:
    clips = [features("prompt", 27), features("emotion", 20)]
    padded = torch.cat([F.pad(clip, (0, 0, 0, 27 - clip.shape[1]), value=9.0) for clip in clips])
    lengths = torch.tensor([clip.shape[1] for clip in clips])
    for encode in (model.speaker_latents, model.emotion_vector):
        together = encode(padded, lengths)
        for row, clip in enumerate(clips):
            assert relative_error(together[row:row + 1], encode(clip)) < 1e-5


@torch.inference_mode()
def test_logits_losses_and_states_are_those_of_the_published_package(model: UnifiedVoice,
                                                                     reference: dict[str, torch.Tensor]) -> None:
    text, speech = reference["text_ids"], F.pad(reference["codes"], (1, 0), value=SMALL.start_speech)
    conditioning = model.embed_voice(voice(reference), CPU)
    hidden = model.hidden_states(torch.cat([conditioning, model.embed_text(text), model.embed_speech(speech)], 1))
    _, of_text, of_speech = hidden.split([conditioning.shape[1], text.shape[1], speech.shape[1]], 1)
    assert relative_error(model.text_head(of_text), reference["text_logits"]) < STATES
    assert relative_error(model.speech_head(of_speech), reference["speech_logits"]) < STATES
    assert relative_error(of_speech[:, :-1], reference["states"]) < STATES


@pytest.mark.parametrize("penalty", [1.0, 10.0])
@pytest.mark.parametrize("scheme", ["published", "aligned"])
def test_decoding_is_that_of_the_published_package_and_of_whole_rows(
        model: UnifiedVoice, reference: dict[str, torch.Tensor], scheme: PositionScheme, penalty: float) -> None:
    made = decode(model, reference["text_ids"], voice(reference), penalty, scheme)
    wanted = reference[scheme + ("_penalty_10" if penalty > 1 else "")][0].tolist()
    assert made.codes.tolist() == [code for code in wanted if code != SMALL.stop_speech]
    assert made.finish_reason == ("stop" if SMALL.stop_speech in wanted else "limit")


def test_the_published_loop_penalises_code_1_before_it_was_used(model: UnifiedVoice,
                                                                reference: dict[str, torch.Tensor],
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnifiedVoice, "decoding_start", lambda *_: (1, (SMALL.start_speech,)))
    made = decode(model, reference["text_ids"], voice(reference), 10.0, "published")
    assert 1 in made.codes
    assert 1 not in reference["published_penalty_10"]


@torch.inference_mode()
def test_kept_states_are_those_that_predicted_the_codes(model: UnifiedVoice,
                                                        reference: dict[str, torch.Tensor]) -> None:
    made = decode(model, reference["text_ids"], voice(reference))
    assert made.hidden_states is not None
    speech = torch.tensor([[SMALL.start_speech, *made.codes[:-1]]])
    rows = [model.embed_voice(voice(reference), CPU), model.embed_text(reference["text_ids"]),
            model.embed_speech(speech)]
    second_pass = model.hidden_states(torch.cat(rows, 1))[0, -speech.shape[1]:]
    assert relative_error(made.hidden_states, second_pass) < 1e-5
    assert torch.equal(model.speech_head(second_pass).argmax(-1), torch.from_numpy(made.codes))


def test_a_wanted_duration_changes_its_slot_alone(model: UnifiedVoice, reference: dict[str, torch.Tensor]) -> None:
    plain = model.embed_voice(voice(reference), CPU)
    wanted = model.embed_voice(voice(reference, duration=np.array([17])), CPU)
    assert (plain != wanted).any(-1)[0].nonzero().tolist() == [[SMALL.conditioning_length - 2]]
    assert torch.equal(wanted[0, -2], model.mel_pos_embedding.emb.weight[17])
    assert torch.equal(model.embed_voice(replace(voice(reference), duration_s=17 / 50), CPU), wanted)
    with pytest.raises(UserError, match=r"61 codes is wanted \(1.22 s\).*up to 60"):
        model.embed_voice(voice(reference, duration=np.array([61])), CPU)


def test_conditioning_of_another_model_is_refused(model: UnifiedVoice) -> None:
    with pytest.raises(UserError, match=r"speaker_latents is \(32, 1280\), and the model wants \(4, 128\)"):
        model.embed_voice(Voice({"speaker_latents": np.zeros((32, 1280)), "emotion_vector": np.zeros(1280)}), CPU)
    with pytest.raises(UserError, match="emotion_vector is missing"):
        model.embed_voice(Voice({"speaker_latents": np.zeros((4, 128))}), CPU)


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
@torch.inference_mode()
def test_a_compact_model_gives_nearly_the_same_logits(model: UnifiedVoice, reference: dict[str, torch.Tensor],
                                                      kind: str) -> None:
    quantize_(model.gpt.h, kind)
    text, speech = reference["text_ids"], F.pad(reference["codes"], (1, 0), value=SMALL.start_speech)
    rows = [reference["conditioning"], model.embed_text(text), model.embed_speech(speech)]
    logits = model.speech_head(model.hidden_states(torch.cat(rows, 1))[:, -speech.shape[1]:])
    wanted = reference["speech_logits"]
    assert 0 < float((logits - wanted).norm() / wanted.norm()) < 0.03


def test_a_file_is_loaded_strictly_and_given_back_as_it_was(model: UnifiedVoice,
                                                            tensors: dict[str, torch.Tensor]) -> None:
    assert model.config == SMALL
    back = transpose_matrices(model.state_dict())
    assert {name for name in back if not name.endswith(".pe")} == set(tensors)
    assert all(torch.equal(back[name], value) for name, value in tensors.items())
    with pytest.raises(UserError, match=r"lacks final_norm\.bias"):
        load({name: value for name, value in tensors.items() if name != "final_norm.bias"}, "gpt.pth")
    with pytest.raises(UserError, match=r"has beside mel_solo_embedding"):
        load(tensors | {"mel_solo_embedding": torch.zeros(1)}, "gpt.pth")


def test_what_finetunes_add_is_dropped(model: UnifiedVoice, tensors: dict[str, torch.Tensor]) -> None:
    added = {"gpt.wte.weight": torch.zeros(2, 2), "inference_model.lm_head.0.weight": torch.zeros(3),
             "gpt.h.0.attn.bias": torch.ones(1, 1, 4, 4), "gpt.h.1.attn.masked_bias": torch.tensor(-1e4)}
    again = load(tensors | added, "gpt.pth")
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in again.state_dict().items())


def test_the_voice_encoder_is_loaded_alone(model: UnifiedVoice, tensors: dict[str, torch.Tensor]) -> None:
    encoder = load_voice_conditioner(tensors, "gpt.pth")
    assert not hasattr(encoder, "gpt")
    clip = features("prompt", 27)
    assert torch.equal(encoder.speaker_latents(clip), model.speaker_latents(clip))
    assert torch.equal(encoder.emotion_vector(clip), model.emotion_vector(clip))


def test_the_full_size_has_the_published_keys() -> None:
    shapes = {name: tuple(value.shape) for name, value in
              transpose_matrices(unified_voice.empty(FULL).state_dict()).items()}
    lines = "\n".join(sorted(f"{name} {shape}" for name, shape in shapes.items()))
    assert len(shapes) == 665
    assert hashlib.sha256(lines.encode()).hexdigest() == PUBLISHED_KEYS
    assert config_from_shapes(shapes, "gpt.pth") == FULL


def test_another_model_is_named() -> None:
    with pytest.raises(UserError, match=r"t3\.safetensors is no GPT of IndexTTS2: it has 1 tensors"):
        config_from_shapes({"text_emb.weight": (4, 4)}, "t3.safetensors")


def test_an_emotion_takes_the_nearest_voice_of_each_group() -> None:
    random = torch.Generator().manual_seed(0)
    banks = EmotionBanks.of(torch.randn(73, 192, generator=random), torch.randn(73, 128, generator=random), 128)
    style, vector = torch.randn(192, generator=random), torch.randn(128, generator=random)
    weights = (0.5, 0.0, 0.25, 0.0, 0.0, 0.0, 0.0, 0.125)
    chosen, start = torch.zeros(128), 0
    for weight, size in zip(weights, GROUP_SIZES, strict=True):
        group = range(start, start + size)
        nearest = max(group, key=lambda row: float(banks.voices[row] @ style / banks.voices[row].norm()))
        chosen, start = chosen + weight * banks.emotions[nearest], start + size
    assert torch.allclose(banks.mix(weights, style, vector), chosen + 0.125 * vector, atol=1e-6)
    assert torch.equal(banks.mix((0.0,) * 8, style, vector), vector)


@pytest.mark.parametrize(("weights", "message"), [((0.5,) * 7, "8 weights; there are 7"),
                                                  ((0.5, 1.5) + (0.0,) * 6, "angry is 1.5"),
                                                  ((float("nan"),) + (0.0,) * 7, "happy is nan")])
def test_wrong_weights_of_emotions_are_named(weights: tuple[float, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        balanced_weights(weights)


def test_balanced_weights_sum_to_at_most_four_fifths() -> None:
    assert balanced_weights((0.4, 0, 0, 0, 0, 0, 0, 0.5)) == pytest.approx((0.375, 0, 0, 0, 0, 0, 0, 0.28125))
    assert balanced_weights((1.0,) * 8) == pytest.approx([0.8 * factor / 7.0625 for factor in (
        0.9375, 0.875, 1, 1, 0.9375, 0.9375, 0.6875, 0.5625)], rel=0.02)
    assert sum(balanced_weights((1.0,) * 8)) == pytest.approx(0.8)
