"""From which rows of the base each new row starts: ids alone, without the rows. Never loads torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import get_args

from config.schema import Initialisation
from core.workspace import Workspace
from data.front_end import SETTINGS_FILE, FrontEnd, NewToken
from data.languages.latin import romanise

AROUND_THE_MEAN: tuple[Initialisation, ...] = ("mean", "random")  # they ask no token how it is spelled


@dataclass(frozen=True)
class Found:
    """How many of the new rows, tags aside, start from tokens of the base that spell them, by strategy."""

    rows: int
    spelled: Mapping[Initialisation, int]


def source_ids(token: NewToken, base: FrontEnd, strategy: Initialisation) -> list[int]:
    """Ids of the old rows whose mean the new row is; none means all rows, with noise."""
    if token.kind == "tag":
        tags = (base.tag_id(language) for language in base.base_languages)
        return [tag for tag in tags if tag is not None]
    if strategy in AROUND_THE_MEAN or token.kind == "byte":  # the name of a byte spells nothing
        return []
    ids, unknown = base.spell(token.text if strategy == "neighbours" else romanise(token.text))
    if strategy == "neighbours" and unknown:
        return []
    unknown_id = base.special_id("[UNK]")
    return [token_id for token_id in ids if token_id != unknown_id]


def found(extended: FrontEnd) -> Found:
    """What each strategy finds for the tokens that `extended` adds: it knows its base, so no model is read."""
    tokens = [token for token in extended.added_tokens() if token.kind != "tag"]
    return Found(len(tokens), {strategy: sum(bool(source_ids(token, extended, strategy)) for token in tokens)
                               for strategy in get_args(Initialisation) if strategy not in AROUND_THE_MEAN})


def found_for(workspace: Workspace, tokenizer: str) -> Found | None:
    """`found` for a tokenizer of the workspace; None when there is none. `UserError` when it is damaged."""
    folder = workspace.tokenizers / tokenizer
    try:
        changed_ns = (folder / SETTINGS_FILE).stat().st_mtime_ns if tokenizer else None
    except OSError:
        return None
    return None if changed_ns is None else _found_in(folder, changed_ns)


@lru_cache(maxsize=8)
def _found_in(folder: Path, changed_ns: int) -> Found:
    """The page asks every second or two."""
    return found(FrontEnd.load(folder))
