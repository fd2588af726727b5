"""The order of training: every clip once an epoch, prompts from other clips, and a state that says it all."""

from __future__ import annotations

import random

import pytest

from config.errors import UserError
from data.batches import BatchClip, LengthBucketedBatchSampler, SamplerState

CLIPS = [BatchClip(10 + index % 7, f"s{index % 3}") for index in range(50)]


def test_every_clip_is_learnt_once_an_epoch() -> None:
    sampler = LengthBucketedBatchSampler(CLIPS, 8, seed=0)
    seen = []
    while sampler.epoch == 0:
        draws = sampler.next_batch()
        if sampler.epoch == 0:
            seen += [draw.target for draw in draws]
    assert sorted(seen) == list(range(50))


def test_the_prompt_is_another_clip_of_the_same_speaker() -> None:
    sampler = LengthBucketedBatchSampler(CLIPS, 8, seed=0)
    draws = [draw for _ in range(200) for draw in sampler.next_batch()]
    assert all(draw.target != draw.prompt for draw in draws)
    assert all(CLIPS[draw.target].speaker == CLIPS[draw.prompt].speaker for draw in draws)
    assert len({draw.prompt for draw in draws}) == 50


def test_batches_hold_clips_of_like_length() -> None:
    clips = [BatchClip(index, "s") for index in range(160)]
    batch = LengthBucketedBatchSampler(clips, 8, seed=0).next_batch()
    assert max(draw.target for draw in batch) - min(draw.target for draw in batch) < 20


def test_the_state_is_all_there_is() -> None:
    whole = LengthBucketedBatchSampler(CLIPS, 8, seed=3)
    batches = [whole.next_batch() for _ in range(20)]
    for stop in (0, 1, 7, 13, 19):
        first = LengthBucketedBatchSampler(CLIPS, 8, seed=3)
        for _ in range(stop):
            first.next_batch()
        second = LengthBucketedBatchSampler(CLIPS, 8, seed=3)
        second.load_state_dict(first.state_dict())
        assert [second.next_batch() for _ in range(20 - stop)] == batches[stop:]


def test_a_state_of_other_batches_is_refused() -> None:
    sampler = LengthBucketedBatchSampler(CLIPS, 4, seed=1)
    sampler.load_state_dict(SamplerState(0, len(sampler)))
    assert sampler.next_batch()
    with pytest.raises(UserError, match="There is no batch 60 in epoch 0, which has"):
        sampler.load_state_dict(SamplerState(0, 60))
    assert sampler.state_dict() == SamplerState(1, 1)


def test_epochs_and_seeds_differ() -> None:
    sampler = LengthBucketedBatchSampler(CLIPS, 50, seed=0)
    assert sampler.next_batch() != sampler.next_batch()
    first, other = (LengthBucketedBatchSampler(CLIPS, 50, seed=seed) for seed in (0, 1))
    assert first.next_batch() != other.next_batch()


def test_a_speaker_with_one_clip_cannot_be_prompted() -> None:
    with pytest.raises(ValueError, match="single clip"):
        LengthBucketedBatchSampler([*CLIPS, BatchClip(5, "alone")], 8, seed=0)


def lengths(count: int, spread: str, seed: int) -> list[int]:
    """Positions of clips as corpora have them: 25 codes a second, about 8 text ids a second, 34 of conditioning."""
    chance = random.Random(seed)
    seconds = {
        "read aloud": lambda: min(20.0, max(1.0, chance.gammavariate(6, 1.6))),  # as LibriTTS
        "prompted": lambda: min(12.0, max(1.0, chance.lognormvariate(1.55, 0.35))),  # as Common Voice
        "one book": lambda: min(10.1, max(1.1, chance.gauss(6.6, 2.2))),  # as LJSpeech
        "even": lambda: chance.uniform(1.0, 20.0),
    }[spread]
    return [34 + int(25 * s) + int(s * chance.gauss(8, 1.2)) + 1 for s in (seconds() for _ in range(count))]


def padding(clips: list[BatchClip], batch_size: int, seed: int) -> float:
    """Share of the positions of an epoch that hold nothing."""
    sampler = LengthBucketedBatchSampler(clips, batch_size, seed)
    batches = [sampler.next_batch()]
    while sampler.state_dict() != SamplerState(0, len(sampler)):
        batches.append(sampler.next_batch())
    assert sum(map(len, batches)) == len(clips)
    whole = sum(len(batch) * max(clips[draw.target].length for draw in batch) for batch in batches)
    return 1 - sum(clip.length for clip in clips) / whole


@pytest.mark.parametrize("spread", ["read aloud", "prompted", "one book", "even"])
@pytest.mark.parametrize(("count", "batch_size"), [(3000, 8), (3000, 16), (4000, 32), (20_000, 32)])
def test_at_most_one_position_in_a_hundred_is_padding(spread: str, count: int, batch_size: int) -> None:
    for seed in range(2):
        clips = [BatchClip(length, "s") for length in lengths(count, spread, seed)]
        assert padding(clips, batch_size, seed) <= 0.01


@pytest.mark.parametrize("spread", ["read aloud", "prompted", "one book", "even"])
def test_a_few_hundred_clips_are_padded_no_more_than_sorting_leaves(spread: str) -> None:
    found = lengths(300, spread, 0)
    ordered = sorted(found)
    parts = [ordered[300 * part // 38:300 * (part + 1) // 38] for part in range(38)]
    least = 1 - sum(found) / sum(len(part) * part[-1] for part in parts)
    assert padding([BatchClip(length, "s") for length in found], 8, 0) == pytest.approx(least)


@pytest.mark.parametrize(("count", "batch_size"), [(50, 8), (33, 16), (300, 16), (5, 8), (4001, 20)])
def test_no_batch_is_much_smaller_than_another(count: int, batch_size: int) -> None:
    sampler = LengthBucketedBatchSampler([BatchClip(10 + index, "s") for index in range(count)], batch_size, seed=0)
    sizes = {len(sampler.next_batch()) for _ in range(len(sampler))}
    assert max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= (1 if count <= 200 * batch_size else 2)
