"""Pass recordings through a model's codec and vocoder: the best that it can ever sound in this voice."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("resynthesize")
