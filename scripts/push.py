"""Upload an export to a repository of the hub."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("push")
