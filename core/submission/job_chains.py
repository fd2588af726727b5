"""The chain of jobs of the Start tab and of `scripts.demo`: download, prepare, tokenizer, extend, train.

Each job names the one before it in `after`, so all can be started at once, and a failure ends the chain there. The job
that certifies a training is created here too.
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
from core.jobs.job import Job, check_id_free, create_job, load_job
from core.jobs.verbs import VERBS, read_preset
from core.library import catalog
from core.workspace import Workspace

PRESET = Path(__file__).resolve().parents[2] / "config" / "presets" / "demo.yaml"
Chosen = TypeVar("Chosen", bound=Options)


@dataclass(frozen=True)
class ChainOptions:
    """The choices on the Start tab; the defaults are the demo."""

    model: str = "tiny"
    model_present: bool = False  # without a download job
    source: str = "demo"  # see `config.schema.PrepareOptions`
    dataset: str = "amharic-demo"
    language: str = "am"
    any_script: bool = False
    keep_edges: bool = False
    remove_unspoken: bool = False
    rules: str = "am"  # text rules; they verbalize numbers
    merges: int = 0
    train: TrainOptions = field(default_factory=lambda: demo_options("train", TrainOptions))  # without dataset, model
    name: str | None = None  # name of the training run
    extended_name: str = ""  # see `extended`

    @property
    def extended(self) -> str:
        """The name of both the tokenizer and the extension."""
        return self.extended_name or f"{self.model}-{self.language.replace(',', '-')}"


def demo_options(verb: str, kind: type[Chosen]) -> Chosen:
    """Options of one verb as the demo sets them, from `config/presets/demo.yaml`."""
    return parse_options(kind, read_preset(PRESET, verb))


def create_chain(workspace: Workspace, options: ChainOptions | None = None) -> list[Job]:
    """Create the jobs in order, without starting them (see `control.start`).

    A name that is invalid, or that another run has, raises `UserError` before any job is created.
    """
    chosen = options or ChainOptions()
    steps = chain_steps(chosen)
    if chosen.name is not None:
        check_id_free(workspace, chosen.name)
    jobs: list[Job] = []
    for verb, step in steps:
        after = (jobs[-1].id,) if jobs else ()
        jobs.append(create_job(workspace, verb, step, after=after, job_id=chosen.name if verb == "train" else None))
    return jobs


def use_named_checkpoint(workspace: Workspace, options: CertifyOptions) -> None:
    """Select the checkpoint that `run:ID@STEP` names, before the job that certifies it is created.

    `run:ID@best` ends an earlier choice. Nothing changes if that checkpoint is selected already.
    """
    if options.run.startswith("export:"):
        return
    name, _, checkpoint = catalog.require_run(options.run).removeprefix("run:").partition("@")
    chosen = pinned_names(workspace.run(name)).get(CHOICE)
    if checkpoint == BEST and chosen is not None:
        control.use_checkpoint(load_job(workspace, name), "")
    elif checkpoint not in ("", BEST) and catalog.resolve(workspace, options.run).step != chosen:
        control.use_checkpoint(load_job(workspace, name), checkpoint)


def create_certify_job(training: Job) -> Job:
    """Create the job that certifies a training after it has finished, without starting it."""
    options = CertifyOptions(run=f"run:{training.id}", device=TrainOptions(**training.settings).device)
    return create_job(training.workspace, "certify", options, after=(training.id,))


def chain_steps(chosen: ChainOptions) -> list[tuple[str, Options]]:
    """Verb and options of each job of the chain."""
    model, dataset, rules = {"model": chosen.model}, {"dataset": chosen.dataset}, {"rules": chosen.rules}
    tokenizer, extended = {"tokenizer": chosen.extended}, {"extension": chosen.extended}
    values: dict[str, Mapping[str, object]] = {
        "download": {} if chosen.model_present else model,
        "prepare": {**model, **dataset, "source": chosen.source, "language": chosen.language,
                    "any_script": chosen.any_script, "keep_edges": chosen.keep_edges,
                    "remove_unspoken": chosen.remove_unspoken, **rules},
        "tokenizer": {**model, **dataset, **tokenizer, "merges": chosen.merges, **rules},
        "extend": {**model, **tokenizer, **extended},
        "train": {**chosen.train.model_dump(), **dataset, **extended},
    }
    return [(verb, parse_options(VERBS[verb].options, fields)) for verb, fields in values.items() if fields]
