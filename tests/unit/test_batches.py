"""The order of training: every clip once an epoch, prompts from other clips, and a position that says it all."""

from __future__ import annotations

import pytest

from data.batches import Clip, Order, Position

CLIPS = [Clip(10 + index % 7, f"s{index % 3}") for index in range(50)]


def test_every_clip_is_learnt_once_an_epoch() -> None:
    order = Order(CLIPS, 8, seed=0)
    seen = []
    while order.position.epoch == 0:
        draws = order.next()
        if order.position.epoch == 0:
            seen += [draw.target for draw in draws]
    assert sorted(seen) == list(range(50))


def test_the_prompt_is_another_clip_of_the_same_speaker() -> None:
    order = Order(CLIPS, 8, seed=0)
    draws = [draw for _ in range(200) for draw in order.next()]
    assert all(draw.target != draw.prompt for draw in draws)
    assert all(CLIPS[draw.target].speaker == CLIPS[draw.prompt].speaker for draw in draws)
    assert len({draw.prompt for draw in draws}) == 50


def test_batches_hold_clips_of_like_length() -> None:
    clips = [Clip(index, "s") for index in range(160)]
    batch = Order(clips, 8, seed=0).next()
    assert max(draw.target for draw in batch) - min(draw.target for draw in batch) < 20


def test_a_position_is_all_there_is() -> None:
    whole = Order(CLIPS, 8, seed=3)
    batches = [whole.next() for _ in range(20)]
    for stop in (0, 1, 7, 13, 19):
        first = Order(CLIPS, 8, seed=3)
        for _ in range(stop):
            first.next()
        second = Order(CLIPS, 8, seed=3)
        second.move_to(Position(first.position.epoch, first.position.batch))
        assert [second.next() for _ in range(20 - stop)] == batches[stop:]


def test_epochs_and_seeds_differ() -> None:
    order = Order(CLIPS, 50, seed=0)
    assert order.next() != order.next()
    assert Order(CLIPS, 50, seed=1).next() != Order(CLIPS, 50, seed=0).next()


def test_a_speaker_with_one_clip_cannot_be_prompted() -> None:
    with pytest.raises(ValueError, match="single clip"):
        Order([*CLIPS, Clip(5, "alone")], 8, seed=0)
