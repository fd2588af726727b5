"""Find where in a long recording its text is said, sentence by sentence, and cut clips there; also for subtitles."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("align")
