"""Train the built-in language model on English and French codes.

Three things teach it to read within minutes, all of them gone from the finished weights:
positions and equal queries and keys that start out aligned with reading speed, an
attention loss on two heads of three layers from the word times that espeak knows, and
code tables that start as sums over the quantiser's levels.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize

from data.front_end import FrontEnd
from models.base import LossOptions, Sample
from models.decoder import DecoderAttention, DecoderConfig, DecoderLayer
from models.speech_network import T3, T3Config
from models.teacher_forcing import GuidedAttention, collate, losses, segment_index
from models.tiny.codec import Codec, CodecConfig
from models.tiny.model_folder import load_config, load_module, save_module
from scripts.dev.tiny.corpus import SETTINGS, Corpus, CorpusClip
from scripts.dev.tiny.schedule import learning_rate, steps

STEPS = 3600
BATCH = 48
GUIDED_LAYERS = (1, 2, 3)  # the first two heads of each learn to follow the text
PROMPT = 50  # codes at most
SILENT = math.log(SETTINGS.floor)
CHARACTERS = "abcdefghijklmnopqrstuvwxyz'àâæçèéêëîïôùûüÿœ"


class SpeechCodec(Protocol):
    """What the training needs of a codec; see `models.tiny.codec.Codec`."""

    def encode(self, mel: torch.Tensor, frame_lengths: torch.Tensor | None = None) -> torch.Tensor: ...

    def embed_speaker(self, mel: torch.Tensor) -> torch.Tensor: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


@dataclass(frozen=True)
class EncodedClip:
    """One clip ready for training."""

    voice: str
    sample: Sample
    centres: np.ndarray | None  # (U + 1,) place in the text ids being spoken at each code; None if unknown


def base_front_end() -> FrontEnd:
    """The tokenizer of the pack: single characters in Chatterbox's form."""
    return FrontEnd.base({"en": "latin", "fr": "latin"}, CHARACTERS)


def configure(size: int, speaker_size: int, text_rows: int, text_positions: int = 128,
              speech_positions: int = 256) -> T3Config:
    """About six million parameters, a quarter of them tables of `size` codes."""
    return T3Config(
        DecoderConfig(width=256, layers=6, heads=4, mlp_width=512),
        text_rows=text_rows, speech_rows=size + 2, start_speech=size, stop_speech=size + 1,
        text_positions=text_positions, speech_positions=speech_positions, speaker_size=speaker_size, prompt_queries=4,
        aligned_heads=tuple((layer, head) for layer in GUIDED_LAYERS for head in (0, 1)),
    )


