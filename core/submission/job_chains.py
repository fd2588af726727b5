"""The chain of jobs of the Start tab and of the demo (`scripts/demo.py`): download, prepare, tokenizer, extend, train.

Each job names the one before it in `after`, so all can be started at once, and a failure ends the chain there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from config.loading import parse_options
from config.schema import CompareOptions, Options, TrainOptions
from core.jobs.job import Job
from core.jobs.verbs import VERBS, read_preset
from core.submission.jobs import submit
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


def submit_chain(workspace: Workspace, options: ChainOptions | None = None, *, comparison: CompareOptions | None = None,
                 certificate: bool = True) -> list[Job]:
    """Create the jobs of the chain, and what follows its training, without starting them (see `submit`)."""
    chain = options or ChainOptions()
    *preparation, (verb, training) = chain_steps(chain)
    return submit(workspace, verb, training, name=chain.name, preparation=preparation, comparison=comparison,
                  certificate=certificate)


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
