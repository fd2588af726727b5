"""The state of a training run, and its one move: `Trainer.train_step`. It knows no files and no events.

All that decides the next step is in `state`: a trainer that restores it takes the same steps, on a
CPU to the bit, as one that never stopped. Every loss is a sum over the tokens of all micro-batches
of all ranks, divided by their number, and the input dropout of a sample follows from the sample's own
seed; so micro-batches and ranks change memory and speed and, but for rounding, not the result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import astuple, dataclass, replace

import torch
from torch import nn

from config import schema
from config.errors import UserError
from config.schema import TrainOptions
from core import compute
from core.model.adapters import RankAllocation
from core.model.loading import TTSModel
from core.model.precision import Precision
from core.model.prefix import base_tensors, hash_tensors
from core.training import checkpoint, dataloader, fsdp, memory_plan, parameter_groups
from core.training.checkpoint import TrainerState
from core.training.dataloader import MicroBatch, TrainBatch, TrainingData, TrainLoader, Utterance
from core.training.distributed import ONE_PROCESS, Ranks
from core.training.fsdp import ShardedModel
from core.training.memory_plan import MicrobatchPlan
from core.training.parameter_groups import ParameterCounts, ParameterGroup
from core.training.weight_regularization import ExponentialMovingAverage, WeightRegularizer, swap_weights
from data.batches import TargetPromptPair
from models.base import LossOptions

_BETAS = (0.9, 0.98)
_INITIAL_LR = "initial_lr"  # key in a parameter group, as of torch's learning-rate schedulers
_ALLOCATION, _BASE_LOSS, _SCALER = "allocation/", "base_loss/", "scaler"  # in the tensors of a checkpoint
_SEEDS_RNG, _TORCH_RNG, _CUDA_RNG = "generator/input_dropout", "generator/torch", "generator/cuda"
STEP_PLAN = "step_plan"
_WARMUP_PART, _REPLANS = 5, 20  # of the steps that fit into a limit: the longest warmup, how often they are counted
_NEAR_ENOUGH = 0.02  # a smaller change of their number does not count
_MAX_SKIPPED = 3  # batches in a row whose losses or gradients are not finite


@dataclass(frozen=True)
class StepLosses:
    """Means in nats a token, the norm of the gradients before clipping, and the tokens seen."""

    speech: float
    text: float
    gradient_norm: float
    tokens: int

    @property
    def finite(self) -> bool:
        return math.isfinite(self.speech + self.text + self.gradient_norm)

    def __str__(self) -> str:
        return f"speech loss {self.speech}, text loss {self.text}, gradient norm {self.gradient_norm}"


@dataclass(frozen=True)
class StepPlan:
    """How many steps are taken, and how the learning-rate schedule is spread over them.

    `share` of the schedule is over at step `begin`; the rest is spread evenly up to the last step.
    """

    steps: int
    warmup: int
    begin: int
    share: float = 0.0

    @classmethod
    def of(cls, options: TrainOptions) -> StepPlan:
        return cls(options.steps, options.warmup, options.warmup)

    def share_at(self, step: int) -> float:
        return min(1.0, self.share + (1.0 - self.share) * (step - self.begin) / max(1, self.steps - self.begin))

    def ending_at(self, steps: int, step: int) -> StepPlan:
        """This plan with another last step, from `step` on and without a jump of the learning rate."""
        if step == 0:
            warmup = min(self.warmup, max(1, steps // _WARMUP_PART)) if self.warmup else 0
            return StepPlan(steps, warmup, warmup)
        begin = max(step, self.warmup)
        return StepPlan(steps, self.warmup, begin, self.share_at(begin))


class Diverged(UserError):
    """Several batches in a row were not finite; the weights are those before the first of them."""


class Trainer:
    """Trains `tts` on `data`, and in `full` also on `replayed` clips of the base languages; `warn` takes warnings.

    The frozen tensors of `tts` are cast to the precision, so it must not be exported or certified afterwards.
    """

    def __init__(self, options: TrainOptions, tts: TTSModel, data: TrainingData, replayed: tuple[Utterance, ...],
                 precision: Precision, warn: Callable[[str], None] = lambda message: None,
                 group: Ranks = ONE_PROCESS) -> None:
        self.options, self.tts, self.data, self.precision, self.group = options, tts, data, precision, group
        self.step, self.seconds, self.step_seconds, self.learning_rate = 0, 0.0, 0.0, 0.0
        self.step_plan = StepPlan.of(options)
        self.most_steps = options.steps
        if options.max_epochs:
            if options.adapter == "adalora":
                raise UserError(f"AdaLoRA distributes its ranks over the {options.steps} steps asked for, which "
                                f"{options.max_epochs:g} epochs may shorten.", "Give the number of steps alone.")
            clips = options.batch_size * options.gradient_accumulation * group.size
            self.most_steps = min(options.steps, max(1, math.ceil(options.max_epochs * len(data.train) / clips)))
            self.step_plan = self.step_plan.ending_at(self.most_steps, 0)
        self.skipped = 0  # batches that were not finite
        self.drift_clips: tuple[Utterance, ...] = ()  # clips of base languages that measure the drift
        self.base_losses: dict[str, float] = {}  # of base languages before the first step, in nats a code
        self._warn = warn
        if tts.adapters:
            tts.adapters.switch(True)  # parameters are open to training only while the adapters act
        # With FSDP, `train_model` is the sharded copy that takes the steps, with the parameters `trainables`. In rank 0
        # `tts`, with `full_trainables`, is a full copy for evaluation and saving. Without FSDP both are one model.
        self.train_model = tts
        self.trainables = self.full_trainables = parameter_groups.unfreeze_trainables(tts, options)
        self.fsdp_model: ShardedModel | None = None
        precision.cast(tts.lm.module, self.trainables.named)
        self._initial_frozen_hash = hash_tensors(self._frozen_tensors())
        if options.sharding == "full":
            self._shard()
        self.groups = parameter_groups.make_parameter_groups(self.trainables, options, tts.lm)
        self._names = [name for param_group in self.groups for name in param_group.parameters]
        self.optimizer = make_optimizer(self.groups, options, tts.device)
        self.scaler = precision.scaler()
        self.ema = ExponentialMovingAverage(self.trainables.named, options.ema) if options.ema else None
        regularized = self.trainables.base and (options.distillation or options.l2_sp or options.ewc)
        self.regularizer = WeightRegularizer(self.trainables.base, tts.base_values) if regularized else None
        self._seeds_rng = torch.Generator().manual_seed(options.seed)
        torch.manual_seed(options.seed + group.rank)  # each rank drops out other activations
        self.loader = TrainLoader(options, data, replayed, tts.lm, group.size)
        if options.ewc and self.regularizer:
            self.regularizer.estimate_importance(tts.lm, precision, replayed[:options.fisher_clips])
        self.set_microbatch_plan(memory_plan.first_plan(options, sharded=self.sharded))

    def _shard(self) -> None:
        """Shard the trainable parameters over the ranks; rank 0 keeps a full copy in `tts`."""
        schema.check_sharding(self.options, self.group.size, in_float16=self.precision.dtype is torch.float16)
        self.train_model, self.fsdp_model = fsdp.shard_model(
            self.tts, self.group.mesh(self.tts.device), guided=self.options.guided_attention_weight > 0,
            keep_whole=self.group.rank == 0)
        self.trainables = parameter_groups.unfreeze_trainables(self.train_model, self.options)
        if self.group.rank:
            self.full_trainables = self.trainables  # so that the full tensors are freed

    @property
    def sharded(self) -> bool:
        """Whether the trainable parameters are sharded (FSDP); then all ranks take each forward and backward pass."""
        return self.fsdp_model is not None

    def set_microbatch_plan(self, microbatch_plan: MicrobatchPlan) -> None:
        """Compute the next steps by this plan."""
        self.microbatch_plan = microbatch_plan
        self.train_model.lm.set_activation_checkpointing(microbatch_plan.activation_checkpointing)

    def train_step(self) -> StepLosses:
        """Take one optimizer step, and raise `Diverged` where several batches in a row are not finite."""
        start, options, group = time.monotonic(), self.options, self.group
        if self.step and self.step % max(1, self.step_plan.steps // _REPLANS) == 0:
            self.fit_steps(self.seconds / self.step)
        self.train_model.lm.module.train()
        for param_group in self.optimizer.param_groups:
            param_group["lr"] = param_group[_INITIAL_LR] * learning_rate_factor(self.step, options, self.step_plan)
        self.learning_rate = float(self.optimizer.param_groups[0]["lr"])
        parameters = list(self.trainables.named.values())
        skipped_in_a_row = 0
        loss: torch.Tensor | None
        losses_of_pass: torch.Tensor | None

        with self._language_adapters():
            batches, rng_state = self._next_batches(), self._rng_state()
            scaler_state_before_retries: dict[str, torch.Tensor] = {}
            # Repeat until the gradients are finite: out of memory -> smaller micro-batches; float16 overflow ->
            # smaller loss scale; else skip the batch.
            while True:
                # The micro-batches of this rank, and the tokens of all ranks, by which the losses are divided.
                micro_batches = dataloader.split_microbatches(
                    batches, self.microbatch_plan.size(options.batch_size), group.rank, group.size,
                    same_count=self.sharded)
                speech_tokens = sum(sample.speech_targets for batch in batches for sample in batch.samples)
                text_tokens = sum(sample.text_targets for batch in batches for sample in batch.samples)

                # Forward and backward; the losses stay on the device until the end of the step.
                self.optimizer.zero_grad(set_to_none=True)
                loss_sums, out_of_memory = torch.zeros(2, device=self.tts.device), False
                try:
                    with group.reporting_dead_ranks() if self.sharded else nullcontext():
                        for index, micro_batch in enumerate(micro_batches):
                            loss, losses_of_pass = self._loss(micro_batch, speech_tokens, text_tokens,
                                                              adalora_penalty=index == 0)
                            self.scaler.scale(loss).backward()
                            loss_sums += losses_of_pass
                except torch.OutOfMemoryError:
                    out_of_memory = True
                loss = losses_of_pass = None  # they would hold the activations of the pass that failed
                # FSDP ranks cannot vote: the others wait within the collectives of the pass that this rank gave up.
                # There `_use_smaller_micro_batches` raises, which ends the run on all ranks.
                if not self.sharded:
                    out_of_memory = group.any_rank(out_of_memory)
                if out_of_memory:
                    self._use_smaller_micro_batches()
                    self._restore_rng(rng_state)
                    continue

                # Gradients: summed over the ranks, regularized, clipped. Here the device is waited for, once a step.
                if not self.sharded:  # sharded gradients are reduced within the backward pass
                    group.all_reduce_gradients(parameters)
                loss_sums = group.all_reduce_sum(loss_sums)
                self.scaler.unscale_(self.optimizer)
                if self.regularizer is not None:
                    self.regularizer.add_gradients(options.l2_sp, options.ewc)
                norm = fsdp.full_value(nn.utils.clip_grad_norm_(parameters, options.max_grad_norm))
                speech, text, gradient_norm = torch.cat([loss_sums, norm[None].to(loss_sums)]).tolist()
                losses = StepLosses(speech, text, gradient_norm, speech_tokens + text_tokens)
                if losses.finite:
                    break

                # Not finite: the same samples with a smaller loss scale, or else the next batch.
                self.optimizer.zero_grad(set_to_none=True)
                scaler_state_before_retries = scaler_state_before_retries or self._scaler_state()
                if self._lower_loss_scale(losses):
                    self._restore_rng(rng_state)
                    continue
                self._restore_scaler(scaler_state_before_retries)  # no scale was small enough
                skipped_in_a_row += 1
                self.skipped += 1
                clips = ", ".join(name for batch in batches for name in batch.clips)
                if skipped_in_a_row == _MAX_SKIPPED:
                    raise Diverged(
                        f"Training diverged at step {self.step + 1}: {losses}, {_MAX_SKIPPED} batches in a row. The "
                        f"clips of the step: {clips}.",
                        "Train again with lower learning rates or in float32; if it diverges at the same clips, listen "
                        "to them.")
                self._warn(f"A batch of step {self.step + 1} was skipped: {losses}. Its clips: {clips}. "
                           f"Skipped so far: {self.skipped}.")
                batches, rng_state, scaler_state_before_retries = self._next_batches(), self._rng_state(), {}

            self.scaler.step(self.optimizer)
            for parameter in parameters:  # a fused optimizer leaves the versions, by which DoRA keeps its norms
                torch.autograd.graph.increment_version(parameter)
            self.scaler.update()
            if self._allocation is not None:
                self._allocation.follow(self.step + 1)
        if self.ema is not None:
            self.ema.update()
        self.train_model.lm.module.eval()
        self.step += 1
        self.step_seconds = time.monotonic() - start
        self.seconds += self.step_seconds
        return losses

    def fit_steps(self, seconds_a_step: float) -> None:
        """Plan as many steps as fit into the time limit, at most those asked for; the schedule ends with them.

        All ranks call it; rank 0's time counts. AdaLoRA's ranks follow a schedule of the steps asked for: there the
        limit ends the run where it stands.
        """
        limit_s = 60 * self.options.max_minutes
        if not limit_s or self.options.adapter == "adalora":
            return
        fitting = int(max(0.0, limit_s - self.seconds) / seconds_a_step) if seconds_a_step > 0 else self.most_steps
        steps = self.group.broadcast(min(self.most_steps, self.step + max(1, fitting)))
        if self.step == 0 or abs(steps - self.step_plan.steps) > _NEAR_ENOUGH * steps:
            self.step_plan = self.step_plan.ending_at(steps, self.step)

    def _loss(self, batch: MicroBatch, speech_tokens: int, text_tokens: int, *, adalora_penalty: bool
              ) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of a micro-batch, and its speech and text losses (2,), detached; all divided by the step's tokens.

        `adalora_penalty`: with AdaLoRA's orthogonality penalty, which is added once a step.
        """
        options = self.options
        lm = self.fsdp_model or self.train_model.lm
        loss_options = LossOptions(options.text_dropout, options.code_dropout,
                                   attention=options.guided_attention_weight > 0)
        keep_casts = not self.sharded  # a sharded model frees its layers, and casts of them with them
        teacher = {}
        if batch.replayed and options.distillation > 0:
            # An autocast of its own, because casts of weights are kept within one.
            with self.initial_weights(), self.precision.autocast(keep_casts=keep_casts):
                teacher["teacher"] = lm.predictions(batch.samples, replace(loss_options, attention=False), batch.seeds)
        with self.precision.autocast(keep_casts=keep_casts):
            losses = lm.losses(batch.samples, loss_options, batch.seeds, **teacher)
        assert losses.speech_count == sum(sample.speech_targets for sample in batch.samples)
        speech, text = losses.speech_sum / speech_tokens, losses.text_sum / text_tokens
        loss = speech + options.text_loss_weight * text
        if losses.attention_sum is not None:
            loss = loss + options.guided_attention_weight * losses.attention_sum / speech_tokens
        if losses.speech_divergence is not None and losses.text_divergence is not None:
            divergence = (losses.speech_divergence / speech_tokens
                          + options.text_loss_weight * losses.text_divergence / text_tokens)
            loss = loss + options.distillation * divergence
        if adalora_penalty and self._allocation is not None:
            loss = loss + self._allocation.penalty() / self.group.size
        if self.sharded:  # whose gradients are averaged over the ranks, not summed
            loss = loss * (self.group.size * batch.weight)
        return loss, torch.stack([speech, text]).detach() * batch.weight

    def _next_batches(self) -> list[TrainBatch]:
        """The batches of a step, with a seed for each sample."""
        batches = [batch for _ in range(self.options.gradient_accumulation) for batch in self.loader.next_batches()]
        count = sum(len(batch.samples) for batch in batches)
        seeds = iter(torch.randint(2**62, (count,), generator=self._seeds_rng).tolist())
        return [replace(batch, seeds=[next(seeds) for _ in batch.samples]) for batch in batches]

    def _use_smaller_micro_batches(self) -> None:
        """After a step ran out of memory: take the smaller memory plan; `UserError` where there is none."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.tts.device.type == "cuda":
            torch.cuda.empty_cache()
        smaller, message = memory_plan.plan_after_out_of_memory(self.microbatch_plan, self.options, self.step + 1,
                                                                sharded=self.sharded)
        self.set_microbatch_plan(smaller)
        self._warn(message)

    def _lower_loss_scale(self, losses: StepLosses) -> bool:
        """After gradients that were too large for float16: scale the loss less. False where that is not the reason."""
        if not self.scaler.is_enabled():
            return False
        if not math.isfinite(losses.speech + losses.text):
            self.scaler.update(self.scaler.get_scale())  # unchanged; the gradients of the next batch can be unscaled
            return False
        before = self.scaler.get_scale()
        self.scaler.update()
        return before > 1.0 and self.scaler.get_scale() < before  # it is unchanged where the norm alone is not finite

    def profile_forward_backward(self, pairs: Sequence[TargetPromptPair]) -> None:
        """Take one forward and backward pass over these clips, and wait for the device, so that it can be measured.

        Gradients and random generators are left as they were. Where the model is sharded, all ranks call it.
        """
        samples = self.loader.trial_samples(pairs)
        speech_tokens = sum(sample.speech_targets for sample in samples)
        text_tokens = sum(sample.text_targets for sample in samples)
        rng_state = self._rng_state()
        self.train_model.lm.module.train()
        try:
            with self._language_adapters(), self.group.reporting_dead_ranks():
                loss, detached = self._loss(MicroBatch(samples, range(len(samples))), speech_tokens, text_tokens,
                                            adalora_penalty=True)
                loss.backward()
                detached.tolist()  # waits for the device
        finally:
            self.train_model.lm.module.eval()
            self.optimizer.zero_grad(set_to_none=True)
            self._restore_rng(rng_state)

    @contextmanager
    def _language_adapters(self) -> Iterator[None]:
        """Context of training passes: the adapters of the new languages are on, and leave casting to autocast."""
        adapters = self.tts.adapters
        cast = adapters.uncast() if adapters and self.precision.dtype is not torch.float32 else nullcontext()
        with self.tts.adapters_for(self.data.languages[0]), cast:
            yield

    def initial_weights(self) -> AbstractContextManager[object]:
        """Context in which the model is the base that the run began with; for passes without gradients."""
        stack = ExitStack()
        if self.regularizer is not None:
            stack.enter_context(self.regularizer.initial_weights())
        if self.tts.adapters is not None:
            stack.enter_context(self.tts.adapters.enabled(False))
        return stack

    @contextmanager
    def base_weights(self) -> Iterator[TTSModel]:
        """Context in which `tts` has the weights of the base model, and its adapters are off; that model.

        They differ from `initial_weights` in a run that starts from the weights of another one (`init_from`).
        """
        named = self.full_trainables.base
        values = {name: value.to(named[name]) for name, value in self.tts.base_values.items()}
        adapters = self.tts.adapters
        with swap_weights({name: named[name] for name in values}, values), \
                adapters.enabled(False) if adapters else nullcontext():
            yield replace(self.tts, adapters=None)

    def ema_weights(self) -> AbstractContextManager[None]:
        """Context in which `tts` has the weights that are evaluated and saved: the EMA, where there is one.

        All ranks enter it: with FSDP they gather these weights into the `tts` of rank 0, which keeps them.
        """
        if self.sharded:
            fsdp.copy_full_tensors(self.ema.values if self.ema else self.trainables.named,
                                   self.full_trainables.named if self.group.rank == 0 else None)
            return nullcontext()
        return self.ema.average_parameters() if self.ema else nullcontext()

    @property
    def counts(self) -> ParameterCounts:
        """The numbers of trainable and frozen parameters."""
        return parameter_groups.count_parameters(self.tts, self.trainables)

    def compute_frozen_hash(self) -> str:
        """The base's hash while every frozen tensor is bit for bit what it was after casting, else another one."""
        frozen_hash = hash_tensors(self._frozen_tensors())
        return self.tts.frozen_hash if frozen_hash == self._initial_frozen_hash else frozen_hash

    def _frozen_tensors(self) -> dict[str, torch.Tensor]:
        """The base's tensors that this run does not train."""
        return {name: value for name, value in base_tensors(self.tts.lm.module).items()
                if name not in self.trainables.base}

    @property
    def optimizer_bytes(self) -> int:
        """Memory that the optimizer will take in this process and has not yet."""
        return 0 if self.optimizer.state else 2 * fsdp.local_bytes(self.trainables.named.values())

    @property
    def _allocation(self) -> RankAllocation | None:
        return self.tts.adapters.allocation if self.tts.adapters else None

    def state_dict(self) -> TrainerState:
        """Everything the next step depends on, beside the rows and adapters themselves; whole in rank 0 alone."""
        rng_state = self._rng_state()
        tensors = checkpoint.optimizer_tensors(self.optimizer, self._names) | rng_state | self.group.gather(rng_state)
        tensors["skipped"] = torch.tensor(self.skipped)
        plan_of_steps = (*astuple(self.step_plan), self.options.max_minutes)
        tensors[STEP_PLAN] = torch.tensor(plan_of_steps, dtype=torch.float64)
        tensors |= {_BASE_LOSS + language: torch.tensor(loss, dtype=torch.float64)
                    for language, loss in self.base_losses.items()}
        if self.ema:
            tensors |= self.ema.state_dict()
        tensors |= self._scaler_state()
        if allocation := self._allocation:
            tensors |= {_ALLOCATION + name: value for name, value in allocation.state().items()}
        tensors = fsdp.gather_tensors(tensors, keep=self.group.rank == 0)
        plan = MicrobatchPlan() if self.sharded else self.microbatch_plan  # a run may resume without sharding
        return TrainerState(self.step, self.seconds, *self.loader.positions, self.data.fingerprint, tensors, plan,
                            self.group.size, self.precision.name,
                            compute.numeric_environment(self.tts.device), self.data.content_hash)

    def load_state_dict(self, state: TrainerState) -> None:
        """Continue from where `state` was taken; rows and adapters are those of its checkpoint already."""
        self.step, self.seconds = state.step, state.seconds
        checkpoint.restore_optimizer(self.optimizer, self._names, state.tensors)
        self.skipped = int(state.tensors["skipped"])
        if STEP_PLAN in state.tensors:
            steps, warmup, begin, share, limit = state.tensors[STEP_PLAN].tolist()
            self.step_plan = StepPlan(int(steps), int(warmup), int(begin), share)
            if limit != self.options.max_minutes and self.step:  # it was changed since
                self.step_plan = self.step_plan.ending_at(self.most_steps, self.step)
                self.fit_steps(self.seconds / self.step)
        self.base_losses = {name.removeprefix(_BASE_LOSS): value.item() for name, value in state.tensors.items()
                            if name.startswith(_BASE_LOSS)}
        if self.ema:
            self.ema.load_state_dict(state.tensors)
        self.loader.move_to(state.order, state.replay)
        self._restore_rng({**state.tensors, **self.group.for_rank(state.tensors)})
        self._restore_scaler(state.tensors)
        if allocation := self._allocation:
            allocation.restore({name.removeprefix(_ALLOCATION): value for name, value in state.tensors.items()
                                if name.startswith(_ALLOCATION)})
        self.set_microbatch_plan(memory_plan.first_plan(self.options, sharded=self.sharded,
                                                        before=state.microbatch_plan))

    def _rng_state(self) -> dict[str, torch.Tensor]:
        """The generators that a step draws from: one for the samples' seeds, and torch's for dropout."""
        states = {_SEEDS_RNG: self._seeds_rng.get_state(), _TORCH_RNG: torch.get_rng_state()}
        if self.tts.device.type == "cuda":
            states[_CUDA_RNG] = torch.cuda.get_rng_state(self.tts.device)
        return states

    def _restore_rng(self, states: Mapping[str, torch.Tensor]) -> None:
        self._seeds_rng.set_state(states[_SEEDS_RNG])
        torch.set_rng_state(states[_TORCH_RNG])
        if self.tts.device.type == "cuda" and _CUDA_RNG in states:
            torch.cuda.set_rng_state(states[_CUDA_RNG], self.tts.device)

    def _scaler_state(self) -> dict[str, torch.Tensor]:
        """The scale of the loss, where it has one."""
        if not self.scaler.is_enabled():
            return {}
        values = self.scaler.state_dict()
        return {_SCALER: torch.tensor([values["scale"], values["_growth_tracker"]], dtype=torch.float64)}

    def _restore_scaler(self, state: Mapping[str, torch.Tensor]) -> None:
        if self.scaler.is_enabled() and _SCALER in state:
            scale, tracker = state[_SCALER].tolist()
            self.scaler.load_state_dict({**self.scaler.state_dict(), "scale": scale, "_growth_tracker": int(tracker)})


