"""How much of a model a run trains, in rows and parameters."""

from __future__ import annotations

from dataclasses import dataclass

from core.model.loading import VoiceModel
from core.training.scopes import Trainables


@dataclass(frozen=True)
class Counts:
    """What trains and what does not; sizes are those of the tensors."""

    new_rows: int
    old_rows: int
    row_parameters: int
    adapter_parameters: int
    base_parameters: int  # that stay as they are
    changed_parameters: int = 0  # of the base, in `full`


def counts(voice: VoiceModel, trained: Trainables) -> Counts:
    """The plan in numbers."""
    module, tables = voice.model.module, voice.model.text_tables
    rows, adapters, base = (sum(value.numel() for value in part.values())
                            for part in (trained.rows, trained.adapters, trained.base))
    everything = sum(value.numel() for value in module.state_dict().values())
    return Counts(len(next(iter(trained.rows.values()))), len(module.get_buffer(f"{tables[0]}.weight")), rows, adapters,
                  everything - rows - adapters - base, base)
