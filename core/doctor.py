"""The model doctor: what a finetune from elsewhere changed against its base, tensor by tensor.

One pair of tensors is in memory at a time. Nothing is loaded as a model but to measure the base languages, and nothing
of the checkpoint is executed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from config.errors import UserError
from config.schema import DoctorOptions
from core.jobs.events import Plan, Progress, Result
from core.jobs.reporter import Reporter, check_stop, stage
from core.library import diagnosis
from core.library.catalog import family_of
from core.library.diagnosis import Diagnosis, ProbeDrift, TensorFinding, TokenizerFit
from core.model.loading import VoiceModel, load_base
from core.proof import assessment, tokenizer_fit
from core.proof.certify import base_probes, equal_logits
from core.proof.restore import RestoreRequest, restore_base_rows
from core.proof.tensor_comparison import (
    TensorMatching,
    compare_new_rows,
    compare_tensors,
    dtype_name,
    is_transposed,
    match_tensors,
)
from core.training.replay import ProbeSample
from core.workspace import Workspace
from data.bpe import vocabulary
from data.front_end import BASE_FILE
from models.base import Family, Probe, WeightsFile
from models.registry import FAMILIES
from models.registry import family as family_named

_MAX_LISTED = 12  # tensors in the plan; all are in the diagnosis
_UNREADABLE = ("missing", "misshapen", "broken", "transposed")


@dataclass(frozen=True)
class DoctorCase:
    """Base and checkpoint, opened. `name` is the base's in the workspace, empty for one that is not there."""

    family: Family
    name: str
    base: WeightsFile
    other: WeightsFile
    matching: TensorMatching
    pieces: Mapping[str, int]  # of the base's tokenizer; empty where it is not available


