"""Compare tokenizers of several sizes on a dataset's text, and map the characters that it covers."""

import sys

from scripts.command import main

if __name__ == "__main__":
    sys.exit(main("lab"))
