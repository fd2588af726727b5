"""The state of a training run and its one move: a step. It knows no files and no events.

All that decides the next step is in `state`: a trainer that restores it takes the same
steps, on a CPU to the bit, as one that was never stopped. A step that runs out of memory is
cut into smaller passes and taken again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace

import torch

from config.errors import UserError
from config.schema import TrainOptions
from core import checkpoint, optimization, training_data
from core.checkpoint import TrainerState
from core.fitting import Setting
from core.loading import VoiceModel
from core.optimization import NotFinite, StepLosses, Work
from core.precision import Precision
from core.prefix import base_tensors, hash_tensors
from core.rank_allocation import RankAllocation
from core.training_data import TrainingData, Utterance
from data.batches import Draw, Order, Position
from models.base import Sample

_ALLOCATION = "allocation/"


@dataclass(frozen=True)
class Counts:
    """What trains and what does not, in rows and parameters."""

    new_rows: int
    old_rows: int
    row_parameters: int
    adapter_parameters: int
    base_parameters: int


@dataclass(frozen=True)
class Batch:
    """Samples with the names of their clips."""

    samples: list[Sample]
    clips: list[str]


class Trainer:
    """Trains `voice` on `data`, and in `full` also on `rehearsed` clips of the base languages; `warn` hears of trouble.

    What is frozen of `voice` is cast to the precision, so it must not be exported or certified afterwards.
    """

    def __init__(self, options: TrainOptions, voice: VoiceModel, data: TrainingData, rehearsed: tuple[Utterance, ...],
                 precision: Precision, warn: Callable[[str], None] = lambda message: None) -> None:
        self.options, self.voice, self.data, self.precision = options, voice, data, precision
        self.step, self.seconds, self.step_seconds, self.learning_rate = 0, 0.0, 0.0, 0.0
        if voice.adapters:
            voice.adapters.switch(True)  # parameters are open to training only while the adapters act
        self.trained = optimization.trainables(voice)
        precision.cast(voice.model.module, self.trained.named)
        self._frozen = hash_tensors(base_tensors(voice.model.module))
        self._work = Work(voice, self.trained, options, precision, optimization.optimizer(self.trained, options),
                          precision.scaler())
        self._generator = torch.Generator().manual_seed(options.seed)
        torch.manual_seed(options.seed)  # adapter dropout draws from torch's own generators
        replayed = round(options.replay * options.batch_size) if rehearsed and options.scope == "full" else 0
        replayed = min(replayed, options.batch_size - 1)
        self._rehearsed = rehearsed
        self._order = Order([item.order_clip for item in data.train], options.batch_size - replayed, options.seed)
        self._replay = Order([item.order_clip for item in rehearsed], replayed, options.seed) if replayed else None
        self._warn = warn
        self.setting = Setting()
        self.use(Setting(recompute=options.activation_checkpointing == "on"))

    def use(self, setting: Setting) -> None:
        """Compute the next steps in this way."""
        self.setting = setting
        self.voice.model.recompute(setting.recompute)

    @property
    def counts(self) -> Counts:
        """The plan in numbers; sizes are those of the tensors."""
        module, tables = self.voice.model.module, self.voice.model.text_tables
        rows = next(iter(self.trained.rows.values()))
        trained = sum(value.numel() for value in self.trained.named.values())
        everything = sum(value.numel() for value in module.state_dict().values())
        return Counts(len(rows), len(module.get_buffer(f"{tables[0]}.weight")),
                      sum(value.numel() for value in self.trained.rows.values()),
                      sum(value.numel() for value in self.trained.adapters.values()), everything - trained)

    @property
    def frozen_hash(self) -> str:
        """The base's hash while all that is frozen is to the bit what it was after casting, else another one."""
        seen = hash_tensors(base_tensors(self.voice.model.module))
        return self.voice.base_hash if seen == self._frozen else seen

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """It holds what is trained and nothing else."""
        return self._work.optimizer

    @property
    def optimizer_bytes(self) -> int:
        """Memory that the optimizer will take and has not yet."""
        return 0 if self.optimizer.state else 2 * sum(value.nbytes for value in self.trained.named.values())

    def take_step(self) -> StepLosses:
        """One optimizer step. A loss that is no number changes nothing and raises `UserError` naming step and clips."""
        began = time.monotonic()
        self.voice.model.module.train()
        drawn = [batch for _ in range(self.options.accumulation) for batch in self.draw()]
        seeds = torch.randint(2**62, (sum(len(batch.samples) for batch in drawn),), generator=self._generator).tolist()
        self.learning_rate = optimization.set_rate(self.optimizer, self.options, self.step)
        randomness = self._randomness()
        with self._learning():
            while (losses := self._gradients(drawn, seeds)) is None:
                self._restore_randomness(randomness)
            optimization.apply(self._work, self.step + 1)
        self.voice.model.module.eval()
        self.step += 1
        self.step_seconds = time.monotonic() - began
        self.seconds += self.step_seconds
        return losses

    def draw(self) -> list[Batch]:
        """The next batch; `full` adds one of clips to rehearse, apart, because their lengths are others."""
        drawn = [(self._order, self.data.train)]
        if self._replay:
            drawn.append((self._replay, self._rehearsed))
        return [self._batch(order.next(), clips) for order, clips in drawn]

    def by_length(self) -> list[Draw]:
        """The training clips from the shortest to the longest, each as its own prompt; for trials."""
        clips = self.data.train
        return [Draw(index, index) for index in sorted(range(len(clips)), key=lambda at: clips[at].order_clip.length)]

    def attempt(self, draws: Sequence[Draw]) -> None:
        """A forward and backward pass over these clips that leaves no trace."""
        samples = self._batch(draws, self.data.train).samples
        work = replace(self._work, scaler=self.precision.scaler())
        with self._undisturbed(), self._learning(), suppress(NotFinite):
            optimization.gradients(work, [samples], range(len(samples)))

    def state(self) -> TrainerState:
        """Everything the next step depends on, beside the rows and adapters themselves."""
        tensors = checkpoint.optimizer_tensors(self.optimizer, list(self.trained.named))
        tensors |= self._randomness()
        if self._work.scaler.is_enabled():
            values = self._work.scaler.state_dict()
            tensors["scaler"] = torch.tensor([values["scale"], values["_growth_tracker"]], dtype=torch.float64)
        if allocation := self._allocation:
            tensors |= {_ALLOCATION + name: value for name, value in allocation.state().items()}
        replay = self._replay.position if self._replay else Position()
        return TrainerState(self.step, self.seconds, self._order.position, replay, self.data.fingerprint, tensors,
                            self.setting)

    def restore(self, state: TrainerState) -> None:
        """Stand where `state` was taken; rows and adapters are those of its checkpoint already."""
        self.step, self.seconds = state.step, state.seconds
        checkpoint.restore_optimizer(self.optimizer, list(self.trained.named), state.tensors)
        self._order.move_to(state.order)
        if self._replay:
            self._replay.move_to(state.replay)
        self._restore_randomness(state.tensors)
        if self._work.scaler.is_enabled() and "scaler" in state.tensors:
            scale, tracker = state.tensors["scaler"].tolist()
            values = {**self._work.scaler.state_dict(), "scale": scale, "_growth_tracker": int(tracker)}
            self._work.scaler.load_state_dict(values)
        if allocation := self._allocation:
            allocation.restore({name.removeprefix(_ALLOCATION): value for name, value in state.tensors.items()
                                if name.startswith(_ALLOCATION)})
        self.use(state.setting)

    @property
    def _allocation(self) -> RankAllocation | None:
        return self.voice.adapters.allocation if self.voice.adapters else None

    def _batch(self, draws: Sequence[Draw], clips: Sequence[Utterance]) -> Batch:
        samples = training_data.samples(draws, clips, self.voice.model.prompt_length)
        return Batch(samples, [clips[draw.target].id for draw in draws])

    def _gradients(self, drawn: Sequence[Batch], seeds: Sequence[int]) -> StepLosses | None:
        """The gradients of a step; None when it has to be tried again, in a setting that was changed."""
        try:
            return optimization.gradients(self._work, self._passes(drawn), seeds)
        except NotFinite as fault:
            if not optimization.lower_scale(self._work, fault):
                raise fault.explained(self.step + 1, [name for batch in drawn for name in batch.clips]) from fault
            return None
        except torch.OutOfMemoryError:
            pass  # what the failed pass held is freed when its frames are gone, after this clause
        self._shrink()
        return None

    def _passes(self, drawn: Sequence[Batch]) -> list[list[Sample]]:
        """The samples of the batches, in their order, cut as the setting says."""
        size = self.setting.size(self.options.batch_size)
        return [batch.samples[start:start + size] for batch in drawn for start in range(0, len(batch.samples), size)]

    def _shrink(self) -> None:
        """After a step ran out of memory: halve the passes, and once they are single clips recompute activations."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.voice.device.type == "cuda":
            torch.cuda.empty_cache()
        batch_size, before = self.options.batch_size, self.setting
        smaller = before.halved(batch_size)
        if smaller is None and not before.recompute and self.options.activation_checkpointing == "auto":
            smaller = replace(before, recompute=True)
        if smaller is None:
            raise UserError(
                f"The memory of the device did not suffice for a single clip at step {self.step + 1}.",
                "Close what else uses the device, leave out the longest clips, or train where there is more memory.",
            )
        self.use(smaller)
        again = " and activations computed again in the backward pass" if smaller.recompute else ""
        self._warn(
            f"Out of memory at step {self.step + 1}: passes of {smaller.size(batch_size)} clips instead of "
            f"{before.size(batch_size)} from here on{again}, accumulated {smaller.parts * self.options.accumulation} "
            f"times a step instead of {before.parts * self.options.accumulation}. The step is taken again with the "
            "same samples.")

    def _randomness(self) -> dict[str, torch.Tensor]:
        """The states of all random generators."""
        states = {"generator/hiding": self._generator.get_state(), "generator/torch": torch.get_rng_state()}
        if self.voice.device.type == "cuda":
            states["generator/cuda"] = torch.cuda.get_rng_state(self.voice.device)
        return states

    def _restore_randomness(self, states: Mapping[str, torch.Tensor]) -> None:
        self._generator.set_state(states["generator/hiding"])
        torch.set_rng_state(states["generator/torch"])
        if self.voice.device.type == "cuda" and "generator/cuda" in states:
            torch.cuda.set_rng_state(states["generator/cuda"], self.voice.device)

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Training mode for a while; afterwards generators and gradients are as if nothing had been."""
        randomness = self._randomness()
        self.voice.model.module.train()
        try:
            yield
        finally:
            self.voice.model.module.eval()
            self.optimizer.zero_grad(set_to_none=True)
            self._restore_randomness(randomness)

    @contextmanager
    def _learning(self) -> Iterator[None]:
        """Context of forward and backward passes: the adapters act, and leave casting to autocast."""
        adapters = self.voice.adapters
        cast = adapters.uncast() if adapters and self.precision.dtype is not torch.float32 else nullcontext()
        with self._speaking(), cast:
            yield

    def _speaking(self):
        return self.voice.speaking(self.data.language)
