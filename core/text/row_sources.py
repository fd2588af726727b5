"""The base rows that each new token's row is initialised from, as ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from config.foreign import cached_by_file, file_stamp
from config.schema import Initialisation
from core.workspace import Workspace
from data.front_end import SETTINGS_FILE, FrontEnd, NewToken
from data.languages.latin import romanise_by_order

AROUND_THE_MEAN: tuple[Initialisation, ...] = ("mean", "random")  # strategies that use no token's spelling


@dataclass(frozen=True)
class SpelledRowCounts:
    """How many of the new rows, except tags, start from base tokens that spell them, by strategy."""

    rows: int
    spelled: Mapping[Initialisation, int]


def source_ids(token: NewToken, base: FrontEnd, strategy: Initialisation, variant_of: str = "") -> list[int]:
    """Ids of the old rows whose mean the new row is; none means all rows, with noise.

    The tag of a variant starts from the tag of its source language.
    """
    if token.kind == "tag":
        variant_tag = base.tag_id(variant_of) if variant_of else None
        if variant_tag is not None:
            return [variant_tag]
        # A base may have a tag for a language that it does not speak.
        own_tag = base.own_tag_id(token.language)
        if own_tag is not None:
            return [own_tag]
        tags = (base.tag_id(language) for language in base.base_languages)
        return [tag for tag in tags if tag is not None]
    # The name of a byte spells nothing.
    if strategy in AROUND_THE_MEAN or token.kind == "byte":
        return []

    # The start of a word is no letter, so it is set aside before the romanisation.
    start = base.word_start if token.text.startswith(base.word_start) else ""
    letters = token.text.removeprefix(start)
    spelled = letters if strategy == "neighbours" else base.cased(romanise_by_order(letters))
    ids, unknown = base.spell_piece(start + spelled)
    if strategy == "neighbours" and unknown:
        return []
    return [token_id for token_id in ids if token_id != base.unknown_id]


def count_spelled_rows(extended: FrontEnd) -> SpelledRowCounts:
    """The counts for the tokens that `extended` adds; it contains its base, so no model is read."""
    tokens = [token for token in extended.added_tokens() if token.kind != "tag"]
    return SpelledRowCounts(len(tokens), {strategy: sum(bool(source_ids(token, extended, strategy)) for token in tokens)
                                          for strategy in get_args(Initialisation) if strategy not in AROUND_THE_MEAN})


def count_rows_of_tokenizer(workspace: Workspace, tokenizer: str) -> SpelledRowCounts | None:
    """The counts for a tokenizer of the workspace; None when there is none. `UserError` when it is damaged."""
    settings = workspace.tokenizers / tokenizer / SETTINGS_FILE
    return _counted_in(settings) if tokenizer in workspace.list_tokenizers() and any(file_stamp(settings)) else None


@cached_by_file(8)
def _counted_in(settings: Path) -> SpelledRowCounts:
    return count_spelled_rows(FrontEnd.load(settings.parent))
