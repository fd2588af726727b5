"""The grid of samples: a sentence is a row over all steps, its errors are held against its first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from core.jobs.events import CheckpointSaved, Evaluated, SampleGenerated
from core.jobs.job import Job
from core.jobs.state import JobState
from ui import run_views

TEXTS = ("ሰላም", "ውሃ")


def spoken(steps: Iterable[int], texts: Iterable[str] = TEXTS, language: str = "am",
           error: float | None = 0.5) -> list[SampleGenerated]:
    """Each text at each step, a tenth less misheard at each."""
    return [SampleGenerated(step, language, text, f"samples/step-{step:06d}/{number:02d}-{language}.wav",
                       None if error is None else error - 0.1 * at)
            for at, step in enumerate(steps) for number, text in enumerate(texts, start=1)]


def state(samples: Iterable[SampleGenerated], best: int | None = None, scope: str = "gated",
          **parts: object) -> JobState:
    saved = () if best is None else (CheckpointSaved(best, "checkpoints/x", True),)
    job = Job(Path("/w/runs/train-1"), "train", "cpu", (), 1.0, {"scope": scope})
    return JobState(job, "running", samples=tuple(samples), checkpoints=saved, **parts)  # type: ignore[arg-type]


def row(html: str, text: str) -> str:
    """The row of the sentence `text`."""
    return next(part for part in html.split('<div class="takes-row') if f">{text}</span>" in part)


def test_a_sentence_is_a_row_and_a_step_a_column() -> None:
    html = run_views.sample_grid(state(spoken((100, 200, 300))))
    assert re.findall(r"step (\d+)</span>", html) == ["100", "200", "300"]
    for number, text in enumerate(TEXTS, start=1):
        assert re.findall(r'data-sound="([^"]*)"', row(html, text)) == [
            f"media/runs/train-1/samples/step-{step:06d}/{number:02d}-am.wav" for step in (100, 200, 300)]


def test_an_error_is_held_against_the_sentences_first_in_colour_and_in_words() -> None:
    one = [SampleGenerated(step, "am", "ሰላም", f"{step}.wav", error)
           for step, error in ((100, 0.5), (200, 0.32), (300, 0.6), (400, 0.504))]
    cells = row(run_views.sample_grid(state(one)), "ሰላም").split('class="hear"')[1:]
    assert "50%" in cells[0]
    assert "<small" not in cells[0]
    assert '<small class="better">↓18</small>' in cells[1]
    assert "18 points better than step 100" in cells[1]
    assert '<small class="worse">↑10</small>' in cells[2]
    assert "10 points worse than step 100" in cells[2]
    assert "same as step 100" in cells[3]


def test_where_no_judge_knows_the_language_that_stands_in_place_of_the_error() -> None:
    html = run_views.sample_grid(state(spoken((100, 200), error=None)))
    assert "No recogniser (ASR) for Amharic" in html
    assert html.count("no score</span>") == 4
    assert "CER" not in html
    both = [*spoken((100,), error=None), *spoken((100,), ("A boat.",), "en", None)]
    assert "No recogniser (ASR) for Amharic or English" in run_views.sample_grid(state(both))


def test_a_sentence_that_was_not_spoken_at_a_step_has_an_empty_cell() -> None:
    html = run_views.sample_grid(state([*spoken((100,)), *spoken((200,), TEXTS[:1])]))
    assert row(html, TEXTS[0]).count('class="hear"') == 2
    assert row(html, TEXTS[1]).count('class="hear"') == 1
    assert "No sample at this step" in row(html, TEXTS[1])


def test_what_a_resumed_run_tells_again_is_one_row_with_the_newer_error() -> None:
    html = run_views.sample_grid(state([*spoken((100,), error=0.9), *spoken((100,), error=0.3)]))
    assert html.count('class="hear"') == len(TEXTS)
    assert "90%" not in html


def test_one_text_in_two_voices_is_two_rows() -> None:
    assert len(run_views.sample_rows(spoken((100, 200), ("ሰላም", "ሰላም")))) == 2


def test_the_new_language_comes_before_those_that_are_heard_for_drift() -> None:
    samples = [*spoken((0,), ("A boat.",), "en"), *spoken((100,)), *spoken((100,), ("A boat.",), "en")]
    found = run_views.sample_rows(samples)
    assert [line.language for line in found] == ["am", "am", "en"]
    html = run_views.sample_grid(state(samples, scope="full"))
    assert "bit-identical" not in html
    assert "The last rows are base languages" in html
    assert "bit-identical" in run_views.sample_grid(state(samples, scope="rows"))
    assert row(html, "A boat.").count('class="hear"') == 2
    assert re.findall(r'class="badge[^>]*>(\w+)<', html) == ["before", "first"]
    assert "take is-first" in html.split("step 100</span>")[0].rsplit("<div", 1)[1]


def test_the_measured_error_over_all_sentences_stands_on_top() -> None:
    samples, measured = spoken((100, 200)), (Evaluated(100, 1.0, {"am": 0.41}), Evaluated(200, 1.0, {"am": 0.3}))
    html = run_views.sample_grid(state(samples, evaluations=measured))
    total = html.split('<div class="takes-row')[2]
    assert "All scored sentences, Amharic" in total
    assert "41%" in total
    assert "↓11" in total


def test_the_first_and_the_best_column_are_marked_and_stay_in_sight() -> None:
    html = run_views.sample_grid(state(spoken((100, 200, 300)), best=200))
    assert html.count("take is-first") == html.count("take is-best") == 1 + len(TEXTS)
    assert '<span class="badge busy">best</span>' in html
    both = run_views.sample_grid(state(spoken((100, 200)), best=100))
    assert "is-best" not in both
    assert '<span class="badge busy">best</span>' in both


@pytest.mark.parametrize("count", [1, 5, 16, 17, 33, 200])
def test_of_many_steps_the_first_the_best_and_the_newest_are_always_shown(count: int) -> None:
    steps = [100 * number for number in range(1, count + 1)]
    best = steps[count // 3]
    shown = run_views.sample_columns(steps, (steps[0], best), run_views.MAX_STEPS)
    assert shown == sorted(set(shown))
    assert len(shown) <= max(run_views.MAX_STEPS, 1)
    assert {steps[0], best, *steps[-6:]} <= set(shown)
    assert shown == steps or count > run_views.MAX_STEPS


def test_a_new_step_is_a_new_last_column_and_changes_no_other_cell() -> None:
    before = run_views.sample_grid(state(spoken((100, 200)), best=100))
    after = run_views.sample_grid(state(spoken((100, 200, 300)), best=100))
    for text in TEXTS:
        old, new = (re.findall(r'data-sound="([^"]*)"', row(html, text)) for html in (before, after))
        assert new[:-1] == old


def test_what_is_not_shown_is_counted_and_can_be_shown() -> None:
    many = state(spoken(range(100, 4100, 100), [f"text {number}" for number in range(40)]))
    html = run_views.sample_grid(many)
    assert not run_views.select_samples(many).whole
    assert re.search(r"Showing 30 of 40 sentences and \d+ of 40 steps\.", html)
    few = state(spoken(range(100, 4100, 100)))
    assert "of 40 steps" in run_views.sample_grid(few)
    assert "sentences and" not in run_views.sample_grid(few)
    assert run_views.select_samples(many, everything=True).whole
    assert run_views.sample_grid(many, everything=True).count('class="hear"') == 1600


def test_base_sentences_are_among_those_that_are_shown_of_many() -> None:
    samples = [*spoken((100,), [f"text {number}" for number in range(60)]), *spoken((100,), ("A boat.",), "en")]
    assert "en" in {line.language for line in run_views.select_samples(state(samples)).rows}


def test_a_sentence_with_several_takes_can_be_heard_in_turn() -> None:
    html = run_views.sample_grid(state([*spoken((100,)), *spoken((200,), TEXTS[:1])]))
    assert 'class="turn"' in row(html, TEXTS[0])
    assert 'class="turn"' not in row(html, TEXTS[1])


def test_texts_are_escaped() -> None:
    assert "<script>" not in run_views.sample_grid(state(spoken((100,), ("<script>",))))
