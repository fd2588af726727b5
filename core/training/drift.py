"""The guard of `full`: how much worse the base languages are predicted than before the first step."""

from __future__ import annotations

import math
from collections.abc import Mapping

from config.errors import UserError
from config.schema import TrainOptions

_HINT = ("Speak with an earlier checkpoint (run:ID@STEP), or train anew with lower rates, more replay, distillation, "
         "or fewer changes to the base (full_trainable, or the scope `gated`, which cannot drift).")


def told(before: Mapping[str, float], now: Mapping[str, float], options: TrainOptions, step: int) -> str:
    """A warning where the loss of a base language rose by more than the bound; `UserError` where that is to stop it.

    Losses in nats a code by language, at step 0 and now. Empty when all is within the bound.
    """
    rises = {language: now[language] - before[language] for language in before if language in now}
    past = {language: rise if rise > options.drift_bound else math.inf for language, rise in rises.items()
            if not rise <= options.drift_bound}  # no number is past every bound
    if not past:
        return ""
    worst = ", ".join(f"{language} {before[language]:.3f} to {now[language]:.3f} ({rises[language]:+.3f})"
                      for language in sorted(past, key=lambda language: (-past[language], language)))
    said = (f"At step {step} the base languages are predicted worse than before the training, by more than "
            f"{options.drift_bound:g} nats a code: {worst}.")
    if options.drift_action == "stop":
        raise UserError(said, _HINT)
    return f"{said} {_HINT}"
