"""An evaluation on the built-in model: the report is what its files say, it resumes, and an export gets a copy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import jiwer
import librosa
import numpy as np
import pytest
import soundfile
from scipy.fft import dct

from config.arguments import to_arguments
from config.errors import UserError
from config.loading import parse_options
from config.schema import EvaluateOptions, ListeningTestOptions
from core import evaluate, export, listening_test
from core.jobs.state import JobState
from core.library import certificate, evaluation_report, listening, records
from core.library.evaluation_report import EvaluatedClip, EvaluationReport
from core.speech import measures
from core.workspace import Workspace
from scripts import command
from tests.trained import RUN, trained_world
from tests.worlds import Listener, export_options
from ui import media
from ui.evaluation import report_view

PACK = Path(__file__).resolve().parents[3] / "models" / "tiny" / "pack"
MODELS = ("base:tiny", "codec:tiny", "recordings")


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, Listener, EvaluateOptions]:
    workspace = Workspace.open(tmp_path_factory.mktemp("evaluated"))
    (workspace.models / "tiny").symlink_to(PACK)
    options = EvaluateOptions(models=MODELS, languages=("fr",), count=3, device="cpu")
    listener = Listener(workspace.runs / "evaluation")
    evaluate.run(options, workspace, listener)
    return workspace, listener, options


def report_of(listener: Listener) -> EvaluationReport:
    return evaluation_report.read(listener.directory)


def clips_of(listener: Listener, model: str) -> list[EvaluatedClip]:
    return [clip for clip in report_of(listener).clips if clip.model == model]


def test_error_and_distance_are_computed_again_from_the_files(
    evaluated: tuple[Workspace, Listener, EvaluateOptions],
) -> None:
    """By jiwer, librosa and scipy, from the transcripts and the audio that the report names."""
    listener = evaluated[1]
    report = report_of(listener)
    originals = {clip.sentence: clip for clip in clips_of(listener, "recordings")}
    for model in MODELS[:2]:
        clips = clips_of(listener, model)
        assert len(clips) == 3
        error = jiwer.cer([clip.reference for clip in clips], [clip.transcript for clip in clips])
        assert report.estimates[model]["fr"]["cer"].value == pytest.approx(error, abs=1e-6)
        distances = [distance(listener.directory / clip.audio, listener.directory / originals[clip.sentence].audio)
                     for clip in clips]
        assert report.estimates[model]["fr"]["mcd"].value == pytest.approx(np.mean(distances), rel=0.02)
        for metric, estimate in report.estimates[model]["fr"].items():
            numerators, denominators = np.array([clip.values[metric] for clip in clips if metric in clip.values]).T
            assert estimate.value == pytest.approx(numerators.sum() / denominators.sum(), rel=1e-3, abs=1e-6), metric
            assert estimate.low - 1e-9 <= estimate.value <= estimate.high + 1e-9, metric


def test_silence_is_counted_and_has_no_naturalness(evaluated: tuple[Workspace, Listener, EvaluateOptions]) -> None:
    """The clips of the base are there already, as of a stopped job, and silent."""
    workspace, first, options = evaluated
    assert report_of(first).estimates["base:tiny"]["fr"]["no_speech"].value == 0.0
    listener = Listener(workspace.runs / "silent")
    (listener.directory / "audio").mkdir()
    lines = []
    for line in (first.directory / evaluate._CLIPS).read_text("utf-8").splitlines():
        clip = json.loads(line)
        if clip["model"] == "base:tiny":
            path = listener.directory / clip["audio"]
            soundfile.write(path, np.zeros(16_000, np.float32), 16_000)
            lines.append(json.dumps({**clip, "sha256": evaluate._hash_file(path)}))
    (listener.directory / evaluate._CLIPS).write_text("\n".join(lines) + "\n", "utf-8")

    evaluate.run(options.model_copy(update={"models": ("base:tiny",)}), workspace, listener)
    measured = report_of(listener).estimates["base:tiny"]["fr"]
    assert measured["no_speech"].value == 1.0
    assert not {"naturalness", "similarity", "rate", "long_silence", "mcd"} & set(measured)


def distance(one: Path, other: Path) -> float:
    """Mel-cepstral distance in dB, by librosa's mel and path."""
    cepstra = []
    for path in (one, other):
        samples, rate = soundfile.read(path, dtype="float32")
        sounding = librosa.effects.trim(samples, top_db=60, frame_length=2048, hop_length=512)[0]
        mel = librosa.feature.melspectrogram(y=sounding, sr=rate, n_fft=1024, win_length=800, hop_length=160, n_mels=80,
                                             power=1.0, fmax=8000, pad_mode="reflect")
        log = np.log(np.maximum(mel, 1e-4))
        cepstra.append(dct(log, axis=0, norm="ortho")[1:14].T * np.sqrt(2 / 80))
    costs = 10 / np.log(10) * np.sqrt(2 * ((cepstra[0][:, None] - cepstra[1][None]) ** 2).sum(-1))
    path = librosa.sequence.dtw(C=costs)[1]
    return float(costs[path[:, 0], path[:, 1]].mean())


