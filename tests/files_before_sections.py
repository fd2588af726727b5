"""Files of a run as they were written before the options of a training had sections."""

from __future__ import annotations

from pathlib import Path

import yaml

from config.schema import TrainOptions, without_sections


def write_without_sections(path: Path) -> None:
    """Write the options in a file of a run by their names alone."""
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    options = without_sections(TrainOptions, values["options"])
    assert options != values["options"]
    path.write_text(yaml.safe_dump({**values, "options": options}), encoding="utf-8")
