"""The verb `import_model`: a checkpoint that was fine-tuned elsewhere becomes a run of one checkpoint, untrained here.

Every tensor is compared with the base, as the doctor does. What is equal, or equal but for rounding, is the base's and
is not stored; new rows and changed tensors are taken as they are. The tokenizer serves the new language alone, so base
languages are read as before. Nothing is judged by hearsay: what the finetune changed of the base is stored as changed,
so a certificate measures it and never calls it preserved.

The run `run:ID` can be synthesized with, compared, evaluated, certified and exported. The extension `ID` has the same
vocabulary and rows, to train on: `python -m scripts train --extension ID --init-from run:ID`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from config.errors import UserError
from config.schema import DoctorOptions, ImportModelOptions
from core import doctor, extend
from core.doctor import DoctorCase
from core.jobs.checkpoint_names import CHOICE, folder_of, pinned_names, set_choice
from core.jobs.events import CheckpointSaved, Plan, Result, WarningRaised
from core.jobs.reporter import Reporter, check_stop, pluralize, stage
from core.library import diagnosis
from core.library.diagnosis import NEW_ROWS, UNUSED, Diagnosis, TensorFinding, TokenizerFit
from core.library.records import CheckpointRecord, ExtensionRecord
from core.model.loading import TTSModel, extend_model, load_base, load_checkpoint, set_changed_tensors
from core.model.prefix import hash_tensors, new_rows, rows_name
from core.proof import restore, tokenizer_fit
from core.proof.tensor_comparison import compare_tensors, dtype_name, is_turned
from core.training import checkpoint
from core.workspace import Workspace, resolve_inside
from data.durable_files import atomic_directory
from data.front_end import FrontEnd
from data.segmenters import from_flat_vocabulary

_SAME = ("equal", "rounded")
_UNREADABLE = ("missing", "misshapen", "transposed", "broken")
_STEP = re.compile(r"steps?[_=-]?(\d{1,12})(?!\d)")  # step in the name of a checkpoint


@dataclass(frozen=True)
class _Imported:
    """What is taken of the checkpoint: its vocabulary, its new rows, and tensors of the base that it changed."""

    front_end: FrontEnd
    rows: Mapping[str, torch.Tensor]  # named as by `rows_name`
    changed: Mapping[str, torch.Tensor]
    rounded: int  # tensors for which the base's own values are taken
    notes: tuple[str, ...] = ()


def run(options: ImportModelOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Write the checkpoint of the run and the extension of the same name."""
    name, step = reporter.directory.name, _step_of(options.checkpoint)
    extension = resolve_inside(workspace.extensions, name)
    case = doctor.open_case(workspace, _doctor_options(options))
    if not case.name:
        raise UserError(f"{options.base} is not in the workspace, and an imported model needs all files of its base.",
                        "Get it first (python -m scripts download --folder), and give its name as the base.")
    tokenizer = doctor.fit_tokenizer(case, _doctor_options(options), Path(options.checkpoint))
    used = None if tokenizer is None else frozenset(tokenizer_fit.read_pieces(Path(tokenizer.path)).values())
    with stage(reporter, "compare"):
        findings = _with_filled_heads(case, doctor.compare(case, reporter, used))
    # The report of the doctor is written even if the import is refused below.
    notes = doctor.notes(case, tokenizer)
    summary = doctor.assess(findings, tokenizer, None, notes, case.family.tensor_layout.text_tables[0])
    types = tuple(sorted({dtype_name(case.other.dtype(tensor)) for tensor in case.other.names}))
    diagnosis.write(reporter.directory, Diagnosis(
        case.name, str(case.other.path), case.family.name, case.matching.prefix, types, doctor.worst_first(findings),
        tokenizer, None, summary))
    _check_readable(case, findings)
    _check_language(options, findings, tokenizer)

    with stage(reporter, "store weights"):
        base = load_base(workspace, case.name, torch.device("cpu"))
        imported = _collect(options, case, base, findings, tokenizer)
        check_stop(reporter)
        model = _assemble(base, imported)
        folder = _write_checkpoint(workspace, reporter.directory, step, options, model, imported)
        _check_stored(workspace, folder, imported)
        if not extension.exists():
            _write_extension(extension, options, base, imported)
    # The imported checkpoint is the run's only one, so it is both the best and the chosen one.
    reporter.emit(CheckpointSaved(step, folder.relative_to(reporter.directory).as_posix(), best=True))
    if pinned_names(reporter.directory).get(CHOICE) != step:
        set_choice(reporter.directory, str(step))

    # The plan says what the doctor thinks of the model, and how to go on with it.
    for note in imported.notes:
        reporter.emit(WarningRaised(note))
    new = imported.front_end.size - imported.front_end.prefix_size
    reporter.emit(Plan((
        summary.headline, *summary.sentences, _kept_sentence(base, imported),
        f"Listen: python -m scripts synthesize --voice-model run:{name} --language {options.language} --text ...",
        f"Train it further: python -m scripts train --extension {name} --init-from run:{name}"
        + (" --scope full" if imported.changed else ""),
        f"See what it changed: python -m scripts certify --run run:{name}"),
        {"new rows": new, "changed tensors": len(imported.changed)}))
    return {"run": name, "ref": f"run:{name}", "step": step, "extension": name, "language": options.language,
            "assessment": summary.level, "headline": summary.headline, "base_languages": summary.base_languages,
            "new_rows": new, "changed": len(imported.changed), "rounded": imported.rounded,
            "scope": "full" if imported.changed else "rows"}


