"""Train the built-in language model on English and French codes.

Three things teach it to read within minutes, all of them gone from the finished weights:
positions and equal queries and keys that start out aligned with reading speed, an
attention loss on two heads of three layers from the word times that espeak knows, and
code tables that start as sums over the quantiser's levels.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize

from data.front_end import FrontEnd
from models.base import LossOptions, Sample, Sampling, Voice
from models.decoder import DecoderAttention, DecoderConfig, DecoderLayer
from models.generate import generate
from models.speech_network import T3, T3Config
from models.teacher_forcing import GuidedAttention, collate, losses, segment_index
from models.tiny.codec import Codec, CodecConfig
from models.tiny.model_folder import load_config, load_module, save_module
from models.tiny.recogniser import RecogniserConfig, RecogniserNetwork
from scripts.dev.tiny.corpus import SETTINGS, Corpus, CorpusClip
from scripts.dev.tiny.schedule import learning_rate, steps
from scripts.dev.tiny.train_codec import SILENT
from scripts.dev.tiny.train_judge import error

STEPS = 3600
BATCH = 48
GUIDED_LAYERS = (1, 2, 3)  # the first two heads of each learn to follow the text
PROMPT = 50  # codes at most
CHARACTERS = "abcdefghijklmnopqrstuvwxyz'àâæçèéêëîïôùûüÿœ"


@dataclass(frozen=True)
class EncodedClip:
    """One clip ready for training."""

    clip: CorpusClip
    sample: Sample
    centres: np.ndarray  # (U + 1,) place in the text ids being spoken at each code


def base_front_end() -> FrontEnd:
    """The tokenizer of the pack: single characters in Chatterbox's form."""
    return FrontEnd.base({"en": "latin", "fr": "latin"}, CHARACTERS)


