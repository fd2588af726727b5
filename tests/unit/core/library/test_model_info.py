"""What the page offers for a model agrees with what the models' own code says."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from config.schema import TrainOptions
from core.jobs.state import JobBoard
from core.library import model_info, presets
from core.library.catalog import CATALOG, ModelReference, find_entry, resolve
from core.workspace import Workspace
from data import normalisers
from models import registry
from models.chatterbox.front_end import LANGUAGES
from tests.trained import RUN, trained_world, write_checkpoint
from ui import listen, voice_settings
from ui.live import View

MADE_UP = Path(__file__).resolve().parents[3] / "reference" / "chatterbox"
NAMES = [one.name for one in CATALOG]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return trained_world(tmp_path_factory.mktemp("world") / "workspace")


@pytest.mark.parametrize("name", NAMES)
def test_the_catalog_tells_what_the_family_does(name: str) -> None:
    told, does = find_entry(name), registry.family(name)
    own = dataclasses.asdict(does.sampling)
    assert told.sampling == {field: value for field, value in own.items()
                             if field not in ("seed", "position_scheme", "alignment_guard")}
    assert told.sound_options == does.sound_options


def test_the_catalog_names_the_languages_of_every_variant() -> None:
    codes = {variant.name: variant.codes for variant in find_entry("chatterbox").variants}
    assert codes["multilingual-v3"] == LANGUAGES
    assert codes["english"] == ("en",)
    assert codes["pt-br"] == ("pt",)
    assert {code for found in codes.values() for code in found} <= set(LANGUAGES)


@pytest.mark.parametrize("name", NAMES)
def test_every_family_has_a_preset_for_its_training(name: str) -> None:
    assert isinstance(presets.for_family(name, "train", TrainOptions), TrainOptions)


def test_the_preset_of_chatterbox_is_not_that_of_the_demo() -> None:
    chosen = presets.for_family("chatterbox", "train", TrainOptions)
    assert (chosen.scope, chosen.adapters.adapter_rank, chosen.evaluation.evaluation_sentences) == ("gated", 32, 4)
    assert (chosen.optimization.row_lr, chosen.optimization.adapter_lr) == (1e-3, 1e-4)
    assert (chosen.batches.batch_size, chosen.batches.gradient_accumulation) == (8, 2)


def test_languages_that_were_added_here_come_first(world: Workspace) -> None:
    assert model_info.languages(world, resolve(world, "base:tiny")) == ("en", "fr")
    assert model_info.languages(world, resolve(world, f"run:{RUN}")) == ("am", "en", "fr")


def test_a_published_model_speaks_what_its_variant_says(world: Workspace) -> None:
    folder = world.models / "mine"
    folder.mkdir()
    (folder / "model.json").write_text('{"family": "chatterbox", "variant": "hi", "repository": "", "revision": "", '
                                       '"requested_revision": "", "files": {}}', encoding="utf-8")
    (folder / "conds.pt").write_bytes(b"")
    model = ModelReference("base:mine", "base", "mine", folder)
    assert model_info.languages(world, model) == ("hi",)
    assert model_info.voice_names(world, "mine") == ("built-in",)
    assert model_info.family_of_reference(world, model).name == "chatterbox"


def test_the_voices_of_the_built_in_model_are_those_it_has(world: Workspace) -> None:
    own = registry.family("tiny").load_voices(world.model("tiny"))
    assert set(model_info.voice_names(world, "tiny")) == set(own)


def test_what_a_trained_voice_was_made_from(world: Workspace) -> None:
    voice = resolve(world, f"run:{RUN}")
    assert model_info.base_model_of(voice) == "tiny"
    assert model_info.family_of_reference(world, voice).name == "tiny"
    assert model_info.model_of_extension(world, "tiny-am") == "tiny"
    assert model_info.languages_of_extension(world, "tiny-am") == ("am",)


@pytest.mark.parametrize("code", LANGUAGES)
def test_a_missing_package_is_told_as_the_front_end_tells_it(code: str) -> None:
    files = {name: (MADE_UP / name).read_bytes() for name in normalisers.DATA_FILES}
    lacks = normalisers.missing(normalisers.for_base_language(code, True), files)
    told = model_info.text_package_hint(find_entry("chatterbox"), code, added=False)
    assert bool(told) == ("needs the package" in lacks)
    if told:
        assert told.split("package ")[1].split(",")[0] in lacks


def test_a_language_that_was_added_here_needs_no_package() -> None:
    assert model_info.text_package_hint(find_entry("chatterbox"), "ja", added=True) == ""
    assert model_info.text_package_hint(find_entry("tiny"), "ja", added=False) == ""


def test_presets_are_files_of_the_repository() -> None:
    root = Path(__file__).resolve().parents[4]
    assert {find_entry(name).preset
            for name in NAMES} <= {path.stem for path in (root / "config/presets").glob("*")}


def test_a_run_whose_record_is_gone_does_not_empty_the_listen_tab(world: Workspace) -> None:
    name = "cut-off"
    write_checkpoint(world, "rows", name=name)
    (resolve(world, f"run:{name}").folder / "checkpoint.json").unlink()
    chosen = {"finetuned": f"run:{name}", "base": "", "voice": "", "language": "am"}
    view = View("listen", chosen, tuple(JobBoard(world).states()))
    before, after = voice_settings.selected_models(world, view)
    assert before is not None
    assert after is not None
    assert after.reference == f"run:{name}"
    assert voice_settings.family_of(world, view).name == "tiny"
    assert "could not be read" in voice_settings.readiness(world, view)


def test_examples_are_in_the_language_that_the_page_shows(world: Workspace) -> None:
    """Without a trained model the page shows the base's first language in the place of Amharic."""
    chosen = {"finetuned": voice_settings.BASE_ONLY, "base": "base:tiny", "voice": "", "language": "am"}
    view = View("listen", chosen, ())
    page = SimpleNamespace(workspace=world)
    assert listen._language(page, view) == "en"  # type: ignore[arg-type]
    examples = listen._example_choices(page, view)  # type: ignore[arg-type]
    assert isinstance(examples, dict)
    assert set(listen.EXAMPLES["en"]) <= set(examples["choices"])
