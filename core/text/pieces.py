"""The pieces of a new language: trained on its text, or taken from a tokenizer file of the user.

Texts are normalised already. Pieces stay inside words as the `Whitespace` pre-tokenizer cuts them (runs of word
characters, or of others), which is the form that Chatterbox publishes. For a base of SentencePiece they stay inside
words between spaces, with the mark of the space in front, and join what the base's own pieces leave: there the base's
merges come first in every text.

Pieces of a tokenizer file are matched by their text, never by their ids there, since an id is a row of the table it was
trained with. Pieces that the base has keep the base's ids, the others are appended after them. Special tokens and
spaces are dropped, and so is a Unigram piece that no pair of others gives, as the base's form joins pieces two by two.
A tokenizer that has as many ids as the base and other content is refused: it seems to fit, and every row would mean
something else.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import sentencepiece
from pydantic import TypeAdapter
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from config import confinement, foreign
from config.errors import UserError
from data import normalisers
from data.durable_files import write_text
from data.front_end import FrontEnd
from data.manifest import PreparedDataset
from data.segmenters import WORD_START

OWN = "own"  # the algorithm of pieces from a tokenizer file, and the name of that candidate
_MIN_FREQUENCY = 2  # a piece that occurs once teaches nothing
_MAX_PIECES = 20_000  # limit of the option `merges`
_SPECIAL_FORM = re.compile(r"\[.+\]")  # form of the base's special tokens and tags, which no piece may become
_MARK = re.compile(r"<.+>|\[.+\]")  # form of the special tokens in a list of pieces
_PRIVATE = 0xF0000  # start of the larger private use area of Unicode, of 131,068 code points
_FORMATS_HINT = ("Give the JSON file of a BPE or Unigram tokenizer, a SentencePiece model, or a list of pieces "
                 "(vocab.json, vocab.txt, .vocab).")


@dataclass(frozen=True)
class Pieces:
    """Pieces to append to a base. A merge joins two pieces that are characters or the result of an earlier merge."""

    characters: tuple[str, ...]  # sorted
    merges: tuple[tuple[str, str], ...]  # merges in rank order
    algorithm: str  # algorithm that learned them
    merges_asked: int

    @property
    def longer_than_one(self) -> int:
        """How many pieces have more than one character."""
        return len(set(map("".join, self.merges)))

    def save(self, path: Path) -> None:
        """Write them as JSON, whole or not at all."""
        write_text(path, json.dumps(asdict(self), ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> Pieces:
        """What `save` wrote; `UserError` when there is nothing of that kind."""
        try:
            return TypeAdapter(cls).validate_json(foreign.read_bytes(path))
        except (OSError, ValueError) as error:
            raise UserError(
                f"No learned pieces could be read from {path}: {error}.",
                "Learn them first (python -m scripts tokenizer train; on the page: Part on the Tokenizer tab), "
                "with the same tokenizer name.",
            ) from error


def normaliser_for(base: FrontEnd, dataset: PreparedDataset, language: str,
                   case: Literal["auto", "keep", "fold"] = "auto") -> str:
    """Name of the normaliser of a new language, whose case is kept by choice or by what its texts in `dataset` show.

    A language that the base knows keeps its own.
    """
    name = base.normaliser_for(language)
    if language in base.by_code or case == "fold":
        return name
    texts = (clip.text for clip in dataset.clips if clip.language == language)
    return f"{name}{normalisers.CASED}" if case == "keep" or normalisers.measure_case(texts).is_spelling else name


def characters_of(texts: Sequence[str]) -> set[str]:
    """Distinct characters except the space."""
    return set(chain.from_iterable(texts)) - {" "}


def with_all_characters(pieces: Pieces, texts: Sequence[str]) -> Pieces:
    """`pieces` with every character of `texts`."""
    additions = sorted(characters_of(texts) - set(pieces.characters))
    return replace(pieces, characters=(*pieces.characters, *additions))


def train_pieces(texts: Sequence[str], algorithm: Literal["bpe", "sentencepiece"], merges: int,
                 split_word: Callable[[str], list[str]] = list) -> Pieces:
    """Characters of `texts`, and at most `merges` pieces longer than one character.

    `split_word` gives the symbols that the first merges join, as `FrontEnd.split_word` does; by default characters.
    """
    characters = tuple(sorted(characters_of(texts)))
    if merges == 0 or not characters:
        return Pieces(characters, (), algorithm, merges)
    words = {word: split_word(word) for word in dict.fromkeys(chain.from_iterable(map(str.split, texts)))}
    learner = {"bpe": _learn_bpe, "sentencepiece": _learn_sentencepiece}[algorithm]
    # Words that are cut into characters need no coding.
    if all("".join(symbols) == word and len(symbols) == len(word) for word, symbols in words.items()):
        return Pieces(characters, tuple(learner(texts, characters, merges)), algorithm, merges)

    # The trainers join characters, so each symbol becomes one character of a range that no text uses.
    symbols = sorted(set(chain.from_iterable(words.values())))
    code = {symbol: chr(_PRIVATE + number) for number, symbol in enumerate(symbols)}
    coded = [" ".join("".join(code[symbol] for symbol in words[word]) for word in text.split()) for text in texts]

    def decode(piece: str) -> str:
        return "".join(symbols[ord(character) - _PRIVATE] for character in piece)

    pairs = [(decode(prefix), decode(suffix)) for prefix, suffix in learner(coded, list(code.values()), merges)]
    return Pieces(characters, tuple(pairs), algorithm, merges)


def _learn_bpe(texts: Sequence[str], characters: Sequence[str], merges: int) -> list[tuple[str, str]]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(
        vocab_size=len(characters) + merges, min_frequency=_MIN_FREQUENCY,
        initial_alphabet=list(characters), show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    pairs = json.loads(tokenizer.to_str())["model"]["merges"]
    return [(prefix, suffix) for prefix, suffix in pairs]


def _learn_sentencepiece(texts: Sequence[str], characters: Sequence[str], merges: int) -> list[tuple[str, str]]:
    """SentencePiece ranks pieces, not pairs: a piece may arise from any two known ones, so every such pair counts."""
    # Words are cut by the library: for Python's `\w`, a combining mark ends a word; for the library it does not.
    cutter = pre_tokenizers.Whitespace()
    words = [word for word, _ in chain.from_iterable(map(cutter.pre_tokenize_str, texts))]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(words), model_writer=model, model_type="bpe",
        vocab_size=len(characters) + merges + 1,  # and the unknown piece
        hard_vocab_limit=False, character_coverage=1.0, normalization_rule_name="identity",
        add_dummy_prefix=False, split_by_unicode_script=False, split_by_number=False,
        bos_id=-1, eos_id=-1, pad_id=-1, unk_id=0, num_threads=1, minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return merge_pairs([processor.id_to_piece(index) for index in range(1, processor.get_piece_size())], characters)


def merge_pairs(ranked: Sequence[str], characters: Iterable[str]) -> list[tuple[str, str]]:
    """Every pair of known pieces that gives one of `ranked` (best first), in their order."""
    known_pieces = set(characters)
    pairs: list[tuple[str, str]] = []
    for piece in ranked:
        if len(piece) == 1:
            continue
        splits = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        pairs += [(prefix, suffix) for prefix, suffix in splits if prefix in known_pieces and suffix in known_pieces]
        known_pieces.add(piece)
    return pairs


@dataclass(frozen=True)
class ImportedTokenizer:
    """A tokenizer file of the user: its pieces with their ids, and its pairs in rank order, without word marks."""

    path: Path
    ids: Mapping[str, int]  # ids as in the file, special tokens too
    pairs: tuple[tuple[str, str], ...]
    characters: tuple[str, ...]

    @property
    def size(self) -> int:
        return max(self.ids.values(), default=-1) + 1


def import_pieces(base: FrontEnd, path: str) -> Pieces:
    """The pieces to append to `base`; `UserError` for a file that cannot be read, is too large or only seems to fit."""
    imported = read_tokenizer(confinement.open_path(path), base.word_start)
    vocabulary = base.base_vocabulary

    # A tokenizer of the same size looks as if it fitted, so ids are compared.
    moved = [piece for piece in vocabulary
             if piece in imported.ids and vocabulary[piece] != imported.ids[piece]]
    absent = [piece for piece in vocabulary if piece not in imported.ids]
    if imported.size in (base.prefix_size, base.base_ids) and (moved or absent):
        raise UserError(
            f"{imported.path} has {imported.size} ids as the base has, and is another tokenizer: {len(moved)} of the "
            f"base's pieces have another id there and {len(absent)} are missing "
            f"({', '.join(map(repr, [*moved, *absent][:5]))}).",
            "Equal size is no fit: each row would stand for another piece. Give a tokenizer of the new language "
            "alone, or let Lisan learn the pieces.",
        )
    # Imported pieces are limited as learnt ones are.
    if len(imported.pairs) > _MAX_PIECES:
        raise UserError(f"{imported.path} has {len(imported.pairs)} merges; at most {_MAX_PIECES} rows can be learnt.",
                        "Give a smaller tokenizer of the new language.")
    return Pieces(imported.characters, imported.pairs, OWN, len(set(map("".join, imported.pairs))))


def read_tokenizer(path: Path, word_start: str = "") -> ImportedTokenizer:
    """A SentencePiece model, or a tokenizer in the JSON form of `tokenizers`; the file itself, or its folder.

    `word_start` is how the base marks the start of a word; if it is empty, pieces lose that mark.
    """
    if path.is_dir():
        patterns = ("tokenizer.json", "*.model", "*.json")
        files = list(chain.from_iterable(sorted(path.glob(pattern)) for pattern in patterns))
        if not files:
            raise UserError(f"{path} holds no tokenizer.", _FORMATS_HINT)
        path = files[0]
    try:
        content = foreign.read_bytes(path)
    except OSError as error:
        raise UserError(f"{path} could not be read: {error.strerror}.", _FORMATS_HINT) from error
    listed = _listed_pieces(path, content)
    if listed is not None:
        marks = {piece for piece in listed if _MARK.fullmatch(piece)}
        ids = {piece.removeprefix("##"): row for piece, row in listed.items()}
        ranked = [piece for piece in sorted(ids, key=ids.__getitem__) if piece not in marks]
        return _without_special(path, ids, marks, None, ranked, word_start)
    read = _from_json if content.lstrip()[:1] == b"{" else _from_sentencepiece
    return read(path, content, word_start)


def _listed_pieces(path: Path, content: bytes) -> dict[str, int] | None:
    """Pieces with their ids of a file that only lists them: `vocab.json`, `vocab.txt`, or the `.vocab` of
    SentencePiece; None for a file of another form.
    """
    if content.lstrip()[:1] == b"{":
        values = foreign.parse_json(content, path)
        flat = isinstance(values, dict) and bool(values) and all(type(row) is int for row in values.values())
        return {str(piece): row for piece, row in values.items()} if flat else None
    if path.suffix not in (".txt", ".vocab"):
        return None
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a list of pieces in UTF-8 (byte {error.start}).", _FORMATS_HINT) from error
    pieces = [line.partition("\t")[0] if path.suffix == ".vocab" else line for line in lines]
    spaced = next((piece for piece in pieces if " " in piece.strip()), None)
    if spaced is not None and path.suffix == ".txt":
        raise UserError(f"{path} is not a list of pieces: one of its lines is {spaced[:40]!r}.",
                        f"One piece a line is expected. {_FORMATS_HINT}")
    return {piece: row for row, piece in enumerate(pieces)}


def _from_json(path: Path, content: bytes, word_start: str) -> ImportedTokenizer:
    try:
        values: dict[str, Any] = foreign.parse_json(content, path)
        model = values["model"]
        # Tokenizers of bytes split letters, which no row of the base can spell.
        if '"ByteLevel"' in json.dumps([values.get("pre_tokenizer"), values.get("decoder")]):
            raise UserError(f"{path} is a tokenizer of bytes: its pieces are parts of letters, which the base's form "
                            "does not have.", "Train one on characters (BPE or Unigram without ByteLevel).")
        special = {token["content"]: int(token["id"]) for token in values.get("added_tokens") or ()}
        if model["type"] == "BPE":
            merges = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
            ids = {**model["vocab"], **special}
            pairs = [(prefix, suffix) for prefix, suffix in merges]
            return _without_special(path, ids, special, pairs, None, word_start)
        if model["type"] == "Unigram":
            ids = {piece: number for number, (piece, _) in enumerate(model["vocab"])} | special
            ranked = [piece for piece, _ in sorted(model["vocab"], key=lambda entry: -entry[1])]
            return _without_special(path, ids, special, None, ranked, word_start)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no whole tokenizer: {error!r}.", _FORMATS_HINT) from error
    raise UserError(f"{path} is a {model['type']} tokenizer, whose pieces cannot be merged into a BPE.", _FORMATS_HINT)


def _from_sentencepiece(path: Path, content: bytes, word_start: str) -> ImportedTokenizer:
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.load_from_serialized_proto(content)
    except (RuntimeError, TypeError) as error:
        raise UserError(f"{path} is neither a JSON file nor a SentencePiece model.", _FORMATS_HINT) from error
    names = [processor.id_to_piece(number) for number in range(processor.get_piece_size())]
    special = {name for number, name in enumerate(names) if processor.is_control(number)
               or processor.is_unknown(number) or processor.is_byte(number) or processor.is_unused(number)}
    scores = {name: processor.get_score(number) for number, name in enumerate(names)}
    ranked = sorted((name for name in names if name not in special), key=lambda name: -scores[name])
    ids = {name: number for number, name in enumerate(names)}
    return _without_special(path, ids, special, None, ranked, word_start)


def _without_special(path: Path, ids: Mapping[str, int], special: Mapping[str, int] | set[str],
                     merges: Sequence[tuple[str, str]] | None, ranked: Sequence[str] | None,
                     word_start: str) -> ImportedTokenizer:
    """Drop special tokens, and keep the pairs whose parts come before them."""
    plain = [piece.replace(WORD_START, word_start) for piece in ids if piece not in special]
    characters = tuple(sorted({text for text in plain
                               if len(text) == 1 and not text.isspace() and text != word_start}))
    known_pieces = {*characters, *word_start}
    # A Unigram vocabulary has no pairs, so these are derived from its order.
    if ranked is not None:
        pieces = [piece.replace(WORD_START, word_start) for piece in ranked]
        longer = [piece for piece in pieces if len(piece) > 1 and " " not in piece.removeprefix(word_start)
                  and not _SPECIAL_FORM.fullmatch(piece)]
        return ImportedTokenizer(path, ids, tuple(merge_pairs(list(dict.fromkeys(longer)), known_pieces)), characters)

    # A pair counts only if both of its parts are known by then.
    pairs = []
    for merge in merges or ():
        prefix, suffix = (part.replace(WORD_START, word_start) for part in merge)
        piece = prefix + suffix
        if prefix in known_pieces and suffix in known_pieces and not _SPECIAL_FORM.fullmatch(piece):
            pairs.append((prefix, suffix))
            known_pieces.add(piece)
    return ImportedTokenizer(path, ids, tuple(dict.fromkeys(pairs)), characters)
