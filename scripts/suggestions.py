"""Ways forward for people who come from other training programs: the nearest option, and their settings as ours."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from pathlib import Path

import scripts  # noqa: F401  so that this file can be run directly, see scripts/scripts.py
from config import foreign, foreign_settings

_NEAR = 0.75  # similarity of two names, of 1
_ELSEWHERE = {  # names in other training programs
    "--learning-rate": ("--row-lr", "--adapter-lr", "--layer-lr"), "--lr": ("--row-lr", "--adapter-lr", "--layer-lr"),
    "--epochs": ("--max-epochs",), "--num-epochs": ("--max-epochs",), "--num-train-epochs": ("--max-epochs",),
    "--max-steps": ("--steps",), "--warmup-steps": ("--warmup",), "--num-warmup-steps": ("--warmup",),
    "--grad-clip": ("--max-grad-norm",), "--grad-clip-val": ("--max-grad-norm",),
    "--grad-accumulation": ("--gradient-accumulation",), "--grad-accumulation-steps": ("--gradient-accumulation",),
    "--gradient-accumulation-steps": ("--gradient-accumulation",), "--save-every": ("--checkpoint-every",),
    "--save-steps": ("--checkpoint-every",), "--save-interval": ("--checkpoint-every",),
    "--val-interval": ("--validate-every",), "--eval-steps": ("--validate-every",),
    "--mel-loss-weight": ("--text-loss-weight",), "--output-dir": ("--name", "--workspace"),
    "--train-manifest": ("--dataset",), "--base-checkpoint": ("--extension",), "--lora-rank": ("--adapter-rank",),
    "--lora-r": ("--adapter-rank",), "--num-processes": ("--processes",), "--fp16": ("--precision",),
    "--bf16": ("--precision",), "--amp": ("--precision",), "--pretrained-model": ("--extension",),
}


def with_nearest(message: str, options: Collection[str]) -> str:
    """A message of argparse; for each unknown option in it, the known ones that are meant or nearest."""
    if not message.startswith("unrecognized arguments:"):
        return message

    hints = []
    flags = [option for option in options if option.startswith("--")]
    for unknown in re.findall(r"--[\w-]+", message):
        # Other programs write options with underscores.
        name = unknown.replace("_", "-").lower()
        # Names of other programs come before names that only look alike.
        meant = [option for option in _ELSEWHERE.get(name, ()) if option in options]
        nearest = meant or difflib.get_close_matches(name, flags, 2, _NEAR)
        if nearest:
            hints.append(f"{unknown} is not an option; {' or '.join(nearest)} may be meant.")
    return " ".join([message, *hints])


def foreign_settings_table(path: str) -> list[str]:
    """What each key of another program's settings corresponds to here; empty for a file of options of Lisan."""
    values = foreign.read_yaml(Path(path))
    if not foreign_settings.is_foreign(values):
        return []
    translation = foreign_settings.translate(values)
    return [f"{path} holds settings of another training program. Here they are:", *foreign_settings.table(translation)]


if __name__ == "__main__":
    print("This file is not a command. The commands: python -m scripts")
