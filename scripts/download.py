"""Get a base model into the workspace."""

import sys

from scripts.command import main

if __name__ == "__main__":
    sys.exit(main("download", resumable=True))
