"""Import a dataset, check it, split it, and cache its features."""

from scripts.command import main
from scripts.ending import end

if __name__ == "__main__":
    end(main, "prepare")
