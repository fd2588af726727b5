"""Learn new pieces, merge them into the base tokenizer and report; or one of the three alone."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("tokenizer")
