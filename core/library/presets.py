"""The presets of a training, fitted to a family, an amount of speech and the memory of the GPUs. Never loads torch.

A preset is a file of `config/presets`; the page and the command line show what it sets, and why it was chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import yaml

from config import foreign
from config.errors import UserError
from config.loading import parse_options
from config.schema import Options, TrainOptions, option_fields
from core.jobs.gpus import Gpu
from core.jobs.reporter import duration_text
from core.jobs.verbs import PRESET_ABOUT, read_preset
from core.library import catalog
from core.workspace import Workspace

PRESETS = Path(__file__).resolve().parents[2] / "config" / "presets"
Name = Literal["demo", "small-data", "standard", "large"]
Memory = Literal["auto", "16", "24", "80"]
NAMES: tuple[str, ...] = get_args(Name)
MEMORY_CLASSES_GB = (16, 24, 80)
TITLES: Mapping[str, str] = {"demo": "Demo (up to 1 h)", "small-data": "Small data (1 to 5 h)",
                             "standard": "Standard (5 to 50 h)", "large": "Large (50 h and more)"}
NOT_MEASURED = "Not yet measured: its values are a first guess from known practice, with the sources in its file."
# With 11 minutes the built-in model learns, with 16% CER; with 43, with 6%.
MIN_TRAIN_SPEECH_S = 600.0
FEW_HELD_OUT = 3  # clips; fewer choose the best checkpoint by next to nothing
LETTERS_PER_SECOND = 15  # about; text ids beside the codes
# The length of a clip if no dataset says how long its clips are.
_CLIP_S = 6.0
_SHARE = 0.88  # a card of "16 GB" reports 15.0 GiB, one of "24 GB" 22.5
_NOT_IN_PRESETS = ("extension", "dataset", "device", "seed")
_MAX_CLIPS = 512  # clips in one batch, by the schema
_ANY = "tiny"  # bounds of hours are the same for all families
OptionsT = TypeVar("OptionsT", bound=Options)


@dataclass(frozen=True)
class SpeechAmount:
    """Clips and seconds of a dataset; None where not known."""

    clips: int | None = None
    seconds: float | None = None

    @property
    def clip_s(self) -> float:
        return self.seconds / self.clips if self.clips and self.seconds else _CLIP_S


@dataclass(frozen=True)
class FittedPreset:
    """A preset fitted to a family, a dataset and a memory class, with the reasons for the choice."""

    name: str
    title: str
    about: str
    measured: bool
    values: Mapping[str, str | int | float | bool | None]  # options of a training that it sets
    reasons: tuple[str, ...]  # reasons for the preset and the memory class

    @property
    def options(self) -> TrainOptions:
        return parse_options(TrainOptions, self.values)

    @property
    def words(self) -> str:
        """Its purpose, and whether it was measured."""
        return self.about if self.measured else f"{self.about} {NOT_MEASURED}"


@cache
def for_family(family: str, verb: str, kind: type[OptionsT]) -> OptionsT:
    """The options of one verb that suit a family."""
    return parse_options(kind, read_preset(PRESETS / f"{catalog.find_entry(family).preset}.yaml", verb))


def speech_amount_of(workspace: Workspace, dataset: str) -> SpeechAmount:
    """How much speech a prepared dataset has; unknown for one that is missing or damaged."""
    try:
        about = foreign.read_yaml(workspace.dataset(dataset) / "dataset.yaml")
        return SpeechAmount(int(about["clips"]), float(about["duration_s"]))
    except (UserError, OSError, ValueError, KeyError, TypeError, ArithmeticError):
        return SpeechAmount()


def name_for_speech(speech: SpeechAmount) -> tuple[str, str]:
    """The preset for an amount of speech, and the reason."""
    if speech.seconds is None:
        return "demo", "No dataset says how much speech there is, so it is the smallest preset."
    hours = speech.seconds / 3600
    name = next(name for name in NAMES if hours < _about(name, _ANY)["hours"][1])
    return name, f"Chosen by the dataset's {duration_text(speech.seconds)} of speech."


def memory_class_for(gpus: Sequence[Gpu], *, on_cpu: bool = False) -> tuple[int | None, str]:
    """The memory class of the smallest GPU, None without GPUs or `on_cpu`; and the reason."""
    if on_cpu or not gpus:
        subject = "Device is cpu" if on_cpu else "No GPU was found on this machine"
        return None, (f"{subject}: batches are those for 16 GB, and a CPU takes far "
                      "longer for each step.")
    # All processes take batches of one size, so the smallest GPU decides.
    smallest = min(gpus, key=lambda gpu: gpu.total_mib)
    seen = f"{len(gpus)} times " if len(gpus) > 1 else ""
    seen += f"{smallest.name} with {smallest.total_gib:.0f} GiB"
    fitting = [size for size in MEMORY_CLASSES_GB if smallest.total_gib >= _SHARE * size]
    if not fitting:
        return MEMORY_CLASSES_GB[0], (f"Found: {seen}. That is less than the smallest class, 16 GB: check first "
                                      "whether it fits.")
    return fitting[-1], f"Found: {seen}, so it is the class of {fitting[-1]} GB."


def fit(family: str, speech: SpeechAmount, gpus: Sequence[Gpu], name: str = "auto", memory: str = "auto", *,
        on_cpu: bool = False) -> FittedPreset:
    """The preset `name` for a memory class in GB; `auto` chooses by the speech there is and the GPUs found.

    `on_cpu`: the training uses none of the `gpus`.
    """
    gpus = () if on_cpu else gpus

    reasons = []
    if name in ("", "auto"):
        name, reason = name_for_speech(speech)
        reasons.append(reason)
    elif name not in NAMES:
        raise UserError(f"There is no preset named {name!r}.", f"There are auto, {', '.join(NAMES)}.")

    size, reason = memory_class_for(gpus, on_cpu=on_cpu)
    if memory not in ("", "auto"):
        if memory not in get_args(Memory):
            raise UserError(f"There is no memory class {memory!r}.", "There are auto, 16, 24 and 80 (GB).")
        size, reason = int(memory), _chosen_memory(int(memory), size, gpus, on_cpu=on_cpu)
    reasons.append(reason)

    about = _about(name, family)
    processes = max(1, len(gpus)) if about.get("every_gpu") else 1
    if about.get("every_gpu") and processes == 1:
        reasons.append("It is made for several GPUs; here it is one process, with batches added up to the same step.")
    batch_values = {**dict(about["memory"][size or MEMORY_CLASSES_GB[0]]), **about.get("families", {}).get(family, {})}
    if size is None:
        # A CPU's memory is measured before the start instead.
        batch_values.pop("activation_checkpointing", None)
    clip_tokens = speech.clip_s * tokens_per_second(family)
    values = {**_training(_file(name, family)), **_batches(batch_values, about, clip_tokens, processes)}
    preset_values = {field: value for field, value in values.items() if field not in _NOT_IN_PRESETS}
    return FittedPreset(name, TITLES[name], about["about"], bool(about.get("measured")), preset_values, tuple(reasons))


def set_options() -> tuple[str, ...]:
    """Training options that some preset sets, in the schema's order."""
    names: set[str] = {"processes"}
    for family in catalog.CATALOG:
        for name in NAMES:
            names |= set(fit(family.name, SpeechAmount(), (), name, "16").values)
    return tuple(name for name in option_fields(TrainOptions) if name in names)


