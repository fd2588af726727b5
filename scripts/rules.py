"""Text rules: list and show them, save your own, see texts before and after, and what a folding costs.

    python -m scripts rules                                    what there is, and what was made with it
    python -m scripts rules show am > my-am.yaml               then edit the file
    python -m scripts rules save my-am --file my-am.yaml       --fork takes a free name where this one is in use
    python -m scripts rules try my-am --dataset amharic-demo   or --text "...", or --texts FILE with one a line
    python -m scripts rules cost my-am --dataset amharic-demo
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import scripts  # noqa: F401  so that this file can be run directly, see scripts/scripts.py
from config import foreign
from config.errors import UserError
from core.text import text_rules
from core.workspace import Workspace
from scripts.command import exit_with, run_in_workspace, script_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit code."""
    return run_in_workspace(build_parser(), arguments, lambda workspace, args: _PARTS[args.part](workspace, args))


def build_parser() -> argparse.ArgumentParser:
    parser = script_parser("rules", __doc__, "end with the outcome as one line of JSON")
    parser.add_argument("part", nargs="?", choices=[*_PARTS], default="list")
    parser.add_argument("name", nargs="?", default="am", help="shipped rules, or your own (default: %(default)s)")
    parser.add_argument("--file", metavar="FILE", help="save: YAML rules to keep; - reads standard input")
    parser.add_argument("--fork", action="store_true", help="save: under a free name when the given one is in use")
    parser.add_argument("--text", action="append", default=[], help="try, cost: a text; may be repeated")
    parser.add_argument("--texts", metavar="FILE", help="try, cost: a file of texts, one a line")
    parser.add_argument("--dataset", help="try, cost: the texts of a prepared dataset")
    parser.add_argument("--most", type=int, default=20, help="try: at most so many texts (default: %(default)s)")
    return parser


def _list(workspace: Workspace, args: argparse.Namespace) -> dict[str, Any]:
    all_rules = text_rules.list_rules(workspace)
    for entry in all_rules:
        print(f"{entry.name:16} {'your own' if entry.own else 'shipped':9} {entry.language:6} {entry.hash[:12]}")
        for line in (entry.fault, *(f"made with it: {user}" for user in entry.used_by),
                     *(f"made with another text of this name: {user}" for user in entry.edited)):
            if line:
                print(f"{'':16} {line}")
    print("Numbers alone, by ICU or num2words: " + " ".join(text_rules.numbers_alone()))
    return {"rules": [asdict(entry) for entry in all_rules], "numbers_alone": list(text_rules.numbers_alone())}


def _show(workspace: Workspace, args: argparse.Namespace) -> dict[str, Any]:
    text = text_rules.read(workspace, args.name)
    if not args.json:
        sys.stdout.write(text)
    return {"name": args.name, "text": text}


def _save(workspace: Workspace, args: argparse.Namespace) -> dict[str, Any]:
    if not args.file:
        raise UserError("There are no rules to save.", "Give them: --file FILE, or --file - for standard input.")
    text = sys.stdin.read() if args.file == "-" else foreign.read_text(Path(args.file))
    saved = (text_rules.save_copy if args.fork else text_rules.save)(workspace, args.name, text)
    print(f"{saved.name}: {saved.state} ({saved.hash[:12]}), {saved.path}")
    return {"name": saved.name, "state": saved.state, "hash": saved.hash, "path": str(saved.path)}


def _try(workspace: Workspace, args: argparse.Namespace) -> dict[str, Any]:
    lines = text_rules.preview(text_rules.load(workspace, args.name), _texts(workspace, args, args.most))
    for line in lines:
        print(f"- {line.before}\n+ {line.after}")
        for change in line.changes:
            print(f"    {change.before!r} -> {change.after!r} ({', '.join(change.rules)})")
        if line.left_out:
            print("    excluded: " + " ".join(line.left_out))
    return {"lines": [asdict(line) for line in lines]}


def _cost(workspace: Workspace, args: argparse.Namespace) -> dict[str, Any]:
    costs = text_rules.fold_costs(text_rules.load(workspace, args.name), _texts(workspace, args, None))
    for cost in costs:
        print(f"{cost.name}: {cost.about}\n"
              f"    {cost.words} distinct words become {cost.words_after}: {cost.merged_word_count} become equal\n"
              f"    {cost.letters} letters become {cost.letters_after}; "
              f"{cost.occurrences} of {cost.total} words are spelled otherwise")
        for group in cost.merged:
            print(f"    {' = '.join(group)}")
    return {"costs": [{**asdict(cost), "merged_word_count": cost.merged_word_count} for cost in costs]}


def _texts(workspace: Workspace, args: argparse.Namespace, limit: int | None) -> list[str]:
    # Texts of all sources are tried together.
    texts = list(args.text)
    if args.texts:
        texts += foreign.read_text(Path(args.texts)).splitlines()
    if args.dataset:
        texts += text_rules.dataset_texts(workspace, args.dataset, limit)

    if not any(text.strip() for text in texts):
        raise UserError("There is no text.", "Give --text, --texts FILE or --dataset NAME.")
    return [text for text in texts if text.strip()][:limit]


_PARTS = {"list": _list, "show": _show, "save": _save, "try": _try, "cost": _cost}

if __name__ == "__main__":
    exit_with(main)