def _doctor_options(options: ImportModelOptions) -> DoctorOptions:
    return DoctorOptions(part="model", base=options.base, checkpoint=options.checkpoint, tokenizer=options.tokenizer,
                         weights=options.weights, measure=False)


def _step_of(checkpoint_path: str) -> int:
    """The step in the checkpoint's name, as in `model_step38000.pth`; 0 without one."""
    path = Path(checkpoint_path)
    match = _STEP.search(path.stem) or re.fullmatch(r"checkpoint-(\d{1,12})", path.parent.name if path.is_file()
                                                    else path.name)
    return int(match[1]) if match else 0


def _with_filled_heads(case: DoctorCase, findings: Sequence[TensorFinding]) -> list[TensorFinding]:
    """`findings` with new rows of heads that were not extended as the embedding was: the import fills them up."""
    embedding, *heads = case.family.tensor_layout.text_tables
    extended = {finding.name: finding for finding in findings if finding.part == NEW_ROWS}
    if embedding not in extended:
        return list(findings)
    count = extended[embedding].rows
    short = [name for name in heads if name in case.matching.found
             and (name not in extended or extended[name].rows != count)]
    return [finding for finding in findings if finding.part != NEW_ROWS or finding.name not in short] + [
        TensorFinding(name, NEW_ROWS, "new", "not in the checkpoint; filled up with the mean of the old rows",
                      rows=count) for name in short]


def _check_readable(case: DoctorCase, findings: Sequence[TensorFinding]) -> None:
    """Raise `UserError` if tensors are missing or broken: a model cannot be made of the rest."""
    unreadable = [finding for finding in findings if finding.state in _UNREADABLE and finding.part != UNUSED]
    if not unreadable:
        return
    worst, total = unreadable[0], len(case.base.names)
    adapters = case.matching.adapters
    raise UserError(
        f"{case.other.path} cannot be imported: {len(unreadable)} of the {total} tensors of {case.name} are not there "
        f"or cannot be read. The first is {worst.name}: {worst.words}.",
        "Its adapters were not merged: give the folder with their adapter_config.json, or merge them with the program "
        "that trained them." if adapters else
        "Give the whole checkpoint of this base model; a network of another shape is no finetune of it.")


def _check_language(options: ImportModelOptions, findings: Sequence[TensorFinding],
                    tokenizer: TokenizerFit | None) -> None:
    """Raise `UserError` if it is unknown what new rows are for, or if vocabulary and rows do not belong together."""
    new = next((finding for finding in findings if finding.part == NEW_ROWS), None)
    if not options.language:
        raise UserError("The language of the finetune was not given.",
                        "Give --language CODE (on the page: Language), such as am.")
    if new is not None and tokenizer is None:
        raise UserError(f"The checkpoint has {pluralize(new.rows, 'new row')}, and no tokenizer says what they are "
                        "for.",
                        "Give its tokenizer: --tokenizer FILE (on the page: Tokenizer).")
    if tokenizer is not None and not (tokenizer.fits and tokenizer.base_ids_unchanged):
        raise UserError(f"{tokenizer.path} cannot be taken over. {doctor.tokenizer_sentence(tokenizer)}",
                        "Give the tokenizer that the checkpoint was trained with, which extends the base's.")
    if new is not None and tokenizer is not None and tokenizer.base_size == tokenizer.size:
        raise UserError(f"The checkpoint has {pluralize(new.rows, 'new row')}, and {tokenizer.path} has no piece for "
                        "one of them.", "Give the tokenizer it was trained with.")


