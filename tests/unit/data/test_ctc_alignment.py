"""Forced alignment: the words are found where they were said, and what does not belong is set aside."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.ctc_alignment import AlignedLabels, AlignmentCosts, CTCAligner

LETTERS = 12  # labels 1 to 12; 0 is blank


def heard(labels: list[int], seed: int = 0, sure: float = 0.9, pause: int = 3) -> tuple[np.ndarray, list[int]]:
    """Log-probabilities (F, 13) of a recogniser that hears `labels`, each for a frame; and the frame of each."""
    random = np.random.default_rng(seed)
    rows, places = [], []
    for label in labels:
        rows += [0] * int(random.integers(1, pause + 1))
        places.append(len(rows))
        rows.append(label)
    rows += [0] * pause
    table = np.full((len(rows), LETTERS + 1), (1 - sure) / LETTERS)
    table[np.arange(len(rows)), rows] = sure
    return np.log(table), places


def aligned(sentences: list[list[int]], table: np.ndarray, step: int = 37,
            costs: AlignmentCosts = AlignmentCosts()) -> AlignedLabels:  # noqa: B008
    alignment = CTCAligner(sentences, 0, costs)
    for at in range(0, len(table), step):
        alignment.push(table[at:at + step])
    return alignment.finish()


def text(seed: int, sentences: int, length: int = 12) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(1, LETTERS + 1, length).tolist() for _ in range(sentences)]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(0, 2**16))
def test_the_way_is_the_likeliest_of_all(labels: list[int], seed: int) -> None:
    table = np.log(np.random.default_rng(seed).dirichlet(np.ones(4), size=6))
    found = aligned([labels], table, costs=AlignmentCosts(star=50.0, left_out=50.0))
    best, wanted = -np.inf, None
    for way in itertools.product(range(4), repeat=6):
        if [label for label, _ in itertools.groupby(way) if label] == labels:
            score = sum(table[frame, label] for frame, label in enumerate(way))
            if score > best:
                best, wanted = score, way
    if wanted is not None:
        path = [0] * 6
        for label, begin, end in zip(labels, found.begins, found.ends, strict=True):
            path[begin:end] = [label] * (end - begin)
        assert sum(table[frame, label] for frame, label in enumerate(path)) == pytest.approx(best, abs=1e-4)


def test_each_label_is_found_where_it_was_said() -> None:
    sentences = text(0, 20)
    table, places = heard(list(itertools.chain(*sentences)))
    found = aligned(sentences, table)
    assert found.begins.tolist() == places
    assert np.exp(found.scores).min() == pytest.approx(0.9, abs=1e-6)
    assert found.foreign.sum() == 0


def test_a_long_text_is_aligned_in_a_small_window_as_in_a_large_one() -> None:
    sentences = text(1, 200)
    table, places = heard(list(itertools.chain(*sentences)), sure=0.6)
    small = aligned(sentences, table, costs=AlignmentCosts(states=256, held_frames=200))
    assert (np.abs(small.begins - np.array(places)) <= 1).mean() > 0.98
    assert np.array_equal(small.begins, aligned(sentences, table).begins)


def test_speech_that_nobody_wrote_down_is_set_aside() -> None:
    sentences = text(2, 12)
    foreign = text(99, 1, 150)[0]
    before, middle = foreign[:60], foreign[60:]
    said = [*before, *itertools.chain(*sentences[:6]), *middle, *itertools.chain(*sentences[6:])]
    table, places = heard(said)
    found = aligned(sentences, table)
    wanted = places[60:60 + 72] + places[60 + 72 + 90:]
    exact = [abs(begin - place) <= 2 for begin, place in zip(found.begins, wanted, strict=True)]
    assert np.mean(exact) > 0.9
    assert found.foreign[0] > 40
    assert found.foreign[6] > 60
    assert found.foreign[1:6].sum() + found.foreign[7:].sum() < 20


def test_a_sentence_that_was_not_said_is_left_out_and_the_others_are_found() -> None:
    sentences = text(3, 10)
    table, places = heard(list(itertools.chain(*sentences[:4], *sentences[6:])))
    found = aligned(sentences, table)
    assert (found.begins[4 * 12:6 * 12] == -1).all()
    assert np.isneginf(found.scores[4 * 12:6 * 12]).all()
    assert np.abs(found.begins[:48] - places[:48]).max() <= 2  # to leave out takes two frames
    assert np.abs(found.begins[72:] - places[48:]).max() <= 2


def test_a_text_may_have_much_that_is_not_read_out() -> None:
    sentences = text(5, 60)
    table, places = heard(list(itertools.chain(*sentences[30:])))
    found = aligned(sentences, table)
    assert (found.begins[:360] == -1).all()
    assert np.abs(found.begins[361:] - places[1:]).max() <= 2


def test_a_wrong_word_has_a_low_score_and_its_neighbours_keep_theirs() -> None:
    sentences = text(4, 5)
    table, _ = heard(list(itertools.chain(*sentences)))
    wrong = [list(sentence) for sentence in sentences]
    wrong[2][4:8] = [1 + label % LETTERS for label in wrong[2][4:8]]
    scores = np.exp(aligned(wrong, table).scores)
    assert scores[28:32].mean() < 0.5
    assert scores[:24].min() > 0.85


def test_nothing_heard_is_nothing_found() -> None:
    assert aligned([[1, 2]], np.zeros((0, 13))).begins.tolist() == [-1, -1]
    assert aligned([], np.log(np.full((5, 13), 1 / 13))).frames == 5


def test_a_sound_in_the_pause_does_not_pass_for_the_last_letter_of_a_word() -> None:
    """Nor for the first one: it was heard more surely than the letter itself, and more than a second away."""
    mark, other = 5, [1, 2, 3, 4]
    said = [0, 0, mark, 0, 1, 0, 2, 0, mark, *[0] * 60, mark, *[0] * 5, 3, 0, 4, 0]
    table = np.full((len(said), LETTERS + 1), 0.001)
    table[np.arange(len(said)), said] = 0.99
    for place, near in ((8, 0), (2, 0)):
        table[place, [mark, near]] = 0.55, 0.44
    table[[20, 69], mark] = 0.99
    table = np.log(np.concatenate([np.full((0, LETTERS + 1), 1.0), table]))
    alone = aligned([[mark, 1, 2, mark], other[2:]], table)
    assert alone.begins[3] - alone.begins[2] > 50  # what it did
    alignment = CTCAligner([[mark, 1, 2, mark], other[2:]], 0, edges=[(4, 4), (2, 2)])
    alignment.push(table)
    assert alignment.finish().begins.tolist() == [2, 4, 6, 8, 75, 77]
