"""Give a base model rows for the new tokens, in every text table at once.

The old rows are not copied: an extension holds the new rows alone, and what is loaded from
it is read back and compared with the base, tensor by tensor.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from config.errors import UserError
from config.schema import ExtendOptions
from core.job.journal import Plan, Progress, Result, Warned
from core.job.reporter import Reporter, check_stop, stage
from core.library import records
from core.library.aside import written_aside
from core.library.records import ExtensionRecord, Origin
from core.model import row_initialisation, tensor_files
from core.model.loading import VoiceModel, load_base, load_extension
from core.model.prefix import base_tensors, hash_tensors, new_rows
from core.model.row_initialisation import InitialRows, initial_rows
from core.workspace import Workspace, resolve_inside
from data.front_end import FrontEnd

_NAMED = 8  # tokens named in a warning


def run(options: ExtendOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Make `extensions/NAME`; a tokenizer of another base is refused with both sizes."""
    base = load_base(workspace, options.model, torch.device("cpu"))
    front_end = FrontEnd.load(workspace.tokenizer(options.tokenizer))
    front_end.check_extends(base.front_end)
    count = front_end.size - front_end.prefix_size
    if count == 0:
        hint = "Train it on another language."
        raise UserError(f"The tokenizer {options.tokenizer!r} adds no token to the base.", hint)
    with stage(reporter, "new rows"):
        made = initial_rows(_tables(base), base.front_end, front_end, options.initialisation, options.seed)
    if options.initialisation == "fitted":
        with stage(reporter, "fit"):
            made = _fitted(base, front_end, made, options, reporter)
    record = _record(options, base, front_end, made)
    reporter.emit(_plan(base, record, made))
    if made.fallen_back:
        reporter.emit(Warned(_fallen_back(options, made)))
    check_stop(reporter)
    state = _save(workspace, options.extension, record, front_end, made)
    with stage(reporter, "read back"):
        _verify(workspace, options.extension, made, base.base_hash)
    return {
        "extension": options.extension, "state": state, "new_rows": count, "old_rows": front_end.prefix_size,
        "rows": front_end.size, "tables": len(made.rows), "old_rows_equal": True, "from_spelling": len(made.spelled),
        "from_mean": count - len(made.spelled) - len(made.tags), "languages": ", ".join(record.languages),
    }


def _fallen_back(options: ExtendOptions, made: InitialRows) -> str:
    """Which tokens the strategy found nothing for; when that is all of them, that it is the start of another one."""
    count = len(made.fallen_back)
    if not made.spelled:
        return (f"None of the {count} new tokens is spelled by tokens of the base: {options.initialisation!r} is the "
                "same start as 'mean' here, to the bit.")
    named = ", ".join(made.fallen_back[:_NAMED]) + (" ..." if count > _NAMED else "")
    return f"{count} tokens have no spelling in the base and start from the mean: {named}"


def _fitted(base: VoiceModel, front_end: FrontEnd, made: InitialRows, options: ExtendOptions,
            reporter: Reporter) -> InitialRows:
    """`made` with the rows of the embedding fitted to the states of their spelling; changes `base.model`."""
    def tell(done: int, total: int) -> None:
        reporter.emit(Progress(done, total, "steps", "of the fit"))
        check_stop(reporter)

    found = row_initialisation.fit_rows(base, front_end, made.rows, made.spellings, options.seed, tell)
    kept = "" if found.after < found.before else "; the start was kept"
    reporter.emit(Plan((f"The states of made-up words are {found.before:.1%} away from those of their spelling before "
                        f"the fit, {found.after:.1%} after it{kept}.",),
                       {"per_mille_before": round(1000 * found.before), "per_mille_after": round(1000 * found.after)}))
    return replace(made, rows=found.rows)


def _tables(base: VoiceModel) -> dict[str, torch.Tensor]:
    """The old rows (N, width) of each text table."""
    return {name: base.model.module.get_parameter(f"{name}.weight") for name in base.model.text_tables}


def _record(options: ExtendOptions, base: VoiceModel, front_end: FrontEnd, made: InitialRows) -> ExtensionRecord:
    origin = Origin(base.family.name, base.name, base.base_hash, front_end.prefix_size, front_end.size,
                    front_end.fingerprint)
    languages = tuple(code for code in front_end.languages if front_end.is_new(code))
    return ExtensionRecord(options.extension, options.tokenizer, languages, options.initialisation, options.seed,
                           hash_tensors(made.rows), origin, len(made.spelled))


def _plan(base: VoiceModel, record: ExtensionRecord, made: InitialRows) -> Plan:
    count = record.origin.size - record.origin.prefix_size
    tables = ", ".join(base.model.text_tables)
    return Plan(
        (f"{count} new rows after the {record.origin.prefix_size} of the base in each of {tables}.",
         f"Start: {len(made.spelled)} from their spelling, {len(made.tags)} tags from the base's tags, "
         f"{count - len(made.spelled) - len(made.tags)} from the mean of all rows."),
        {"new rows": count, "old rows": record.origin.prefix_size, "tables": len(made.rows)},
    )


def _save(workspace: Workspace, name: str, record: ExtensionRecord, front_end: FrontEnd, made: InitialRows) -> str:
    target = resolve_inside(workspace.extensions, name)
    if target.exists():
        there = records.read(target / records.EXTENSION, ExtensionRecord)
        if replace(there, from_spelling=record.from_spelling) == record:  # earlier ones do not have that count
            return "already there"
        raise UserError(f"There already is another extension named {name!r}: {_difference(there, record)}.",
                        "Choose another extension name.")
    with written_aside(target) as folder:
        write_extension(folder, record, front_end, made.rows)
    return "written"


def _difference(there: ExtensionRecord, wanted: ExtensionRecord) -> str:
    """What sets two extensions apart, in words."""
    pairs = {
        "base model": (there.origin.model, wanted.origin.model), "tokenizer": (there.tokenizer, wanted.tokenizer),
        "start of new rows": (there.initialisation, wanted.initialisation), "seed": (there.seed, wanted.seed),
        "languages": (", ".join(there.languages), ", ".join(wanted.languages)),
        "rows": (there.origin.size, wanted.origin.size),
    }
    told = [f"{name} {old} there, {new} asked for" for name, (old, new) in pairs.items() if old != new]
    if there.origin.base_hash != wanted.origin.base_hash:
        told.append("it was made for other weights of the base model")
    if there.origin.fingerprint != wanted.origin.fingerprint:
        told.append("the tokenizer was made anew since")
    return "; ".join(told) or "its rows are others, by another version of Lisan"


def write_extension(folder: Path, record: ExtensionRecord, front_end: FrontEnd, rows: dict[str, torch.Tensor]) -> None:
    """The files of an extension."""
    front_end.save(folder / records.FRONT_END)
    tensor_files.write(folder / records.ROWS, rows)
    records.write(folder / records.EXTENSION, record)


def _verify(workspace: Workspace, name: str, made: InitialRows, base_hash: str) -> None:
    """What was written gives the base's tensors to the bit, and the rows that were made."""
    back = load_extension(workspace, name, torch.device("cpu"))
    rows = new_rows(back.model.module, back.model.text_tables)
    assert hash_tensors(base_tensors(back.model.module)) == base_hash, "an old row changed"
    assert hash_tensors(dict(rows)) == hash_tensors(made.rows), "a new row changed"
