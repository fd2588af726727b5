"""Try a training on eight clips in about a minute: prepare, two steps, save, reload, speak."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("preflight")
