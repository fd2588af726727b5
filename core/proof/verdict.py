"""The doctor's judgement of what was found, in words. Pure, and never loads torch.

What weights can tell is said; what they cannot (how it sounds after training) is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from core.proof.diagnosis import (
    NEW_ROWS,
    OLD_ROWS,
    UNUSED,
    Assessment,
    Finding,
    Languages,
    Level,
    ProbeDrift,
    TokenizerFit,
)
from core.proof.new_language import advice_on_new_rows, alike, counts_of_new, listed, new_rows_fault, unlearned

_LOST = ("broken", "misshapen", "missing", "transposed")
_SEVERITY = {"broken": 0, "misshapen": 1, "missing": 2, "transposed": 3, "replaced": 4, "permuted": 5, "trained": 6,
             "low rank": 7, "shrunk": 8, "untrained": 9, "extra": 10, "rounded": 11, "new": 12, "equal": 13}
_MEASURED = ("shrunk", "trained", "low rank")  # of the others, the length of the difference says nothing
_STILL = 0.8  # share of codes whose likeliest must be the same for "mostly"


def worst_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The order in which findings are read: what breaks a model first, then by how far it moved."""
    return tuple(sorted(findings, key=lambda one: (_SEVERITY[one.state], -one.change, one.name, one.part)))


def assess(findings: Sequence[Finding], tokenizer: TokenizerFit | None, heard: ProbeDrift | None,
          notes: Sequence[str] = (), embedding: str = "") -> Assessment:
    """What the findings come to; `notes` are said beside them. `embedding` names the table that speech reads."""
    languages = base_languages(findings, tokenizer)
    restorable, why_not = can_restore(findings, tokenizer, embedding)
    level: Level = "good" if languages in ("kept", "rounded") else "bad" if languages == "lost" else "changed"
    new = [one for one in findings if one.part == NEW_ROWS]
    grade, fault = new_rows_fault(findings, embedding)
    if grade == "bad" or (tokenizer and not tokenizer.fits):
        level = "bad"
    elif level == "good":
        level = grade
    sentences = (
        *_rows_words(findings), *_rest_words(findings), *_new_words(new, _smaller(findings)),
        *([tokenizer_words(tokenizer)] if tokenizer else []), *([heard_words(heard)] if heard else []), *notes,
    )
    headline = f"{_headline(languages, findings, tokenizer)} {fault}".strip()
    return Assessment(level, headline, languages, sentences,
                   _advice(languages, findings, restorable, why_not, embedding), restorable)


def base_languages(findings: Sequence[Finding], tokenizer: TokenizerFit | None) -> Languages:
    """Whether the base languages can still work."""
    old = [one for one in findings if one.part not in (NEW_ROWS, UNUSED)]
    if any(one.state in _LOST for one in old):
        return "lost"
    followed = tokenizer is not None and tokenizer.rows_follow
    if tokenizer is not None and not (tokenizer.base_ids_kept or followed):
        return "lost"
    if any(one.state == "replaced" or (one.state == "permuted" and not followed) for one in old):
        return "lost"
    states = {one.state for one in old if one.state != "permuted"}
    if states <= {"equal", "extra"}:
        return "kept"
    return "rounded" if states <= {"equal", "rounded", "extra"} else "changed"


def can_restore(findings: Sequence[Finding], tokenizer: TokenizerFit | None,
                embedding: str = "") -> tuple[bool, str]:
    """Whether rows alone were damaged and new ones can be kept; else why not, as a sentence."""
    old = [one for one in findings if one.part == OLD_ROWS]
    new = [one for one in findings if one.part == NEW_ROWS]
    others = [one for one in findings if one.part not in (OLD_ROWS, NEW_ROWS, UNUSED) and one.touched]
    if not any(one.touched for one in old):
        return False, ""
    if not new:
        return False, "It has no new rows, so there is nothing to keep: the base itself is the restored model."
    if len(new) < len(old):
        tables = ", ".join(sorted({one.name for one in old} - {one.name for one in new}))
        return False, f"{tables} has no new rows, so the new pieces are only half there."
    if others:
        return False, (f"{len(others)} other tensors changed as well ({others[0].name}, ...). The new rows learned "
                       "beside them and would not speak with those of the base.")
    if broken := [one for one in new if one.state == "broken"]:
        return False, f"The new rows of {broken[0].name} hold values that are no numbers."
    if len(set(counts_of_new(findings).values())) > 1:
        return False, "Its tables have different numbers of new rows."
    if dead := unlearned(findings, embedding):
        return False, (f"The new rows of {dead[0].name} are {alike(dead)}, so there is nothing to keep: the base "
                       "itself is the restored model.")
    if any(one.state == "permuted" for one in old) and (strange := _not_known(old, tokenizer)):
        return False, strange
    if tokenizer is not None and not tokenizer.fits:
        return False, "The tokenizer does not fit, so which letters the new rows are for is not known."
    return True, ""


