"""The tokenizer lab: candidates of several sizes for a language, compared on its dataset; and the map of its script.

Nothing is made here but the report `lab.json` in the job's folder: the verb `tokenizer` makes what is chosen, and
gives the very tokenizer that was measured.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from config.errors import UserError
from config.schema import NO_RULES, CompareTokenizersOptions
from config.text_rules import TextRules
from core.dataset.token_fit import newest_tokenizer
from core.jobs.events import Plan, Progress, Result, WarningRaised
from core.jobs.reporter import Reporter, check_stop, stage
from core.library.catalog import family_of
from core.text import lab_text, own_pieces, script_map, text_rules
from core.text.candidates import Made, Texts, candidates, why_no_bytes
from core.text.lab_report import LabReport, Sentence, recommend
from core.text.tokenizer_report import prove
from core.vocabulary import probe_sentences
from core.workspace import Workspace
from data import manifest
from data.front_end import FrontEnd
from data.manifest import HELD_OUT, TRAIN, Dataset
from data.sentences import split
from models.registry import family

_SENTENCE, _WORD = 150, 10**6  # characters
_SPACES = " \u1361"  # the Ethiopic space between words as well
_STOPPED = "Stopped before the comparison was written."


def run(options: CompareTokenizersOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Compare candidates, recommend one, draw the map and write `lab.json`; hands back the report's main numbers."""
    model_folder = workspace.model(options.model)
    kind = family(family_of(workspace, options.model))
    base, limit = kind.front_end(model_folder), kind.longest_text(model_folder)
    dataset = manifest.load(workspace.dataset(options.dataset))
    rules, rules_of = _rules(options, workspace, base, dataset.card.language, reporter)
    reader = base.extended(dataset.card.language, base.normaliser_for(dataset.card.language), [], [], rules)
    with stage(reporter, "read"):
        given = _sentences(options.text, reader, dataset.card.language)
        texts = _texts(dataset, reader, given)
    with stage(reporter, "compare"):
        made, left_out = _compare(base, texts, options, limit, rules, reporter)
    recommendation = recommend([one.candidate for one in made], limit)
    chosen = next(one for one in made if one.candidate.name == recommendation.name)
    with stage(reporter, "prove"):
        proven = _prove(base, chosen.front_end, model_folder)
    with stage(reporter, "map"):
        train, held_out, wanted = (script_map.count(part) for part in (texts.train, texts.held_out, texts.given))
        blocks = script_map.draw(train, held_out, wanted, _stays(reader, texts.language))
        sentences, left_open = script_map.cover(given, train, options.sentences)
    report = LabReport(
        options.model, options.dataset, texts.language, rules.name if rules else "", len(texts.all), texts.seconds,
        limit, tuple(one.candidate for one in made), recommendation, proven, blocks, script_map.gaps(train, wanted),
        sentences, left_open, tuple(
            left_out), options.tokenizer_file, rules_of, text_rules.content_hash(rules) if rules else "",
    )
    path = report.save(reporter.directory)
    _show(report, reporter)
    best = chosen.candidate
    return {
        "dataset": options.dataset, "language": texts.language, "candidates": len(made), "recommended": best.name,
        "reason": recommendation.reason, "algorithm": best.algorithm, "merges": best.merges_asked,
        "tokens_per_character": round(best.tokens_per_character, 4),
        "tokens_per_second": round(best.tokens_per_second, 2), "rare_rows": best.rare, "over_limit": best.over_limit,
        "languages_proven": len(proven), "gaps": len(report.gaps), "sentences": len(sentences), "file": str(path),
    }


def _rules(options: CompareTokenizersOptions, workspace: Workspace, base: FrontEnd, language: str,
           reporter: Reporter) -> tuple[TextRules | None, str]:
    """The chosen rules, else those that the language's newest tokenizer was saved with, and the name of that one."""
    if options.rules:
        name = "" if options.rules == NO_RULES else options.rules
        return text_rules.for_dataset(workspace, name, language), ""
    newest = newest_tokenizer(workspace, base, language)
    writer = FrontEnd.load(workspace.tokenizer(newest)).writer(language) if newest else None
    if writer is None:
        return None, ""
    reporter.emit(Plan((f"Texts are read by the rules {writer.rules.name or 'without a name'} of the tokenizer "
                        f"{newest}, the last one of this language. --rules {NO_RULES} leaves them as they stand.",)))
    return writer.rules, newest


