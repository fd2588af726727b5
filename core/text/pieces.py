"""Learn the pieces of a language from its text: every character first, then merges in rank order.

Texts are normalised already. Pieces stay inside words as the `Whitespace` pre-tokenizer cuts
them (runs of word characters, or of others), which is the form that Chatterbox publishes.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from config.errors import UserError
from data.durable_files import write_text

_MIN_FREQUENCY = 2  # a piece that occurs once teaches nothing


@dataclass(frozen=True)
class Pieces:
    """What was learned. A merge joins two pieces that are characters or the result of an earlier merge."""

    characters: tuple[str, ...]  # sorted
    merges: tuple[tuple[str, str], ...]  # in rank order
    algorithm: str  # that learned them
    merges_asked: int


    def save(self, path: Path) -> None:
        """Write them as JSON, whole or not at all."""
        write_text(path, json.dumps(asdict(self), ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> Pieces:
        """What `save` wrote; `UserError` when there is nothing of that kind."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            merges = tuple((left, right) for left, right in values["merges"])
            return cls(tuple(values["characters"]), merges, values["algorithm"], values["merges_asked"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"No learned pieces could be read from {path}: {error}.",
                "Learn them first (python -m scripts.tokenizer train), with the same tokenizer name.",
            ) from error


def learn(texts: Sequence[str], algorithm: Literal["bpe", "sentencepiece"], merges: int) -> Pieces:
    """Characters of `texts`, and at most `merges` pieces longer than one character."""
    characters = tuple(sorted({character for text in texts for character in text if character != " "}))
    if merges == 0 or not characters:
        return Pieces(characters, (), algorithm, merges)
    learner = {"bpe": _learn_bpe, "sentencepiece": _learn_sentencepiece}[algorithm]
    return Pieces(characters, tuple(learner(texts, characters, merges)), algorithm, merges)


def _learn_bpe(texts: Sequence[str], characters: Sequence[str], merges: int) -> list[tuple[str, str]]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(
        vocab_size=len(characters) + merges, min_frequency=_MIN_FREQUENCY,
        initial_alphabet=list(characters), show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    pairs = json.loads(tokenizer.to_str())["model"]["merges"]
    return [(left, right) for left, right in pairs]


def _learn_sentencepiece(texts: Sequence[str], characters: Sequence[str], merges: int) -> list[tuple[str, str]]:
    """SentencePiece ranks pieces, not pairs: a piece may arise from any two known ones, so every such pair counts."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_words(texts)), model_writer=model, model_type="bpe",
        vocab_size=len(characters) + merges + 1,  # and the unknown piece
        hard_vocab_limit=False, character_coverage=1.0, normalization_rule_name="identity",
        add_dummy_prefix=False, split_by_unicode_script=False, split_by_number=False,
        bos_id=-1, eos_id=-1, pad_id=-1, unk_id=0, num_threads=1, minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return pairs_of([processor.id_to_piece(one) for one in range(1, processor.get_piece_size())], characters)


def pairs_of(ranked: Sequence[str], characters: Sequence[str]) -> list[tuple[str, str]]:
    """Every pair of known pieces that gives one of `ranked` (best first), in their order."""
    known = set(characters)
    pairs: list[tuple[str, str]] = []
    for piece in ranked:
        if len(piece) == 1:
            continue
        splits = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        pairs += [(left, right) for left, right in splits if left in known and right in known]
        known.add(piece)
    return pairs


def _words(texts: Sequence[str]) -> list[str]:
    # The library's own cutter: to Python's `\w`, unlike to it, combining marks end a word.
    cutter = pre_tokenizers.Whitespace()
    return [word for text in texts for word, _ in cutter.pre_tokenize_str(text)]
