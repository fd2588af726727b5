"""The model doctor's assessment: what the findings mean for the base languages and the new rows, and what to do.

Pure; never loads torch. Weights cannot tell how a model sounds, so nothing is said about that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from core.library.diagnosis import (
    NEW_ROWS,
    OLD_ROWS,
    UNUSED,
    Assessment,
    Languages,
    Level,
    ProbeDrift,
    TensorFinding,
    TokenizerFit,
)

_SEVERITY = {"broken": 0, "misshapen": 1, "missing": 2, "transposed": 3, "replaced": 4, "permuted": 5, "trained": 6,
             "low rank": 7, "shrunk": 8, "untrained": 9, "extra": 10, "rounded": 11, "new": 12, "equal": 13}
_LOST = ("broken", "misshapen", "missing", "transposed")
_MEASURED = ("shrunk", "trained", "low rank")  # of the others, the length of the difference says nothing
_MOSTLY, _FEW = 0.8, 0.5  # share of codes with the same top-1 prediction

# Problem: its level and its sentence in the headline. `{}` is what the check found.
_PROBLEMS: dict[str, tuple[Level, str]] = {
    "kept": ("good", "The base model is unchanged: its languages work exactly as before."),
    "kept, vocabulary reordered": (
        "good", "The base model is unchanged: its languages work exactly as before. With its own tokenizer alone: the "
                "vocabulary was reordered."),
    "kept, tokenizer unfit": (
        "bad", "The base model is unchanged: its languages work exactly as before. But its tokenizer does not fit it."),
    "rounded": ("good", "The base model is unchanged but for rounding: its languages should sound the same."),
    "changed": ("changed", "The base model was changed: listen to its languages to know whether they still work."),
    "fewer rows": ("bad", "The base languages cannot work: it has fewer rows than the base, so some of their pieces "
                          "have none."),
    "pieces lost": ("bad", "The base languages cannot work: the tokenizer lacks {} of their pieces."),
    "pieces moved": ("bad", "The base languages cannot work: the tokenizer gives their pieces the ids of others."),
    "damaged": ("bad", "The base languages cannot work as they did. Damaged: {}."),
    "new rows broken": ("bad", "Its new rows hold values that are no numbers: the new language cannot work."),
    "new rows unequal": ("bad", "Its tables have different numbers of new rows ({}): no program can load it."),
    "new rows untrained": ("bad", "{}: the new language cannot work."),
    "new rows untrained, not read by speech": (
        "changed", "{}: it cannot predict the new text, which speech can do without."),
}
# What to do, by the first that applies. `{}` is why the base's rows cannot be restored.
_ADVICE = {
    "restore": "Only rows were damaged. The base's rows can be restored and the new ones kept: the base languages will "
               "then work exactly as before.",
    "nothing": "Nothing needs to be restored.",
    "new rows broken": "It cannot be used as it is. Get the file again, or take an earlier checkpoint of the same "
                       "training.",
    "new rows unequal": "Extend every text table by the same rows, and train again; the base's rows are unchanged.",
    "new rows untrained, not read by speech": "The base needs nothing. Listen to the new language before you use it; "
                                              "continue the training with this table trainable.",
    "new rows untrained": "The base's rows are unchanged; no training reached the new ones. Take a later checkpoint or "
                          "train again with these rows trainable: they need a far higher learning rate than adapters.",
    "fewer rows": "It has fewer rows than this base, so most likely it was made from another one, such as the English "
                  "model where the multilingual one was given. Give the base it was made from.",
    "unreadable": "It cannot be used as it is. Get the file again, or take an earlier checkpoint of the same training. "
                  "{}",
    "merged adapters": "Adapters were merged, so they act on every language. Keep them separate and let them act on "
                       "the new language alone (the scope `gated`). {}",
    "other tokenizer": "The values of the base are unchanged, but the tokenizer is not theirs. Give the one that it "
                       "was trained with; if this is the one, train again with a tokenizer that keeps every base id.",
    "listen": "{} Listen to the base languages, or train the new language with Lisan, where they cannot change.",
}


def worst_first(findings: Sequence[TensorFinding]) -> tuple[TensorFinding, ...]:
    """The findings by severity, then by how far the tensor moved."""
    return tuple(sorted(findings, key=lambda one: (_SEVERITY[one.state], -one.change, one.name, one.part)))


def assess(findings: Sequence[TensorFinding], tokenizer: TokenizerFit | None, drift: ProbeDrift | None,
           notes: Sequence[str] = (), embedding: str = "") -> Assessment:
    """What the findings mean; `notes` are added to the sentences. `embedding` names the table that speech reads."""
    languages = base_languages(findings, tokenizer)
    restorable, obstacle = can_restore(findings, tokenizer, embedding)
    problem, found = _base_problem(languages, findings, tokenizer)
    level, headline = _PROBLEMS[problem]
    headline = headline.format(found)
    new_problem, new_found = _new_rows_problem(findings, embedding)
    if new_problem:
        new_level, sentence = _PROBLEMS[new_problem]
        headline = f"{headline} {sentence.format(new_found)}"
        level = "bad" if "bad" in (level, new_level) else level if level != "good" else new_level
    if tokenizer is not None and not tokenizer.fits:
        level = "bad"

    unreadable = any(one.state in ("broken", "missing", "misshapen") for one in findings)
    if restorable:
        advice = "restore"
    elif languages in ("kept", "rounded") and not obstacle:
        advice = "new rows broken" if new_problem and any(one.state == "broken" for one in findings) else (
            new_problem or "nothing")
    elif _fewer_rows(findings):
        advice = "fewer rows"
    elif unreadable:
        advice = "unreadable"
    elif any(one.rank is not None for one in findings):
        advice = "merged adapters"
    elif not any(one.touched for one in findings):  # the languages are lost by the tokenizer alone
        advice = "other tokenizer"
    else:
        advice = "listen"
        obstacle = f"The base's rows are not restored. {obstacle}" if obstacle else ""
    sentences = (*_table_sentences(findings), *_part_sentences(findings), *_new_row_sentences(findings),
                 *([tokenizer_sentence(tokenizer)] if tokenizer else []), *([drift_sentence(drift)] if drift else []),
                 *notes)
    return Assessment(level, headline, languages, sentences, _ADVICE[advice].format(obstacle).strip(), restorable)


def base_languages(findings: Sequence[TensorFinding], tokenizer: TokenizerFit | None) -> Languages:
    """Whether the base languages can still work."""
    old = [one for one in findings if one.part not in (NEW_ROWS, UNUSED)]
    followed = tokenizer is not None and tokenizer.rows_follow
    lost = any(one.state in (*_LOST, "replaced") or (one.state == "permuted" and not followed) for one in old)
    if lost or (tokenizer is not None and not (tokenizer.base_ids_kept or followed)):
        return "lost"
    states = {one.state for one in old if one.state != "permuted"}
    if states <= {"equal", "extra"}:
        return "kept"
    return "rounded" if states <= {"equal", "rounded", "extra"} else "changed"


def can_restore(findings: Sequence[TensorFinding], tokenizer: TokenizerFit | None, embedding: str = "") -> tuple[bool,
                                                                                                                 str]:
    """Whether only rows were damaged and the new ones can be kept; else why not, as a sentence."""
    old = [one for one in findings if one.part == OLD_ROWS]
    new = [one for one in findings if one.part == NEW_ROWS]
    others = [one for one in findings if one.part not in (OLD_ROWS, NEW_ROWS, UNUSED) and one.touched]
    if not any(one.touched for one in old):
        return False, ""
    if not new:
        return False, "It has no new rows, so there is nothing to keep: the base itself is the restored model."
    if len(new) < len(old):
        tables = ", ".join(sorted({one.name for one in old} - {one.name for one in new}))
        return False, f"{tables} has no new rows, so the new pieces are incomplete."
    if others:
        return False, (f"{len(others)} other tensors changed as well ({others[0].name}, ...). The new rows learned "
                       "beside them and would not work with those of the base.")
    if broken := [one for one in new if one.state == "broken"]:
        return False, f"The new rows of {broken[0].name} hold values that are no numbers."
    if len(set(_new_row_counts(findings).values())) > 1:
        return False, "Its tables have different numbers of new rows."
    if untrained := _untrained(findings, embedding):
        return False, (f"The new rows of {untrained[0].name} are {_alike(untrained)}, so there is nothing to keep: the "
                       "base itself is the restored model.")
    if any(one.state == "permuted" for one in old):
        if behind := max(one.rows_behind for one in old):
            return False, f"{behind} of the base's rows stand among the new ones, so it is unknown which rows are new."
        if tokenizer is None:
            return False, ("Rows stand in another order, and only its vocabulary says which of them are new: give its "
                           "tokenizer.")
        if not tokenizer.base_ids_kept:
            return False, "The rows were reordered, so which of them are new depends on the other vocabulary."
    if tokenizer is not None and not tokenizer.fits:
        return False, "The tokenizer does not fit, so it is unknown which letters the new rows are for."
    return True, ""


def _base_problem(languages: Languages, findings: Sequence[TensorFinding], tokenizer: TokenizerFit | None) -> tuple[str,
                                                                                                                    str]:
    """The entry of `_PROBLEMS` for the base, and what fills it."""
    if languages == "kept" and tokenizer is not None and not tokenizer.fits:
        return "kept, tokenizer unfit", ""
    if languages == "kept" and tokenizer is not None and tokenizer.rows_follow:
        return "kept, vocabulary reordered", ""
    if languages != "lost":
        return languages, ""
    if _fewer_rows(findings):
        return "fewer rows", ""
    base = [one for one in findings if one.part not in (NEW_ROWS, UNUSED)]
    damaged = sorted({one.part for one in base if one.state in (*_LOST, "replaced", "permuted")})
    if not damaged:
        assert tokenizer is not None
        return ("pieces moved", "") if tokenizer.moved_count else ("pieces lost", str(tokenizer.lost_count))
    changed = sorted({one.part for one in base if one.state in _MEASURED} - set(damaged))
    return "damaged", _join(damaged) + (f". Also changed: {_join(changed)}" if changed else "")


def _new_rows_problem(findings: Sequence[TensorFinding], embedding: str) -> tuple[str, str]:
    """The entry of `_PROBLEMS` for the new rows, or an empty one; speech reads the rows of `embedding` alone."""
    new = {one.name: one for one in findings if one.part == NEW_ROWS}
    counts = _new_row_counts(findings)
    if any(one.state == "broken" for one in new.values()):
        return "new rows broken", ""
    if new and len(set(counts.values())) > 1:
        return "new rows unequal", _join([f"{name} has {count}" for name, count in counts.items()])
    untrained = [one for one in new.values() if one.state == "untrained"]
    if not untrained:
        return "", ""
    rows = "Its new rows" if len(untrained) == len(new) else f"The new rows of {_join([one.name for one in untrained])}"
    read = _untrained(findings, embedding)
    return "new rows untrained" + ("" if read else ", not read by speech"), f"{rows} are {_alike(untrained)}"


def _new_row_counts(findings: Sequence[TensorFinding]) -> dict[str, int]:
    """New rows by table, for those tables whose old rows could be read."""
    new = {one.name: one.rows for one in findings if one.part == NEW_ROWS}
    return {one.name: new.get(one.name, 0) for one in findings if one.part == OLD_ROWS
            and one.state not in ("missing", "misshapen", "transposed")}


def _untrained(findings: Sequence[TensorFinding], embedding: str) -> list[TensorFinding]:
    """New rows that no training reached, of the table that speech reads."""
    return [one for one in findings if one.state == "untrained" and embedding in ("", one.name)]


def _alike(untrained: Sequence[TensorFinding]) -> str:
    return "all alike" if all(one.distinct == 1 for one in untrained) else "mostly alike"


def _fewer_rows(findings: Sequence[TensorFinding]) -> bool:
    return any(one.part == OLD_ROWS and one.state == "misshapen" and one.shape[:1] < (one.rows,) for one in findings)


def _join(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _table_sentences(findings: Sequence[TensorFinding]) -> list[str]:
    """A sentence for each table's old rows."""
    return [f"Old rows of {one.name}: {one.words}" + (
            f"; {one.rows_moved} of {one.rows} moved, by {one.median:.2%} of their length at the median and "
            f"{one.largest:.2%} at most." if one.state in _MEASURED else ".")
            for one in findings if one.part == OLD_ROWS]


