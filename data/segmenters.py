"""The segmenters behind `data.front_end`: BPE in the JSON format of `tokenizers`, SentencePiece, and byte-level BPE.

Chatterbox publishes the first; its files are built as text, so that ids are exact. IndexTTS2 publishes the second, of
the BPE kind. In a copy for another language the ids, scores and kinds of the old pieces stay as they are. New pieces
score below every old one, the best first: BPE joins the pair whose piece scores highest, so text is first segmented
as before. CONTROL pieces, which no text gives, hold spare rows and language tags, so that ids stay equal to rows.
Format: `sentencepiece_model.proto` of google/sentencepiece; BPE after Sennrich et al. 2016. IndexTTS 2.5 publishes the
third, in the form of `tiktoken`.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import groupby, pairwise
from typing import Any

import sentencepiece
from tokenizers import Regex, Tokenizer, pre_tokenizers

from config import foreign
from config.errors import UserError

SPECIAL_TOKENS = ("[STOP]", "[UNK]", "[SPACE]", "[START]")
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
"""The pieces of byte fallback, in the format of `tokenizers`."""
_MARK = re.compile(r"\[.+\]")


def base_file(tags: Sequence[str], characters: Sequence[str]) -> bytes:
    """A base tokenizer without merges: special tokens, language tags, then `characters`."""
    tokens = [*SPECIAL_TOKENS, *tags, *characters]
    ids = {token: index for index, token in enumerate(tokens)}
    special = [*SPECIAL_TOKENS, *tags]
    content: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(token, ids[token]) for token in special],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "[UNK]", "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": ids, "merges": [],
        },
    }
    return _dump(content)


def from_flat_vocabulary(content: bytes) -> bytes | None:
    """A `vocab.json` of pieces with their ids as a BPE file without merges, which cuts text into characters.

    None for a file of another form. Pieces in brackets are marks and tags, as in the base's file.
    """
    if b'"added_tokens"' in content:
        return None
    try:
        ids = foreign.parse_json(content, "The vocabulary")
    except UserError:
        return None
    if not isinstance(ids, dict) or not ids or not all(type(row) is int and row >= 0 for row in ids.values()):
        return None
    if len(set(ids.values())) != len(ids):
        raise ValueError("two of its pieces have one id")
    special = [piece for piece in ids if _MARK.fullmatch(piece)]
    return _dump({
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [_added_token(piece, ids[piece]) for piece in special],
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "[UNK]", "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": ids, "merges": [],
        },
    })


class Bpe:
    """One tokenizer file of `tokenizers`. A language's file has merges of its own, and none of the base's."""

    base_file = "tokenizer.json"
    suffix = "json"
    required: tuple[str, ...] = SPECIAL_TOKENS
    space = "[SPACE]"
    word_start = ""
    tag_form = "[{}]"
    language_codes: tuple[str, ...] = ()

    def __init__(self, content: bytes, name: str) -> None:
        self.content = content
        self.ids = vocabulary(content, name)

    @property
    def special(self) -> dict[str, int]:
        return {token: self.ids[token] for token in SPECIAL_TOKENS}

    @property
    def start_id(self) -> int:
        return self.ids["[START]"]

    @property
    def stop_id(self) -> int:
        return self.ids["[STOP]"]

    @property
    def unknown_id(self) -> int:
        return self.ids["[UNK]"]

    @property
    def marks(self) -> frozenset[int]:
        return frozenset((self.start_id, self.stop_id))

    @property
    def pieces(self) -> tuple[str, ...]:
        return tuple(text for text in self.ids if not text.startswith("["))

    def normalise(self, text: str) -> str:
        """The file itself changes no text."""
        return text

    def encode(self, text: str) -> tuple[list[int], str]:
        marked = text.replace(" ", self.space)
        encoding = self._tokenizer.encode(marked, add_special_tokens=False)
        unknown_id = self.unknown_id
        spans = zip(encoding.ids, encoding.offsets, strict=True)
        return encoding.ids, "".join(marked[start:end] for token_id, (start, end) in spans if token_id == unknown_id)

    def encode_piece(self, text: str) -> tuple[list[int], str]:
        return self.encode(text)

    def tokens(self, text: str) -> list[str]:
        return list(self._tokenizer.encode(text.replace(" ", self.space), add_special_tokens=False).tokens)

    def split_word(self, word: str) -> list[str]:
        """What the merges of a new language begin with: characters."""
        return list(word)

    def extended(self, appended: Mapping[str, int], tag: str, merges: Sequence[tuple[str, str]] | None,
                 byte_fallback: bool = False) -> bytes:
        """The file with `appended` ids, `tag` as one token, and `merges` instead of its own; None keeps its own.

        `byte_fallback`: characters without a piece become `BYTES`, which must be among the ids.
        """
        content = foreign.parse_json(self.content, "The tokenizer")
        model = content["model"]
        model["vocab"] = {**model["vocab"], **appended}
        if merges is not None:
            model["merges"] = [list(pair) for pair in merges]
        if byte_fallback:
            model["byte_fallback"] = True

        # Every merge must name pieces that exist, or the tokenizer cannot be read back.
        ids = {**{token["content"]: token["id"] for token in content["added_tokens"]}, **model["vocab"]}
        absent = [token for token in _merged_pieces(merges) if token not in ids]
        if absent:
            raise ValueError(f"merges name pieces without an id: {absent[:5]}")
        content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] not in appended]
        content["added_tokens"].append(_added_token(tag, appended[tag]))
        return _dump(content)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer.from_buffer(self.content)


def _merged_pieces(merges: Sequence[tuple[str, str]] | None) -> Iterator[str]:
    """Both parts of each merge and their concatenation."""
    for pair in merges or ():
        yield from (*pair, "".join(pair))


def vocabulary(content: bytes, name: str) -> dict[str, int]:
    """Every token of a file with its id, added tokens included; `name` is for error messages."""
    try:
        parts = foreign.parse_json(content, "The tokenizer")
        if not isinstance(parts["model"], dict):
            raise ValueError("its key `model` is no table")
        model = parts["model"]
        if model["type"] != "BPE":
            raise ValueError(f"a {model['type']} model where BPE is wanted")
        return {**model["vocab"], **{token["content"]: int(token["id"]) for token in parts["added_tokens"]}}
    except (ValueError, KeyError, TypeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{name} is not a whole BPE tokenizer file: {reason}.", "Fetch or make it again.") from error


def highest_id(ids: Mapping[str, int]) -> int:
    return max(ids.values())


def _added_token(token: str, index: int) -> dict:
    return {
        "id": index, "content": token, "single_word": False, "lstrip": False,
        "rstrip": False, "normalized": False, "special": True,
    }


def _dump(content: dict) -> bytes:
    return (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode("utf-8")


WORD_START = "\u2581"  # how a space is written, before each word
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6  # ModelProto.SentencePiece.Type
_BPE = 2  # TrainerSpec.ModelType


class SentencePieceModel:
    """One model file. A language's file joins the base's pieces further, by merges of its own."""

    base_file = "bpe.model"
    suffix = "model"
    required: tuple[str, ...] = ()  # start, stop and unknown may have any name
    space = word_start = WORD_START
    tag_form = "[{}]"
    language_codes: tuple[str, ...] = ()

    def __init__(self, content: bytes, name: str) -> None:
        """`UserError` unless `content` is a whole BPE model with start, stop and unknown pieces."""
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

        self.content = content
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.load_from_serialized_proto(content)
            self._proto = _parsed(content)
        except (RuntimeError, TypeError, ValueError, DecodeError) as error:
            raise UserError(f"{name} is not a whole SentencePiece model.", "Fetch or make it again.") from error
        if self._proto.trainer_spec.model_type != _BPE:
            raise UserError(f"{name} is a SentencePiece model of another kind than BPE.",
                            "Use the file that was published with the checkpoint.")
        self.start_id, self.stop_id = self._processor.bos_id(), self._processor.eos_id()
        self.unknown_id = self._processor.unk_id()
        if min(self.start_id, self.stop_id) < 0:
            raise UserError(f"{name} has no pieces for the start and the end of a text.",
                            "Use the file that was published with the checkpoint.")

    @cached_property
    def ids(self) -> dict[str, int]:
        return {piece.piece: number for number, piece in enumerate(self._proto.pieces)}

    @property
    def special(self) -> dict[str, int]:
        return {self._proto.pieces[number].piece: number for number in (self.start_id, self.stop_id, self.unknown_id)}

    @property
    def marks(self) -> frozenset[int]:
        return frozenset((self.start_id, self.stop_id))

    @property
    def pieces(self) -> tuple[str, ...]:
        return tuple(piece.piece for piece in self._proto.pieces if piece.type in (_NORMAL, _USER_DEFINED))

    def normalise(self, text: str) -> str:
        """`text` as the model's own normaliser (NFKC and more) writes it."""
        return str(self._processor.normalize(foreign.LONE_SURROGATE.sub("", text))).replace(WORD_START, " ").strip()

    def encode(self, text: str) -> tuple[list[int], str]:
        return self._encode(self._processor, text)

    def encode_piece(self, text: str) -> tuple[list[int], str]:
        return self._encode(self._within_words, text)

    def _encode(self, processor: sentencepiece.SentencePieceProcessor, text: str) -> tuple[list[int], str]:
        ids = list(processor.encode(text))
        if self.unknown_id not in ids:
            return ids, ""
        pieces = zip(ids, processor.encode(text, out_type=str), strict=True)
        return ids, "".join(piece for number, piece in pieces if number == self.unknown_id)

    @cached_property
    def _within_words(self) -> sentencepiece.SentencePieceProcessor:
        """The same model without the space that it puts before every text."""
        model = _parsed(self.content)
        model.normalizer_spec.add_dummy_prefix = model.normalizer_spec.remove_extra_whitespaces = False
        return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())

    def tokens(self, text: str) -> list[str]:
        """Names of the pieces; an unknown run stands as it is written."""
        return list(self._processor.encode(text, out_type=str))

    def split_word(self, word: str) -> list[str]:
        """The start of the merges of a new language: the pieces of this model, and unknown characters."""
        parts: list[str] = []
        for piece in self.tokens(word):
            parts += [piece] if piece in self.ids else piece
        return parts

    def moved_behind(self, first_id: int, rows: int) -> bytes:
        """A copy that cuts text alike, whose pieces from the id `first_id` on begin at `rows`."""
        model = _parsed(self.content)
        behind = list(model.pieces[first_id:])
        del model.pieces[first_id:]
        for row in range(first_id, rows):
            model.pieces.add(piece=f"<row {row}>", score=0.0, type=_CONTROL)
        model.pieces.extend(behind)
        model.trainer_spec.vocab_size = len(model.pieces)
        return bytes(model.SerializeToString(deterministic=True))

    def extended(self, appended: Mapping[str, int], tag: str, merges: Sequence[tuple[str, str]] | None,
                 byte_fallback: bool = False) -> bytes:
        """A copy with `appended` pieces at their ids; of them, text becomes single characters and `merges`, in order.

        `byte_fallback`: characters without a piece become `BYTES`, which must be among the ids.
        """
        model = _parsed(self.content)
        joined = dict.fromkeys(prefix + suffix for prefix, suffix in merges or ())
        rank = {text: number for number, text in enumerate(joined)}
        absent = [text for text in rank if text not in self.ids and text not in appended]
        if absent:
            raise ValueError(f"merges name pieces without an id: {absent[:5]}")

        # Ids between the model and the first new piece are filled with rows that no text produces.
        by_id = sorted((number, text) for text, number in appended.items())
        for row in range(len(model.pieces), by_id[0][0]):
            model.pieces.add(piece=f"<row {row}>", score=0.0, type=_CONTROL)

        # New pieces score below all old ones, so the text of other languages is cut as before.
        lowest = min(piece.score for piece in model.pieces) - 1
        characters = 0
        for number, text in by_id:
            if number != len(model.pieces):
                raise ValueError(f"the piece {text!r} has the id {number}, {len(model.pieces)} is the next")
            if text != tag and len(text) == 1:
                model.pieces.add(piece=text, score=lowest - characters)
                characters += 1
            elif text in rank:
                model.pieces.add(piece=text, score=lowest - len(appended) - rank[text])
            else:
                kind = _BYTE if byte_fallback and text in _BYTE_NAMES else _CONTROL
                model.pieces.add(piece=text, score=0.0, type=kind)

        if byte_fallback:
            model.trainer_spec.byte_fallback = True
        model.trainer_spec.vocab_size = len(model.pieces)
        return bytes(model.SerializeToString(deterministic=True))


