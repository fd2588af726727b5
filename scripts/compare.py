"""Speak the same texts with the base and the finetuned model, and judge both."""

import sys

from scripts.command import main

if __name__ == "__main__":
    sys.exit(main("compare"))
