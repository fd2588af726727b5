"""The state of a training run, and `Trainer.train_step`, which takes one optimizer step. No files and no events here.

`Trainer.state_dict` holds what the next step depends on beside the weights (`TrainerState`): a trainer that loads both
takes the same steps as one that never stopped, bit-identical on a CPU. Every loss is a sum over the tokens of all
micro-batches of all ranks, divided by the number of these tokens, and each sample has its own seed for its input
dropout. So the number of micro-batches and of ranks changes memory and speed, and the result only by rounding.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain, islice

import torch
from torch import nn

from config import schema
from config.errors import UserError
from config.schema import ANY_STEPS, TrainOptions
from core import compute
from core.model.adapters import RankAllocation
from core.model.loading import TTSModel
from core.model.precision import Precision
from core.model.prefix import base_tensors, hash_tensors
from core.training import checkpoint, dataloader, fsdp, memory_plan, parameter_groups
from core.training.checkpoint import TrainerState
from core.training.dataloader import MicroBatch, TrainBatch, TrainingData, TrainLoader, Utterance
from core.training.distributed import ONE_PROCESS, ProcessGroup
from core.training.fsdp import ShardedModel
from core.training.memory_plan import MicrobatchPlan
from core.training.parameter_groups import LearningRateSchedule, ParameterCounts, ParameterGroup
from core.training.weight_regularization import ExponentialMovingAverage, WeightRegularizer, swap_weights
from data.batches import TargetPromptPair
from models.base import LossOptions

_BETAS = (0.9, 0.98)
_INITIAL_LR = "initial_lr"  # key in a parameter group, as of torch's learning-rate schedulers
_ALLOCATION, _SCALER = "allocation/", "scaler"  # keys in `TrainerState.tensors`
_SEEDS_RNG, _TORCH_RNG, _CUDA_RNG = "generator/input_dropout", "generator/torch", "generator/cuda"
_TIME_LIMIT_CHECKS = 20  # how often a run counts again how many steps fit into its time limit
_MIN_STEPS_CHANGE = 0.02  # share of the steps: a smaller change keeps the schedule
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


class Diverged(UserError):
    """Several batches in a row were not finite; the weights are those before the first of them."""


class Trainer:
    """Trains `tts` on `data`, and in `full` also on `replayed` clips of the base languages; `warn` takes warnings.

    The frozen tensors of `tts` are cast to the precision, so it must not be exported or certified afterwards.
    """

    def __init__(self, options: TrainOptions, tts: TTSModel, data: TrainingData, replayed: tuple[Utterance, ...],
                 precision: Precision, warn: Callable[[str], None] = lambda message: None,
                 group: ProcessGroup = ONE_PROCESS) -> None:
        self.options, self.tts, self.data, self.precision, self.group = options, tts, data, precision, group
        self.step, self.seconds, self.step_seconds = 0, 0.0, 0.0
        if options.adapters.adapter == "adalora" and (options.length.max_epochs or options.length.steps == ANY_STEPS):
            length = options.length
            limit = f"{length.max_epochs:g} epochs" if length.max_epochs else f"{length.max_minutes:g} minutes"
            raise UserError(f"AdaLoRA reduces its ranks over {length.steps} steps, and {limit} may be fewer.",
                            "Give the length in steps, and set max_epochs to 0.")
        self.skipped_batches = 0  # batches whose losses or gradients were not finite
        self._warn = warn

        # Unfreeze what is trained, and cast the rest.
        if tts.adapters:
            tts.adapters.switch(True)  # their parameters require gradients only while they are enabled
        # With FSDP, `train_model` is the sharded copy that is trained, with the parameters `trainables`. In rank 0
        # `tts`, with `full_trainables`, is a full copy for evaluation and saving. Without FSDP both are one model.
        self.train_model = tts
        self.trainables = self.full_trainables = parameter_groups.unfreeze_trainables(tts, options)
        self.fsdp_model: ShardedModel | None = None
        precision.cast(tts.lm.module, self.trainables.named)
        # The hash proves at the end that no frozen tensor changed.
        self._initial_frozen_hash = hash_tensors(self._frozen_tensors())
        if options.hardware.sharding == "full":
            self._shard()

        # Optimizer, loader, loss scale, averages and regularizer of what is trained.
        self._replayed = replayed
        self.set_options(options)
        self.scaler = precision.scaler()
        decay = options.optimization.ema
        self.ema = ExponentialMovingAverage(self.trainables.named, decay) if decay else None
        regularized = self.trainables.base and (options.full.distillation or options.full.l2_sp or options.full.ewc)
        self.regularizer = WeightRegularizer(self.trainables.base, tts.base_values) if regularized else None

        # Samples have seeds from one generator on all ranks; torch's own generator differs between ranks.
        self._seeds_rng = torch.Generator().manual_seed(options.seed)
        torch.manual_seed(options.seed + group.rank)  # dropout differs between ranks
        if options.full.ewc and self.regularizer:
            self.regularizer.estimate_importance(tts.lm, precision, replayed[:options.full.fisher_clips])
        self.set_microbatch_plan(memory_plan.first_plan(options.hardware, sharded=self.sharded))

    def set_options(self, options: TrainOptions) -> None:
        """Use the batch size, learning rates and length of `options`; before the first step."""
        assert self.step == 0
        self.options, length, self.max_steps = options, options.length, options.length.steps
        self.schedule = LearningRateSchedule.from_options(options.optimization, length.steps)
        if length.max_epochs:
            clips_a_step = options.batches.clips_a_step(self.group.world_size)
            self.max_steps = min(length.steps, epoch_steps(length.max_epochs, len(self.data.train), clips_a_step))
            self.schedule = self.schedule.with_last_step(self.max_steps, 0)
        self.parameter_groups = parameter_groups.make_parameter_groups(
            self.trainables, options.optimization, options.full, self.tts.lm)
        self._names = list(chain.from_iterable(param_group.parameters for param_group in self.parameter_groups))
        self.optimizer = make_optimizer(self.parameter_groups, options.optimization.optimizer, self.tts.device)
        self.loader = TrainLoader(options, self.data, self._replayed, self.tts.lm, self.group.world_size)

    def _shard(self) -> None:
        """Shard the trainable parameters over the ranks; rank 0 keeps a full copy in `tts`."""
        schema.check_sharding(self.options, self.group.world_size, in_float16=self.precision.dtype is torch.float16)
        self.train_model, self.fsdp_model = fsdp.shard_model(
            self.tts, self.group.mesh(self.tts.device), guided=self.options.losses.guided_attention_weight > 0,
            keep_whole=self.group.rank == 0)
        self.trainables = parameter_groups.unfreeze_trainables(self.train_model, self.options)
        if self.group.rank:
            self.full_trainables = self.trainables  # so that the full tensors are freed

    @property
    def finished(self) -> bool:
        """Whether all steps are taken, or the time limit is reached."""
        return is_finished(self.step, self.seconds, self.schedule, self.options.length.minutes_of_steps)

    @property
    def sharded(self) -> bool:
        """Whether the trainable parameters are sharded (FSDP); then all ranks take each forward and backward pass."""
        return self.fsdp_model is not None

    def set_microbatch_plan(self, microbatch_plan: MicrobatchPlan) -> None:
        """Use this plan for the next steps."""
        self.microbatch_plan = microbatch_plan
        self.train_model.lm.set_activation_checkpointing(microbatch_plan.activation_checkpointing)

    def train_step(self) -> StepLosses:
        """Take one optimizer step. `Diverged` if the losses or gradients of several batches in a row are not finite."""
        start, options, group = time.monotonic(), self.options, self.group
        if self.step and self.step % max(1, self.schedule.steps // _TIME_LIMIT_CHECKS) == 0:
            self.fit_steps_to_time_limit(self.seconds / self.step)
        self.train_model.lm.module.train()
        for param_group in self.optimizer.param_groups:
            param_group["lr"] = param_group[_INITIAL_LR] * self.schedule.factor(self.step)
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
                    batches, self.microbatch_plan.micro_batch_size(options.batches.batch_size), group.rank,
                    group.world_size, same_count=self.sharded)
                samples = list(chain.from_iterable(batch.samples for batch in batches))
                speech_tokens = sum(sample.speech_targets for sample in samples)
                text_tokens = sum(sample.text_targets for sample in samples)

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
                loss = losses_of_pass = None  # else they keep the activations of the failed pass in memory
                # With FSDP no all-reduce is possible here: the other ranks still wait in the collectives of the pass
                # that this rank gave up. `_use_smaller_micro_batches` raises then, which ends the run on all ranks.
                if not self.sharded:
                    out_of_memory = group.any_rank(out_of_memory)
                if out_of_memory:
                    self._use_smaller_micro_batches()
                    self._restore_rng(rng_state)
                    continue

                # Gradients: summed over the ranks, regularized, clipped. The only host synchronisation of a step.
                if not self.sharded:  # FSDP reduces gradients in the backward pass
                    group.all_reduce_gradients(parameters)
                loss_sums = group.all_reduce_sum(loss_sums)
                self.scaler.unscale_(self.optimizer)
                if self.regularizer is not None:
                    self.regularizer.add_gradients(options.full.l2_sp, options.full.ewc)
                norm = fsdp.full_value(nn.utils.clip_grad_norm_(parameters, options.optimization.max_grad_norm))
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
                self._restore_scaler(scaler_state_before_retries)  # no smaller scale helped
                skipped_in_a_row += 1
                self.skipped_batches += 1
                clips = ", ".join(chain.from_iterable(batch.clip_ids for batch in batches))
                if skipped_in_a_row == _MAX_SKIPPED:
                    raise Diverged(
                        f"Training diverged at step {self.step + 1}: {losses}, {_MAX_SKIPPED} batches in a row. The "
                        f"clips of the step: {clips}.",
                        "Train again with lower learning rates or in float32; if it diverges at the same clips, listen "
                        "to them.")
                self._warn(f"A batch of step {self.step + 1} was skipped: {losses}. Its clips: {clips}. "
                           f"Skipped so far: {self.skipped_batches}.")
                batches, rng_state, scaler_state_before_retries = self._next_batches(), self._rng_state(), {}

            self.scaler.step(self.optimizer)
            for parameter in parameters:  # a fused optimizer does not, and DoRA caches norms by version
                torch.autograd.graph.increment_version(parameter)
            self.scaler.update()
            if self._allocation is not None:
                self._allocation.update(self.step + 1)
        if self.ema is not None:
            self.ema.update()
        self.train_model.lm.module.eval()
        self.step += 1
        self.step_seconds = time.monotonic() - start
        self.seconds += self.step_seconds
        return losses

    def fit_steps_to_time_limit(self, seconds_a_step: float) -> None:
        """Take as many steps as fit into the time limit, at most `max_steps`; the schedule ends at the last of them.

        All ranks call it; the clock of rank 0 decides. AdaLoRA reduces its ranks over the number of steps in the
        options, so there the schedule stays, and the time limit ends the run before the end of the schedule.
        """
        limit_s = 60 * self.options.length.minutes_of_steps
        if not limit_s or self.options.adapters.adapter == "adalora":
            return
        fitting = int(max(0.0, limit_s - self.seconds) / seconds_a_step) if seconds_a_step > 0 else self.max_steps
        steps = self.group.broadcast(min(self.max_steps, self.step + max(1, fitting)))
        if self.step == 0 or abs(steps - self.schedule.steps) > _MIN_STEPS_CHANGE * steps:
            self.schedule = self.schedule.with_last_step(steps, self.step)

    def _loss(self, batch: MicroBatch, speech_tokens: int, text_tokens: int, *, adalora_penalty: bool
              ) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of a micro-batch, and its speech and text losses (2,), detached; all divided by the step's tokens.

        `adalora_penalty`: add AdaLoRA's orthogonality penalty, once a step.
        """
        options = self.options
        lm = self.fsdp_model or self.train_model.lm
        loss_options = LossOptions(options.losses.text_dropout, options.losses.code_dropout,
                                   attention=options.losses.guided_attention_weight > 0)
        keep_casts = not self.sharded  # FSDP frees layers after use; autocast must not keep casts of their weights

        # Distillation: the teacher is the model with its initial weights, which sees the same inputs.
        teacher = {}
        if batch.replayed and options.full.distillation > 0:
            # A separate autocast: within one, casts of the weights are cached, and these weights differ.
            with self.initial_weights(), self.precision.autocast(keep_casts=keep_casts):
                teacher["teacher"] = lm.predictions(batch.samples, replace(loss_options, attention=False), batch.seeds)
        with self.precision.autocast(keep_casts=keep_casts):
            losses = lm.losses(batch.samples, loss_options, batch.seeds, **teacher)

        # Each loss is divided by the tokens of the whole step, so that micro-batches and ranks add up.
        assert losses.speech_count == sum(sample.speech_targets for sample in batch.samples)
        speech, text = losses.speech_sum / speech_tokens, losses.text_sum / text_tokens
        loss = speech + options.losses.text_loss_weight * text
        if losses.attention_sum is not None:
            loss = loss + options.losses.guided_attention_weight * losses.attention_sum / speech_tokens
        if losses.speech_divergence is not None and losses.text_divergence is not None:
            divergence = (losses.speech_divergence / speech_tokens
                          + options.losses.text_loss_weight * losses.text_divergence / text_tokens)
            loss = loss + options.full.distillation * divergence
        if adalora_penalty and self._allocation is not None:
            loss = loss + self._allocation.penalty() / self.group.world_size
        if self.sharded:  # FSDP averages gradients over the ranks; here they are to be summed
            loss = loss * (self.group.world_size * batch.weight)
        return loss, torch.stack([speech, text]).detach() * batch.weight

    def _next_batches(self) -> list[TrainBatch]:
        """The batches of one step, with a seed for each sample."""
        batches: list[TrainBatch] = []
        for _ in range(self.options.batches.gradient_accumulation):
            batches += self.loader.next_batches()

        count = sum(len(batch.samples) for batch in batches)
        # Seeds are drawn for all samples of the step at once, so they do not depend on ranks.
        seeds = iter(torch.randint(2**62, (count,), generator=self._seeds_rng).tolist())
        return [replace(batch, seeds=list(islice(seeds, len(batch.samples)))) for batch in batches]

    def _use_smaller_micro_batches(self) -> None:
        """After a step ran out of memory: switch to a smaller memory plan; `UserError` if there is none."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.tts.device.type == "cuda":
            torch.cuda.empty_cache()
        if self.sharded:
            raise memory_plan.sharded_out_of_memory(self.step + 1)
        smaller, message = memory_plan.plan_after_out_of_memory(
            self.microbatch_plan, self.options.batches.batch_size, self.options.hardware, self.step + 1)
        self.set_microbatch_plan(smaller)
        self._warn(message)

    def _lower_loss_scale(self, losses: StepLosses) -> bool:
        """Reduce the loss scale after gradients overflowed float16. Returns False if there is another reason."""
        if not self.scaler.is_enabled():
            return False
        if not math.isfinite(losses.speech + losses.text):
            self.scaler.update(self.scaler.get_scale())  # keeps the scale; without `update` it cannot unscale again
            return False
        scale = self.scaler.get_scale()
        self.scaler.update()
        return scale > 1.0 and self.scaler.get_scale() < scale  # equal if only the norm overflowed

    def profile_forward_backward(self, pairs: Sequence[TargetPromptPair]) -> None:
        """One forward and backward pass over these clips, to measure memory or time; returns when the device is done.

        Gradients are cleared and random generators restored. With FSDP all ranks call it.
        """
        samples = self.loader.profiling_samples(pairs)
        speech_tokens = sum(sample.speech_targets for sample in samples)
        text_tokens = sum(sample.text_targets for sample in samples)
        rng_state = self._rng_state()
        self.train_model.lm.module.train()
        try:
            with self._language_adapters(), self.group.reporting_dead_ranks():
                loss, detached = self._loss(MicroBatch(samples, range(len(samples))), speech_tokens, text_tokens,
                                            adalora_penalty=True)
                loss.backward()
                detached.tolist()  # synchronises with the device
        finally:
            self.train_model.lm.module.eval()
            self.optimizer.zero_grad(set_to_none=True)
            self._restore_rng(rng_state)

    @contextmanager
    def _language_adapters(self) -> Iterator[None]:
        """Context of training passes: the new languages' adapters are enabled, and only autocast casts their inputs."""
        adapters = self.tts.adapters
        cast = adapters.uncast() if adapters and self.precision.dtype is not torch.float32 else nullcontext()
        with self.tts.adapters_for(self.data.languages[0]), cast:
            yield

    def initial_weights(self) -> AbstractContextManager[object]:
        """Context in which the model has the weights that the run began with, without adapters; no gradients."""
        stack = ExitStack()
        if self.regularizer is not None:
            stack.enter_context(self.regularizer.initial_weights())
        if self.tts.adapters is not None:
            stack.enter_context(self.tts.adapters.enabled(False))
        return stack

    @contextmanager
    def base_weights(self) -> Iterator[TTSModel]:
        """Context in which `tts` has the weights of the base model and its adapters are disabled; yields that model.

        They differ from `initial_weights` if the run started from the weights of another run (`init_from`).
        """
        # An imported finetune may have changed old rows, which are buffers.
        named = {**self.full_trainables.base, **{name: value for name, value in self.tts.lm.module.named_buffers()
                                                 if name in self.tts.base_values}}
        values = {name: value.to(named[name]) for name, value in self.tts.base_values.items()}
        adapters = self.tts.adapters
        with swap_weights({name: named[name] for name in values}, values), \
                adapters.enabled(False) if adapters else nullcontext():
            yield replace(self.tts, adapters=None)

    def evaluation_weights(self) -> AbstractContextManager[None]:
        """Context in which `tts` has the weights to evaluate and save: the EMA if there is one, else the trained ones.

        All ranks enter it: with FSDP the weights are gathered into the `tts` of rank 0 and stay there.
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
        """The base's hash if every frozen tensor is bit-identical to what it was after casting, else another hash."""
        frozen_hash = hash_tensors(self._frozen_tensors())
        return self.tts.frozen_hash if frozen_hash == self._initial_frozen_hash else frozen_hash

    def _frozen_tensors(self) -> dict[str, torch.Tensor]:
        """The base's tensors that this run does not train."""
        return {name: value for name, value in base_tensors(self.tts.lm.module).items()
                if name not in self.trainables.base}

    @property
    def optimizer_bytes(self) -> int:
        """Memory that the optimizer will allocate in this process at its first step; 0 after it."""
        return 0 if self.optimizer.state else 2 * fsdp.local_bytes(self.trainables.named.values())

    @property
    def _allocation(self) -> RankAllocation | None:
        return self.tts.adapters.allocation if self.tts.adapters else None

    def state_dict(self) -> TrainerState:
        """What the next step depends on beside the model's weights, see `TrainerState`; complete only in rank 0."""
        rng_state = self._rng_state()
        # Random states differ between ranks, so they are gathered from all.
        tensors = checkpoint.optimizer_tensors(self.optimizer, self._names) | rng_state | self.group.gather(rng_state)
        if self.ema:
            tensors |= self.ema.state_dict()
        tensors |= self._scaler_state()
        allocation = self._allocation
        if allocation:
            tensors |= {_ALLOCATION + name: value for name, value in allocation.state().items()}
        tensors = fsdp.gather_tensors(tensors, keep=self.group.rank == 0)
        sampler, replay_sampler = self.loader.state_dict()
        return TrainerState(
            step=self.step, seconds=self.seconds, skipped_batches=self.skipped_batches, schedule=self.schedule,
            max_minutes=self.options.length.max_minutes, sampler=sampler, replay_sampler=replay_sampler,
            data_fingerprint=self.data.fingerprint, content_hash=self.data.content_hash, tensors=tensors,
            # A sharded run may resume without sharding.
            microbatch_plan=MicrobatchPlan() if self.sharded else self.microbatch_plan,
            world_size=self.group.world_size, precision=self.precision.name,
            numeric_environment=compute.numeric_environment(self.tts.device))

    def load_state_dict(self, state: TrainerState) -> None:
        """Continue from `state`; the weights of its checkpoint were loaded before."""
        self.step, self.seconds, self.skipped_batches = state.step, state.seconds, state.skipped_batches
        checkpoint.restore_optimizer(self.optimizer, self._names, state.tensors)
        self.schedule = state.schedule
        # A resumed run may have another time limit, which moves the end of the schedule.
        if state.max_minutes != self.options.length.max_minutes and self.step:
            self.schedule = self.schedule.with_last_step(self.max_steps, self.step)
            self.fit_steps_to_time_limit(self.seconds / self.step)
        if self.ema:
            self.ema.load_state_dict(state.tensors)
        self.loader.load_state_dict(state.sampler, state.replay_sampler)
        self._restore_rng({**state.tensors, **self.group.for_rank(state.tensors)})
        self._restore_scaler(state.tensors)
        allocation = self._allocation
        if allocation:
            allocation.restore({name.removeprefix(_ALLOCATION): value for name, value in state.tensors.items()
                                if name.startswith(_ALLOCATION)})
        self.set_microbatch_plan(memory_plan.first_plan(self.options.hardware, sharded=self.sharded,
                                                        saved=state.microbatch_plan))

    def _rng_state(self) -> dict[str, torch.Tensor]:
        """The random generators that a step uses: one for the samples' seeds, and torch's for dropout."""
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
        """The loss scale; empty without loss scaling."""
        if not self.scaler.is_enabled():
            return {}
        values = self.scaler.state_dict()
        return {_SCALER: torch.tensor([values["scale"], values["_growth_tracker"]], dtype=torch.float64)}

    def _restore_scaler(self, state: Mapping[str, torch.Tensor]) -> None:
        if self.scaler.is_enabled() and _SCALER in state:
            scale, tracker = state[_SCALER].tolist()
            self.scaler.load_state_dict({**self.scaler.state_dict(), "scale": scale, "_growth_tracker": int(tracker)})


