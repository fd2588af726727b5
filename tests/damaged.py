"""Checkpoints as people find them elsewhere: the built-in family's small model, extended well, then damaged.

Each way of damaging is one that was seen in public projects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from core.workspace import Workspace
from data.segmenters import vocabulary
from tests.worlds import SYLLABLES, write_model

Tensors = dict[str, torch.Tensor]
TABLES = ("text_emb.weight", "text_head.weight")
NEW = (*SYLLABLES, "[am]")
PROJECTION = "tfmr.layers.1.self_attn.v_proj.weight"


def base_world(path: Path) -> Workspace:
    """A workspace with the small built-in model."""
    workspace = Workspace.open(path)
    write_model(workspace.models / "tiny")
    return workspace


def base_tensors(workspace: Workspace) -> Tensors:
    """The base's tensors in float32, as a trainer loads them."""
    held = load_file(workspace.models / "tiny" / "t3.safetensors")
    return {name: value.float() for name, value in held.items()}


def noise(shape: tuple[int, ...], seed: int = 3) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def extended(base: Tensors) -> Tensors:
    """A healthy finetune: the base's rows bit-identical, and trained rows after them."""
    rows = {name: base[name].std() * noise((len(NEW), base[name].shape[1]), seed) for seed, name in enumerate(TABLES)}
    return {name: torch.cat([value, rows[name]]) if name in rows else value.clone() for name, value in base.items()}


def pieces(workspace: Workspace, file: str = "tiny/tokenizer.json") -> dict[str, int]:
    """The base's pieces with their ids."""
    return vocabulary((workspace.models / file).read_bytes(), file)


def tokenizer(workspace: Workspace, path: Path, change: Callable[[dict[str, int]], dict[str, int]] = dict,
              file: str = "tiny/tokenizer.json") -> Path:
    """A merged tokenizer file: the base's pieces, the new ones behind them, then `change`."""
    content = json.loads((workspace.models / file).read_bytes())
    ids = pieces(workspace, file)
    first = 1 + max(ids.values())
    ids = change({**ids, **{piece: first + place for place, piece in enumerate(NEW)}})
    special = {token["content"] for token in content["added_tokens"]} | {"[am]"}
    form = content["added_tokens"][0]
    content["added_tokens"] = [{**form, "content": piece, "id": ids[piece]} for piece in special if piece in ids]
    content["model"]["vocab"] = ids
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return path


def resorted(ids: Mapping[str, int]) -> dict[str, int]:
    """All pieces in the order of the alphabet, as a tokenizer that was trained anew has them."""
    return {piece: place for place, piece in enumerate(sorted(ids))}


def decayed(held: Tensors, steps: int = 1000, rate: float = 1e-3, decay: float = 0.01) -> Tensors:
    """A gradient hook that zeroes the old rows' gradients, under AdamW: weight decay goes on."""
    rows = {name: torch.nn.Parameter(held[name].clone()) for name in TABLES}
    count = len(NEW)
    for value in rows.values():
        value.register_hook(lambda gradient: torch.cat([torch.zeros_like(gradient[:-count]), gradient[-count:]]))
    optimizer = torch.optim.AdamW(rows.values(), lr=rate, weight_decay=decay)
    for step in range(steps // 50):  # the same decay in fewer steps
        for group in optimizer.param_groups:
            group["lr"] = rate * 50
        optimizer.zero_grad()
        sum((value * noise(tuple(value.shape), step)).sum() for value in rows.values()).backward()  # type: ignore[union-attr]
        optimizer.step()
    return {**held, **{name: value.detach() for name, value in rows.items()}}


def trained_everywhere(held: Tensors) -> Tensors:
    """An optimizer over everything."""
    return {name: value + 0.05 * value.std(correction=0).clamp(min=1e-4) * noise(tuple(value.shape), 7)
            for name, value in held.items()}


def half_overwritten(held: Tensors) -> Tensors:
    """New tokens land on the second half of the old rows, since another number of rows was typed."""
    made = {name: value.clone() for name, value in held.items()}
    for name in TABLES:
        old = len(made[name]) - len(NEW)
        made[name][old // 2:old] = 0.5 * noise((old - old // 2, made[name].shape[1]), 11)
    return made


def permuted(held: Tensors, order: list[int]) -> Tensors:
    """Row `old` stands at `order[old]`."""
    made = dict(held)
    for name in TABLES:
        made[name] = held[name].clone()
        made[name][order] = held[name]
    return made


def merged_lora(held: Tensors, rank: int = 3) -> Tensors:
    """A LoRA of `rank` folded into the layers' matrices."""
    made = dict(held)
    for place, name in enumerate(sorted(held)):
        if name.startswith("tfmr.layers.") and held[name].ndim == 2:
            rows, columns = held[name].shape
            made[name] = held[name] + 0.02 * noise((rows, rank), place) @ noise((rank, columns), place + 99)
    return made


def with_nan(held: Tensors) -> Tensors:
    made = {name: value.clone() for name, value in held.items()}
    made[PROJECTION][0, 0] = torch.nan
    return made


def save(path: Path, held: Tensors) -> Path:
    """As safetensors, or as a pickle of tensors for `.pt`."""
    if path.suffix == ".safetensors":
        save_file({name: value.contiguous() for name, value in held.items()}, str(path))
    else:
        torch.save(held, path)
    return path
