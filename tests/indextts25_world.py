"""A small IndexTTS 2.5: the files of `indextts2_world`, with a GPT, a tokenizer and a separate codec kind."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
import yaml

from core.workspace import Workspace
from data.segmenters import LANGUAGE_CODES, ByteLevelBpe, highest_id
from models.gpt2 import transpose_matrices
from models.indextts2.semantic_codec import SemanticCodec, SemanticCodecConfig
from models.indextts2.unified_voice import UnifiedVoice, UnifiedVoiceConfig
from tests import indextts2_world
from tests.chatterbox_world import stop_after
from tests.indextts2_world import CODES, FEATURES, SMALL_S2MEL, TEXTS, filled, split_weight_norm
from tests.reference.byte_level import tiktoken_file
from tests.worlds import extend_world, made_once

SPANISH = ("el gato ve un perro", "vamos a casa", "ella lee un libro")
STYLE, SPARE = 192, 3
SPOKEN_CODES = 30  # of a sentence; 1.2 s
LANGUAGES = len(LANGUAGE_CODES) + 1


def gpt_config(rows: int, features: int = FEATURES, layers: int = 2) -> UnifiedVoiceConfig:
    """A narrow GPT for features of this width; of few tokens, a text takes many."""
    return replace(indextts2_world.gpt_config(rows, features, layers), speaker=None, style=STYLE, languages=LANGUAGES,
                   text_positions=502)


def write_model(folder: Path, gpt_features: int = FEATURES, layers: int = 2, seed: int = 1) -> None:
    """A model folder in the published layout, the codec with an optimizer; see `indextts2_world.write_model`."""
    indextts2_world.write_model(folder, gpt_features, layers, seed)
    (folder / "bpe.model").unlink()
    (folder / "hf_cache" / "semantic_codec_model.safetensors").unlink()
    content = tiktoken_file((*TEXTS, *SPANISH), 330)
    (folder / ByteLevelBpe.base_file).write_bytes(content)
    config = gpt_config(highest_id(ByteLevelBpe(content, "small").ids) + 1 + SPARE, gpt_features, layers)
    network = filled(UnifiedVoice(config), seed)
    stop_after(SPOKEN_CODES, network["mel_pos_embedding.emb.weight"], network["mel_head.weight"][config.stop_speech])
    torch.save(transpose_matrices(network), folder / "gpt.pth")
    settings = yaml.safe_load((folder / "config.yaml").read_text("utf-8"))
    del settings["dataset"]
    settings["gpt"] |= {"number_text_tokens": config.text_rows - 1, "max_text_tokens": config.text_positions - 2}
    settings["version"] = 2.5
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    net = indextts2_world.s2mel_tensors(SMALL_S2MEL, filled, seed)
    torch.save({"net": {part: net[part] for part in ("cfm", "length_regulator")}}, folder / "s2mel.pth")
    torch.save({"model": codec_tensors(seed), "optimizer": [torch.ones(3)]}, folder / "codec.pth")
    record = json.loads((folder / "model.json").read_text("utf-8")) | {"variant": "2.5"}
    (folder / "model.json").write_text(json.dumps(record), encoding="utf-8")


def codec_tensors(seed: int, config: SemanticCodecConfig | None = None) -> dict[str, torch.Tensor]:
    """The codec as its training saves it."""
    config = config or SemanticCodecConfig(FEATURES, 32, 64, 2, CODES, halved=True)
    return split_weight_norm(filled(SemanticCodec(config), seed), [])


@made_once
def extended_world(path: Path) -> Workspace:
    """A workspace with the model, a dataset, the tokenizer and the extension."""
    workspace = Workspace.open(path)
    write_model(workspace.models / "indextts2")
    return extend_world(workspace, "indextts2")
