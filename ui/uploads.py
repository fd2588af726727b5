"""What is shown of recordings before their import: the assessment, clips to play, the voice through the model."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import time
import zipfile
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

from config.errors import UserError
from config.languages import language_name
from config.schema import ResynthesizeOptions
from core.jobs.reporter import duration_text, pluralize
from core.jobs.state import JobState
from core.library import presets
from core.library.catalog import find_entry
from core.library.reproduction import Reproduction, ReproductionMeasurements
from core.sources import source_assessment
from core.sources.dataset_source import demo_dataset
from core.sources.source_assessment import SourceAssessment
from core.text import text_rules
from core.workspace import Workspace
from ui import job_views, media
from ui.form import parse
from ui.live import View
from ui.markup import NOTHING, Html, div, element, join, paragraph, player, span
from ui.page import Page

RECORDING, RESYNTHESIS = "recording", "resynthesis"
"""The sides of the clips of a `resynthesize` job."""
_MAX_AGE_S = 24 * 3600.0
_LITTLE_SPEECH_S = 1800.0
_TEMPLATE = "clip1.wav|The sentence that is spoken in clip1.wav\nclip2.wav|The sentence of clip2.wav\n"
_EXAMPLE_CLIPS = 3


def format_help() -> Html:
    """Which recordings are wanted, with an example and a template."""
    return paragraph(
        "A ZIP with the recordings and a table ", element("code", "metadata.csv"), ", a line for each clip: file|text. "
        "30 minutes or more, clips of 2 to 12 s, one voice, little noise. ",
        element("a", "Example (ZIP)", href=f"{media.EXAMPLE}/example.zip", download=True), " · ",
        element("a", "Template (CSV)", href=f"{media.EXAMPLE}/metadata.csv", download=True),
        " · subtitles, Common Voice, Kaldi and others are recognised too.", class_="small")


@lru_cache(maxsize=1)
def example_archive() -> bytes:
    """Three clips of the included demo with their table, as a ZIP."""
    folder, buffer = demo_dataset("am"), io.BytesIO()
    clips = source_assessment.demo_clips(_EXAMPLE_CLIPS)
    with zipfile.ZipFile(buffer, "w", strict_timestamps=False) as archive:
        archive.writestr("metadata.csv", "".join(f"{path.name}|{text}\n" for path, text in clips))
        for path, _ in clips:
            archive.write(folder / path, f"wavs/{path.name}")
    return buffer.getvalue()


def template() -> bytes:
    """A table to fill in."""
    return _TEMPLATE.encode()


EXAMPLES: Mapping[str, Callable[[], bytes]] = {"example.zip": example_archive, "metadata.csv": template}
"""The files under `media.EXAMPLE`, by name."""


def assessment_view(workspace: Workspace, source: str, language: str) -> Html:
    """The assessment of a source that can be read at once; nothing for one that only the import reads."""
    source = source.strip()
    if not source or source == "demo":
        return NOTHING
    key = source_key(source)
    assessment = _assess(source, language, key, workspace)
    return _assessment_view(assessment, key, language) if assessment is not None else NOTHING


def source_key(source: str) -> str:
    """A name of the source in its present state, for the files of its clips."""
    path = Path(source)
    stamp = path.stat().st_mtime_ns if path.exists() else 0
    return hashlib.blake2b(f"{source} {stamp}".encode(), digest_size=8).hexdigest()


@lru_cache(maxsize=16)
def _assess(source: str, language: str, key: str, workspace: Workspace) -> SourceAssessment | None:
    home = workspace.path / media.PLAYED_FOLDER
    if home.is_dir():
        for old in home.iterdir():
            if re.fullmatch(r"[0-9a-f]{16}", old.name) and time.time() - old.stat().st_mtime > _MAX_AGE_S:
                shutil.rmtree(old, ignore_errors=True)
    return source_assessment.assess(source, language, home / key)


def _assessment_view(assessment: SourceAssessment, key: str, language: str) -> Html:
    """Amount, findings and three players."""
    duration = f", about {duration_text(assessment.duration_s)}" if assessment.duration_s is not None else ""
    amount = f"{pluralize(assessment.clips, 'clip')}{duration}{'' if assessment.is_whole else ' (the first ones)'}"
    # One speaker is the ordinary case and is not mentioned.
    speakers = f", {pluralize(assessment.speakers, 'speaker')}" if assessment.speakers > 1 else ""
    lines = findings(assessment, language)
    tone = "wait" if lines else "info"
    # Listening to three clips shows whether sound and text belong together.
    players = [div("heard", paragraph(clip.text, class_="small"),
                   player(media.played_url(key, clip.path), f"Recording: {clip.text}")) for clip in assessment.played]
    return div(f"notice {tone}", element("strong", f"{amount}{speakers}"),
               element("ul", *(element("li", line) for line in lines), class_="findings") if lines else NOTHING,
               div("players", *players) if players else NOTHING, data_assessment=key)


def findings(report: SourceAssessment, language: str) -> list[str]:
    """What is odd about an upload, a sentence each, the gravest first."""
    lines, measured = list[str](), f"of {report.measured} measured clips"

    # Unreadable recordings and too little speech come first, as training fails with them.
    if report.unreadable:
        lines.append(f"{report.unreadable} of {report.measured + report.unreadable} recordings cannot be read.")
    if report.duration_s is not None and report.is_whole and report.duration_s < _LITTLE_SPEECH_S:
        least = duration_text(presets.MIN_TRAIN_SPEECH_S)
        lines.append(f"Little speech: {least} is the least that has worked, 30 minutes or more is better.")

    # These findings are about how the clips were recorded and cut.
    if report.silent_edges:
        lines.append(f"{report.silent_edges} {measured} begin or end with silence, which a model learns as speech: "
                     "“Clean up” cuts it.")
    if report.quiet:
        lines.append(f"{report.quiet} {measured} are very quiet: record closer to the microphone, or louder.")
    if report.clipped:
        lines.append(f"{report.clipped} {measured} are clipped: the recording level was too high.")
    if report.short or report.long:
        lines.append(f"{report.short + report.long} {measured} are shorter than 2 s or longer than 12 s.")

    # The last findings are about the texts.
    if report.with_digits:
        texts = f"{pluralize(report.with_digits, 'text')} ha{'s' if report.with_digits == 1 else 've'} digits"
        name = language_name(language) if language else "the language"
        lines.append(f"{texts}: written out by the number rules of {name}." if language and text_rules.ships(language)
                     else f"{texts}, and there are no number rules for {name}: write them out as words." if language
                     else f"{texts}: whether they can be read depends on the language.")
    if report.rare_characters:
        lines.append(f"Letters that occur once or twice, too seldom to be learned: {' '.join(report.rare_characters)}")

    return lines


def newest_reproduction(view: View, model: str, source: str = "", dataset: str = "") -> JobState | None:
    """The newest job that passed these recordings through this model."""
    for state in view.jobs:
        settings = state.job.settings
        if state.verb == "resynthesize" and settings.get("model") == model and (
                (source and settings.get("source") == source) or (dataset and settings.get("dataset") == dataset)):
            return state
    return None


def can_reproduce_now(workspace: Workspace, model: str) -> bool:
    """Whether the model is here, or ships with the app."""
    try:
        return ":" in model or model in workspace.list_models() or not find_entry(model).variants
    except UserError:
        return False


def start_reproduction(page: Page, model: str, source: str = "", language: str = "", dataset: str = "") -> None:
    """Queue the measurement of a voice through a model, once for each source or dataset."""
    if not can_reproduce_now(page.workspace, model):
        return
    view = View("", {}, tuple(page.live.board.states()))
    state = newest_reproduction(view, model, source, dataset)
    if state is not None and (state.alive or state.status == "finished"):
        return
    page.start("resynthesize", parse(ResynthesizeOptions, {"source": source, "dataset": dataset, "language": language,
                                                           "model": model}))


def reproduction_view(state: JobState | None) -> Html:
    """The voice and the best that the model can make of it: two players a clip, similarity and naturalness."""
    if state is None:
        return NOTHING
    if state.status != "finished":
        return job_views.job_card(state, "Your voice through this model")
    measured = ReproductionMeasurements.from_result(state.result)
    if measured is None:
        return NOTHING
    tone = {Reproduction.REPRODUCED: "good", Reproduction.NOT_REPRODUCED: "bad",
            Reproduction.NOT_MEASURED: "unsure"}[measured.reproduction]
    advice = measured.advise()
    banner = div(f"verdict {tone}", element("strong", measured.headline), paragraph(measured.values),
                 paragraph(advice) if advice else NOTHING,
                 role="alert" if tone == "bad" else "status")

    # Each clip has two players, the recording and its resynthesis.
    by_clip: dict[int, dict[str, Html]] = {}
    for clip in state.audio:
        title = {RECORDING: "The recording", RESYNTHESIS: "The best this model can do"}.get(clip.side, clip.side)
        by_clip.setdefault(clip.index, {})[clip.side] = div("heard", span("small", title), player(
            media.url("runs", state.id, clip.path), f"{title}: {clip.text}"))
    pairs = [div("players", *(sides[side] for side in (RECORDING, RESYNTHESIS) if side in sides))
             for sides in by_clip.values()]
    return join((banner, *pairs))