def tokens_per_second(family: str) -> float:
    """Codes and text ids of a second of speech, about."""
    return catalog.find_entry(family).codes_per_second + LETTERS_PER_SECOND


def _batches(batch_values: dict[str, Any], about: Mapping[str, Any], clip_tokens: float,
             processes: int) -> dict[str, Any]:
    """Clips in a batch, batches in a step, and processes, for the tokens that they should hold."""
    tokens = batch_values.pop("batch_tokens", None)
    if tokens is None:
        return batch_values
    clip = max(1.0, clip_tokens)
    # The product of a rounded quotient could exceed the tokens.
    batch = min(_MAX_CLIPS, max(1, int(tokens // clip)))
    clips_per_step = max(1, round(about["step_tokens"] / clip))  # clips in a step
    batch = min(batch, max(1, math.ceil(clips_per_step / processes)))
    accumulation = min(256, max(1, round(clips_per_step / (batch * processes))))
    return {**batch_values, "batch_size": batch, "gradient_accumulation": accumulation, "processes": processes}


def _chosen_memory(chosen_gb: int, found_gb: int | None, gpus: Sequence[Gpu], *, on_cpu: bool) -> str:
    """The reason for a memory class that the user chose."""
    if found_gb is None:
        reason = "the device is cpu" if on_cpu else "no GPU was found on this machine"
        return f"For {chosen_gb} GB, as requested; {reason}."
    least = min(gpu.total_gib for gpu in gpus)
    short = " It has less than that." if chosen_gb > found_gb else ""
    return f"For {chosen_gb} GB, as requested; the GPU of this machine has {least:.0f} GiB.{short}"


def _file(name: str, family: str) -> Path:
    return PRESETS / f"{catalog.find_entry(family).preset if name == 'demo' else name}.yaml"


def _about(name: str, family: str) -> Mapping[str, Any]:
    return _section(_file(name, family))


@cache
def _section(path: Path) -> Mapping[str, Any]:
    values: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))[PRESET_ABOUT]
    return values


@cache
def _training(path: Path) -> Mapping[str, object]:
    return read_preset(path, "train")
