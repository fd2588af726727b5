"""Save a reviewed dataset under a new name, with the decisions about its clips (`scripts.review`)."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("revise")
