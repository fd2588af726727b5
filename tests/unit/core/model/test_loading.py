"""A run or an export as the base of the next language: by its name, in every kind of adapters, and what is refused."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest
import torch

from config.errors import UserError
from config.loading import parse_options
from config.schema import ExtendOptions, TokenizerOptions, TrainOptions
from core import export, extend, tokenizer
from core.export import same_logits
from core.jobs.state import JobBoard
from core.library import artefacts, records
from core.library.lineage import Model
from core.model.loading import TTSModel, load, load_model_to_extend
from core.proof import certification
from core.submission.jobs import check_requirements
from core.training import setup
from core.workspace import Workspace
from data import manifest
from data.front_end import FrontEnd
from tests.trained import RUN, trained_world, write_checkpoint
from tests.worlds import GREEK, Listener, export_options, train_options, write_dataset
from ui import start, verb_form
from ui.live import View
from ui.records import read_json

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A run in Amharic, and recordings in Greek."""
    workspace = trained_world(tmp_path_factory.mktemp("world") / "workspace")
    write_dataset(workspace, "demo-el", language="el", letters=GREEK)
    return workspace


def add_greek(workspace: Workspace, base: str) -> None:
    """Tokenizer and extension, by the verbs."""
    tokenizer.run(TokenizerOptions(model=base, dataset="demo-el", tokenizer="tiny-am-el"), workspace,
                  Listener(workspace.runs / "tokenizer-el"))
    extend.run(ExtendOptions(model=base, tokenizer="tiny-am-el", extension="tiny-am-el"), workspace,
               Listener(workspace.runs / "extend-el"))


@pytest.fixture(scope="module")
def extended(world: Workspace) -> Workspace:
    add_greek(world, RUN)
    return world


def samples(model: TTSModel) -> list[certification.ProbeSample]:
    return [*certification.base_probes(model), *certification.row_probes(model, ["am"])]


def test_a_run_is_a_model_by_its_plain_name(extended: Workspace) -> None:
    assert Model.find(extended, RUN) == Model.open(extended, f"run:{RUN}")
    assert Model.find(extended, "tiny").kind == "base"
    with pytest.raises(UserError, match="no base model named 'tiny-sw'"):
        Model.find(extended, "tiny-sw")
    front_end = FrontEnd.load(extended.tokenizer("tiny-am-el"))
    trained = load(extended, f"run:{RUN}", CPU).front_end
    assert front_end.up_to("am").fingerprint == trained.fingerprint
    assert {token.language for token in front_end.added_to(trained)} == {"el"}
    proofs = records_of_report(extended)
    assert proofs["am"]["same"]
    assert len(proofs["am"]["sentences"]) == 4  # its held-out ones


def records_of_report(workspace: Workspace) -> dict[str, dict]:
    report = read_json(workspace.tokenizer("tiny-am-el") / "report.json")
    return {proof["language"]: proof for proof in report["proofs"]}


def test_the_extension_records_where_each_language_comes_from(extended: Workspace) -> None:
    record = records.read_extension(extended.extension("tiny-am-el"))
    assert record.languages == ("el",)
    [training] = record.origin.earlier_trainings
    assert (training.language, training.source, training.dataset) == ("am", f"run:{RUN}@8", "demo-am")
    assert record.origin.first_new_row == training.size < record.origin.size
    before, after = load(extended, f"run:{RUN}", CPU), load(extended, "extension:tiny-am-el", CPU)
    assert all(same_logits_before(before, after, item) for item in samples(before))


def same_logits_before(before: TTSModel, after: TTSModel, item: certification.ProbeSample) -> bool:
    with torch.inference_mode(), before.adapters_for(item.language), after.adapters_for(item.language):
        return certification.equal_logits(before.lm.probe(item.sample), after.lm.probe(item.sample))


KINDS: tuple[dict[str, object], ...] = (
    {"scope": "rows"}, {"scope": "gated"}, {"scope": "gated", "adapter": "dora"},
    {"scope": "gated", "adapter": "adalora"})


