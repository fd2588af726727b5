"""Read a book: M4B with chapters, MP3 per chapter, subtitles."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("book")
