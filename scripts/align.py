"""Find where in a long recording its text is said, sentence by sentence, and cut clips there; also for subtitles."""

from scripts.command import main
from scripts.ending import end

if __name__ == "__main__":
    end(main, "align", resumable=True)