FAST = ((0, 1), (1, 3), (2, 2), (3, 1))


@pytest.mark.parametrize("pair", [pytest.param(pair, marks=[] if pair in FAST else pytest.mark.slow)
                                  for pair in itertools.product(range(4), range(4))], ids=str)
def test_adapters_of_every_kind_stand_beside_those_of_every_other(extended: Workspace, tmp_path: Path,
                                                                 pair: tuple[int, int]) -> None:
    workspace = Workspace.open(tmp_path / "workspace")
    for part in ("models", "datasets", "tokenizers", "cache"):
        shutil.copytree(extended.path / part, workspace.path / part, dirs_exist_ok=True)
    shutil.copytree(extended.extension("tiny-am"), workspace.extensions / "tiny-am")
    first, second = (dict(KINDS[index]) for index in pair)
    write_checkpoint(workspace, str(first.pop("scope")), **first)
    extend.run(ExtendOptions(model=RUN, tokenizer="tiny-am-el", extension="tiny-am-el"), workspace,
               Listener(workspace.runs / "extend-el"))
    write_checkpoint(workspace, str(second.pop("scope")), name="run-el", extension="tiny-am-el", dataset="demo-el",
                     **second)
    before, after = load(workspace, f"run:{RUN}", CPU), load(workspace, "run:run-el", CPU)
    assert all(same_logits_before(before, after, item) for item in samples(before))
    again = load_model_to_extend(workspace, "run-el", CPU)  # all frozen, as the base of a third language
    own = certification.row_probes(after, ["el"])
    assert all(same_logits(after, again, item) for item in [*samples(before), *own])
    assert not any(value.requires_grad for value in again.lm.module.parameters())


