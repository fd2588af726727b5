"""Speak a text."""

from scripts.command import main
from scripts.ending import end

if __name__ == "__main__":
    end(main, "synthesize")
