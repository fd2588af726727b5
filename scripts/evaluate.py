"""Measure models on the same sentences, and write a report with intervals and paired tests."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("evaluate")
