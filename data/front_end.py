"""The text front-end: rules, normaliser, tokenizer and language tag as one object, saved beside the weights.

The base tokenizer is a file of one of three kinds, each read by a `Segmenter`: a `tokenizers` BPE file in Chatterbox's
form ([START], [STOP], [UNK], [SPACE] and tags such as [en]), a SentencePiece model as IndexTTS2 has, or the byte-level
BPE of IndexTTS 2.5. Its bytes stay unchanged and serve every base language. A new language brings its own file of that
kind: the same ids, new ones appended after `prefix_size`, and merges of its own, so that no new merge can fire in a
base language, and rules where a person chose some: they write its text out before the normaliser.
Ids are read from the files by token name. A data file that a normaliser needs (Chinese codes)
is carried along. Knows nothing of weights.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np

from config import foreign
from config.errors import UserError
from config.schema import UnknownCharacters
from config.text_rules import TextRules, parse_rules
from data import normalisers
from data.languages import verbalizer
from data.languages.verbalizer import Verbalizer, load_verbalizer
from data.manifest import read_json_lines
from data.normalisers import DATA_FILES
from data.segmenters import (
    BYTES,
    Bpe,
    ByteLevelBpe,
    SentencePieceModel,
    base_file,
    from_flat_vocabulary,
    highest_id,
)

_CODE = re.compile(r"[\w-]{1,40}")
SETTINGS_FILE = "front_end.json"
PROBE_FILE = "probe_sentences.jsonl"
_HINT = "Get the model or make the tokenizer again."


class Segmenter(Protocol):
    """One tokenizer file: normalised text to ids, without start, tag and stop."""

    base_file: str  # name of the base's file
    suffix: str  # suffix of the files of new languages
    required: tuple[str, ...]  # tokens that a base must have
    space: str  # the token of a space
    word_start: str  # beginning of the first token of a word; empty if a space is always a token
    tag_form: str  # form of the base's language tags
    language_codes: tuple[str, ...]  # languages that have a row in the model's table of languages, if it has one
    content: bytes

    @property
    def ids(self) -> Mapping[str, int]:
        """Every token with its id, special ones included."""
        ...

    @property
    def special(self) -> Mapping[str, int]:
        """The special tokens that every model of the kind has."""
        ...

    @property
    def start_id(self) -> int: ...

    @property
    def stop_id(self) -> int: ...

    @property
    def unknown_id(self) -> int: ...

    @property
    def marks(self) -> frozenset[int]:
        """Ids that no text may hold."""
        ...

    @property
    def pieces(self) -> tuple[str, ...]:
        """Tokens that text may become: without marks and tags."""
        ...

    def normalise(self, text: str) -> str:
        """`text` as the file itself rewrites it, so that pieces are learned from what it will match."""
        ...

    def encode(self, text: str) -> tuple[list[int], str]:
        """Ids, and every character that has none, in order."""
        ...

    def encode_piece(self, text: str) -> tuple[list[int], str]:
        """`encode` for part of a word, which begins one only if it starts with `word_start`."""
        ...

    def tokens(self, text: str) -> list[str]:
        """Names of the tokens that `encode` gives the ids of."""
        ...

    def split_word(self, word: str) -> list[str]:
        """What the merges of a new language begin with."""
        ...

    def extended(self, appended: Mapping[str, int], tag: str, merges: Sequence[tuple[str, str]] | None,
                 byte_fallback: bool = False) -> bytes:
        """The file of a new language: this one with `appended` ids, its `tag`, and `merges` in rank order.

        Without `merges` (None) text is joined as by this file.
        `byte_fallback`: characters without a piece become `BYTES`, which must be among the ids.
        """
        ...


SegmenterKind = type[Bpe] | type[SentencePieceModel] | type[ByteLevelBpe]
SEGMENTERS: Mapping[str, SegmenterKind] = {
    "bpe": Bpe, "sentencepiece": SentencePieceModel, "bytes": ByteLevelBpe}


def read_segmenter(content: bytes, name: str) -> Segmenter:
    """A tokenizer file of any kind, or a flat list of pieces with ids; `UserError` naming it as `name` if it is none.
    """
    if content.lstrip()[:1] == b"{":
        try:
            content = from_flat_vocabulary(content) or content
        except ValueError as error:
            raise UserError(f"{name} is a list of pieces, and {error}.", "Give the vocabulary as it was saved.") \
                from error
        return ByteLevelBpe(content, name) if b'"tiktoken"' in content[:100] else Bpe(content, name)
    if name.endswith(".tiktoken"):
        return ByteLevelBpe(content, name)
    return SentencePieceModel(content, name)


def name_characters(characters: Sequence[str], limit: int = 10) -> str:
    """Characters as people can find them: `ሀ (U+1200)`."""
    names = ", ".join(f"{character} (U+{ord(character):04X})" for character in characters[:limit])
    return names + (f" and {len(characters) - limit} more" if len(characters) > limit else "")


def _quote(text: str) -> str:
    """A text in a message; the beginning of a long one."""
    return repr(text if len(text) <= 100 else f"{text[:100]}...")


def rules_file(code: str) -> str:
    """Name of the file beside the tokenizer that holds the rules of a language."""
    return f"rules-{code}.json"


def language_file(code: str, kind: type[Segmenter]) -> str:
    """Name of the tokenizer file of a new language."""
    return f"language-{code}.{kind.suffix}"


@dataclass(frozen=True)
class NewToken:
    """A token that an extension added: `kind` is `tag`, `character`, `merge` or `byte`."""

    id: int
    text: str
    language: str
    kind: str


@dataclass(frozen=True)
class LanguageEntry:
    """How one language is written for the model. A model of one language may have no tag (empty)."""

    code: str
    tag: str
    normaliser: str
    file: str
    added: tuple[NewToken, ...] = ()
    rules: str = ""  # file of the rules that verbalize text before the normaliser; empty: none
    variant_of: str = ""  # language whose tokens and normaliser it has, beside a tag of its own; empty: none

    @classmethod
    def from_json(cls, code: str, entry: dict, kind: type[Segmenter]) -> LanguageEntry:
        if not _CODE.fullmatch(code):  # files are named after it
            raise ValueError(f"language code {code!r}")
        file, rules = str(entry["tokenizer"]), str(entry.get("rules", ""))
        if file not in (kind.base_file, language_file(code, kind)):
            raise ValueError(f"tokenizer file {file!r} of {code!r}")
        if rules not in ("", rules_file(code)) or (rules and file == kind.base_file):
            raise ValueError(f"rules file {rules!r} of {code!r}")
        added = tuple(NewToken(int(token["id"]), str(token["text"]), code, str(token["kind"]))
                      for token in entry.get("added", ()))
        return cls(code, str(entry["tag"]), str(entry["normaliser"]), file, added, rules,
                   str(entry.get("variant_of", "")))

    def to_json(self) -> dict:
        added = [{"id": token.id, "text": token.text, "kind": token.kind} for token in self.added]
        rules = {"rules": self.rules} if self.rules else {}
        variant = {"variant_of": self.variant_of} if self.variant_of else {}
        return {"tag": self.tag, "normaliser": self.normaliser, **rules, **variant, "tokenizer": self.file,
                "added": added}


@dataclass(frozen=True)
class FrontEnd:
    """Text to ids for some languages. Make one with `base`, `wrap`, `load` or `extended`; it never changes."""

    by_code: Mapping[str, LanguageEntry]
    files: Mapping[str, bytes] = field(repr=False)  # tokenizer and data files by name, as they stand on disk
    prefix_size: int  # ids of the base model; rows below it belong to the base
    style: normalisers.Style = "words"  # how the base was trained to read, and so how a new language is written

    @classmethod
    def base(cls, languages: Mapping[str, str], characters: str) -> FrontEnd:
        """A base front-end of single characters; `languages` maps a code to the name of its normaliser."""
        content = base_file([f"[{code}]" for code in languages], list(dict.fromkeys(characters)))
        return cls.wrap(content, languages)

    @classmethod
    def wrap(cls, tokenizer: bytes, languages: Mapping[str, str], prefix_size: int | None = None, *,
             style: normalisers.Style = "words", tagged: bool = True,
             data: Mapping[str, bytes] | None = None, segmenter: str = "bpe") -> FrontEnd:
        """A base front-end around a published tokenizer file; `prefix_size` if the checkpoint has spare rows.

        `tagged`: whether a language's tag goes before its text. `data`: files that normalisers need. `segmenter`: one
        of `SEGMENTERS`.
        """
        kind = SEGMENTERS[segmenter]
        ids = kind(tokenizer, kind.base_file).ids
        tags = {code: kind.tag_form.format(code) if tagged else "" for code in languages}
        absent = [token for token in (*kind.required, *filter(None, tags.values())) if token not in ids]
        if absent:
            raise UserError(f"The base tokenizer lacks {', '.join(absent)}.", "Give the tokenizer file of this model.")

        # A checkpoint may have more rows than the tokenizer has ids, but not fewer.
        size = highest_id(ids) + 1
        if prefix_size is not None and prefix_size < size:
            raise UserError(
                f"The tokenizer has {size} ids, the checkpoint {prefix_size} text rows: they do not belong together.",
                "Use the tokenizer that was published with this checkpoint.",
            )
        by_code = {code: LanguageEntry(code, tags[code], name, kind.base_file) for code, name in languages.items()}
        return cls(by_code, {kind.base_file: tokenizer, **(data or {})}, prefix_size or size, style)

    @classmethod
    def load(cls, folder: Path | str) -> FrontEnd:
        """Read what `save` wrote; a missing or damaged file raises `UserError` naming it."""
        folder = Path(folder)

        # Every file is parsed here, so that a damaged one is named before any text is encoded.
        try:
            settings = foreign.read_json(folder / SETTINGS_FILE)
            kind = SEGMENTERS[settings.get("segmenter", "bpe")]
            by_code = {code: LanguageEntry.from_json(code, entry, kind)
                       for code, entry in settings["languages"].items()}
            tokenizers = sorted({entry.file for entry in by_code.values()} | {kind.base_file})
            data = [DATA_FILES[DATA_FILES.index(name)] for name in settings.get("data", ())]  # known names only
            rules = [entry.rules for entry in by_code.values() if entry.rules]
            files = {name: foreign.read_bytes(folder / name) for name in (*tokenizers, *data, *rules)}
            # Tokenizers and rules are parsed only to find damage.
            for name in tokenizers:
                kind(files[name], str(folder / name))
            for name in rules:
                parse_rules(files[name], str(folder / name))
            style, size = normalisers.style(settings.get("style", "words")), int(settings["size"])
            front_end = cls(by_code, files, int(settings["prefix_size"]), style)
        except FileNotFoundError as error:
            raise UserError(f"The front-end in {folder} lacks {Path(error.filename).name}.", _HINT) from error
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            raise UserError(f"{folder / SETTINGS_FILE} is damaged: {str(error)[:200] or type(error).__name__}.",
                            _HINT) from error
        if front_end.size != size:
            raise UserError(f"{folder / SETTINGS_FILE} says {size} ids, it holds {front_end.size}.", _HINT)
        return front_end

    def save(self, folder: Path | str) -> None:
        """Write `front_end.json`, the base's tokenizer, one file a new language and the data files into `folder`."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        (folder / SETTINGS_FILE).write_bytes(self._settings())

    def extended(self, language: str, normaliser: str, characters: Sequence[str],
                 merges: Sequence[tuple[str, str]], rules: TextRules | None = None,
                 byte_fallback: bool = False) -> FrontEnd:
        """A front-end that also knows `language`: its tag, then its characters, then its merges are appended.

        Characters and pieces that already have an id keep it. The tag gets a new row, which can learn, even if the
        base has a spare one of that name. `merges` are pairs in rank order. `rules` write its text out. With
        `byte_fallback` the 256 bytes come last, and spell characters of `language` that have no id.
        """
        if language in self.by_code:
            raise UserError(f"The tokenizer already knows the language {language!r}.", "Choose another language code.")
        normalisers.normalise("", normaliser)

        # New ids follow the existing ones in this order: tag, space, characters, merges, bytes.
        vocabulary, space = self._vocabulary, self._base.space
        candidates = [(f"[{language}]", "tag"), (space, "character"), *((text, "character") for text in characters)]
        candidates += [(prefix + suffix, "merge") for prefix, suffix in merges]
        candidates += [(byte, "byte") for byte in BYTES if byte_fallback]
        added: dict[str, NewToken] = {}
        for text, kind in candidates:
            if (kind == "tag" or text not in vocabulary) and text not in added:
                added[text] = NewToken(self.size + len(added), text, language, kind)

        # The tokenizer file of the language holds the pieces of every added language, so that ids stay unique.
        tag, file = f"[{language}]", self.language_file(language)
        appended = {token.text: token.id for token in (*self.added_tokens(), *added.values())}
        content = self._base.extended(appended, tag, merges, byte_fallback)
        rule_files = {rules_file(language): rules.to_json()} if rules else {}
        entry = LanguageEntry(language, tag, normaliser, file, tuple(added.values()), "".join(rule_files))
        files = {**self.files, file: content, **rule_files}
        return replace(self, by_code={**self.by_code, language: entry}, files=files)

    def with_variant(self, language: str, source: str) -> FrontEnd:
        """A front-end that also knows `language`, which is read as the language `source`, with a tag of its own.

        A dialect, a voice or a domain can so be trained beside the untouched language.
        """
        if language in self.by_code:
            raise UserError(f"The tokenizer already knows the language {language!r}.", "Choose another language code.")
        entry, tag, file = self._entry(source), f"[{language}]", self.language_file(language)
        segmenter = self._segmenters[entry.file]
        if self._kind is ByteLevelBpe and self.is_new(source):
            raise UserError(f"IndexTTS 2.5 has no variants of an added language, such as {source!r}.",
                            "Give a language of the base.")
        token = NewToken(self.size, tag, language, "tag")
        # The pieces of a SentencePiece model have no gaps, so only ids behind its own can be appended.
        first_appended = highest_id(segmenter.ids) + 1 if self._kind is SentencePieceModel else 0
        appended = {token.text: token.id for token in (*self.added_tokens(), token) if token.id >= first_appended}
        rule_files = {rules_file(language): self.files[entry.rules]} if entry.rules else {}
        variant = LanguageEntry(language, tag, entry.normaliser, file, (token,), "".join(rule_files), source)
        files = {**self.files, file: segmenter.extended(appended, tag, None), **rule_files}
        return replace(self, by_code={**self.by_code, language: variant}, files=files)

    def with_pointed_hebrew(self) -> FrontEnd:
        """A front-end that adds vowel points to Hebrew of the base; variants of it are read as they were trained."""
        by_code = {code: replace(entry, normaliser=normalisers.POINTED_HEBREW)
                   if entry.normaliser == normalisers.HEBREW and not entry.variant_of else entry
                   for code, entry in self.by_code.items()}
        return replace(self, by_code=by_code)

    def language_file(self, language: str) -> str:
        """Name of the tokenizer file that a new language has, or would have."""
        return language_file(language, self._kind)

    def shared_file(self) -> Segmenter | None:
        """One SentencePiece model with the tokens of all languages, for programs that load a single file.

        In it, new pieces that a base language could spell change that language's ids. None for BPE files, whose
        programs take a file for each language.
        """
        if self._kind is not SentencePieceModel:
            return None
        tokens = self.added_tokens()
        if not tokens:
            return self._base
        merges = [("", token.text) for token in tokens if token.kind == "merge"]
        appended = {token.text: token.id for token in tokens}
        byte_fallback = any(token.kind == "byte" for token in tokens)
        return SentencePieceModel(self._base.extended(appended, "", merges, byte_fallback), "the shared file")

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of every language, base languages first."""
        return tuple(self.by_code)

    @property
    def base_languages(self) -> tuple[str, ...]:
        return tuple(code for code in self.by_code if not self.is_new(code))

    def is_new(self, language: str) -> bool:
        """Whether an extension brought `language`."""
        return self._entry(language).file != self._base.base_file

    @property
    def size(self) -> int:
        """Number of ids, and of rows the text tables must have."""
        return self.prefix_size + len(self.added_tokens())

    @property
    def base_ids(self) -> int:
        """Number of ids in the base's file; `prefix_size` is larger if the checkpoint has spare rows."""
        return highest_id(self.base_vocabulary) + 1

    @property
    def base_vocabulary(self) -> Mapping[str, int]:
        """Every token of the base's file with its id, marks and tags included."""
        return self._base.ids

    @property
    def base_segmenter(self) -> Segmenter:
        """The base's tokenizer."""
        return self._base

    @property
    def pieces(self) -> tuple[str, ...]:
        """Texts of the base's tokens, without its marks and tags."""
        return self._base.pieces

    def up_to(self, language: str) -> FrontEnd:
        """This front-end as it was when `language` was the last one that had been added."""
        codes = list(self.by_code)
        entries = {code: self.by_code[code] for code in codes[:codes.index(language) + 1]}
        left_out = set[str]()
        for code in codes[codes.index(language) + 1:]:
            left_out |= {self.by_code[code].file, self.by_code[code].rules}
        files = {name: content for name, content in self.files.items() if name not in left_out}
        return replace(self, by_code=entries, files=files)

    def added_to(self, base: FrontEnd) -> tuple[NewToken, ...]:
        """Tokens that this front-end adds to the front-end `base` that it extends, in the order of their ids."""
        return self.added_tokens()[len(base.added_tokens()):]

    def added_tokens(self) -> tuple[NewToken, ...]:
        """Tokens after the prefix, in the order of their ids."""
        return tuple(chain.from_iterable(entry.added for entry in self.by_code.values()))

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over everything that decides an encoding."""
        digest = hashlib.sha256(self._settings())
        for name in sorted(self.files):
            digest.update(name.encode() + b"\0" + hashlib.sha256(self.files[name]).digest())
        return digest.hexdigest()

    @property
    def base_fingerprint(self) -> str:
        """sha256 of the base tokenizer's bytes: equal for a base and its extensions."""
        return hashlib.sha256(self._base.content).hexdigest()

    def normaliser_for(self, language: str) -> str:
        """Name of the normaliser of `language`, or of the one it would get as a new language."""
        entry = self.by_code.get(language)
        return entry.normaliser if entry else normalisers.for_language(language, self.style)

    @property
    def text_library(self) -> str:
        """The installed package, with its version, that writes out numbers of base languages; see `normalisers`."""
        return normalisers.text_library(entry.normaliser for entry in self.by_code.values())

    def writer(self, language: str) -> Verbalizer | None:
        """What writes out text of `language`; None when it has no rules, as no base language has."""
        name = self._entry(language).rules
        return load_verbalizer(self.files[name], name) if name else None

    def verbalize(self, text: str, language: str) -> str:
        """`text` by the rules of `language`, before the normaliser. Text that is written out already stays."""
        rules = self.writer(language)
        return rules.verbalize(text) if rules else text

    def sentence_ends(self, language: str) -> str:
        """Signs that end a sentence of `language`, beside the usual ones."""
        rules = self.writer(language)
        return rules.rules.sentence_ends if rules else ""

    def normalise(self, text: str, language: str) -> str:
        """`text` as the tokenizer reads it: in preparation, training and synthesis alike."""
        normal = normalisers.normalise(self.verbalize(text, language), self._entry(language).normaliser, self.files)
        return self._base.normalise(normal) if self.is_new(language) else normal

    def normalise_for_comparison(self, text: str, language: str) -> str:
        """`normalise`, or as much of it as the packages on this machine allow; never for the model."""
        if self.unready(language):
            return normalisers.normalise_without_packages(text, self._entry(language).normaliser)
        return self.normalise(text, language)

    def dropped(self, text: str, language: str) -> dict[str, int]:
        """Visible characters that rules and normaliser of a new language leave out, with their counts.

        Characters that a base language's own normaliser leaves out are unknown, for its variants too.
        """
        rules, entry = self.writer(language), self._entry(language)
        name = entry.normaliser
        if entry.variant_of and not self.is_new(entry.variant_of):
            return {}
        if rules is None:
            return normalisers.dropped(text, name)
        verbalized = rules.verbalize_traced(text)
        counts = Counter(verbalized.left_out) + Counter(normalisers.dropped(verbalized.traced.text, name))
        return dict(sorted(counts.items()))

    def unready(self, language: str) -> str:
        """Which package or file is missing that text of `language` needs, as a sentence; empty when none is."""
        try:
            self.writer(language)
        except UserError as error:
            return error.message
        return normalisers.missing(self._entry(language).normaliser, self.files)

    def encode(self, text: str, language: str, unknown: UnknownCharacters = "refuse",
               written: str = "") -> np.ndarray:
        """Ids (T,) int64: [START], the tag, the text, [STOP].

        Raises `UserError` for an empty text, and for characters outside the vocabulary, unless `unknown` replaces each
        by [UNK] or leaves them out of a text that has others. The error quotes `written`, from which rules made `text`.
        """
        normal = self.normalise(text, language)
        if not normal:
            raise UserError(f"The text is empty: {_quote(written or text)} has nothing to speak.",
                            "Write at least one word.")

        # Unknown characters are refused, unless they may be left out and something remains.
        ids, unknown_pieces = self._segment(self._entry(language).file, normal)
        if unknown_pieces and (unknown == "refuse" or (unknown == "leave_out" and not self.can_read(text, language))):
            distinct = tuple(dict.fromkeys(unknown_pieces))
            quoted = f"{_quote(written)}, read as {_quote(text)}," if written else _quote(text)
            raise UserError(
                f"{quoted} has characters outside the vocabulary of {language!r}: {name_characters(distinct)}.",
                self._way_out(distinct, language),
            )

        # A text may not hold the marks that steer the model.
        if unknown == "leave_out":
            ids = [index for index in ids if index != self.unknown_id]
        if not self._base.marks.isdisjoint(ids):
            raise UserError(f"{_quote(text)} holds the mark [START] or [STOP].", "Take it out: it steers the model.")
        return np.array(self._whole(ids, language), dtype=np.int64)

    def can_read(self, text: str, language: str) -> bool:
        """Whether the tokenizer has an id for any letter or digit of `text`."""
        unknown = self.unknown_characters(text, language)
        return any(character.isalnum() and character not in unknown for character in self.normalise(text, language))

    def _way_out(self, unknown: Sequence[str], language: str) -> str:
        """What lets characters that the tokenizer lacks be spoken; numbers are written out by rules."""
        has_digits = any(character.isdigit() for character in unknown)
        if has_digits and self.writer(language) is None and self.is_new(language):
            rules = f"`{language}`" if verbalizer.has_rules(language) else "your own"
            return ("Spell them out (digits as words). This tokenizer has no text rules: one that is made with rules "
                    f"({rules}: --rules; on the page: Text rules on the Tokenizer tab) writes numbers out by itself.")
        way_out = "Spell them out (digits as words), or train a tokenizer on text that contains them."
        return f"{way_out} A synthesis leaves them out or sends [UNK] for each if `--unknown` says so."

    def comparable(self, text: str, language: str) -> list[int]:
        """What `encode` gives, with unknown ids; to compare front-ends, never for the model."""
        return self._whole(self.body(text, language), language)

    def body(self, text: str, language: str) -> list[int]:
        """Ids of the normalised text alone, an unknown character as one [UNK]; for counting, never for the model."""
        return self.spell(self.normalise(text, language), language)[0]

    def unknown_characters(self, text: str, language: str) -> tuple[str, ...]:
        """Distinct characters of the normalised text that have no id in `language`."""
        return tuple(dict.fromkeys(self._segment(self._entry(language).file, self.normalise(text, language))[1]))

    def spell(self, text: str, language: str = "") -> tuple[list[int], str]:
        """Ids of text as given (no tag, no normaliser), and every character that has none, in order.

        By the base tokenizer, or that of `language`. SentencePiece gives one unknown id for a run of such characters.
        """
        return self._segment(self._entry(language).file if language else self._base.base_file, text)

    def spell_piece(self, text: str) -> tuple[list[int], str]:
        """`spell` by the base tokenizer for part of a word, which begins one only if it starts with `word_start`."""
        return self._base.encode_piece(text)

    def cased(self, text: str) -> str:
        """Lower-case `text` in the case that the base was trained with."""
        return text.upper() if self.style == "indextts2" else text

    def tokens(self, text: str, language: str) -> list[str]:
        """Names of the tokens of `body`; SentencePiece gives an unknown run as it is written."""
        return self._segmenters[self._entry(language).file].tokens(self.normalise(text, language))

    def split_word(self, word: str) -> list[str]:
        """What the merges of a new language begin with, for a word of normalised text."""
        return self._base.split_word(word)

    @property
    def word_start(self) -> str:
        """The characters that begin the first token of a word; empty if a space is a token of its own."""
        return self._base.word_start

    @property
    def start_id(self) -> int:
        return self._base.start_id

    @property
    def stop_id(self) -> int:
        return self._base.stop_id

    @property
    def unknown_id(self) -> int:
        return self._base.unknown_id

    @property
    def space_id(self) -> int:
        """Id of the token of a space, or of what begins a word."""
        return self._vocabulary[self._base.space]

    def tag_id(self, language: str) -> int | None:
        """Id of the tag that goes before text of `language`; None when it has none."""
        tag = self._entry(language).tag
        return self._vocabulary[tag] if tag else None

    def own_tag_id(self, language: str) -> int | None:
        """Id of the tag that a base with a table of languages has for `language`, whether or not it speaks it."""
        code = language.partition("-")[0]
        return self.base_vocabulary.get(self._base.tag_form.format(code)) if code in self._base.language_codes else None

    def language_rows(self, language: str) -> list[int]:
        """Rows of the base's table of languages that a new row starts from: the language's own, or all that it speaks.
        """
        codes, code = self._base.language_codes, language.partition("-")[0]
        return [codes.index(code)] if code in codes else [codes.index(language) for language in self.base_languages]

    def overhead(self, language: str) -> int:
        """Ids that `encode` puts around a text: start, stop and the tag."""
        return 2 if self.tag_id(language) is None else 3

    def check_extends(self, base: FrontEnd) -> None:
        """Refuse an extension of another base, with both sizes."""
        if self.base_fingerprint != base.base_fingerprint or self.prefix_size != base.prefix_size:
            raise UserError(
                f"The tokenizer extends a base of {self.prefix_size} ids ({self.base_fingerprint[:8]}), "
                f"the model has {base.prefix_size} ({base.base_fingerprint[:8]}): they do not belong together.",
                "Make the tokenizer again for this model.",
            )

        # Earlier trainings must have the same tokens at the same ids.
        added = [code for code in base.languages if base.is_new(code)]
        if added and (added[-1] not in self.by_code or self.up_to(added[-1]).fingerprint != base.fingerprint):
            raise UserError(
                f"The tokenizer has {', '.join(self.languages)}, and earlier trainings of the model added "
                f"{', '.join(added)}: the tokenizer does not begin with what the model has.",
                "Make the tokenizer again for this model.",
            )

    def _entry(self, language: str) -> LanguageEntry:
        if language not in self.by_code:
            raise UserError(
                f"The language {language!r} is not one of: {', '.join(self.by_code)}.",
                "Choose one of these, or extend the model.",
            )
        return self.by_code[language]

    def _whole(self, ids: Sequence[int], language: str) -> list[int]:
        tag = self.tag_id(language)
        return [self.start_id, *([] if tag is None else [tag]), *ids, self.stop_id]

    def _segment(self, file: str, normal: str) -> tuple[list[int], str]:
        return self._segmenters[file].encode(foreign.LONE_SURROGATE.sub("\ufffd", normal))

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        return {**self._base.ids, **{token.text: token.id for token in self.added_tokens()}}

    @cached_property
    def _segmenters(self) -> dict[str, Segmenter]:
        kind = self._kind
        return {name: kind(content, name) for name, content in self.files.items() if name not in self._others}

    @property
    def _base(self) -> Segmenter:
        return self._segmenters[self._kind.base_file]

    @property
    def _kind(self) -> SegmenterKind:
        return next(kind for kind in SEGMENTERS.values() if kind.base_file in self.files)

    @property
    def _others(self) -> set[str]:
        """Files that are no tokenizers."""
        return {*DATA_FILES, *(entry.rules for entry in self.by_code.values())}

    def _settings(self) -> bytes:
        settings: dict[str, object] = {
            "languages": {code: entry.to_json() for code, entry in self.by_code.items()},
            "base_languages": list(self.base_languages),
            "prefix_size": self.prefix_size,
            "size": self.size,
            "special": dict(self._base.special),
        }
        # Settings that older files do not know are left out at their defaults, so that fingerprints stay the same.
        if self._kind is not Bpe:
            settings["segmenter"] = next(name for name, kind in SEGMENTERS.items() if kind is self._kind)
        if self.style != "words":
            settings |= {"style": self.style, "data": [name for name in DATA_FILES if name in self.files]}
        return (json.dumps(settings, ensure_ascii=False, indent=1) + "\n").encode("utf-8")


def probe_sentences(model_folder: Path) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The source of the sample sentences of base languages (`model`, else `app`), and (language, text) of each."""
    model_probes = model_folder / PROBE_FILE
    path, source = (model_probes, "model") if model_probes.is_file() else (Path(__file__).with_name(PROBE_FILE), "app")
    return source, tuple((str(row["language"]), str(row["text"])) for _, row in read_json_lines(path))
