"""Train the extended model on a dataset, or resume a run (`--resume ID`).

Over several machines: `torchrun --nnodes N --nproc-per-node M ... -m scripts.train ...`; the workspace is shared.
"""

import argparse
import os

from scripts.command import DEFAULT_WORKSPACE, exit_with, run_script


def other_rank() -> int:
    """The ranks of torchrun but the first: they run the loop of rank 0 and write nothing."""
    from core import train  # loads torch

    parser = argparse.ArgumentParser()
    parser.add_argument("--workspace", default=DEFAULT_WORKSPACE)
    return train.main([parser.parse_known_args()[0].workspace])


if __name__ == "__main__":
    if int(os.environ.get("RANK", "0")) > 0:
        exit_with(other_rank)
    run_script("train")
