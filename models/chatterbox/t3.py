"""Chatterbox's T3 at its published sizes; the network is `models.speech_network.T3`.

Every size is read from the file; what shapes do not determine (64 dimensions per head, the rotary scaling of Llama 3,
the ids of start and stop) is as in resemble-ai/chatterbox (MIT). The published checkpoints have thirty layers and
differ in their text rows alone: 704 English, 2352 the first multilingual, 2454 versions 2 and 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from config.errors import UserError
from models import weights
from models.decoder import DecoderConfig, RotaryScaling
from models.speech_network import T3, T3Config

START_SPEECH, STOP_SPEECH = 6561, 6562  # codes are below the start
_HEAD_SIZE = 64
ALIGNED_HEADS = ((9, 2), (12, 15), (13, 11))  # (layer, head) that follow the text, as published
Shapes = Mapping[str, tuple[int, ...]]


def config_from_shapes(shapes: Shapes, source: str) -> T3Config:
    """The configuration of a checkpoint's shapes; `UserError` naming `source` if it is no T3."""
    try:
        layers = 1 + max(int(key.split(".")[2]) for key in shapes if key.startswith("tfmr.layers."))
        mlp_width, width = shapes["tfmr.layers.0.mlp.gate_proj.weight"]
        decoder = DecoderConfig(width=width, layers=layers, heads=width // _HEAD_SIZE, mlp_width=mlp_width,
                                rotary_scaling=RotaryScaling())
        return T3Config(
            decoder, text_rows=shapes["text_emb.weight"][0], speech_rows=shapes["speech_emb.weight"][0],
            start_speech=START_SPEECH, stop_speech=STOP_SPEECH,
            text_positions=shapes["text_pos_emb.emb.weight"][0],
            speech_positions=shapes["speech_pos_emb.emb.weight"][0],
            speaker_size=shapes["cond_enc.spkr_enc.weight"][1],
            prompt_queries=shapes["cond_enc.perceiver.pre_attention_query"][1],
            unused_tokens=shapes["tfmr.embed_tokens.weight"][0], doubled_start=True,
            aligned_heads=ALIGNED_HEADS if layers > ALIGNED_HEADS[-1][0] else (),
        )
    except (KeyError, ValueError, IndexError) as error:
        raise UserError(f"{source} is no T3 checkpoint: it has {len(shapes)} tensors, and not the one for {error}.",
                        "Give one of the published T3 files.") from error


def load(path: Path) -> T3:
    """The model in a checkpoint file, in evaluation mode; the shapes decide which one it is."""
    module = empty(config_from_shapes(weights.shapes(path), str(path)))
    weights.load_into(module, weights.read(path), str(path))
    return module.eval()


def empty(config: T3Config) -> T3:
    """A model on the meta device, which takes no memory before weights are loaded."""
    with torch.device("meta"):
        module = T3(config)
    module.tfmr.compute_frequencies()
    return module
