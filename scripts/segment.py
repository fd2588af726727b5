"""Cut long recordings without text into clips at their pauses, to be transcribed."""

import sys

from scripts.command import main

if __name__ == "__main__":
    sys.exit(main("segment", resumable=True))
