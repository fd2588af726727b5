"""Learn new pieces, merge them into the base tokenizer and report; or one of the three alone."""

from scripts.command import main
from scripts.ending import end

if __name__ == "__main__":
    end(main, "tokenizer")
