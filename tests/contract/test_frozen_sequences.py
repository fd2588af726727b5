"""Whatever is done one after the other by the verbs: train, stop, resume, adopt, export. Nothing frozen moves."""

from __future__ import annotations

import hashlib
import itertools
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, event, given, note, seed, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from config.errors import UserError
from config.schema import TrainOptions
from core import export, train
from core.jobs import checkpoint_names
from core.jobs.checkpoint_names import checkpoint_steps
from core.jobs.events import Event, Journal
from core.jobs.job import Job, create_job
from core.jobs.reporter import StopRequested
from core.library import records
from core.model.loading import load_checkpoint
from core.model.prefix import base_tensors
from core.speech import evaluation
from core.workspace import Workspace
from tests.contract.conftest import CPU
from tests.contract.test_frozen import CHOICES, SEED, there_is_time
from tests.worlds import Listener, export_options, extended_world, train_options

OPTIONS = {**{name: values for name, values in CHOICES.items() if name != "augmentation"},  # no variants are there
           "checkpoint_every": st.integers(1, 3), "keep_last": st.integers(1, 2), "validate_every": st.integers(0, 2),
           "patience": st.integers(0, 1), "precision": st.sampled_from(["float32", "bfloat16"])}
STEP = st.tuples(st.sampled_from(["train", "stop", "resume", "adopt", "export"]), st.fixed_dictionaries(OPTIONS),
                 st.integers(1, 3))
USUAL: dict[str, object] = {"checkpoint_every": 2, "evaluation_sentences": 0, "adapter_rank": 2}


class Recorder(Listener):
    """A listener that keeps the job's journal, by which its checkpoints are found."""

    def __init__(self, made: Job, stop_after: int | None = None) -> None:
        super().__init__(made.directory, stop_after)
        self.journal = Journal(made.journal)

    def emit(self, event: Event) -> None:
        super().emit(event)
        self.journal.append(event)


@dataclass
class Bench:
    """A workspace in which things are done, and what must stay as it is."""

    workspace: Workspace
    base: dict[str, torch.Tensor] = field(default_factory=dict)
    files: dict[Path, str] = field(default_factory=dict)
    runs: list[tuple[Job, TrainOptions]] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    numbers: Callable[[], int] = field(default_factory=lambda: itertools.count().__next__)

    @classmethod
    def of(cls, workspace: Workspace) -> Bench:
        made = cls(workspace, load_file(workspace.model("tiny") / "t3.safetensors"))
        made.files = made.hashes()
        return made

    def hashes(self) -> dict[Path, str]:
        return {path: hashlib.sha256(path.read_bytes()).hexdigest()
                for part in (self.workspace.models, self.workspace.extensions, self.workspace.datasets)
                for path in sorted(part.rglob("*")) if path.is_file()}

    def do(self, action: str, chosen: dict[str, object], count: int) -> None:
        """One thing; where it is refused or the run breaks, that is as good as done."""
        try:
            self._do(action, chosen, count)
            self.done.append(action)
        except StopRequested:
            self.done.append(f"{action}, stopped")
        except UserError as error:
            if "failed checks" in error.message:  # of a certificate: something did move
                raise
            self.done.append(f"{action}: {error.message}")
        self.check()

    def _do(self, action: str, chosen: dict[str, object], count: int) -> None:
        saved = [(job, options) for job, options in self.runs if checkpoint_steps(job.directory)]
        if action == "resume" and saved:
            job, options = saved[-1]
            train.run(options, self.workspace, Recorder(job))
        elif action == "export" and saved:
            job, number = saved[-1][0], self.numbers()
            reference = f"run:{job.id}@{checkpoint_steps(job.directory)[-1]}"
            export.run(export_options(run=reference, export=f"e{number}"), self.workspace,
                       Listener(self.workspace.runs / f"export-{number}"))
        else:
            last = saved[-1][0] if saved and action == "adopt" else None
            adopted = f"run:{last.id}@{checkpoint_steps(last.directory)[-1]}" if last else ""
            options = train_options(**{**chosen, "steps": 4, "batch_size": 2, "fisher_clips": 2,
                                       "evaluation_sentences": 0,
                                       "init_from": adopted})
            job = create_job(self.workspace, "train", options, job_id=f"r{self.numbers()}")
            self.runs.append((job, options))
            train.run(options, self.workspace, Recorder(job, count if action == "stop" else None))

    def check(self) -> None:
        """The base in every checkpoint and export is that of its file, but for what its run may change."""
        assert self.hashes() == self.files
        for job, options in self.runs:
            for step in checkpoint_steps(job.directory):
                self._check_checkpoint(checkpoint_names.folder_of(job.directory, step), options)
        for name in self.workspace.list_exports():
            self._check_export(self.workspace.export(name))

    def _check_checkpoint(self, folder: Path, options: TrainOptions) -> None:
        record = records.read_checkpoint(folder)
        assert record.frozen_hash == record.origin.base_hash  # in the memory of the trainer
        tts = load_checkpoint(self.workspace, folder, CPU)  # the bits of the file
        assert not tts.changed or (options.scope == "full" and options.full.full_trainable != "adapters")
        assert not set(tts.lm.text_tables) & set(tts.changed)
        after = base_tensors(tts.lm.module)
        assert after.keys() == self.base.keys()
        assert [name for name, value in self.base.items()
                if name not in tts.changed and not torch.equal(after[name], value)] == []

    def _check_export(self, folder: Path) -> None:
        written = load_file(folder / "t3.safetensors")
        changed = {name for name, value in self.base.items()
                   if not torch.equal(written[name][:len(value)].to(value.dtype), value)}
        assert not changed or records.read_export_record(folder).scope == "full"
        assert not {"text_emb.weight", "text_head.weight"} & changed


