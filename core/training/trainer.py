"""The state of a training run and its one move: a step. It knows no files and no events.

All that decides the next step is in `state`: a trainer that restores it takes the same
steps, on a CPU to the bit, as one that was never stopped. A step that runs out of memory is
cut into smaller passes and taken again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace

import torch

from config.schema import TrainOptions
from core import compute
from core.model.adapters import RankAllocation
from core.model.loading import VoiceModel
from core.model.precision import Precision
from core.model.prefix import base_tensors, hash_tensors
from core.training import anchors, checkpoint, counting, divisible, feed, fitting, optimization, scopes, sharding
from core.training.anchors import Anchors
from core.training.averaging import Average
from core.training.checkpoint import TrainerState
from core.training.company import GATHER, STATE, STEP, TRIAL, Company
from core.training.counting import Counts
from core.training.feed import Batch, Feed
from core.training.fitting import Setting
from core.training.in_place import in_place
from core.training.optimization import NotFinite, StepLosses, Work
from core.training.randomness import Randomness
from core.training.sharding import Passes
from core.training.training_data import TrainingData, Utterance
from data.batches import TrainingPair

_ALLOCATION, _BASE_LOSS = "allocation/", "base_loss/"
_MOST_SKIPPED = 3  # batches in a row that cannot be learnt from


class Trainer:
    """Trains `voice` on `data`, and in `full` also on `rehearsed` clips of the base languages; `warn` hears of trouble.

    What is frozen of `voice` is cast to the precision, so it must not be exported or certified afterwards.
    """

    def __init__(self, options: TrainOptions, voice: VoiceModel, data: TrainingData, rehearsed: tuple[Utterance, ...],
                 precision: Precision, warn: Callable[[str], None] = lambda message: None,
                 company: Company | None = None) -> None:
        self.options, self.voice, self.data, self.precision, self.company = options, voice, data, precision, company
        rank, size = (company.rank, company.size) if company else (0, 1)
        self.step, self.seconds, self.step_seconds, self.learning_rate = 0, 0.0, 0.0, 0.0
        if voice.adapters:
            voice.adapters.switch(True)  # parameters are open to training only while the adapters act
        self.trained = self._whole = scopes.trainables(voice, options)
        precision.cast(voice.model.module, self.trained.named)
        self._frozen = hash_tensors(self._frozen_tensors())
        self._learner = voice  # that takes the steps; in parts, it is a copy
        self._passes: Passes | None = None
        if options.sharding == "full":
            self._learner, self._passes = self._in_parts()
        self.groups = scopes.groups(self.trained, options, voice.model)
        self._names = [name for group in self.groups for name in group.parameters]
        self._average = Average(self.trained.named, options.ema) if options.ema else None
        anchored = self.trained.base and (options.distillation or options.l2_sp or options.ewc)
        self._work = Work(self._learner, self.trained, options, precision,
                          optimization.optimizer(self.groups, options, voice.device), precision.scaler(),
                          Anchors(self.trained.base, voice.base_values) if anchored else None, company, self._passes)
        self._random = Randomness(options.seed, rank, voice.device)
        self._feed = Feed(options, data, rehearsed, voice.model.max_prompt_length, size)
        self._warn = warn
        self._scale_before: dict[str, torch.Tensor] = {}  # of the loss, before a batch lowered it
        self.skipped = 0  # batches whose loss was no number
        self.probing: tuple[Utterance, ...] = ()  # clips of base languages that measure the drift
        self.base_losses: dict[str, float] = {}  # of base languages before the first step, in nats a code
        if options.ewc and self._work.anchors:
            anchors.estimate_importance(self._work.anchors, voice.model, precision, rehearsed[:options.fisher_clips])
        self.use(fitting.first(options, sharded=self.sharded))

    def _in_parts(self) -> tuple[VoiceModel, Passes]:
        """What learns where each process has a part of it; `voice` stays whole in rank 0."""
        divisible.check(self.options, self.company.size if self.company else 1,
                        in_float16=self.precision.dtype is torch.float16)
        assert self.company is not None
        learner, passes = sharding.spread(self.voice, self.company.mesh(self.voice.device),
                                          guided=self.options.guided_attention_weight > 0,
                                          keep_whole=self.company.rank == 0)
        self.trained = scopes.trainables(learner, self.options)
        if self.company.rank:
            self._whole = self.trained  # what was whole is to be freed
        return learner, passes

    @property
    def sharded(self) -> bool:
        """Whether each process has a part of what is trained; then all take each pass, and none can be tried alone."""
        return self._passes is not None

    def use(self, setting: Setting) -> None:
        """Compute the next steps in this way."""
        self.setting = setting
        self._learner.model.set_activation_checkpointing(setting.recompute)

    @property
    def counts(self) -> Counts:
        """The plan in numbers."""
        return counting.counts(self.voice, self.trained)

    @property
    def frozen_hash(self) -> str:
        """The base's hash while all that is frozen is to the bit what it was after casting, else another one."""
        seen = hash_tensors(self._frozen_tensors())
        return self.voice.base_hash if seen == self._frozen else seen

    def _frozen_tensors(self) -> dict[str, torch.Tensor]:
        """The base's tensors that this run does not train."""
        return {name: value for name, value in base_tensors(self.voice.model.module).items()
                if name not in self.trained.base}

    def averaged(self) -> AbstractContextManager[None]:
        """Context in which the model is what is measured, saved and spoken with: the average, where there is one."""
        if self.company and self.sharded:
            self.company.tell(GATHER)
            self.gather()
            return nullcontext()
        return self._average.in_place() if self._average else nullcontext()

    def gather(self) -> None:
        """Bring what is in parts together in the `voice` of rank 0; all processes do it at once."""
        assert self.company is not None
        sharding.bring_together(self._average.values if self._average else self.trained.named,
                                self._whole.named if self.company.rank == 0 else None)

    @contextmanager
    def as_base(self) -> Iterator[VoiceModel]:
        """Context in which the model is the base alone, also of a run that began on the weights of another."""
        named = self._whole.base
        values = {name: value.to(named[name]) for name, value in self.voice.base_values.items()}
        adapters = self.voice.adapters
        with in_place({name: named[name] for name in values}, values), \
                adapters.switched(False) if adapters else nullcontext():
            yield replace(self.voice, adapters=None)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """It holds what is trained and nothing else."""
        return self._work.optimizer

    @property
    def optimizer_bytes(self) -> int:
        """Memory that the optimizer will take in this process and has not yet."""
        return 0 if self.optimizer.state else 2 * sharding.own_bytes(self.trained.named.values())

    def take_step(self) -> StepLosses:
        """One optimizer step; batches whose loss is no number are skipped, and `Diverged` is raised after a few."""
        began = time.monotonic()
        if self.company and self.company.rank == 0:
            self.company.tell(STEP, self.setting)  # which only this process has tried out
        self._learner.model.module.train()
        self.learning_rate = optimization.set_rate(self.optimizer, self.options, self.step)
        losses = self._learn()
        if self._average:
            self._average.follow()
        self._learner.model.module.eval()
        self.step += 1
        self.step_seconds = time.monotonic() - began
        self.seconds += self.step_seconds
        return losses

    def _learn(self) -> StepLosses:
        """Draw until there is a batch that can be learnt from, and move along its gradients."""
        times = 0
        while True:
            drawn = [batch for _ in range(self.options.gradient_accumulation) for batch in self.draw()]
            seeds = self._random.seeds(sum(len(batch.samples) for batch in drawn))
            randomness, self._scale_before = self._random.state(), {}
            try:
                with self._learning():
                    while (losses := self._gradients(drawn, seeds)) is None:
                        self._random.restore(randomness)
                    optimization.apply(self._work, self.step + 1)
                return losses
            except NotFinite as fault:
                optimization.restore_scaler(self._work.scaler, self._scale_before)  # no scale was small enough
                times += 1
                self.skipped += 1
                clips = [name for batch in drawn for name in batch.clips]
                if times == _MOST_SKIPPED:
                    raise fault.explained(self.step + 1, clips, times) from fault
                self._warn(f"A batch of step {self.step + 1} was skipped: {fault}. Its clips: {', '.join(clips)}. "
                           f"Skipped so far: {self.skipped}.")

    def draw(self) -> list[Batch]:
        """The next batch, and in `full` one of clips to rehearse."""
        return self._feed.draw()

    def by_length(self) -> list[TrainingPair]:
        """The training clips from the shortest to the longest, for trials."""
        return self._feed.by_length()

    def attempt(self, draws: Sequence[TrainingPair]) -> None:
        """A forward and backward pass over these clips that leaves no trace; in parts, over those that rank 0 names."""
        if self.company and self.sharded:
            if self.company.rank == 0:
                self.company.tell(TRIAL, self.setting)
            draws = self.company.agree(draws)
        samples = self._feed.trial(draws)
        work = replace(self._work, scaler=self.precision.scaler(), company=self.company if self.sharded else None)
        with self._undisturbed(), self._learning(), suppress(NotFinite):
            optimization.gradients(work, [samples], range(len(samples)))

    def state(self) -> TrainerState:
        """Everything the next step depends on, beside the rows and adapters themselves."""
        if self.company and self.company.rank == 0:
            self.company.tell(STATE)
        tensors = checkpoint.optimizer_tensors(self.optimizer, self._names) | self._random.state()
        if self.company:
            tensors |= self.company.gathered(self._random.state())
        tensors["skipped"] = torch.tensor(self.skipped)
        tensors |= {_BASE_LOSS + language: torch.tensor(loss, dtype=torch.float64)
                    for language, loss in self.base_losses.items()}
        if self._average:
            tensors |= self._average.state()
        tensors |= optimization.scaler_state(self._work.scaler)
        if allocation := self._allocation:
            tensors |= {_ALLOCATION + name: value for name, value in allocation.state().items()}
        tensors = sharding.whole(tensors, keep=self.company is None or self.company.rank == 0)
        setting = Setting() if self.sharded else self.setting  # where nothing is in parts, it need not be the same
        return TrainerState(self.step, self.seconds, *self._feed.positions, self.data.fingerprint, tensors, setting,
                            processes=self.company.size if self.company else 1, precision=self.precision.name,
                            conditions=compute.numeric_environment(self.voice.device),
                            decays={group.name: group.decay for group in self.groups})

    def restore(self, state: TrainerState) -> None:
        """Stand where `state` was taken; rows and adapters are those of its checkpoint already."""
        self.step, self.seconds = state.step, state.seconds
        checkpoint.restore_optimizer(self.optimizer, self._names, state.tensors)
        self.groups = scopes.decayed_as(state.decays, self.groups, self.optimizer)
        self.skipped = int(state.tensors["skipped"]) if "skipped" in state.tensors else 0
        self.base_losses = {name.removeprefix(_BASE_LOSS): value.item() for name, value in state.tensors.items()
                            if name.startswith(_BASE_LOSS)}
        if self._average:
            self._average.restore(state.tensors)
        self._feed.move_to(state.order, state.replay)
        self._random.restore({**state.tensors, **(self.company.own(state.tensors) if self.company else {})})
        optimization.restore_scaler(self._work.scaler, state.tensors)
        if allocation := self._allocation:
            allocation.restore({name.removeprefix(_ALLOCATION): value for name, value in state.tensors.items()
                                if name.startswith(_ALLOCATION)})
        self.use(fitting.first(self.options, sharded=self.sharded, before=state.setting))

    @property
    def _allocation(self) -> RankAllocation | None:
        return self.voice.adapters.allocation if self.voice.adapters else None

    def _gradients(self, drawn: Sequence[Batch], seeds: Sequence[int]) -> StepLosses | None:
        """The gradients of a step; None when it has to be tried again, in a setting that was changed."""
        try:
            rank, size = (self.company.rank, self.company.size) if self.company else (0, 1)
            own, own_seeds = feed.shared(drawn, seeds, rank, size)
            shares = [-(-len(batch.samples) // size) for batch in drawn] if self.sharded else ()
            passes = feed.passes(own, self.setting.size(self.options.batch_size), shares)
            return optimization.gradients(self._work, [samples for samples, _ in passes], own_seeds,
                                          [rehearsed for _, rehearsed in passes])
        except NotFinite as fault:
            self._scale_before = self._scale_before or optimization.scaler_state(self._work.scaler)
            if not optimization.lower_scale(self._work, fault):
                raise
            return None
        except torch.OutOfMemoryError:
            pass  # what the failed pass held is freed when its frames are gone, after this clause
        self._shrink()
        return None

    def _shrink(self) -> None:
        """After a step ran out of memory: compute the next ones in a setting that takes less."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.voice.device.type == "cuda":
            torch.cuda.empty_cache()
        smaller, said = fitting.after_shortage(self.setting, self.options, self.step + 1, sharded=self.sharded)
        self.use(smaller)
        self._warn(said)

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Training mode for a while; afterwards generators and gradients are as if nothing had been."""
        randomness = self._random.state()
        self._learner.model.module.train()
        try:
            yield
        finally:
            self._learner.model.module.eval()
            self.optimizer.zero_grad(set_to_none=True)
            self._random.restore(randomness)

    @contextmanager
    def _learning(self) -> Iterator[None]:
        """Context of forward and backward passes: the adapters act, and leave casting to autocast."""
        adapters = self.voice.adapters
        cast = adapters.uncast() if adapters and self.precision.dtype is not torch.float32 else nullcontext()
        with self.voice.speaking(self.data.language), cast:
            yield
