"""The whole main job without a browser, on the built-in model and the demo dataset.

Runs download, prepare, tokenizer, extend, train, compare, certify and export one after the other,
and writes WORKSPACE/demo/report.json.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import scripts  # noqa: F401  so that this file can be run directly, see scripts/scripts.py
from config.schema import CompareOptions, ExportOptions
from core.jobs import control
from core.library import certificate
from core.submission.job_chains import demo_options, submit_chain
from core.submission.jobs import submit
from core.workspace import Workspace
from scripts.command import exit_with, run_in_workspace, run_job, script_parser


def main() -> int:
    """Run the demo; the exit code of the first job that fails, or 0."""
    parser = script_parser("demo", __doc__, "end with the report as one line of JSON")
    return run_in_workspace(parser, None, lambda workspace, args: run(workspace, as_json=args.json))


def run(workspace: Workspace, *, as_json: bool = False) -> int:
    """The chain, then a comparison and an export, then the report; the exit code."""
    jobs = submit_chain(workspace, comparison=demo_options("compare", CompareOptions))
    *_, training, _comparison, proof = jobs
    exporting = demo_options("export", ExportOptions).model_copy(
        update={"run": f"run:{training.id}", "export": f"demo-{training.id}"[:64], "accept_learning": True})

    # The export waits for the certificate, and that for the training.
    jobs += submit(workspace, "export", exporting, after=(proof.id,))
    for job in jobs:
        code = run_job(job)
        if code != 0:
            return code

    made_proof = certificate.read(training.directory / certificate.CERTIFICATE)
    seconds = {job.verb: round(control.read_state(job).seconds, 1) for job in jobs}
    report: dict[str, Any] = {
        "run": made_proof.run, "step": made_proof.step, "scope": made_proof.scope,
        "errors": [dataclasses.asdict(error) for error in made_proof.errors],
        "checks": {check.name: check.result for check in made_proof.checks},
        "learning": made_proof.learning.value, "outcome": made_proof.describe(),
        "seconds": seconds, "total_seconds": round(sum(seconds.values()), 1),
    }

    path = workspace.path / "demo" / "report.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"\n{report_table(report)}\n\nThe report is {path}.")
    if as_json:
        print(json.dumps(report, ensure_ascii=False))
    return 0


def report_table(report: dict[str, Any]) -> str:
    """The character error rates as a Markdown table, then a line of checks and one of seconds."""
    rows = ["| language | before | after | original recordings | sentences |", "|---|---|---|---|---|"]
    for error in report["errors"]:
        rates = ["not measured" if error[name] is None else f"{100 * error[name]:.1f}%"
                 for name in ("before", "after", "recordings_cer")]
        rows.append(f"| {error['language']}{' (new)' if error['new'] else ''} | {' | '.join(rates)} "
                    f"| {error['sentences']} |")
    checks = ", ".join(f"{name} {result}" for name, result in report["checks"].items())
    stages = ", ".join(f"{verb} {seconds:.0f}" for verb, seconds in report["seconds"].items())
    seconds = f"Seconds: {stages}; {report['total_seconds']:.0f} in all."
    return "\n".join([*rows, "", report["outcome"], f"Checks: {checks}.", seconds])


if __name__ == "__main__":
    exit_with(main)
