import pytest

from config.errors import UserError
from config.loading import parse_options
from config.schema import EvaluateOptions, ExportOptions, TokenizerOptions, TrainOptions
from core.jobs.checkpoint_names import folder_of
from core.jobs.events import CheckpointSaved, Journal
from core.jobs.job import Job, create_job
from core.jobs.state import JobBoard
from core.library import catalog
from core.library.checkpoints import Ranking, RankingMetric, write_ranking
from core.library.records import MODEL_RECORD, ModelRecord, write_record
from core.submission import storage
from core.submission.job_chains import ChainOptions, submit_chain
from core.workspace import Workspace


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
    assert catalog.resolve(workspace, "base:tiny").folder == workspace.models / "tiny"
    assert catalog.resolve(workspace, "export:mine").folder == workspace.exports / "mine"


def test_a_run_is_its_last_best_checkpoint(workspace: Workspace):
    job = trained(workspace, "r", (100, True), (200, True), (300, False))
    found = catalog.resolve(workspace, "run:r")
    assert (found.step, found.folder, found.label) == (200, folder_of(job.directory, 200), "r, step 200")
    assert catalog.resolve(workspace, "run:r@300").step == 300


def test_checkpoints_that_were_removed_are_not_offered(workspace: Workspace):
    trained(workspace, "r", (100, True), (200, True), (300, False), gone=(100,))
    with pytest.raises(UserError, match="no checkpoint of step '100'") as caught:
        catalog.resolve(workspace, "run:r@100")
    assert "200" in caught.value.hint
    trained(workspace, "empty")
    with pytest.raises(UserError, match=r"'empty' has no checkpoint \(not started\)"):
        catalog.resolve(workspace, "run:empty")


def test_a_run_is_known_by_its_short_id_too(workspace: Workspace):
    job = trained(workspace, "train-20261126-181503-de16", (100, True))
    found = catalog.resolve(workspace, "run:de16@100")
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
            catalog.find_training(workspace, name)
    storage.delete(workspace, storage.parse("run:spoken"))
    with pytest.raises(UserError, match=r"no run named 'spoken' \(there: none\)") as caught:
        catalog.resolve(workspace, "run:spoken")
    assert "scripts storage restore run:spoken" in caught.value.hint


@pytest.mark.parametrize("reference", [
    "tiny", "", "file:/etc/passwd", "base:../../x", "run:../../x", "export:..", "run:",
])
def test_a_reference_that_names_no_model_is_refused(workspace: Workspace, reference: str):
    with pytest.raises(UserError, match="is no reference to a model|cannot be a name"):
        catalog.resolve(workspace, reference)


def test_all_that_can_speak_is_listed(workspace: Workspace):
    (workspace.models / "tiny").mkdir()
    (workspace.exports / "mine").mkdir()
    trained(workspace, "r", (100, True))
    trained(workspace, "none")
    create_job(workspace, "export", ExportOptions(run="run:r"))
    found = catalog.list_references(workspace, JobBoard(workspace).states())
    assert [model.reference for model in found] == ["base:tiny", "export:mine", "run:r"]


def test_every_family_says_what_it_is():
    for family in catalog.CATALOG:
        assert all((family.title, family.what, family.languages, family.licence, family.size, family.note))
    assert [family.name for family in catalog.CATALOG] == ["tiny", "chatterbox", "indextts2"]


KEPT = ("facebook/w2v-bert-2.0", "funasr/campplus", "nvidia/bigvgan_v2_22khz_80band_256x")  # by 2.5


def test_every_part_of_indextts2_names_its_licence_and_a_commit_that_was_tested():
    chosen, newer = catalog.find_entry("indextts2").variants
    assert len(chosen.parts) == 5
    assert [licence.name for licence in chosen.licences] == ["bilibili", "MIT", "CC-BY-NC-4.0", "Apache-2.0"]
    assert all(part.licence and len(part.revision) == 40 for part in chosen.parts)
    paths = [part.path(name) for part in chosen.parts for [name] in part.files]
    assert len(set(paths)) == len(paths)
    assert all(chosen.origin(part.path(name)) == (part, name) for part in chosen.parts for [name] in part.files)
    assert [licence.name for licence in newer.licences] == ["bilibili", "MIT", "Apache-2.0"]  # its codec is its own
    kept = [part.revision for part in chosen.parts if part.repository in KEPT]
    assert [part.revision for part in newer.parts] == ["c39ce5ba981572cb187443877ff559dfb246ce63", *kept]
    assert catalog.model_name(catalog.find_entry("indextts2"), newer) == "indextts2-2.5"


