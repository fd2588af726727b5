"""Chatterbox against its reference: T3, voice encoder, speech tokenizer, speaker encoder, flow and vocoder, in float32.

The files are found by their names and filled by the seed in them, so that other seeds,
inputs and numbers of layers are compared in the same way. Weights: `scripts.dev.random_weights`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from config.errors import UserError
from data.acoustics import audio
from data.acoustics.voice_encoder import VoiceEncoder
from models.base import Sampling, Voice
from models.campplus import CAMPPlus
from models.chatterbox import t3
from models.chatterbox.flow import Flow, FlowPrompt
from models.chatterbox.hift import HiFT
from models.chatterbox.s3gen import S3Gen
from models.chatterbox.speech_tokenizer import SpeechTokenizer
from models.decoder import DecoderConfig, RotaryScaling
from models.generate import Stepper, prepare_voice
from models.sampling import Sampler
from models.speech_network import T3, Conditioning, T3Config
from scripts.dev.conformance.comparison import ConformanceRow, Table, Vectors, compare_keys
from scripts.dev.random_weights import fill

_STATES, _LOSSES, _SOUND, _CODES = 1e-4, 1e-5, 1e-3, 0.01
_ESTIMATED_AT = 0.3  # the time of the stored call of the estimator
_GREEDY = Sampling(temperature=0.8, top_p=1e-6, min_p=0.05, repetition_penalty=1.2, guidance=0.5)
_CPU = torch.device("cpu")


def compare(folder: Path) -> list[ConformanceRow]:
    """One row an output of every known file in `folder`."""
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.", "Give the folder with the reference's files.")
    rows: list[ConformanceRow] = []
    with torch.inference_mode():
        for path in sorted(folder.iterdir()):
            for start, compared in _FILES.items():
                if path.name.startswith(start) and path.suffix in (".json", ".safetensors"):
                    rows += compared(path)
                    break
            else:
                raise UserError(f"It is not known what {path} is compared with.", "Remove it from the folder.")
    if not rows:
        raise UserError(f"{folder} holds nothing to compare.", "Give the folder with the reference's files.")
    return rows


def _t3_keys(path: Path) -> list[ConformanceRow]:
    return [compare_keys("T3", path, t3.empty(_config(2)))]


def _t3(path: Path) -> list[ConformanceRow]:
    vectors = Vectors.read(path)
    model = T3(_config(int(vectors.metadata["layers"]))).eval()
    fill(model, vectors.seed)

    table = Table(f"T3, {vectors.metadata['layers']} layers", vectors, [])
    text, speech = vectors["text_tokens"], vectors["speech_tokens"]
    prompt = vectors["prompt_speech_tokens"]
    conditions = Conditioning(vectors["speaker_emb"], prompt, torch.tensor([prompt.shape[1]]),
                              vectors["emotion_adv"].flatten())
    conditioning = model.embed_conditioning(conditions)
    # One pass over the whole sequence, as in training.
    hidden = model.tfmr(torch.cat([conditioning, model.embed_text(text), model.embed_speech(speech)], 1))
    _, text_hidden, speech_hidden = hidden.split([conditioning.shape[1], text.shape[1], speech.shape[1]], 1)

    text_logits, speech_logits = model.text_head(text_hidden), model.speech_head(speech_hidden)
    table.relative("cond_emb", conditioning, _STATES)
    table.relative("text_logits", text_logits, _STATES)
    table.relative("speech_logits", speech_logits, _STATES)
    table.relative("text_loss", _next_token_loss(text_logits, text), _LOSSES)
    table.relative("speech_loss", _next_token_loss(speech_logits, speech), _LOSSES)

    # Greedy decoding checks the cache against the stored codes.
    voice = Voice({"speaker_embedding": vectors["speaker_emb"][0].numpy(), "prompt_codes": prompt[0].numpy()},
                  emotion=float(vectors["emotion_adv"].flatten()))
    length = vectors["greedy_tokens"].shape[1]
    table.different("greedy_tokens", _greedy(model, text[0], voice, length), 0.0)

    return table.complete(("text_tokens", "speech_tokens", "prompt_speech_tokens", "speaker_emb", "emotion_adv"))


def _greedy(model: T3, text: torch.Tensor, voice: Voice, length: int) -> torch.Tensor:
    """The published loop's codes (1, length): it lets every id be chosen, which ours does not."""
    stepper = Stepper(model, 1, model.config.conditioning_length + len(text) + 2 + length, length, _CPU)
    every = torch.ones(model.config.speech_rows, dtype=torch.bool)
    stepper.sampler = Sampler(1, every, model.config.stop_speech, length)
    stepper.prefill([text], [prepare_voice(model, voice, _CPU)], _GREEDY)
    for _ in range(length):
        stepper.advance()
    return stepper.codes


