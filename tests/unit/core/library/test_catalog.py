import pytest

from config.errors import UserError
from config.loading import parse_options
from config.schema import TokenizerOptions, TrainOptions
from core.library import catalog
from core.submission.job_chains import ChainOptions, submit_chain
from core.workspace import Workspace


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
