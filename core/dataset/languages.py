"""Check the language of a dataset: a new one is trained on, one of the base is only replayed."""

from __future__ import annotations

from collections.abc import Collection

from config.errors import UserError
from config.languages import doubt, language_name
from core.jobs.events import WarningRaised
from core.jobs.reporter import Reporter


def describe_language(code: str) -> str:
    """Such as `English (en)`; the code alone if it has no name."""
    name = language_name(code)
    return f"{name} ({code})" if name != code else repr(code)


def warn_doubtful_code(code: str, reporter: Reporter) -> None:
    """Warn of a code that may be a mistake; it is accepted, since users have private codes."""
    reason = doubt(code)
    if reason:
        reporter.emit(WarningRaised(reason))


def check_targets(dataset: str, languages: Collection[str], new: Collection[str], base: Collection[str],
                  earlier: Collection[str] = ()) -> None:
    """Refuse to train on languages of the base or of earlier trainings, and on others than the extension adds."""
    hint = "Train a tokenizer on this dataset and extend the model with it."
    for language in languages:
        if language not in new:
            check_new(dataset, language, base, earlier)
            raise UserError(
                f"The dataset {dataset!r} is in {describe_language(language)}; the extended model learns "
                f"{', '.join(map(describe_language, new)) or 'nothing'} and speaks {', '.join((*base, *earlier))}.",
                hint)

    # Every language that the extension adds needs clips.
    untrained = [language for language in new if language not in languages]
    if untrained:
        raise UserError(f"The extended model is to learn {', '.join(map(describe_language, new))}; the dataset "
                        f"{dataset!r} has no {', '.join(map(describe_language, untrained))}.",
                        f"Choose a dataset with all of them. {hint}")


def check_new(dataset: str, language: str, base: Collection[str], earlier: Collection[str] = ()) -> None:
    """Refuse to add a language of the base or of an earlier training."""
    if language in earlier:
        raise UserError(
            f"The dataset {dataset!r} is in {describe_language(language)}, which an earlier training of the model "
            "added: nothing of it may change.",
            "Choose a dataset in another language, or extend the base of this model: --model with the base's name.")
    if language in base:
        raise UserError(
            f"The dataset {dataset!r} is in {describe_language(language)}, which the base model already speaks: "
            f"nothing of it may change.",
            f"Choose a dataset in the new language, or prepare this one under a separate code (such as "
            f"`{language}-studio`) and make its tokenizer with --variant-of {language}. In scope `full` it can be "
            f"replayed: --replay-datasets {dataset}.")


def check_replayed(dataset: str, language: str, base: Collection[str]) -> None:
    """Refuse to replay a language that the base does not speak."""
    if language not in base:
        raise UserError(f"The dataset {dataset!r} is in {language!r}, which the base model does not speak.",
                        f"Replay clips of its languages: {', '.join(base)}.")


def split_names(listed: str) -> tuple[str, ...]:
    """Names with commas between them, each once."""
    return tuple(dict.fromkeys(part.strip() for part in listed.split(",") if part.strip()))
