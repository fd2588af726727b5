"""What the demo came to, as one JSON file: errors, verdicts, seconds. Never loads torch.

Every number is read from the run's certificate and journal; nothing is computed here.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from core.job.state import JobState
from core.proof.certificate import Certificate, LanguageError
from core.workspace import Workspace


@dataclass(frozen=True)
class DemoReport:
    """The demo's outcome; errors are shares of letters, 0 to about 1."""

    run: str
    step: int  # of the checkpoint that was chosen by judged speech
    scope: str
    errors: tuple[LanguageError, ...]
    verdicts: dict[str, str]  # check of the certificate -> passed, failed, measured or skipped
    seconds: dict[str, float]  # verb -> seconds
    total_seconds: float


def report(states: Sequence[JobState], certificate: Certificate) -> DemoReport:
    """Gather the report from the demo's finished jobs and the run's certificate."""
    seconds = {state.verb: round(state.seconds, 1) for state in states}
    verdicts: dict[str, str] = {check.name: check.result for check in certificate.checks}
    return DemoReport(certificate.run, certificate.step, certificate.scope, certificate.errors, verdicts, seconds,
                      round(sum(seconds.values()), 1))


def write(workspace: Workspace, made: DemoReport) -> Path:
    """Write `WORKSPACE/demo/report.json`."""
    path = workspace.path / "demo" / "report.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dataclasses.asdict(made), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return path


def table(made: DemoReport) -> str:
    """The report as a Markdown table, and a line of verdicts."""
    rows = ["| language | before | after | original recordings | sentences |", "|---|---|---|---|---|"]
    for error in made.errors:
        shown = [_percent(value) for value in (error.before, error.after, error.original)]
        rows.append(f"| {error.language}{' (new)' if error.new else ''} | {' | '.join(shown)} | {error.sentences} |")
    verdicts = ", ".join(f"{name} {result}" for name, result in made.verdicts.items())
    stages = ", ".join(f"{verb} {seconds:.0f}" for verb, seconds in made.seconds.items())
    return "\n".join([*rows, "", f"Checks: {verdicts}.", f"Seconds: {stages}; {made.total_seconds:.0f} in all."])


def _percent(value: float | None) -> str:
    return "not judged" if value is None else f"{100 * value:.1f}%"
