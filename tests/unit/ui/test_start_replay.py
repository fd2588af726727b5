"""Recordings in a language of the base are offered where they can be rehearsed, and not where they would be learnt."""

from __future__ import annotations

import pytest

from config.errors import UserError
from config.schema import TokenizerOptions, TrainOptions
from core.library.lineage import Model
from core.submission.jobs import check_requirements
from core.workspace import Workspace
from data import manifest
from ui import form, start, verb_form
from ui.live import View


@pytest.fixture
def with_english(world: Workspace) -> Workspace:
    there = manifest.load(world.dataset("demo-am"))
    for name, language in (("english", "en"), ("french", "fr")):
        (world.datasets / name).mkdir()
        clips = [type(clip)(**{**vars(clip), "language": language, "text": "le cat"}) for clip in there.clips]
        manifest.save(world.datasets / name, manifest.make_card(name, language, "tones", clips), clips)
    return world


def test_they_are_offered_for_replay_alone(with_english: Workspace) -> None:
    assert Model.open(with_english, "base:tiny").languages == ("en", "fr")
    assert verb_form.trainable_datasets(with_english, "tiny-am") == ["demo-am"]
    assert verb_form.replayable_datasets(with_english, "tiny-am", "") == ["", "english", "french", "english, french"]
    assert verb_form.replayable_datasets(with_english, "tiny-am", "french,english")[-1] == "french,english"
    assert "demo-am" not in verb_form.replayable_datasets(with_english, "tiny-am", "demo-am")
    assert verb_form.replayable_datasets(with_english, "none", "") == [""]
    choices = start.language_choices(with_english, View("start", {"start_language": "am"}, ()))
    assert isinstance(choices, dict)
    assert [code for _, code in choices["choices"]] == ["am"]


def test_an_empty_choice_is_none() -> None:
    assert form.parse(TrainOptions, {"replay_datasets": None}).full.replay_datasets == ""


def test_no_tokenizer_is_made_of_them(with_english: Workspace) -> None:
    with pytest.raises(UserError, match="'english' is in English .en., which the base model already speaks") as caught:
        check_requirements(with_english, "tokenizer", TokenizerOptions(dataset="english", tokenizer="new"))
    assert "--replay-datasets english" in caught.value.hint
