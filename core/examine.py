"""The doctor for models from elsewhere: what a finetune changed against its base, tensor by tensor.

One pair of tensors is in memory at a time. Nothing is loaded as a model but to measure the
base languages, and nothing of the checkpoint is run but its numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from config.errors import UserError
from config.schema import DoctorOptions
from core.job.journal import Plan, Progress, Result
from core.job.reporter import Reporter, check_stop, stage
from core.library.catalog import family_of
from core.model.loading import load_base
from core.proof import diagnosis, new_rows, restore, tensor_change, tokenizer_fit, verdict
from core.proof.diagnosis import Diagnosis, Finding, TokenizerFit
from core.proof.probe_drift import measure
from core.proof.tensor_names import Matching, match
from core.workspace import Workspace
from data.bpe import vocabulary
from data.entries import BASE_FILE
from models.base import Family, WeightsFile
from models.registry import FAMILIES
from models.registry import family as family_named

_NAMED = 12  # tensors in the plan; all are in the diagnosis
_UNREADABLE = ("missing", "misshapen", "broken", "transposed")


@dataclass(frozen=True)
class Case:
    """Both sides, opened. `name` is the base's in the workspace, empty for one that is not there."""

    family: Family
    name: str
    base: WeightsFile
    other: WeightsFile
    matching: Matching
    pieces: Mapping[str, int]  # of the base's tokenizer; empty where it is not at hand


