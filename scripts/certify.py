"""Compute the certificate of a run (`--run run:ID`); `run:ID@STEP` chooses that checkpoint, and certifies it."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("certify")
