"""Train a recogniser on a dataset, which measures speech in its language."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("recogniser")
