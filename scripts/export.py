"""Write a finetuned model for others to load, with its certificate."""

from scripts.command import main
from scripts.ending import end

if __name__ == "__main__":
    end(main, "export", resumable=True)
