"""Find the text of segments with a speech recogniser."""

import sys

from scripts.command import main

if __name__ == "__main__":
    sys.exit(main("transcribe", resumable=True))