def test_an_earlier_training_must_be_what_was_taken(extended: Workspace, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    shutil.copytree(extended.path, workspace.path)
    rows = workspace.extension("tiny-am-el") / records.EARLIER_TRAININGS / "am" / records.ROWS
    content = bytearray(rows.read_bytes())
    content[-1] ^= 1
    rows.write_bytes(bytes(content))
    with pytest.raises(UserError, match="does not hold the earlier trainings"):
        load(workspace, "extension:tiny-am-el", CPU)


def test_refusals(extended: Workspace) -> None:
    listener = Listener(extended.runs / "again")
    tokenizer.run(TokenizerOptions(model="tiny", dataset="demo-el", tokenizer="tiny-el"), extended, listener)
    with pytest.raises(UserError, match="does not begin with what the model has"):
        extend.run(ExtendOptions(model=RUN, tokenizer="tiny-el", extension="again"), extended, listener)
    with pytest.raises(UserError, match="adds no token to run-am"):
        extend.run(ExtendOptions(model=RUN, tokenizer="tiny-am", extension="again"), extended, listener)
    shutil.rmtree(extended.tokenizer("tiny-el"))
    with pytest.raises(UserError, match="changes the base, and with it am"):
        setup.new_model(train_options(scope="full", extension="tiny-am-el", dataset="demo-el"), extended, CPU)
    with pytest.raises(UserError, match="earlier training of the model added"):
        check_requirements(extended, "tokenizer", TokenizerOptions(model=RUN, dataset="demo-am"))
    with pytest.raises(UserError, match="earlier training of the model added"):
        check_requirements(extended, "train", TrainOptions(extension="tiny-am-el", dataset="demo-am"))
    with pytest.raises(UserError, match="names no model"):
        parse_options(ExtendOptions, {"model": "extension:tiny-am"})
    write_checkpoint(extended, "full", name="run-full", full_trainable="adapters")
    with pytest.raises(UserError, match="trained in scope 'full'"):
        load_model_to_extend(extended, "run-full", CPU)
    assert f"run:{RUN}" in buildable(extended)
    assert "run:run-full" not in buildable(extended)


def buildable(workspace: Workspace) -> list[str]:
    return verb_form.models_to_build_upon(workspace, JobBoard(workspace).states())


def test_the_page_offers_it_and_makes_a_chain_of_it(extended: Workspace) -> None:
    states = tuple(JobBoard(extended).states())
    labels = {name: label for label, name in start.models(extended, states)}
    assert labels[f"run:{RUN}"] == f"Built-in tiny model with Amharic (run {RUN})"
    assert artefacts.matching_tokenizers(extended, f"run:{RUN}") == ["tiny-am-el"]
    assert artefacts.matching_tokenizers(extended, "tiny") == ["tiny-am"]
    assert verb_form.tokenizer_name(extended, f"run:{RUN}", "demo-el") == "tiny-am-el"
    view = View("start", {"start_model": f"run:{RUN}", "start_language": "el"}, states)
    offered = dict(start.language_choices(extended, view)["choices"])  # type: ignore[index]
    assert "el" in offered.values()
    assert "am" not in offered.values()
    chain = start.chain_options(extended, f"run:{RUN}", "el", "demo-el", start.QUICK, states)
    assert chain.model == f"run:{RUN}"
    assert chain.extended.startswith("tiny-am-demo-el")  # the other name is taken
    assert start.comparison_options(extended, chain).base == f"run:{RUN}"


def test_an_export_holds_every_language_and_is_a_base_by_its_name(extended: Workspace) -> None:
    """The same for every family, and a third language: `tests/contract/test_second_language.py`."""
    write_checkpoint(extended, "gated", name="run-el", extension="tiny-am-el", dataset="demo-el")
    export.run(export_options(run="run:run-el", export="both"), extended, Listener(extended.runs / "export-both"))
    trained, exported = load(extended, "run:run-el", CPU), load(extended, "export:both", CPU)
    own = certification.row_probes(trained, ["el"])
    assert all(same_logits(trained, exported, item) for item in [*samples(trained), *own])
    assert (extended.exports / "both" / records.EARLIER_TRAININGS / "am" / records.ROWS).is_file()
    card = (extended.exports / "both" / records.EXPORT_CARD).read_text(encoding="utf-8")
    assert f"Earlier trainings added: am (`run:{RUN}@8`)" in card
    assert "It speaks el like the rest of this export" in card
    assert (extended.exports / "both" / "samples" / "am.wav").is_file()
    options = train_options(extension="tiny-am-el", dataset="demo-el", init_from="run:run-el")
    fresh = setup.warm_start(extended, options.checkpoints.init_from, setup.new_model(options, extended, CPU), print)
    assert all(same_logits(trained, fresh, item) for item in [*samples(trained), *own])
    base = load_model_to_extend(extended, "both", CPU)
    assert [one.record.source for one in base.earlier_trainings] == [f"run:{RUN}@8", "export:both"]
    assert all(same_logits(trained, base, item) for item in [*samples(trained), *own])


def test_a_variant_of_an_earlier_language_is_read_as_that_language(extended: Workspace) -> None:
    """Variants of base languages in every family: `tests/contract/test_variant.py`."""
    write_dataset(extended, "studio", language="am-studio")
    listener, options = Listener(extended.runs / "studio"), {"dataset": "studio", "tokenizer": "studio"}
    tokenizer.run(TokenizerOptions(model=RUN, variant_of="am", **options), extended, listener)
    front_end, trained = FrontEnd.load(extended.tokenizer("studio")), load(extended, f"run:{RUN}", CPU).front_end
    assert [token.text for token in front_end.added_to(trained)] == ["[am-studio]"]
    for clip in manifest.load(extended.dataset("studio")).clips:
        assert front_end.body(clip.text, "am-studio") == trained.body(clip.text, "am")
    shutil.rmtree(extended.tokenizer("studio"))
    with pytest.raises(UserError, match="read as that language is"):
        tokenizer.run(TokenizerOptions(model=RUN, variant_of="am", merges=5, **options), extended, listener)
    with pytest.raises(UserError, match=r"characters that 'en' lacks: .*U\+12"):
        tokenizer.run(TokenizerOptions(model="tiny", variant_of="en", **options), extended, listener)
    assert "studio" not in extended.list_tokenizers()
