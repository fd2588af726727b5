"""What of a dataset's texts a tokenizer of its language cannot write: counted when it is prepared, not when trained."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from config.errors import UserError
from core.job.journal import Plan, Warned
from core.job.reporter import Reporter
from core.workspace import Workspace
from data.entries import name_characters
from data.front_end import FrontEnd
from data.manifest import Clip

_NAMED = 5


@dataclass(frozen=True)
class TokenFit:
    """By clip: the characters that the tokenizer does not know, and in words, texts that are too long in tokens."""

    tokenizer: str = ""  # empty: there is none yet, or it is the base's own
    own: bool = False  # by the base's own tokenizer
    unknown: dict[str, str] = field(default_factory=dict)
    too_long: dict[str, str] = field(default_factory=dict)


NO_TOKENIZER = TokenFit()


def newest_tokenizer(workspace: Workspace, base: FrontEnd, language: str) -> str:
    """The merged tokenizer of `base` that was made last for `language`; empty where there is none."""
    found = []
    for name in workspace.list_tokenizers():
        folder = workspace.tokenizers / name
        try:
            made = FrontEnd.load(folder)
        except UserError:
            continue  # unfinished or damaged: the Tokenizer tab says so
        if language in made.languages and made.is_new(language) and made.base_fingerprint == base.base_fingerprint:
            found.append((folder.stat().st_mtime, name))
    return max(found)[1] if found else ""


def fit(clips: Iterable[Clip], workspace: Workspace, tokenizer: str, longest: int) -> TokenFit:
    """How `clips` fit the merged tokenizer of that name, and a model that holds `longest` tokens of text alone."""
    return _counted(TokenFit(tokenizer), clips, FrontEnd.load(workspace.tokenizers / tokenizer), longest)


def fit_own(clips: Iterable[Clip], base: FrontEnd, longest: int) -> TokenFit:
    """The same for clips in a language of the base, which its own tokenizer reads."""
    return _counted(TokenFit(own=True), clips, base, longest)


def _counted(made: TokenFit, clips: Iterable[Clip], front_end: FrontEnd, longest: int) -> TokenFit:
    for clip in clips:
        count = len(front_end.body(clip.text, clip.language))
        if count > longest:
            made.too_long[clip.id] = f"{count} tokens of text, the model holds {longest}"
        if unknown := front_end.unknown_characters(clip.text, clip.language):
            made.unknown[clip.id] = "".join(unknown)
    return made


def tell(found: TokenFit, reporter: Reporter) -> None:
    """Warn of what does not fit, with the first names."""
    if not found.tokenizer and not found.own:
        return
    use, reader = ("trained on", f"the tokenizer {found.tokenizer}") if found.tokenizer else ("replayed", "the model")
    way = "Make the tokenizer anew on this dataset, or write" if found.tokenizer else "Write"
    if found.tokenizer:
        reporter.emit(Plan((f"Texts are counted by {reader}, the last one of this language.",)))
    if found.unknown:
        characters = sorted(set("".join(found.unknown.values())))
        reporter.emit(Warned(
            f"{len(found.unknown)} texts have characters that {reader} does not know and will not be {use} with it: "
            f"{name_characters(characters)}, as in {_first(found.unknown)}. {way} these texts anew."))
    if found.too_long:
        reporter.emit(Warned(f"{len(found.too_long)} texts are longer than the model can hold and will not be {use}: "
                             f"{_first(found.too_long)}. Cut these recordings, with their texts."))


def _first(ids: Iterable[str]) -> str:
    named = list(ids)
    return ", ".join(named[:_NAMED]) + (" ..." if len(named) > _NAMED else "")
