"""The recipe that people use, done as they do it, so that its damage can be measured.

One table holds old rows and new ones, and a hook sets the gradients of the old rows to zero: that is the whole of the
"freezing". AdamW with decay, everything trainable, one high rate, no replay. Lisan has no such training; it is made
in a separate process, `python -m scripts.dev.experiments.broken WORKSPACE GROUP TRIAL SEED [STEPS]`. It leaves an
export and its certificate, which is computed as that of any other model that claims to have kept its base.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from config.schema import TrainOptions
from core import compute
from core.library import certificate, records, verification
from core.library.certificate import CERTIFICATE
from core.library.records import EXPORT_RECORD, CheckpointRecord, ExportRecord, write_record
from core.model import loading
from core.model.loading import TTSModel, load_base, load_extension, plain_tensors
from core.model.prefix import base_tensors, hash_tensors
from core.proof import certification
from core.speech import evaluation
from core.training import dataloader
from core.training.dataloader import TrainingData
from core.workspace import Workspace
from data.batches import LengthBucketedBatchSampler
from data.durable_files import atomic_directory
from models.base import LanguageModel, LossOptions
from scripts.dev.experiments import plan

_CPU = torch.device("cpu")
Tensors = Mapping[str, torch.Tensor]


def main(arguments: list[str]) -> int:
    """Train one trial of the plan, and prove what came of it."""
    place, group, name, seed, *further = arguments
    groups = plan.read(int(further[0]) if further else None)
    trial = next(trial for entry in groups if entry.name == group for trial in entry.trials if trial.name == name)
    compute.setup_device("cpu")
    run(Workspace.open(Path(place)), trial.run(int(seed)), trial.training(int(seed)))
    return 0


def run(workspace: Workspace, name: str, options: TrainOptions, sentences: int = certification.SENTENCES) -> None:
    """Write `exports/NAME`: weights, front-end, and the certificate over `sentences` a language."""
    torch.manual_seed(options.seed)
    tts = load_extension(workspace, options.extension, _CPU)
    data = dataloader.load_training_data(workspace, options.dataset, tts)
    model = plainly(tts, workspace.exports / f".{name}")
    learn(model, tts.front_end.prefix_size, data, options)
    tensors = model.module.state_dict()
    # An older export of the same trial is replaced.
    shutil.rmtree(workspace.exports / name, ignore_errors=True)
    with atomic_directory(workspace.exports / name) as folder:
        _export(workspace, tts, tensors, folder, name, options)
        exported = loading.assemble_export(folder, _CPU)
        record = _record(workspace, tts, exported, name, options)
        base = load_base(workspace, tts.name, _CPU)
        proof = replace(certification.certify_model(workspace, base, exported, record, sentences), kind="recomputed")
        files = verification.certified_files(verification.Subject.of_export(folder))
        certificate.write(folder / CERTIFICATE, verification.bind(workspace, proof, files))
        loading.write_sums(folder)


def plainly(tts: TTSModel, scratch: Path) -> LanguageModel:
    """`tts` as a model whose tables hold old rows and new ones as one, as others extend a checkpoint."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        tts.family.export(tts.base_folder, scratch, plain_tensors(tts), None, tts.front_end)
        return tts.family.load_language_model(scratch, _CPU)
    finally:
        shutil.rmtree(scratch)


def learn(model: LanguageModel, old_rows: int, data: TrainingData, options: TrainOptions) -> None:
    """The recipe: `layer_lr` is the one rate, and `weight_decay` that of every tensor."""
    module = model.module.requires_grad_(True).train()
    for table in model.text_tables:
        module.get_parameter(table).register_hook(_without(old_rows))
    optimizer = torch.optim.AdamW(module.parameters(), lr=options.full.layer_lr,
                                  weight_decay=options.optimization.weight_decay)
    sampler = LengthBucketedBatchSampler([clip.batch_clip for clip in data.train], options.batches.batch_size,
                                         options.seed)
    hiding = LossOptions(options.losses.text_dropout, options.losses.code_dropout)
    for _ in range(options.length.steps):
        batch = dataloader.make_samples(sampler.next_batch(), data.train, model)
        losses = model.losses(batch, hiding, torch.randint(2**62, (len(batch),)).tolist())
        text = options.losses.text_loss_weight * losses.text_sum / losses.text_count
        optimizer.zero_grad()
        (losses.speech_sum / losses.speech_count + text).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), options.optimization.max_grad_norm)
        optimizer.step()
    module.eval()


def _without(old_rows: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """The hook: the gradient with nothing in its old rows."""

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        masked = gradient.clone()
        masked[:old_rows] = 0
        return masked

    return hook


def _export(workspace: Workspace, tts: TTSModel, tensors: Tensors, folder: Path, name: str,
            options: TrainOptions) -> None:
    tables = tts.lm.text_tables
    size = tts.front_end.prefix_size
    cut = hash_tensors({key: value[:size] if key in tables else value for key, value in tensors.items()})
    new = tuple(code for code in tts.front_end.languages if tts.front_end.is_new(code))
    tts.family.export(tts.base_folder, folder, tensors, None, tts.front_end)
    tts.front_end.save(folder / records.FRONT_END)
    write_record(folder / EXPORT_RECORD, ExportRecord(
        name, name, options.length.steps, "rows", options.dataset, new, tts.origin,
        evaluation.longest_texts(workspace, tts), {}, cut))


def _record(workspace: Workspace, tts: TTSModel, exported: TTSModel, name: str,
            options: TrainOptions) -> CheckpointRecord:
    """The claim of the recipe: new rows alone were trained."""
    extension = records.read_extension(workspace.extension(options.extension))
    return CheckpointRecord(name, options.length.steps, "rows", options.extension, options.dataset, extension.rows_hash,
                            hash_tensors(base_tensors(exported.lm.module)), tts.origin)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
