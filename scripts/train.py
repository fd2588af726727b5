"""Train the extended model on a dataset, or go on with a run (`--resume ID`)."""

import sys

from scripts.command import main

if __name__ == "__main__":
    sys.exit(main("train", resumable=True))
