"""Speak the same texts with the base and the finetuned model, and judge both."""

from scripts.command import main
from scripts.ending import end

if __name__ == "__main__":
    end(main, "compare")
