"""BPE files in the JSON format of `tokenizers`, as Chatterbox publishes them; built as text, so ids are exact."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from config.errors import UserError

SPECIAL_TOKENS = ("[STOP]", "[UNK]", "[SPACE]", "[START]")
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
"""The pieces of byte fallback, in the format of `tokenizers`."""


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


def extended_file(base: bytes, appended: Mapping[str, int], tag: str, merges: Sequence[tuple[str, str]],
                  byte_fallback: bool = False) -> bytes:
    """The base file with `appended` ids, `tag` as one token, and `merges` instead of the base's own.

    `byte_fallback`: characters without a piece become `BYTES`, which must be among the ids.
    """
    content = json.loads(base)
    model = content["model"]
    model["vocab"] = {**model["vocab"], **appended}
    model["merges"] = [list(pair) for pair in merges]
    if byte_fallback:
        model["byte_fallback"] = True
    ids = {**{token["content"]: token["id"] for token in content["added_tokens"]}, **model["vocab"]}
    absent = [token for pair in merges for token in (*pair, "".join(pair)) if token not in ids]
    if absent:
        raise ValueError(f"merges name pieces without an id: {absent[:5]}")
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] not in appended]
    content["added_tokens"].append(_added_token(tag, appended[tag]))
    return _dump(content)


def vocabulary(content: bytes, name: str) -> dict[str, int]:
    """Every token of a file with its id, added tokens included; `name` is for error messages."""
    try:
        parts = json.loads(content)
        model = parts["model"]
        if model["type"] != "BPE":
            raise ValueError(f"a {model['type']} model where BPE is wanted")
        return {**model["vocab"], **{token["content"]: int(token["id"]) for token in parts["added_tokens"]}}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{name} is not a whole BPE tokenizer file: {error!r}.", "Fetch or make it again.") from error


def highest_id(ids: Mapping[str, int]) -> int:
    return max(ids.values())


def _added_token(token: str, index: int) -> dict:
    return {
        "id": index, "content": token, "single_word": False, "lstrip": False,
        "rstrip": False, "normalized": False, "special": True,
    }


def _dump(content: dict) -> bytes:
    return (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode("utf-8")
