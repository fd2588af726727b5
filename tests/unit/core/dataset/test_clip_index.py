"""How clips are spread and who speaks: what is counted, and what the page says of it."""

from __future__ import annotations

from dataclasses import replace

from core.dataset.clip_index import ClipIndex, DatasetPlots, build_index
from core.workspace import Workspace
from data.clip_findings import AnalysedClip, ClipStatistics, Histogram
from data.manifest import ManifestClip, PreparedDataset, make_card
from data.measures import Measures
from ui import charts, clip_review

GOOD = Measures(3.0, 24000, 0.7, 0.0, -20.0, 35.0, 0.1, 0.3, 10000.0, "")


def spread(*clips: AnalysedClip) -> ClipStatistics:
    made = ClipStatistics()
    for one in clips:
        made.add(one)
    return made


def spoken(text: str = "ab", speaker: str = "ann", **changes: float) -> AnalysedClip:
    return AnalysedClip("id", text, speaker, replace(GOOD, **changes))  # type: ignore[arg-type]


def histogram(found: ClipStatistics, title: str) -> Histogram:
    return next(one for one in found.histograms() if one.title == title)


def test_clipping_silence_and_bandwidth_are_spread_too() -> None:
    found = spread(spoken(), spoken(clipped_share=0.02, pause_s=0.9), spoken(bandwidth_hz=4000.0))
    clipping = histogram(found, "Clipping")
    assert (sum(clipping.counts), clipping.among, clipping.median) == (1, 3, 2.0)
    silence = histogram(found, "Longest pause")
    assert (sum(silence.counts), silence.median, round(silence.high, 1)) == (3, 0.0, 0.9)
    assert histogram(found, "Bandwidth").median == 10.0


def test_where_nothing_is_clipped_that_is_said() -> None:
    clipping = histogram(spread(spoken(), spoken()), "Clipping")
    assert (sum(clipping.counts), clipping.among) == (0, 2)
    assert "None of 2 clips" in charts.histogram(clipping)


def test_a_recording_that_could_not_be_read_is_in_no_plot() -> None:
    assert spread(AnalysedClip("id", "ab", "ann", None)).histograms() == ()


def test_the_rarest_characters_are_told_beside_the_most_frequent() -> None:
    many = "".join(chr(ord("ሀ") + number) * (100 + number) for number in range(60))
    found = spread(spoken(many), spoken("ቨቨቨጰ"))
    assert len(found.characters()) == 48
    rare = found.rarest()
    assert rare[:2] == (("ጰ", 1), ("ቨ", 3))
    assert not {name for name, _ in rare} & {name for name, _ in found.characters()}
    assert [count for _, count in rare] == sorted(count for _, count in rare)
    few = spread(spoken("a" * 50 + "b" * 9 + "c" * 10))
    assert few.rarest() == (("b", 9),)  # of so few characters all are drawn, and none is told twice but to warn
    drawn = charts.dataset_charts(DatasetPlots(found.histograms(), found.characters(), rare))
    assert "2 characters occur fewer than 10 times" in drawn
    assert "ጰ 1" in drawn


def clip(name: str, speaker: str, seconds: float) -> ManifestClip:
    return ManifestClip(name, f"audio/{name}.wav", "ሰላም", "am", "train", seconds, speaker, f"{name:0>64}")


def index(workspace: Workspace, *clips: ManifestClip) -> ClipIndex:
    dataset = PreparedDataset(workspace.datasets, make_card("d", "am", "made", clips), clips)
    build_index(workspace, dataset, [AnalysedClip(one.id, "ሰላም", one.speaker, GOOD) for one in clips], {})
    return ClipIndex(workspace, dataset.card.fingerprint)


def test_speakers_are_counted_the_largest_first_and_those_with_one_clip_apart(workspace: Workspace) -> None:
    found = index(workspace, clip("a", "ann", 2), clip("b", "ann", 3), clip("c", "bob", 60), clip("d", "bob", 1),
                  clip("e", "<b>eve</b>", 9), clip("f", "dan", 4), clip("g", "kim", 2), clip("h", "kim", 2))
    assert index(workspace, clip("a", "ann", 2)).speakers(5).alone == 1
    all_of_them = found.speakers(10)
    assert (all_of_them.count, all_of_them.alone) == (5, 2)
    assert [(one.name, one.clips, one.seconds) for one in all_of_them.largest] == [
        ("bob", 2, 61.0), ("ann", 2, 5.0), ("kim", 2, 4.0)]
    assert [one.name for one in all_of_them.some_alone] == ["<b>eve</b>", "dan"]
    some = clip_review.speakers_view(found.speakers(1))
    assert "2 more with less speech" in some
    assert "2 speakers have a single clip" in some
    assert "and 1 more" in some
    assert "<b>eve" not in some
    assert "&lt;b&gt;eve" in some
