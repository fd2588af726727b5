"""Compare candidates for a language's tokenizer on its dataset, and map which characters of the script it has.

Only the report `lab.json` is written, in the job's folder: the verb `tokenizer` makes the candidate that is chosen, and
gives the very tokenizer that was measured.
"""

from __future__ import annotations

from config.errors import UserError
from config.schema import NO_RULES, CompareTokenizersOptions
from config.text_rules import TextRules
from core.dataset.model_limits import newest_tokenizer
from core.jobs.events import Plan, Progress, Result, WarningRaised
from core.jobs.reporter import Reporter, check_stop, stage
from core.library.lineage import Model
from core.model.loading import load_front_end
from core.text import pasted_text, script_coverage, text_rules
from core.text.pieces import import_pieces, normaliser_for
from core.text.tokenizer_comparison import (
    ALGORITHMS,
    ComparedTexts,
    TokenizerComparison,
    build_candidates,
    recommend,
    why_no_bytes,
)
from core.text.tokenizer_report import prove
from core.workspace import Workspace
from data import manifest
from data.front_end import FrontEnd, probe_sentences
from data.manifest import HELD_OUT, TRAIN
from data.text_chunking import split_text
from models.registry import family

_LONGEST_SENTENCE, _LONGEST_WORD = 150, 10**6  # characters
_SPACES = " \u1361"  # the Ethiopic space between words as well


def run(options: CompareTokenizersOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Compare candidates, recommend one, map the script and write `lab.json`; returns the report's main numbers."""
    base_model = Model.find(workspace, options.model).base
    base = load_front_end(workspace, options.model)
    limit = family(base_model.family_name).max_text_length(base_model.folder)
    dataset = manifest.load(workspace.dataset(options.dataset))
    language = dataset.card.language
    if len(dataset.card.languages) > 1:
        raise UserError(f"The dataset {options.dataset!r} holds several languages ({language}); tokenizers are "
                        "compared on one.", "Choose a dataset of one language.")

    # The texts are read as a tokenizer of this language would read them.
    rules, rules_from = _rules(options, workspace, base, language, reporter)
    normaliser = normaliser_for(base, dataset, language)
    reader = base.extended(language, normaliser, [], [], rules)

    with stage(reporter, "read"):
        given_sentences = _sentences(options.text, reader, language)
        train, held_out = (tuple(reader.normalise(clip.text, language) for clip in dataset.split(part))
                           for part in (TRAIN, HELD_OUT))
        if not any(train):
            raise UserError(f"The dataset {dataset.card.name!r} has no training text to learn from.",
                            "Prepare a dataset that has some.")
        texts = ComparedTexts(language, train, held_out, tuple(normal for _, normal in given_sentences),
                              sum(clip.duration_s for clip in dataset.clips), normaliser)

    with stage(reporter, "compare"):
        imported_pieces = import_pieces(base, options.tokenizer_file) if options.tokenizer_file else None
        total = 2 + len(ALGORITHMS) * len(set(options.sizes)) + bool(imported_pieces) + options.byte_fallback
        built, excluded = [], list[str]()
        for built_candidate in build_candidates(base, texts, options.sizes, limit, rules, excluded, imported_pieces,
                                                options.byte_fallback):
            built.append(built_candidate)
            reporter.emit(Progress(len(built) + len(excluded), total, "candidates", built_candidate.candidate.name))
            check_stop(reporter, "Stopped before the comparison was written.")
        if not options.byte_fallback and (reason := why_no_bytes(base, texts)):
            excluded.append(reason)

    # The recommended candidate must leave the tokens of the base languages as they are.
    recommendation = recommend([item.candidate for item in built], limit)
    chosen = next(item for item in built if item.candidate.name == recommendation.name)

    with stage(reporter, "prove"):
        proofs = prove(base, chosen.front_end, probe_sentences(base_model.folder)[1])
        changed = [proof.language for proof in proofs if not proof.same]
        if changed:
            raise UserError(f"The candidate encodes {', '.join(changed)} differently than the base.",
                            "Nothing was made; please report this with the dataset.")

    with stage(reporter, "map"):
        counts, held_out_counts, given_counts = map(script_coverage.count_characters, (train, held_out, texts.given))
        script = script_coverage.map_script(counts, held_out_counts, given_counts,
                                            lambda letter: reader.normalise(letter, language) == letter)
        prompts, still_rare = script_coverage.choose_prompts(given_sentences, counts, options.sentences)

    report = TokenizerComparison(
        options.model, options.dataset, language, rules.name if rules else "", len(texts.all), texts.seconds, limit,
        tuple(item.candidate for item in built), recommendation, tuple(proof.language for proof in proofs), script,
        script_coverage.rare_characters(counts, given_counts), prompts, still_rare, tuple(excluded),
        options.tokenizer_file, rules_from, text_rules.content_hash(rules) if rules else "",
    )
    path = report.save(reporter.directory)
    reporter.emit(Plan((
        *(f"{row.name}: {row.tokens_added} new rows ({row.rare} seen fewer than ten times), "
          f"{row.characters_covered} of {row.characters} characters, unknown {row.unknown_rate:.1%}, "
          f"{row.tokens_per_character:.2f} tokens a character, {row.tokens_per_second:.1f} a second, "
          f"{row.over_limit} texts over {limit}." for row in report.candidates),
        f"Recommended: {recommendation.name}. {recommendation.reason}",
        *(f"To record: {prompt.text} ({' '.join(prompt.characters)})" for prompt in prompts),
    ), {"candidates": len(built), "sentences": len(prompts)}))
    if still_rare:
        reporter.emit(WarningRaised(f"Characters that stay too rare with these sentences, {len(still_rare)}: "
                                    f"{' '.join(still_rare[:30])}."))

    # The result has the numbers of the recommended candidate alone; the file has those of all.
    best = chosen.candidate
    return {
        "dataset": options.dataset, "language": language, "candidates": len(built), "recommended": best.name,
        "reason": recommendation.reason, "algorithm": best.algorithm, "merges": best.merges_asked,
        "tokens_per_character": round(best.tokens_per_character, 4),
        "tokens_per_second": round(best.tokens_per_second, 2), "rare_rows": best.rare, "over_limit": best.over_limit,
        "languages_proven": len(proofs), "gaps": len(report.gaps), "sentences": len(prompts), "file": str(path),
    }


def _rules(options: CompareTokenizersOptions, workspace: Workspace, base: FrontEnd, language: str,
           reporter: Reporter) -> tuple[TextRules | None, str]:
    """The chosen rules, else those of the language's newest tokenizer, with that tokenizer's name."""
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
    """Distinct sentences of the given text, each as it is written and as the model reads it."""
    ends = reader.sentence_ends(language)
    pieces: list[str] = []
    for line in pasted_text.read_lines(path):
        for piece in split_text(line, _LONGEST_SENTENCE, len, _LONGEST_WORD, ends, language):
            pieces.append(piece.text.strip(_SPACES))

    # A sentence that is given twice would weigh twice in the averages.
    readings = [(text, reader.normalise(text, language)) for text in dict.fromkeys(pieces) if text]
    return [(text, normal) for text, normal in readings if normal]
