"""Write a finetuned model for others to load, with its certificate."""

import sys

from scripts.command import main

if __name__ == "__main__":
    sys.exit(main("export", resumable=True))
