"""Speed and memory of the training options: the `options` part of the benchmark as a section of the experiments.

Measured on Chatterbox's shapes: the built-in model is too small to show effects on memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from config.errors import UserError
from core.workspace import Workspace
from scripts.dev.benchmark import options
from scripts.dev.experiments import report

NAME = "engine"
_MEMORY = ", peak memory with the model"


def measure(workspace: Workspace) -> None:
    """Run the benchmark in a subprocess, unless its result exists."""
    if _file(workspace).is_file():
        return
    command = [sys.executable, "-m", "scripts.dev.benchmark", "--only", options.PART, "--out",
               str(_file(workspace).parent)]
    code = subprocess.run(command, check=False).returncode
    if code:
        raise UserError(f"The benchmark ended with exit code {code}.", "Its reason stands above.")


def section(workspace: Workspace) -> str:
    """A heading and a table: speed against none of the options, and memory."""
    head = "## Cost of training options\n\n"
    if not _file(workspace).is_file():
        return f"{head}Not measured.\n"
    data = json.loads(_file(workspace).read_text(encoding="utf-8"))
    # Speed and memory are rows of their own in the benchmark's file.
    memory = {row["what"].removesuffix(_MEMORY): row["ours"] for row in data["rows"] if row["what"].endswith(_MEMORY)}
    rows = [["options", "tokens a second", "times as fast as none", "memory"]]
    rows += [[row["what"], f"{row['ours']['median']:.0f} ({row['ours']['least']:.0f} to {row['ours']['most']:.0f})",
              "1" if row["ratio"] is None else f"{row['ratio']:.2f}", f"{memory[row['what']]['median']:.2f} GiB"]
             for row in data["rows"] if row["unit"] == "tokens/s"]
    host = data["machine"]
    return (f"{head}Chatterbox's shapes and random weights and clips (`python -m scripts.dev.benchmark --only "
            f"{options.PART}`), interleaved in one run, on {host['device']} with {host['threads']} threads; load "
            f"average at the start {host['load']}; commit {host['commit']}.\n\n{report.table(rows)}\n")


def _file(workspace: Workspace) -> Path:
    return workspace.path / "experiments-engine" / "benchmark.json"
