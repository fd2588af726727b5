"""A text of any length as the pieces that a model speaks one after another."""

from __future__ import annotations

from functools import cache

from data.front_end import FrontEnd
from data.sentences import Piece, split


def pieces_of(text: str, language: str, front_end: FrontEnd, limit: int, longest: int) -> list[Piece]:
    """Pieces of at most `limit` ids, start, tag and stop counted; a single word may take up to `longest`.

    Raises `UserError` before anything is spoken: for a text without words, for a word that is too long, and for
    characters that the model does not know.
    """
    overhead = front_end.overhead(language)
    text = front_end.written_out(text, language)  # first, because a dot of an abbreviation ends no sentence

    @cache
    def count(part: str) -> int:
        return overhead + len(front_end.body(part, language))

    pieces = split(text, limit, count, longest, front_end.sentence_ends(language))
    found = [piece for piece in pieces if count(piece.text) > overhead]
    for part in [piece.text for piece in found] or [text]:
        front_end.encode(part, language)
    return found
