"""Where long recordings are cut: at pauses, within the bounds, and nothing is lost."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.segmentation import (
    IN_SPEECH_COST,
    SegmentLimits,
    SpeechSpans,
    group_spans,
    pause_cost,
    speech_spans,
    voiced_runs,
)

FRAME_S = 0.032
LIMITS = SegmentLimits()
RUNS = st.lists(st.tuples(st.integers(4, 800), st.integers(3, 900)), min_size=1, max_size=14)  # pause, voice in frames


def of_pauses(begins: Sequence[float], ends: Sequence[float]) -> SpeechSpans:
    """Spans with pauses between them; the longer a pause, the cheaper the cut."""
    begin, end = np.asarray(begins, float), np.asarray(ends, float)
    pauses = begin[1:] - end[:-1]
    return SpeechSpans(begin, end, pause_cost(pauses), np.zeros(len(pauses), bool))


def frames(parts: list[tuple[int, int]], tail: int) -> tuple[list[tuple[int, int]], float]:
    """Runs of frames from pauses and voices, and the seconds of the whole."""
    runs, at = [], 0
    for pause, voice in parts:
        runs.append((at + pause, at + pause + voice))
        at += pause + voice
    return runs, (at + tail) * FRAME_S


def cut_points(atoms: SpeechSpans, firsts: Sequence[int]) -> int:
    """Cuts within speech of clips that begin at these atoms."""
    return sum(bool(atoms.costs[first - 1] >= IN_SPEECH_COST) for first in firsts if first)


@settings(max_examples=60, deadline=None)
@given(RUNS, st.integers(0, 400), st.integers(0, 2**16))
def test_every_voice_is_in_one_clip_and_clips_keep_their_bounds(parts: list[tuple[int, int]], tail: int,
                                                                seed: int) -> None:
    runs, total_s = frames(parts, tail)
    levels = np.random.default_rng(seed).random(runs[-1][1] + tail)
    atoms = speech_spans(runs, levels, FRAME_S)
    cuts = group_spans(atoms, total_s)
    assert [cut.first for cut in cuts] == [0, *(cut.last + 1 for cut in cuts[:-1])]
    assert cuts[-1].last == len(atoms.begins) - 1
    for cut in cuts:
        assert cut.begin_s <= atoms.begins[cut.first] + 1e-9
        assert cut.end_s >= atoms.ends[cut.last] - 1e-9
        assert 0 <= cut.begin_s <= cut.end_s <= total_s + 1e-9
        assert cut.duration_s <= LIMITS.max_clip_s + 1e-6
        assert cut.duration_s >= min(LIMITS.min_clip_s, total_s) - 1e-6
    for one, two in itertools.pairwise(cuts):
        assert one.end_s <= two.begin_s + 1e-9


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(4, 120), st.integers(30, 260)), min_size=2, max_size=6), st.integers(0, 99))
def test_no_choice_of_cuts_within_the_bounds_has_fewer_cuts_in_speech(parts: list[tuple[int, int]], tail: int) -> None:
    runs, total_s = frames(parts, tail)
    atoms = speech_spans(runs, np.ones(runs[-1][1] + tail), FRAME_S)
    count = len(atoms.begins)
    middles = [0.0, *((atoms.ends[:-1] + atoms.begins[1:]) / 2), total_s]
    fewest = {0: 0}  # cuts in speech before an atom
    for end in range(1, count + 1):
        price = 0 if end == count else int(atoms.costs[end - 1] >= IN_SPEECH_COST)
        ways = [fewest[first] + price for first in fewest
                if atoms.ends[end - 1] - atoms.begins[first] <= LIMITS.max_clip_s
                and middles[end] - middles[first] >= LIMITS.min_clip_s]
        if ways:
            fewest[end] = min(ways)
    if count in fewest:
        assert cut_points(atoms, [cut.first for cut in group_spans(atoms, total_s)]) == fewest[count]


def test_a_pause_is_cut_in_its_middle_and_padding_keeps_to_its_half() -> None:
    atoms = of_pauses([1.0, 9.1, 17.5], [9.0, 17.2, 25.0])
    cuts = group_spans(atoms, 27.0)
    assert [(round(cut.begin_s, 3), round(cut.end_s, 3)) for cut in cuts] == [(0.8, 9.05), (9.05, 17.35), (17.35, 25.2)]


def test_a_long_pause_is_preferred_to_a_short_one() -> None:
    atoms = of_pauses([0.0, 5.1, 10.9], [5.0, 10.0, 16.0])
    assert [cut.first for cut in group_spans(atoms, 16.0)] == [0, 2]


def test_a_wall_is_never_crossed() -> None:
    atoms = SpeechSpans(np.array([0.0, 3.0]), np.array([2.8, 6.0]), np.array([0.0]), np.array([True]))
    assert len(group_spans(atoms, 6.0)) == 2


def test_a_voice_without_a_pause_is_cut_where_it_is_quietest() -> None:
    levels = np.ones(800)
    levels[400] = 0.1
    atoms = speech_spans([(0, 800)], levels, FRAME_S)  # 25.6 s
    cuts = group_spans(atoms, 25.6)
    assert [round(cut.end_s / FRAME_S) for cut in cuts] == [400, 800]


def test_nothing_heard_is_no_clip_and_a_short_recording_is_one() -> None:
    assert group_spans(of_pauses([], []), 60.0) == []
    assert [cut.duration_s for cut in group_spans(of_pauses([0.2], [0.9]), 1.2)] == pytest.approx([1.2])


def test_a_voice_begins_at_the_threshold_and_goes_on_below_it() -> None:
    heard = np.array([0.1, 0.6, 0.9, 0.4, 0.4, 0.9, 0.1, 0.1, 0.8, 0.9, 0.9, 0.0, 0.0, 0.0, 0.0, 0.0, 0.7, 0.0])
    assert voiced_runs(heard) == [(1, 11)]  # the gap of two frames is part of it; the click at the end is none
    assert voiced_runs(np.zeros(0)) == []
