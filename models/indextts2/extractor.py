"""Sound in: IndexTTS2's extractor, and the voice of a reference clip.

Both take w2v-bert states of a clip to semantic codes, speaker latents and an emotion vector; in 2.5 the speaker is the
style that CAMPPlus gives. A reference clip also gives the vocoder's arrays: codes (in 2.5 the states), mel and style.
The path of a clip is that of indextts/infer_v2.py in index-tts/index-tts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from config.errors import UserError
from data.acoustics import audio
from models.base import Emotion, Features, Voice
from models.campplus import CAMPPlus
from models.indextts2 import w2v_bert
from models.indextts2.conditioning import EmotionBanks, balanced_weights
from models.indextts2.semantic_codec import SemanticCodec
from models.indextts2.unified_voice import VoiceConditioner
from models.indextts2.w2v_bert import W2vBert

MAX_PROMPT_S = 15.0  # seconds of a reference clip
MIN_CLIP_S = 0.3  # less has hardly a syllable; the networks themselves need 0.1 s
MEL_SAMPLE_RATE, MEL_FFT, MEL_HOP = 22050, 1024, 256  # Hz, samples, samples: what S2Mel continues


class IndexTTS2Extractor:
    """Codes by the semantic codec; speaker latents and emotion vector by the GPT's voice conditioner.

    In 2.5, `style_encoder` gives the speaker.

    A clip that prompts another is cut to 15 s, as a reference clip is.
    """

    sample_rate = w2v_bert.SAMPLE_RATE

    def __init__(self, states: W2vBert, codec: SemanticCodec, conditioner: VoiceConditioner, fingerprint: str,
                 style_encoder: CAMPPlus | None = None) -> None:
        self.states, self.codec, self.conditioner, self.fingerprint = states, codec, conditioner, fingerprint
        self.style_encoder = style_encoder

    def extract(self, waveform: torch.Tensor) -> Features:
        """Waveform (S,) at 16 kHz to features."""
        return self.extract_batch([waveform])[0]

    @torch.inference_mode()
    def extract_batch(self, waveforms: Sequence[torch.Tensor]) -> list[Features]:
        """Waveforms (S,) at 16 kHz to features: a code for each 20 ms, or 40 in 2.5; conditioning in half precision."""
        max_samples = round(MAX_PROMPT_S * self.sample_rate)
        for waveform in waveforms:
            require_speech(waveform, self.sample_rate)

        # The first part of a long clip is encoded by itself, beside the whole clip.
        cut = [waveform[:max_samples] for waveform in waveforms if len(waveform) > max_samples]
        states = self.states.encode([*waveforms, *cut])
        codes = self.codec.encode(states[:len(waveforms)])

        # The prompt of a long clip is its first part, which was encoded by itself.
        shortened = iter(states[len(waveforms):])
        prompts = [next(shortened) if len(waveform) > max_samples else rows
                   for waveform, rows in zip(waveforms, states, strict=False)]

        lengths = torch.tensor([len(rows) for rows in prompts], device=prompts[0].device)
        padded = pad_sequence(prompts, batch_first=True)
        # What the conditioner's last layers read is kept beside their result, as adapters of a run may change them.
        latents = self.conditioner.emotion_latent(padded, lengths)
        inputs = {"emotion_latent": latents}
        emotions = self.conditioner.emo_layer(self.conditioner.emovec_layer(latents))

        # Version 2.5 has a style of the speaker, 2.0 has latents.
        if self.style_encoder:
            speaker, speakers = "style", torch.stack([self.style_encoder.embed(waveform[:max_samples])
                                                      for waveform in waveforms])
        else:
            inputs["speaker_hidden"] = self.conditioner.speaker_hidden(padded, lengths)
            speaker = "speaker_latents"
            speakers = self.conditioner.perceiver_encoder.finish(inputs["speaker_hidden"])

        arrays = {name: values.half().cpu().numpy()
                  for name, values in {speaker: speakers, "emotion_vector": emotions, **inputs}.items()}
        features = []
        for number, clip in enumerate(codes):
            conditioning = {name: values[number] for name, values in arrays.items()}
            features.append(Features(clip.cpu().numpy().astype(np.uint16), conditioning))
        return features


@torch.inference_mode()
def voice_from_clip(extractor: IndexTTS2Extractor, style_encoder: CAMPPlus, waveform: torch.Tensor, sample_rate: int,
                    emotion: Emotion | None = None, banks: EmotionBanks | None = None) -> Voice:
    """The voice of a reference clip (S,); its first 15 s count. `banks` are needed for an emotion's weights.

    As published, the speaker's clip is resampled to 22.05 kHz and from there to 16 kHz, but directly to 16 kHz for the
    emotion, also when one clip gives both.
    """
    emotion = emotion or Emotion()
    assert emotion.clip is None or emotion.weights is None, "one source of emotion at most"
    waveform_22k = _resampled(waveform, sample_rate, MEL_SAMPLE_RATE)
    waveform_16k = audio.resample_windowed_sinc(waveform_22k, MEL_SAMPLE_RATE, extractor.sample_rate)
    if emotion.clip is None:
        emotion_16k = _resampled(waveform, sample_rate, extractor.sample_rate)
    else:
        emotion_16k = _resampled(emotion.clip, emotion.sample_rate, extractor.sample_rate)
    speaker_states, emotion_states = extractor.states.encode([waveform_16k, emotion_16k])

    device = speaker_states.device
    mel = audio.prompt_mel(waveform_22k[None].to(device), MEL_SAMPLE_RATE, MEL_FFT, MEL_HOP, MEL_SAMPLE_RATE / 2)
    style = style_encoder.embed(waveform_16k)

    conditioner = extractor.conditioner
    latent = conditioner.emotion_latent(emotion_states[None])
    vector = conditioner.emo_layer(conditioner.emovec_layer(latent))[0]
    # A weaker emotion lies between that of the speaker's clip and that of the emotion's.
    if emotion.clip is not None and emotion.strength < 1:
        weak = conditioner.emotion_latent(speaker_states[None])
        vector = torch.lerp(conditioner.emo_layer(conditioner.emovec_layer(weak))[0], vector, emotion.strength)
        latent = torch.lerp(weak, latent, emotion.strength)
    if emotion.weights is not None:
        assert banks is not None, "weights need the emotion banks"
        weights = balanced_weights(emotion.weights) if emotion.balanced else emotion.weights
        vector = banks.mix([emotion.strength * weight for weight in weights], style, vector)

    # In 2.5, S2Mel continues the states themselves.
    if extractor.style_encoder:
        speaker, clip = {"style": style}, {"states": speaker_states}
    else:
        hidden = conditioner.speaker_hidden(speaker_states[None])
        speaker = {"speaker_latents": conditioner.perceiver_encoder.finish(hidden)[0], "speaker_hidden": hidden[0]}
        clip = {"codes": extractor.codec.encode([speaker_states])[0]}

    conditioning = {**speaker, "emotion_vector": vector, "emotion_latent": latent[0]}
    return Voice({name: value.cpu().numpy() for name, value in conditioning.items()},
                 {name: value.cpu().numpy()
                  for name, value in {**clip, "mel": mel[0].T.contiguous(), "style": style}.items()})


def require_speech(waveform: torch.Tensor, sample_rate: int) -> None:
    """Refuse a waveform (S,) that is silent or shorter than `MIN_CLIP_S`."""
    if len(waveform) < MIN_CLIP_S * sample_rate:
        raise UserError(f"The clip has {len(waveform) / sample_rate:.2f} s; at least {MIN_CLIP_S:g} s are needed.",
                        "Give a longer recording.")
    audio.require_samples(waveform, 1, sample_rate)
    audio.require_sound(waveform)


def _resampled(waveform: torch.Tensor, sample_rate: int, target_rate: int) -> torch.Tensor:
    """The first 15 s of a reference clip (S,) at `target_rate`."""
    require_speech(waveform, sample_rate)
    return audio.resample(waveform, sample_rate, target_rate)[:int(MAX_PROMPT_S * target_rate)]
