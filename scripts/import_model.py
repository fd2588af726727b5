"""Import a checkpoint that was fine-tuned elsewhere as a run, which every other command takes."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("import_model")
