"""What is held out shares no sentence, no recording and, by choice, no speaker with what is trained on."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from config.errors import UserError
from data.importers import Row
from data.manifest import HELD_OUT, TRAIN, Clip
from data.splits import assign, leaks, with_sources
from data.validation import CheckedRow


def checked(name: str, text: str, recording: str = "", speaker: str = "a", split: str = "") -> CheckedRow:
    audio = Path("/talks") / (recording or f"{name}.wav")
    return CheckedRow(Row(name, audio, text, name, speaker, split), text, 1.0, name)


def some_rows(noise: random.Random) -> list[CheckedRow]:
    return [checked(f"c{index}", f"text {noise.randrange(40)}", f"r{noise.randrange(25)}.wav", f"s{noise.randrange(6)}")
            for index in range(noise.randrange(2, 60))]


@pytest.mark.parametrize("seed", range(40))
def test_nothing_stands_on_both_sides(seed: int) -> None:
    noise = random.Random(seed)
    rows, by_speaker = some_rows(noise), noise.random() < 0.5
    share = noise.choice([0.05, 0.2, 0.5])
    try:
        splits = assign(rows, share, seed, by_speaker=by_speaker)
    except UserError:
        assert by_speaker
        assert len({row.row.speaker for row in rows}) == 1
        return
    sides = [{(row.normal, row.row.audio) for row, split in zip(rows, splits, strict=True) if split == side}
             for side in (TRAIN, HELD_OUT)]
    assert sides[0]
    for part in (0, 1):
        assert not {mark[part] for mark in sides[0]} & {mark[part] for mark in sides[1]}
    if by_speaker:
        heard, unheard = ({row.row.speaker for row, split in zip(rows, splits, strict=True) if split == side}
                          for side in (TRAIN, HELD_OUT))
        assert not heard & unheard
    assert leaks(rows, splits) == ()


def test_clips_of_one_long_recording_stay_together() -> None:
    rows = [checked(f"c{index}", f"text {index}", f"talk{index % 5}.wav") for index in range(50)]
    splits = assign(rows, 0.2, seed=0)
    assert splits.count(HELD_OUT) == 10
    assert len({row.row.audio for row, split in zip(rows, splits, strict=True) if split == HELD_OUT}) == 1
    clips = tuple(Clip(row.row.id, "", row.normal, "am", split, 1.0, "a", "") for row, split
                  in zip(rows, splits, strict=True))
    assert {clip.source for clip in with_sources(clips, rows)} == {f"talks/talk{number}.wav" for number in range(5)}
    alone = [checked("a", "one"), checked("b", "two")]
    assert [clip.source for clip in with_sources(clips[:2], alone)] == ["", ""]


def test_a_group_larger_than_the_share_is_held_out_only_where_all_are() -> None:
    rows = [checked(f"a{index}", f"a {index}", "a.wav") for index in range(6)]
    rows += [checked(f"b{index}", f"b {index}", "b.wav") for index in range(3)]
    assert assign(rows, 0.1, seed=0) == (TRAIN,) * 6 + (HELD_OUT,) * 3


def test_a_single_speaker_cannot_be_held_out() -> None:
    with pytest.raises(UserError, match="All clips have one speaker"):
        assign([checked("a", "one"), checked("b", "two")], 0.5, 0, by_speaker=True)


def test_a_source_that_splits_one_recording_is_named() -> None:
    rows = [checked("a", "one", "talk.wav", split=TRAIN), checked("b", "two", "talk.wav", split=HELD_OUT)]
    assert [finding.message for finding in leaks(rows, assign(rows, 0.1, 0))] == [
        "a trains on a recording that is also held out: talk.wav"]


def test_one_recording_gives_both_sides_and_says_what_that_is_worth() -> None:
    rows = [checked(f"c{index}", f"text {index}", "film.wav") for index in range(20)]
    splits = assign(rows, 0.1, seed=0)
    assert splits.count(HELD_OUT) == 2
    (finding,) = leaks(rows, splits)
    assert "all clips are cut from one recording, film.wav" in finding.message
    clips = [Clip(one.row.id, "", one.normal, "am", split, 1.0, "a", "") for one, split
             in zip(rows, splits, strict=True)]
    assert all(not one.source for one in with_sources(clips, rows))
