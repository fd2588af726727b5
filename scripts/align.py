"""Find where in a long recording its text is said, sentence by sentence, and cut clips there; also for subtitles."""

import sys

from scripts.command import main

if __name__ == "__main__":
    sys.exit(main("align", resumable=True))