def make_optimizer(groups: Sequence[ParameterGroup], name: str, device: torch.device) -> torch.optim.Optimizer:
    """AdamW over the groups, each with its own learning rate and weight decay; fused on CUDA, where that is faster.

    `adamw8bit` is bitsandbytes' AdamW with 8-bit moments (Dettmers et al. 2022, arXiv:2110.02861).
    """
    param_groups = [{"params": list(group.parameters.values()), "lr": group.lr, _INITIAL_LR: group.lr,
                     "weight_decay": group.weight_decay} for group in groups]
    if name == "adamw8bit":
        try:
            from bitsandbytes.optim import AdamW8bit  # an optional package
        except ImportError as error:
            raise UserError(f"The optimizer adamw8bit needs the package bitsandbytes: {error}.",
                            "pip install bitsandbytes, or choose the optimizer `adamw`.") from error
        eight_bit: torch.optim.Optimizer = AdamW8bit(param_groups, betas=_BETAS)
        return eight_bit
    return torch.optim.AdamW(param_groups, betas=_BETAS, fused=True if device.type == "cuda" else None)


def epoch_steps(epochs: float, clips: int, clips_a_step: int) -> int:
    """The steps of so many passes over the clips."""
    return max(1, math.ceil(epochs * clips / clips_a_step))


def is_finished(step: int, seconds: float, schedule: LearningRateSchedule, max_minutes: float) -> bool:
    """Whether a training has ended after `step` steps in `seconds`; `max_minutes` is its time limit, 0 for none."""
    return step >= schedule.steps or 0 < 60 * max_minutes <= seconds
