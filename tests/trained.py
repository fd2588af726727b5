"""A small world with a trained run: adapters and rows are set by hand, so that no training is waited for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from core.jobs.checkpoint_names import folder_of
from core.jobs.events import CheckpointSaved, Journal
from core.jobs.job import create_job
from core.library import records
from core.library.records import CheckpointRecord
from core.model.adapters import Adapters, plan_adapters
from core.model.loading import load
from core.model.prefix import base_tensors, hash_tensors, new_rows
from core.training import checkpoint
from core.training.checkpoint import TrainerState
from core.training.memory_plan import MicrobatchPlan
from core.training.parameter_groups import LearningRateSchedule
from core.workspace import Workspace
from data.batches import SamplerState
from data.durable_files import hash_file
from tests.worlds import extended_world, train_options

RUN = "run-am"


def trained_world(path: Path, scope: str = "gated", **changes: object) -> Workspace:
    """`extended_world` with a run whose one checkpoint changed everything its scope allows."""
    workspace = extended_world(path)
    write_checkpoint(workspace, scope, **changes)
    return workspace


def write_checkpoint(workspace: Workspace, scope: str, name: str = RUN, **changes: object) -> None:
    """A run in `workspace` as training leaves it, after 8 steps."""
    options = train_options(scope=scope, **changes)
    made = create_job(workspace, "train", options, job_id=name)
    tts = replace(load(workspace, f"extension:{options.extension}", torch.device("cpu")), scope=scope)
    noise = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for rows in new_rows(tts.lm.module, tts.lm.text_tables).values():
            rows += 0.1 * torch.randn(rows.shape, generator=noise)
    if scope != "rows":
        wanted = replace(plan_adapters(options.adapters, tts.lm.adapter_targets, options.length.steps), dropout=0.0)
        adapters = Adapters.fresh(tts.lm.module, wanted, seed=1)
        with torch.no_grad():
            for value in adapters.parameters().values():
                value += 0.1 * torch.randn(value.shape, generator=noise)
        tts = replace(tts, adapters=adapters)
    untrained = records.read_extension(workspace.extension(options.extension))
    frozen = hash_tensors(base_tensors(tts.lm.module))
    record = CheckpointRecord(
        run=name, step=8, scope=scope, extension=options.extension, dataset=options.dataset,
        rows_hash=untrained.rows_hash, frozen_hash=frozen, origin=tts.origin, adapter_rank=4,
        recogniser=options.evaluation.recogniser, recogniser_language=options.evaluation.recogniser_language,
        text_library=tts.front_end.text_library)
    schedule = LearningRateSchedule.from_options(options.optimization, options.length.steps)
    state = TrainerState(
        step=8, seconds=1.0, skipped_batches=0, schedule=schedule, max_minutes=0.0,
        sampler=SamplerState(), replay_sampler=SamplerState(), data_fingerprint="", content_hash="",
        tensors={"generator": torch.zeros(4)}, microbatch_plan=MicrobatchPlan(), world_size=1, precision="float32",
        numeric_environment="the test's")
    folder = checkpoint.save(made.directory, record, tts, options, state)
    journal = Journal(made.journal)
    journal.append(CheckpointSaved(8, folder.relative_to(made.directory).as_posix(), best=True))
    journal.close()


def change_checkpoint(workspace: Workspace, name: str = RUN) -> None:
    """Give the run's checkpoint other rows, as a training that goes on does."""
    folder = folder_of(workspace.run(name), 8)
    rows = load_file(folder / records.ROWS)
    save_file({key: value + 0.01 for key, value in rows.items()}, folder / records.ROWS)
    record = records.read_checkpoint(folder)
    files = {**record.files, records.ROWS: hash_file(folder / records.ROWS)}
    records.write_record(folder / records.CHECKPOINT, replace(record, files=files))
