"""Find the text of segments with a speech recogniser."""

from scripts.command import main
from scripts.ending import end

if __name__ == "__main__":
    end(main, "transcribe", resumable=True)
