"""Train pieces for a new language on a dataset's text and merge them into the base tokenizer.

Characters come from all of the dataset's text, so that held-out text can be encoded too; merges come from its training
text only. Characters that the base already has keep their ids. The same text gives the same tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from config.errors import UserError
from config.schema import TokenizerOptions
from config.text_rules import TextRules
from core.jobs.events import Plan, Result, WarningRaised
from core.jobs.reporter import Reporter, check_stop, stage
from core.library.lineage import Model
from core.model.loading import load_front_end
from core.text import text_rules
from core.text.pieces import Pieces, import_pieces, normaliser_for, train_pieces, with_all_characters
from core.text.tokenizer_report import PieceTraining, TokenizerReport, measure, unused_pieces_warning
from core.workspace import Workspace, resolve_inside
from data import manifest, normalisers
from data.durable_files import atomic_directory
from data.front_end import FrontEnd, name_characters, probe_sentences
from data.manifest import HELD_OUT, SPLITS, TRAIN, PreparedDataset

_PIECES_SUFFIX = ".pieces.json"
# Sentences of each language of an earlier training, for the proof.
_EARLIER_SENTENCES = 16


def run(options: TokenizerOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Make `tokenizers/NAME`, or do the part of it that `options.part` names; returns the report's numbers.

    The part `train` saves the pieces beside the folder, in `NAME.pieces.json`, for the part `merge`.
    """
    target = resolve_inside(workspace.tokenizers, options.tokenizer)
    if options.part == "report":
        # A report needs the tokenizer, so a missing one fails early.
        workspace.tokenizer(options.tokenizer)
    base = load_front_end(workspace, options.model)
    dataset = manifest.load(workspace.dataset(options.dataset))
    rules = text_rules.for_languages(workspace, options.rules, dataset.card.languages)

    # The front-end is extended by the pieces that are learned, loaded or, for a variant, those of the other language.
    if options.variant_of and options.part != "report":
        if options.part != "all" or options.rules or options.tokenizer_file or options.merges:
            raise UserError(f"A variant of {options.variant_of!r} is read as that language is: there are no pieces to "
                            "learn and no rules to choose.", "Leave out part, merges, rules and the custom tokenizer.")
        if len(dataset.card.languages) > 1:
            raise UserError(f"The dataset {options.dataset!r} holds several languages ({dataset.card.language}); a "
                            "variant is one.", "Choose a dataset of the variant alone.")
        extended = base.with_variant(dataset.card.language, options.variant_of)
        training = PieceTraining("variant", 0, 0)
    elif options.part in ("all", "train"):
        with stage(reporter, "train"):
            pieces = {code: make_pieces(base, dataset, options, code, rules[code]) for code in dataset.card.languages}
        if options.part == "train":
            counts = {"characters": 0, "pieces": 0}
            for code, learned in pieces.items():
                learned.save(_pieces_file(target, dataset, code))
                longer = tuple(dict.fromkeys(prefix + suffix for prefix, suffix in learned.merges))
                counts = {"characters": counts["characters"] + len(learned.characters),
                          "pieces": counts["pieces"] + len(longer)}
                reporter.emit(Plan((
                    f"{code}: {len(learned.characters)} characters: {' '.join(learned.characters)}",
                    f"{code}: {len(longer)} pieces longer than one character: {' '.join(longer) or 'none'}"), counts))
            files = ", ".join(str(_pieces_file(target, dataset, code)) for code in pieces)
            return {"state": "learned", **counts, "file": files}
    elif options.part == "merge":
        pieces = {code: Pieces.load(_pieces_file(target, dataset, code)) for code in dataset.card.languages}
    if options.part == "report":
        earlier = TokenizerReport.load(target)
        extended = FrontEnd.load(target)
        training = PieceTraining(earlier.algorithm, earlier.merges_asked, earlier.merges_learned)
    elif not options.variant_of:
        extended, training = merge(base, dataset, pieces, rules, options)
        for code in pieces:
            _show_case(base, extended, dataset, code, options, reporter)
    check_stop(reporter, "Stopped before the tokenizer was written.")

    # Languages of earlier trainings are proven with held-out texts of their datasets, if these still exist.
    with stage(reporter, "check"):
        model = Model.find(workspace, options.model)
        source, sentences = probe_sentences(model.base.folder)
        for record in model.trainings:
            if record.dataset in workspace.list_datasets():
                earlier_dataset = manifest.load(workspace.dataset(record.dataset))
                for code in record.languages:
                    sentences += tuple((code, clip.text)
                                       for clip in earlier_dataset.split(HELD_OUT, code)[:_EARLIER_SENTENCES])
        report = measure(base, extended, dataset, training, source, sentences)

    # The tokenizer must read every character, and the base languages as before.
    if report.unknown_rate > 0 and options.variant_of:
        unknown = dict.fromkeys(chain.from_iterable(
            extended.unknown_characters(clip.text, clip.language) for clip in dataset.clips))
        raise UserError(f"The texts have characters that {options.variant_of!r} lacks: {name_characters([*unknown])}.",
                        "Correct these texts, or teach the language as a new one, without --variant-of.")
    if report.unknown_rate > 0:
        raise UserError(
            f"{report.unknown_rate:.2%} of the text is unknown to the new tokenizer; 0 is required.",
            "The base tokenizer's file cuts words where it should not; please report this with the file.",
        )
    changed = [proof.language for proof in report.proofs if not proof.same]
    if changed:
        raise UserError(
            f"The new tokenizer encodes {', '.join(changed)} differently than the base.",
            "Nothing was saved; please report this with the dataset.",
        )
    _show(report, base, dataset, reporter)

    # An equal tokenizer of this name is left as it is; another one is never overwritten.
    state = "checked"
    if options.part != "report":
        state = "already there" if target.exists() else "written"
        if target.exists():
            saved = FrontEnd.load(target)
            if saved.fingerprint != extended.fingerprint:
                raise UserError(
                    f"There already is another tokenizer named {target.name!r}, of {saved.size} ids; the new one has "
                    f"{extended.size}.", "Choose another tokenizer name.")
        else:
            with atomic_directory(target) as folder:
                extended.save(folder)
                report.save(folder)
    return {
        "tokenizer": options.tokenizer, "state": state, "language": report.language,
        "size": report.size, "base_size": report.prefix_size, "tokens_added": report.tokens_added,
        "pieces_added": report.pieces_added, "pieces_unused": len(report.pieces_unused),
        "characters": report.characters, "characters_covered": report.characters_covered,
        "unknown_rate_before": round(report.unknown_rate_before, 4), "unknown_rate": report.unknown_rate,
        "tokens_per_character_before": round(report.tokens_per_character_before, 4),
        "tokens_per_character": round(report.tokens_per_character, 4),
        "base_unchanged": report.base_unchanged, "fingerprint": report.fingerprint,
    }


