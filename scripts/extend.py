"""Give the base model rows for the new tokens."""

import sys

from scripts.command import main

if __name__ == "__main__":
    sys.exit(main("extend"))