def configure(codec: CodecConfig, front_end: FrontEnd) -> T3Config:
    """About six million parameters, a quarter of them code tables."""
    size = codec.codebook_size
    return T3Config(
        DecoderConfig(width=256, layers=6, heads=4, mlp_width=512),
        text_rows=front_end.size, speech_rows=size + 2, start_speech=size, stop_speech=size + 1,
        text_positions=128, speech_positions=256, speaker_size=codec.speaker_size, prompt_queries=4,
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

    def forward(self, own: torch.Tensor) -> torch.Tensor:
        return own + self.digits @ self.rows


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
def encode(
    corpus: Corpus, clips: list[CorpusClip], codec: Codec, batch_size: int = 64
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Codes (U,) and speaker embedding (D,) of each clip."""
    order = sorted(range(len(clips)), key=lambda i: clips[i].frames)
    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        lengths = torch.tensor([clips[i].frames for i in chosen])
        mel = torch.full((len(chosen), SETTINGS.n_mels, int(lengths.max())), SILENT)
        for row, i in enumerate(chosen):
            mel[row, :, : clips[i].frames] = torch.from_numpy(corpus.mel(clips[i])).T
        codes = codec.encode(mel, lengths)
        for row, i in enumerate(chosen):
            speaker = codec.embed_speaker(mel[row : row + 1, :, : clips[i].frames])[0]
            found[i] = codes[row, : -(-clips[i].frames // 4)].numpy(), speaker.numpy()
    return [found[i] for i in range(len(clips))]


def prepare(folder: Path, codec: Codec, front_end: FrontEnd) -> list[EncodedClip]:
    """Every training clip with its codes, and as prompt another clip of the same voice and language."""
    spoken = []
    for language in ("en", "fr"):
        corpus = Corpus(folder / "corpus" / language)
        clips = corpus.split("train")
        encoded = encode(corpus, clips, codec)
        for index, (clip, (codes, _)) in enumerate(zip(clips, encoded, strict=True)):
            prompt, speaker = encoded[(index + 2) % len(clips)]  # voices alternate
            text = front_end.encode(clip.text, language)
            sample = Sample(text, codes, {"speaker_embedding": speaker, "prompt_codes": prompt[:PROMPT]})
            spoken.append(EncodedClip(clip, sample, centres_of(clip, len(codes))))
    return spoken


def optimizers(model: T3) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) for the matrices of the layers, AdamW for the rest."""
    matrices = [p for n, p in model.tfmr.named_parameters() if p.ndim == 2]
    chosen = set(map(id, matrices))
    rest = [p for p in model.parameters() if id(p) not in chosen]
    return [
        torch.optim.Muon(matrices, lr=2e-3, weight_decay=0.01, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def train(spoken: list[EncodedClip], codec: CodecConfig, front_end: FrontEnd, count: int, seed: int, every: int = 0,
          report=None) -> T3:
    """Train for `count` steps; `report(model, step)` every `every` steps. Prints a line every 100."""
    torch.manual_seed(seed)
    model = T3(configure(codec, front_end)).train()
    rate = sum(len(s.clip.text) for s in spoken) / sum(len(s.sample.speech_codes) for s in spoken)
    initialise(model, codec.levels, rate)
    parts = optimizers(model)
    peaks = [part.param_groups[0]["lr"] for part in parts]
    options = LossOptions(text_dropout=0.1, code_dropout=0.4)
    begin, recent = time.time(), []
    for step, batch in steps(spoken, BATCH, count, seed, lambda s: len(s.sample.speech_codes) + len(s.sample.text_ids)):
        for part, peak in zip(parts, peaks, strict=True):
            part.param_groups[0]["lr"] = peak * learning_rate(step, count, warmup=150, hold=0.5)
            part.zero_grad()
        packed = collate([s.sample for s in batch], model.config, torch.device("cpu"), options)
        centres = torch.zeros(packed.codes.shape)
        for row, item in enumerate(batch):
            centres[row, : len(item.centres)] = torch.from_numpy(item.centres)
        guide = GuidedAttention(model.tfmr, model.config.aligned_heads)
        with torch.autocast("cpu", dtype=torch.bfloat16), guide:
            found = losses(model, packed, options)
            places = segment_index(packed, model.config.conditioning_length)
            real = torch.arange(centres.shape[1])[None] < packed.code_lengths[:, None]
            looking = guide.loss(*places, centres, real.float()) / real.sum()
        speech, text = found.speech_sum / found.speech_count, found.text_sum / found.text_count
        weight = 0.3 * max(0.1, 1 - 1.5 * step / count)
        (speech + 0.1 * text + weight * looking).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for part in parts:
            part.step()
        recent.append((speech.item(), text.item(), looking.item()))
        if (step + 1) % 100 == 0:
            means = np.mean(recent[-100:], axis=0).round(3)
            print(f"model step {step + 1} speech {means[0]} text {means[1]} looking {means[2]} "
                  f"{time.time() - begin:.0f} s", flush=True)
        if every and report and (step + 1) % every == 0:
            report(model.eval(), step + 1)
            model.train()
    return folded(model).eval()


def folded(model: T3) -> T3:
    """A copy of `model` with each code table written out, as it ships."""
    tensors = {key: value for key, value in model.state_dict().items() if ".parametrizations." not in key}
    for name in ("speech_emb", "speech_head"):
        tensors[f"{name}.weight"] = model.get_submodule(name).weight
    plain = T3(model.config)
    plain.load_state_dict(tensors)
    return plain


@torch.inference_mode()
def recognition_error(model: T3, codec: Codec, recogniser: RecogniserNetwork, front_end: FrontEnd,
                      clips: list[CorpusClip],
           voices: list[Voice], temperature: float) -> tuple[float, float]:
    """Letter and phoneme error of `clips`' texts spoken by the model, straight from the decoded mel."""
    texts = [front_end.encode(clip.text, clip.language) for clip in clips]
    chosen = [voices[clip.voice] for clip in clips]
    spoken = generate(model, texts, chosen, Sampling(temperature=temperature), [20 + 4 * len(t) for t in texts],
                      torch.device("cpu"))
    speakers = [torch.from_numpy(voice.conditioning["speaker_embedding"])[None] for voice in chosen]
    mels = [codec.decode(torch.from_numpy(s.codes)[None], speaker)[0]
            for s, speaker in zip(spoken, speakers, strict=True)]
    return error(recogniser, list(zip(clips, mels, strict=True)))


def build(folder: Path, seed: int) -> None:
    """Train, report judged speech on the way, and write `t3.safetensors`."""
    codec_file, recogniser_file = folder / "codec.safetensors", folder / "recogniser.safetensors"
    codec = load_module(codec_file, Codec(load_config(codec_file, CodecConfig)))
    recogniser = load_module(recogniser_file, RecogniserNetwork(load_config(recogniser_file, RecogniserConfig)))
    front_end = base_front_end()
    spoken = prepare(folder, codec, front_end)
    voices = [next(Voice(s.sample.conditioning) for s in spoken if s.clip.voice == v)
              for v in (0, 1)]
    held_out = {(lang, split): Corpus(folder / "corpus" / lang).split(split)
                for lang in ("en", "fr") for split in ("combinations", "running")}

    def report(model: T3, step: int) -> None:
        save_module(folder / f"t3-{step}.safetensors", folded(model), model.config)
        for (language, split), clips in held_out.items():
            letters, phonemes = recognition_error(model, codec, recogniser, front_end, clips[:20], voices, 0.5)
            print(f"  step {step} {language} {split}: letters {letters:.3f} phonemes {phonemes:.3f}", flush=True)

    model = train(spoken, codec.config, front_end, STEPS, seed, every=900, report=report)
    save_module(folder / "t3.safetensors", model, model.config)