def test_the_report_is_whole(evaluated: tuple[Workspace, Listener, EvaluateOptions]) -> None:
    listener = evaluated[1]
    report = report_of(listener)
    assert {"cer", "wer", "similarity", "family_similarity", "naturalness", "mcd", "f0_range", "rate", "missing_stop",
            "repetition", "long_silence", "clipping", "real_time_factor"} <= set(report.estimates["base:tiny"]["fr"])
    assert "mcd" not in report.estimates["recordings"]["fr"]  # a recording is not compared with itself
    assert "real_time_factor" not in report.estimates["recordings"]["fr"]
    html = (listener.directory / evaluation_report.HTML).read_text(encoding="utf-8")
    assert html.count("data:audio/mpeg;base64,") == html.count("data:image/png;base64,") == 9
    assert "http" not in html.replace("http-equiv", "")  # it needs no other file
    text = (listener.directory / evaluation_report.MARKDOWN).read_text(encoding="utf-8")
    for title in (evaluation_report.METRICS[name].title for name in report.metrics("fr")):
        assert title in text
        assert title in html
    assert all((listener.directory / clip.audio).is_file() for clip in report.clips)
    rows = [json.loads(line) for line in (PACK / "held_out.jsonl").read_text(encoding="utf-8").splitlines()]
    speakers = {row["text"]: row["voice"] for row in rows if row["language"] == "fr"}
    voices = {clip.text: clip.voice for clip in clips_of(listener, "base:tiny")}
    assert voices == {text: speakers[text] for text in voices}  # each sentence in the voice of its recording
    assert set(voices.values()) == {"low", "high"}


def test_the_page_shows_the_report(evaluated: tuple[Workspace, Listener, EvaluateOptions]) -> None:
    report = report_of(evaluated[1])
    job = SimpleNamespace(workspace=evaluated[0])
    shown = report_view(cast(JobState, SimpleNamespace(id="evaluation", job=job)), report)
    assert shown.count('class="interval"') == sum(len(by["fr"]) for by in report.estimates.values())
    assert "French" in shown
    assert "<code>runs/evaluation/evaluation.html</code>" in shown
    assert shown.count("<audio") == 3 * len(MODELS)
    for clip in report.clips:
        assert media.url("runs", "evaluation", clip.audio) in shown


