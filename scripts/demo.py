"""The whole main job without a browser, on the built-in model and the demo dataset.

Runs download, prepare, tokenizer, extend, train, compare and export one after the other,
and writes WORKSPACE/demo/report.json.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from config.schema import CompareOptions, ExportOptions
from core.jobs import control
from core.jobs.directory import Job, create_job
from core.proof import certificate
from core.submission import demo_chain
from core.workspace import Workspace
from scripts.command import run_in_workspace, run_job, script_parser
from scripts.exit_codes import exit_with


def main() -> int:
    """Run the demo; the exit code of the first job that fails, or 0."""
    parser = script_parser("demo", __doc__, "end with the report as one line of JSON")
    return run_in_workspace(parser, None, lambda workspace, given: run(workspace, as_json=given.json))


def run(workspace: Workspace, *, as_json: bool = False) -> int:
    """The chain, then a comparison and an export, then the report."""
    made = demo_chain.create_chain(workspace)
    made += _afterwards(workspace, made[-1])
    for job in made:
        code = run_job(job)
        if code != 0:
            return code
    states = [control.read_state(job) for job in made]
    training = next(job for job in made if job.verb == "train")
    outcome = demo_chain.demo_report(states, certificate.read(training.directory / certificate.FILE))
    path = demo_chain.write_report(workspace, outcome)
    sys.stdout.write(f"\n{demo_chain.report_table(outcome)}\n\nThe report is {path}.\n")
    if as_json:
        sys.stdout.write(json.dumps(dataclasses.asdict(outcome), ensure_ascii=False) + "\n")
    return 0


def _afterwards(workspace: Workspace, training: Job) -> list[Job]:
    listening = demo_chain.demo_options("compare",
                                        CompareOptions).model_copy(update={"finetuned": f"run:{training.id}"})
    exporting = demo_chain.demo_options("export", ExportOptions).model_copy(
        update={"run": f"run:{training.id}", "export": f"demo-{training.id}"[:64]})
    return [
        create_job(workspace, "compare", listening, after=(training.id,)),
        create_job(workspace, "export", exporting, after=(training.id,)),
    ]


if __name__ == "__main__":
    exit_with(main)
