"""Upload an export to a repository of the hub."""

from scripts.command import main
from scripts.ending import end

if __name__ == "__main__":
    end(main, "push")
