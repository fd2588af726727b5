"""Find the text of segments with a speech recogniser."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("transcribe")
