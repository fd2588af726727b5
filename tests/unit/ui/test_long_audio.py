"""Long recordings on the page: what its button asks for, and what is shown of what came of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from config.errors import UserError
from config.schema import AlignOptions, ClipOptions, SegmentOptions, TranscribeOptions
from core.jobs.job import Job
from core.jobs.state import JobState, Status
from core.library.segments import (
    PIECES,
    TYPED,
    SegmentClip,
    Segments,
    SegmentsCard,
    save_typed_text,
    write_card,
    write_clips,
)
from core.sources import source_preview
from core.submission.jobs import check_requirements
from core.workspace import Workspace
from data.importers import import_source
from ui import long_audio as page
from ui.live import View


def of(workspace: Workspace) -> page.Page:
    return SimpleNamespace(workspace=workspace)  # type: ignore[return-value]


def values(source: Path | str, **changes: object) -> dict:
    clips = {name: field.default for name, field in ClipOptions.model_fields.items()}
    return {"source": str(source), "language": "am", "kind": page.WITHOUT, "recogniser": "openai/whisper-small",
            "segments": "talks", "recogniser_language": "", "text": "", **clips, **changes}


def write_segments(workspace: Workspace, name: str = "talks") -> Segments:
    """Two clips, of which nobody knows the text yet."""
    folder = workspace.segments / name
    pieces = [SegmentClip(f"a-{number}", "audio/a.flac", 3.0 * number, 3.0 * number + 3, "a<b>.wav", 70.0 + number,
                          73.0)
              for number in range(2)]
    write_clips(folder / PIECES, pieces)
    write_card(folder, SegmentsCard(name, "am", "/in", "cut", {}, 1, 2, 6.0, 3600.0))
    return Segments.load(folder)


def test_without_a_text_recordings_are_cut_and_written_down(workspace: Workspace, tmp_path: Path) -> None:
    orders = page.jobs_to_start(of(workspace), values(tmp_path, max_clip_s="10", denoise="True"), keep=True)
    assert orders == [
        ("segment", SegmentOptions(source=str(tmp_path), segments="talks", language="am", max_clip_s=10, denoise=True)),
        ("transcribe", TranscribeOptions(segments="talks", recogniser="openai/whisper-small"))]


def test_without_a_recogniser_recordings_are_cut_and_their_texts_typed(workspace: Workspace, tmp_path: Path) -> None:
    orders = page.jobs_to_start(of(workspace), values(tmp_path, kind=page.BY_HAND, recogniser=""), keep=True)
    assert orders == [("segment", SegmentOptions(source=str(tmp_path), segments="talks", language="am"))]

    folder = write_segments(workspace).folder
    found = save_typed_text(folder, "a-1", " ሰላም  ለሁሉም ")
    assert [piece.text for piece in found.pieces()] == ["", "ሰላም ለሁሉም"]
    assert (found.card.texts, found.card.recogniser) == (1, TYPED)
    assert [piece.text for piece in save_typed_text(folder, "a-1", "").pieces()] == ["", ""]
    with pytest.raises(UserError, match="has no clip"):
        save_typed_text(folder, "b-9", "x")


def test_the_clip_whose_text_is_typed_is_played_from_its_place(workspace: Workspace) -> None:
    found = write_segments(workspace)
    shown = page.typed_clip_view(found, found.pieces(), 1, play=True)
    assert "media/segments/talks/audio/a.flac#t=3.000,6.000" in shown
    assert "Clip 2 of 2" in shown
    assert "autoplay" in shown
    assert "autoplay" not in page.typed_clip_view(found, found.pieces(), 0, play=False)


def test_with_a_text_they_are_aligned_and_a_pasted_text_is_kept(workspace: Workspace, tmp_path: Path) -> None:
    given = values(tmp_path, kind=page.WITH, recogniser="built-in", text="ሰላም ለሁሉም።\nእንዴት ነህ?")
    (verb, options), = page.jobs_to_start(of(workspace), given, keep=False)
    assert isinstance(options, AlignOptions)
    assert verb == "align"
    assert not Path(options.text).exists()
    (_, options), = page.jobs_to_start(of(workspace), given, keep=True)
    assert isinstance(options, AlignOptions)
    assert Path(options.text).read_text("utf-8") == "ሰላም ለሁሉም።\nእንዴት ነህ?\n"
    (_, options), = page.jobs_to_start(of(workspace), {**given, "text": "/in/a.srt"}, keep=True)
    assert isinstance(options, AlignOptions)
    assert options.text == "/in/a.srt"


@pytest.mark.parametrize("source", ["", "demo", "segments:talks"])
def test_what_are_no_long_recordings_is_refused(workspace: Workspace, source: str) -> None:
    with pytest.raises(UserError):
        page.jobs_to_start(of(workspace), values(source), keep=False)


def test_segments_and_what_to_listen_to_are_shown(workspace: Workspace) -> None:
    segments = write_segments(workspace)
    assert "none yet" in page.segments_view([segments])
    assert page.doubts_view(segments) == ""
    first, second = segments.pieces()
    told = [SegmentClip(**{**vars(first), "text": "<i>", "score": 0.2, "doubt": "the recogniser is 20% sure"}),
            SegmentClip(**{**vars(second), "text": "ሰላም", "score": 0.9})]
    segments = segments.save_texts(told, "built-in")
    shown = page.doubts_view(segments)
    assert "1 flagged clip of talks" in shown
    assert "1:10" in shown
    assert "the recogniser is 20% sure" in shown
    assert "<i>" not in shown
    assert "segments:talks" in page.segments_view([segments])
    assert "2, 1 flagged" in page.segments_view([segments])
    assert "2 of 1 h" in page.segments_view([segments])


def test_jobs_may_be_asked_for_one_after_another(workspace: Workspace, tmp_path: Path) -> None:
    names = {"segments": "talks", "language": "am"}
    with pytest.raises(UserError, match="There is no source"):
        check_requirements(workspace, "segment", SegmentOptions(source=str(tmp_path / "none"), **names))
    with pytest.raises(UserError, match="No source was given"):
        check_requirements(workspace, "align", AlignOptions(**names))
    with pytest.raises(UserError, match="There is no text"):
        check_requirements(workspace, "align",
                                        AlignOptions(source=str(tmp_path), text=str(tmp_path / "none.txt"), **names))
    with pytest.raises(UserError, match="There is no set of segments named 'talks'"):
        check_requirements(workspace, "transcribe", TranscribeOptions(segments="talks"))
    write_segments(workspace)
    assert check_requirements(workspace, "transcribe", TranscribeOptions(segments="talks")) == ()


def test_recordings_without_text_are_shown_the_way(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    with pytest.raises(UserError) as refused:
        import_source(tmp_path)
    assert "Long recordings on the Data tab" in refused.value.hint
    assert "it can be prepared once it has texts" in source_preview.preview("segments:talks", "am")[0]


def test_texts_wait_for_the_clips_also_where_clips_of_that_name_are_there(workspace: Workspace, tmp_path: Path) -> None:
    write_segments(workspace)
    given = values(tmp_path)
    clips = [name for name in given if name in ClipOptions.model_fields]
    queued: list[tuple[str, tuple[str, ...]]] = []

    def start(verb: str, options: object, after: list[str]) -> SimpleNamespace:
        queued.append((verb, tuple(after)))
        return SimpleNamespace(id=f"{verb}-1")

    stub = SimpleNamespace(workspace=workspace, start=start, started_notice=lambda job: "")
    said = page._start(stub, clips, *(given[name] for name in (*page._SHARED, *page._FIELDS,
                                                               *clips)))  # type: ignore[arg-type]
    assert said == [""], "the source is not changed yet"
    assert queued == [("segment", ()), ("transcribe", ("segment-1",))]


def test_clips_are_offered_as_the_source_when_they_have_texts_and_not_before(workspace: Workspace) -> None:
    segments = write_segments(workspace)
    job = Job(workspace.runs / "transcribe-1", "transcribe", "cpu", (), 1.0, {"segments": "talks"})
    moments: tuple[tuple[Status, bool, bool], ...] = (
        ("finished", False, False), ("running", True, False), ("finished", True, True))
    for status, texts, wanted in moments:
        if texts and not segments.card.texts:
            told = [SegmentClip(**{**vars(one), "text": "ሰላም"}) for one in segments.pieces()]
            segments = segments.save_texts(told, "built-in")
        view = View("data", {}, (JobState(job, status),))
        card = page.ready(of(workspace), view)
        assert (card is not None) == wanted
    assert "Use the 2 clips of talks" in str(page.offer(card, "/in"))
    assert "'visible': False" in str(page.offer(card, "segments:talks"))
