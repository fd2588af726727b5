"""What a person should know before a training starts, with the numbers: too little data, odd rates, a full disk.

Nothing here stops a run. What was left out of the data is told by `core.training.training_data` itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from config.schema import TrainOptions
from core.jobs.reporter import size_text
from core.library import model_info
from core.training import scopes
from core.training.plan import duration
from core.training.trainer import Trainer

LITTLE_S = 600.0  # the demo has 14 minutes, which a small model learns from
OFTEN = 100  # times that each clip is heard in a run
FAR = 5.0  # times more or less than the preset's rate
FEW_HELD_OUT = 3
_IN_8_BITS, _BLOCK, _BOOK = 4096, 256, 256  # numbers of a tensor from which on, of a scale, and of a code book
PROTECTION = tuple(name for name, field in TrainOptions.model_fields.items()
                   if (field.json_schema_extra or {}).get("group") == "Base protection")  # type: ignore[union-attr]
_OF_LAYERS = ("layer_lr", "layer_lr_decay")
_OF_BASE = {"adapters": (*_OF_LAYERS, "head_lr", "l2_sp", "ewc", "fisher_clips"), "heads": _OF_LAYERS}
"""What does nothing where `full_trainable` narrows what is trained of the base."""


def warnings(trainer: Trainer, run: Path, options: TrainOptions | None = None) -> list[str]:
    """Each as a sentence or two; `options` where the trainer was made with others, for a trial."""
    wanted = options or trainer.options
    return [*unused(wanted), *_data(trainer, wanted), *_rates(trainer, wanted), *_disk(trainer, run, wanted)]


def unused(options: TrainOptions) -> Iterator[str]:
    """Options that were set and do nothing in the scope, or beside others."""
    if options.adapter != "lora" and not scopes.has_adapters(options):
        what = f"that changes {options.full_trainable!r} " if options.scope == "full" else ""
        yield (f"Adapters of the kind {options.adapter!r} were asked for, but scope {options.scope!r} {what}has none: "
               "none are trained. Choose scope `gated`, or `full` with `--full-trainable adapters`.")
    if options.scope != "full":
        if named := _set(options, PROTECTION):
            yield (f"Scope {options.scope!r} changes nothing of the base, so what protects it does nothing: {named}. "
                   "It is for scope `full`.")
        return
    if named := _set(options, _OF_BASE.get(options.full_trainable, ())):
        yield f"Scope 'full' that changes {options.full_trainable!r} trains nothing that these are for: {named}."
    if options.replay == 0 and options.distillation > 0:
        yield (f"Distillation {options.distillation:g} does nothing, because it works on replayed clips and replay "
               "is 0.")
    if options.ewc == 0 and (named := _set(options, ("fisher_clips",))):
        yield f"Nothing is pulled by importance (ewc is 0), so this does nothing: {named}."
    if options.replay_datasets.strip() and options.replay_texts.strip():
        yield (f"The texts to replay, {options.replay_texts}, are not spoken: the datasets to replay, "
               f"{options.replay_datasets}, are rehearsed in their place.")


def _set(options: TrainOptions, names: Iterable[str]) -> str:
    """Those of `names` whose value is not the schema's, with their values."""
    fields = TrainOptions.model_fields
    return ", ".join(f"{fields[name].title} ({name} {getattr(options, name)})" for name in names
                     if getattr(options, name) != fields[name].default)


def _data(trainer: Trainer, options: TrainOptions) -> Iterator[str]:
    data = trainer.data.cut_from or trainer.data
    if 0 < data.train_s < LITTLE_S:
        yield (f"There is little to learn from: {duration(data.train_s)} of speech in {len(data.train)} clips; "
               f"{duration(LITTLE_S)} is the least that has worked, an hour or more is better.")
    processes = trainer.company.size if trainer.company else options.processes  # a trial has no company
    heard = options.steps * options.batch_size * processes * options.gradient_accumulation / max(1, len(data.train))
    if heard > OFTEN:
        yield (f"Each of the {len(data.train)} clips is heard {heard:.0f} times in {options.steps} steps: from about "
               f"{OFTEN} on they are learnt by heart. Ask for fewer steps, or add recordings.")
    speakers = {item.speaker for item in data.train}
    if len(speakers) == 1:
        yield (f"All {len(data.train)} clips have one speaker, {next(iter(speakers))!r}: the language is learnt in "
               "that voice, and may sound less well in others.")
    if len(data.held_out) < FEW_HELD_OUT:
        yield (f"Only {len(data.held_out)} clips are held out: the best checkpoint is chosen by next to nothing. "
               "Prepare the dataset with a larger held-out share.")


def _rates(trainer: Trainer, options: TrainOptions) -> Iterator[str]:
    preset = model_info.preset(trainer.voice.family.name, "train", TrainOptions)
    for name, what in _trained(options).items():
        asked, usual = float(getattr(options, name)), float(getattr(preset, name))
        if not usual / FAR <= asked <= usual * FAR:
            many = asked / usual
            said = f"{many:.3g} times" if many > 1 else f"1/{1 / many:.3g} of"
            danger = "it may break" if many > 1 else "it may learn nothing"
            yield (f"The learning rate of the {what} is {asked:g}, {said} that of the preset for "
                   f"{trainer.voice.family.name} ({usual:g}): {danger}.")
    if options.warmup >= options.steps:
        yield (f"The warmup of {options.warmup} steps is not over when the {options.steps} steps of the training are: "
               f"its rates end at {options.steps / options.warmup:.3g} times those asked for, and never fall. Ask for "
               "a shorter warmup, or for more steps.")


def _trained(options: TrainOptions) -> dict[str, str]:
    """The options that are rates of what is trained, and what that is."""
    parts = scopes.changed_parts(options)
    used = {"row_lr": "rows", "adapter_lr": "adapters" if scopes.has_adapters(options) else "",
            "layer_lr": "layers" if set(parts) - {scopes.HEADS} else "",
            "head_lr": "heads" if scopes.HEADS in parts else ""}
    return {name: what for name, what in used.items() if what}


def _disk(trainer: Trainer, run: Path, options: TrainOptions) -> Iterator[str]:
    one = checkpoint_bytes(trainer)
    most = min(options.keep_last + 2, 1 + -(-options.steps // options.checkpoint_every))  # the best, and one in writing
    free = shutil.disk_usage(run).free
    if free < one * most:
        yield (f"The disk may not hold the checkpoints: {most} of about {size_text(one)} are there at once, "
               f"{size_text(one * most)}, and {size_text(free)} are free. Free some space, or keep fewer.")


def checkpoint_bytes(trainer: Trainer) -> int:
    """Of the tensors in a checkpoint: what is trained, its two moments, and the values beside their average."""
    options, trained = trainer.options, list(trainer.trained.named.values())
    values = sum(value.nbytes for value in trained)
    moments = sum(map(_in_8_bits, trained)) if options.optimizer == "adamw8bit" else 2 * values
    return values + moments + (values if options.ema else 0)


def _in_8_bits(value: torch.Tensor) -> int:
    """Bytes of bitsandbytes' two moments of `value`, with the scale of each block and the code books."""
    count = value.numel()
    return 2 * (count + 4 * -(-count // _BLOCK) + 4 * _BOOK) if count >= _IN_8_BITS else 8 * count
