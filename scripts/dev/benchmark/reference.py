"""The published package in a subprocess that answers requests (lines of JSON), so that measurements can be interleaved.

It has its own environment (`make reference`); nothing of it is imported here. The subprocess runs `published.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from config.errors import UserError

VARIABLE, DEFAULT = "LISAN_REFERENCE", Path(".reference/bin/python")
_PROGRAM = Path(__file__).with_name("published.py")
_LOG_TAIL = 2000  # characters


def interpreter() -> Path:
    """The Python that has the package: LISAN_REFERENCE, or what `make reference` makes."""
    path = Path(os.environ.get(VARIABLE) or DEFAULT)
    if not path.is_file():
        raise UserError(f"There is no {path} to run the published package with.",
                        f"Make it by `make reference`, or name another one in {VARIABLE}.")
    return path


class PublishedPackage:
    """A running package; ends with the `with` block."""

    def __init__(self, threads: int, device: str, log: Path, program: Sequence[str] | None = None) -> None:
        """`log` is the file for the package's output; tests replace `program`."""
        command = list(program or (str(interpreter()), str(_PROGRAM)))
        self._log = log
        with log.open("w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                             text=True)
        self.ask("start", threads=threads, device=device)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 where: TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.terminate()
        self._process.wait()
        self._process.stdout.close()

    def ask(self, verb: str, **given: object) -> Mapping[str, float]:
        """Send a request; its answer in numbers, times in seconds; `UserError` if it fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": verb, **given}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        answer = json.loads(line) if line else {"error": "it ended"}
        if "error" in answer:
            tail = self._log.read_text("utf-8", "replace")[-_LOG_TAIL:].strip()
            raise UserError(f"The published package failed at {verb!r}: {answer['error']}", f"Its last output: {tail}")
        return {name: float(value) for name, value in answer.items()}
