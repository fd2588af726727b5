"""Get a base model into the workspace."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("download")
