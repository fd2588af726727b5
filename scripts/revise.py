"""Write a reviewed dataset anew, with what was decided about its clips (`scripts.review`)."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("revise")
