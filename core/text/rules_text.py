"""Small edits of rules as text, so that a person's comments and order stay. Never loads torch."""

from __future__ import annotations

import json
import re

from config.errors import UserError

TABLES = ("abbreviations", "words", "symbols", "units", "characters", "marks")
"""Tables that an entry can be added to."""


def with_entry(text: str, table: str, written: str, said: str) -> str:
    """`text` with an entry in `table`; one that is there for `written` is replaced."""
    if not written.strip() or "\n" in written + said:
        raise UserError("The entry has nothing that is written.", "Give what stands in the text, in one line.")
    line = f"  {_quoted(written.strip())}: {_quoted(said.strip())}"
    head = re.search(rf"^{table}:[ \t]*(\{{\}})?[ \t]*(#.*)?$", text, re.MULTILINE)
    if head is None:
        if re.search(rf"^{table}:", text, re.MULTILINE):
            raise UserError(f"The table {table!r} stands in one line.", "Write one entry a line in the rules.")
        return f"{text.rstrip()}\n{table}:\n{line}\n"
    block_end = _block_end(text, head.end())
    block = text[head.end():block_end]
    key = re.escape(written.strip())
    there = re.search(rf"^  (?:{key}|'{key}'|{re.escape(_quoted(written.strip()))}):.*$", block, re.MULTILINE)
    if there:
        block = block[:there.start()] + line + block[there.end():]
    else:
        block = f"\n{line}{block}"
    return f"{text[:head.start()]}{table}:{block}{text[block_end:]}"


def with_latin(text: str, choice: str) -> str:
    """`text` with `latin.words` set."""
    head = re.search(r"^latin:[ \t]*(#.*)?$", text, re.MULTILINE)
    if head is None:
        return re.sub(r"^latin:.*\n?", "", text, flags=re.MULTILINE).rstrip() + f"\nlatin:\n  words: {choice}\n"
    end = _block_end(text, head.end())
    words = re.compile(r"^  words:[ \t]*\w*", re.MULTILINE)
    block, count = words.subn(f"  words: {choice}", text[head.end():end], count=1)
    return text[:head.end()] + (block if count else f"\n  words: {choice}{block}") + text[end:]


def with_folds(text: str, names: list[str]) -> str:
    """`text` with the chosen foldings."""
    line = f"fold: [{', '.join(names)}]"
    made, count = re.subn(r"^fold:[^\n]*(\n-[^\n]*|\n +-[^\n]*)*", line, text, count=1, flags=re.MULTILINE)
    return made if count else f"{text.rstrip()}\n{line}\n"


def _block_end(text: str, start: int) -> int:
    """Where the indented lines after `start` end."""
    found = re.compile(r"\n(?=[^\s#])").search(text, start)
    return found.start() if found else len(text)


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
