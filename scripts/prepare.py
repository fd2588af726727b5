"""Import a dataset, check it, split it, and cache its features."""

import sys

from scripts.command import main

if __name__ == "__main__":
    sys.exit(main("prepare"))
