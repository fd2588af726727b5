"""`--preset` and `--memory` of a training: what it sets is said before the start, and flags win over it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import get_args

from config.schema import TrainOptions
from core.jobs import gpus
from core.library import offers, presets
from core.workspace import Workspace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--preset", choices=("auto", *presets.NAMES),
                        help="options for so much speech; auto chooses by the dataset's hours; --config and flags win "
                             "over it (default: none, the options' own defaults)")
    parser.add_argument("--memory", choices=get_args(presets.Memory), default="auto",
                        help="the preset for a GPU of so many GB; auto takes the one found (default: %(default)s)")


def is_given(arguments: argparse.Namespace) -> bool:
    """Whether a preset was asked for; a memory class alone asks for one too."""
    return getattr(arguments, "preset", None) is not None or getattr(arguments, "memory", "auto") != "auto"


def preset_values(arguments: argparse.Namespace, above: Mapping[str, object], workspace: Workspace) -> dict[str,
                                                                                                            object]:
    """What the preset sets below the options `above`, printed first; `UserError` for an extension that is not there."""
    defaults = TrainOptions.model_fields
    extension, dataset = (str(above.get(name, defaults[name].default)) for name in ("extension", "dataset"))
    family = offers.family_of_extension(workspace, extension).name
    found = gpus.find_gpus() if above.get("device") != "cpu" else ()
    chosen = presets.choose(family, offers.speech_of(workspace, dataset), found, arguments.preset or "auto",
                            arguments.memory)
    print(f"Preset {chosen.name}: {chosen.words}")
    for reason in chosen.reasons:
        print(f"  {reason}")
    for name, value in chosen.values.items():
        instead = f" (here {above[name]})" if name in above and str(above[name]) != str(value) else ""
        print(f"  {name}: {value}{instead}")
    return dict(chosen.values)
