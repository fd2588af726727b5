"""An evaluation whose clips are short noises, so that listening tests can be made from it without a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile

from config.schema import EvaluateOptions, ListeningTestOptions
from core import listening_test
from core.jobs.job import create_job
from core.library import evaluation_report, listening
from core.library.evaluation_report import EvaluatedClip, EvaluatedModel, EvaluationReport
from core.speech import evaluation_html
from core.workspace import Workspace
from tests.worlds import Listener

EVALUATION = "evaluation-of-two"
MODELS = ("base:tiny", "run:<b>first</b>", "recordings")
LEVELS = {"base:tiny": 0.02, "run:<b>first</b>": 0.3, "recordings": 0.9}


def evaluated_world(path: Path, sentences: int = 8, seconds: float = 0.45) -> Workspace:
    """A workspace with an evaluation of `MODELS`: noise at the levels and two rates."""
    workspace = Workspace.open(path)
    folder = create_job(workspace, "evaluate", EvaluateOptions(models=("base:tiny",)), job_id=EVALUATION).directory
    (folder / "audio").mkdir()
    noise, clips = np.random.default_rng(1), []
    for place, model in enumerate(MODELS):
        rate = 24_000 if model == "recordings" else 16_000
        for number in range(sentences):
            name = f"audio/{place}-am-{number:04d}.wav"
            soundfile.write(folder / name, LEVELS[model] * noise.uniform(-1, 1, round(seconds * rate)), rate)
            clips.append(EvaluatedClip(model, "am", number, f"ቃል {number} </script><img src=x>", "", "", 0, name, "",
                                       seconds, "", "", "stop", {"naturalness": (3.0, 1.0)}))
    report = EvaluationReport(1.0, 1.0, {}, {}, {}, tuple(EvaluatedModel(one, one) for one in MODELS), {}, (),
                              tuple(clips))
    evaluation_report.write(folder, report)
    evaluation_html.write(folder, report)
    return workspace


def make_test(workspace: Workspace, name: str, **options: object) -> tuple[Path, listening.ListeningTest]:
    """Folder and test of a new listening test of that evaluation."""
    wanted = ListeningTestOptions.model_validate({"evaluation": EVALUATION, **options})
    job = create_job(workspace, "listening_test", wanted, job_id=name)
    listening_test.run(wanted, workspace, Listener(job.directory))
    return job.directory, listening.read_test(job.directory)
