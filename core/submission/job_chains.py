"""Chains of jobs: model, dataset, tokenizer, embeddings, training and its certificate; by default those of the demo.

The Start page and `scripts.demo` make the same chain. Each job names the one before it in `after`, so all can be
started at once and a failure ends the chain where it happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from config.loading import parse_options
from config.schema import CertifyOptions, Options, TrainOptions
from core.jobs import control
from core.jobs.checkpoint_names import BEST, CHOICE, pinned_names
from core.jobs.directory import Job, check_name_free, create_job, load_job
from core.jobs.verbs import VERBS, read_preset
from core.library import catalog
from core.workspace import Workspace

PRESET = Path(__file__).resolve().parents[2] / "config" / "presets" / "demo.yaml"
Chosen = TypeVar("Chosen", bound=Options)


@dataclass(frozen=True)
class ChainOptions:
    """What a person picks on the Start page; the defaults are the demo."""

    model: str = "tiny"
    model_present: bool = False  # it need not be downloaded
    source: str = "demo"  # `demo`, `as-is`, or a folder or table of text and audio
    dataset: str = "amharic-demo"
    language: str = "am"
    any_script: bool = False
    rules: str = "am"  # they verbalize numbers, so that digits can be typed later
    merges: int = 0
    train: TrainOptions = field(default_factory=lambda: demo_options("train", TrainOptions))  # the chain sets names
    name: str | None = None  # of the training run
    extended_name: str = ""  # see `extended`

    @property
    def extended(self) -> str:
        """Name of both the merged tokenizer and the extended model."""
        return self.extended_name or f"{self.model}-{self.language.replace(',', '-')}"


def demo_options(verb: str, kind: type[Chosen]) -> Chosen:
    """Options of one verb as the demo sets them, from `config/presets/demo.yaml`."""
    return parse_options(kind, read_preset(PRESET, verb))


def create_chain(workspace: Workspace, options: ChainOptions | None = None) -> list[Job]:
    """Write the jobs, in order, not yet started; `control.start` each of them.

    A name that is wrong, or taken by another run, raises `UserError` before any job is made.
    """
    chosen = options or ChainOptions()
    steps = chain_steps(chosen)
    if chosen.name is not None:
        check_name_free(workspace, chosen.name)
    made: list[Job] = []
    for verb, step in steps:
        after = (made[-1].id,) if made else ()
        made.append(create_job(workspace, verb, step, after=after, name=chosen.name if verb == "train" else None))
    return made


def choose_checkpoint(workspace: Workspace, options: CertifyOptions) -> None:
    """Let the run stand for the checkpoint that `run:ID@STEP` names, before the job that certifies it is made.

    `run:ID@best` ends a choice. What the run stands for already is no change.
    """
    name, _, wanted = catalog.require_run(options.run).removeprefix("run:").partition("@")
    chosen = pinned_names(workspace.run(name)).get(CHOICE)
    if wanted == BEST and chosen is not None:
        control.use_checkpoint(load_job(workspace, name), "")
    elif wanted not in ("", BEST) and catalog.resolve(workspace, options.run).step != chosen:
        control.use_checkpoint(load_job(workspace, name), wanted)


def create_proof(training: Job) -> Job:
    """Write the job that certifies a training when it has finished, not yet started."""
    options = CertifyOptions(run=f"run:{training.id}", device=TrainOptions(**training.settings).device)
    return create_job(training.workspace, "certify", options, after=(training.id,))


def chain_steps(chosen: ChainOptions) -> list[tuple[str, Options]]:
    """Verb and options of each job of the chain."""
    model, dataset, rules = {"model": chosen.model}, {"dataset": chosen.dataset}, {"rules": chosen.rules}
    tokenizer, extended = {"tokenizer": chosen.extended}, {"extension": chosen.extended}
    values: dict[str, Mapping[str, object]] = {
        "download": {} if chosen.model_present else model,
        "prepare": {**model, **dataset, "source": chosen.source, "language": chosen.language,
                    "any_script": chosen.any_script, **rules},
        "tokenizer": {**model, **dataset, **tokenizer, "merges": chosen.merges, **rules},
        "extend": {**model, **tokenizer, **extended},
        "train": {**chosen.train.model_dump(), **dataset, **extended},
    }
    return [(verb, parse_options(VERBS[verb].options, given)) for verb, given in values.items() if given]
