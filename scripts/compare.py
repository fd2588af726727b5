"""Speak the same texts with the base and the finetuned model, and judge both."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("compare")
