"""A verb as a module: `python -m scripts.prepare` runs `python -m scripts prepare`, see `scripts/__init__.py`."""

from scripts.command import exit_with, run_verb

if __name__ == "__main__":
    assert __spec__ is not None
    exit_with(run_verb, __spec__.name.rpartition(".")[2])
