"""Triton's kernels are interpreted on a machine without a GPU; what counts is the moment when triton is imported."""

import os
import shutil

if shutil.which("nvidia-smi") is None:
    os.environ["TRITON_INTERPRET"] = "1"
