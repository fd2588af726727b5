"""A verb as a module: `python -m scripts.prepare` runs `python -m scripts prepare`, see `scripts/__init__.py`."""

from __future__ import annotations

if __name__ == "__main__":
    if __spec__ is None:  # it is run as a file, which names no verb
        print("This file is not a command. The commands: python -m scripts")
    else:
        from scripts.command import exit_with, run_verb

        exit_with(run_verb, __spec__.name.rpartition(".")[2])
