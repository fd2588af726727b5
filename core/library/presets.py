"""Training presets, chosen by the amount of speech and the memory of the GPU. Never loads torch.

The files in `config/presets` describe them, with sources. They give batch sizes in tokens, and training takes clips;
this module converts them by the mean length of the dataset's clips.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from config.errors import UserError
from config.loading import parse_options
from config.schema import TrainOptions
from core.jobs.gpus import Gpu
from core.jobs.verbs import PRESET_ABOUT, read_preset
from core.library import catalog

FOLDER = Path(__file__).resolve().parents[2] / "config" / "presets"
Name = Literal["demo", "small-data", "standard", "large"]
Memory = Literal["auto", "16", "24", "80"]
NAMES: tuple[str, ...] = get_args(Name)
MEMORY_CLASSES_GB = (16, 24, 80)
TITLES: Mapping[str, str] = {"demo": "Demo (up to 1 h)", "small-data": "Small data (1 to 5 h)",
                             "standard": "Standard (5 to 50 h)", "large": "Large (50 h and more)"}
NOT_MEASURED = "Not yet measured: its values are a first guess from known practice, with the sources in its file."
TOKENS_A_SECOND = 40  # about 25 codes and 15 letters
_CLIP_S = 6.0  # where no dataset says how long its clips are
_SHARE = 0.88  # a card of "16 GB" reports 15.0 GiB, one of "24 GB" 22.5
_NOT_IN_PRESETS = ("extension", "dataset", "device", "seed")
_MAX_CLIPS = 512  # in one batch, by the schema


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
    reasons: tuple[str, ...]  # for the preset and the memory class

    @property
    def options(self) -> TrainOptions:
        return parse_options(TrainOptions, self.values)

    @property
    def words(self) -> str:
        """Its purpose, and whether it was measured."""
        return self.about if self.measured else f"{self.about} {NOT_MEASURED}"


def preset_for_speech(speech: SpeechAmount) -> tuple[str, str]:
    """The preset for an amount of speech, and the reason."""
    if speech.seconds is None:
        return "demo", "No dataset says how much speech there is, so it is the smallest preset."
    hours = speech.seconds / 3600
    name = next(name for name in NAMES if hours < _about(name, _ANY)["hours"][1])
    return name, f"Chosen by the dataset's {_hours(hours)} of speech."


def memory_class_for(gpus: Sequence[Gpu]) -> tuple[int | None, str]:
    """The memory class of the smallest GPU, None without GPUs; and the reason."""
    if not gpus:
        return None, ("No GPU was found on this machine: batches are those for 16 GB, and a processor takes far "
                      "longer for each step.")
    smallest = min(gpus, key=lambda gpu: gpu.total_mib)
    seen = f"{len(gpus)} times " if len(gpus) > 1 else ""
    seen += f"{smallest.name} with {smallest.total_gib:.0f} GiB"
    fitting = [one for one in MEMORY_CLASSES_GB if smallest.total_gib >= _SHARE * one]
    if not fitting:
        return MEMORY_CLASSES_GB[0], (f"Found: {seen}. That is less than the smallest class, 16 GB: check first "
                                      "whether it fits.")
    return fitting[-1], f"Found: {seen}, so it is the class of {fitting[-1]} GB."


def fit_preset(family: str, speech: SpeechAmount, gpus: Sequence[Gpu], name: str = "auto",
               memory: str = "auto") -> FittedPreset:
    """The preset `name` for a memory class in GB; `auto` chooses by the speech there is and the GPUs found."""
    reasons = []
    if name in ("", "auto"):
        name, why = preset_for_speech(speech)
        reasons.append(why)
    elif name not in NAMES:
        raise UserError(f"There is no preset named {name!r}.", f"There are auto, {', '.join(NAMES)}.")
    size, why = memory_class_for(gpus)
    if memory not in ("", "auto"):
        if memory not in get_args(Memory):
            raise UserError(f"There is no memory class {memory!r}.", "There are auto, 16, 24 and 80 (GB).")
        size, why = int(memory), _chosen_memory(int(memory), size, gpus)
    reasons.append(why)
    about = _about(name, family)
    processes = max(1, len(gpus)) if about.get("every_gpu") else 1
    if about.get("every_gpu") and processes == 1:
        reasons.append("It is made for several GPUs; here it is one process, with batches added up to the same step.")
    own = {**dict(about["memory"][size or MEMORY_CLASSES_GB[0]]), **about.get("families", {}).get(family, {})}
    if size is None:
        own.pop("activation_checkpointing", None)  # a processor's memory is measured before the start
    values = {**_training(_file(name, family)), **_batches(own, about, speech, processes)}
    kept = {field: value for field, value in values.items() if field not in _NOT_IN_PRESETS}
    return FittedPreset(name, TITLES[name], about["about"], bool(about.get("measured")), kept, tuple(reasons))


def preset_fields() -> tuple[str, ...]:
    """Training options that some preset sets, in the schema's order."""
    found: set[str] = {"processes"}
    for family in catalog.FAMILIES:
        for name in NAMES if family.available else ():
            found |= set(fit_preset(family.name, SpeechAmount(), (), name, "16").values)
    return tuple(name for name in TrainOptions.model_fields if name in found)


def _batches(own: dict[str, Any], about: Mapping[str, Any], speech: SpeechAmount, processes: int) -> dict[str, Any]:
    """Clips in a batch, batches in a step, and processes, for the tokens that they should hold."""
    tokens = own.pop("batch_tokens", None)
    if tokens is None:
        return own
    clip = max(1.0, speech.clip_s * TOKENS_A_SECOND)
    batch = min(_MAX_CLIPS, max(1, math.floor(tokens / clip)))
    wanted = max(1, round(about["step_tokens"] / clip))  # clips in a step
    batch = min(batch, max(1, math.ceil(wanted / processes)))
    accumulation = min(256, max(1, round(wanted / (batch * processes))))
    return {**own, "batch_size": batch, "gradient_accumulation": accumulation, "processes": processes}


def _chosen_memory(wanted: int, found: int | None, gpus: Sequence[Gpu]) -> str:
    """The reason for a memory class that the user chose."""
    if found is None:
        return f"For {wanted} GB, as asked for; no GPU was found on this machine."
    least = min(gpu.total_gib for gpu in gpus)
    short = " It has less than that." if wanted > found else ""
    return f"For {wanted} GB, as asked for; the GPU of this machine has {least:.0f} GiB.{short}"


_ANY = "tiny"  # bounds of hours are the same for all families


def _file(name: str, family: str) -> Path:
    return FOLDER / f"{catalog.family(family).preset if name == 'demo' else name}.yaml"


def _about(name: str, family: str) -> Mapping[str, Any]:
    return _section(_file(name, family))


@cache
def _section(path: Path) -> Mapping[str, Any]:
    values: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))[PRESET_ABOUT]
    return values


@cache
def _training(path: Path) -> Mapping[str, object]:
    return read_preset(path, "train")


def _hours(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{hours * 60:.0f} min"