def _part_sentences(findings: Sequence[TensorFinding]) -> list[str]:
    """A sentence for each other part of the model."""
    rest = [one for one in findings if one.part not in (OLD_ROWS, NEW_ROWS)]
    parts = list(dict.fromkeys(one.part for one in rest))
    equal = [part for part in parts if all(one.state == "equal" for one in rest if one.part == part)]
    sentences = []
    if equal:
        sentences.append(f"Bit-identical: {_join(equal)} ({sum(one.part in equal for one in rest)} tensors).")
    for part in parts:
        own = [one for one in rest if one.part == part and one.state != "extra"]
        if part in equal or not own:
            continue
        counts = sorted(Counter(one.state for one in own).items(), key=lambda item: _SEVERITY[item[0]])
        line = f"{part.capitalize()}: {', '.join(f'{n} {state}' for state, n in counts)} of {len(own)} tensors"
        if changes := [one.change for one in own if one.state in _MEASURED]:
            line += f"; those that changed moved by {median(changes):.2%} of their length at the median"
        if ranks := [one.rank for one in own if one.rank is not None]:
            line += f"; a LoRA of rank {max(ranks)} was merged into {len(ranks)} of them"
        sentences.append(line + ".")
    if extra := [one.name for one in rest if one.state == "extra"]:
        sentences.append(f"{len(extra)} tensors that the base does not have: {', '.join(extra[:3])}"
                         f"{' and more' if len(extra) > 3 else ''}.")
    return sentences


