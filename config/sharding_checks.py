"""Whether a run can be sharded, by its options alone, so that a job is refused when it is created."""

from __future__ import annotations

import os

from config.errors import UserError
from config.schema import TrainOptions


def number_of_processes(asked: int) -> int:
    """As many as torchrun started, where it started this one, else as many as were asked for."""
    started = int(os.environ.get("WORLD_SIZE", "1"))
    return started if started > 1 else asked


def check(options: TrainOptions, processes: int, *, in_float16: bool = False) -> None:
    """Raise `UserError` where a run with these options cannot be sharded, or has nothing from it.

    `in_float16`: that is what it computes in, also where that was not asked for.
    """
    if options.sharding == "none":
        return
    reasons = [
        (options.scope != "full" or options.full_trainable == "adapters",
         "what it trains beside the base is small: only scope `full` that changes the base itself has something to "
         "share out", "train with sharding `none`"),
        (processes == 1, "there is one process, which would hold all of it", "ask for one process a GPU (`processes`)"),
        (options.ewc > 0, "the importance of the base's numbers (ewc) is estimated on whole gradients",
         "set ewc to 0; l2_sp pulls back without an estimate"),
        (options.optimizer == "adamw8bit", "bitsandbytes' optimizer does not know tensors in parts",
         "choose the optimizer `adamw`, whose state is shared out"),
        (options.compile == "on", "compiled layers were never tried in parts", "set compile to `off`"),
        (options.precision == "float16" or in_float16,
         "the scaled loss of float16 was never tried in parts", "choose the precision `bfloat16` or `float32`"),
    ]
    found = [(why, way) for wrong, why, way in reasons if wrong]
    if found:
        why, way = ("; ".join(parts) for parts in zip(*found, strict=True))
        raise UserError(f"This run cannot be sharded: {why}.", f"{way[0].upper()}{way[1:]}.")