def _pieces_file(target: Path, dataset: PreparedDataset, language: str) -> Path:
    """Where the pieces of a language are kept between the parts."""
    suffix = f"-{language}" if len(dataset.card.languages) > 1 else ""
    return target.with_name(f"{target.name}{suffix}{_PIECES_SUFFIX}")


def make_pieces(base: FrontEnd, dataset: PreparedDataset, options: TokenizerOptions, language: str,
                rules: TextRules | None = None) -> Pieces:
    """Characters of all of a language's text, and merges trained on its training text or read from a file."""
    # The text is read as in training.
    reader = base.extended(language, normaliser_for(base, dataset, language, options.case), [], [], rules)
    texts: dict[str, list[str]] = {}
    for part in SPLITS:
        texts[part] = [reader.normalise(clip.text, language) for clip in dataset.split(part, language)]

    # Merges are trained on the training texts alone; no text may have an unknown character.
    if options.tokenizer_file:
        pieces = import_pieces(base, options.tokenizer_file)
    else:
        train = [normalisers.without_marks(text) for text in texts[TRAIN]]
        pieces = train_pieces(train, options.algorithm, options.merges, base.split_word)
    return with_all_characters(pieces, tuple(chain.from_iterable(texts.values())))


def merge(base: FrontEnd, dataset: PreparedDataset, pieces: Mapping[str, Pieces],
          rules: Mapping[str, TextRules | None], options: TokenizerOptions) -> tuple[FrontEnd, PieceTraining]:
    """`base` with the languages of `pieces`, one after the other, and how their pieces were trained."""
    extended = base
    for language, learned in pieces.items():
        normaliser = normaliser_for(base, dataset, language, options.case)
        extended = extended.extended(language, normaliser, learned.characters, learned.merges, rules[language],
                                     options.byte_fallback)
    *_, last = pieces.values()
    return extended, PieceTraining(last.algorithm, last.merges_asked * len(pieces),
                                   sum(learned.longer_than_one for learned in pieces.values()))


