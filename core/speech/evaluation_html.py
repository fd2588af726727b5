"""The report of an evaluation as one HTML file that needs no other: tables, intervals, the worst clips, settings."""

from __future__ import annotations

import base64
import io
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path

import soundfile
import torch

from config.languages import language_name
from core.library.evaluation_report import (
    HTML,
    METRICS,
    EvaluatedClip,
    EvaluationReport,
    group_tables,
    interval_bar,
    listening_html,
    show,
    show_test,
)
from core.speech import clips
from data.acoustics import audio
from data.durable_files import write_text

WORST = 10  # clips of each model
_LONGEST_S = 30.0  # seconds of a clip that are drawn and played in the file
_STYLE = """
:root{color-scheme:light dark;--line:#8886;--ink:#126b5c}
body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2rem auto;padding:0 1rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{border-bottom:1px solid var(--line);padding:.35rem .7rem;text-align:left;vertical-align:top;white-space:nowrap}
.interval{width:120px;height:12px;display:block}.interval .scale{stroke:var(--line)}
.interval .range{stroke:var(--ink);stroke-width:3}.interval circle{fill:var(--ink)}
.clip{border:1px solid var(--line);border-radius:8px;padding:.7rem;margin:.7rem 0}.clip img{max-width:100%}
.clip p{margin:.2rem 0}audio{width:100%;max-width:420px}.small{font-size:13px;opacity:.8}
pre{white-space:pre-wrap;overflow-wrap:anywhere}
"""


def write(folder: Path, report: EvaluationReport) -> None:
    """Write `evaluation.html` beside the report's other files; `folder` has the audio of its clips."""
    body = "\n".join(_body(folder, report))
    write_text(folder / HTML, f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
                              f'<meta name="viewport" content="width=device-width, initial-scale=1">'
                              f"<title>Evaluation</title><style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n")


def _body(folder: Path, report: EvaluationReport) -> Iterator[str]:
    yield "<h1>Evaluation</h1>"
    yield ("<p>Estimates over sentences with 95% bootstrap intervals. Differences are paired by sentence, second minus "
           "first, with the p-value of a permutation test; p-values are not corrected for the number of tests.</p>")
    yield _list(f"<b>{escape(entry.name)}</b>: {escape(entry.about)}" for entry in report.models)

    # For each language: estimates, paired differences, and groups such as voices or categories.
    for language in report.languages():
        yield f"<h2>{escape(language_name(language))}</h2>"
        yield _table(report, language)
        tests = [test for test in report.tests if test.language == language]
        if tests:
            yield "<details><summary>Paired differences</summary>" + _list(
                f"{METRICS[test.metric].title}, {escape(test.second)} minus {escape(test.first)}: "
                f"{escape(show_test(test))}, {test.sentences} sentences" for test in tests) + "</details>"
        for title, head, rows in group_tables(report, language):
            names = "".join(f"<th>{escape(name)}</th>" for name in head)
            cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
            yield f'<h3>{title}</h3><div class="scroll"><table><tr>{names}</tr>{cells}</table></div>'

    # Votes of people, and the worst clips.
    yield listening_html(report.listening)
    for model in report.models:
        worst = report.worst(model.name, WORST)
        if worst:
            yield f"<h2>The worst {len(worst)} of {escape(model.name)}</h2>"
            yield from (_clip(folder, clip) for clip in worst)

    # How it was measured: instruments, definitions, notes and settings.
    yield "<h2>How it was measured</h2>"
    yield _list(f"<b>{escape(name)}</b>: {escape(text)}" for name, text in report.instruments.items())
    yield _list(f"<b>{metric.title}</b>: {metric.about}" for metric in METRICS.values())
    if report.notes:
        yield "<h2>Notes</h2>" + _list(map(escape, report.notes))
    settings = {**report.settings, **report.software, "seconds": report.seconds}
    lines = "\n".join(f"{name}: {value}" for name, value in settings.items())
    yield f"<h2>Settings</h2><pre>{escape(lines)}</pre>"


def _list(items: Iterator[str] | map[str]) -> str:
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def _table(report: EvaluationReport, language: str) -> str:
    names = [model.name for model in report.models if language in report.estimates.get(model.name, {})]
    rows = []
    for metric in report.metrics(language):
        estimates = {name: report.estimates[name][language][metric] for name in names
                     if metric in report.estimates[name][language]}
        all_estimates = list(estimates.values())
        cells = "".join(f"<td>{show(metric, estimates.get(name))}"
                        f"{interval_bar(metric, estimates[name], all_estimates) if name in estimates else ''}</td>"
                        for name in names)
        rows.append(f"<tr><th>{METRICS[metric].title}</th>{cells}</tr>")
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    return f'<div class="scroll"><table><tr><th></th>{head}</tr>{"".join(rows)}</table></div>'


def _clip(folder: Path, clip: EvaluatedClip) -> str:
    waveform, rate = audio.read(folder / clip.audio)
    waveform = waveform[:int(_LONGEST_S * rate)]
    with tempfile.NamedTemporaryFile(suffix=".png") as picture:
        clips.save_spectrogram(Path(picture.name), waveform, rate)
        drawn = base64.b64encode(Path(picture.name).read_bytes()).decode()
    values = ", ".join(f"{METRICS[name].title} {METRICS[name].show(clip.values[name][0] / clip.values[name][1])}"
                       for name in METRICS if name in clip.values and clip.values[name][1])
    reading = f'<p class="small">read as: {escape(clip.reading)}</p>' if clip.reading else ""
    transcript = (f'<p class="small">letters of the text: {escape(clip.reference)}<br>transcript: '
                  f"{escape(clip.transcript)}</p>") if clip.reference else ""
    language = escape(clip.language)
    sound = f'<audio controls preload="none" src="data:audio/mpeg;base64,{_mp3(waveform, rate)}"></audio>'
    return (f'<div class="clip"><p><b lang="{language}">{escape(clip.text)}</b> ({language})</p>{reading}{sound}'
            f'<img alt="Spectrogram" src="data:image/png;base64,{drawn}">{transcript}'
            f'<p class="small">{values}</p></div>')


def _mp3(waveform: torch.Tensor, rate: int) -> str:
    """The clip as MP3, which every browser plays and which is a tenth of its WAV file."""
    file = io.BytesIO()
    soundfile.write(file, audio.to_numpy(waveform), rate, format="MP3")
    return base64.b64encode(file.getvalue()).decode()
