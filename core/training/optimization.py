"""One optimizer step: what is trained, at which rate, and the two next-token losses it follows.

The optimizer holds what `core.training.scopes` opens to training and nothing else. Every loss is a sum over
the tokens of all micro-batches divided by their number, and what is hidden of a sample hangs
on its own seed, so that the way a step is cut into micro-batches changes memory and not the
result. The device is waited for once a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from config.errors import UserError
from config.schema import TrainOptions
from core.model.loading import VoiceModel
from core.model.precision import Precision
from core.training import sharding
from core.training.anchors import Anchors
from core.training.company import Company
from core.training.scopes import Group, Trainables
from core.training.sharding import Passes
from models.base import Losses, LossOptions, Predictions, Sample

_BETAS = (0.9, 0.98)
_PEAK = "peak"  # of the rate of a parameter group
_SCALER = "scaler"


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
    anchors: Anchors | None = None
    company: Company | None = None  # the processes that share each step
    passes: Passes | None = None  # over a model of which each of them has a part

    def losses(self, *given: Any, **named: Any) -> Losses:
        """The model's losses of a pass."""
        return (self.passes or self.company or self.voice.model).losses(*given, **named)

    def teaching(self) -> ExitStack:
        """Context in which the model is the base that the run began with; for passes without gradients."""
        stack = ExitStack()
        if self.anchors is not None:
            stack.enter_context(self.anchors.in_place())
        if self.voice.adapters is not None:
            stack.enter_context(self.voice.adapters.switched(False))
        return stack


def optimizer(made: Sequence[Group], options: TrainOptions, device: torch.device) -> torch.optim.Optimizer:
    """AdamW over the groups, each with its own rate and decay; fused on CUDA, where that is faster."""
    groups = [{"params": list(group.parameters.values()), "lr": group.rate, _PEAK: group.rate,
               "weight_decay": group.decay} for group in made]
    if options.optimizer == "adamw8bit":
        return _eight_bit()(groups, betas=_BETAS)
    return torch.optim.AdamW(groups, betas=_BETAS, fused=True if device.type == "cuda" else None)


def _eight_bit() -> Callable[..., torch.optim.Optimizer]:
    """bitsandbytes' AdamW (Dettmers et al. 2022, arXiv:2110.02861); `UserError` where it cannot be had."""
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        raise UserError(f"The optimizer adamw8bit needs the package bitsandbytes: {error}.",
                        "pip install bitsandbytes, or choose the optimizer `adamw`.") from error
    made: Callable[..., torch.optim.Optimizer] = AdamW8bit
    return made


def rate_factor(step: int, options: TrainOptions) -> float:
    """Share of the peak rate at `step` (from 0): linear warmup, then the schedule down to the floor."""
    if step < options.warmup:
        return (step + 1) / options.warmup
    if options.schedule == "constant":
        return 1.0
    share = min(1.0, (step - options.warmup) / max(1, options.steps - options.warmup))
    left = 1 - share if options.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * share))
    return options.min_lr_ratio + (1 - options.min_lr_ratio) * left


def set_rate(optimizer: torch.optim.Optimizer, options: TrainOptions, step: int) -> float:
    """Set the rates for `step`; that of the rows."""
    for group in optimizer.param_groups:
        group["lr"] = group[_PEAK] * rate_factor(step, options)
    return float(optimizer.param_groups[0]["lr"])


def gradients(work: Work, micro_batches: Sequence[Sequence[Sample]], seeds: Sequence[int],
              rehearsed: Sequence[bool] = ()) -> StepLosses:
    """Leave the clipped gradients of the micro-batches on what is trained; `seeds` are one a sample, in order.

    `rehearsed` says which of the micro-batches are of base languages, for distillation; without it none is.
    A loss or gradient that is not a number leaves none and raises `NotFinite`. Where one of several processes runs out
    of memory, all raise `OutOfMemoryError`.
    """
    options, company = work.options, work.company
    speech_targets = sum(sample.speech_targets for batch in micro_batches for sample in batch)
    text_targets = sum(sample.text_targets for batch in micro_batches for sample in batch)
    if company:
        speech_targets, text_targets = company.total(torch.tensor([speech_targets, text_targets])).tolist()
    work.optimizer.zero_grad(set_to_none=True)
    targets = speech_targets, text_targets
    told = _together(work, lambda: _backward(work, micro_batches, seeds, rehearsed, targets))
    work.scaler.unscale_(work.optimizer)
    if work.anchors is not None:
        work.anchors.pull(options.l2_sp, options.ewc)
    norm = sharding.total(nn.utils.clip_grad_norm_(list(work.trained.named.values()), options.max_grad_norm))
    seen_speech, seen_text, seen_norm = torch.cat([told, norm[None].to(told)]).tolist()
    found = StepLosses(seen_speech, seen_text, seen_norm, speech_targets + text_targets)
    if not math.isfinite(found.speech + found.text + found.gradient_norm):
        work.optimizer.zero_grad(set_to_none=True)
        raise NotFinite(found)
    return found


