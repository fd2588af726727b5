"""Train pieces for a new language on a dataset's text and merge them into the base tokenizer.

Characters come from all of the dataset's text, so that held-out text can be encoded too;
merges come from its training text alone. Characters that the base already has keep their
ids. Everything is deterministic: the same text gives the same tokenizer.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from config.errors import UserError
from config.schema import TokenizerOptions
from config.text_rules import TextRules
from core.jobs.events import Plan, Result, WarningRaised
from core.jobs.reporter import Reporter, check_stop, stage
from core.library.aside import written_aside
from core.library.catalog import family_of
from core.text import own_pieces, text_rules
from core.text.pieces import Pieces, learn
from core.text.tokenizer_report import Learned, TokenizerReport, characters_of, measure
from core.workspace import Workspace, resolve_inside
from data import manifest, normalise
from data.entries import name_characters
from data.front_end import FrontEnd
from data.manifest import HELD_OUT, TRAIN, Dataset, read_json_lines
from models.registry import family

PROBE_FILE = "probe_sentences.jsonl"
_PIECES_SUFFIX = ".pieces.json"


def run(options: TokenizerOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Make `tokenizers/NAME`, or do the part of it that `options.part` names; hands back the report's numbers.

    `train` leaves what it learned beside the folder, in `NAME.pieces.json`, for `merge` to take up.
    """
    if options.part == "report":
        workspace.tokenizer(options.tokenizer)
    model_folder = workspace.model(options.model)
    base = family(family_of(workspace, options.model)).front_end(model_folder)
    dataset = manifest.load(workspace.dataset(options.dataset))
    target = resolve_inside(workspace.tokenizers, options.tokenizer)
    rules = text_rules.for_dataset(workspace, options.rules, dataset.card.language)
    pieces_file = target.with_name(target.name + _PIECES_SUFFIX)
    if options.part in ("all", "train"):
        with stage(reporter, "train"):
            pieces = learn_pieces(base, dataset, options, rules)
        if options.part == "train":
            pieces.save(pieces_file)
            return _tell_learned(pieces, pieces_file, reporter)
    elif options.part == "merge":
        pieces = Pieces.load(pieces_file)
    if options.part == "report":
        extended, learned = _made(workspace.tokenizer(options.tokenizer))
    else:
        extended, learned = merge(base, dataset, pieces, rules, options.byte_fallback)
    check_stop(reporter, "Stopped before the tokenizer was written.")
    with stage(reporter, "check"):
        report = measure(base, extended, dataset, learned, *probe_sentences(model_folder))
    _check(report)
    _show(report, base, dataset, reporter)
    state = "checked" if options.part == "report" else _save(extended, report, target)
    return {
        "tokenizer": options.tokenizer, "state": state, "language": report.language,
        "size": report.size, "base_size": report.prefix_size, "tokens_added": report.tokens_added,
        "characters": report.characters, "characters_covered": report.characters_covered,
        "unknown_rate_before": round(report.unknown_rate_before, 4), "unknown_rate": report.unknown_rate,
        "tokens_per_character_before": round(report.tokens_per_character_before, 4),
        "tokens_per_character": round(report.tokens_per_character, 4),
        "base_unchanged": report.base_unchanged, "fingerprint": report.fingerprint,
    }


def learn_pieces(base: FrontEnd, dataset: Dataset, options: TokenizerOptions, rules: TextRules | None = None) -> Pieces:
    """Characters of all of the dataset's text, and merges of the words of its training text, or those brought."""
    language = dataset.card.language
    reader = base.extended(language, base.normaliser_for(language), [], [], rules)  # so the text is read as in training
    train = [reader.normalise(clip.text, language) for clip in dataset.split(TRAIN)]
    held_out = [reader.normalise(clip.text, language) for clip in dataset.split(HELD_OUT)]
    if options.tokenizer_file:
        pieces = own_pieces.take(base, options.tokenizer_file)
    else:
        pieces = learn([normalise.without_marks(text) for text in train], options.algorithm, options.merges)
    more = sorted(characters_of((*train, *held_out)) - set(pieces.characters))
    return replace(pieces, characters=(*pieces.characters, *more))


