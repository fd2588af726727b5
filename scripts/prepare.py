"""Import a dataset, check it, split it, and cache its features."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("prepare")
