"""What a run will do, in words and numbers, before its first step."""

from __future__ import annotations

from core.jobs.events import Plan
from core.training import memory, scopes
from core.training.fitting import Estimate
from core.training.trainer import Trainer


def plan(trainer: Trainer, found: Estimate) -> Plan:
    """What is trained and what is not, on what, and what it will take."""
    counts, options, data = trainer.counts, trainer.options, trainer.data
    total, size = counts.new_rows + counts.old_rows, trainer.company.size if trainer.company else 1
    frozen = _amount(counts.base_parameters)
    beside = f"adapters of {_amount(counts.adapter_parameters)} beside" if counts.adapter_parameters else "0 of"
    if counts.changed_parameters:
        beside = f"{_amount(counts.changed_parameters)} parameters of the base beside"
    return Plan(
        (f"{counts.new_rows} new rows of {total}; 0 of {counts.old_rows} old rows; "
         f"{beside} {frozen} frozen parameters.",
         f"{len(data.train)} clips in {data.language!r}, {len(data.held_out)} held out; "
         f"steps {trainer.step} to {options.steps} of {options.batch_size * options.gradient_accumulation * size} clips"
         f"{f' over {size} processes' if size > 1 else ''}; "
         f"{trainer.precision}.",
         *_heard(trainer),
         *(f"Trained: {line}." for line in scopes.table(trainer.groups)),
         *_expected(trainer, found)),
        {"new_rows": counts.new_rows, "rows": total, "old_rows": counts.old_rows, "old_rows_trained": 0,
         "row_parameters": counts.row_parameters, "adapter_parameters": counts.adapter_parameters,
         "changed_parameters": counts.changed_parameters,
         "frozen_parameters": counts.base_parameters, "clips": len(data.train), "held_out_clips": len(data.held_out),
         "memory_bytes": found.needed or 0,
         "seconds": round(sum(found.seconds_a_step) / 2 * (options.steps - trainer.step))},
    )


def _heard(trainer: Trainer) -> tuple[str, ...]:
    """What is heard of the clips, where it is not always what was recorded."""
    variants, share = trainer.data.variants, trainer.options.augmentation
    if not variants:
        return ()
    count = sum(len(variants.get(item.id, ())) for item in trainer.data.train)
    return (f"{share:.0%} of the clips of an epoch are heard as one of their {count} "
            "variants, chosen anew each epoch; validation and samples never.",)


def _expected(trainer: Trainer, found: Estimate) -> tuple[str, ...]:
    """Memory and time, and what was changed so that it fits."""
    options, setting = trainer.options, found.setting
    free = "" if found.free is None else f" of {memory.gib(found.free)} free"
    if trainer.sharded:
        again = ", and computes activations again in the backward pass" if setting.recompute else ""
        size = f"About {memory.gib(found.needed)}{free} in the first one; " if found.needed else ""
        count = options.steps - trainer.step
        return (f"Each process holds its part of what is trained, its gradients and its optimizer state{again}.",
                f"{size}{count} steps in {expected(found, count)}, beside the samples that are spoken. The longest "
                "clips were tried.")
    if not found.fits:
        needed = f"about {memory.gib(found.needed)}" if found.needed is not None else "more memory than there is"
        return (f"It needs {needed}{free} even with single clips: it may end without memory.",)
    steps = options.steps - trainer.step
    lines = [f"About {memory.gib(found.needed or 0)}{free}; {steps} steps in {expected(found, steps)}, beside the "
             "samples that are spoken."]
    if setting.parts > 1:
        lines.append(f"To fit into memory, passes of {setting.size(options.batch_size)} clips, accumulated "
                     f"{setting.parts * options.gradient_accumulation} times a step.")
    if setting.recompute:
        lines.append("Activations are computed again in the backward pass, to save memory.")
    return tuple(lines)


def expected(found: Estimate, steps: int) -> str:
    """How long so many steps take, such as `about 12 min` or `8 min to 15 min`: as their clips are short or long."""
    least, most = (duration(seconds * steps) for seconds in found.seconds_a_step)
    return f"about {least}" if least == most else f"{least} to {most}"


def duration(seconds: float) -> str:
    """Such as `50 s`, `12 min` or `3.4 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _amount(parameters: int) -> str:
    """Such as `5.9 M` or `4.2 k`."""
    return f"{parameters / 1e6:.1f} M" if parameters >= 1e5 else f"{parameters / 1e3:.1f} k"
