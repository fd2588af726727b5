"""What code knows of an error, and that no control flow reads sentences."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from config.errors import ErrorKind, UserError

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("config", "core", "data", "models", "scripts", "ui")
OWNER = Path("config/errors.py")  # it makes the sentences
PROSE = {"message", "hint"}
READING = {"startswith", "endswith", "search", "match", "fullmatch", "findall", "finditer", "replace", "removeprefix",
           "removesuffix", "split", "partition", "find", "index", "count", "sub"}


def readers_of_prose(source: str) -> list[str]:
    """Comparisons with a message, a hint or a title, and calls that search or change one."""
    places = []
    for node in ast.walk(ast.parse(source)):
        reader: ast.AST | None = None
        if isinstance(node, ast.Compare) and not any(isinstance(operator, ast.Is | ast.IsNot) for operator in node.ops):
            reader = node
            if any(isinstance(side, ast.Attribute) and side.attr == "title" for side in (node.left, *node.comparators)):
                places.append(f"{node.lineno}: {ast.unparse(node)[:100]}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READING:
            reader = node
        elif isinstance(node, ast.Match):
            reader = node.subject
        if reader and any(isinstance(inner, ast.Attribute) and inner.attr in PROSE for inner in ast.walk(reader)):
            places.append(f"{node.lineno}: {ast.unparse(node)[:100]}")
    return places


def test_no_control_flow_reads_a_sentence() -> None:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    assert len(paths) > 300
    places = [f"{path.relative_to(ROOT)}:{place}" for path in paths if path.relative_to(ROOT) != OWNER
              for place in readers_of_prose(path.read_text(encoding="utf-8"))]
    assert places == []


@pytest.mark.parametrize("source", [
    "if 'cut off' in error.hint: pass", "stopped = last.message == TEXT", "re.search('resume', f'{state.hint}')",
    "error.message.replace(path, name)", "match state.message:\n    case 'Stopped.': pass",
    "chosen = [one for one in metrics if one.title == 'CER']",
])
def test_a_reader_of_sentences_is_found(source: str) -> None:
    assert readers_of_prose(source)


@pytest.mark.parametrize("source", ["print(error.message)", "raise UserError(error.message, 'hint') from error",
                                    "error.kind == ErrorKind.INPUT", "note = state.reason or state.message",
                                    "option.title is None"])
def test_showing_a_sentence_is_no_control_flow(source: str) -> None:
    assert not readers_of_prose(source)


def test_an_error_has_a_kind_and_can_name_what_the_user_gave() -> None:
    error = UserError("/proc/1/fd/3 is empty.", "Fill /proc/1/fd/3.", ErrorKind.TRUNCATED_FILE)
    error.rename({"/proc/1/fd/3": "clips.csv"})
    assert (error.message, error.hint, str(error)) == ("clips.csv is empty.", "Fill clips.csv.", "clips.csv is empty.")
    assert error.kind is ErrorKind.TRUNCATED_FILE
    assert UserError("It is empty.").kind is ErrorKind.INPUT
