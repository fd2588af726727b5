"""Presets of a training: by how much speech there is, and by the memory of a GPU. Never loads torch.

What a preset is for stands in its file (`config/presets`), with its sources; here one is chosen and fitted to a
dataset. Batches are sized in tokens there and in clips in a training's options: the clips' mean length is between.
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
CLASSES = (16, 24, 80)
TITLES: Mapping[str, str] = {"demo": "Demo (up to 1 h)", "small-data": "Small data (1 to 5 h)",
                             "standard": "Standard (5 to 50 h)", "large": "Large (50 h and more)"}
NOT_MEASURED = "Not yet measured: its values are a first guess from known practice, with the sources in its file."
TOKENS_A_SECOND = 40  # about 25 codes and 15 letters
_CLIP_S = 6.0  # where no dataset says how long its clips are
_SHARE = 0.88  # a card of "16 GB" tells 15.0 GiB, one of "24 GB" 22.5
_NAMES_OF_THINGS = ("extension", "dataset", "device", "seed")
_MOST_CLIPS = 512  # in one batch, by the schema


@dataclass(frozen=True)
class Speech:
    """How much a dataset has; None where that is not known."""

    clips: int | None = None
    seconds: float | None = None

    @property
    def clip_s(self) -> float:
        return self.seconds / self.clips if self.clips and self.seconds else _CLIP_S


@dataclass(frozen=True)
class Chosen:
    """A preset fitted to a family, a dataset and a memory class: what it sets, and why it was taken."""

    name: str
    title: str
    about: str
    measured: bool
    values: Mapping[str, str | int | float | bool | None]  # options of a training that it sets
    reasons: tuple[str, ...]  # how preset and memory class came to be

    @property
    def options(self) -> TrainOptions:
        return parse_options(TrainOptions, self.values)

    @property
    def words(self) -> str:
        """What it is for, and that nobody measured it where nobody did."""
        return self.about if self.measured else f"{self.about} {NOT_MEASURED}"


def by_speech(speech: Speech) -> tuple[str, str]:
    """The preset for so much speech, and why."""
    if speech.seconds is None:
        return "demo", "No dataset says how much speech there is, so it is the smallest preset."
    hours = speech.seconds / 3600
    name = next(name for name in NAMES if hours < _about(name, _ANY)["hours"][1])
    return name, f"Chosen by the dataset's {_hours(hours)} of speech."


def by_memory(gpus: Sequence[Gpu]) -> tuple[int | None, str]:
    """The memory class of the smallest of the GPUs, None for no GPU; and why."""
    if not gpus:
        return None, ("No GPU was found on this machine: batches are those for 16 GB, and a processor takes far "
                      "longer for each step.")
    smallest = min(gpus, key=lambda gpu: gpu.total_mib)
    seen = f"{len(gpus)} times " if len(gpus) > 1 else ""
    seen += f"{smallest.name} with {smallest.total_gib:.0f} GiB"
    fitting = [one for one in CLASSES if smallest.total_gib >= _SHARE * one]
    if not fitting:
        return CLASSES[0], f"Found: {seen}. That is less than the smallest class, 16 GB: check first whether it fits."
    return fitting[-1], f"Found: {seen}, so it is the class of {fitting[-1]} GB."


def choose(family: str, speech: Speech, gpus: Sequence[Gpu], name: str = "auto", memory: str = "auto") -> Chosen:
    """The preset `name` for a memory class in GB; `auto` chooses by the speech there is and the GPUs found."""
    reasons = []
    if name in ("", "auto"):
        name, why = by_speech(speech)
        reasons.append(why)
    elif name not in NAMES:
        raise UserError(f"There is no preset named {name!r}.", f"There are auto, {', '.join(NAMES)}.")
    size, why = by_memory(gpus)
    if memory not in ("", "auto"):
        if memory not in get_args(Memory):
            raise UserError(f"There is no memory class {memory!r}.", "There are auto, 16, 24 and 80 (GB).")
        size, why = int(memory), _asked(int(memory), size, gpus)
    reasons.append(why)
    about = _about(name, family)
    processes = max(1, len(gpus)) if about.get("every_gpu") else 1
    if about.get("every_gpu") and processes == 1:
        reasons.append("It is made for several GPUs; here it is one process, with batches added up to the same step.")
    own = {**dict(about["memory"][size or CLASSES[0]]), **about.get("families", {}).get(family, {})}
    if size is None:
        own.pop("activation_checkpointing", None)  # a processor's memory is measured before the start
    values = {**_training(_file(name, family)), **_batches(own, about, speech, processes)}
    kept = {field: value for field, value in values.items() if field not in _NAMES_OF_THINGS}
    return Chosen(name, TITLES[name], about["about"], bool(about.get("measured")), kept, tuple(reasons))


def settled_fields() -> tuple[str, ...]:
    """Options of a training that some preset sets, in the schema's order."""
    found: set[str] = {"processes"}
    for family in catalog.FAMILIES:
        for name in NAMES if family.available else ():
            found |= set(choose(family.name, Speech(), (), name, "16").values)
    return tuple(name for name in TrainOptions.model_fields if name in found)


def _batches(own: dict[str, Any], about: Mapping[str, Any], speech: Speech, processes: int) -> dict[str, Any]:
    """Clips in a batch, batches in a step, and processes, for the tokens that they should hold."""
    tokens = own.pop("batch_tokens", None)
    if tokens is None:
        return own
    clip = max(1.0, speech.clip_s * TOKENS_A_SECOND)
    batch = min(_MOST_CLIPS, max(1, math.floor(tokens / clip)))
    wanted = max(1, round(about["step_tokens"] / clip))  # clips in a step
    batch = min(batch, max(1, math.ceil(wanted / processes)))
    accumulation = min(256, max(1, round(wanted / (batch * processes))))
    return {**own, "batch_size": batch, "gradient_accumulation": accumulation, "processes": processes}


def _asked(wanted: int, found: int | None, gpus: Sequence[Gpu]) -> str:
    """That a person chose the class, and what this machine has."""
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