def _not_known(old: Sequence[Finding], tokenizer: TokenizerFit | None) -> str:
    """Why nobody can say which rows of a permuted table are the new ones; nothing where the tokenizer tells."""
    if behind := max(one.rows_behind for one in old):
        return f"{behind} of the base's rows stand among the new ones, so which rows are new is not known."
    if tokenizer is None:
        return "Rows stand in another order; which of them are the new ones its vocabulary says: give its tokenizer."
    if not tokenizer.base_ids_kept:
        return "The rows were sorted anew, so which of them are the new ones depends on the other vocabulary."
    return ""


def _headline(languages: Languages, findings: Sequence[Finding], tokenizer: TokenizerFit | None) -> str:
    followed = tokenizer is not None and tokenizer.rows_follow
    if languages == "kept":
        unfit = tokenizer is not None and not tokenizer.fits
        sorted_anew = " With its own tokenizer alone: the vocabulary was sorted anew." if followed else ""
        end = " Its tokenizer does not fit it, though." if unfit else sorted_anew
        return "The base model is whole: its languages work exactly as before." + end
    if languages == "rounded":
        return "The base model is whole but for rounding: its languages should sound the same."
    if languages == "changed":
        return "The base model was changed: whether its languages still work must be heard."
    if _smaller(findings):
        return "The base languages cannot work: it has fewer rows than the base, so some of their pieces have none."
    damaged = (*_LOST, "replaced", "permuted")
    where = {one.part for one in findings if one.state in damaged and one.part not in (NEW_ROWS, UNUSED)}
    if not where and tokenizer is not None and not tokenizer.moved_count:
        return f"The base languages cannot work: the tokenizer lacks {tokenizer.lost_count} of their pieces."
    if not where:
        return "The base languages cannot work: the tokenizer gives their pieces the ids of others."
    changed = {one.part for one in findings if one.state in _MEASURED and one.part not in (*where, NEW_ROWS, UNUSED)}
    beside = f" Beside that, the {listed(sorted(changed))} {_was(changed)} changed." if changed else ""
    return f"The base languages cannot work as they did: the {listed(sorted(where))} {_are(where)} damaged.{beside}"


def _are(parts: set[str]) -> str:
    return "are" if _several(parts) else "is"


def _was(parts: set[str]) -> str:
    return "were" if _several(parts) else "was"


def _several(parts: set[str]) -> bool:
    return len(parts) > 1 or any(part in ("layers", OLD_ROWS, "positions") for part in parts)


def _rows_words(findings: Sequence[Finding]) -> list[str]:
    """A sentence for each table's old rows."""
    words = []
    for one in findings:
        if one.part == OLD_ROWS:
            moved = ""
            if one.state in _MEASURED:
                moved = f"; {one.rows_moved} of {one.rows} moved, by {one.median:.2%} of their length at the median " \
                        f"and {one.largest:.2%} at most"
            words.append(f"Old rows of {one.name}: {one.words}{moved}.")
    return words


def _rest_words(findings: Sequence[Finding]) -> list[str]:
    """A sentence for each other part of the model."""
    words = []
    rest = [one for one in findings if one.part not in (OLD_ROWS, NEW_ROWS)]
    whole = [part for part in dict.fromkeys(one.part for one in rest)
             if all(one.state == "equal" for one in rest if one.part == part)]
    if whole:
        count = sum(one.part in whole for one in rest)
        words.append(f"Equal to the bit: {listed(whole)} ({count} tensors).")
    for part in dict.fromkeys(one.part for one in rest if one.state != "extra" and one.part not in whole):
        own = [one for one in rest if one.part == part and one.state != "extra"]
        counted = Counter(one.state for one in own)
        said = [f"{count} {state}" for state, count in sorted(counted.items(), key=lambda item: _SEVERITY[item[0]])]
        line = f"{part.capitalize()}: {', '.join(said)} of {len(own)} tensors"
        touched = [one.change for one in own if one.state in _MEASURED]
        if touched:
            line += f"; those that changed moved by {median(touched):.2%} of their length at the median"
        ranks = [one.rank for one in own if one.rank is not None]
        if ranks:
            line += f"; a LoRA of rank {max(ranks)} was merged into {len(ranks)} of them"
        words.append(line + ".")
    if extra := [one.name for one in rest if one.state == "extra"]:
        words.append(f"{len(extra)} tensors that the base does not have: {', '.join(extra[:3])}"
                     f"{' and more' if len(extra) > 3 else ''}.")
    return words