def test_a_second_run_makes_and_measures_nothing_again(evaluated: tuple[Workspace, Listener, EvaluateOptions],
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    workspace, listener, options = evaluated
    wanted = ListeningTestOptions(evaluation=listener.directory.name, kind="preference", count=2)
    folder = Listener(workspace.runs / "listening").directory
    listening_test.run(wanted, workspace, Listener(folder))
    test = listening.read_test(folder)
    answers = [{"trial": trial, "place": 0, "seconds": 1, "preference": "same"} for trial in test.rows[0]]
    listening.add_answers(workspace, json.dumps({"format": listening.FORMAT, "test": test.id, "sessions": [
        {"session": "0" * 32, "listener": "one", "row": 0, "answers": answers}]}).encode(), "answers")
    assert len(listening.update_report(workspace, listener.directory.name)) == 1
    before = report_of(listener)
    assert before.listening

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(evaluate, "join_chunks", refuse)
    monkeypatch.setattr(measures, "naturalness", refuse)
    evaluate.run(options, workspace, listener)
    again = report_of(listener)
    assert (again.clips, again.estimates, again.tests) == (before.clips, before.estimates, before.tests)
    assert again.listening == before.listening
    path = listener.directory / clips_of(listener, "base:tiny")[0].audio
    samples, rate = soundfile.read(path)
    soundfile.write(path, samples * 0.5, rate)  # another sound is made again, and measured by its own hash
    with pytest.raises(AssertionError):
        evaluate.run(options, workspace, listener)


def test_an_export_gets_the_report(tmp_path: Path) -> None:
    workspace = trained_world(tmp_path)
    options = EvaluateOptions(models=("base:tiny+romanised", f"run:{RUN}"), languages=("am",), count=1, device="cpu")
    first = Listener(workspace.runs / "first")
    evaluate.run(options, workspace, first)
    by_model = {clip.model: clip for clip in report_of(first).clips}
    assert by_model["base:tiny+romanised"].reading
    assert not by_model[f"run:{RUN}"].reading
    export.run(export_options(run=f"run:{RUN}", export="out"), workspace, Listener(workspace.runs / "export"))
    check_attached(workspace, f"run:{RUN}")
    evaluate.run(options.model_copy(update={"models": ("export:out",)}), workspace, Listener(workspace.runs / "second"))
    check_attached(workspace, "export:out")


def check_attached(workspace: Workspace, name: str) -> None:
    folder = workspace.export("out")
    records.check_export_files(folder)
    report = evaluation_report.read(folder / evaluation_report.FOLDER)
    assert name in [one.name for one in report.models]
    card = (folder / records.EXPORT_CARD).read_text(encoding="utf-8")
    assert card.count("## Evaluation") == card.count("## What was preserved") == 1
    assert f"`{name}`" in card
    checks = certificate.read(folder / certificate.CERTIFICATE).checks
    assert [one.result for one in checks if one.name == "evaluation"] == ["measured"]


def test_models_are_words_of_one_flag() -> None:
    words = ["--models", "base:tiny", "recordings", "--models", "run:a", "--languages", "am", "en"]
    given = command.build_parser("evaluate").parse_args(words)
    options = parse_options(EvaluateOptions, command.given_values(given, EvaluateOptions))
    assert (options.models, options.languages) == (("base:tiny", "recordings", "run:a"), ("am", "en"))  # type: ignore[attr-defined]
    again = command.build_parser("evaluate").parse_args(to_arguments(options))
    assert parse_options(EvaluateOptions, command.given_values(again, EvaluateOptions)) == options


@pytest.mark.parametrize(("changes", "message"), [
    ({"models": ("recordings",)}, "No model is named"),
    ({"models": ("base:tiny",), "languages": ("am",)}, "no sentences in Amharic"),
    ({"models": ("base:tiny",), "sentences": "missing.txt"}, "cannot be read"),
    ({"models": ("base:tiny", "folder:/missing")}, "There is no folder"),
    ({"models": ("base:tiny",), "recogniser": "built-in"}, "none of the models has a new language"),
])
def test_what_cannot_be_evaluated_is_refused(evaluated: tuple[Workspace, Listener, EvaluateOptions], tmp_path: Path,
                                             changes: dict[str, object], message: str) -> None:
    options = EvaluateOptions.model_validate({"languages": ("fr",), "count": 1, "device": "cpu", **changes})
    with pytest.raises(UserError, match=message) as caught:
        evaluate.run(options, evaluated[0], Listener(tmp_path))
    assert caught.value.hint


@pytest.mark.parametrize("name", ["tiny", "run:", "codec:", "http:x"])
def test_what_is_no_model_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="cannot be evaluated"):
        parse_options(EvaluateOptions, {"models": (name,)})


def test_voices_and_seeds_of_a_sentence_are_one_observation() -> None:
    clip = EvaluatedClip("a", "en", 0, "x", "", "low", 0, "x.wav", "", 1.0, "", "", "stop", {"cer": (1.0, 4.0)})
    clips = [clip, replace(clip, seed=1, values={"cer": (3.0, 4.0)}), replace(clip, sentence=1, values={"cer": (0, 2)})]
    estimates, tests = evaluate.summarise(clips, ("a",))
    found = estimates["a"]["en"]["cer"]
    assert (found.value, found.sentences, tests) == (0.4, 2, ())
    assert (found.low, found.high) == (0.0, 0.5)
