"""Import an archive of an export or a run."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("unpack")
