"""What a person should know before a training starts, with the numbers: too little data, odd rates, a full disk.

Nothing here stops a run. What was left out of the data is told by `core.training.training_data` itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from config.schema import TrainOptions
from core.job.reporter import size_text
from core.library import offers
from core.training import scopes
from core.training.plan import duration
from core.training.trainer import Trainer

LITTLE_S = 600.0  # the demo has 14 minutes, which a small model learns from
OFTEN = 100  # times that each clip is heard in a run
FAR = 5.0  # times more or less than the preset's rate
FEW_HELD_OUT = 3
_MOMENTS = 3  # a checkpoint holds each value, and AdamW's two moments of it
_RATES = {"row_rate": "rows", "adapter_rate": "adapters"}


def warnings(trainer: Trainer, run: Path, options: TrainOptions | None = None) -> list[str]:
    """Each as a sentence or two; `options` where the trainer was made with others, for a trial."""
    wanted = options or trainer.options
    return [*unused(wanted), *_data(trainer, wanted), *_rates(trainer, wanted), *_disk(trainer, run, wanted)]


def unused(options: TrainOptions) -> Iterator[str]:
    """Options that were set and do nothing in the scope."""
    if options.adapter != "lora" and not scopes.has_adapters(options):
        what = f"that changes {options.full_changes!r} " if options.scope == "full" else ""
        yield (f"Adapters of the kind {options.adapter!r} were asked for, but scope {options.scope!r} {what}has none: "
               "none are trained. Choose scope `gated`, or `full` with `--full-changes adapters`.")


def _data(trainer: Trainer, options: TrainOptions) -> Iterator[str]:
    data = trainer.data
    if 0 < data.train_s < LITTLE_S:
        yield (f"There is little to learn from: {duration(data.train_s)} of speech in {len(data.train)} clips; "
               f"{duration(LITTLE_S)} is the least that has worked, an hour or more is better.")
    heard = options.steps * options.batch_size * options.processes * options.accumulation / max(1, len(data.train))
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
    preset = offers.preset(trainer.voice.family.name, "train", TrainOptions)
    for name, what in _RATES.items():
        asked, usual = float(getattr(options, name)), float(getattr(preset, name))
        if what == "adapters" and trainer.voice.adapters is None:
            continue
        if not usual / FAR <= asked <= usual * FAR:
            many = asked / usual
            said = f"{many:.3g} times" if many > 1 else f"1/{1 / many:.3g} of"
            danger = "it may break" if many > 1 else "it may learn nothing"
            yield (f"The learning rate of the {what} is {asked:g}, {said} that of the preset for "
                   f"{trainer.voice.family.name} ({usual:g}): {danger}.")


def _disk(trainer: Trainer, run: Path, options: TrainOptions) -> Iterator[str]:
    one = _MOMENTS * sum(value.nbytes for value in trainer.trained.named.values())
    most = min(options.keep_last + 2, 1 + -(-options.steps // options.checkpoint_every))  # the best, and one in writing
    free = shutil.disk_usage(run).free
    if free < one * most:
        yield (f"The disk may not hold the checkpoints: {most} of about {size_text(one)} are there at once, "
               f"{size_text(one * most)}, and {size_text(free)} are free. Free some space, or keep fewer.")