def _together(work: Work, backward: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What `backward` gives, summed over the processes, whose gradients become the same."""
    if work.company is None:
        return backward()
    if work.passes is not None:  # which share gradients as they go
        with work.company.watched():
            own = backward()
        return work.company.total(own)
    told = None
    with suppress(torch.OutOfMemoryError):  # what the failed pass held is freed with its frames
        told = backward()
    if not work.company.all_well(told is not None) or told is None:
        raise torch.OutOfMemoryError("One of the processes that share this step ran out of memory.")
    work.company.share_gradients()
    return work.company.total(told)


def _backward(work: Work, micro_batches: Sequence[Sequence[Sample]], seeds: Sequence[int], rehearsed: Sequence[bool],
              targets: tuple[int, int]) -> torch.Tensor:
    """Leave the gradients of the micro-batches; the losses (2,) of speech and text, as shares of all `targets`."""
    options, waiting, (speech_targets, text_targets) = work.options, list(seeds), targets
    hiding = LossOptions(options.text_dropout, options.code_dropout, attention=options.guided_attention_weight > 0)
    size = work.company.size if work.company else 1  # processes average their gradients, and the loss is a sum
    told = torch.zeros(2, device=work.voice.device)  # stays on the device until the end of the step
    adapters = work.voice.adapters
    for index, batch in enumerate(micro_batches):
        own, waiting = waiting[:len(batch)], waiting[len(batch):]
        worth = 1 if batch else 0
        if not batch:  # the others have clips for a pass that all must take: one over any clip, worth nothing
            batch, own = next(filter(None, micro_batches))[:1], [0]
        teacher = _teacher(work, batch, hiding, own) if index < len(rehearsed) and rehearsed[index] else {}
        with work.precision.autocast(keep_casts=work.passes is None):  # a divided model lets go of its layers
            losses = work.losses(batch, hiding, own, **teacher)
        assert losses.speech_count == sum(sample.speech_targets for sample in batch)
        speech, text = losses.speech_sum / speech_targets, losses.text_sum / text_targets
        total = speech + options.text_loss_weight * text
        if losses.attention_sum is not None:
            total = total + options.guided_attention_weight * losses.attention_sum / speech_targets
        if losses.speech_divergence is not None and losses.text_divergence is not None:
            text_share = options.text_loss_weight * losses.text_divergence / text_targets
            total = total + options.distillation * (losses.speech_divergence / speech_targets + text_share)
        if index == 0 and adapters is not None and adapters.allocation is not None:
            total = total + adapters.allocation.penalty() / size
        work.scaler.scale(total * (size * worth) if size > 1 else total).backward()
        told = told + torch.stack([speech, text]).detach() * worth
    return told


def _teacher(work: Work, batch: Sequence[Sample], hiding: LossOptions, seeds: Sequence[int]) -> dict[str, Predictions]:
    """What the unchanged base predicts, where it is asked for."""
    if work.options.distillation == 0:
        return {}
    model = work.passes or work.voice.model
    # An autocast of its own: casts of weights are kept within one.
    with work.teaching(), work.precision.autocast(keep_casts=work.passes is None):
        return {"teacher": model.predictions(batch, replace(hiding, attention=False), seeds)}


def apply(work: Work, step: int) -> None:
    """Move what is trained along the gradients that `gradients` left; it is the run's `step`, from 1."""
    work.scaler.step(work.optimizer)
    work.scaler.update()
    if work.voice.adapters is not None and work.voice.adapters.allocation is not None:
        work.voice.adapters.allocation.follow(step)


def scaler_state(scaler: GradScaler) -> dict[str, torch.Tensor]:
    """The scale of the loss, where it has one, for a checkpoint."""
    if not scaler.is_enabled():
        return {}
    values = scaler.state_dict()
    return {_SCALER: torch.tensor([values["scale"], values["_growth_tracker"]], dtype=torch.float64)}


def restore_scaler(scaler: GradScaler, state: Mapping[str, torch.Tensor]) -> None:
    """Put back what `scaler_state` gave."""
    if scaler.is_enabled() and _SCALER in state:
        scale, tracker = state[_SCALER].tolist()
        scaler.load_state_dict({**scaler.state_dict(), "scale": scale, "_growth_tracker": int(tracker)})


def lower_scale(work: Work, fault: NotFinite) -> bool:
    """After gradients that were too large for float16: scale the loss less. False where that cannot be the reason."""
    if not work.scaler.is_enabled():
        return False
    if not math.isfinite(fault.losses.speech + fault.losses.text):
        work.scaler.update(work.scaler.get_scale())  # it stays, and the gradients of the next batch can be unscaled
        return False
    before = work.scaler.get_scale()
    work.scaler.update()
    return before > 1.0 and work.scaler.get_scale() < before  # it stays where a norm alone is no number


class Diverged(UserError):
    """Several batches in a row could not be learnt from; what is trained is as it was before the first of them."""


class NotFinite(ArithmeticError):
    """A loss or gradient is infinite or no number."""

    def __init__(self, losses: StepLosses) -> None:
        super().__init__(f"speech loss {losses.speech}, text loss {losses.text}, gradient norm {losses.gradient_norm}")
        self.losses = losses

    def explained(self, step: int, clips: Iterable[str], times: int) -> UserError:
        """What the user reads once `times` batches in a row could not be learnt from: the step and the last clips."""
        return Diverged(
            f"Training broke at step {step}: {self}. So it was {times} times in a row. "
            f"The clips of the step: {', '.join(clips)}.",
            "Train again with lower learning rates or in float32; if it breaks at the same clips, listen to them.",
        )
