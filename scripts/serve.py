"""Serve models over OpenAI's speech API."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("serve")