def _new_row_sentences(findings: Sequence[TensorFinding]) -> list[str]:
    new = [one for one in findings if one.part == NEW_ROWS]
    if not new and not _fewer_rows(findings):
        return ["No new rows: it has the vocabulary size of the base."]
    return [f"New rows of {one.name}: {one.rows}; {one.words}." for one in new]


def tokenizer_sentence(fit: TokenizerFit) -> str:
    """How the tokenizer fits the rows, in a sentence or two."""
    counts = f"The tokenizer has {fit.size} ids and the checkpoint {fit.rows} rows"
    if fit.beyond:
        return f"{counts}: {fit.beyond} pieces have no row, and a text with one of them fails. They do not fit."
    facts = [counts + (f" ({fit.spare} rows have no piece, which is no fault)" if fit.spare else "")]
    if fit.lost_count:
        facts.append(f"{fit.lost_count} pieces of the base are gone ({', '.join(fit.lost[:3])})")
    if fit.moved_count:
        piece, before, now = fit.moved[0]
        rows = "and their rows moved with them" if fit.rows_follow else (
            f"and of these only {fit.following} find their row there" if fit.following else "and their rows did not")
        facts.append(f"{fit.moved_count} pieces of the base have another id ({piece!r} was {before}, is {now}), {rows}")
    if fit.trespassing_count and not fit.rows_follow:
        piece, row = fit.trespassing[0]
        facts.append(f"{fit.trespassing_count} new pieces stand on rows of the base ({piece!r} on row {row})")
    if fit.fits and fit.base_ids_kept:
        facts.append(f"every base piece has the id it had, and {fit.added} pieces were added behind")
    return "; ".join(facts) + "."


def drift_sentence(drift: ProbeDrift) -> str:
    """What both models predicted for base-language samples."""
    languages = ", ".join(drift.languages)
    if drift.equal == drift.samples:
        return f"Measured: the logits of all {drift.samples} base-language samples ({languages}) are bit-identical."
    share = "most" if drift.agreement >= _MOSTLY else "few" if drift.agreement < _FEW else "many"
    return (f"Measured on {drift.samples} base-language samples ({languages}): the top-1 prediction is the same for "
            f"{drift.agreement:.0%} of codes ({share}); the predictions are {drift.divergence:.3g} nats a code apart.")