def _next_token_loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Position i predicts token i + 1: mean in nats, (1,)."""
    return F.cross_entropy(logits[0, :-1], ids[0, 1:])[None]


def _config(layers: int) -> T3Config:
    """The published sizes, with `layers` of the thirty."""
    decoder = DecoderConfig(1024, layers, 16, 4096, rotary_scaling=RotaryScaling())
    return T3Config(decoder, 2454, 8194, t3.START_SPEECH, t3.STOP_SPEECH, 2050, 4100, 256,
                          unused_tokens=8, doubled_start=True)


def _voice_encoder_keys(path: Path) -> list[ConformanceRow]:
    return [compare_keys("voice encoder", path, VoiceEncoder())]


def _voice_encoder(path: Path) -> list[ConformanceRow]:
    vectors = Vectors.read(path)
    model = VoiceEncoder().eval()
    fill(model, vectors.seed)
    table = Table("voice encoder", vectors, [])
    table.relative("embedding", model.embed(vectors["wav_16k"])[None], _STATES)
    return table.complete(("wav_16k",))


def _s3gen_keys(path: Path) -> list[ConformanceRow]:
    return [compare_keys("S3Gen", path, S3Gen())]


def _analysis(path: Path) -> list[ConformanceRow]:
    vectors = Vectors.read(path)
    tokenizer, speaker = SpeechTokenizer().eval(), CAMPPlus().eval()
    fill(tokenizer, vectors.seed, "tokenizer.", skip=("_mel_filters", "window"))
    fill(speaker, vectors.seed, "speaker_encoder.")
    table = Table("speech tokenizer", vectors, [])
    mel = tokenizer.log_mel(vectors["wav_16k"][None])
    lengths = torch.tensor([mel.shape[2]])
    table.relative("s3_log_mel", mel, _SOUND)
    table.relative("s3_hidden", tokenizer.hidden(mel, lengths), _STATES)
    table.different("s3_tokens", tokenizer.codes(mel, lengths), _CODES)
    table.component = "prompt mel"
    table.relative("mel_24k", audio.prompt_mel(vectors["wav_24k"][None]), _SOUND)
    table.component = "speaker encoder"
    table.relative("xvector", speaker.embed(vectors["wav_16k"])[None], _STATES)
    return table.complete(("wav_16k", "wav_24k"))


def _flow(path: Path) -> list[ConformanceRow]:
    vectors = Vectors.read(path)
    model = Flow().eval()
    fill(model, vectors.seed, "flow.")
    table = Table("flow", vectors, [])
    prompt = FlowPrompt(vectors["prompt_tokens"], vectors["prompt_feat"], vectors["embedding"])
    together = torch.cat([vectors["prompt_tokens"], vectors["tokens"]], 1)
    table.relative("encoder_out", model.encode(together), _STATES)
    conditions = torch.zeros_like(vectors["mu"])
    conditions[:, :, :prompt.mel.shape[1]] = prompt.mel.transpose(1, 2)
    velocity = model.estimate(vectors["noise"], vectors["mu"], torch.tensor([_ESTIMATED_AT]), vectors["spk"],
                              conditions)
    table.relative("estimator_out", velocity, _STATES)
    table.relative("mel_10_steps", model.mel(vectors["tokens"], prompt, steps=10, noise=vectors["noise"]), _SOUND)
    return table.complete(("embedding", "mu", "noise", "prompt_feat", "prompt_tokens", "spk", "tokens"))


def _vocoder(path: Path) -> list[ConformanceRow]:
    vectors = Vectors.read(path)
    model = HiFT().eval()
    fill(model, vectors.seed, "mel2wav.")
    model.fold_weight_norm()
    table = Table("vocoder", vectors, [])
    table.relative("f0", model.f0(vectors["mel"]), _STATES)
    table.relative("wav", model.decode(vectors["mel"], vectors["source"]), _SOUND)
    return table.complete(("f0_in", "mel", "source"))


_FILES: dict[str, Callable[[Path], list[ConformanceRow]]] = {  # keys are the first parts of names, the longest first
    "voice_encoder": _voice_encoder, "ve_keys": _voice_encoder_keys, "t3_keys": _t3_keys, "t3_": _t3,
    "s3gen_keys": _s3gen_keys, "s3gen_analysis": _analysis, "s3gen_flow": _flow, "s3gen_vocoder": _vocoder,
}
