"""A workspace of a training that taught nothing, or one that is healthy, as a real worker would have left it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from config.schema import EvaluateOptions, ExportOptions, ResynthesizeOptions
from core.jobs.events import AudioGenerated, Finished, Queued, Started
from core.jobs.job import Job
from core.library import certificate, evaluation_report, learning, verification
from core.library.evaluation_report import EvaluatedClip, EvaluatedModel, EvaluationReport, MetricEstimate
from core.library.learning import Estimate, LearningMeasurements, LearningRecord, LearningReport, SpeechHealth
from core.library.reproduction import ReproductionMeasurements
from core.submission import job_chains
from core.submission.jobs import submit_certificate
from core.workspace import Workspace
from tests.browser import scenes

STEPS = 200
SILENT_WORDS = "Amharic: no speech (20 of 20 sentences are silent)"


def report(step: int, silent: bool) -> LearningReport:
    """What was measured at a step."""
    speech = SpeechHealth(20, 20 if silent else 0, 20 if silent else 0, 0, 0, 0, 20 if silent else 0,
                          0.01 if silent else 1.0, -60.0 if silent else -1.0)
    change = Estimate(-1.4, -1.6, -1.2, 40)
    return LearningReport.from_measurements(step, [LearningMeasurements(
        "am", False, change, change, Estimate(0.3 if silent else 4.0, 0.2, 5.0, 40), Estimate(0.2, 0.1, 0.3, 40),
        speech)])


def train(workspace: Workspace, *, silent: bool) -> Job:
    """The finished chain of the demo: its training, comparison, certificate, evaluation and export."""
    scenes.dataset(workspace)
    (workspace.models / "tiny" / "voices").mkdir(parents=True)  # the base that the certificate belongs to
    *before, training = job_chains.submit_chain(workspace, job_chains.ChainOptions(), certificate=False)
    for job in before:
        scenes.append(job, Queued(), Started(1, 1), Finished({"folder": job.id}))
    scenes.train(training, STEPS, STEPS)
    record = LearningRecord()
    for step in (100, STEPS):
        record = record.with_report(report(step, silent))
    learning.write_learning(training.directory, record)
    last = record.report(STEPS)
    outcome = {"learning": last.learning.value, "learning_outcome": learning.describe_report(last)}
    scenes.append(training, Finished({"run": training.id, "steps": STEPS, "best_step": STEPS, **outcome}))

    scenes.compare(workspace, training.id)
    scenes.certify(workspace, training.id)
    path = workspace.runs / training.id / certificate.CERTIFICATE
    proof = certificate.read(path)
    errors = tuple(error for error in proof.errors if not error.new) if silent else proof.errors
    certificate.write(path, dataclasses.replace(proof, errors=errors, new_languages=("am",)).with_learning(
        training.directory))
    certificate.write(path, verification.sign(workspace, certificate.read(path)))
    certify = submit_certificate(training)
    scenes.append(certify, Queued(), Started(1, 1), Finished({"run": f"run:{training.id}", "checks": 9, **outcome}))

    export = scenes.make(workspace, "export", ExportOptions(run=f"run:{training.id}", export="mine",
                                                            accept_learning=silent))
    scenes.append(export, Queued(), Started(1, 1), Finished(
        {"export": "mine", "path": "exports/mine", "ref": "export:mine", "prefix_rows": "passed", **outcome}))
    evaluate(workspace, training.id, silent=silent)
    return training


def evaluate(workspace: Workspace, run: str, *, silent: bool) -> None:
    """An evaluation of the run; of silence nothing is measured but that it is silence."""
    names = (f"run:{run}", "codec:tiny", "recordings")
    job = scenes.make(workspace, "evaluate", EvaluateOptions(models=names))
    estimates = {name: {"am": {"naturalness": MetricEstimate(value, value - 0.1, value + 0.1, 8),
                               "long_silence": MetricEstimate(0.0, 0.0, 0.0, 8)}}
                 for name, value in {names[0]: 2.4, "codec:tiny": 1.48, "recordings": 3.49}.items()}
    no_speech = MetricEstimate(float(silent), float(silent), float(silent), 8)
    estimates[names[0]]["am"] = {"no_speech": no_speech} if silent else {
        **estimates[names[0]]["am"], "no_speech": no_speech}
    clips = tuple(EvaluatedClip(name, "am", 0, scenes.SENTENCE, "", "", 0, "audio/0.wav", "", 1.0, "", "", "stop")
                  for name in names)
    models = tuple(EvaluatedModel(name, name, run if name.startswith("run:") else "",
                                  STEPS if name.startswith("run:") else None) for name in names)
    evaluation_report.write(job.directory, EvaluationReport(
        1.7e9, 12.0, {}, {}, {}, models, estimates, (), clips))
    scenes.append(job, Queued(), Started(1, 1), Finished({"clips": 24, "report": "evaluation.html"}))


def resynthesize(workspace: Workspace, dataset: str, similarity: float) -> Job:
    """The voice of a dataset through the built-in model."""
    job = scenes.make(workspace, "resynthesize", ResynthesizeOptions(dataset=dataset))
    scenes.append(job, Queued(), Started(1, 1))
    for index in range(3):
        for side in ("recording", "resynthesis"):
            path = Path("audio") / f"{index}-{side}.wav"
            scenes.tone(job.directory / path)
            scenes.append(job, AudioGenerated(side, index, path.as_posix(), scenes.SENTENCE, "am", 1.2))
    measured = ReproductionMeasurements.from_clips("tiny", "tiny", [similarity], [0.84], [1.9], [2.9])
    scenes.append(job, Finished(measured.to_result()))
    return job
