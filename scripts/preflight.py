"""Try a training on eight clips in about a minute: prepare, two steps, save, reload, speak."""

import sys

from scripts.command import main

if __name__ == "__main__":
    sys.exit(main("preflight"))
