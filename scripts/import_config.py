"""Show what the settings of another training program correspond to here, and write them as a preset.

The preset is a file of options for python -m scripts train --config FILE.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

import scripts  # noqa: F401  so that this file can be run directly, see scripts/scripts.py
from config import foreign_settings
from config.errors import UserError
from config.schema import TrainOptions, in_sections
from core.workspace import Workspace
from scripts.command import exit_with, run_in_workspace, script_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Translate a file; the exit code."""
    parser = script_parser("import_config", __doc__, "end with the options as one line of JSON")
    parser.add_argument("file", help="a YAML file of settings, such as training_config.yaml")
    parser.add_argument("--output", help="the preset to write; without it the table is only shown")
    return run_in_workspace(parser, arguments, translate)


def translate(_workspace: Workspace, args: argparse.Namespace) -> Mapping[str, Any]:
    """Show the table and write the preset; `UserError` if the file is none of another program."""
    translation = foreign_settings.read(Path(args.file))
    print("\n".join(foreign_settings.table(translation)))

    if args.output:
        target = Path(args.output)
        if target.exists():
            raise UserError(f"There already is a file {target}.", "Choose another name.")
        try:
            options = in_sections(TrainOptions, translation.options)
            target.write_text(yaml.safe_dump(options, sort_keys=False), encoding="utf-8")
        except OSError as error:
            raise UserError(f"{target} could not be written: {error.strerror}.", "Choose another folder.") from error
        print(f"Preset: {target}. Train with it: python -m scripts train --config {target}")

    return {"options": dict(translation.options), "preset": args.output or ""}


if __name__ == "__main__":
    exit_with(main)
