"""Write a reviewed dataset anew, with what was decided about its clips (`scripts.review`)."""

import sys

from scripts.command import main

if __name__ == "__main__":
    sys.exit(main("revise"))
