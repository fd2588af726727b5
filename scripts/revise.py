"""Write a reviewed dataset anew, with what was decided about its clips (`scripts.review`)."""

from scripts.command import main
from scripts.ending import end

if __name__ == "__main__":
    end(main, "revise")
