"""Train over a grid of options, rank the runs, and recommend one (`--grid FILE`, or `--search learning_rate`)."""

import scripts  # noqa: F401  so that this file can be run directly, see scripts/scripts.py
from config.loading import parse_options
from config.schema import SweepOptions
from core.jobs.state import JobState
from core.library import sweeps
from scripts.command import exit_with, run_verb


def show_ranking(state: JobState) -> int:
    """Print the ranking of a finished sweep and the command that goes on from each trial."""
    options = parse_options(SweepOptions, state.job.settings)
    record = sweeps.read_sweep(state.job.directory)
    if record is None:
        return 0

    print("Ranking, best first:")
    ranked = sweeps.rank(record, options)
    for place, trial in enumerate(ranked, 1):
        print(f"{place:3}. trial {record.number(trial)}, {trial.run}: {sweeps.summary(trial)}")
    print((state.result or {})["recommendation"])
    for trial in ranked:
        if trial.status == "finished":
            print(f"To train trial {record.number(trial)} further: "
                  f"{sweeps.further_command(options, trial, state.job.workspace)}")
    return 0


if __name__ == "__main__":
    exit_with(run_verb, "sweep", grade=show_ranking)
