"""Compare tokenizers of several sizes on a dataset's text, and map the characters that it covers."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("compare_tokenizers")
