"""Before the first step of a run: its plan, the memory and time that it will take, and warnings.

Memory and time are measured by a few real forward and backward passes, which leave random generators, gradients and
the order of the clips unchanged. If memory is short, activation checkpointing is switched on first, because it changes
no result, and then micro-batches are made smaller. After an out-of-memory error in a step the order is the reverse
(`memory_plan.plan_after_out_of_memory`). No warning stops a run.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path

import torch

from config.errors import UserError
from config.loading import read_record
from config.schema import (
    ANY_STEPS,
    AUTO_BATCH,
    CheckpointOptions,
    TrainOptions,
    about,
    option_fields,
    option_value,
    with_values,
)
from core import compute
from core.jobs.events import Plan
from core.jobs.reporter import duration_text, memory_text, pluralize, size_text
from core.library import presets
from core.text.tokenizer_report import unused_pieces_warning
from core.training import checkpoint, memory_plan, parameter_groups
from core.training.memory_plan import MicrobatchPlan
from core.training.trainer import Trainer, epoch_steps
from data.durable_files import write_json

_OVERFITTING_EPOCHS = 100
_UNUSUAL_BATCH_FACTOR = 2.0  # times the clips of the preset's step, or a half of them
_UNUSUAL_LR_FACTOR = 5.0  # times the preset's learning rate, or a fifth of it
_MIN_8BIT_ELEMENTS, _BLOCK_ELEMENTS, _CODE_BOOK_ELEMENTS = 4096, 256, 256  # sizes in bitsandbytes
_USABLE_SHARE = 0.9  # share of the free memory
_BATCH_CHOICE = "batch.json"  # file in the run's folder
_MAX_BATCH = 512  # clips, as of the option `batch_size`
_LEARNING_RATES = ("row_lr", "adapter_lr", "layer_lr", "head_lr")
_TIMING_S, _MAX_TIMING_ROUNDS = 3.0, 3
_SHORT, _LONG = 0.25, 0.75  # quantiles of the clip lengths at which passes are timed


@dataclass(frozen=True)
class Estimate:
    """The memory and time that a run will take."""

    microbatch_plan: MicrobatchPlan
    needed: int | None  # bytes beyond the loaded model; None if a pass ran out of memory
    free: int | None  # bytes; None if unknown
    seconds_a_step: tuple[float, float] = (0.0, 0.0)  # short clips, long clips; 0 if not measured

    @property
    def fits(self) -> bool:
        return self.needed is not None and (self.free is None or self.needed <= _USABLE_SHARE * self.free)

    @property
    def mean_step_s(self) -> float:
        """Seconds of a step with clips of middle length."""
        return sum(self.seconds_a_step) / 2


@dataclass(frozen=True)
class BatchChoice:
    """The batch size of a run and the factor of its learning rates, decided before the first step.

    The run's folder holds them, so a resumed run takes the same steps on another device.
    """

    batch_size: int
    lr_factor: float = 1.0
    notes: tuple[str, ...] = ()

    def apply(self, options: TrainOptions) -> TrainOptions:
        """The options with these values."""
        rates = {name: min(1.0, option_value(options, name) * self.lr_factor) for name in _LEARNING_RATES}
        return with_values(options, {"batch_size": self.batch_size, **rates})


def is_batch_open(options: TrainOptions) -> bool:
    """Whether batch size or learning rates of these options depend on the device or the preset."""
    return options.batches.batch_size == AUTO_BATCH or options.optimization.scale_lr != "off"


def read_batch_choice(run_dir: Path) -> BatchChoice | None:
    """The choice of an earlier attempt of the run; None if there is none."""
    path = run_dir / _BATCH_CHOICE
    return read_record(path, BatchChoice, "Start a new run.") if path.is_file() else None


def choose_batch(trainer: Trainer, options: TrainOptions, run_dir: Path) -> BatchChoice:
    """Decide what is open in `options`, and store it in the run's folder. `trainer` has a provisional batch."""
    family, world_size, notes = trainer.tts.family.name, trainer.group.world_size, list[str]()
    preset = presets.for_family(family, "train", TrainOptions)
    batch_size = options.batches.batch_size
    if batch_size == AUTO_BATCH and trainer.tts.device.type == "cpu":
        batch_size = preset.batches.batch_size
        notes.append(f"Batch size auto: {batch_size}, that of the preset for {family}; a CPU gains no speed from more.")
    elif batch_size == AUTO_BATCH:
        clips = len((trainer.data.full_data or trainer.data).train)
        batch_size = largest_batch(trainer, max(1, min(_MAX_BATCH, clips // world_size)))
        notes.append(f"Batch size auto: {batch_size} clips, as many of the longest as fit into the memory of the GPU.")

    # The preset's learning rates are for the clips of its step.
    usual, scaling = preset_clips_a_step(family), options.optimization.scale_lr
    ratio = batch_size * options.batches.gradient_accumulation * world_size / usual
    factor = {"off": 1.0, "sqrt": math.sqrt(ratio), "linear": ratio}[scaling]
    if scaling != "off":
        notes.append(f"Learning rates times {factor:.3g} ({scaling} of {ratio:.3g}): a step has {ratio:.3g} "
                     f"times the {usual} clips of the preset for {family}.")
    choice = BatchChoice(batch_size, factor, tuple(notes))
    write_json(run_dir / _BATCH_CHOICE, asdict(choice))
    return choice


def largest_batch(trainer: Trainer, limit: int) -> int:
    """The largest batch, up to `limit` clips, of which a pass over the longest clips fits into the device's memory.

    Each size is tried by a pass: doubled while it fits, then halved in between to an eighth.
    """
    if trainer.sharded:
        raise UserError("The batch size of a sharded run cannot be found by trial: all ranks compute each pass.",
                        "Give a number as batch_size.")
    free = compute.free_bytes(trainer.tts.device)
    longest = trainer.loader.by_length()

    def fits(count: int) -> bool:
        try:
            peak = memory_plan.peak_bytes(trainer.tts.device,
                                          lambda: trainer.profile_forward_backward(longest[-count:]))
        except torch.OutOfMemoryError:
            return False
        return free is None or peak + trainer.optimizer_bytes <= _USABLE_SHARE * free

    # Double the size while it fits.
    fitting, too_large = 1, limit + 1
    while 2 * fitting <= limit and fits(2 * fitting):
        fitting *= 2
    if fitting < limit:
        too_large = min(too_large, 2 * fitting)
    # Then halve the interval between the largest that fits and the smallest that does not.
    while too_large - fitting > max(1, fitting // 8):
        middle = (fitting + too_large) // 2
        fitting, too_large = (middle, too_large) if fits(middle) else (fitting, middle)
    return fitting


def fit_memory_plan(trainer: Trainer) -> Estimate:
    """Find the first memory plan that fits, beginning with the trainer's, set it in the trainer and time it.

    A sharded run has a single plan and ends if the longest clips do not fit. Then all ranks call this function.
    """
    options, device = trainer.options, trainer.tts.device
    free = compute.free_bytes(device)
    if trainer.sharded:
        micro_batch_size = trainer.microbatch_plan.micro_batch_size(options.batches.batch_size)
        longest, needed = trainer.loader.by_length()[-micro_batch_size:], None
        try:
            if device.type == "cuda":  # the allocator counts; sharded tensors cannot be counted otherwise
                needed = (memory_plan.peak_bytes(device, lambda: trainer.profile_forward_backward(longest))
                          + trainer.optimizer_bytes)
            else:
                trainer.profile_forward_backward(longest)
        except torch.OutOfMemoryError:
            raise memory_plan.sharded_out_of_memory(trainer.step + 1) from None
        return Estimate(trainer.microbatch_plan, needed, free, _time_step(trainer))

    # Save memory step by step, until the longest clips fit or nothing is left to try.
    while True:
        microbatch_plan = trainer.microbatch_plan
        peak = peak_of_longest(trainer, microbatch_plan.micro_batch_size(options.batches.batch_size),
                               None if free is None else free - trainer.optimizer_bytes)
        estimate = Estimate(microbatch_plan, None if peak is None else peak + trainer.optimizer_bytes, free)
        if estimate.fits:
            return replace(estimate, seconds_a_step=_time_step(trainer))
        if options.hardware.activation_checkpointing == "auto" and not microbatch_plan.activation_checkpointing:
            trainer.set_microbatch_plan(replace(microbatch_plan, activation_checkpointing=True))
        else:
            smaller = microbatch_plan.halved(options.batches.batch_size)
            if smaller is None:
                return estimate
            trainer.set_microbatch_plan(smaller)


def peak_of_longest(trainer: Trainer, count: int, free: int | None) -> int | None:
    """Peak bytes of a pass over the `count` longest clips, perhaps extrapolated; None if a pass ran out of memory.

    The first pass has one clip. Each next pass has as many clips as are sure to fit into `free` bytes, up to `count`.
    The memory of a further clip is extrapolated from the last two passes, because with few clips the gradients of the
    base may take more memory than activations, and then a second clip seems to take none.
    """
    longest, sizes, peaks = trainer.loader.by_length(), list[int](), list[int]()
    size = 1
    while True:
        try:
            peaks.append(memory_plan.peak_bytes(
                trainer.tts.device, lambda: trainer.profile_forward_backward(longest[-size:])))  # noqa: B023
        except torch.OutOfMemoryError:
            return None
        sizes.append(size)
        if size >= count:
            return peaks[-1]

        # Extrapolate to all clips from the last two passes.
        bytes_a_clip = peaks[-1] / size
        if len(sizes) > 1:
            bytes_a_clip = (peaks[-1] - peaks[-2]) / (sizes[-1] - sizes[-2])
        expected = peaks[-1] + (count - size) * bytes_a_clip

        # The next pass has as many clips as fit by the last one, even without any fixed part.
        sure_to_fit = count if free is None or expected <= free else size * free // max(1, peaks[-1])
        if sure_to_fit <= size:
            return round(expected)
        size = min(count, sure_to_fit)


def _time_step(trainer: Trainer) -> tuple[float, float]:
    """Seconds of a step with short clips and with long ones, from passes of the size that the training uses.

    The first pass is not counted, because it allocates memory and chooses or loads kernels. Of the others the fastest
    counts, because other load on the machine can only make a pass slower.
    """
    batches = trainer.options.batches
    clips, size = trainer.loader.by_length(), trainer.microbatch_plan.micro_batch_size(batches.batch_size)

    def time_pass(quantile: float) -> float:
        # The clips around the quantile; if there are fewer than a pass needs, some are used twice.
        begin = round(quantile * (len(clips) - 1)) - (size - 1) // 2
        begin = min(max(0, begin), max(0, len(clips) - size))
        chosen = [clips[(begin + index) % len(clips)] for index in range(size)]
        start = time.perf_counter()
        trainer.profile_forward_backward(chosen)
        seconds = time.perf_counter() - start
        return seconds / size * batches.batch_size * batches.gradient_accumulation

    time_pass(_LONG)
    # Repeat until the time is up; the fastest of each counts.
    times: list[tuple[float, float]] = []
    start = time.perf_counter()
    unfinished = True
    while unfinished:
        times.append((time_pass(_SHORT), time_pass(_LONG)))
        unfinished = len(times) < _MAX_TIMING_ROUNDS and time.perf_counter() - start < _TIMING_S
        if trainer.sharded:  # all ranks take each pass, and their clocks differ
            unfinished = trainer.group.broadcast(unfinished)
    short, long = (min(seconds) for seconds in zip(*times, strict=True))
    return min(short, long), max(short, long)


def plan_event(trainer: Trainer, estimate: Estimate, notes: Iterable[str] = ()) -> Plan:
    """What is trained and what is frozen, the data, `notes`, and the memory and time that the run will take."""
    counts, options, data = trainer.counts, trainer.options, trainer.data
    total, world_size = counts.new_rows + counts.old_rows, trainer.group.world_size
    if counts.changed_parameters:
        trained = f"{_amount(counts.changed_parameters)} parameters of the base"
    elif counts.adapter_parameters:
        trained = f"adapters of {_amount(counts.adapter_parameters)} parameters"
    else:
        trained = "no adapters"
    lines = [
        f"Trains {counts.new_rows} new embedding rows and {trained}; {_amount(counts.frozen_parameters)} parameters "
        "frozen.",
        f"{pluralize(len(data.train), 'clip')} in {', '.join(map(repr, data.languages))}, {len(data.held_out)} held "
        f"out; steps {trainer.step} to {trainer.schedule.steps} of "
        f"{pluralize(options.batches.clips_a_step(world_size), 'clip')}"
        f"{f' over {world_size} processes' if world_size > 1 else ''}; {trainer.precision}.",
    ]

    # Notes, then the time limit, epochs and variants.
    lines += notes
    if trainer.schedule.steps < trainer.max_steps:
        limit = "" if trainer.max_steps == ANY_STEPS else f" of the {trainer.max_steps}"
        lines.append(f"{trainer.schedule.steps}{limit} steps fit into {options.length.max_minutes:g} minutes here; the "
                     "learning-rate schedule ends at that step.")
    if options.length.max_epochs:
        by_epochs = _steps_of_epochs(options, len(data.train), world_size)
        epochs = trainer.schedule.steps / by_epochs * options.length.max_epochs
        lines.append(f"{trainer.schedule.steps} steps are {epochs:.3g} of {options.length.max_epochs:g} epochs.")
    if data.variants:
        variants = sum(len(data.variants.get(item.id, ())) for item in data.train)
        share = options.data.augmentation
        lines.append(f"{share:.0%} of the clips of an epoch are replaced by one of their {variants} variants, chosen "
                     "at random in each epoch; validation and samples never.")

    # The parameter groups, then memory and time.
    lines += [f"Trained: {line}." for line in parameter_groups.describe_groups(trainer.parameter_groups)]
    return Plan((*lines, *_memory_and_time(trainer, estimate)), {
        "new_rows": counts.new_rows, "rows": total, "old_rows": counts.old_rows,
        "row_parameters": counts.row_parameters, "adapter_parameters": counts.adapter_parameters,
        "changed_parameters": counts.changed_parameters, "frozen_parameters": counts.frozen_parameters,
        "clips": len(data.train), "held_out_clips": len(data.held_out), "memory_bytes": estimate.needed or 0,
        "seconds": round(estimate.mean_step_s * (trainer.schedule.steps - trainer.step))})


def _memory_and_time(trainer: Trainer, estimate: Estimate) -> list[str]:
    """Lines about memory and time, and about what was changed so that the run fits into memory."""
    options, steps = trainer.options, trainer.schedule.steps - trainer.step
    microbatch_plan = estimate.microbatch_plan
    free = "" if estimate.free is None else memory_text(estimate.free)
    needed = "" if estimate.needed is None else (
        f"about {memory_text(estimate.needed)}{f' of {free} free' if free else ''}")
    if not estimate.fits and not trainer.sharded:
        if needed:
            return [f"It needs {needed} even with micro-batches of single clips: it may run out of memory."]
        memory = f"the {free} of free memory" if free else "memory"
        return [f"A single clip does not fit into {memory}: the run may run out of memory."]

    # The run fits: say how, and how long it takes.
    time_line = f"{steps} steps in {duration_range(estimate, steps)}, without the synthesis of samples."
    checkpointing = ["Activation checkpointing is on: activations are recomputed in the backward pass to save memory."
                     ] if microbatch_plan.activation_checkpointing else []
    if trainer.sharded:
        size = f"{needed[0].upper()}{needed[1:]} in rank 0; " if needed else ""
        return ["Each rank holds its part of the trained weights, their gradients and the optimizer state.",
                *checkpointing,
                f"{size}{time_line} The longest clips fit."]
    clips = pluralize(microbatch_plan.micro_batch_size(options.batches.batch_size), "clip")
    count = microbatch_plan.splits * options.batches.gradient_accumulation
    splits = [f"To fit into memory: micro-batches of {clips}, {count} a step."] if microbatch_plan.splits > 1 else []
    return [f"{needed[0].upper()}{needed[1:]}; {time_line}", *splits, *checkpointing]


def duration_range(estimate: Estimate, steps: int) -> str:
    """The time of so many steps with short to long clips, such as `about 12 min` or `8 min to 15 min`."""
    shortest, longest = (duration_text(seconds * steps) for seconds in estimate.seconds_a_step)
    return f"about {shortest}" if shortest == longest else f"{shortest} to {longest}"


def _amount(parameters: int) -> str:
    """Such as `5.9 M` or `4.2 k`."""
    return f"{parameters / 1e6:.1f} M" if parameters >= 1e5 else f"{parameters / 1e3:.1f} k"


def training_warnings(trainer: Trainer, run_dir: Path, options: TrainOptions | None = None) -> list[str]:
    """Warnings, a sentence or two each; `options`: those of the training, if the trainer is that of a preflight."""
    options = options or trainer.options
    return [*unused_option_warnings(options), *_length_warnings(trainer, options), *_data_warnings(trainer, options),
            *_batch_warnings(trainer, options), *_learning_rate_warnings(trainer, options),
            *_disk_warnings(trainer, run_dir, options.checkpoints, options.length.steps)]


def _length_warnings(trainer: Trainer, options: TrainOptions) -> Iterator[str]:
    """A warning if a number of steps ends the training before its epochs: both were given, and one decides."""
    data, world_size = trainer.data.full_data or trainer.data, _world_size(trainer, options)
    length = options.length
    if not length.max_epochs or not options.batches.batch_size:
        return

    by_epochs = _steps_of_epochs(options, len(data.train), world_size)
    if length.steps < by_epochs:
        epochs = length.steps * length.max_epochs / by_epochs
        yield (f"Steps {length.steps} ends the training after {epochs:.3g} epochs: max_epochs {length.max_epochs:g} "
               f"would be {by_epochs:,} steps. To train for the epochs, set steps to 0.")


def _planned_steps(trainer: Trainer, options: TrainOptions) -> int:
    """The steps of a training as far as they are known; those of a preflight's `trainer` are not those of `options`."""
    length = options.length
    if trainer.options is options:
        return min(length.steps, trainer.schedule.steps)
    # A preflight trains on a part of the clips, and epochs count all of them.
    data = trainer.data.full_data or trainer.data
    if length.max_epochs and options.batches.batch_size:
        return min(length.steps, _steps_of_epochs(options, len(data.train), _world_size(trainer, options)))
    return 0 if length.steps == ANY_STEPS else length.steps


def _steps_of_epochs(options: TrainOptions, clips: int, world_size: int) -> int:
    return epoch_steps(options.length.max_epochs, clips, options.batches.clips_a_step(world_size))


def _world_size(trainer: Trainer, options: TrainOptions) -> int:
    return max(trainer.group.world_size, options.hardware.processes)  # a preflight has one process


def _batch_warnings(trainer: Trainer, options: TrainOptions) -> Iterator[str]:
    """A warning if a step has other clips than the preset's, whose learning rates are not scaled to them."""
    if options.optimization.scale_lr != "off" or not options.batches.batch_size:
        return
    clips = options.batches.clips_a_step(_world_size(trainer, options))
    usual = preset_clips_a_step(trainer.tts.family.name)
    if not usual / _UNUSUAL_BATCH_FACTOR <= clips <= usual * _UNUSUAL_BATCH_FACTOR:
        yield (f"A step has {clips} clips (batch size times accumulation times processes), {clips / usual:.3g} times "
               f"the {usual} of the preset for {trainer.tts.family.name}, and the learning rates are for its steps. "
               "Scale them (--scale-lr sqrt), or choose a batch of about that size.")


def preset_clips_a_step(family: str) -> int:
    """Clips of a step of the preset for `family`."""
    preset = presets.for_family(family, "train", TrainOptions)
    return preset.batches.clips_a_step(preset.hardware.processes)


def unused_option_warnings(options: TrainOptions) -> Iterator[str]:
    """Warnings about options that were set and have no effect in the scope, or together with others."""
    full, adapters, has_adapters = options.full, options.adapters, parameter_groups.has_adapters(options)
    if adapters.adapter != "lora" and not has_adapters:
        change = f"that changes {full.full_trainable!r} " if options.scope == "full" else ""
        yield (f"Adapter {adapters.adapter!r} has no effect: scope {options.scope!r} {change}has no adapters. Choose "
               "scope `gated`, or `full` with `--full-trainable adapters`.")
    if adapters.adapter_rank_conditioner and not has_adapters:
        yield (f"Adapter rank {adapters.adapter_rank_conditioner} in the voice conditioner has no effect: scope "
               f"{options.scope!r} has no adapters. Choose scope `gated`, or `full` with `--full-trainable "
               "adapters`.")
    fields = option_fields(TrainOptions)
    if options.scope != "full":
        named = _changed_options(options, [name for name, field in fields.items() if about(field, "scope") == "full"])
        if named:
            yield (f"Scope {options.scope!r} does not change the base, so these have no effect: {named}. "
                   "They are for scope `full`.")
        return
    trained = full.full_trainable
    named = _changed_options(options, [name for name, field in fields.items()
                                       if trained not in about(field, "full_trainable", [trained])])
    if named:
        yield f"Scope 'full' that changes {trained!r} trains nothing that these apply to: {named}."
    if full.replay == 0 and full.distillation > 0:
        yield f"Distillation {full.distillation:g} has no effect: it needs replayed clips, and replay is 0."
    named = _changed_options(options, ("fisher_clips",))
    if full.ewc == 0 and named:
        yield f"ewc is 0, so this has no effect: {named}."
    if full.replay_datasets.strip() and full.replay_texts.strip():
        yield (f"replay_texts ({full.replay_texts}) is ignored, because replay_datasets is set "
               f"({full.replay_datasets}).")


def _changed_options(options: TrainOptions, names: Iterable[str]) -> str:
    """Those of the options `names` that differ from their default, with title and value."""
    fields = option_fields(TrainOptions)
    return ", ".join(f"{fields[name].title} ({name} {option_value(options, name)})" for name in names
                     if option_value(options, name) != fields[name].default)


def _data_warnings(trainer: Trainer, options: TrainOptions) -> Iterator[str]:
    data = trainer.data.full_data or trainer.data
    if 0 < data.train_speech_s < presets.MIN_TRAIN_SPEECH_S:
        yield (f"There is little speech to train on: {duration_text(data.train_speech_s)} in "
               f"{pluralize(len(data.train), 'clip')}; {duration_text(presets.MIN_TRAIN_SPEECH_S)} is the least "
               "that has worked, 30 minutes or more is better.")

    # Every clip is used again and again: too often, and the model learns it by heart.
    steps = _planned_steps(trainer, options)
    uses = steps * options.batches.clips_a_step(_world_size(trainer, options)) / max(1, len(data.train))
    if uses > _OVERFITTING_EPOCHS:
        yield (f"Each of the {len(data.train)} clips is used {uses:.0f} times in {steps} steps: from about "
               f"{_OVERFITTING_EPOCHS} on the model overfits. Use fewer steps, or add recordings.")

    # A token that no training text uses keeps its starting row.
    trained = set(map(int, chain.from_iterable(item.text_ids for item in data.train)))
    pieces = [token for token in trainer.tts.front_end.added_tokens()
              if token.kind in ("character", "merge") and token.language in data.languages]
    warning = unused_pieces_warning(sum(token.id not in trained for token in pieces), len(pieces))
    if warning:
        yield warning

    # Few speakers and few held-out clips make results unreliable.
    speakers = {item.speaker for item in data.train}
    if len(speakers) == 1:
        yield (f"All {len(data.train)} clips have one speaker, {next(iter(speakers))!r}: the new language may sound "
               "worse in other voices.")
    if len(data.held_out) < presets.FEW_HELD_OUT:
        held_out = len(data.held_out)
        yield (f"Only {pluralize(held_out, 'clip')} {'is' if held_out == 1 else 'are'} held out: the best checkpoint "
               "is selected by very few clips. Prepare the dataset with a larger held-out share.")


def _learning_rate_warnings(trainer: Trainer, options: TrainOptions) -> Iterator[str]:
    preset = presets.for_family(trainer.tts.family.name, "train", TrainOptions)
    for name, part in _learning_rate_options(options).items():
        lr, preset_lr = float(option_value(options, name)), float(option_value(preset, name))
        if not preset_lr / _UNUSUAL_LR_FACTOR <= lr <= preset_lr * _UNUSUAL_LR_FACTOR:
            ratio = lr / preset_lr
            times = f"{ratio:.3g} times" if ratio > 1 else f"1/{1 / ratio:.3g} of"
            danger = "the training may diverge" if ratio > 1 else "the training may be too slow"
            yield (f"The learning rate of the {part} is {lr:g}, {times} that of the preset for "
                   f"{trainer.tts.family.name} ({preset_lr:g}): {danger}.")
    warmup, steps = options.optimization.warmup, options.length.steps
    if warmup >= steps:  # epochs and minutes shorten the warmup by themselves
        yield (f"The warmup of {warmup} steps is not shorter than the training of {steps} steps: the "
               f"learning rates only reach {steps / warmup:.3g} times their peak, and never fall. "
               "Choose a shorter warmup, or more steps.")


def _learning_rate_options(options: TrainOptions) -> dict[str, str]:
    """The options that are learning rates of this training, and what they are the learning rates of."""
    parts = parameter_groups.changed_parts(options)
    used = {"row_lr": "rows", "adapter_lr": "adapters" if parameter_groups.has_adapters(options) else "",
            "layer_lr": "layers" if set(parts) - {parameter_groups.HEADS} else "",
            "head_lr": "heads" if parameter_groups.HEADS in parts else ""}
    return {name: part for name, part in used.items() if part}


def _disk_warnings(trainer: Trainer, run_dir: Path, options: CheckpointOptions, steps: int) -> Iterator[str]:
    size = checkpoint_bytes(trainer)
    # Beside the last checkpoints there are the best one and one that is being written.
    count = min(options.keep_last + 2, 1 + -(-steps // options.checkpoint_every))
    free = shutil.disk_usage(run_dir).free
    if free < size * count:
        yield (f"The disk may not hold the checkpoints: {count} of about {size_text(size)} are there at once, "
               f"{size_text(size * count)}, and {size_text(free)} are free. Free some space, or keep fewer.")


def check_first_checkpoint(trainer: Trainer, run_dir: Path) -> None:
    """`UserError` if the disk has no room for one checkpoint: before the first step, not after hours."""
    needed = checkpoint_bytes(trainer) + checkpoint.earlier_bytes(trainer.tts) + checkpoint.OTHER_FILES
    free = shutil.disk_usage(run_dir).free
    if free < needed:
        raise UserError(f"The first checkpoint needs about {size_text(needed)}, and {size_text(free)} are free in "
                        f"{run_dir}.",
                        "Free some space on that disk, then start again; or use another workspace (--workspace).")


def checkpoint_bytes(trainer: Trainer) -> int:
    """Of the tensors in a checkpoint: what is trained, its two moments, and the values beside their average."""
    options, trained = trainer.options, list(trainer.trainables.named.values())
    values = sum(value.nbytes for value in trained)
    moments = sum(map(_moment_bytes_8bit, trained)) if options.optimization.optimizer == "adamw8bit" else 2 * values
    return values + moments + (values if options.optimization.ema else 0)


def _moment_bytes_8bit(value: torch.Tensor) -> int:
    """Bytes of bitsandbytes' two moments of `value`, with the scale of each block and the code books."""
    count = value.numel()
    if count < _MIN_8BIT_ELEMENTS:
        return 8 * count
    return 2 * (count + 4 * -(-count // _BLOCK_ELEMENTS) + 4 * _CODE_BOOK_ELEMENTS)
