"""A worker whose `train` does what its extension's name says; run as `python -m tests.unit.fake_verbs`."""

import os
import signal
import sys
import time

from config.errors import UserError
from config.schema import TrainOptions
from core.jobs import worker
from core.jobs.events import CheckpointSaved, Evaluated, Progress, Result, Step
from core.jobs.reporter import Reporter, StopRequested
from core.workspace import Workspace

COMMAND = (sys.executable, "-m", "tests.unit.fake_verbs")


def step(number: int, total: int = 10, loss: float = 1.0) -> Step:
    return Step(number, total, loss, 2.0, {"rows": 0.1}, 1.0, 100.0, float(number))


def train(options: TrainOptions, workspace: Workspace, reporter: Reporter) -> Result:
    match options.extension:
        case "quick":
            for number in range(1, options.length.steps + 1):
                reporter.emit(step(number, options.length.steps))
            return {"steps": options.length.steps}
        case "patient":
            reporter.emit(Progress(1, 10, "clips"))
            while not reporter.stop_requested():
                time.sleep(0.01)
            raise StopRequested("Saved at step 7.")
        case "restarted":
            return _restarted(reporter)
        case "environment":
            return {"visible": os.environ.get("CUDA_VISIBLE_DEVICES")}
        case "resumable":
            return _resumable(options, reporter)
        case "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            reporter.emit(Progress(1, 10, "clips"))
            while True:
                time.sleep(0.01)
        case "wrong":
            raise UserError("The clip a.wav is missing.", "Put it back.")
        case "buggy":
            raise ZeroDivisionError("division by zero")
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "flaky":
            begun = reporter.directory / "begun"
            if not begun.exists():
                begun.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return {"steps": 1}
        case "exits":
            os._exit(7)
    raise AssertionError(options.extension)


def _restarted(reporter: Reporter) -> Result:
    """Runs until it is ended the first time, and to its end the second."""
    begun = reporter.directory / "begun"
    if begun.exists():
        return {"visible": os.environ.get("CUDA_VISIBLE_DEVICES")}
    begun.touch()
    reporter.emit(Progress(1, 10, "clips"))
    while not reporter.stop_requested():
        time.sleep(0.01)
    raise StopRequested("Saved at step 7.")


def _resumable(options: TrainOptions, reporter: Reporter) -> Result:
    """Takes up at the step after the last checkpoint; killed at step 5 the first time."""
    saved = sorted(int(path.name.removeprefix("step-")) for path in (reporter.directory / "checkpoints").glob("*"))
    for number in range(saved[-1] + 1 if saved else 1, options.length.steps + 1):
        reporter.emit(step(number, options.length.steps, loss=1 / number))
        if number % 3 == 0:
            (reporter.directory / "checkpoints" / f"step-{number:06d}").mkdir(parents=True)
            reporter.emit(Evaluated(number, 1 / number, {"am": 0.5}))
            reporter.emit(CheckpointSaved(number, f"checkpoints/step-{number:06d}", best=number == 3))
        if number == 5 and not saved:
            os.killpg(0, signal.SIGKILL)
    return {"resumed_at": saved[-1] if saved else 0}


if __name__ == "__main__":
    sys.exit(worker.main(sys.argv[1:], verbs={
        "train": train, "download": train, "preflight": train,
        "certify": lambda _options, _workspace, reporter: _restarted(reporter)}))
