"""Speak a text."""

import sys

from scripts.command import main

if __name__ == "__main__":
    sys.exit(main("synthesize"))
