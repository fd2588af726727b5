"""What a reference names, and what the page offers for a model agrees with what the models' own code says."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from config.errors import UserError
from config.schema import EvaluateOptions, ExportOptions, TrainOptions
from core.jobs.checkpoint_names import folder_of
from core.jobs.events import CheckpointSaved, Journal
from core.jobs.job import Job, create_job
from core.jobs.state import JobBoard
from core.library import catalog, lineage, presets, records
from core.library.catalog import CATALOG, find_entry
from core.library.checkpoints import Ranking, RankingMetric, write_ranking
from core.library.lineage import Model
from core.library.records import MODEL_RECORD, ModelRecord, write_record
from core.submission import storage
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


def trained(workspace: Workspace, name: str, *saved: tuple[int, bool], gone: tuple[int, ...] = ()) -> Job:
    job = create_job(workspace, "train", TrainOptions(), job_id=name)
    journal = Journal(job.journal)
    for step, best in saved:
        if step not in gone:
            folder_of(job.directory, step).mkdir(parents=True)
        journal.append(CheckpointSaved(step, f"checkpoints/step-{step:06d}", best))
    if best_steps := [step for step, best in saved if best]:
        values = {step: float(-number) for number, step in enumerate(best_steps)}
        write_ranking(job.directory, Ranking(RankingMetric.CER, best_steps[-1], values))
    return job


def test_bases_and_exports_are_their_folders(workspace: Workspace):
    (workspace.models / "tiny").mkdir()
    (workspace.exports / "mine").mkdir()
    assert Model.open(workspace, "base:tiny").folder == workspace.models / "tiny"
    assert Model.open(workspace, "export:mine").folder == workspace.exports / "mine"


def test_a_run_is_its_last_best_checkpoint(workspace: Workspace):
    job = trained(workspace, "r", (100, True), (200, True), (300, False))
    found = Model.open(workspace, "run:r")
    assert (found.step, found.folder, found.label) == (200, folder_of(job.directory, 200), "r, step 200")
    assert Model.open(workspace, "run:r@300").step == 300


def test_checkpoints_that_were_removed_are_not_offered(workspace: Workspace):
    trained(workspace, "r", (100, True), (200, True), (300, False), gone=(100,))
    with pytest.raises(UserError, match="no checkpoint of step '100'") as caught:
        Model.open(workspace, "run:r@100")
    assert "200" in caught.value.hint
    trained(workspace, "empty")
    with pytest.raises(UserError, match=r"'empty' has no checkpoint \(not started\)"):
        Model.open(workspace, "run:empty")


def test_a_run_is_known_by_its_short_id_too(workspace: Workspace):
    job = trained(workspace, "train-20261126-181503-de16", (100, True))
    found = Model.open(workspace, "run:de16@100")
    assert (found.reference, found.name, found.step) == (f"run:{job.id}@100", job.id, 100)
    assert create_job(workspace, "export", ExportOptions(run="run:de16@100")).settings["run"] == f"run:{job.id}@100"
    evaluation = create_job(workspace, "evaluate", EvaluateOptions(models=("base:tiny", "run:de16+romanised")))
    assert evaluation.settings["models"] == ["base:tiny", f"run:{job.id}+romanised"]


def test_of_what_is_no_run_the_trainings_are_named_that_can_be_used(workspace: Workspace):
    trained(workspace, "spoken", (100, True))
    trained(workspace, "silent")
    exporting = create_job(workspace, "export", ExportOptions(run="run:spoken"))
    for name in ("nope", exporting.id):
        with pytest.raises(UserError, match=rf"There is no run named '{name}' \(there: spoken\)"):
            lineage.find_training(workspace, name)
    storage.delete(workspace, storage.parse("run:spoken"))
    with pytest.raises(UserError, match=r"no run named 'spoken' \(there: none\)") as caught:
        Model.open(workspace, "run:spoken")
    assert "scripts storage restore run:spoken" in caught.value.hint


@pytest.mark.parametrize("reference", [
    "tiny", "", "file:/etc/passwd", "base:../../x", "run:../../x", "export:..", "run:",
])
def test_a_reference_that_names_no_model_is_refused(workspace: Workspace, reference: str):
    with pytest.raises(UserError, match="is no reference to a model|cannot be a name"):
        Model.open(workspace, reference)


def test_all_that_can_speak_is_listed(workspace: Workspace):
    (workspace.models / "tiny").mkdir()
    (workspace.exports / "mine").mkdir()
    trained(workspace, "r", (100, True))
    trained(workspace, "none")
    create_job(workspace, "export", ExportOptions(run="run:r"))
    found = lineage.list_models(workspace, JobBoard(workspace).states())
    assert [model.reference for model in found] == ["base:tiny", "export:mine", "run:r"]


def test_the_family_of_a_model_stands_in_its_record(workspace: Workspace):
    for name in ("tiny", "mine"):
        (workspace.models / name).mkdir()
    write_record(workspace.models / "mine" / MODEL_RECORD, ModelRecord("chatterbox", "hi", "a/b", "c" * 40, "main", {}))
    assert Model.open(workspace, "base:mine").family_name == "chatterbox"
    assert Model.open(workspace, "base:tiny").family_name == "tiny"
    with pytest.raises(UserError, match="no base model named 'other'"):
        Model.open(workspace, "base:other")


@pytest.mark.parametrize("text", [
    "[]", "{}", '{"family": "chatterbox"}', "\x00",
    '{"family": "f", "variant": "v", "repository": "r", "revision": "", "requested_revision": "", '
    '"files": {"../x": {"size": 1, "sha256": ""}}}',
])
def test_a_damaged_or_malicious_record_is_refused(workspace: Workspace, text: str):
    (workspace.models / "mine").mkdir()
    (workspace.models / "mine" / "model.json").write_text(text)
    with pytest.raises(UserError, match="model.json"):
        _ = Model.open(workspace, "base:mine").family_name


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
    assert Model.open(world, "base:tiny").languages == ("en", "fr")
    assert Model.open(world, f"run:{RUN}").languages == ("am", "en", "fr")


def test_a_published_model_speaks_what_its_variant_says(world: Workspace) -> None:
    folder = world.models / "mine"
    folder.mkdir()
    (folder / "model.json").write_text('{"family": "chatterbox", "variant": "hi", "repository": "", "revision": "", '
                                       '"requested_revision": "", "files": {}}', encoding="utf-8")
    (folder / "conds.pt").write_bytes(b"")
    model = Model(world, "base:mine", "base", "mine", folder)
    assert model.languages == ("hi",)
    assert model.voices == ("built-in",)
    assert model.family.name == "chatterbox"


def test_the_voices_of_the_built_in_model_are_those_it_has(world: Workspace) -> None:
    own = registry.family("tiny").load_voices(world.model("tiny"))
    assert set(Model.open(world, "base:tiny").voices) == set(own)


def test_what_a_trained_voice_was_made_from(world: Workspace) -> None:
    voice = Model.open(world, f"run:{RUN}")
    assert voice.base_name == "tiny"
    assert voice.family.name == "tiny"
    assert records.read_extension(world.extension("tiny-am")).origin.model == "tiny"
    assert records.read_extension(world.extension("tiny-am")).languages == ("am",)


@pytest.mark.parametrize("code", LANGUAGES)
def test_a_missing_package_is_told_as_the_front_end_tells_it(code: str) -> None:
    files = {name: (MADE_UP / name).read_bytes() for name in normalisers.DATA_FILES}
    lacks = normalisers.missing(normalisers.for_base_language(code, True), files)
    told = catalog.text_package_hint(find_entry("chatterbox"), code, added=False)
    assert bool(told) == ("needs the package" in lacks)
    if told:
        assert told.split("package ")[1].split(",")[0] in lacks


def test_a_language_that_was_added_here_needs_no_package() -> None:
    assert catalog.text_package_hint(find_entry("chatterbox"), "ja", added=True) == ""
    assert catalog.text_package_hint(find_entry("tiny"), "ja", added=False) == ""


def test_presets_are_files_of_the_repository() -> None:
    root = Path(__file__).resolve().parents[4]
    assert {find_entry(name).preset
            for name in NAMES} <= {path.stem for path in (root / "config/presets").glob("*")}


def test_a_run_whose_record_is_gone_does_not_empty_the_listen_tab(world: Workspace) -> None:
    name = "cut-off"
    write_checkpoint(world, "rows", name=name)
    (Model.open(world, f"run:{name}").folder / "checkpoint.json").unlink()
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
