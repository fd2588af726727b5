"""Clips longer than the model can hold are counted and named when features are made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from core.dataset.model_limits import find_too_long, warn_too_long
from core.model.loading import load_base
from core.workspace import Workspace
from data import manifest
from data.feature_cache import FeatureCache
from data.manifest import ManifestClip, PreparedDataset
from models.registry import family
from tests.unit.small_data import Recorder
from tests.worlds import write_dataset, write_model


@pytest.fixture
def world(tmp_path: Path) -> Workspace:
    workspace = Workspace.open(tmp_path)
    write_model(workspace.models / "tiny")
    write_dataset(workspace)
    return workspace


def test_long_clips_are_told_with_their_numbers(world: Workspace) -> None:
    dataset = manifest.load(world.dataset("demo-am"))
    cache = FeatureCache(world.cache, family("tiny").extractor_fingerprint(world.model("tiny")))
    cache.save_pack(dataset.card.fingerprint, [clip.sha256 for clip in dataset.clips])
    codes = {clip.id: len(cache.load(clip.sha256)["speech_codes"]) for clip in dataset.clips}
    most = max(codes.values())
    longest = [name for name, count in codes.items() if count == most]
    assert [clip.id for clip, _ in find_too_long(dataset, cache, most - 1)] == longest
    reporter = Recorder()
    assert warn_too_long(dataset, cache, most - 1, reporter) == 4
    assert f"4 of 16 clips are longer than the {most - 1} codes that the model can hold" in reporter.warnings
    assert f"{longest[0]} ({most} codes, 0.8 s)" in reporter.warnings
    assert warn_too_long(dataset, cache, most, Recorder()) == 0


@pytest.mark.parametrize(("source", "words"), [
    ("/home/me/speech", "Cut these recordings into ones of at most 10 s"),
    ("segments:talks", "with --max-clip-s 10 (python -m scripts segment or python -m scripts align; on the page: "),
])
def test_who_reads_of_long_clips_reads_what_to_do(source: str, words: str) -> None:
    clips = tuple(ManifestClip(name, f"audio/{name}.flac", "ሰላም", "am", "train", seconds, "one", name)
                  for name, seconds in (("a", 9.0), ("b", 12.01), ("c", 14.99)))
    dataset = PreparedDataset(Path("d"), manifest.make_card("d", "am", source, clips), clips)
    reporter = Recorder()
    assert warn_too_long(dataset, CodesOf({"a": 225, "b": 301, "c": 375}), 255, reporter) == 2  # 25 codes a second
    assert words in reporter.warnings


class CodesOf(FeatureCache):
    """A cache that knows lengths alone."""

    def __init__(self, codes: dict[str, int]) -> None:
        self.codes = codes

    def lengths(self, dataset: str, name: str) -> Iterator[tuple[str, int]]:
        yield from self.codes.items()


def test_the_limit_is_read_from_headers_and_is_the_models_own(world: Workspace) -> None:
    model = load_base(world, "tiny", torch.device("cpu")).lm
    assert family("tiny").max_speech_length(world.model("tiny")) == model.max_speech_length == 63
