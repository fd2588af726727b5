"""Texts that join and leave a batch one by one have the codes that they have alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from models.base import ContinuousBatch, Generated, PreparedVoice, Sampling
from models.language_model import TransformerLanguageModel
from models.registry import family
from tests.worlds import write_model

LIVELY = Sampling(temperature=1.0, min_p=0.0)
TEXTS = ("the cat sees a dog", "we go home", "five green birds sing and she reads a book", "a dog", "she reads")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write_model(path)
    return path


@pytest.fixture(scope="module")
def lm(folder: Path) -> TransformerLanguageModel:
    made = family("tiny").load_language_model(folder, torch.device("cpu"))
    assert isinstance(made, TransformerLanguageModel)
    return made


@pytest.fixture(scope="module")
def ids(folder: Path) -> list[np.ndarray]:
    front_end = family("tiny").load_front_end(folder)
    return [front_end.encode(text, "en") for text in TEXTS]


@pytest.fixture(scope="module")
def voice(folder: Path, lm: TransformerLanguageModel) -> PreparedVoice:
    return lm.prepare(family("tiny").load_voices(folder)["low"])


def alone(lm: TransformerLanguageModel, text: np.ndarray, voice: PreparedVoice, sampling: Sampling) -> Generated:
    return lm.generate([text], [voice], sampling)[0]


def seeded(seed: int) -> Sampling:
    return Sampling(**{**vars(LIVELY), "seed": seed})


def finish(batch: ContinuousBatch, results: dict[int, Generated], streamed: dict[int, list[np.ndarray]]) -> None:
    while batch.keys:
        collect(batch, results, streamed)


def collect(batch: ContinuousBatch, results: dict[int, Generated], streamed: dict[int, list[np.ndarray]]) -> None:
    for decoded in batch.decode():
        streamed.setdefault(decoded.key, []).append(decoded.codes)
        if decoded.result is not None:
            results[decoded.key] = decoded.result


def test_a_text_alone_has_the_codes_and_reason_of_generate(lm: TransformerLanguageModel, ids: list[np.ndarray],
                                                           voice: PreparedVoice) -> None:
    for seed, text in enumerate(ids):
        batch, results, streamed = lm.continuous_batch(), dict[int, Generated](), dict[int, list[np.ndarray]]()
        batch.join(7, text, voice, seeded(seed), lm.code_limit(len(text)))
        finish(batch, results, streamed)
        wanted = alone(lm, text, voice, seeded(seed))
        assert np.array_equal(results[7].codes, wanted.codes)
        assert results[7].finish_reason == wanted.finish_reason
        assert np.array_equal(np.concatenate(streamed[7])[:len(wanted.codes)], wanted.codes)


def test_texts_of_other_seeds_that_join_later_have_the_codes_that_they_have_alone(
        lm: TransformerLanguageModel, ids: list[np.ndarray], voice: PreparedVoice) -> None:
    batch, results, streamed = lm.continuous_batch(), dict[int, Generated](), dict[int, list[np.ndarray]]()
    for key, text in enumerate(ids):
        batch.join(key, text, voice, seeded(key), lm.code_limit(len(text)))
        collect(batch, results, streamed)
    finish(batch, results, streamed)
    for key, text in enumerate(ids):
        assert np.array_equal(results[key].codes, alone(lm, text, voice, seeded(key)).codes)


def test_a_text_that_leaves_changes_no_other(lm: TransformerLanguageModel, ids: list[np.ndarray],
                                             voice: PreparedVoice) -> None:
    batch, results, streamed = lm.continuous_batch(), dict[int, Generated](), dict[int, list[np.ndarray]]()
    for key, text in enumerate(ids[:3]):
        batch.join(key, text, voice, seeded(key), lm.code_limit(len(text)))
    collect(batch, results, streamed)
    left = next(iter(batch.keys))
    batch.leave([left])
    assert left not in batch.keys
    finish(batch, results, streamed)
    assert left not in results
    for key in set(range(3)) - {left}:
        assert np.array_equal(results[key].codes, alone(lm, ids[key], voice, seeded(key)).codes)


def test_a_limit_that_is_no_multiple_of_eight_moves_no_check_of_the_others(
        lm: TransformerLanguageModel, ids: list[np.ndarray], voice: PreparedVoice) -> None:
    batch, results, streamed = lm.continuous_batch(), dict[int, Generated](), dict[int, list[np.ndarray]]()
    batch.join(0, ids[0], voice, seeded(0), 13)
    batch.join(1, ids[2], voice, seeded(1), lm.code_limit(len(ids[2])))
    finish(batch, results, streamed)
    assert len(results[0].codes) <= 13
    assert np.array_equal(results[1].codes, alone(lm, ids[2], voice, seeded(1)).codes)


def test_guided_and_unguided_texts_do_not_mix(lm: TransformerLanguageModel, ids: list[np.ndarray],
                                              voice: PreparedVoice) -> None:
    batch = lm.continuous_batch()
    batch.join(0, ids[0], voice, seeded(0), 40)
    batch.join(1, ids[1], voice, Sampling(guidance=0.0), 40)
    with pytest.raises(AssertionError):
        batch.decode()
