"""Learn new pieces, merge them into the base tokenizer and report; or one of the three alone."""

import sys

from scripts.command import main

if __name__ == "__main__":
    sys.exit(main("tokenizer"))