def run(options: DoctorOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Examine a checkpoint, and restore the base's rows where that was asked for and can be done."""
    if options.part != "model":
        raise UserError("As a job the doctor looks at models alone.",
                        "For the machine: python -m scripts.doctor. For a model: scripts.doctor model BASE CHECKPOINT.")
    case = open_case(workspace, options)
    tokenizer = _tokenizer(case, options)
    if options.restore:
        _check_request(workspace, case, tokenizer, options)
    with stage(reporter, "compare"):
        findings = compare(case, reporter, _used(tokenizer))
    heard = None
    if options.measure and case.name and _worth_measuring(findings, tokenizer):
        with stage(reporter, "measure"):
            heard = measure(workspace, case.name, case.other, case.matching, _ids(case, tokenizer), reporter)
    scored = verdict.assess(findings, tokenizer, heard, _notes(case, tokenizer), case.family.anatomy.text_tables[0])
    found = Diagnosis(case.name or str(case.base.path), str(case.other.path), case.family.name, case.matching.prefix,
                      _types(case.other), verdict.worst_first(findings), tokenizer, heard, scored)
    diagnosis.write(reporter.directory, found)
    reporter.emit(Plan(_lines(found, options)))
    restored = _restore(workspace, case, found, options, reporter) if options.restore else {}
    touched = sum(one.touched for one in findings)
    return {"verdict": scored.level, "headline": scored.headline, "base_languages": scored.base_languages,
            "tensors": len(case.base.names), "changed": touched, "restorable": scored.restorable, **restored}


def _worth_measuring(findings: Sequence[Finding], tokenizer: TokenizerFit | None) -> bool:
    """Whether the checkpoint can be run in the base's place, and could say something else."""
    if any(one.state in _UNREADABLE for one in findings if one.part != diagnosis.NEW_ROWS):
        return False
    return any(one.touched or one.state == "rounded" for one in findings) or bool(tokenizer and tokenizer.moved_count)


def open_case(workspace: Workspace, options: DoctorOptions) -> Case:
    """Open base and checkpoint and find which tensor is which; `UserError` when they have nothing in common."""
    if not options.base or not options.checkpoint:
        raise UserError("A base and a checkpoint are needed.", "Such as: python -m scripts.doctor model tiny it.pt")
    family, name, base, folder = _open_base(workspace, options.base)
    other = _open_other(family, Path(options.checkpoint))
    matching = match(base, other, family.anatomy.text_tables)
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
    return Case(family, name, base, other, matching, pieces)


def compare(case: Case, reporter: Reporter, used: Collection[int] | None = None) -> list[Finding]:
    """A finding for each tensor, and two for a table with one row a text id; `used` are the ids that have a piece."""
    found: list[Finding] = []
    names = case.base.names
    for done, name in enumerate(names):
        found += _findings(case, name, used)
        reporter.emit(Progress(done + 1, len(names), "tensors", name))
        check_stop(reporter)
    part = case.family.anatomy.part
    prefix = case.matching.prefix
    return found + [Finding(name, part(name.removeprefix(prefix)), "extra", "the base has none of this name",
                            case.other.shape(name), tensor_change.named(case.other.dtype(name)))
                    for name in case.matching.extra]


def _findings(case: Case, name: str, used: Collection[int] | None) -> list[Finding]:
    """What became of the base tensor `name`."""
    table = name in case.family.anatomy.text_tables
    part = diagnosis.OLD_ROWS if table else case.family.anatomy.part(name)
    there = case.matching.found.get(name)
    if there is None:
        return [Finding(name, part, "missing", "the checkpoint has none of this name or of these values",
                        case.base.shape(name))]
    wanted, shape, kind = case.base.shape(name), case.other.shape(there), tensor_change.named(case.other.dtype(there))
    before = case.base.tensor(name)
    after = case.other.tensor(there)
    if tensor_change.transposed(before, after) and not _near(before, after):
        return [Finding(name, part, "transposed", f"it is {shape}, the base's with rows for columns", shape, kind)]
    if shape != wanted and not (table and shape[1:] == wanted[1:] and shape[0] > wanted[0]):
        return [Finding(name, part, "misshapen", f"it is {shape}, the base's {wanted}", shape, kind,
                        rows=wanted[0] if table else 0)]
    count = wanted[0] if wanted else 1
    change = tensor_change.compare(before, after[:count] if table else after, after if table else None)
    words = f"{change.words} (named {there} there)" if name in case.matching.renamed else change.words
    first = Finding(name, part, change.state, words, shape, kind, change.change,  # type: ignore[arg-type]
                    count, change.rows_moved, change.largest, change.median, change.rank,
                    change.rows_behind)
    return [first, *new_rows.examine(name, before, after, used)] if table else [first]


def _near(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether a square matrix is still itself: of its transpose it may also remind."""
    if before.shape != after.shape:
        return False
    old, new = before.float(), after.float()
    return bool((new - old).norm() <= (new.T - old).norm())


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
    for name in FAMILIES:  # a bare file: the families that share its names share what they mean
        family = family_named(name)
        weights = family.open_weights(path)
        if set(family.anatomy.text_tables) <= set(weights.names):
            return family, "", weights, folder
    raise UserError(f"{path} is the language model of no family that Lisan knows.",
                    "Give the base as it was published, or the name of a model in the workspace.")


def _open_other(family: Family, path: Path) -> WeightsFile:
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


def _tokenizer(case: Case, options: DoctorOptions) -> TokenizerFit | None:
    """How the checkpoint's tokenizer fits; None where there is none to look at."""
    table = case.family.anatomy.text_tables[0]
    there = case.matching.found.get(table)
    if there is None:
        return None
    path = tokenizer_fit.find(options.tokenizer, Path(options.checkpoint), case.other.shape(there)[0])
    if path is None or not case.pieces:
        return None
    return tokenizer_fit.fit(path, case.pieces, case.base.tensor(table), case.other.tensor(there))


def _used(fit: TokenizerFit | None) -> Collection[int] | None:
    """The ids that have a piece; None where no tokenizer is known."""
    return None if fit is None else frozenset(tokenizer_fit.read(Path(fit.path)).values())


def _ids(case: Case, fit: TokenizerFit | None) -> dict[int, int]:
    """The checkpoint's id for each id of the base that its tokenizer moved."""
    if fit is None or fit.base_ids_kept:
        return {}
    ids = tokenizer_fit.read(Path(fit.path))
    return {old: ids[piece] for piece, old in case.pieces.items() if piece in ids and ids[piece] < fit.rows}


def _notes(case: Case, tokenizer: TokenizerFit | None) -> list[str]:
    """What else a reader of the file should know."""
    notes = []
    if tokenizer is None:
        why = "none was given, and none lies in a folder of its own with it" if case.pieces else \
            "the base's own, which it would be held against, is not at hand"
        notes.append(f"Whether its tokenizer fits was not looked at: {why}.")
    if case.matching.prefix:
        notes.append(f"Every name begins with {case.matching.prefix!r}; programs that read the published names need "
                     "it taken away.")
    if renamed := case.matching.renamed:
        name, there = next(iter(renamed.items()))
        notes.append(f"{len(renamed)} tensors have other names there and were known by their values "
                     f"({name} is {there}).")
    if case.matching.adapters:
        notes.append("It holds adapters beside the weights, which were not merged and were not looked at.")
    return notes


def _types(file: WeightsFile) -> tuple[str, ...]:
    return tuple(sorted({tensor_change.named(file.dtype(name)) for name in file.names}))


def _lines(found: Diagnosis, options: DoctorOptions) -> tuple[str, ...]:
    """The diagnosis for the command line and the log."""
    worst = [one for one in found.findings if one.state not in ("equal", "rounded", "new")][:_NAMED]
    table = [f"  {one.state:10}  {one.part:12}  {one.name}: {one.words}" for one in worst]
    return (found.verdict.headline, *found.verdict.sentences, *(["The worst first:", *table] if table else []),
            found.verdict.advice, *([_how(found)] if found.verdict.restorable and not options.restore else []))


def _how(found: Diagnosis) -> str:
    """How rows are put back at the command line."""
    tokenizer = "" if found.tokenizer else " --tokenizer FILE"
    return f"To put them back, the same command again with: --restore NAME --language CODE{tokenizer}"


def _check_request(workspace: Workspace, case: Case, tokenizer: TokenizerFit | None, options: DoctorOptions) -> None:
    """Whether rows could be put back as asked, before anything is compared; else `UserError`."""
    workspace.new_export(options.restore)
    if not case.name:
        raise UserError(f"{case.base.path} is not in the workspace, and the restored model needs all of its files.",
                        "Get it first (python -m scripts.download --folder), and give its name as the base.")
    if tokenizer is None or not options.language:
        raise UserError("To restore, the tokenizer and the language of the new rows must be known.",
                        "Give --tokenizer FILE and --language CODE.")


def _restore(workspace: Workspace, case: Case, found: Diagnosis, options: DoctorOptions,
             reporter: Reporter) -> Result:
    if not found.verdict.restorable or found.tokenizer is None:
        raise UserError(f"No rows were put back, and {options.restore} was not made. {found.verdict.advice}",
                        "What was found stands above and in the job's diagnosis.json.")
    with stage(reporter, "restore"):
        base = load_base(workspace, case.name, torch.device("cpu"))
        asked = restore.Asked(options.restore, options.language, Path(found.tokenizer.path), reporter.directory.name)
        return restore.restore(workspace, base, case.other, case.matching, asked)
