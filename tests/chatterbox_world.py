"""A small Chatterbox in a workspace: every file of the true kind and key names, narrow, with made-up weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from core.workspace import Workspace
from data.acoustics.voice_encoder import VoiceEncoder
from data.segmenters import highest_id, vocabulary
from models.chatterbox import t3
from models.chatterbox.codec import voice_from_clip
from models.chatterbox.flow import FlowConfig
from models.chatterbox.flow_encoder import FlowEncoderConfig
from models.chatterbox.flow_estimator import FlowEstimatorConfig
from models.chatterbox.hift import HiFTConfig
from models.chatterbox.s3gen import S3Gen, S3GenConfig
from models.chatterbox.speech_tokenizer import SpeechTokenizerConfig
from models.decoder import DecoderConfig, RotaryScaling
from models.speech_network import T3, T3Config
from scripts.dev.random_weights import fill
from tests.worlds import RATE, extend_world, made_once, tone

MADE_UP = Path(__file__).parent / "reference" / "chatterbox"
TOKENIZER = "grapheme_mtl_merged_expanded_v1.json"
SMALL = S3GenConfig(
    SpeechTokenizerConfig(width=128, heads=2, layers=1),
    FlowConfig(encoder=FlowEncoderConfig(width=64, heads=1, hidden=64, blocks=1, up_blocks=1),
               estimator=FlowEstimatorConfig(width=64, heads=1, hidden=64, transformers=1, mid_blocks=1)),
    HiFTConfig(channels=32, f0_channels=32),
)
SPOKEN_CODES = 60  # of a sentence; 2.4 s
WINDOWS = ("tokenizer._mel_filters", "tokenizer.window")


def language_model(width: int = 128, layers: int = 2, text_rows: int = 0, mlp_width: int = 256) -> T3Config:
    """The configuration of a narrow T3; `text_rows` 0 is those of the made-up tokenizer."""
    rows = text_rows or 1 + highest_id(vocabulary((MADE_UP / "tokenizer.json").read_bytes(), "tokenizer.json"))
    decoder = DecoderConfig(width, layers, width // 64, mlp_width, rotary_scaling=RotaryScaling())
    return T3Config(decoder, rows, 8194, t3.START_SPEECH, t3.STOP_SPEECH, 2050, 4100, 256, unused_tokens=8,
                          doubled_start=True)


@torch.no_grad()
def stop_after(codes: int, positions: torch.Tensor, stop: torch.Tensor) -> None:
    """Let made-up weights end their speech: after so many `codes` the embeddings (P, D) of `positions` point to `stop`.

    Without it each sentence goes on to the limit of codes, which most of a test's time would go into.
    """
    positions[codes:] += 10 * stop / stop.norm()


def save(path: Path, module: nn.Module) -> None:
    """The module's tensors in a file."""
    save_file({key: value.contiguous() for key, value in module.state_dict().items()}, str(path))


def write_model(folder: Path, config: T3Config | None = None, sound: S3GenConfig = SMALL, seed: int = 1,
                quick: bool = False) -> None:
    """A model folder with the published file names."""
    folder.mkdir(parents=True)
    language, models, encoder = T3(config or language_model()), S3Gen(sound), VoiceEncoder()
    for module, skip in ((language, ()), (models, WINDOWS), (encoder, ())):
        if quick:
            fill_quickly(module, seed)
        else:
            fill(module, seed, skip=skip)
    stop_after(SPOKEN_CODES, language.speech_pos_emb.emb.weight, language.speech_head.weight[t3.STOP_SPEECH])
    save(folder / "t3_mtl23ls_v2.safetensors", language)
    save(folder / "s3gen.safetensors", models)
    save(folder / "ve.safetensors", encoder)
    shutil.copyfile(MADE_UP / "tokenizer.json", folder / TOKENIZER)
    shutil.copyfile(MADE_UP / "Cangjie5_TC.json", folder / "Cangjie5_TC.json")
    write_voice(folder / "conds.pt", models.eval(), encoder.eval())
    record = {"family": "chatterbox", "variant": "multilingual-v2", "repository": "made/up", "revision": "",
              "requested_revision": "", "files": {}}
    (folder / "model.json").write_text(json.dumps(record), encoding="utf-8")


def write_full_size(folder: Path) -> None:
    """The published sizes: T3 of thirty layers and 2454 text rows, and S3Gen; 3.2 GB of made-up weights."""
    write_model(folder, language_model(1024, 30, 2454, mlp_width=4096), S3GenConfig(), quick=True)
    content = json.loads((folder / TOKENIZER).read_text("utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary |= {f"[PLACEHOLDER{row}]": row for row in range(1 + max(vocabulary.values()), 2454)}
    (folder / TOKENIZER).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


@torch.no_grad()
def fill_quickly(module: nn.Module, seed: int) -> None:
    """Weights of natural size; `scripts.dev.random_weights`, which are reproducible, take minutes for a gigabyte."""
    torch.manual_seed(seed)
    for name, value in module.state_dict().items():
        if name in WINDOWS or not value.is_floating_point():
            continue
        fan_in = value[0].numel() if value.ndim > 1 else 0
        value.normal_(0.0 if fan_in else 1.0, fan_in**-0.5 if fan_in else 0.05)
        if name.endswith(("bias", "running_mean")):
            value.mul_(0.02)
        if name.endswith(("running_var", "alpha", "original0")):
            value.abs_()


def write_voice(path: Path, models: S3Gen, encoder: VoiceEncoder) -> None:
    """A built-in voice in the published layout, from a tone."""
    models.mel2wav.fold_weight_norm()
    voice = voice_from_clip(models, encoder, tone(5, 2.0), RATE)
    parts = {name: torch.from_numpy(value)[None] for name, value in voice.timbre.items()}
    torch.save({
        "t3": {"speaker_emb": torch.from_numpy(voice.conditioning["speaker_embedding"])[None], "clap_emb": None,
               "cond_prompt_speech_tokens": torch.from_numpy(voice.conditioning["prompt_codes"].astype(np.int64))[None],
               "cond_prompt_speech_emb": None, "emotion_adv": torch.full((1, 1, 1), 0.5)},
        "gen": {"prompt_token": parts["codes"], "prompt_token_len": torch.tensor([parts["codes"].shape[1]]),
                "prompt_feat": parts["mel"], "prompt_feat_len": None, "embedding": parts["speaker"]},
    }, path)


@made_once
def extended_world(path: Path) -> Workspace:
    """A workspace with the model, a dataset, the tokenizer and the extension."""
    workspace = Workspace.open(path)
    write_model(workspace.models / "chatterbox")
    return extend_world(workspace, "chatterbox")
