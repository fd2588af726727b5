"""Every kind of adapter through the verbs: trained, stopped, resumed, certified, exported and loaded again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel

from core import export, train
from core.export import same_logits
from core.jobs import checkpoint_names
from core.jobs.checkpoint_names import checkpoint_steps
from core.jobs.events import Event, Journal
from core.jobs.job import Job as StoredJob
from core.jobs.job import create_job
from core.jobs.reporter import StopRequested
from core.library import certificate
from core.model.loading import TTSModel, load, load_checkpoint
from core.workspace import Workspace
from models.speech_network import T3
from models.tiny.family import _language_model_config
from models.tiny.model_folder import load_module
from tests.contract.test_export import probes
from tests.contract.test_resume import evaluations, losses
from tests.worlds import DEVICE, Listener, export_options, extended_world, train_and_certify, train_options

STEPS = 6
CHANGES = {"steps": STEPS, "checkpoint_every": 3, "adapter_dropout": 0.2, "warmup": 0, "evaluation_sentences": 1,
           "adapter_lr": 0.05, "adapter_rank": 2}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return extended_world(tmp_path_factory.mktemp("world") / "workspace")


class Job(Listener):
    """A listener that keeps a job's journal, by which its checkpoints are found."""

    def __init__(self, made: StoredJob, stop_after: int | None = None) -> None:
        super().__init__(made.directory, stop_after)
        self.journal = Journal(made.journal)

    def emit(self, event: Event) -> None:
        super().emit(event)
        self.journal.append(event)


def trained(world: Workspace, run: Path) -> TTSModel:
    return load_checkpoint(world, checkpoint_names.folder_of(run, STEPS), DEVICE)


@pytest.mark.parametrize("kind", ["lora", "dora", "adalora"])
def test_every_kind_is_resumed_to_the_bit_certified_and_exported(world: Workspace, kind: str) -> None:
    options = train_options(adapter=kind, **CHANGES)
    whole = Listener(world.runs / f"whole-{kind}")
    train.run(options, world, whole)
    made = create_job(world, "train", options, job_id=f"parts-{kind}")
    parts = [Job(made, 2)]
    torch.manual_seed(99)  # nothing may hang on what the process drew before
    with pytest.raises(StopRequested):
        train.run(options, world, parts[0])
    parts.append(Job(made))
    result = train_and_certify(options, world, parts[1])
    assert losses([*parts]) == losses([whole])
    assert evaluations([*parts]) == evaluations([whole])
    one, other = (trained(world, listener.directory) for listener in (whole, parts[0]))
    left, right = one.lm.module.state_dict(), other.lm.module.state_dict()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert result["certificate"] == "passed"
    proof = certificate.read(parts[0].directory / certificate.CERTIFICATE)
    assert {name: proof.check(name).result for name in ("prefix_rows", "frozen_tensors", "base_logits")} == (
        dict.fromkeys(("prefix_rows", "frozen_tensors", "base_logits"), "passed"))
    _exported(world, parts[0].directory, kind)


def _exported(world: Workspace, run: Path, kind: str) -> None:
    """The last step as an export: its logits are the checkpoint's, and peft and the plain code read its files."""
    ref = f"run:{run.name}@{STEPS}"
    result = export.run(export_options(run=ref, export=kind), world, Listener(world.runs / f"export-{kind}"))
    assert result["base_logits"] == "passed"
    checkpointed, again = load(world, ref, DEVICE), load(world, f"export:{kind}", DEVICE)
    assert all(same_logits(checkpointed, again, item) for item in probes(checkpointed))
    place, new = world.exports / kind, probes(checkpointed)[-1]
    with checkpointed.adapters_for("am"):
        wanted = checkpointed.lm.probe(new.sample).speech_logits
    with checkpointed.adapters_for("en"):
        assert not torch.allclose(checkpointed.lm.probe(new.sample).speech_logits, wanted)
    config, tiny = _language_model_config(place), load(world, "base:tiny", DEVICE).lm
    merged = replace(tiny, module=load_module(place / "t3-merged.safetensors", T3(config)).to(DEVICE))
    torch.testing.assert_close(merged.probe(new.sample).speech_logits, wanted, atol=1e-4, rtol=1e-4)
    plain = load_module(place / "t3.safetensors", T3(config)).to(DEVICE)
    wrapped = PeftModel.from_pretrained(plain, str(place / "adapter"))
    by_peft = replace(tiny, module=wrapped.base_model.model)
    torch.testing.assert_close(by_peft.probe(new.sample).speech_logits, wanted, atol=1e-4, rtol=1e-4)
    assert checkpoint_steps(run) == [3, STEPS]
