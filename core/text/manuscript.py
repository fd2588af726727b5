"""A book as the sentences that a model speaks, each with the pause after it. Never loads torch.

The order of work: sentences, then the pronunciation list, then numbers as words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from config import confinement, foreign
from config.errors import UserError
from config.languages import code_of, language_name
from config.schema import NO_RULES, BookOptions
from core.jobs.reporter import pluralize
from core.text import text_rules
from core.workspace import Workspace
from data.books.reading import Book, read_book
from data.front_end import FrontEnd, name_characters
from data.languages.patterns import NEVER
from data.languages.verbalizer import Verbalizer, verbalizer_of
from data.text_chunking import split_sentences

MOST_PRONUNCIATIONS = 5000
_ARROW = re.compile(r"\s*(?:->|→|=>)\s*")
_LONGEST_ENTRY = 200  # characters


@dataclass(frozen=True)
class Sentence:
    """A sentence of a chapter: as it is written, as it is spoken, and the pause after it."""

    chapter: int  # index
    text: str
    spoken: str
    pause_s: float


@dataclass(frozen=True)
class Manuscript:
    """The sentences of a book in order, the titles of their chapters, and notes for a person, a sentence each."""

    titles: tuple[str, ...]
    sentences: tuple[Sentence, ...]
    notes: tuple[str, ...] = ()


@foreign.cached_by_file(4)
def _read(path: Path, name: str) -> Book:
    return read_book(path, name)


def open_book(path: str) -> Book:
    """The book at `path`; it is read again only if the file has changed. `UserError` for one that cannot be read."""
    return _read(confinement.open_path(path), Path(path).name)


def describe(book: Book) -> str:
    """Such as `Moby-Dick, by Herman Melville: 138 chapters, 212,000 words, English.`"""
    authors = f", by {', '.join(book.authors)}" if book.authors else ""
    code = book.language.strip().lower().replace("_", "-").partition("-")[0]
    language = f", {language_name(code)}" if code else ""
    return (f"{book.title}{authors}: {pluralize(len(book.chapters), 'chapter')}, {pluralize(book.words, 'word')}"
            f"{language}.")


def language_of(book: Book, options: BookOptions, languages: Sequence[str]) -> str:
    """The language to read in: the option, else that of the book; `UserError` if the model does not speak it."""
    hint = f"The model speaks {', '.join(languages)}. Choose one with --language, or a model of the book's language."
    language = options.language or book.language.strip().lower().replace("_", "-")
    if not language:
        raise UserError(f"{Path(options.book).name} does not say in which language it is.", hint)
    # Books say en-US; models have en.
    for code in (language, language.partition("-")[0], code_of(language)):
        if code in languages:
            return code
    raise UserError(f"{options.voice_model} does not speak {language[:40]!r}, the language of the book.", hint)


def read_pronunciations(path: str) -> dict[str, str]:
    """Spellings by word from lines of `word -> spelling`; empty lines and those that begin with `#` are skipped."""
    if not path:
        return {}
    name = Path(path).name
    spellings: dict[str, str] = {}
    for number, line in enumerate(foreign.read_text(confinement.open_path(path), name).splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = _ARROW.split(line.strip())
        if len(parts) != 2 or not all(parts) or max(map(len, parts)) > _LONGEST_ENTRY:
            raise UserError(f"Line {number} of {name} is not `word -> spelling`: {line.strip()[:60]!r}.",
                            "Write a word, an arrow (->) and how it is to be read, one a line.")
        spellings.setdefault(" ".join(parts[0].split()), " ".join(parts[1].split()))
    if len(spellings) > MOST_PRONUNCIATIONS:
        raise UserError(f"{name} has {len(spellings):,} words; at most {MOST_PRONUNCIATIONS:,} are read.",
                        "Leave out those that the book does not have.")
    return spellings


def respell(spellings: Mapping[str, str]) -> Callable[[str], str]:
    """A function that replaces whole words by their spellings, longer ones first.

    A word in lower case stands for any case; one with a capital for itself alone (`US` is not `us`).
    """
    # One pattern, so that no spelling is respelled. Of words of the same length those with a capital come first.
    words = sorted(spellings, key=lambda word: (-len(word), word == word.lower()))
    alternatives = [f"(?i:{re.escape(word)})" if word == word.lower() else re.escape(word) for word in words]
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(alternatives)})(?!\w)") if words else NEVER

    def spelling(match: re.Match[str]) -> str:
        return spellings.get(match[0]) or spellings.get(match[0].lower()) or match[0]

    return lambda text: pattern.sub(spelling, text)


def number_rules(workspace: Workspace, options: BookOptions, front_end: FrontEnd,
                 language: str) -> tuple[Verbalizer | None, str]:
    """What writes out numbers before the model's own front-end, and a note on it; None if the model reads them.

    The option names rules. Without it those that come with the app are used if the model cannot read digits.
    """
    if options.rules == NO_RULES:
        return None, ""
    if options.rules:
        rules = text_rules.for_dataset(workspace, options.rules, language)
        return (verbalizer_of(rules) if rules else None), ""
    if front_end.writer(language) is not None or not front_end.unknown_characters("1234567890", language):
        return None, ""
    if not text_rules.ships(language):
        return None, (f"There are no number rules for {language_name(language)}, and the model reads no digits: write "
                      "numbers as words in the pronunciation list.")
    return verbalizer_of(text_rules.load(workspace, language)), ""


def write_manuscript(workspace: Workspace, book: Book, options: BookOptions, front_end: FrontEnd,
                     language: str) -> Manuscript:
    """The sentences of `book`; `UserError` names characters that the model lacks, unless `unknown` allows them."""
    spellings = read_pronunciations(options.pronunciations)
    whole_text = "\n".join(block.text for block in book.blocks)
    folded_text = " ".join(whole_text.casefold().split())
    used = {word: spelling for word, spelling in spellings.items() if word.casefold() in folded_text}
    rules, rules_note = number_rules(workspace, options, front_end, language)
    pronounce, ends = respell(used), front_end.sentence_ends(language)

    titles: list[str] = []
    sentences: list[Sentence] = []
    unknown: Counter[str] = Counter()
    unreadable = 0
    for chapter in book.chapters:
        chapter_start = len(sentences)
        for block in chapter.blocks:
            pause_s = options.heading_pause_s if block.kind == "heading" else options.paragraph_pause_s
            if block.kind == "break" and len(sentences) > chapter_start:
                sentences[-1] = replace(sentences[-1], pause_s=max(sentences[-1].pause_s, options.heading_pause_s))
            for text in split_sentences(block.text, ends, language):
                reading = pronounce(text)
                reading = rules.verbalize(reading) if rules is not None else reading
                # A sentence of marks alone has nothing to speak.
                if not any(character.isalnum() for character in reading):
                    continue
                unknown_here = front_end.unknown_characters(reading, language)
                unknown.update(unknown_here)
                if unknown_here and options.unknown == "leave_out" and not front_end.can_read(reading, language):
                    unreadable += 1
                    continue
                sentences.append(Sentence(len(titles), text, reading, options.sentence_pause_s))
            # A heading that nothing was read of, or a drawing, leaves the pause of what stands before it.
            if block.text and len(sentences) > chapter_start:
                sentences[-1] = replace(sentences[-1], pause_s=pause_s)
        if len(sentences) > chapter_start:
            titles.append(chapter.title)
            sentences[-1] = replace(sentences[-1], pause_s=options.chapter_pause_s)

    _refuse_unknown(unknown, options, language)
    if not sentences:
        raise UserError(f"{Path(options.book).name} has no sentence that {options.voice_model} can read in "
                        f"{language!r}.", "Choose the language of the book, or a model that speaks it.")
    return Manuscript(tuple(titles), tuple(sentences),
                      tuple(_notes(book, rules_note, spellings, used, unknown, unreadable, options)))


def _refuse_unknown(unknown: Counter[str], options: BookOptions, language: str) -> None:
    if unknown and options.unknown == "refuse":
        counts = ", ".join(f"{character} in {pluralize(count, 'sentence')}"
                           for character, count in unknown.most_common(8))
        remainder = f" and {len(unknown) - 8} others" if len(unknown) > 8 else ""
        raise UserError(f"The book has characters outside the vocabulary of {language!r}: {counts}{remainder}.",
                        "Respell the words with a pronunciation list (--pronunciations), or leave these characters out "
                        "(--unknown leave_out).")


def _notes(book: Book, rules_note: str, spellings: Mapping[str, str], used: Mapping[str, str],
           unknown: Counter[str], unreadable: int, options: BookOptions) -> list[str]:
    notes = [*book.notes, *filter(None, [rules_note])]
    unused = [word for word in spellings if word not in used]
    if unused:
        notes.append(f"{pluralize(len(unused), 'word')} of the pronunciation list "
                     f"{'does' if len(unused) == 1 else 'do'} not occur: {', '.join(unused[:8])}"
                     f"{' and others' if len(unused) > 8 else ''}.")
    if unknown:
        fate = "left out" if options.unknown == "leave_out" else "sent to the model as [UNK]"
        names = name_characters([character for character, _ in unknown.most_common()])
        notes.append(f"Characters outside the vocabulary, {fate}: {names}.")
    if unreadable:
        notes.append(f"{pluralize(unreadable, 'sentence')} without a character of the vocabulary "
                     f"{'is' if unreadable == 1 else 'are'} not read.")
    return notes
