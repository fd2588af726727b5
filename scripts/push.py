"""Upload an export to a repository of the hub."""

import sys

from scripts.command import main

if __name__ == "__main__":
    sys.exit(main("push"))