def merge(base: FrontEnd, dataset: Dataset, pieces: Pieces,
          rules: TextRules | None = None, byte_fallback: bool = False) -> tuple[FrontEnd, Learned]:
    """`base` with the dataset's language, and how its pieces were learned."""
    language = dataset.card.language
    count = len({left + right for left, right in pieces.merges})
    extended = base.extended(language, base.normaliser_for(language), pieces.characters, pieces.merges, rules,
                             byte_fallback)
    return extended, Learned(pieces.algorithm, pieces.merges_asked, count)


def _tell_learned(pieces: Pieces, path: Path, reporter: Reporter) -> Result:
    merged = tuple(dict.fromkeys(left + right for left, right in pieces.merges))
    reporter.emit(Plan((
        f"{len(pieces.characters)} characters: {' '.join(pieces.characters)}",
        f"{len(merged)} pieces longer than one character: {' '.join(merged) or 'none'}",
    ), {"characters": len(pieces.characters), "pieces": len(merged)}))
    return {"state": "learned", "characters": len(pieces.characters), "pieces": len(merged), "file": str(path)}


def _made(folder: Path) -> tuple[FrontEnd, Learned]:
    """A tokenizer that was made before, and how."""
    there = TokenizerReport.load(folder)
    return FrontEnd.load(folder), Learned(there.algorithm, there.merges_asked, there.merges_learned)


def probe_sentences(model_folder: Path) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Where the sample sentences of base languages come from (`model`, else `app`), and (language, text) of each."""
    own = model_folder / PROBE_FILE
    path, source = (own, "model") if own.is_file() else (Path(manifest.__file__).with_name(PROBE_FILE), "app")
    return source, tuple((str(row["language"]), str(row["text"])) for _, row in read_json_lines(path))


def _check(report: TokenizerReport) -> None:
    """A tokenizer that breaks one of its two promises is not saved."""
    if report.unknown_rate > 0:
        raise UserError(
            f"{report.unknown_rate:.2%} of the text is unknown to the new tokenizer; 0 is required.",
            "The base tokenizer's file cuts words where it should not; please report this with the file.",
        )
    if changed := [proof.language for proof in report.proofs if not proof.same]:
        raise UserError(
            f"The new tokenizer encodes {', '.join(changed)} differently than the base.",
            "Nothing was saved; please report this with the dataset.",
        )


def _show(report: TokenizerReport, base: FrontEnd, dataset: Dataset, reporter: Reporter) -> None:
    if report.characters_held_out_only:
        reporter.emit(WarningRaised(
            f"{len(report.characters_held_out_only)} characters occur in held-out text alone, so their rows will not "
            f"be trained: {name_characters(report.characters_held_out_only)}."
        ))
    if report.merges_learned < report.merges_asked:
        reporter.emit(WarningRaised(f"The text gave {report.merges_learned} of the {report.merges_asked} merges asked "
                                    f"for."))
    if report.unproven:
        reporter.emit(WarningRaised(f"There are no sample sentences to prove {', '.join(report.unproven)} with."))
    if hint := text_rules.missed(dataset, report.rules):
        reporter.emit(WarningRaised(hint))
    for code in report.unprepared:
        reporter.emit(WarningRaised(f"{code} was proven without what its text needs. {base.unready(code)}"))
    proof = ", ".join(f"{len(entry.sentences)} {entry.language}" for entry in report.proofs)
    pieces = max((entry.pieces for entry in report.proofs), default=0)
    reporter.emit(Plan((
        f"{report.tokens_added} tokens added after the base's {report.prefix_size}; {report.size} in all.",
        f"{report.characters_covered} of {report.characters} characters covered; unknown "
        f"{report.unknown_rate_before:.1%} before, {report.unknown_rate:.1%} now.",
        f"Tokens a character: {report.tokens_per_character_before:.2f} before, {report.tokens_per_character:.2f} now.",
        f"Sample sentences with the ids they had: {proof or 'none'} (from the {report.probe_source}); "
        f"in each language {pieces} pieces, all of both tokenizers, too.",
    ), {"tokens_added": report.tokens_added, "tokens": report.size}))


def _save(extended: FrontEnd, report: TokenizerReport, target: Path) -> str:
    """Write the tokenizer once; whether it was written now or was there already."""
    if target.exists():
        there = FrontEnd.load(target)
        if there.fingerprint == extended.fingerprint:
            return "already there"
        raise UserError(
            f"There already is another tokenizer named {target.name!r}, of {there.size} ids; "
            f"the new one has {extended.size}.",
            "Choose another tokenizer name.",
        )
    with written_aside(target) as folder:
        extended.save(folder)
        report.save(folder)
    return "written"
