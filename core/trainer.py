"""The state of a training run and its one move: a step. It knows no files and no events.

All that decides the next step is in `state`: a trainer that restores it takes the same
steps, on a CPU to the bit, as one that was never stopped.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from config.schema import TrainOptions
from core import checkpoint, optimization, training_data
from core.checkpoint import TrainerState
from core.loading import VoiceModel
from core.optimization import NotFinite, StepLosses
from core.precision import Precision
from core.training_data import TrainingData, Utterance
from data.batches import Order, Position
from models.base import Sample


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
    """Trains `voice` on `data`, and in `full` also on `rehearsed` clips of the base languages."""

    def __init__(self, options: TrainOptions, voice: VoiceModel, data: TrainingData, rehearsed: tuple[Utterance, ...],
                 precision: Precision) -> None:
        self.options, self.voice, self.data, self.precision = options, voice, data, precision
        self.step, self.seconds, self.step_seconds, self.learning_rate = 0, 0.0, 0.0, 0.0
        if voice.adapters:
            voice.adapters.switch(True)  # parameters are open to training only while the adapters act
        self.trained = optimization.trainables(voice)
        self._optimizer = optimization.optimizer(self.trained, options)
        self._generator = torch.Generator().manual_seed(options.seed)
        torch.manual_seed(options.seed)  # adapter dropout draws from torch's own generators
        replayed = round(options.replay * options.batch_size) if rehearsed and options.scope == "full" else 0
        replayed = min(replayed, options.batch_size - 1)
        self._rehearsed = rehearsed
        self._order = Order([item.order_clip for item in data.train], options.batch_size - replayed, options.seed)
        self._replay = Order([item.order_clip for item in rehearsed], replayed, options.seed) if replayed else None

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

    def take_step(self) -> StepLosses:
        """One optimizer step. A loss that is no number changes nothing and raises `UserError` naming step and clips."""
        began = time.monotonic()
        self.voice.model.module.train()
        drawn = [self.draw() for _ in range(self.options.accumulation)]
        self.learning_rate = optimization.set_rate(self._optimizer, self.options, self.step)
        with self._speaking():
            try:
                losses = optimization.step(self.voice, [batch.samples for batch in drawn], self.trained,
                                           self._optimizer, self.options, self.precision, self._generator)
            except NotFinite as fault:
                raise fault.explained(self.step + 1, [name for batch in drawn for name in batch.clips]) from fault
        self.voice.model.module.eval()
        self.step += 1
        self.step_seconds = time.monotonic() - began
        self.seconds += self.step_seconds
        return losses

    def draw(self) -> Batch:
        """The next micro-batch; `full` adds clips to rehearse."""
        length = self.voice.model.prompt_length
        draws = self._order.next()
        samples = training_data.samples(draws, self.data.train, length)
        names = [self.data.train[draw.target].id for draw in draws]
        if self._replay:
            draws = self._replay.next()
            samples += training_data.samples(draws, self._rehearsed, length)
            names += [self._rehearsed[draw.target].id for draw in draws]
        return Batch(samples, names)

    def held_out_loss(self) -> float:
        """Next-token loss on the held-out speech, in nats a code."""
        samples = training_data.measured(self.data.held_out, self.data.train, self.voice.model.prompt_length)
        with self._speaking():
            return optimization.held_out_loss(self.voice, samples, self.options.batch_size, self.precision)

    def state(self) -> TrainerState:
        """Everything the next step depends on, beside the rows and adapters themselves."""
        tensors = checkpoint.optimizer_tensors(self._optimizer, list(self.trained.named))
        tensors["generator/hiding"] = self._generator.get_state()
        tensors["generator/torch"] = torch.get_rng_state()
        if self.voice.device.type == "cuda":
            tensors["generator/cuda"] = torch.cuda.get_rng_state(self.voice.device)
        replay = self._replay.position if self._replay else Position()
        return TrainerState(self.step, self.seconds, self._order.position, replay, self.data.fingerprint, tensors)

    def restore(self, state: TrainerState) -> None:
        """Stand where `state` was taken; rows and adapters are those of its checkpoint already."""
        self.step, self.seconds = state.step, state.seconds
        checkpoint.restore_optimizer(self._optimizer, list(self.trained.named), state.tensors)
        self._order.move_to(state.order)
        if self._replay:
            self._replay.move_to(state.replay)
        self._generator.set_state(state.tensors["generator/hiding"])
        torch.set_rng_state(state.tensors["generator/torch"])
        if self.voice.device.type == "cuda" and "generator/cuda" in state.tensors:
            torch.cuda.set_rng_state(state.tensors["generator/cuda"], self.voice.device)

    def _speaking(self):
        return self.voice.speaking(self.data.language)
