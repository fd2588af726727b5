"""Cut long recordings without text into clips at their pauses, to be transcribed."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("segment")