def _new_words(new: Sequence[Finding], smaller: bool) -> list[str]:
    if not new:
        return [] if smaller else ["No new rows: it has the vocabulary size of the base."]
    return [f"New rows of {one.name}: {one.rows}; {one.words}." for one in new]


def tokenizer_words(fit: TokenizerFit) -> str:
    """The tokenizer beside the rows, as a sentence or two."""
    counts = f"The tokenizer has {fit.size} ids and the checkpoint {fit.rows} rows"
    if fit.beyond:
        return f"{counts}: {fit.beyond} pieces have no row, and a text with one of them fails. They do not fit."
    spare = f" ({fit.spare} rows have no piece, which is no fault)" if fit.spare else ""
    said = [counts + spare]
    if fit.lost_count:
        said.append(f"{fit.lost_count} pieces of the base are gone ({', '.join(fit.lost[:3])})")
    if fit.moved_count:
        piece, before, now = fit.moved[0]
        kept = "and their rows moved with them" if fit.rows_follow else (
            f"and of these only {fit.following} find their row there" if fit.following else "and their rows did not")
        said.append(f"{fit.moved_count} pieces of the base have another id ({piece!r} was {before}, is {now}), {kept}")
    if fit.trespassing_count and not fit.rows_follow:
        piece, row = fit.trespassing[0]
        said.append(f"{fit.trespassing_count} new pieces stand on rows of the base ({piece!r} on row {row})")
    if fit.fits and fit.base_ids_kept:
        said.append(f"every base piece has the id it had, and {fit.added} pieces were added behind")
    return "; ".join(said) + "."


def heard_words(heard: ProbeDrift) -> str:
    """What both models said of base-language samples."""
    languages = ", ".join(heard.languages)
    if heard.equal == heard.samples:
        return f"Measured: the logits of all {heard.samples} base-language samples ({languages}) are equal to the bit."
    kept = "most" if heard.agreement >= _STILL else "few" if heard.agreement < 0.5 else "many"
    return (f"Measured on {heard.samples} base-language samples ({languages}): the likeliest code is the same for "
            f"{heard.agreement:.0%} of codes ({kept}); the predictions are {heard.divergence:.3g} nats a code apart.")


def _advice(languages: Languages, findings: Sequence[Finding], restorable: bool, why_not: str,
            embedding: str) -> str:
    if restorable:
        return ("Rows alone were damaged. The base's rows can be put back and the new ones kept: the base languages "
                "will then work exactly as before.")
    if languages in ("kept", "rounded") and not why_not:
        return advice_on_new_rows(findings, embedding)
    if _smaller(findings):
        return ("It has fewer rows than this base, so most likely it was made from another one, such as the English "
                "model where the multilingual one was given. Give the base it was made from.")
    if any(one.state in ("broken", "missing", "misshapen") for one in findings):
        return ("It cannot be used as it is. Get the file again, or take an earlier checkpoint of the same training. "
                + why_not).strip()
    if any(one.rank is not None for one in findings):
        return ("Adapters were merged, so they act on every language. Keep them apart and let them act on the new "
                "language alone (the scope `gated`). " + why_not).strip()
    if not any(one.touched for one in findings):  # and the languages are lost: by the tokenizer alone
        return ("The values of the base are all there, and the tokenizer is not theirs. Give the one that it was "
                "trained with; if this is the one, train again with a tokenizer that keeps every id of the base.")
    return ((f"The base's rows are not put back. {why_not} " if why_not else "")
            + "Listen to the base languages, or train the new language with Lisan, where they cannot move.")


def _smaller(findings: Sequence[Finding]) -> bool:
    """Whether a table has fewer rows than that of the base."""
    return any(one.part == OLD_ROWS and one.state == "misshapen" and one.shape[:1] < (one.rows,) for one in findings)
