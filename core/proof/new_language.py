"""Whether the new rows can carry a language, as far as weights tell: in words. Pure, and never loads torch."""

from __future__ import annotations

from collections.abc import Sequence

from core.library.diagnosis import NEW_ROWS, OLD_ROWS, Level, TensorFinding


def new_rows_fault(findings: Sequence[TensorFinding], embedding: str = "") -> tuple[Level, str]:
    """How far the new rows can carry a language, and what is wrong with them, as a sentence.

    Speech reads the rows of `embedding`; those of other tables predict text in training alone.
    """
    new = {one.name: one for one in findings if one.part == NEW_ROWS}
    if not new:
        return "good", ""
    if any(one.state == "broken" for one in new.values()):
        return "bad", "Its new rows hold values that are no numbers: the new language cannot work."
    counts = counts_of_new(findings)
    if len(set(counts.values())) > 1:
        numbers = listed([f"{name} has {count}" for name, count in counts.items()])
        return "bad", f"Its tables have different numbers of new rows ({numbers}): no program can load it."
    dead = [one for one in new.values() if one.state == "untrained"]
    if not dead:
        return "good", ""
    whose = "Its new rows" if len(dead) == len(new) else f"The new rows of {listed([one.name for one in dead])}"
    if unlearned(findings, embedding):
        return "bad", f"{whose} are {alike(dead)}: the new language cannot work."
    return "changed", f"{whose} are {alike(dead)}: it cannot predict the new text, which speech can do without."


def counts_of_new(findings: Sequence[TensorFinding]) -> dict[str, int]:
    """New rows by table, for those tables whose old rows could be read."""
    new = {one.name: one.rows for one in findings if one.part == NEW_ROWS}
    return {one.name: new.get(one.name, 0) for one in findings if one.part == OLD_ROWS
            and one.state not in ("missing", "misshapen", "transposed")}


def unlearned(findings: Sequence[TensorFinding], embedding: str) -> list[TensorFinding]:
    """New rows that no training reached, of the table that speech reads."""
    return [one for one in findings if one.state == "untrained" and embedding in ("", one.name)]


def alike(dead: Sequence[TensorFinding]) -> str:
    return "all alike" if all(one.distinct == 1 for one in dead) else "mostly alike"


def advice_on_new_rows(findings: Sequence[TensorFinding], embedding: str) -> str:
    """What to do about a checkpoint whose base is whole."""
    grade, fault = new_rows_fault(findings, embedding)
    if not fault:
        return "Nothing needs to be restored."
    if any(one.state == "broken" for one in findings):
        return "It cannot be used as it is. Get the file again, or take an earlier checkpoint of the same training."
    if len(set(counts_of_new(findings).values())) > 1:
        return "Extend every text table by the same rows, and train again; the base's rows are as they were."
    if grade == "changed":
        return "The base needs nothing. Hear the new language before you use it; train on with this table learning."
    return ("The base's rows are as they were; it is the new ones that no training reached. Take a later checkpoint or "
            "train again and see that these rows learn: they need a far higher rate than adapters do.")


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
