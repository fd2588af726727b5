"""The review table on the page: what a row says, and that what is decided there is noted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from config.errors import UserError
from core import review
from core.dataset.clip_index import Judged, build
from core.review import Decision
from core.workspace import Workspace
from data import manifest
from data.clip_findings import ClipFinding, Spoken
from data.manifest import Clip, Dataset
from data.measures import Measures
from ui import review as page_review

GOOD = Measures(3.0, 24000, 0.7, 0.0, -20.0, 35.0, 0.1, 0.1, 10000.0, "")


def clip(number: int) -> Clip:
    return Clip(f"c{number}", f"audio/c{number}.wav", f"ሰላም {number}", "am", "train", 3.0, "one", f"{number:064}")


@pytest.fixture
def page(workspace: Workspace) -> Any:
    """The part of a page that the table reads, over 25 clips of which the last is clipped."""
    folder = workspace.datasets / "d"
    (folder / "audio").mkdir(parents=True)
    clips = tuple(clip(number) for number in range(25))
    card = manifest.make_card("d", "am", "made", clips)
    manifest.save(folder, card, clips)
    loud = Measures(**{**vars(GOOD), "clipped_share": 0.2})
    spoken = [Spoken(one.id, "ሰላም ሁሉ " * 3 + one.id, "one", loud if one.id == "c24" else GOOD) for one in clips]
    build(workspace, Dataset(folder, card, clips), spoken, {"rules": "", "normaliser": "ethiopic"})
    return SimpleNamespace(workspace=workspace)


def view(**chosen: str) -> Any:
    return SimpleNamespace(chosen={"review.dataset": "d", "review.kind": "", "review.page": "1",
                                   **{f"review.{name}": value for name, value in chosen.items()}})


def test_pages_stay_within_what_there_is(page: Any) -> None:
    for asked, number, count in (("1", 1, 10), ("3", 3, 5), ("3.0", 3, 5), ("99", 3, 5), ("", 1, 10), ("-4", 1, 10)):
        shown, now, total = page_review._shown(page, view(page=asked))
        assert (now, len(shown), total) == (number, count, 25)
    shown, _, total = page_review._shown(page, view(kind="clipping"))
    assert ([one.clip.id for one in shown], total) == (["c24"], 1)


def test_a_row_escapes_what_it_shows() -> None:
    bad = Clip("c", "audio/c.wav", "<script>alert(1)</script>", "am", "train", 3.0, "one", "0" * 64)
    found = (ClipFinding("pace", "error", "<b>2</b> letters", 1.0),)
    said = "".join(map(str, page_review._row("d", Judged(0, bad, "x", GOOD, found), Decision("c", included=False))))
    assert "<script>" not in said
    assert "<b>" not in said
    assert "excluded" in said
    assert "media/datasets/d/audio/c.wav" in said


def test_decisions_of_the_page_are_noted_and_shown(page: Any) -> None:
    page_review._decide(page, "d", "c3", text="ሌላ ነገር")
    page_review._decide(page, "d", "c3", included=False)
    assert review.decisions(page.workspace, "d") == {"c3": Decision("c3", False, "ሌላ ነገር", "by hand")}
    assert page_review._text(page, "d", "c3") == "ሌላ ነገር"
    page_review._decide(page, "d", "c3", included=True)
    assert review.decisions(page.workspace, "d")["c3"] == Decision("c3", True, "ሌላ ነገር")
    table = page_review._table(page, view())
    assert "Page 1 of 3; 25 clips." in table
    with pytest.raises(UserError, match="no clip 'c99'"):
        page_review._decide(page, "d", "c99", included=False)


def test_all_with_a_finding_are_out_at_once(page: Any) -> None:
    page_review._every(page, "d", "clipping")
    assert [one for one, made in review.decisions(page.workspace, "d").items() if not made.included] == ["c24"]
    with pytest.raises(UserError, match="No finding is chosen"):
        page_review._every(page, "d", page_review.ALL)
