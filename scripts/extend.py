"""Give the base model rows for the new tokens."""

from scripts.command import main
from scripts.ending import end

if __name__ == "__main__":
    end(main, "extend")