@pytest.fixture
def few_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is heard is not looked at here: one sentence is spoken where there would be forty."""
    monkeypatch.setattr(evaluation, "spread_evenly", lambda sentences, count: list(sentences)[:min(1, count)])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return extended_world(tmp_path_factory.mktemp("made") / "workspace")


def test_a_sequence_of_every_verb_moves_nothing_that_is_frozen(
        made: Workspace, tmp_path: Path, few_sentences: None) -> None:
    bench = Bench.of(Workspace.open(shutil.copytree(made.path, tmp_path / "workspace")))
    for action, changes in (("stop", {"scope": "full", "full_trainable": "layers"}), ("resume", {}), ("export", {}),
                            ("adopt", {"scope": "gated", "adapter": "dora"}), ("export", {})):
        bench.do(action, {**USUAL, **changes}, 1)
    assert bench.done == ["stop, stopped", "resume", "export", "adopt", "export"]
    assert len(bench.workspace.list_exports()) == 2


@pytest.mark.slow
@seed(SEED)
@settings(max_examples=1000, deadline=None, database=None, phases=[Phase.generate], print_blob=True,
          suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large])
@given(sequence=st.lists(STEP, min_size=2, max_size=5))
def test_no_random_sequence_of_verbs_moves_anything_that_is_frozen(
        made: Workspace, tmp_path_factory: pytest.TempPathFactory, few_sentences: None,
        sequence: list[tuple[str, dict[str, object], int]]) -> None:
    note(f"LISAN_SEED={SEED} draws this again")
    if not there_is_time("verbs"):
        return
    path = tmp_path_factory.mktemp("bench") / "workspace"
    bench = Bench.of(Workspace.open(shutil.copytree(made.path, path)))
    for action, chosen, count in sequence:
        note(f"{action}: {chosen}")
        bench.do(action, chosen, count)
    for number, action in enumerate(bench.done):
        event(f"{number}: {action[:90]}")
    shutil.rmtree(path)
