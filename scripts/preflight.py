"""Try a training on eight clips in about a minute: prepare, two steps, save, reload, speak."""

from scripts.command import main
from scripts.ending import end

if __name__ == "__main__":
    end(main, "preflight")
