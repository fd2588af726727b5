"""Compare tokenizers of several sizes on a dataset's text, and map the characters that it covers."""

from scripts.command import main
from scripts.ending import end

if __name__ == "__main__":
    end(main, "lab")