def make_optimizer(groups: Sequence[ParameterGroup], options: TrainOptions,
                   device: torch.device) -> torch.optim.Optimizer:
    """AdamW over the groups, each with its own learning rate and weight decay; fused on CUDA, where that is faster.

    bitsandbytes' one has moments in 8 bits (Dettmers et al. 2022, arXiv:2110.02861).
    """
    param_groups = [{"params": list(group.parameters.values()), "lr": group.lr, _INITIAL_LR: group.lr,
                     "weight_decay": group.weight_decay} for group in groups]
    if options.optimizer == "adamw8bit":
        try:
            from bitsandbytes.optim import AdamW8bit  # an optional package
        except ImportError as error:
            raise UserError(f"The optimizer adamw8bit needs the package bitsandbytes: {error}.",
                            "pip install bitsandbytes, or choose the optimizer `adamw`.") from error
        eight_bit: torch.optim.Optimizer = AdamW8bit(param_groups, betas=_BETAS)
        return eight_bit
    return torch.optim.AdamW(param_groups, betas=_BETAS, fused=True if device.type == "cuda" else None)


def learning_rate_factor(step: int, options: TrainOptions, plan: StepPlan | None = None) -> float:
    """Factor of the peak learning rate at `step` (from 0): linear warmup, then the schedule down to the minimum.

    It depends on the step and the plan alone, which a checkpoint holds, so that a resumed run is the same run.
    """
    plan = plan or StepPlan.of(options)
    if step < plan.warmup:
        return (step + 1) / plan.warmup
    if options.schedule == "constant":
        return 1.0
    share = plan.share_at(step)
    decay = 1 - share if options.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * share))
    return options.min_lr_ratio + (1 - options.min_lr_ratio) * decay
