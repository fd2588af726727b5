"""`app.py` on a machine that a test made up: `python -m tests.studio_app DEVICE_FILES ARGUMENTS...`.

GPUs are those whose files lie in the folder DEVICE_FILES, and resumed jobs run the verbs of `tests.unit.fake_verbs`.
"""

import sys
from functools import partial
from pathlib import Path

import app
from core.jobs import job, unattended
from tests.unit.fake_verbs import COMMAND

if __name__ == "__main__":
    job.DEVICE_FILES = Path(sys.argv[1])
    app.RestartOffer = partial(unattended.RestartOffer, command=COMMAND)  # type: ignore[misc, assignment]
    sys.exit(app.main(sys.argv[2:]))
