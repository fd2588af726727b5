"""Cut long recordings without text into clips at their pauses, to be transcribed."""

from scripts.command import main
from scripts.ending import end

if __name__ == "__main__":
    end(main, "segment", resumable=True)