def _show_case(base: FrontEnd, extended: FrontEnd, dataset: PreparedDataset, language: str, options: TokenizerOptions,
               reporter: Reporter) -> None:
    """Say whether case is kept, and who does not keep it."""
    case = normalisers.measure_case(clip.text for clip in dataset.clips if clip.language == language)
    share = f"{case.within} of {case.words} words have capitals within, such as {case.example!r}"
    if not extended.normaliser_for(language).endswith(normalisers.CASED):
        if case.is_spelling:
            reporter.emit(WarningRaised(f"{language}: {share}, and case is folded as chosen: {case.example!r} is read "
                                        f"as {case.example.lower()!r}."))
        return
    reporter.emit(Plan((f"{language}: case is kept; {share}." if case.within else f"{language}: case is kept.",)))
    if base.style in ("chatterbox", "indextts2"):
        reporter.emit(WarningRaised(f"{language}: the published programs of this family fold the case of every text, "
                                    "so only Lisan reads this language as it was trained."))


def _show(report: TokenizerReport, base: FrontEnd, dataset: PreparedDataset, reporter: Reporter) -> None:
    if report.characters_held_out_only:
        reporter.emit(WarningRaised(
            f"{len(report.characters_held_out_only)} characters occur in held-out text only, so their rows will not "
            f"be trained: {name_characters(report.characters_held_out_only)}."
        ))
    warning = unused_pieces_warning(len(report.pieces_unused), report.pieces_added)
    if warning:
        reporter.emit(WarningRaised(warning))

    # Little text gives few merges, and a proof needs sample sentences.
    if report.merges_learned < report.merges_asked:
        reporter.emit(WarningRaised(f"The text gave {report.merges_learned} of the {report.merges_asked} merges asked "
                                    f"for."))
    if report.unproven:
        reporter.emit(WarningRaised(f"There are no sample sentences to prove {', '.join(report.unproven)} with."))
    hint = text_rules.hint_unused_rules(dataset, report.rules)
    if hint:
        reporter.emit(WarningRaised(hint))

    # Other programs may segment a base language differently, where both share a script.
    for proof in report.shared_file:
        changed = [sentence for sentence in proof.sentences if not sentence.same]
        if changed:
            sample = changed[0]
            reporter.emit(WarningRaised(
                f"Programs that load one file for all languages, as the published code does, will read {len(changed)} "
                f"of {len(proof.sentences)} {proof.language} sample sentences in other pieces, as {report.language} "
                f"shares their script: {sample.text!r} in {sample.tokens_after} tokens instead of "
                f"{sample.tokens_before}. Here {proof.language} keeps its own file and its tokens."))
    for code in report.unprepared:
        reporter.emit(WarningRaised(f"{code} was proven without what its text needs. {base.unready(code)}"))

    # The plan has the numbers that decide whether the tokenizer is good.
    sentence_counts = ", ".join(f"{len(entry.sentences)} {entry.language}" for entry in report.proofs)
    pieces = max((entry.pieces for entry in report.proofs), default=0)
    reporter.emit(Plan((
        f"{report.tokens_added} tokens added after the base's {report.prefix_size}; {report.size} in all.",
        f"{report.characters_covered} of {report.characters} characters covered; unknown "
        f"{report.unknown_rate_before:.1%} before, {report.unknown_rate:.1%} now.",
        f"Tokens a character: {report.tokens_per_character_before:.2f} before, {report.tokens_per_character:.2f} now.",
        f"Sample sentences with unchanged ids: {sentence_counts or 'none'} (from the {report.probe_source}); "
        f"in each language {pieces} pieces, all of both tokenizers, too.",
    ), {"tokens_added": report.tokens_added, "tokens": report.size}))
