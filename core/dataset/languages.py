"""What recordings of a language are good for: to teach a new one, or to rehearse one of the base. Never loads torch."""

from __future__ import annotations

from collections.abc import Collection

from config.errors import UserError
from config.languages import doubt, language_name
from core.jobs.events import WarningRaised
from core.jobs.reporter import Reporter


def named(code: str) -> str:
    """Such as `English (en)`; the code alone where it has no name."""
    name = language_name(code)
    return f"{name} ({code})" if name != code else repr(code)


def tell_doubt(code: str, reporter: Reporter) -> None:
    """Warn of a code that may not be the one that was meant; it is taken all the same, for people have their own."""
    if said := doubt(code):
        reporter.emit(WarningRaised(said))


def check_target(dataset: str, language: str, new: Collection[str], base: Collection[str]) -> None:
    """Refuse to teach a language that the base speaks, or one that the extension does not bring."""
    if language in new:
        return
    check_new(dataset, language, base)
    raise UserError(
        f"The dataset {dataset!r} is in {named(language)}; the extended model learns "
        f"{', '.join(map(named, new)) or 'nothing'} and speaks {', '.join(base)}.",
        "Train a tokenizer on this dataset and extend the model with it.")


def check_new(dataset: str, language: str, base: Collection[str]) -> None:
    """Refuse what would make a new language of one that the base speaks."""
    if language in base:
        raise UserError(
            f"The dataset {dataset!r} is in {named(language)}, which the base model already speaks: nothing of it may "
            "change.",
            "Choose a dataset in the new language. While that is learnt, scope `full` can rehearse this one beside it: "
            f"--replay-datasets {dataset}.")


def check_rehearsed(dataset: str, language: str, base: Collection[str]) -> None:
    """Refuse to rehearse what the base never knew."""
    if language not in base:
        raise UserError(f"The dataset {dataset!r} is in {language!r}, which the base model does not speak.",
                        f"Rehearse clips of its languages: {', '.join(base)}.")


def names(listed: str) -> tuple[str, ...]:
    """Names with commas between them, each once."""
    return tuple(dict.fromkeys(part.strip() for part in listed.split(",") if part.strip()))