_BYTE_NAMES = frozenset(BYTES)


def _parsed(content: bytes) -> Any:
    """The model as a protobuf message, whose class is made when it is imported."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(content)
    return model


LANGUAGE_CODES: tuple[str, ...] = (
    "en", "zh", "de", "es", "ru", "ko", "fr", "ja", "pt", "tr", "pl", "ca", "nl", "ar", "sv", "it", "id", "hi", "fi",
    "vi", "he", "uk", "el", "ms", "cs", "ro", "da", "hu", "ta", "no", "th", "ur", "hr", "bg", "lt", "la", "mi", "ml",
    "cy", "sk", "te", "fa", "lv", "bn", "sr", "az", "sl", "kn", "et", "mk", "br", "eu", "is", "hy", "ne", "mn", "bs",
    "kk", "sq", "sw", "gl", "mr", "pa", "si", "km", "sn", "yo", "so", "af", "oc", "ka", "be", "tg", "sd", "gu", "am",
    "yi", "lo", "uz", "fo", "ht", "ps", "tk", "nn", "mt", "sa", "lb", "my", "bo", "tl", "mg", "as", "tt", "haw", "ln",
    "ha", "ba", "jw", "su", "yue", "minnan", "wuyu", "dialect", "zh/en", "en/zh", "common",
)
"""Languages of IndexTTS 2.5 in the order of their rows: those of Whisper, and seven (index-tts/index-tts and the
package indextts25-inference 0.2.0, `utils/tokenizer.py`)."""
_TAGGED_LANGUAGES = 99  # languages that have a tag, from the first on
_MARKS_BEHIND_THE_TAGS = (
    "ASR", "AED", "SER", "Speech", "/Speech", "BGM", "/BGM", "Laughter", "/Laughter", "Applause", "/Applause",
    "HAPPY", "SAD", "ANGRY", "NEUTRAL", "translate", "transcribe", "startoflm", "startofprev", "nospeech",
    "notimestamps", *(f"SPECIAL_TOKEN_{number}" for number in range(1, 31)),
    *(f"TTS/{kind}" for kind in ("B", "O", "Q", "A", "CO", "CL", "H")),
    *(f"TTS/SP{number:02}" for number in range(1, 14)), *(f"{number * 0.02:.2f}" for number in range(1501)),
)
_SPECIAL_NAMES = tuple(f"<|{name}|>" for name in (
    "endoftext", "startoftranscript", *LANGUAGE_CODES[:_TAGGED_LANGUAGES], *_MARKS_BEHIND_THE_TAGS))
_SPECIAL = re.compile("(" + "|".join(map(re.escape, _SPECIAL_NAMES)) + ")")
_WORDS = pre_tokenizers.Split(  # the pattern of GPT-2 (Radford et al. 2019); a word takes the space before it
    Regex(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"), "isolated")


class ByteLevelBpe:
    """A `.tiktoken` file: BPE over the bytes of UTF-8, whose lines are a token in base64 and its rank, which is its id.

    After the tokens come Whisper's special ones, numbered from the number of lines. Of bytes, the pair whose token has
    the lowest rank is joined first; a word that is a token is that token. A text begins with a space, as the published
    code writes one behind the tag; `"`, which has the id of the stop, is left out, as there.

    Nothing is unknown, since bytes spell everything. A language's file is JSON with the base's lines, the `appended`
    ids and merges: characters with an appended id stand alone, the base's merges join the bytes between them, then the
    language's merges join tokens by their text. Format: openai/tiktoken.
    """

    base_file = "multilingual_zh_ja_yue_char_del.tiktoken"
    suffix = "json"
    required: tuple[str, ...] = ()
    space = word_start = " "
    tag_form = "<|{}|>"
    language_codes = LANGUAGE_CODES
    start_id, stop_id = 0, 1  # "!" and the double quote, too
    unknown_id = -1  # no token is
    marks: frozenset[int] = frozenset()  # `!` is a mark that text may hold

    def __init__(self, content: bytes, name: str) -> None:
        """`UserError` unless `content` is a whole file, with every single byte."""
        self.content = content
        self._appended: dict[str, int] = {}
        self._merge_ranks: dict[tuple[str, str], int] = {}

        # A published file is the plain list of ranks; a file of a new language wraps it in JSON.
        try:
            lines = content
            if content.lstrip()[:1] == b"{":
                stored = foreign.parse_json(content, "The tokenizer")
                lines, self._appended = stored["tiktoken"].encode(), dict(stored["appended"])
                self._merge_ranks = {(prefix, suffix): rank for rank, (prefix, suffix) in enumerate(stored["merges"])}
            self._ranks = {base64.b64decode(token): int(rank)
                           for token, rank in (line.split() for line in lines.splitlines() if line)}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{name} is not a whole tokenizer file of the form `.tiktoken`.",
                            "Fetch or make it again.") from error
        # Bytes spell any text, so each must have a rank.
        has_every_byte = all(bytes([byte]) in self._ranks for byte in range(256))
        if not has_every_byte or sorted(self._ranks.values()) != list(range(len(self._ranks))):
            raise UserError(f"{name} lacks tokens: it has {len(self._ranks)}; every byte and every rank must exist.",
                            "Fetch or make it again.")
        self._special = {text: len(self._ranks) + number for number, text in enumerate(_SPECIAL_NAMES)}
        self._alone = frozenset(text for text in self._appended if len(text) == 1)
        self._segment = lru_cache(maxsize=50_000)(self._segment_word)

    @cached_property
    def _names(self) -> dict[int, str]:
        """Each token of the file as text, or as its bytes where these are no whole characters."""
        return {rank: _token_text(token) or "".join(BYTES[byte] for byte in token)
                for token, rank in self._ranks.items()}

    @cached_property
    def ids(self) -> dict[str, int]:
        """A single byte of ASCII has two names."""
        return {**{name: number for number, name in self._names.items()},
                **{BYTES[byte]: self._ranks[bytes([byte])] for byte in range(256)}, **self._special, **self._appended}

    @property
    def special(self) -> dict[str, int]:
        return {self._names[number]: number for number in (self.start_id, self.stop_id)}

    @property
    def pieces(self) -> tuple[str, ...]:
        return tuple(filter(None, map(_token_text, self._ranks)))

    def normalise(self, text: str) -> str:
        """The file itself changes no text."""
        return text

    def encode(self, text: str) -> tuple[list[int], str]:
        return self._ids(f" {text}"), ""

    def encode_piece(self, text: str) -> tuple[list[int], str]:
        return self._ids(text), ""

    def _ids(self, text: str) -> list[int]:
        return [number for _, number in self._symbols(text) if number != self.stop_id]

    def tokens(self, text: str) -> list[str]:
        return [name for name, number in self._symbols(f" {text}") if number != self.stop_id]

    def split_word(self, word: str) -> list[str]:
        """The start of the merges of a new language: the tokens of this file, and characters that are none."""
        alone = frozenset(word) - self.ids.keys()
        names: list[str] = []
        for part, _ in _WORDS.pre_tokenize_str(f" {word}"):
            names += [name for name, _ in self._split(part, alone)]
        return names

    def _symbols(self, text: str) -> Iterator[tuple[str, int]]:
        """Names and ids of the tokens of `text`."""
        for part in _SPECIAL.split(text):
            if part in self._special:
                yield part, self._special[part]
            elif part:
                for word, _ in _WORDS.pre_tokenize_str(part):
                    yield from self._segment(word)

    def _segment_word(self, word: str) -> tuple[tuple[str, int], ...]:
        symbols = self._split(word, self._alone)
        while len(symbols) > 1:
            pairs = [(prefix, suffix) for (prefix, _), (suffix, _) in pairwise(symbols)]
            place = min(range(len(pairs)), key=lambda index: self._merge_ranks.get(pairs[index], math.inf))
            if pairs[place] not in self._merge_ranks:
                break
            joined = "".join(pairs[place])
            symbols[place:place + 2] = [(joined, self.ids[joined])]
        return tuple(symbols)

    def _split(self, word: str, alone: Collection[str]) -> list[tuple[str, int]]:
        """The characters `alone` of a word, and the base's tokens of what lies between them."""
        symbols: list[tuple[str, int]] = []
        for is_alone, run in groupby(word, key=lambda character: character in alone):
            if is_alone:
                symbols += [(character, self._appended.get(character, self.unknown_id)) for character in run]
            else:
                symbols += [(self._names[number], number) for number in self._join("".join(run).encode())]
        return symbols

    def _join(self, word: bytes) -> list[int]:
        """Ids of the base's tokens."""
        parts = [word] if word in self._ranks else [word[place:place + 1] for place in range(len(word))]
        while len(parts) > 1:
            ranks = [self._ranks.get(prefix + suffix, math.inf) for prefix, suffix in pairwise(parts)]
            place = min(range(len(ranks)), key=ranks.__getitem__)
            if ranks[place] == math.inf:
                break
            parts[place:place + 2] = [parts[place] + parts[place + 1]]
        return [self._ranks[part] for part in parts]

    def extended(self, appended: Mapping[str, int], tag: str, merges: Sequence[tuple[str, str]] | None,
                 byte_fallback: bool = False) -> bytes:
        """The file of a new language. `byte_fallback` adds nothing, because the base has every byte as a token."""
        ids = self.ids | dict(appended)
        absent = [text for text in _merged_pieces(merges) if text not in ids]
        if absent:
            raise ValueError(f"merges name pieces without an id: {absent[:5]}")
        return _dump({"tiktoken": self.content.decode(), "tag": tag, "appended": dict(appended),
                      "merges": [list(pair) for pair in merges or ()]})


def _token_text(token: bytes) -> str:
    """A token of bytes as text; empty unless the bytes are whole characters."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return ""