def _collect(options: ImportModelOptions, case: DoctorCase, base: TTSModel, findings: Sequence[TensorFinding],
             tokenizer: TokenizerFit | None) -> _Imported:
    """Vocabulary, new rows and changed tensors of the checkpoint."""
    if base.lm.language_table:
        raise UserError(f"A finetune of a model with a table of languages ({base.name}) cannot be imported yet.",
                        "Train the language here: Train tab.")
    first_row, notes = base.front_end.prefix_size, list[str]()
    if tokenizer is not None:
        path = Path(tokenizer.path)
        placed = restore.place_new_rows(base, case.other, case.matching, path)
        segmenter, tables, old_rows = placed.tokenizer, dict(placed.rows), placed.old_rows(base.front_end)
    else:
        # Without a tokenizer of its own, the finetune reads text as the base does.
        path = Path(base.front_end.language_file(options.language))
        segmenter = base.front_end.base_segmenter
        tables, old_rows = {table: case.other.tensor(case.matching.found[table])[first_row:].float()
                            for table in base.lm.text_tables}, first_row

    embedding = base.lm.text_tables[0]
    count = len(tables[embedding])
    # Heads with fewer rows than the embedding are filled up, because a front-end has one size.
    for table in base.lm.text_tables[1:]:
        if len(tables[table]) != count:
            notes.append(f"{table} has {len(tables[table])} new rows where {embedding} has {count}: filled up with the "
                         "mean of the old rows. Speech does not read them; the text loss of a training begins there.")
            values = case.other.tensor(case.matching.found[table])[:old_rows].float()
            tables[table] = torch.cat([tables[table], values.mean(0, keepdim=True).expand(
                count - len(tables[table]), *values.shape[1:])])[:count].clone()

    front_end = restore.extend_front_end(base.front_end, options.language, path, segmenter, first_row + count)
    if tokenizer is not None and path.suffix == ".json" and from_flat_vocabulary(path.read_bytes()) is not None:
        notes.append(f"{path.name} lists pieces without merges: text is cut into characters, and pieces of several "
                     "characters are not used. Spaces are read as the base's [SPACE].")

    base_values = base.lm.module.state_dict()
    changed, rounded, unused = dict[str, torch.Tensor](), 0, 0
    states = {finding.name: finding.state for finding in findings if finding.part != NEW_ROWS}
    for name, other_name in case.matching.found.items():
        if name not in base_values or states[name] == "equal":
            continue
        # The rows behind the base's may be new ones.
        if name in base.lm.text_tables:
            value = base_values[name].clone()
            value[:old_rows] = case.other.tensor(other_name)[:old_rows].float()
            state = compare_tensors(base_values[name][:old_rows], case.other.tensor(other_name)[:old_rows]).state
        elif base.lm.parameter_group(name)[0] == "unused":
            unused += states[name] not in _SAME
            continue
        else:
            value, state = case.other.tensor(other_name).float(), states[name]
            value = value.T.contiguous() if is_turned(case.base.tensor(name), base_values[name]) else value
        rounded += state == "rounded"
        if state not in _SAME:
            changed[name] = value.to(base_values[name].dtype)

    if unused:
        notes.append(f"{pluralize(unused, 'tensor')} of the voice conditioner differ from the base's and were not "
                     "taken over: voices are prepared with the base's, which caches them.")
    return _Imported(front_end, {rows_name(table): rows for table, rows in tables.items()}, changed, rounded,
                     tuple(notes))


def _assemble(base: TTSModel, imported: _Imported) -> TTSModel:
    """The imported model; changes `base.lm` in place."""
    model = extend_model(base, imported.front_end, imported.rows)
    model = set_changed_tensors(model, imported.changed, "the checkpoint")
    return replace(model, scope="full" if imported.changed else "rows")


def _write_checkpoint(workspace: Workspace, run_dir: Path, step: int, options: ImportModelOptions, model: TTSModel,
                      imported: _Imported) -> Path:
    record = CheckpointRecord(
        run=run_dir.name, step=step, scope=model.scope or "rows", extension=run_dir.name, dataset="", rows_hash="",
        frozen_hash="", origin=model.origin, imported=options.checkpoint.rpartition("/")[2])
    folder = folder_of(run_dir, step)
    if not folder.is_dir():  # a killed import begins again
        checkpoint.save_imported(run_dir, record, model, {"verb": "import_model",
                                                          "options": options.model_dump(mode="json")})
    return folder


def _check_stored(workspace: Workspace, folder: Path, imported: _Imported) -> None:
    """Raise `UserError` unless the stored checkpoint, loaded again, has the rows and tensors that were imported."""
    stored = load_checkpoint(workspace, folder, torch.device("cpu"))
    rows = dict(new_rows(stored.lm.module, stored.lm.text_tables))
    values = stored.lm.module.state_dict()
    if hash_tensors(rows) != hash_tensors(dict(imported.rows)) or not all(  # type: ignore[arg-type]
            torch.equal(values[name], value.float()) for name, value in imported.changed.items()):
        raise UserError(f"{folder} does not reload as it was written.", "The disk may be failing; import again.")


def _write_extension(target: Path, options: ImportModelOptions, base: TTSModel, imported: _Imported) -> None:
    front_end = imported.front_end
    origin = replace(base.origin, size=front_end.size, fingerprint=front_end.fingerprint)
    record = ExtensionRecord(target.name, "", (options.language,), "imported", 0, hash_tensors(dict(imported.rows)),
                             origin)
    with atomic_directory(target) as folder:
        extend.write_extension(folder, record, front_end, dict(imported.rows))


def _kept_sentence(base: TTSModel, imported: _Imported) -> str:
    """What was taken of the checkpoint, and what of the base."""
    total = len(base.lm.module.state_dict())
    rounded_note = f"{imported.rounded} of them differ by rounding alone, and the base's own values are used. " \
        if imported.rounded else ""
    changed = f"{len(imported.changed)} of the base's tensors are taken from the checkpoint" if imported.changed else \
        "No tensor of the base is changed"
    return f"{changed}; {total - len(imported.changed)} are the base's. {rounded_note}".strip()
