"""Steps of the demo's training in 50 s, alone and beside processes that compute all the time, by wait policy:

    python -m scripts.dev.benchmark.threads --workspace W [--seconds 50] [--rounds 3] [--wait 10] [--setting "A=1 B=2"]

W must hold the dataset and the extension of the demo. Each setting is a set of environment variables (without any:
what Lisan does by itself) and has a process of its own, which has loaded everything before the first window; windows of
all settings alternate. A window begins when other programs leave the cores alone, after at most --wait minutes. What
they took of the cores meanwhile stands beside the steps; a setting with more than 5% is measured again in the next
round. The busy processes run in sessions of their own, as if started in other terminals.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from config.schema import TrainOptions, with_values
from core import train, wait_policy
from core.submission.job_chains import demo_options
from core.workspace import Workspace
from scripts.command import exit_with
from scripts.dev.benchmark import machine

SETTINGS = ("GOMP_SPINCOUNT=300000", "", "OMP_NUM_THREADS=1", "OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0",
            "GOMP_SPINCOUNT=20000")  # the first is the default of the runtime
DISTURBED = 0.05  # share of the cores that other programs take
_TRAIN = "--train"
_QUIET_S = 3.0
_BUSY = "while True: pass"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a row for each window."""
    parser = argparse.ArgumentParser(prog="python -m scripts.dev.benchmark.threads", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=50, help="length of a window (default: %(default)g)")
    parser.add_argument("--rounds", type=int, default=1, help="at most (default: %(default)s)")
    parser.add_argument("--wait", type=float, default=0, help="minutes to wait for quiet cores (default: %(default)g)")
    parser.add_argument("--busy", type=int, default=1, help="processes beside the training (default: %(default)s)")
    parser.add_argument("--setting", action="append", help="environment variables; may be repeated")
    args = parser.parse_args(arguments)

    print(f"{machine.describe(torch.device('cpu'))}\n")
    print("| setting | beside | steps | seconds blocking | training | busy processes | other programs |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with ExitStack() as stack:
        trainings = [stack.enter_context(Training(setting, args.workspace))
                     for setting in args.setting or SETTINGS]
        for training in trainings:
            training.read()  # when everything is loaded
        planned_windows = [(training, busy) for busy in (0, args.busy) for training in trainings]
        for _ in range(args.rounds):
            # Windows that other programs disturbed are measured again.
            windows = [(training, busy, measure(training, busy, args.seconds, 60 * args.wait))
                       for training, busy in planned_windows]
            planned_windows = [(training, busy) for training, busy, other_share in windows if other_share > DISTURBED]
    return 0


@dataclass(frozen=True)
class CPUTimes:
    """Seconds of all cores that processes took so far."""

    all_s: float
    training_s: float
    busy_s: float

    @staticmethod
    def read(training: int, busy: Sequence[int]) -> CPUTimes:
        """The times now; `training` and `busy` are process ids."""
        user, nice, system, _idle, _iowait, irq, softirq = map(
            int, Path("/proc/stat").read_text().split("\n")[0].split()[1:8])
        return CPUTimes((user + nice + system + irq + softirq) / _TICKS_PER_S, _process_s(training),
                        sum(map(_process_s, busy)))

    def shares_since(self, start: CPUTimes, seconds: float) -> tuple[float, float, float]:
        """Shares of all cores that the training, the busy processes and other programs took."""
        core_s = seconds * (os.cpu_count() or 1)
        training_s, busy_s = self.training_s - start.training_s, self.busy_s - start.busy_s
        return (training_s / core_s, busy_s / core_s,
                max(0.0, self.all_s - start.all_s - training_s - busy_s) / core_s)


def _process_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


class Training:
    """A process that has loaded the demo's training and takes steps on request."""

    def __init__(self, setting: str, workspace: Path) -> None:
        self.setting = setting
        variables = dict(word.split("=", 1) for word in setting.split())
        inherited = {name: value for name, value in os.environ.items()
                     if name not in (*wait_policy.VARIABLES, "OMP_NUM_THREADS")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "scripts.dev.benchmark.threads", _TRAIN, str(workspace)],
            env={**inherited, **variables}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True)

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.kill()
        self.process.wait()

    def read(self) -> Mapping[str, float]:
        """What the process says."""
        assert self.process.stdout
        answer: Mapping[str, float] = json.loads(self.process.stdout.readline())
        return answer

    def begin(self, seconds: float) -> None:
        """Let it take steps for so long."""
        assert self.process.stdin
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()


def measure(training: Training, busy: int, seconds: float, wait_s: float) -> float:
    """Print the row of a window. Returns what other programs took of the cores."""
    wait_for_quiet_cores(training.process.pid, wait_s)
    processes = [subprocess.Popen([sys.executable, "-c", _BUSY], start_new_session=True) for _ in range(busy)]
    try:
        ids = [process.pid for process in processes]
        start, start_s = CPUTimes.read(training.process.pid, ids), time.monotonic()
        training.begin(seconds)
        time.sleep(seconds)
        shares = CPUTimes.read(training.process.pid, ids).shares_since(start, time.monotonic() - start_s)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    answer = training.read()
    print(f"| {training.setting or 'none'} | {busy} | {answer['steps']} | {answer['blocking_s']:.0f} | "
          f"{' | '.join(f'{share:.0%}' for share in shares)} |", flush=True)
    return shares[-1]


def wait_for_quiet_cores(training: int, wait_s: float) -> None:
    """Return when other programs leave the cores alone, or after `wait_s`."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        start = CPUTimes.read(training, ())
        time.sleep(_QUIET_S)
        if CPUTimes.read(training, ()).shares_since(start, _QUIET_S)[-1] <= DISTURBED:
            return


def take_steps(workspace: Path) -> None:
    """Load the demo's training; for each line with a number of seconds take steps for so long, and print how many.

    Outside of the windows the threads block, or some settings would load, and end their last step, for minutes.
    """
    team = wait_policy.IdleTeam()
    options = with_values(demo_options("train", TrainOptions), {"max_minutes": 0.0, "device": "cpu"})
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as after_window:
        reporter = train.SilentReporter(Path(folder))
        trainer = train.prepare_run(options, Workspace.open(workspace), reporter)[0].trainer
        print(json.dumps({"threads": torch.get_num_threads()}), flush=True)

        for line in sys.stdin:
            team.close()
            blocking_s, deadline, steps = wait_policy.blocking_s(), time.monotonic() + float(line), 0
            next_team = after_window.submit(_open_team_at, deadline)
            while time.monotonic() < deadline:
                trainer.train_step()
                steps += time.monotonic() <= deadline
            team = next_team.result()
            print(json.dumps({"steps": steps, "blocking_s": wait_policy.blocking_s() - blocking_s}), flush=True)


def _open_team_at(deadline: float) -> wait_policy.IdleTeam:
    time.sleep(max(0.0, deadline - time.monotonic()))
    return wait_policy.IdleTeam()


if __name__ == "__main__":
    if sys.argv[1:2] == [_TRAIN]:
        take_steps(Path(sys.argv[2]))
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that no process is left
        exit_with(main)
