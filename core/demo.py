"""The main job as one chain of jobs: model, dataset, tokenizer, embeddings, training. Never loads torch.

The Start page and `scripts.demo` make the same chain. Each job names the one before it in
`after`, so all can be started at once and a failure ends the chain where it happened.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from config.loading import parse_options, read_preset
from config.schema import VERBS, Options, TrainOptions
from core.job.directory import Job, check_free, create
from core.workspace import Workspace

PRESET = Path(__file__).resolve().parent.parent / "config" / "presets" / "demo.yaml"
Chosen = TypeVar("Chosen", bound=Options)


@dataclass(frozen=True)
class ChainOptions:
    """What a person picks on the Start page; the defaults are the demo."""

    model: str = "tiny"
    there: bool = False  # the model needs no first step that gets it
    source: str = "demo"  # `demo`, `as-is`, or a folder or table of text and audio
    dataset: str = "amharic-demo"
    language: str = "am"
    rules: str = "am"  # that write numbers out, so that digits can be typed later, if they are not learnt
    merges: int = 0
    train: TrainOptions = field(default_factory=lambda: preset("train", TrainOptions))  # names are set by the chain
    name: str | None = None  # of the training run
    named: str = ""  # see `extended`

    @property
    def extended(self) -> str:
        """Name of both the merged tokenizer and the extended model."""
        return self.named or f"{self.model}-{self.language}"


def preset(verb: str, kind: type[Chosen]) -> Chosen:
    """Options of one verb as the demo sets them, from `config/presets/demo.yaml`."""
    return parse_options(kind, read_preset(PRESET, verb))


def chain(workspace: Workspace, options: ChainOptions | None = None) -> list[Job]:
    """Write the jobs, in order, not yet started; `jobs.start` each of them.

    A name that is wrong, or taken by another run, raises `UserError` before any job is made.
    """
    chosen = options or ChainOptions()
    planned = steps(chosen)
    if chosen.name is not None:
        check_free(workspace, chosen.name)
    made: list[Job] = []
    for verb, settings in planned:
        after = (made[-1].id,) if made else ()
        made.append(create(workspace, verb, settings, after=after, name=chosen.name if verb == "train" else None))
    return made


def steps(chosen: ChainOptions) -> list[tuple[str, Options]]:
    """Verb and options of each job of the chain."""
    model, dataset, extended = {"model": chosen.model}, {"dataset": chosen.dataset}, {"extension": chosen.extended}
    tokenizer = {"tokenizer": chosen.extended}
    rules = {"rules": chosen.rules}
    values: dict[str, dict[str, object]] = {
        "download": {**model},
        "prepare": {**model, **dataset, "source": chosen.source, "language": chosen.language, **rules},
        "tokenizer": {**model, **dataset, **tokenizer, "merges": chosen.merges, **rules},
        "extend": {**model, **tokenizer, **extended},
        "train": {**chosen.train.model_dump(), **dataset, **extended},
    }
    if chosen.there:
        del values["download"]
    return [(verb, parse_options(VERBS[verb], given)) for verb, given in values.items()]
