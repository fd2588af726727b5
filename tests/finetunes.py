"""Finetunes in the layouts in which people have them: what training programs save, with the keys that they use.

Layouts: `trainers/train_gpt_v2.py` of JarodMica/index-tts (branch training_v2), `src/finetune_t3.py` of
stlohrey/chatterbox-finetuning, `src/training/train.py` and `scripts/merge_tokenizers.py` of
Diakonrobel/Amharic_chatterbox-TTS, and the folders of peft. The values are random.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from sentencepiece import sentencepiece_model_pb2

from core.library.lineage import Model
from core.workspace import Workspace
from data.segmenters import vocabulary
from models.base import Family
from models.registry import family as family_named

Tensors = dict[str, torch.Tensor]
LETTERS = "ሀለመሰረቀበተነከ"  # the new pieces


@dataclass(frozen=True)
class Base:
    """A base model of a workspace, and its tensors in float32."""

    workspace: Workspace
    name: str

    @property
    def folder(self) -> Path:
        return self.workspace.models / self.name

    @property
    def family(self) -> Family:
        return family_named(Model.open(self.workspace, f"base:{self.name}").family_name)

    @property
    def tables(self) -> tuple[str, ...]:
        return self.family.tensor_layout.text_tables

    def tensors(self) -> Tensors:
        """Under the published names, as the file stores them."""
        held = self.family.open_weights(self.family.language_model_file(self.folder))
        return {name: held.tensor(name).float() if held.dtype(name).is_floating_point else held.tensor(name)
                for name in held.names}

    @property
    def matrices(self) -> list[str]:
        """The attention matrices of the decoder, to which adapters are added."""
        return [name for name in self.tensors() if name.startswith(("tfmr.layers.", "gpt.h."))
                and ("q_proj.weight" in name or "c_attn.weight" in name)]

    def tokenizer(self, path: Path) -> Path:
        """The base's tokenizer with the new letters behind its pieces."""
        source = next(self.folder / name for name in ("tokenizer.json", "bpe.model", *(
            one.name for one in sorted(self.folder.glob("*.json")) if "added_tokens" in one.read_text("utf-8")))
            if (self.folder / name).is_file())
        if source.suffix == ".model":
            model = sentencepiece_model_pb2.ModelProto.FromString(source.read_bytes())
            model.pieces.add(piece="<spare>", score=0.0, type=sentencepiece_model_pb2.ModelProto.SentencePiece.CONTROL)
            for letter in LETTERS:
                model.pieces.add(piece=letter, score=-1000.0)
            path = path.with_suffix(".model")
            path.write_bytes(model.SerializeToString())
            return path
        content = json.loads(source.read_bytes())
        first = 1 + max(vocabulary(source.read_bytes(), source.name).values())
        for row, letter in enumerate(LETTERS, first):
            content["model"]["vocab"][letter] = row
        path = path.with_suffix(".json")
        path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        return path

    def flat_vocabulary(self, path: Path) -> Path:
        """The same pieces as a table of ids alone."""
        tokenizer = self.tokenizer(path.with_name("whole"))
        ids = vocabulary(tokenizer.read_bytes(), tokenizer.name)
        tokenizer.unlink()
        path.write_text(json.dumps(ids, ensure_ascii=False, indent=2), encoding="utf-8")
        return path


def noise(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def with_rows(base: Base, tables: tuple[str, ...] = ()) -> Tensors:
    """The base's tensors with trained rows behind those of the text tables."""
    held = base.tensors()
    for seed, name in enumerate(tables or base.tables):
        scale = held[name].std().clamp(min=1e-3)
        held[name] = torch.cat([held[name], scale * noise((len(LETTERS), *held[name].shape[1:]), seed)])
    return held


def trained(held: Tensors, share: float = 0.01) -> Tensors:
    """All moved a little, as an optimizer over everything leaves them."""
    return {name: value + share * value.std(correction=0).clamp(min=1e-4) * noise(tuple(value.shape), 7)
            if value.is_floating_point() and value.ndim else value for name, value in held.items()}


def with_lora(held: Tensors, names: list[str], rank: int = 2) -> Tensors:
    """Factors merged into matrices."""
    made = dict(held)
    for seed, name in enumerate(names):
        rows, columns = held[name].shape
        change = noise((rows, rank), seed) @ noise((rank, columns), seed + 99)
        made[name] = held[name] + 0.05 * held[name].std() * change
    return made


def _optimizer(held: Tensors) -> dict[str, object]:
    """The state of AdamW over everything."""
    values = list(held.values())
    return {"state": {number: {"step": torch.tensor(38_000.0), "exp_avg": torch.zeros_like(value),
                               "exp_avg_sq": torch.zeros_like(value)} for number, value in enumerate(values)},
            "param_groups": [{"lr": 2e-5, "betas": (0.9, 0.999), "params": list(range(len(values)))}]}


def _random_state() -> dict[str, object]:
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}


Layout = Callable[[Base, Path], tuple[Path, Path | None]]
"""Writes a finetune of a base into a folder; its checkpoint, and its tokenizer if it does not lie beside it."""