@pytest.mark.parametrize("accepted", [(), ("bilibili", "MIT", "Apache-2.0"), ("everything",)])
def test_licences_are_accepted_by_name(accepted: tuple[str, ...]):
    entry = catalog.find_entry("indextts2")
    with pytest.raises(UserError, match="under licences that you have not accepted") as caught:
        catalog.require_licences(entry, entry.variants[0], accepted)
    assert "--accept-licence CC-BY-NC-4.0" in caught.value.hint
    assert "No commercial use" in caught.value.message
    assert ("--accept-licence MIT" in caught.value.hint) == ("MIT" not in accepted)
    catalog.require_licences(entry, entry.variants[0], ("bilibili", "MIT", "Apache-2.0", "CC-BY-NC-4.0"))
    catalog.require_licences(catalog.find_entry("chatterbox"), catalog.find_entry("chatterbox").variants[0], ())


def test_the_chain_is_five_jobs_each_after_the_one_before(workspace: Workspace):
    training = parse_options(TrainOptions, {"steps": 5})
    options = ChainOptions(dataset="mine", language="ti", rules="ti", train=training, name="run-1")
    made = submit_chain(workspace, options, certificate=False)
    assert [job.verb for job in made] == ["download", "prepare", "tokenizer", "extend", "train"]
    assert [job.after for job in made] == [(), *((job.id,) for job in made[:-1])]
    assert made[2].options() == TokenizerOptions(dataset="mine", tokenizer="tiny-ti", rules="ti")
    assert made[4].options() == parse_options(TrainOptions, {"dataset": "mine", "extension": "tiny-ti", "steps": 5})
    assert made[4].id == "run-1"


def test_a_chain_with_a_wrong_name_makes_no_job(workspace: Workspace):
    with pytest.raises(UserError, match="'../../x' cannot be a name"):
        submit_chain(workspace, ChainOptions(dataset="../../x"), certificate=False)
    submit_chain(workspace, ChainOptions(name="taken"), certificate=False)
    before = workspace.list_runs()
    with pytest.raises(UserError, match="'taken' already exists"):
        submit_chain(workspace, ChainOptions(name="taken"), certificate=False)
    assert workspace.list_runs() == before


def test_every_variant_names_its_files_and_its_place_in_the_workspace():
    chatterbox = catalog.find_entry("chatterbox")
    names = [catalog.model_name(chatterbox, one) for one in chatterbox.variants]
    assert names[:2] == ["chatterbox", "chatterbox-multilingual-v2"]
    assert len(set(names)) == len(names)
    for one in chatterbox.variants:
        files = [choice[0] for part in one.parts for choice in part.files]
        assert len(set(files)) == len(files)
        assert sum(name.startswith("t3_") for name in files) == 1
        assert sum(name.endswith(".json") and name != "Cangjie5_TC.json" for name in files) == 1
    assert catalog.variant(chatterbox, "") is catalog.variant(chatterbox, "multilingual-v3")


@pytest.mark.parametrize(("family", "name", "said"), [
    ("chatterbox", "v9", "Chatterbox Multilingual has no variant named 'v9'"), ("tiny", "v3", "leave --variant out"),
])
def test_an_unknown_variant_is_refused_with_those_there_are(family: str, name: str, said: str):
    with pytest.raises(UserError) as caught:
        catalog.variant(catalog.find_entry(family), name)
    assert said in f"{caught.value.message} {caught.value.hint}"


def test_the_family_of_a_model_stands_in_its_record(workspace: Workspace):
    for name in ("tiny", "mine"):
        (workspace.models / name).mkdir()
    write_record(workspace.models / "mine" / MODEL_RECORD, ModelRecord("chatterbox", "hi", "a/b", "c" * 40, "main", {}))
    assert catalog.family_of(workspace, "mine") == "chatterbox"
    assert catalog.family_of(workspace, "tiny") == "tiny"
    with pytest.raises(UserError, match="no base model named 'other'"):
        catalog.family_of(workspace, "other")


@pytest.mark.parametrize("text", [
    "[]", "{}", '{"family": "chatterbox"}', "\x00",
    '{"family": "f", "variant": "v", "repository": "r", "revision": "", "requested_revision": "", '
    '"files": {"../x": {"size": 1, "sha256": ""}}}',
])
def test_a_damaged_or_malicious_record_is_refused(workspace: Workspace, text: str):
    (workspace.models / "mine").mkdir()
    (workspace.models / "mine" / "model.json").write_text(text)
    with pytest.raises(UserError, match="model.json"):
        catalog.family_of(workspace, "mine")
