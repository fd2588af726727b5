"""IndexTTS2's way from sound to features, against the published package at a small size, and against itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from config.errors import UserError
from models.base import Emotion
from models.campplus import CAMPPlus
from models.decoder import DecoderConfig
from models.indextts2 import semantic_codec, w2v_bert
from models.indextts2.conditioning import GROUP_SIZES, ConformerConfig, EmotionBanks, PerceiverConfig
from models.indextts2.extractor import IndexTTS2Extractor, voice_from_clip
from models.indextts2.semantic_codec import SemanticCodec, SemanticCodecConfig
from models.indextts2.unified_voice import UnifiedVoiceConfig, VoiceConditioner
from models.indextts2.w2v_bert import W2vBert, W2vBertConfig, filterbank
from scripts.dev.random_weights import fill, tensor
from tests.parity import relative_error
from tests.reference.clips import voiced

REFERENCE = load_file(Path(__file__).parents[3] / "reference" / "indextts2" / "sound.safetensors")
SEED, LENGTHS, RATE = 21, (9600, 16160, 24320), 24000  # as in make_indextts2_sound.py
STATES, SOUND = 1e-4, 1e-3
CPU = torch.device("cpu")
W2V_BERT = W2vBertConfig(width=64, heads=4, mlp_width=96, layers=2)
CODEC = SemanticCodecConfig(features=64, width=24, mlp_width=48, layers=2, codes=128)
CONFORMER = ConformerConfig(width=16, heads=2, mlp_width=24, blocks=1, bins=31)
GPT = UnifiedVoiceConfig(
    DecoderConfig(width=32, layers=1, heads=2, mlp_width=64, rotary_theta=None), 41, 70, 32, 63,
    (CONFORMER, PerceiverConfig(latents=4, width=32, context=16, inner=64, mlp_width=21)),
    (CONFORMER, PerceiverConfig(latents=1, width=48, context=16, inner=64, mlp_width=32)),
)


def clip(length: int) -> torch.Tensor:
    return torch.from_numpy(voiced(length, 16000))


def codec_file(folder: Path) -> Path:
    """A published file: with the decoder that is not used."""
    codec = SemanticCodec(CODEC)
    fill(codec, SEED)
    path = folder / "codec.safetensors"
    save_file({**codec.state_dict(), "decoder.1.bias": torch.zeros(64)}, str(path))
    return path


def w2v_bert_files(folder: Path, layers: int) -> tuple[Path, Path]:
    network = W2vBert(replace(W2V_BERT, layers=layers))
    fill(network, SEED)
    path, statistics = folder / "model.safetensors", folder / "stats.pt"
    save_file({**network.state_dict(), "masked_spec_embed": torch.zeros(64)}, str(path))
    torch.save({"mean": REFERENCE["mean"], "var": REFERENCE["var"]}, statistics)
    return path, statistics


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> W2vBert:
    return w2v_bert.load(*w2v_bert_files(tmp_path_factory.mktemp("w2v"), 2), CPU)


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> SemanticCodec:
    return semantic_codec.load(codec_file(tmp_path_factory.mktemp("codec")), CPU)


@pytest.fixture(scope="module")
def extractor(states: W2vBert, codec: SemanticCodec) -> IndexTTS2Extractor:
    encoder = VoiceConditioner(GPT).eval()
    fill(encoder, SEED, skip=tuple(name for name in encoder.state_dict() if name.endswith(".pe")))
    return IndexTTS2Extractor(states, codec, encoder, "fingerprint")


@pytest.fixture(scope="module")
def style_encoder() -> CAMPPlus:
    encoder = CAMPPlus().eval()
    fill(encoder, SEED)
    return encoder


@pytest.mark.parametrize("length", LENGTHS)
def test_features_states_and_codes_equal_the_published_ones(states: W2vBert, codec: SemanticCodec, length: int) -> None:
    rows, _ = filterbank(clip(length))
    found = states.encode([clip(length)])[0]
    codes = codec.encode([found])[0]
    assert relative_error(rows, REFERENCE[f"filterbank_{length}"]) < STATES
    assert relative_error(found, REFERENCE[f"states_{length}"]) < STATES
    assert torch.equal(codes, REFERENCE[f"codes_{length}"])
    assert len(codes.unique()) > 5  # a book of which one row always wins would pass anything
    assert relative_error(codec.embed(codes), REFERENCE[f"embedding_{length}"]) < STATES


def test_the_row_of_an_odd_frame_is_kept_but_read_by_no_other(states: W2vBert) -> None:
    rows, kept = filterbank(clip(16160))
    assert (len(rows), kept) == (50, 49)  # of 99 frames
    with torch.inference_mode():
        found = states([rows], [kept])[0]
        without = states([rows[:kept]], [kept])[0]
    torch.testing.assert_close(found[:kept], without, rtol=1e-5, atol=1e-5)


def test_features_of_a_batch_are_those_of_single_clips(extractor: IndexTTS2Extractor) -> None:
    clips = [clip(length) for length in (*LENGTHS, 15 * 16000 + 5000)]
    for single, batched in zip(map(extractor.extract, clips), extractor.extract_batch(clips), strict=True):
        assert np.array_equal(single.speech_codes, batched.speech_codes)
        for name, value in single.conditioning.items():
            assert relative_error(torch.from_numpy(batched.conditioning[name]).float(),
                                  torch.from_numpy(value).float()) < 2e-3  # one step of half precision is 1e-3


def test_batches_of_few_frames_give_the_same_states(states: W2vBert, monkeypatch: pytest.MonkeyPatch) -> None:
    clips = [clip(length) for length in LENGTHS]
    together = states.encode(clips)
    monkeypatch.setattr(w2v_bert, "FRAMES_PER_BATCH", 60)
    assert [list(batch) for batch in w2v_bert.batches([30, 30, 5, 70, 1])] == [[0, 1], [2], [3], [4]]
    for one, other in zip(together, states.encode(clips), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_features_hold_one_code_each_20_ms_and_conditioning_in_half_precision(extractor: IndexTTS2Extractor) -> None:
    features = extractor.extract(clip(24320))
    assert features.speech_codes.shape == (75,)
    assert features.speech_codes.dtype == np.uint16
    assert {name: (value.shape, value.dtype) for name, value in features.conditioning.items()} == {
        "speaker_latents": ((4, 32), np.float16), "emotion_vector": ((32,), np.float16),
        # What the conditioner's last layers read, for adapters of these layers.
        "speaker_hidden": ((4, 32), np.float16),
        "emotion_latent": ((extractor.conditioner.config.emotion[1].width,), np.float16)}


def test_a_long_clip_prompts_with_its_first_15_seconds(extractor: IndexTTS2Extractor) -> None:
    long = clip(18 * 16000)
    whole, first = extractor.extract(long), extractor.extract(long[:15 * 16000])
    assert len(whole.speech_codes) == 899  # the last 25 ms have no frame of their own
    for name, value in first.conditioning.items():
        np.testing.assert_allclose(whole.conditioning[name], value, rtol=5e-3, atol=5e-3)


def test_a_reference_clip_takes_the_published_path_of_resampling(extractor: IndexTTS2Extractor,
                                                                 style_encoder: CAMPPlus,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[torch.Tensor] = []
    encode = extractor.states.encode
    monkeypatch.setattr(extractor.states, "encode", lambda clips: (heard.extend(clips), encode(clips))[1])
    voice = voice_from_clip(extractor, style_encoder, torch.from_numpy(voiced(16 * RATE, RATE)), RATE)
    frames, speaker_length, emotion_length = REFERENCE["lengths"].tolist()
    assert [len(waveform) for waveform in heard] == [speaker_length, emotion_length]
    assert relative_error(heard[0][::50], REFERENCE["speaker_16k"]) < STATES
    assert relative_error(heard[1][::50], REFERENCE["emotion_16k"]) < STATES
    assert voice.timbre["mel"].shape == (frames, 80)
    # Relative to an amplitude of at least 1e-4: at the floor of 1e-5 a logarithm shows the rounding of the transform,
    # which differs between processors (0.0012 at 1.2e-5 with AMX, 0.00006 above 1e-4).
    published = np.exp(REFERENCE["prompt_mel"].numpy())
    error = np.abs(np.exp(voice.timbre["mel"][::20]) - published) / np.maximum(published, 1e-4)
    assert error.max() < SOUND
    assert voice.timbre["codes"].shape == (749,)
    assert voice.timbre["style"].shape == (192,)
    assert voice.conditioning["speaker_latents"].shape == (4, 32)


def test_a_second_clip_moves_the_emotion_by_its_strength(extractor: IndexTTS2Extractor,
                                                         style_encoder: CAMPPlus) -> None:
    own, other = clip(24320), torch.from_numpy(voiced(20000, 16000, 260.0))

    def vector(strength: float) -> np.ndarray:
        made = voice_from_clip(extractor, style_encoder, own, 16000, Emotion(other, 16000, strength))
        return made.conditioning["emotion_vector"]

    none, half, full = map(vector, (0.0, 0.5, 1.0))
    assert np.abs(full - none).max() > 1e-2
    np.testing.assert_allclose(half, (none + full) / 2, rtol=1e-4, atol=1e-5)
    alone = voice_from_clip(extractor, style_encoder, other, 16000)
    np.testing.assert_allclose(full, alone.conditioning["emotion_vector"], rtol=1e-4, atol=1e-5)


def test_eight_weights_take_emotions_of_the_nearest_voices(extractor: IndexTTS2Extractor,
                                                           style_encoder: CAMPPlus) -> None:
    own = clip(24320)
    plain = voice_from_clip(extractor, style_encoder, own, 16000)
    voices = torch.from_numpy(tensor("voices", (sum(GROUP_SIZES), 192), SEED))
    emotions = torch.from_numpy(tensor("emotions", (sum(GROUP_SIZES), 32), SEED))
    voices[1] = 3 * torch.from_numpy(plain.timbre["style"])  # the nearest happy voice
    banks = EmotionBanks(voices, emotions)

    def vector(**emotion: object) -> np.ndarray:
        happy = Emotion(weights=[0.8, 0, 0, 0, 0, 0, 0, 0], **emotion)  # type: ignore[arg-type]
        return voice_from_clip(extractor, style_encoder, own, 16000, happy, banks).conditioning["emotion_vector"]

    for found, share in ((vector(), 0.8), (vector(strength=0.5), 0.4), (vector(balanced=True), 0.75)):
        wanted = share * emotions[1].numpy() + (1 - share) * plain.conditioning["emotion_vector"]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("waveform", "message"), [
    (clip(3200), "0.20 s; at least 0.3 s"),
    (torch.zeros(16000), "silent"),
    (torch.full((16000,), float("nan")), "not finite"),
])
def test_a_clip_that_cannot_be_used_is_refused(extractor: IndexTTS2Extractor, style_encoder: CAMPPlus,
                                               waveform: torch.Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        extractor.extract_batch([clip(9600), waveform])
    with pytest.raises(UserError, match=message):
        voice_from_clip(extractor, style_encoder, waveform, 16000)
    with pytest.raises(UserError, match=message):
        voice_from_clip(extractor, style_encoder, clip(9600), 16000, Emotion(waveform, 16000))


def test_a_clip_that_is_too_long_is_refused(extractor: IndexTTS2Extractor) -> None:
    with pytest.raises(UserError, match="61.0 s; at most 60 s"):
        extractor.extract(torch.ones(61 * 16000))


def test_the_shortest_clip_has_features(extractor: IndexTTS2Extractor) -> None:
    assert len(extractor.extract(clip(4800)).speech_codes) == 14


def test_layers_after_the_seventeenth_are_not_read(tmp_path: Path) -> None:
    path, statistics = w2v_bert_files(tmp_path, 24)
    network = w2v_bert.load(path, statistics, CPU)
    assert len(network.encoder.layers) == 17
    assert torch.equal(network.std, REFERENCE["var"].sqrt())


@pytest.mark.parametrize(("change", "message"), [
    ({"encoder.layers.1.ffn1.output_dense.bias": None}, "lacks encoder.layers.1.ffn1.output_dense.bias"),
    ({"adapter.layers.0.ffn.bias": torch.zeros(3)}, "has beside adapter.layers.0.ffn.bias"),
    ({"feature_projection.projection.weight": None}, "no w2v-bert 2.0"),
])
def test_another_file_than_w2v_bert_is_refused(tmp_path: Path, change: dict[str, torch.Tensor | None],
                                               message: str) -> None:
    path, statistics = w2v_bert_files(tmp_path, 2)
    tensors = {name: value for name, value in (load_file(path) | change).items() if value is not None}
    save_file(tensors, str(path))
    with pytest.raises(UserError, match=message):
        w2v_bert.load(path, statistics, CPU)


def test_statistics_of_another_model_are_refused(tmp_path: Path) -> None:
    path, statistics = w2v_bert_files(tmp_path, 2)
    torch.save({"mean": torch.zeros(32), "var": torch.ones(32)}, statistics)
    with pytest.raises(UserError, match=r"mean \(32,\), var \(32,\); mean and var of \(64,\) are wanted"):
        w2v_bert.load(path, statistics, CPU)


def test_another_file_than_the_semantic_codec_is_refused(tmp_path: Path) -> None:
    path, _ = w2v_bert_files(tmp_path, 2)
    with pytest.raises(UserError, match="no semantic codec"):
        semantic_codec.load(path, CPU)