def run(options: DoctorOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Examine a checkpoint, and restore the base's rows where that is asked for and possible."""
    if options.part != "model":
        raise UserError("As a job the doctor examines models only.",
                        "For the machine: python -m scripts.doctor. For a model: scripts.doctor model BASE CHECKPOINT.")
    case = open_case(workspace, options)
    tokenizer = _fit_tokenizer(case, options)
    ids = tokenizer_fit.read_pieces(Path(tokenizer.path)) if tokenizer else {}
    if options.restore:  # refuse what cannot be done before anything is compared
        workspace.new_export(options.restore)
        if not case.name:
            raise UserError(f"{case.base.path} is not in the workspace, and the restored model needs all of its files.",
                            "Get it first (python -m scripts.download --folder), and give its name as the base.")
        if tokenizer is None or not options.language:
            raise UserError("To restore, the tokenizer and the language of the new rows must be known.",
                            "Give --tokenizer FILE and --language CODE.")

    with stage(reporter, "compare"):
        findings = compare(case, reporter, frozenset(ids.values()) if tokenizer else None)
    readable = not any(one.state in _UNREADABLE for one in findings if one.part != diagnosis.NEW_ROWS)
    differs = any(one.touched or one.state == "rounded" for one in findings) or (
        tokenizer is not None and tokenizer.moved_count > 0)
    drift = None
    if options.measure and case.name and readable and differs:
        moved = {} if tokenizer is None or tokenizer.base_ids_kept else {
            old: ids[piece] for piece, old in case.pieces.items() if piece in ids and ids[piece] < tokenizer.rows}
        with stage(reporter, "measure"):
            drift = _measure_drift(workspace, case, moved, reporter)

    summary = assessment.assess(findings, tokenizer, drift, _notes(case, tokenizer),
                                case.family.tensor_layout.text_tables[0])
    types = tuple(sorted({dtype_name(case.other.dtype(name)) for name in case.other.names}))
    diagnosis.write(reporter.directory, Diagnosis(
        case.name or str(case.base.path), str(case.other.path), case.family.name, case.matching.prefix, types,
        assessment.worst_first(findings), tokenizer, drift, summary))
    worst = [one for one in assessment.worst_first(findings) if one.state not in ("equal", "rounded", "new")]
    table = [f"  {one.state:10}  {one.part:12}  {one.name}: {one.words}" for one in worst[:_MAX_LISTED]]
    lines = [summary.headline, *summary.sentences, *(["The worst first:", *table] if table else []), summary.advice]
    if summary.restorable and not options.restore:
        lines.append("To restore them, the same command again with: --restore NAME --language CODE"
                     + ("" if tokenizer else " --tokenizer FILE"))
    reporter.emit(Plan(tuple(lines)))

    restored: Result = {}
    if options.restore:
        if not summary.restorable or tokenizer is None:
            raise UserError(f"No rows were restored, and {options.restore} was not made. {summary.advice}",
                            "The findings stand above and in the job's diagnosis.json.")
        with stage(reporter, "restore"):
            base = load_base(workspace, case.name, torch.device("cpu"))
            request = RestoreRequest(options.restore, options.language, Path(tokenizer.path), reporter.directory.name)
            restored = restore_base_rows(workspace, base, case.other, case.matching, request)
    return {"assessment": summary.level, "headline": summary.headline, "base_languages": summary.base_languages,
            "tensors": len(case.base.names), "changed": sum(one.touched for one in findings),
            "restorable": summary.restorable, **restored}


def open_case(workspace: Workspace, options: DoctorOptions) -> DoctorCase:
    """Open base and checkpoint and match their tensors; `UserError` when they have nothing in common."""
    if not options.base or not options.checkpoint:
        raise UserError("A base and a checkpoint are needed.", "Such as: python -m scripts.doctor model tiny it.pt")
    family, name, base, folder = _open_base(workspace, options.base)
    other = _open_checkpoint(family, Path(options.checkpoint))
    matching = match_tensors(base, other, family.tensor_layout.text_tables)
    if not matching.found:
        adapters = " It holds adapters that were not merged into a model." if matching.adapters else ""
        raise UserError(
            f"{other.path} has none of the {len(base.names)} tensors of {options.base}; it has {len(other.names)}, "
            f"such as {', '.join(other.names[:3])}.{adapters}",
            "Merge them with the program that trained them, or take the base as it is." if adapters
            else "It belongs to another kind of model; give the base it was made from.",
        )
    pieces: Mapping[str, int] = {}
    with suppress(UserError):  # a bare file may lie without its tokenizer
        pieces = vocabulary(family.front_end(folder).files[BASE_FILE], BASE_FILE)
    return DoctorCase(family, name, base, other, matching, pieces)


def compare(case: DoctorCase, reporter: Reporter, used: Collection[int] | None = None) -> list[TensorFinding]:
    """A finding for each tensor, and two for a table with one row a text id; `used` are the ids that have a piece."""
    found: list[TensorFinding] = []
    names, part, prefix = case.base.names, case.family.tensor_layout.part, case.matching.prefix
    for done, name in enumerate(names, 1):
        found += _compare_tensor(case, name, used)
        reporter.emit(Progress(done, len(names), "tensors", name))
        check_stop(reporter)
    return found + [TensorFinding(name, part(name.removeprefix(prefix)), "extra", "the base has none of this name",
                            case.other.shape(name), dtype_name(case.other.dtype(name)))
                    for name in case.matching.extra]


def _compare_tensor(case: DoctorCase, name: str, used: Collection[int] | None) -> list[TensorFinding]:
    """The findings of the base tensor `name`."""
    table = name in case.family.tensor_layout.text_tables
    part = diagnosis.OLD_ROWS if table else case.family.tensor_layout.part(name)
    there = case.matching.found.get(name)
    if there is None:
        return [TensorFinding(name, part, "missing", "the checkpoint has none of this name or of these values",
                        case.base.shape(name))]
    wanted, shape, kind = case.base.shape(name), case.other.shape(there), dtype_name(case.other.dtype(there))
    before, after = case.base.tensor(name), case.other.tensor(there)
    if is_transposed(before, after):
        return [TensorFinding(name, part, "transposed", f"it is {shape}, the base's with rows for columns", shape,
                              kind)]
    if shape != wanted and not (table and shape[1:] == wanted[1:] and shape[0] > wanted[0]):
        return [TensorFinding(name, part, "misshapen", f"it is {shape}, the base's {wanted}", shape, kind,
                        rows=wanted[0] if table else 0)]
    count = wanted[0] if wanted else 1
    change = compare_tensors(before, after[:count] if table else after, after if table else None)
    words = f"{change.words} (named {there} there)" if name in case.matching.renamed else change.words
    first = TensorFinding(name, part, change.state, words, shape, kind, change.change, count, change.rows_moved,
                    change.largest, change.median, change.rank, change.rows_behind)
    return [first, *compare_new_rows(name, before, after, used)] if table else [first]


def _open_base(workspace: Workspace, given: str) -> tuple[Family, str, WeightsFile, Path]:
    """The base's family, its name in the workspace, its weights and its folder."""
    path = Path(given)
    if not path.is_absolute():
        folder = workspace.model(given)
        family = family_named(family_of(workspace, given))
        return family, given, family.open_weights(family.language_model_file(folder)), folder
    if not path.exists():
        raise UserError(f"There is no base {path}.", "Give the name of a model in the workspace, a file or a folder.")
    folder = path if path.is_dir() else path.parent
    for name in FAMILIES:
        family = family_named(name)
        with suppress(UserError):
            file = family.language_model_file(folder)
            if path in (folder, file):
                return family, "", family.open_weights(file), folder
    for name in FAMILIES:  # a bare file: families that share tensor names share their meaning
        family = family_named(name)
        weights = family.open_weights(path)
        if set(family.tensor_layout.text_tables) <= set(weights.names):
            return family, "", weights, folder
    raise UserError(f"{path} is the language model of no family that Lisan knows.",
                    "Give the base as it was published, or the name of a model in the workspace.")


def _open_checkpoint(family: Family, path: Path) -> WeightsFile:
    if not path.exists():
        raise UserError(f"There is no checkpoint {path}.", "Give a .safetensors or .pt file, or the folder of one.")
    if path.is_dir():
        with suppress(UserError):
            return family.open_weights(family.language_model_file(path))
    try:
        return family.open_weights(path)
    except UserError as error:
        if "cut off" not in error.hint:
            raise
        raise UserError(error.message, "It was probably cut off while it was saved or copied. Copy it again, or take "
                        "an earlier checkpoint of the same training.") from error


def _fit_tokenizer(case: DoctorCase, options: DoctorOptions) -> TokenizerFit | None:
    """How the checkpoint's tokenizer fits; None where there is none to examine."""
    table = case.family.tensor_layout.text_tables[0]
    there = case.matching.found.get(table)
    if there is None:
        return None
    path = tokenizer_fit.find_tokenizer(options.tokenizer, Path(options.checkpoint), case.other.shape(there)[0])
    if path is None or not case.pieces:
        return None
    return tokenizer_fit.fit_tokenizer(path, case.pieces, case.base.tensor(table), case.other.tensor(there))


def _notes(case: DoctorCase, tokenizer: TokenizerFit | None) -> list[str]:
    """What else a reader of the file should know."""
    notes = []
    if tokenizer is None:
        why = "none was given, and none lies in a folder of its own with it" if case.pieces else \
            "the base's own, which it would be compared with, is not available"
        notes.append(f"Whether its tokenizer fits was not examined: {why}.")
    if case.matching.prefix:
        notes.append(f"Every name begins with {case.matching.prefix!r}; programs that read the published names need "
                     "it removed.")
    if renamed := case.matching.renamed:
        name, there = next(iter(renamed.items()))
        notes.append(f"{len(renamed)} tensors have other names there and were matched by their values "
                     f"({name} is {there}).")
    if case.matching.adapters:
        notes.append("It holds adapters beside the weights, which were not merged and were not examined.")
    return notes


def _measure_drift(workspace: Workspace, case: DoctorCase, moved_ids: Mapping[int, int],
                   reporter: Reporter) -> ProbeDrift | None:
    """Run base-language samples through the base, then with the checkpoint's values; None without samples.

    Only one model is in memory. `moved_ids` gives the checkpoint's id of each base id that its tokenizer moved.
    """
    base = load_base(workspace, case.name, torch.device("cpu"))
    samples = base_probes(base)
    if not samples:
        return None
    before = _probe(base, samples, reporter, "by the base")
    values = base.model.module.state_dict()
    tables = {f"{table}.weight" for table in base.model.text_tables}
    with torch.no_grad():
        for name, there in case.matching.found.items():
            if name in values:  # of the text tables the old rows alone
                rows = [moved_ids.get(row, row) for row in range(len(values[name]))] if name in tables else slice(None)
                values[name].copy_(case.other.tensor(there)[rows])
    after = _probe(base, samples, reporter, "by the checkpoint")
    equal, same, codes, divergence = 0, 0, 0, 0.0
    for first, second in zip(before, after, strict=True):
        equal += equal_logits(first, second)
        same += int((first.speech_logits.argmax(-1) == second.speech_logits.argmax(-1)).sum())
        codes += len(first.speech_logits)
        divergence += F.kl_div(second.speech_logits.float().log_softmax(-1),
                               first.speech_logits.float().log_softmax(-1), log_target=True, reduction="sum").item()
    languages = tuple(sorted({item.language for item in samples}))
    return ProbeDrift(len(samples), equal, same / codes, divergence / codes, languages)


@torch.inference_mode()
def _probe(model: VoiceModel, samples: Sequence[ProbeSample], reporter: Reporter, by: str) -> list[Probe]:
    made = []
    for done, item in enumerate(samples, 1):
        with model.speaking(item.language):
            made.append(model.model.probe(item.sample))
        reporter.emit(Progress(done, len(samples), "samples", by))
        check_stop(reporter)
    return made
