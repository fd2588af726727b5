"""Write a finetuned model for others to load, with its certificate."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("export")