def _sentences(path: str, reader: FrontEnd, language: str) -> list[tuple[str, str]]:
    """Sentences of the given text, as they stand and as the model reads them, each once."""
    ends = reader.sentence_ends(language)
    pieces = [piece.text.strip(_SPACES) for line in lab_text.lines(path)
              for piece in split(line, _SENTENCE, len, _WORD, ends)]
    return [(text, normal) for text in dict.fromkeys(pieces) if text and (normal := reader.normalise(text, language))]


def _texts(dataset: Dataset, reader: FrontEnd, given: list[tuple[str, str]]) -> Texts:
    language = dataset.card.language
    train, held_out = (tuple(reader.normalise(clip.text, language) for clip in dataset.split(part))
                       for part in (TRAIN, HELD_OUT))
    if not any(train):
        raise UserError(f"The dataset {dataset.card.name!r} has no training text to learn from.",
                        "Prepare a dataset that has some.")
    seconds = sum(clip.duration_s for clip in dataset.clips)
    return Texts(language, train, held_out, tuple(normal for _, normal in given), seconds)


def _compare(base: FrontEnd, texts: Texts, options: CompareTokenizersOptions, limit: int, rules: TextRules | None,
             reporter: Reporter) -> tuple[list[Made], list[str]]:
    left_out: list[str] = []
    own = own_pieces.take(base, options.tokenizer_file) if options.tokenizer_file else None
    total = 2 + 2 * len(set(options.sizes)) + bool(own) + options.byte_fallback
    made = []
    for one in candidates(base, texts, options.sizes, limit, rules, left_out.append, own,
                          options.byte_fallback):
        made.append(one)
        reporter.emit(Progress(len(made) + len(left_out), total, "candidates", one.candidate.name))
        check_stop(reporter, _STOPPED)
    return made, [*left_out, *filter(None, [] if options.byte_fallback else [why_no_bytes(base, texts)])]


def _prove(base: FrontEnd, extended: FrontEnd, model_folder: Path) -> tuple[str, ...]:
    """Base languages whose sample sentences keep their ids; `UserError` when one does not."""
    proofs = prove(base, extended, probe_sentences(model_folder)[1])
    if changed := [proof.language for proof in proofs if not proof.same]:
        raise UserError(f"The candidate encodes {', '.join(changed)} differently than the base.",
                        "Nothing was made; please report this with the dataset.")
    return tuple(proof.language for proof in proofs)


def _stays(reader: FrontEnd, language: str) -> Callable[[str], bool]:
    """Whether a letter reaches the model as it is."""
    return lambda letter: reader.normalise(letter, language) == letter


def _show(report: LabReport, reporter: Reporter) -> None:
    lines = [f"{one.name}: {one.tokens_added} new rows ({one.rare} seen fewer than ten times), "
             f"{one.characters_covered} of {one.characters} characters, unknown {one.unknown_rate:.1%}, "
             f"{one.tokens_per_character:.2f} tokens a character, {one.tokens_per_second:.1f} a second, "
             f"{one.over_limit} texts over {report.limit}." for one in report.candidates]
    best = report.recommendation
    reporter.emit(Plan((*lines, f"Recommended: {best.name}. {best.reason}", *map(_told, report.sentences)),
                       {"candidates": len(report.candidates), "sentences": len(report.sentences)}))
    if report.left_open:
        reporter.emit(WarningRaised(f"Characters that stay too rare with these sentences, {len(report.left_open)}: "
                             f"{' '.join(report.left_open[:30])}."))


def _told(sentence: Sentence) -> str:
    return f"To record: {sentence.text} ({' '.join(sentence.brings)})"
