"""One optimizer step: what is trained, at which rate, and the two next-token losses it follows.

The optimizer holds the new rows and the adapters and nothing else. Every loss is a sum over
the tokens of all micro-batches divided by their number, and what is hidden of a sample hangs
on its own seed, so that the way a step is cut into micro-batches changes memory and not the
result. The device is waited for once a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from config.errors import UserError
from config.schema import TrainOptions
from core.loading import VoiceModel
from core.precision import Precision
from core.prefix import new_rows
from models.base import LossOptions, Sample

_FLOOR = 0.03  # share of the peak rate at the end of the cosine
_BETAS = (0.9, 0.98)


@dataclass(frozen=True)
class Trainables:
    """Every parameter that may change, by name."""

    rows: dict[str, nn.Parameter]
    adapters: dict[str, nn.Parameter]

    @property
    def named(self) -> dict[str, nn.Parameter]:
        """Rows, then adapters: the order of the optimizer's groups."""
        return {**self.rows, **self.adapters}


@dataclass(frozen=True)
class StepLosses:
    """Means in nats a token, the norm of the gradients before clipping, and the tokens seen."""

    speech: float
    text: float
    gradient_norm: float
    tokens: int


@dataclass(frozen=True)
class Work:
    """What a step needs beside its samples."""

    voice: VoiceModel
    trained: Trainables
    options: TrainOptions
    precision: Precision
    optimizer: torch.optim.Optimizer
    scaler: GradScaler


def trainables(voice: VoiceModel) -> Trainables:
    """The new rows and, in `gated` and `full`, the adapters; all else of the module stays frozen."""
    module = voice.model.module
    rows = {f"{name}.new": rows for name, rows in new_rows(module, voice.model.text_tables).items()}
    found = Trainables(rows, voice.adapters.parameters() if voice.adapters else {})
    for parameter in found.named.values():
        parameter.requires_grad_(True)
    open_names = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    assert open_names == set(found.named), open_names ^ set(found.named)
    return found


def optimizer(found: Trainables, options: TrainOptions) -> torch.optim.AdamW:
    """AdamW with a group for the rows, which are not decayed, and one for the adapters."""
    rows = {"params": list(found.rows.values()), "lr": options.row_rate, "weight_decay": 0.0}
    groups: list[dict[str, object]] = [rows]
    if found.adapters:
        groups.append({"params": list(found.adapters.values()), "lr": options.adapter_rate,
                       "weight_decay": options.weight_decay})
    return torch.optim.AdamW(groups, betas=_BETAS)


def rate_factor(step: int, options: TrainOptions) -> float:
    """Share of the peak rate at `step` (from 0): linear warmup, then a cosine to 3%."""
    if step < options.warmup:
        return (step + 1) / options.warmup
    share = (step - options.warmup) / max(1, options.steps - options.warmup)
    return _FLOOR + (1 - _FLOOR) * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))


def set_rate(optimizer: torch.optim.Optimizer, options: TrainOptions, step: int) -> float:
    """Set the rates for `step`; that of the rows."""
    for group, peak in zip(optimizer.param_groups, (options.row_rate, options.adapter_rate), strict=False):
        group["lr"] = peak * rate_factor(step, options)
    return float(optimizer.param_groups[0]["lr"])


def gradients(work: Work, micro_batches: Sequence[Sequence[Sample]], seeds: Sequence[int]) -> StepLosses:
    """Leave the clipped gradients of the micro-batches on what is trained; `seeds` are one a sample, in order.

    A loss or gradient that is not a number leaves none and raises `NotFinite`.
    """
    options, waiting = work.options, list(seeds)
    hiding = LossOptions(options.text_dropout, options.code_dropout, attention=options.attention_weight > 0)
    speech_targets = sum(sample.speech_targets for batch in micro_batches for sample in batch)
    text_targets = sum(sample.text_targets for batch in micro_batches for sample in batch)
    told = torch.zeros(2, device=work.voice.device)  # stays on the device until the end of the step
    adapters = work.voice.adapters
    work.optimizer.zero_grad(set_to_none=True)
    for index, batch in enumerate(micro_batches):
        own, waiting = waiting[:len(batch)], waiting[len(batch):]
        with work.precision.autocast():
            losses = work.voice.model.losses(batch, hiding, own)
        assert losses.speech_count == sum(sample.speech_targets for sample in batch)
        speech, text = losses.speech_sum / speech_targets, losses.text_sum / text_targets
        total = speech + options.text_loss_weight * text
        if losses.attention_sum is not None:
            total = total + options.attention_weight * losses.attention_sum / speech_targets
        if index == 0 and adapters is not None and adapters.allocation is not None:
            total = total + adapters.allocation.penalty()
        work.scaler.scale(total).backward()
        told = told + torch.stack([speech, text]).detach()
    work.scaler.unscale_(work.optimizer)
    norm = nn.utils.clip_grad_norm_(list(work.trained.named.values()), options.clip)
    seen_speech, seen_text, seen_norm = torch.cat([told, norm[None].to(told)]).tolist()
    found = StepLosses(seen_speech, seen_text, seen_norm, speech_targets + text_targets)
    if not math.isfinite(found.speech + found.text + found.gradient_norm):
        work.optimizer.zero_grad(set_to_none=True)
        raise NotFinite(found)
    return found


def apply(work: Work, step: int) -> None:
    """Move what is trained along the gradients that `gradients` left; it is the run's `step`, from 1."""
    work.scaler.step(work.optimizer)
    work.scaler.update()
    if work.voice.adapters is not None and work.voice.adapters.allocation is not None:
        work.voice.adapters.allocation.follow(step)


def lower_scale(work: Work, fault: NotFinite) -> bool:
    """After gradients that were too large for float16: scale the loss less. False where that cannot be the reason."""
    if not work.scaler.is_enabled() or not math.isfinite(fault.losses.speech + fault.losses.text):
        return False
    before = work.scaler.get_scale()
    work.scaler.update()
    return before > 1.0


class NotFinite(ArithmeticError):
    """A loss or gradient is infinite or no number."""

    def __init__(self, losses: StepLosses) -> None:
        super().__init__(f"speech loss {losses.speech}, text loss {losses.text}, gradient norm {losses.gradient_norm}")
        self.losses = losses

    def explained(self, step: int, clips: Iterable[str]) -> UserError:
        """What the user reads: the step and the clips."""
        return UserError(
            f"Training broke at step {step}: {self}. The clips of the step: {', '.join(clips)}.",
            "Train again with lower learning rates or in float32; if it breaks at the same clips, listen to them.",
        )