def model_step(base: Base, folder: Path) -> tuple[Path, Path | None]:
    """Weights, optimizer and schedule in one file, all weights trained."""
    held = trained(with_rows(base))
    torch.save({"model": held, "optimizer": _optimizer(held), "scheduler": {"last_epoch": 3}, "scaler": None,
                "epoch": 3, "step": 38_000, "recent_checkpoints": ["trained_ckpts/model_step37000.pth"],
                "extra": {"type": "step"}},
               folder / "model_step38000.pth")
    return folder / "model_step38000.pth", base.tokenizer(folder / "am_bpe")


def raw_and_average(base: Base, folder: Path) -> tuple[Path, Path | None]:
    """Raw and averaged weights, optimizer, and the state of numpy's random generator."""
    held = trained(with_rows(base))
    average = {name: 0.5 * (value + other) if value.shape == other.shape and value.is_floating_point() else value
               for (name, value), other in zip(held.items(), with_rows(base).values(), strict=True)}
    torch.save({"model": held, "ema_model": average, "optimizer": _optimizer(held), "rng_state": _random_state(),
                "global_step": np.int64(500), "best": np.float64(1.5)}, folder / "latest.pth",
               _use_new_zipfile_serialization=False)
    return folder / "latest.pth", base.tokenizer(folder / "tokenizer")


def trainer_folder(base: Base, folder: Path) -> tuple[Path, Path | None]:
    """A checkpoint folder of the trainer of transformers: a prefix before all names, and its other files."""
    folder = folder / "checkpoint-1000"
    folder.mkdir()
    save_file({f"t3.{name}": value.contiguous() for name, value in trained(with_rows(base)).items()},
              folder / "model.safetensors")
    for name, held in (("optimizer.pt", {"state": {}}), ("scheduler.pt", {"last_epoch": 3}),
                       ("rng_state.pth", _random_state())):
        torch.save(held, folder / name)
    (folder / "trainer_state.json").write_text('{"global_step": 1000}')
    base.tokenizer(folder / "tokenizer")
    return folder, None


def embedding_alone(base: Base, folder: Path) -> tuple[Path, Path | None]:
    """The text embedding was extended and the head was not; of a JSON tokenizer a flat table of ids is there."""
    held = with_rows(base, base.tables[:1])
    torch.save({"epoch": 12, "step": 500, "model_state_dict": held, "optimizer_state_dict": _optimizer(held),
                "loss": 2.5, "best_val_loss": float("inf"), "config": {"model": {"n_vocab": 2535}}},
               folder / "checkpoint_latest.pt")
    if (base.folder / "bpe.model").is_file():
        return folder / "checkpoint_latest.pt", base.tokenizer(folder / "tokenizer")
    return folder / "checkpoint_latest.pt", base.flat_vocabulary(folder / "vocab.json")


def adapters(base: Base, folder: Path) -> tuple[Path, Path | None]:
    """A folder of peft: factors of the attention, and the extended text tables as whole tensors."""
    folder = folder / "lora"
    folder.mkdir()
    held, transposed = with_rows(base), base.matrices[0].startswith("gpt.")
    saved: Tensors = {}
    for seed, name in enumerate(base.matrices):
        rows, columns = held[name].shape[::-1] if transposed else held[name].shape
        module = f"base_model.model.{name.removesuffix('.weight')}"
        saved[f"{module}.lora_A.weight"] = noise((2, columns), seed)
        saved[f"{module}.lora_B.weight"] = 0.02 * held[name].std() * noise((rows, 2), seed + 50)
    saved |= {f"base_model.model.{name}": held[name] for name in base.tables}
    save_file({name: value.contiguous() for name, value in saved.items()}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": 2, "lora_alpha": 4, "lora_dropout": 0.05, "bias": "none", "use_rslora": False,
        "fan_in_fan_out": transposed, "target_modules": ["q_proj", "c_attn"], "task_type": None,
        "modules_to_save": ["text_emb", "text_head"], "base_model_name_or_path": None, "inference_mode": True}))
    base.tokenizer(folder / "tokenizer")
    return folder, None


def merged(base: Base, folder: Path) -> tuple[Path, Path | None]:
    """Factors merged into the weights, saved in bfloat16."""
    held = with_lora(with_rows(base), base.matrices)
    save_file({name: value.bfloat16().contiguous() if value.is_floating_point() else value.contiguous()
               for name, value in held.items()}, folder / "merged.safetensors")
    return folder / "merged.safetensors", base.tokenizer(folder / "tokenizer")


def rows_alone(base: Base, folder: Path) -> tuple[Path, Path | None]:
    """Intact: every old row and tensor is the base's, rounded to float16."""
    torch.save({name: value.half() if value.is_floating_point() else value for name, value in with_rows(base).items()},
               folder / "gpt_finetuned.pth")
    return folder / "gpt_finetuned.pth", base.tokenizer(folder / "tokenizer")


LAYOUTS: Mapping[str, Layout] = {layout.__name__: layout for layout in (
    model_step, raw_and_average, trainer_folder, embedding_alone, adapters, merged, rows_alone)}
