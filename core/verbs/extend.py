"""What the verb `extend` refuses before its work, which is `core.extend`."""

from __future__ import annotations

from collections.abc import Mapping

from config.errors import UserError
from config.schema import ExtendOptions
from core.jobs.state import JobBoard
from core.library import records
from core.submission.requirements import check_named, check_not_being_made
from core.workspace import Workspace, free_name


def check(workspace: Workspace, options: ExtendOptions) -> None:
    _check_new_extension(workspace, options)
    check_named(options, "extension", "tokenizer")


def suggest_name(workspace: Workspace, settings: Mapping[str, str]) -> str:
    """A free name made of that of the tokenizer, or that of the extension with these settings."""
    like = [settings[name] for name in ("tokenizer", "initialisation", "seed")]
    return free_name(like[0], lambda name: is_other_extension(workspace, name, *like))


def is_other_extension(workspace: Workspace, name: str, tokenizer: str, initialisation: str, seed: str) -> bool:
    """Whether there is an extension `name` of another tokenizer, initialisation or seed, or one that is damaged."""
    if name not in workspace.list_extensions():
        return False
    try:
        record = records.read_extension(workspace.extensions / name)
    except UserError:
        return True
    return (record.tokenizer, record.initialisation, str(record.seed)) != (tokenizer, initialisation, seed)


def _check_new_extension(workspace: Workspace, options: ExtendOptions) -> None:
    """The name must be free, or that of an extension with the same options; no living job may be about to take it."""
    name = options.extension
    if is_other_extension(workspace, name, options.tokenizer, options.initialisation, str(options.seed)):
        raise UserError(f"There already is an extension named {name!r}, which was not made with these options.",
                        "Choose another extension name.")
    check_not_being_made(JobBoard(workspace).states(), "extension", name, options.model_dump())