class Levels(nn.Module):
    """A code's row = its own + a row for each of its quantiser levels; folded into one table at the end."""

    digits: torch.Tensor

    def __init__(self, levels: tuple[int, ...], rows: int, width: int, scale: float) -> None:
        super().__init__()
        size = math.prod(levels)
        digits = torch.zeros(rows, sum(levels))
        base, offset = 1, 0
        for level in levels:
            digits[torch.arange(size), offset + (torch.arange(size) // base) % level] = 1.0
            base, offset = base * level, offset + level
        self.register_buffer("digits", digits)
        self.rows = nn.Parameter(scale * torch.randn(sum(levels), width))

    def forward(self, free_rows: torch.Tensor) -> torch.Tensor:
        return free_rows + self.digits @ self.rows


def initialise(model: T3, levels: tuple[int, ...], characters_per_code: float) -> None:
    """Small normal weights, aligned sinusoidal positions, equal queries and keys where attention is guided."""
    config = model.config
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.1 if "_emb" in name else 0.03)
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            nn.init.normal_(parameter, std=0.03 / math.sqrt(2 * config.decoder.layers))
    width = config.decoder.width
    with torch.no_grad():
        for positions, rate in ((model.text_pos_emb, 1.0), (model.speech_pos_emb, characters_per_code)):
            weight = positions.emb.weight
            weight.copy_(0.1 * _sinusoids(torch.arange(len(weight)) * rate, width))
        for index in GUIDED_LAYERS:
            attention = _attention(model, index)
            attention.k_proj.weight.copy_(attention.q_proj.weight)
        model.speech_head.weight.mul_(0.1)
    tables: list[tuple[nn.Module, float]] = [(model.speech_emb, 0.1), (model.speech_head, 0.01)]
    for table, scale in tables:
        parametrize.register_parametrization(table, "weight", Levels(levels, config.speech_rows, width, scale))


def _attention(model: T3, layer: int) -> DecoderAttention:
    block = model.tfmr.layers[layer]
    assert isinstance(block, DecoderLayer)
    return block.self_attn


def _sinusoids(positions: torch.Tensor, width: int) -> torch.Tensor:
    rates = torch.exp(-math.log(1000.0) * torch.arange(0, width, 2) / width)
    angles = positions[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)


def centres_of(clip: CorpusClip, codes: int) -> np.ndarray:
    """Place in the text ids (start and tag first) spoken at each of `codes` + 1 positions, from the word times."""
    seconds = (np.arange(codes + 1) + 0.5) / 25
    places = [word[0] for word in clip.words] + [len(clip.text)]
    times = np.maximum.accumulate([word[1] for word in clip.words] + [codes / 25])
    return 2 + np.interp(seconds, times, places)


@torch.inference_mode()
def encode(mels: list[np.ndarray], codec: SpeechCodec, batch_size: int = 64) -> list[tuple[np.ndarray, np.ndarray]]:
    """Codes (U,) and speaker embedding (D,) of each mel (F, n_mels)."""
    device = next(codec.parameters()).device
    order = sorted(range(len(mels)), key=lambda index: len(mels[index]))
    encoded: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        lengths = torch.tensor([len(mels[index]) for index in batch])
        padded = torch.full((len(batch), SETTINGS.n_mels, int(lengths.max())), SILENT)
        for row, index in enumerate(batch):
            padded[row, :, : len(mels[index])] = torch.from_numpy(mels[index].astype(np.float32)).T
        padded = padded.to(device)
        codes = codec.encode(padded, lengths.to(device)).cpu()
        for row, index in enumerate(batch):
            speaker = codec.embed_speaker(padded[row : row + 1, :, : len(mels[index])])[0]
            encoded[index] = codes[row, : -(-len(mels[index]) // 4)].numpy(), speaker.cpu().numpy()
    return [encoded[index] for index in range(len(mels))]


def prepare(clips: Sequence[tuple[str, np.ndarray, np.ndarray, CorpusClip | None]], codec: SpeechCodec
            ) -> list[EncodedClip]:
    """Clips (voice, text ids, mel, clip with its times) as samples, with another clip of the same voice as prompt."""
    encoded = encode([mel for _, _, mel, _ in clips], codec)
    of_voice: dict[str, list[int]] = {}
    for index, (voice, *_) in enumerate(clips):
        of_voice.setdefault(voice, []).append(index)
    encoded_clips = []
    for indices in of_voice.values():
        for place, index in enumerate(indices):
            voice, text, _, clip = clips[index]
            codes = encoded[index][0]
            prompt, speaker = encoded[indices[(place + 1) % len(indices)]]
            sample = Sample(text, codes, {"speaker_embedding": speaker, "prompt_codes": prompt[:PROMPT]})
            encoded_clips.append(EncodedClip(voice, sample, None if clip is None else centres_of(clip, len(codes))))
    return encoded_clips


def join(clips: list[EncodedClip], config: T3Config, share: float, space: int, seed: int) -> list[EncodedClip]:
    """`spoken`, a `share` of it replaced by two or three of its clips of one voice, so that long texts are known.

    `space` is the text id between two of them. Clips that are longer than the model's positions are left out.
    """
    shuffler = random.Random(seed)
    of_voice: dict[str, list[EncodedClip]] = {}
    for clip in clips:
        of_voice.setdefault(clip.voice, []).append(clip)
    joined = []
    for clip in clips:
        if shuffler.random() < share and clip.centres is not None:
            clip = _joined([clip, *shuffler.choices(of_voice[clip.voice], k=shuffler.choice((1, 1, 2)))], space)
        if len(clip.sample.text_ids) <= config.text_positions and len(clip.sample.speech_codes) <= config.max_codes:
            joined.append(clip)
    return joined


def _joined(clips: list[EncodedClip], space: int) -> EncodedClip:
    start_ids, stop = clips[0].sample.text_ids[:2], clips[0].sample.text_ids[-1:]
    text, codes, centres = [start_ids], [], []
    for number, clip in enumerate(clips):
        assert clip.centres is not None
        if number:
            text.append(np.array([space]))
        centres.append(clip.centres[: len(clip.sample.speech_codes)] - 2 + sum(map(len, text)))
        text.append(clip.sample.text_ids[2:-1])
        codes.append(clip.sample.speech_codes)
    last = np.array([sum(map(len, text))], dtype=float)
    sample = replace(clips[0].sample, text_ids=np.concatenate([*text, stop]), speech_codes=np.concatenate(codes))
    return EncodedClip(clips[0].voice, sample, np.concatenate([*centres, last]))


def optimizers(model: T3) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) for the matrices of the layers, AdamW for the rest."""
    matrices = [p for n, p in model.tfmr.named_parameters() if p.ndim == 2]
    chosen = set(map(id, matrices))
    others = [p for p in model.parameters() if id(p) not in chosen]
    return [
        torch.optim.Muon(matrices, lr=2e-3, weight_decay=0.01, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def train(clips: list[EncodedClip], config: T3Config, levels: tuple[int, ...], count: int, seed: int,
          device: torch.device, seconds: float = math.inf, batch_size: int = BATCH) -> T3:
    """Train for `count` steps, at most `seconds`; prints a line every 100."""
    torch.manual_seed(seed)
    model = T3(config).train()
    # The mean speaking rate aligns the positions of text and codes at the start.
    rate = sum(len(s.sample.text_ids) - 3 for s in clips) / sum(len(s.sample.speech_codes) for s in clips)
    initialise(model, levels, rate)
    model.to(device)

    parts = optimizers(model)
    peaks = [part.param_groups[0]["lr"] for part in parts]
    options = LossOptions(text_dropout=0.1, code_dropout=0.4)
    begin, recent = time.time(), []
    for step, batch in steps(clips, batch_size, count, seed,
                             lambda s: len(s.sample.speech_codes) + len(s.sample.text_ids)):
        # Steps and seconds limit the training, whichever ends first.
        progress = max(step / count, (time.time() - begin) / seconds)
        if progress >= 1:
            break

        for part, peak in zip(parts, peaks, strict=True):
            decay = learning_rate(round(progress * 1e6), 10**6, 1, 0.5)
            part.param_groups[0]["lr"] = peak * decay * min(1, (step + 1) / 150)
            part.zero_grad()

        # Only clips whose times are known guide the attention.
        packed = collate([s.sample for s in batch], model.config, device, options)
        centres, has_centres = torch.zeros(packed.codes.shape), torch.zeros(len(batch), 1)
        for row, clip in enumerate(batch):
            if clip.centres is not None:
                centres[row, : len(clip.centres)] = torch.from_numpy(clip.centres)
                has_centres[row] = 1

        guide = GuidedAttention(model.tfmr, model.config.aligned_heads)
        with torch.autocast(device.type, dtype=torch.bfloat16), guide:
            sums = losses(model, packed, options)
            places = segment_index(packed, model.config.conditioning_length)
            inside = torch.arange(centres.shape[1], device=device)[None] < packed.code_lengths[:, None]
            aligned = inside * has_centres.to(device)
            attention = guide.loss(*places, centres.to(device), aligned) / aligned.sum().clamp(min=1)

        speech, text = sums.speech_sum / sums.speech_count, sums.text_sum / sums.text_count
        weight = 0.3 * max(0.1, 1 - 1.5 * progress)
        (speech + 0.1 * text + weight * attention).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for part in parts:
            part.step()

        recent.append(torch.stack([speech, text, attention]).detach())
        if (step + 1) % 100 == 0:
            means = [round(value, 3) for value in torch.stack(recent[-100:]).mean(0).tolist()]
            print(f"model step {step + 1} speech {means[0]} text {means[1]} attention {means[2]} "
                  f"{time.time() - begin:.0f} s", flush=True)

    return folded(model.cpu()).eval()


def folded(model: T3) -> T3:
    """A copy of `model` with each code table written out, as it ships."""
    tensors = {key: value for key, value in model.state_dict().items() if ".parametrizations." not in key}
    for name in ("speech_emb", "speech_head"):
        tensors[f"{name}.weight"] = model.get_submodule(name).weight
    plain = T3(model.config)
    plain.load_state_dict(tensors)
    return plain


def build(folder: Path, seed: int) -> None:
    """Train on the shipped codec's codes, and write `t3.safetensors`."""
    path = folder / "codec.safetensors"
    codec = load_module(path, Codec(load_config(path, CodecConfig)))
    front_end = base_front_end()
    clips = [(f"{language}-{clip.voice}", front_end.encode(clip.text, language), corpus.mel(clip), clip)
             for language in ("en", "fr") for corpus in [Corpus(folder / "corpus" / language)]
             for clip in corpus.split("train")]
    encoded = prepare(clips, codec)
    config = configure(codec.config.codebook_size, codec.config.speaker_size, front_end.size)
    model = train(encoded, config, codec.config.levels, STEPS, seed, torch.device("cpu"))
    save_module(folder / "t3.safetensors", model, model.config)
