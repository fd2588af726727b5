"""Give the base model rows for the new tokens."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("extend")
