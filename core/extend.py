"""Give a base model rows for the new tokens, in every text table at once.

The old rows are not copied: an extension has the new rows alone. It is read back and compared with the base, tensor by
tensor.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import torch

from config.errors import UserError
from config.schema import ExtendOptions
from core.jobs.events import Plan, Progress, Result, WarningRaised
from core.jobs.reporter import Reporter, check_stop, stage
from core.library import records
from core.library.records import ExtensionRecord
from core.model import tensor_files
from core.model.loading import load_extension, load_model_to_extend, write_earlier_trainings
from core.model.prefix import base_tensors, hash_tensors, new_rows, rows_name, whole_table
from core.model.row_initialisation import fit_rows, initial_rows
from core.workspace import Workspace, resolve_inside
from data.durable_files import atomic_directory
from data.front_end import FrontEnd

_MAX_LISTED = 8  # tokens in a warning


def run(options: ExtendOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Make `extensions/NAME`; a tokenizer of another base is refused with both sizes."""
    base = load_model_to_extend(workspace, options.model, torch.device("cpu"))
    front_end = FrontEnd.load(workspace.tokenizer(options.tokenizer))
    front_end.check_extends(base.front_end)
    old_rows, count = base.front_end.size, len(front_end.added_to(base.front_end))
    if count == 0:
        raise UserError(f"The tokenizer {options.tokenizer!r} adds no token to {options.model}.",
                        "Train it on another language.")

    # Each text table of the model gets a new row for each new token.
    with stage(reporter, "new rows"):
        tables = {rows_name(table): whole_table(base.lm.module, table) for table in base.lm.text_tables}
        of_languages = rows_name(base.lm.language_table)
        start = initial_rows(tables, base.front_end, front_end, options.initialisation, options.seed,
                             of_languages)
    # A variant has a tag alone, so there is nothing to fit.
    if options.initialisation == "fitted" and start.spelled:
        def report(step: int, total: int) -> None:
            reporter.emit(Progress(step, total, "steps", "of the fit"))
            check_stop(reporter)

        with stage(reporter, "fit"):
            fitted = fit_rows(base, front_end, start.rows, start.spellings, options.seed, report)
        outcome = "" if fitted.after < fitted.before else "; the start was kept"
        reporter.emit(Plan(
            (f"The states of random words are {fitted.before:.1%} away from those of their spelling before the fit, "
             f"{fitted.after:.1%} after it{outcome}.",),
            {"per_mille_before": round(1000 * fitted.before), "per_mille_after": round(1000 * fitted.after)}))
        start = replace(start, rows=fitted.rows)

    origin = replace(base.origin, size=front_end.size, fingerprint=front_end.fingerprint)
    languages = tuple(code for code in front_end.languages if code not in base.front_end.languages)

    # The record says how the rows began, so that the extension can be made again.
    record = ExtensionRecord(options.extension, options.tokenizer, languages, options.initialisation, options.seed,
                             hash_tensors(start.rows), origin, len(start.spelled))
    from_mean = count - len(start.spelled) - len(start.tags)
    reporter.emit(Plan(
        (f"{count} new rows after the {old_rows} of the base in each of "
         f"{', '.join(name for name in start.rows if name != of_languages)}.",
         *([f"{len(start.rows[of_languages])} in {of_languages}: a copy of the language's own row, or the mean of "
            "those of the base languages."] if of_languages else []),
         f"Start: {len(start.spelled)} from their spelling, {len(start.tags)} tags from the base's tags, "
         f"{from_mean} from the mean of all rows."),
        {"new rows": count, "old rows": old_rows, "tables": len(start.rows)}))
    if start.fallen_back and not start.spelled:
        reporter.emit(WarningRaised(f"None of the {len(start.fallen_back)} new tokens is spelled by tokens of the "
                                    f"base: {options.initialisation!r} gives the same rows as 'mean' here."))
    elif start.fallen_back:
        listed = ", ".join(start.fallen_back[:_MAX_LISTED]) + (" ..." if len(start.fallen_back) > _MAX_LISTED else "")
        reporter.emit(WarningRaised(f"{len(start.fallen_back)} tokens have no spelling in the base and start from the "
                                    f"mean: {listed}"))
    check_stop(reporter)

    # The same extension may be made again; another one of this name is refused.
    target, state = resolve_inside(workspace.extensions, options.extension), "already there"
    if not target.exists():
        state = "written"
        with atomic_directory(target) as folder:
            write_extension(folder, record, front_end, start.rows)
            write_earlier_trainings(folder, base)
    else:
        existing = records.read_extension(target)
        if existing != record:
            raise UserError(f"There already is another extension named {options.extension!r}: "
                            f"{_difference(existing, record)}.", "Choose another extension name.")

    # The written files must load as what was computed, with no row of the base changed. At the published sizes memory
    # is short for two models.
    frozen_hash = base.frozen_hash
    del base, tables
    gc.collect()
    with stage(reporter, "read back"):
        back = load_extension(workspace, options.extension, torch.device("cpu"))
        rows = new_rows(back.lm.module, back.lm.text_tables)
        assert hash_tensors(base_tensors(back.lm.module)) == frozen_hash, "an old row changed"
        assert hash_tensors(dict(rows)) == hash_tensors(start.rows), "a new row changed"
    return {
        "extension": options.extension, "state": state, "new_rows": count, "old_rows": old_rows,
        "rows": front_end.size, "tables": len(start.rows), "old_rows_equal": True, "from_spelling": len(start.spelled),
        "from_mean": from_mean, "languages": ", ".join(languages),
        **({"earlier_languages": ", ".join(origin.earlier_languages)} if origin.earlier_trainings else {}),
    }


def write_extension(folder: Path, record: ExtensionRecord, front_end: FrontEnd, rows: dict[str, torch.Tensor]) -> None:
    """The files of an extension."""
    front_end.save(folder / records.FRONT_END)
    tensor_files.write(folder / records.ROWS, rows)
    records.write_record(folder / records.EXTENSION, record)


def _difference(existing: ExtensionRecord, requested: ExtensionRecord) -> str:
    """What is different between two extensions, in words."""
    pairs = {
        "base model": (existing.origin.model, requested.origin.model),
        "tokenizer": (existing.tokenizer, requested.tokenizer),
        "start of new rows": (existing.initialisation, requested.initialisation),
        "seed": (existing.seed, requested.seed),
        "languages": (", ".join(existing.languages), ", ".join(requested.languages)),
        "rows": (existing.origin.size, requested.origin.size),
        "earlier trainings": tuple(
            ", ".join(f"{training.language} ({training.source})" for training in origin.earlier_trainings) or "none"
            for origin in (existing.origin, requested.origin)),
    }
    facts = [f"{name} {old} there, {new} requested" for name, (old, new) in pairs.items() if old != new]
    if existing.origin.base_hash != requested.origin.base_hash:
        facts.append("it was made for other weights of the base model")
    if existing.origin.fingerprint != requested.origin.fingerprint:
        facts.append("the tokenizer was changed since")
    return "; ".join(facts) or "its rows differ, by another version of Lisan"
