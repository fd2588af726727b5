"""What the workspace holds: sizes, what depends on what, and the bin.

    python -m scripts storage list                       sizes by kind, the largest of each, and the bin
    python -m scripts storage show dataset:my-voice      what depends on it, and what it depends on
    python -m scripts storage delete run:first           into the bin; refused while a job needs it
    python -m scripts storage restore run:first          out of the bin, to where it was
    python -m scripts storage empty                      remove what is in the bin, for good

An item is KIND:NAME. An export or a run travels as one archive: python -m scripts pack, python -m scripts unpack.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Any

import scripts  # noqa: F401  so that this file can be run directly, see scripts/scripts.py
from core.jobs.reporter import pluralize, size_text
from core.submission import storage
from core.submission.storage import Inventory, Item, Usage
from core.workspace import KINDS, Workspace
from scripts.command import actions_parser, exit_with, run_in_workspace

MOST = 10  # items of a kind that are printed; --all prints every one


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the action of the command line; the exit code."""
    return run_in_workspace(build_parser(), arguments, _run)


def build_parser() -> argparse.ArgumentParser:
    parser, add_action = actions_parser("storage", __doc__, "end with the outcome as one line of JSON")
    listing = add_action("list", help="sizes of everything, and the bin")
    listing.add_argument("--kind", choices=KINDS, help="this kind alone")
    listing.add_argument("--all", action="store_true", help=f"print all items, not the {MOST} largest of each kind")
    for name, words in (("show", "what depends on an item, and what it depends on"),
                        ("delete", "move items into the bin")):
        add_action(name, help=words).add_argument("item", nargs="+", help="KIND:NAME, or run:ID@STEP for a checkpoint")
    add_action("restore", help="take items out of the bin").add_argument(
        "item", nargs="+", help="KIND:NAME, or KIND:NAME@STAMP where several of a name are there")
    add_action("empty", help="remove what is in the bin for good").add_argument(
        "item", nargs="*", help="this alone (default: everything in the bin)")
    return parser


def _run(workspace: Workspace, args: argparse.Namespace) -> Mapping[str, Any]:
    match args.do:
        case "list":
            return _list(storage.take_inventory(workspace), workspace, args)
        case "show":
            inventory = storage.take_inventory(workspace)
            return {"items": [_show(workspace, inventory, storage.parse(workspace.whole_reference(name)))
                              for name in args.item]}
        case "delete":
            deleted = []
            for reference in map(workspace.whole_reference, args.item):
                deleted.append(storage.delete(workspace, storage.parse(reference)).reference)
                print(f"{reference} is in the bin. It can be restored: python -m scripts storage restore {reference}")
            return {"deleted": deleted}
        case "restore":
            restored = [storage.restore(workspace, entry).reference for entry in args.item]
            print(f"Restored: {', '.join(restored)}.")
            return {"restored": restored}

    free = workspace.free_bytes()
    count = sum(storage.empty_bin(workspace, name) for name in args.item or [""])
    print(f"{pluralize(count, 'item')} removed for good; {size_text(max(0, workspace.free_bytes() - free))} freed.")
    return {"removed": count}


def _list(inventory: Inventory, workspace: Workspace, args: argparse.Namespace) -> Mapping[str, Any]:
    for kind in [args.kind] if args.kind else KINDS:
        entries = sorted(((usage, item) for item, usage in inventory.items.items() if item.kind == kind),
                         key=lambda pair: (-pair[0].size, pair[1].name))
        if not entries:
            continue
        print(f"{KINDS[kind]}: {size_text(sum(usage.size for usage, _ in entries))}, {pluralize(len(entries), 'item')}")

        printed = entries if args.all else entries[:MOST]
        for usage, item in printed:
            users = len({use.user for use in inventory.by_item.get(item, ())})
            depend = f"  {pluralize(users, 'item')} made with it" if users else ""
            print(f"    {_size(usage):28}  {item.reference}{depend}")
        if len(entries) > len(printed):
            print(f"    and {len(entries) - len(printed)} smaller ones (--all)")

    if inventory.deleted and not args.kind:
        print(f"bin: {size_text(sum(usage.size for usage in inventory.deleted.values()))}, "
              f"{pluralize(len(inventory.deleted), 'item')}")
        for entry, usage in inventory.deleted.items():
            deleted_at = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.deleted))
            print(f"    {_size(usage):28}  {entry.reference}, deleted {deleted_at}")

    print(f"Total: {size_text(inventory.total)}, what is shared counted once; "
          f"{size_text(workspace.free_bytes())} of disk free.")
    return {"total": inventory.total, "free": workspace.free_bytes(), "seconds": round(inventory.seconds, 3),
            "items": [_row(item.reference, usage) for item, usage in inventory.items.items()
                      if args.kind in (None, item.kind)],
            "bin": [_row(entry.reference, usage) for entry, usage in inventory.deleted.items()]}


def _size(usage: Usage) -> str:
    shared = f" (frees {size_text(usage.freed)})" if usage.freed != usage.size else ""
    return f"{size_text(usage.size)}{shared}"


def _row(reference: str, usage: Usage) -> dict[str, Any]:
    return {"item": reference, "bytes": usage.size, "freed": usage.freed}


def _show(workspace: Workspace, inventory: Inventory, item: Item) -> dict[str, Any]:
    # Dependencies are shown in both directions.
    users = {use.user.reference: use.how for use in inventory.by_item.get(item, ())}
    needs = {use.item.reference: use.how for use in inventory.dependencies if use.user == item}
    usage = storage.measure_checkpoint(workspace, item) if item.run else inventory.items.get(item)

    print(f"{item.reference}: {_size(usage) if usage else 'not here'}")
    for user, how in users.items():
        print(f"    {user} {how}")
    for needed, how in needs.items():
        print(f"    {item.reference} {how.replace(' it', f' {needed}', 1)}")
    return {"item": item.reference, "bytes": usage.size if usage else None, "used_by": users, "depends_on": needs}


if __name__ == "__main__":
    exit_with(main)
