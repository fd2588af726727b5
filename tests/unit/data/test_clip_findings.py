"""What is remarked upon, with made measures: each fault is found, and nothing else is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from data.clip_findings import (
    ERROR,
    LIMITS,
    WARNING,
    AnalysedClip,
    ClipFinding,
    ClipLimits,
    DatasetSurvey,
    badness,
    scale,
)
from data.measures import Measures, differing_bits

GOOD = Measures(3.0, 24000, 0.7, 0.0, -20.0, 35.0, 0.1, 0.1, 10000.0, "")
TEXT = "abcdefghij klmnopqrst uvwxyz abcde"  # 31 letters in 2.8 s


def clips(*odd: AnalysedClip, count: int = 30) -> list[AnalysedClip]:
    """Good clips by one speaker, each with a separate text, and odd ones after them."""
    letters = "bcdfghjklmnprstvwz"
    return [*(AnalysedClip(f"good{index}", TEXT + letters[index % 18] + letters[index // 18], "ann", GOOD)
              for index in range(count)), *odd]


def survey_clips(clips: Sequence[AnalysedClip], limits: ClipLimits = LIMITS) -> list[tuple[ClipFinding, ...]]:
    """The findings of each clip, in the order of `clips`."""
    with DatasetSurvey(limits) as survey:
        for clip in clips:
            survey.add(clip)
        return [survey.find_problems(clip) for clip in clips]


def robust_z(values: Sequence[float]) -> np.ndarray:
    """Distance from the median in robust standard deviations; 0 if none differ."""
    middle, spread = scale(values)
    return (np.asarray(values) - middle) / spread if spread else np.zeros(len(values))


def kinds(found: Sequence[ClipFinding]) -> list[tuple[str, str]]:
    return [(one.kind, one.level) for one in found]


def odd(text: str = TEXT, speaker: str = "ann", **changes: float | str | None) -> AnalysedClip:
    return AnalysedClip("odd", text, speaker, replace(GOOD, **changes))  # type: ignore[arg-type]


def test_good_clips_are_not_remarked_upon() -> None:
    assert survey_clips(clips()) == [()] * 30


@pytest.mark.parametrize(("clip", "kind", "level", "number"), [
    (odd(clipped_share=0.02), "clipping", WARNING, "2.0%"),
    (odd(snr_db=4.0), "noise", WARNING, "4 dB"),
    (odd(silence_start_s=0.9), "edges", WARNING, "0.9 s of silence at the start"),
    (odd(silence_end_s=0.9), "edges", WARNING, "0.9 s of silence at the end"),
    (odd(pause_s=1.2), "silence", WARNING, "1.2 s of silence within the clip"),
    (odd(bandwidth_hz=3900.0), "bandwidth", WARNING, "nothing above 3.9 kHz in 24,000"),
    (odd(level_lufs=-35.0), "level", WARNING, "-35 LUFS, 15 under the others"),
    (odd(text="abcdefghij klm"), "pace", ERROR, "4.6 letters a second, the others 11.8"),
    (odd(text=TEXT + " " + TEXT[:24]), "pace", WARNING, "letters a second, the others 11.8"),
    (odd(text=TEXT[:-2] + "12"), "symbols", WARNING, "1 2 in the text"),
    (odd(speaker="bob"), "one clip", WARNING, "'bob'"),
    (AnalysedClip("odd", TEXT, "ann", None), "unreadable", ERROR, "could not be read"),
    (AnalysedClip("odd", TEXT, "ann", GOOD, unknown="ሀለ"), "unknown characters", ERROR, "ሀ ለ"),
    (AnalysedClip("odd", TEXT, "ann", GOOD, over="310 text ids, 256 can be held"), "too long", ERROR,
     "310 text ids, 256"),
])
def test_each_fault_is_found_with_its_number(clip: AnalysedClip, kind: str, level: str, number: str) -> None:
    found = survey_clips(clips(clip))
    assert (kind, level) in kinds(found[-1])
    assert number in next(one.message for one in found[-1] if one.kind == kind)
    assert {one.kind for one in found[-1]} <= {kind, "rare characters"}
    assert found[:-1] == [()] * 30


def test_a_text_of_another_recording_stands_out_from_real_spread() -> None:
    chance = np.random.default_rng(0)
    spread = [AnalysedClip(str(index), "ab" * 20, "ann", replace(GOOD, duration_s=0.2 + 3 * float(factor)))
              for index, factor in enumerate(np.exp(0.15 * chance.standard_normal(300)))]
    swapped = AnalysedClip("swapped", "ab" * 60, "ann", GOOD)
    found = survey_clips([*spread, swapped])
    assert ("pace", ERROR) in kinds(found[-1])
    assert sum("pace" in {one.kind for one in each} for each in found[:-1]) <= 3  # 15% of spread: no false alarms


def test_few_clips_have_no_usual_pace() -> None:
    assert survey_clips([odd(), replace(odd(text="a" * 90), id="b")])[1] == ()


def test_copies_are_told_of_the_first_and_of_two_texts_both_clips_are_told() -> None:
    sketch = "0123456789abcdef" * 4
    near = f"{int(sketch, 16) ^ 0b1011:064x}"  # three bits
    far = f"{int(sketch, 16) ^ (2**256 - 1):064x}"
    first, copy = odd(sketch=sketch), replace(odd(sketch=near), id="copy")
    wrong = replace(odd(text=TEXT[::-1], sketch=near), id="wrong")
    other = replace(odd(text=TEXT[1:], sketch=far), id="other")
    assert [sounds(each) for each in survey_clips([first, copy, other])] == [[], [("same sound", WARNING, "odd")],
                                                                                   []]
    for order in ([first, wrong], [wrong, first]):  # either may be the one whose text is of another recording
        found = survey_clips(order)
        assert sounds(found[0]) == [("two texts", ERROR, order[1].id)]
        assert sounds(found[1]) == [("two texts", ERROR, order[0].id)]
    assert [sounds(each) for each in survey_clips([first, copy, wrong, other])] == [
        [("two texts", ERROR, "wrong")], [("two texts", ERROR, "wrong")], [("two texts", ERROR, "odd")], []]


def sounds(found: Sequence[ClipFinding]) -> list[tuple[str, str, str]]:
    """What is said of copies: kind, level and the other clip."""
    return [(one.kind, one.level, one.message.removeprefix("sounds like ").partition(",")[0])
            for one in found if one.kind in ("same sound", "two texts")]


def test_copies_are_found_among_many_as_by_comparing_all() -> None:
    chance = random.Random(3)
    made: list[AnalysedClip] = []
    for number in range(80):
        bits = chance.getrandbits(256)
        if made and number % 3 == 0:  # a copy of one before, some bits apart
            bits = int(chance.choice(made).measures.sketch, 16)  # type: ignore[union-attr]
            for _ in range(chance.choice((0, 4, 20, 60))):
                bits ^= 1 << chance.randrange(256)
        made.append(replace(odd(sketch=f"{bits:064x}"), id=f"c{number}", text=f"{TEXT} {number}"))
    originals: list[AnalysedClip] = []
    wanted = {}
    for one in made:
        sketch = one.measures.sketch  # type: ignore[union-attr]
        like = [other for other in originals if any(
            sketch[at:at + 8] == other.measures.sketch[at:at + 8] for at in range(0, 64, 8))  # type: ignore[union-attr]
                and differing_bits(sketch, other.measures.sketch) <= LIMITS.sketch_bits]  # type: ignore[union-attr]
        if like:
            wanted[one.id] = like[0].id
            wanted.setdefault(like[0].id, one.id)
        else:
            originals.append(one)
    found = {one.id: other for one, all_found in zip(made, survey_clips(made), strict=True)
             for _, _, other in sounds(all_found)}
    assert len(wanted) > 5
    assert found == wanted


def test_the_same_sentence_by_another_speaker_is_no_double() -> None:
    found = survey_clips([odd(), replace(odd(), id="again"), replace(odd(speaker="bob"), id="bob1"),
                          replace(odd(text=TEXT[::-1], speaker="bob"), id="bob2")])
    assert [[one.message for one in each] for each in found] == [
        [], ["the text of odd, by the same speaker"], [], []]


def test_rare_characters_are_a_clips_fault_only_where_few_clips_have_them() -> None:
    usual = clips(count=30)
    found = survey_clips([*usual[:29], odd(text=TEXT[:-1] + "ö")])
    assert found[:-1] == [()] * 29
    assert kinds(found[-1]) == [("rare characters", WARNING)]
    few = [replace(odd(text=TEXT[:10] + 8 * chr(0x1200 + number) + chr(0x1300 + number)), id=f"c{number}")
           for number in range(10)]
    assert survey_clips(few) == [()] * 10  # a small dataset: every character that is rare in it is one clip's
    clipped = replace(few[3], measures=replace(GOOD, clipped_share=0.02))
    assert [bool(each) for each in survey_clips([*few[:3], clipped,
                                                       *few[4:]])] == [number == 3 for number in range(10)]


def test_the_worst_come_first() -> None:
    found = survey_clips(clips(odd(clipped_share=0.02, snr_db=4.0), odd(clipped_share=0.02), odd(text="ab cd")))
    worst = sorted(range(33), key=lambda at: -badness(found[at]))
    assert worst[:3] == [32, 30, 31]
    assert badness(found[0]) == 0


def test_robust_scores_are_not_moved_by_outliers() -> None:
    values = [*np.random.default_rng(0).standard_normal(2001), 1e6]
    scores = robust_z(values)
    assert np.std(scores[:-1]) == pytest.approx(1, abs=0.1)
    assert scores[-1] > 1e5
    assert (robust_z([5.0] * 9) == 0).all()
    assert robust_z([5.0] * 9 + [6.0])[-1] > 3.5


@pytest.mark.parametrize(("written", "message"), [
    ("ሰላም!!!!!! ለሁሉም ሰው", "!!!!!! in the text"),
    ("ሰላም።።። ለሁሉም።።። ሰው።።።", "።።። in the text"),
    ("ሰላም። ለሁሉም። ሰው። ዛሬ።", "። after each word"),
])
def test_repeated_marks_are_found_in_the_text_as_it_was_given(written: str, message: str) -> None:
    clip = replace(odd(), written=written)
    (finding,) = [one for one in survey_clips(clips(clip))[-1] if one.kind == "repeated marks"]
    assert message in finding.message


@pytest.mark.parametrize("written", ["Wait... what?", "ሰላም፡ለሁሉም፡ሰው፡ዛሬ።", "No. 5, A. B. Smith and I.", "Yes. No. Why?",
                                     "a, b, c, d"])
def test_ordinary_marks_are_no_finding(written: str) -> None:
    assert "repeated marks" not in dict(kinds(survey_clips(clips(replace(odd(), written=written)))[-1]))


def test_a_text_on_many_clips_of_a_speaker_is_one_fault_of_the_table() -> None:
    same = [AnalysedClip(f"same{number}", TEXT, "ann", GOOD) for number in range(5)]
    found = survey_clips([*clips(), *same])
    assert [kinds(one) for one in found[-5:]] == [[("text of many clips", WARNING)]] * 5
    assert "that of 5 clips" in found[-1][0].message
    twice = survey_clips([*clips(), *same[:2]])
    assert [kinds(one) for one in twice[-2:]] == [[], [("same text", WARNING)]]


def test_a_clip_of_two_sentences_with_the_text_of_one_is_found() -> None:
    generator = random.Random(0)
    some = []
    for number in range(60):
        letters = generator.randint(20, 60)
        text = "".join(generator.choice("abcdefghijkl") for _ in range(letters))
        duration_s = (0.8 + letters / 13) * generator.uniform(0.9, 1.1) + 0.2
        some.append(AnalysedClip(f"clip{number}", text, "ann", replace(GOOD, duration_s=duration_s)))
    two = replace(some[7], id="two", text=some[7].text[::-1],
                  measures=replace(GOOD, duration_s=1.9 * some[7].measures.duration_s))
    found = survey_clips([*some, two])
    assert [kinds(one) for one in found[:-1] if one] == []
    assert kinds(found[-1]) in ([("long for its text", WARNING)], [("pace", WARNING)])


def test_a_clip_in_which_another_text_is_heard_comes_first() -> None:
    other = replace(odd(), other_text="the text of good3 fits better")
    unreadable = AnalysedClip("lost", TEXT[::-1], "ann", None, unknown="x", over="too long")
    found = survey_clips(clips(other, unreadable))
    assert kinds(found[-2])[0] == ("other text", ERROR)
    assert badness(found[-2]) > badness(found[-1]) - 200
