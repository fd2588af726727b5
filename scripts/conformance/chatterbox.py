"""Chatterbox against its reference: T3, voice encoder, speech tokenizer, speaker encoder, flow and vocoder, in float32.

The files are found by their names and filled by the seed in them, so that other seeds,
inputs and numbers of layers are compared in the same way. Weights: `scripts.made_up_weights`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from config.errors import UserError
from models.base import Sampling, Voice
from models.chatterbox import t3
from models.decoder import DecoderConfig, RotaryScaling
from models.generate import Stepper, prepare
from models.sampling import Sampler
from models.speech_lm import Conditioning, SpeechLM, SpeechLMConfig
from scripts.conformance.comparison import Row, Table, Vectors, compare_keys
from scripts.made_up_weights import fill

_STATES, _LOSSES = 1e-4, 1e-5
_GREEDY = Sampling(temperature=0.8, top_p=1e-6, min_p=0.05, repetition_penalty=1.2, guidance=0.5)
_CPU = torch.device("cpu")


def compare(folder: Path) -> list[Row]:
    """One row an output of every known file in `folder`."""
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.", "Give the folder with the reference's files.")
    rows: list[Row] = []
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


def _t3_keys(path: Path) -> list[Row]:
    return [compare_keys("T3", path, t3.empty(_config(2)))]


def _t3(path: Path) -> list[Row]:
    vectors = Vectors.read(path)
    model = SpeechLM(_config(int(vectors.metadata["layers"]))).eval()
    fill(model, vectors.seed)
    table = Table(f"T3, {vectors.metadata['layers']} layers", vectors, [])
    text, speech = vectors["text_tokens"], vectors["speech_tokens"]
    prompt = vectors["prompt_speech_tokens"]
    given = Conditioning(vectors["speaker_emb"], prompt, torch.tensor([prompt.shape[1]]),
                         vectors["emotion_adv"].flatten())
    conditioning = model.embed_conditioning(given)
    hidden = model.tfmr(torch.cat([conditioning, model.embed_text(text), model.embed_speech(speech)], 1))
    _, text_hidden, speech_hidden = hidden.split([conditioning.shape[1], text.shape[1], speech.shape[1]], 1)
    text_logits, speech_logits = model.text_head(text_hidden), model.speech_head(speech_hidden)
    table.relative("cond_emb", conditioning, _STATES)
    table.relative("text_logits", text_logits, _STATES)
    table.relative("speech_logits", speech_logits, _STATES)
    table.relative("text_loss", _next_token_loss(text_logits, text), _LOSSES)
    table.relative("speech_loss", _next_token_loss(speech_logits, speech), _LOSSES)
    voice = Voice(vectors["speaker_emb"][0].numpy(), prompt[0].numpy(), emotion=float(vectors["emotion_adv"].flatten()))
    length = vectors["greedy_tokens"].shape[1]
    table.different("greedy_tokens", _greedy(model, text[0], voice, length), 0.0)
    return table.complete(("text_tokens", "speech_tokens", "prompt_speech_tokens", "speaker_emb", "emotion_adv"))


def _greedy(model: SpeechLM, text: torch.Tensor, voice: Voice, length: int) -> torch.Tensor:
    """The published loop's codes (1, length): it lets every id be chosen, which ours does not."""
    stepper = Stepper(model, 1, model.config.conditioning_length + len(text) + 2 + length, length, _CPU)
    stepper.sampler = Sampler(1, torch.ones(model.config.speech_rows, dtype=torch.bool), model.config.stop_speech)
    stepper.begin([text], [prepare(model, voice, _CPU)], _GREEDY)
    for _ in range(length):
        stepper.advance()
    return stepper.codes


def _next_token_loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Position i predicts token i + 1: mean in nats, (1,)."""
    return F.cross_entropy(logits[0, :-1], ids[0, 1:])[None]


def _config(layers: int) -> SpeechLMConfig:
    """The published sizes, with `layers` of the thirty."""
    decoder = DecoderConfig(1024, layers, 16, 4096, rotary_scaling=RotaryScaling())
    return SpeechLMConfig(decoder, 2454, 8194, t3.START_SPEECH, t3.STOP_SPEECH, 2050, 4100, 256,
                          unused_tokens=8, doubled_start=True)


_FILES: dict[str, Callable[[Path], list[Row]]] = {"t3_keys": _t3_keys, "t3_": _t3}
