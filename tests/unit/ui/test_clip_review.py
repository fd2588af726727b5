"""The review table on the page: what a row says, and that what is decided there is noted."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from config.errors import UserError
from core.dataset import review
from core.dataset.clip_index import FindingSummary, IndexedClip, build_index
from core.dataset.review import ReviewDecision, ReviewDecisions
from core.workspace import Workspace
from data import manifest
from data.clip_findings import AnalysedClip, ClipFinding
from data.manifest import ManifestClip, PreparedDataset
from data.measures import Measures
from ui import clip_review

GOOD = Measures(3.0, 24000, 0.7, 0.0, -20.0, 35.0, 0.1, 0.1, 10000.0, "")


def clip(number: int) -> ManifestClip:
    return ManifestClip(f"c{number}", f"audio/c{number}.wav", f"ሰላም {number}", "am", "train", 3.0, "one",
                        f"{number:064}")


@pytest.fixture
def page(workspace: Workspace) -> Any:
    """The part of a page that the table reads, over 25 clips of which the last is clipped."""
    folder = workspace.datasets / "d"
    (folder / "audio").mkdir(parents=True)
    clips = tuple(clip(number) for number in range(25))
    card = manifest.make_card("d", "am", "made", clips)
    manifest.save(folder, card, clips)
    loud = Measures(**{**vars(GOOD), "clipped_share": 0.2})
    spoken = [AnalysedClip(one.id, "ሰላም ሁሉ " * 3 + one.id, "one", loud if one.id == "c24" else GOOD) for one in clips]
    build_index(workspace, PreparedDataset(folder, card, clips), spoken, {"rules": "", "normaliser": "ethiopic"})
    return SimpleNamespace(workspace=workspace)


def view(**chosen: str) -> Any:
    return SimpleNamespace(values={"review.dataset": "d", "review.kind": "", "review.page": "1",
                                   **{f"review.{name}": value for name, value in chosen.items()}})


def test_a_page_that_is_none_is_the_nearest(page: Any) -> None:
    for asked, shown in (("2", 2), ("2.0", 2), ("100000000000000000000", 3), ("1e+21", 3), ("-1", 1), ("", 1)):
        assert f"Page {shown} of 3;" in clip_review._table(page, view(page=asked))


def test_a_dataset_that_was_not_measured_is_told_of_once(page: Any) -> None:
    shutil.copytree(page.workspace.datasets / "d", page.workspace.datasets / "other")
    card = page.workspace.datasets / "other" / "dataset.yaml"
    card.write_text(card.read_text().replace("fingerprint: ", "fingerprint: x"))
    other = view(dataset="other")
    with pytest.raises(UserError, match="measured"):
        clip_review._findings(page, other)
    assert clip_review._table(page, other) == clip_review._spread(page, other) == ""
    assert clip_review._kinds(page, other)["value"] == clip_review.ALL  # type: ignore[index]


def test_pages_stay_within_what_there_is(page: Any) -> None:
    for asked, number, count in (("1", 1, 10), ("3", 3, 5), ("3.0", 3, 5), ("99", 3, 5), ("", 1, 10), ("-4", 1, 10)):
        shown = clip_review._table(page, view(page=asked))
        assert f"Page {number} of 3; 25 clips." in shown
        assert shown.count("data-clip=") == count
    shown = clip_review._table(page, view(kind="clipping"))
    assert "Page 1 of 1; 1 clip." in shown
    assert re.findall('data-clip="([^"]*)"', shown) == ["c24"]


def test_a_row_escapes_what_it_shows() -> None:
    bad = ManifestClip("c", "audio/c.wav", "</textarea><script>alert(1)</script>", "am", "train", 3.0, "one", "0" * 64)
    found = (ClipFinding("pace", "error", "<b>2</b> letters", 1.0),)
    said = clip_review.clip_row("d", IndexedClip(0, bad, "x", GOOD, found), ReviewDecision("c", included=False))
    assert "<script>" not in said
    assert "<b>" not in said
    assert "excluded" in said
    assert "media/datasets/d/audio/c.wav" in said


def test_a_row_names_the_rate_as_the_findings_do() -> None:
    shown = clip_review.measurements(IndexedClip(0, clip(1), "ሰላም ለሁሉም", GOOD, ()))
    assert shown.endswith(f"· {7 / 2.8:.1f} letters a second")  # neither the space nor the silent ends


def test_a_waveform_is_drawn_from_the_peaks_and_its_silence_marked() -> None:
    outline = bytes([0] * 60 + [255] * 60).hex()
    measures = Measures(**{**vars(GOOD), "outline": outline, "silence_start_s": 1.5, "silence_end_s": 0.0})
    drawn = clip_review.waveform_view(IndexedClip(0, clip(1), "x", measures, ()))
    assert 'points="0,19.4 ' in drawn
    assert "119,0.0 119,40.0" in drawn
    assert 'x="0.0" y="0" height="40" width="59.5"' in drawn
    assert "No waveform" in clip_review.waveform_view(IndexedClip(0, clip(1), "x", GOOD, ()))


def test_decisions_of_the_page_are_noted_and_shown(page: Any) -> None:
    told(page, do="text", clip="c3", text="ሌላ ነገር")
    told(page, do="exclude", clip="c3")
    assert review.read_decisions(page.workspace, "d") == {"c3": ReviewDecision("c3", False, "ሌላ ነገር", "by hand")}
    told(page, do="include", clip="c3")
    assert review.read_decisions(page.workspace, "d")["c3"] == ReviewDecision("c3", True, "ሌላ ነገር")
    assert "Page 1 of 3; 25 clips." in clip_review._table(page, view())
    with pytest.raises(UserError, match="no clip 'c99'"):
        told(page, do="exclude", clip="c99")
    for nonsense in ("{", "[1]", '{"do": "dance"}'):
        with pytest.raises(UserError, match="command from the table"):
            clip_review.handle_command(page, "d", nonsense)


def test_what_was_pressed_is_for_the_dataset_that_was_on_the_page(page: Any) -> None:
    other = page.workspace.datasets / "other"
    shutil.copytree(page.workspace.datasets / "d", other)
    clip_review.handle_command(page, "other", json.dumps({"do": "exclude", "clip": "c3", "dataset": "d"}))
    assert set(review.read_decisions(page.workspace, "d")) == {"c3"}
    assert review.read_decisions(page.workspace, "other") == {}
    assert 'data-dataset="d"' in clip_review._findings(page, view())
    assert 'data-dataset="other"' in clip_review._table(page, view(dataset="other"))
    for name in ("gone", "../d"):
        with pytest.raises(UserError, match=r"There is no dataset named|was deleted"):
            clip_review.handle_command(page, "d", json.dumps({"do": "exclude", "clip": "c3", "dataset": name}))


def test_all_with_a_finding_are_decided_at_once_and_taken_back(page: Any) -> None:
    assert "Exclude 1 clip" in clip_review._findings(page, view())
    told(page, do="exclude-kind", kind="clipping")
    assert [one for one, made in review.read_decisions(page.workspace, "d").items() if not made.included] == ["c24"]
    shown = clip_review._findings(page, view())
    assert "1 excluded" in shown
    assert "Undo" in shown
    told(page, do="undo-kind", kind="clipping")
    assert all(made.included for made in review.read_decisions(page.workspace, "d").values())
    assert clip_review.handle_command(page, "d", json.dumps({"do": "show", "kind": "clipping"}))[1:] == ["clipping", 1]


def test_the_errors_of_a_kind_can_go_and_its_warnings_stay() -> None:
    kind = FindingSummary("pace", "error", 3, 1)
    shown = clip_review.findings_view("d", [kind], ReviewDecisions(), None)
    assert "1 error, 2 warnings" in shown
    assert re.findall(r">(Exclude[^<]*)<", shown) == ["Exclude the error", "Exclude all 3"]
    one_out = ReviewDecisions({"a": ReviewDecision("a", included=False, reason="pace")})
    assert re.findall(r">(Exclude[^<]*)<", clip_review.findings_view("d", [kind], one_out, None)) == ["Exclude all 3"]
    alike = clip_review.findings_view("d", [FindingSummary("pace", "warning", 1200, 0)], ReviewDecisions(), None)
    assert re.findall(r">(Exclude[^<]*)<", alike) == ["Exclude 1,200 clips"]


def test_who_excludes_clips_with_two_texts_reads_that_the_right_ones_go_too() -> None:
    shown = clip_review.findings_view("d", [FindingSummary("two texts", "error", 2, 2)], ReviewDecisions(), None)
    assert "the right one too" in shown


def test_errors_alone_are_excluded_and_taken_back(page: Any) -> None:
    clips = tuple(clip(number) for number in range(30))
    odd = {"c28": 6.0, "c29": 30.0}  # seconds: twice and ten times as slow as the others
    spoken = [AnalysedClip(one.id, "ሰላም ሁሉ " * 3 + one.id, "one", replace(GOOD, duration_s=odd.get(one.id, 3.0)))
              for one in clips]
    card = manifest.make_card("slow", "am", "made", clips)
    folder = page.workspace.datasets / "slow"
    folder.mkdir()
    manifest.save(folder, card, clips)
    build_index(page.workspace, PreparedDataset(folder, card, clips), spoken, {})
    kind = next(one for one in review.index_of(page.workspace, "slow").kinds() if one.kind == "pace")
    assert (kind.level, kind.count, kind.errors, kind.parts) == ("error", 2, 1, "1 error, 1 warning")
    told(page, do="exclude-errors", kind="pace", dataset="slow")
    assert [one for one, made in review.read_decisions(page.workspace, "slow").items() if not made.included] == ["c29"]
    told(page, do="exclude-kind", kind="pace", dataset="slow")
    assert review.read_decisions(page.workspace, "slow").excluded.total() == 2
    told(page, do="undo-kind", kind="pace", dataset="slow")
    assert review.read_decisions(page.workspace, "slow").excluded.total() == 0


def test_the_spread_of_the_clips_is_drawn(page: Any) -> None:
    drawn = clip_review._spread(page, view())
    for title in ("Duration", "Speaking rate", "Level", "Voice over noise", "Characters"):
        assert f"<h2>{title}</h2>" in drawn


def told(page: Any, **command: str) -> None:
    clip_review.handle_command(page, "d", json.dumps(command))
