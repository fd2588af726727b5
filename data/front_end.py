"""The text front-end: rules, normaliser, tokenizer and language tag as one object, saved beside the weights.

The base tokenizer is a `tokenizers` BPE file in Chatterbox's form ([START], [STOP], [UNK],
[SPACE] and tags such as [en]); its bytes stay unchanged and serve every base
language. A new language brings its BPE file: the same ids, new ones appended
after `prefix_size`, and merges of its own, so that no new merge can fire in a base
language, and rules where a person chose some: they write its text out before the normaliser.
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
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from config.errors import UserError
from config.text_rules import TextRules, parse_rules
from data import normalisers
from data.bpe import BYTES, SPECIAL_TOKENS, base_file, extended_file, highest_id, vocabulary
from data.languages import verbalizer
from data.languages.verbalizer import Verbalizer, load_verbalizer
from data.normalisers import DATA_FILES

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # no text in UTF-8 holds one
SETTINGS_FILE = "front_end.json"
_HINT = "Get the model or make the tokenizer again."
BASE_FILE = "tokenizer.json"


def name_characters(characters: Sequence[str], limit: int = 10) -> str:
    """Characters as people can find them: `ሀ (U+1200)`."""
    shown = ", ".join(f"{character} (U+{ord(character):04X})" for character in characters[:limit])
    return shown + (f" and {len(characters) - limit} more" if len(characters) > limit else "")


def rules_file(code: str) -> str:
    """Name of the file beside the tokenizer that holds the rules of a language."""
    return f"rules-{code}.json"


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

    @classmethod
    def from_json(cls, code: str, entry: dict) -> LanguageEntry:
        file, rules = str(entry["tokenizer"]), str(entry.get("rules", ""))
        if file not in (BASE_FILE, f"language-{code}.json"):
            raise ValueError(f"tokenizer file {file!r} of {code!r}")
        if rules not in ("", rules_file(code)) or (rules and file == BASE_FILE):
            raise ValueError(f"rules file {rules!r} of {code!r}")
        added = tuple(NewToken(int(token["id"]), str(token["text"]), code, str(token["kind"]))
                      for token in entry.get("added", ()))
        return cls(code, str(entry["tag"]), str(entry["normaliser"]), file, added, rules)

    def to_json(self) -> dict:
        added = [{"id": token.id, "text": token.text, "kind": token.kind} for token in self.added]
        rules = {"rules": self.rules} if self.rules else {}
        return {"tag": self.tag, "normaliser": self.normaliser, **rules, "tokenizer": self.file, "added": added}


@dataclass(frozen=True)
class FrontEnd:
    """Text to ids for some languages. Make one with `base`, `wrap`, `load` or `extended`; it never changes."""

    by_code: Mapping[str, LanguageEntry]
    files: Mapping[str, bytes] = field(repr=False)  # tokenizer and data files by name, as they stand on disk
    prefix_size: int  # ids of the base model; rows below it belong to the base
    style: normalisers.Style = "words"  # how the base was taught to read, and so how a new language is written

    @classmethod
    def base(cls, languages: Mapping[str, str], characters: str) -> FrontEnd:
        """A base front-end of single characters; `languages` maps a code to the name of its normaliser."""
        content = base_file([f"[{code}]" for code in languages], list(dict.fromkeys(characters)))
        return cls.wrap(content, languages)

    @classmethod
    def wrap(cls, tokenizer: bytes, languages: Mapping[str, str], prefix_size: int | None = None, *,
             style: normalisers.Style = "words", tagged: bool = True,
             data: Mapping[str, bytes] | None = None) -> FrontEnd:
        """A base front-end around a published tokenizer file; `prefix_size` where the checkpoint has spare rows.

        `tagged`: whether a language's tag goes before its text. `data`: files that normalisers need.
        """
        ids = vocabulary(tokenizer, BASE_FILE)
        tags = {code: f"[{code}]" if tagged else "" for code in languages}
        missing = [token for token in (*SPECIAL_TOKENS, *filter(None, tags.values())) if token not in ids]
        if missing:
            raise UserError(f"The base tokenizer lacks {', '.join(missing)}.", "Give the tokenizer file of this model.")
        size = highest_id(ids) + 1
        if prefix_size is not None and prefix_size < size:
            raise UserError(
                f"The tokenizer has {size} ids, the checkpoint {prefix_size} text rows: they do not belong together.",
                "Use the tokenizer that was published with this checkpoint.",
            )
        by_code = {code: LanguageEntry(code, tags[code], name, BASE_FILE) for code, name in languages.items()}
        return cls(by_code, {BASE_FILE: tokenizer, **(data or {})}, prefix_size or size, style)

    @classmethod
    def load(cls, folder: Path | str) -> FrontEnd:
        """Read what `save` wrote; a missing or damaged file raises `UserError` naming it."""
        folder = Path(folder)
        try:
            settings = json.loads((folder / SETTINGS_FILE).read_text("utf-8"))
            by_code = {code: LanguageEntry.from_json(code, entry) for code, entry in settings["languages"].items()}
            tokenizers = sorted({entry.file for entry in by_code.values()} | {BASE_FILE})
            data = [DATA_FILES[DATA_FILES.index(name)] for name in settings.get("data", ())]  # none but these
            rules = [entry.rules for entry in by_code.values() if entry.rules]
            files = {name: (folder / name).read_bytes() for name in (*tokenizers, *data, *rules)}
            for name in tokenizers:
                vocabulary(files[name], str(folder / name))
            for name in rules:
                parse_rules(files[name], str(folder / name))
            style, size = normalisers.style(settings.get("style", "words")), int(settings["size"])
            front_end = cls(by_code, files, int(settings["prefix_size"]), style)
        except FileNotFoundError as error:
            raise UserError(f"The front-end in {folder} lacks {Path(error.filename).name}.", _HINT) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{folder / SETTINGS_FILE} is damaged: {error!r}.", _HINT) from error
        if front_end.size != size:
            raise UserError(f"{folder / SETTINGS_FILE} says {size} ids, it holds {front_end.size}.", _HINT)
        return front_end

    def save(self, folder: Path | str) -> None:
        """Write `front_end.json`, `tokenizer.json`, one file a new language and the data files into `folder`."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        (folder / SETTINGS_FILE).write_bytes(self._settings())

    def extended(self, language: str, normaliser: str, characters: Sequence[str],
                 merges: Sequence[tuple[str, str]], rules: TextRules | None = None,
                 byte_fallback: bool = False) -> FrontEnd:
        """A front-end that also knows `language`: its tag, then its characters, then its merges are appended.

        Characters and pieces that already have an id keep it; the tag gets a row that can learn even where
        the base has a spare one of that name. `merges` are pairs in rank order. `rules` write its text out.
        With `byte_fallback` the 256 bytes come last, and spell characters of `language` that have no id.
        """
        if language in self.by_code:
            raise UserError(f"The tokenizer already knows the language {language!r}.", "Choose another language code.")
        normalisers.normalise("", normaliser)
        known = self._vocabulary
        wanted = [(f"[{language}]", "tag"), *((text, "character") for text in characters)]
        wanted += [(left + right, "merge") for left, right in merges]
        wanted += [(byte, "byte") for byte in BYTES if byte_fallback]
        added: dict[str, NewToken] = {}
        for text, kind in wanted:
            if (kind == "tag" or text not in known) and text not in added:
                added[text] = NewToken(self.size + len(added), text, language, kind)
        tag, file = f"[{language}]", f"language-{language}.json"
        appended = {token.text: token.id for token in (*self.added_tokens(), *added.values())}
        content = extended_file(self.files[BASE_FILE], appended, tag, merges, byte_fallback)
        written = {rules_file(language): rules.to_json()} if rules else {}
        entry = LanguageEntry(language, tag, normaliser, file, tuple(added.values()), "".join(written))
        files = {**self.files, file: content, **written}
        return replace(self, by_code={**self.by_code, language: entry}, files=files)

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of every language, base languages first."""
        return tuple(self.by_code)

    @property
    def base_languages(self) -> tuple[str, ...]:
        return tuple(code for code in self.by_code if not self.is_new(code))

    def is_new(self, language: str) -> bool:
        """Whether an extension brought `language`."""
        return self._entry(language).file != BASE_FILE

    @property
    def size(self) -> int:
        """Number of ids, and of rows the text tables must have."""
        return self.prefix_size + len(self.added_tokens())

    @property
    def base_ids(self) -> int:
        """Number of ids in the base's file; `prefix_size` is more where the checkpoint has spare rows."""
        return highest_id(vocabulary(self.files[BASE_FILE], BASE_FILE)) + 1

    @property
    def pieces(self) -> tuple[str, ...]:
        """Texts of the base's tokens, without its marks and tags."""
        return tuple(text for text in vocabulary(self.files[BASE_FILE], BASE_FILE) if not text.startswith("["))

    def added_tokens(self) -> tuple[NewToken, ...]:
        """Tokens after the prefix, in the order of their ids."""
        return tuple(token for entry in self.by_code.values() for token in entry.added)

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
        return hashlib.sha256(self.files[BASE_FILE]).hexdigest()

    def normaliser_for(self, language: str) -> str:
        """Name of the normaliser of `language`, or of the one it would get as a new language."""
        known = self.by_code.get(language)
        return known.normaliser if known else normalisers.for_language(language, self.style)

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
        return normalisers.normalise(self.verbalize(text, language), self._entry(language).normaliser, self.files)

    def dropped(self, text: str, language: str) -> dict[str, int]:
        """Visible characters that rules and normaliser of a new language leave out, with their counts."""
        rules, name = self.writer(language), self._entry(language).normaliser
        if rules is None:
            return normalisers.dropped(text, name)
        shown = rules.verbalize_traced(text)
        return dict(sorted((Counter(shown.left_out) + Counter(normalisers.dropped(shown.traced.text, name))).items()))

    def unready(self, language: str) -> str:
        """Which package or file is missing that text of `language` needs, as a sentence; empty when none is."""
        try:
            self.writer(language)
        except UserError as error:
            return error.message
        return normalisers.missing(self._entry(language).normaliser, self.files)

    def encode(self, text: str, language: str) -> np.ndarray:
        """Ids (T,) int64: [START], the tag, the text, [STOP].

        Raises `UserError` for an empty text, and for characters outside the vocabulary, naming them.
        """
        normal = self.normalise(text, language)
        if not normal:
            raise UserError(f"The text is empty: {text!r} has nothing to speak.", "Write at least one word.")
        ids, unknown = self._ids(self._entry(language).file, normal)
        if unknown:
            raise UserError(
                f"{text!r} has characters outside the vocabulary of {language!r}: {name_characters(unknown)}.",
                self._way_out(unknown, language),
            )
        if self.special_id("[START]") in ids or self.special_id("[STOP]") in ids:
            raise UserError(f"{text!r} holds the mark [START] or [STOP].", "Take it out: it steers the model.")
        return np.array(self._whole(ids, language), dtype=np.int64)

    def _way_out(self, unknown: Sequence[str], language: str) -> str:
        """What lets characters that the tokenizer lacks be spoken; numbers are written out by rules."""
        if self.writer(language) is None and self.is_new(language) and any(one.isdigit() for one in unknown):
            rules = f"`{language}`" if verbalizer.has_rules(language) else "your own"
            return ("Spell them out (digits as words). This tokenizer has no text rules: one that is made with rules "
                    f"({rules}: Tokenizer tab, or --rules) writes numbers out by itself.")
        return "Spell them out (digits as words), or train a tokenizer on text that contains them."

    def comparable(self, text: str, language: str) -> list[int]:
        """What `encode` gives, with an unknown character as one [UNK]; to compare front-ends, never for the model."""
        return self._whole(self.body(text, language), language)

    def body(self, text: str, language: str) -> list[int]:
        """Ids of the normalised text alone, an unknown character as one [UNK]; for counting, never for the model."""
        return self.ids_of(self.normalise(text, language), language)

    def ids_of(self, normal: str, language: str) -> list[int]:
        """What `body` gives, for text that `normalise` made already: many tokenizers may be counted on one reading."""
        return self._ids(self._entry(language).file, normal)[0]

    def unknown_characters(self, text: str, language: str) -> tuple[str, ...]:
        """Distinct characters of the normalised text that have no id in `language`."""
        return self._ids(self._entry(language).file, self.normalise(text, language))[1]

    def spell(self, text: str) -> tuple[list[int], tuple[str, ...]]:
        """Ids of text as given (no tag, no normaliser) by the base tokenizer, and the characters it does not know.

        An unknown character is one [UNK] among the ids.
        """
        return self._ids(BASE_FILE, text)

    def special_id(self, token: str) -> int:
        """Id of a token such as `[START]`, read from the base file."""
        return self._vocabulary[token]

    def tag_id(self, language: str) -> int | None:
        """Id of the tag that goes before text of `language`; None when it has none."""
        tag = self._entry(language).tag
        return self._vocabulary[tag] if tag else None

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

    def _entry(self, language: str) -> LanguageEntry:
        if language not in self.by_code:
            raise UserError(
                f"The language {language!r} is not one of: {', '.join(self.by_code)}.",
                "Choose one of these, or extend the model.",
            )
        return self.by_code[language]

    def _whole(self, ids: Sequence[int], language: str) -> list[int]:
        tag = self.tag_id(language)
        return [self.special_id("[START]"), *([] if tag is None else [tag]), *ids, self.special_id("[STOP]")]

    def _ids(self, file: str, normal: str) -> tuple[list[int], tuple[str, ...]]:
        marked = _LONE_SURROGATE.sub("\ufffd", normal).replace(" ", "[SPACE]")
        encoding = self._tokenizers[file].encode(marked, add_special_tokens=False)
        unknown_id = self.special_id("[UNK]")
        spans = zip(encoding.ids, encoding.offsets, strict=True)
        unknown = [marked[start:end] for token_id, (start, end) in spans if token_id == unknown_id]
        return encoding.ids, tuple(dict.fromkeys("".join(unknown)))

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        base = vocabulary(self.files[BASE_FILE], BASE_FILE)
        return {**base, **{token.text: token.id for token in self.added_tokens()}}

    @cached_property
    def _tokenizers(self) -> dict[str, Tokenizer]:
        return {name: Tokenizer.from_buffer(self.files[name]) for name in self.files if name not in self._others}

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
            "special": {token: self.special_id(token) for token in SPECIAL_TOKENS},
        }
        if self.style != "words":  # left out where it was not known yet, so that fingerprints stay
            settings |= {"style": self.style, "data": [name for name in DATA_FILES if name in self.files]}
        return (json.dumps(settings, ensure_ascii=False, indent=1) + "\n").encode("utf-8")
