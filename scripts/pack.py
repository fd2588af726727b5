"""Pack an export or a run into one archive."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("pack")
