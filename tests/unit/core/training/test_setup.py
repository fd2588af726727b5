"""A run goes on with its own vocabulary, front-end and clips alone, told by content; a new one may take its weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from config.errors import UserError
from config.schema import ExtendOptions, TrainOptions, in_sections, without_sections
from core import compute, extend, train
from core.jobs import checkpoint_names
from core.jobs.reporter import StopRequested
from core.library import checkpoints, records
from core.library.checkpoints import RankingMetric
from core.model.loading import TTSModel, load_base, load_checkpoint
from core.model.precision import Precision
from core.model.prefix import new_rows
from core.submission.jobs import check_requirements
from core.training import checkpoint, checkpoint_evaluation, setup
from core.workspace import Workspace
from data import normalisers
from data.durable_files import hash_tree
from models.registry import family
from tests.files_before_sections import write_without_sections
from tests.worlds import SYLLABLES, Listener, extended_world, train_options, write_model

CPU = torch.device("cpu")
CHANGES = {"evaluation_sentences": 0, "checkpoint_every": 100}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A small world with a run that was stopped after two steps."""
    world = extended_world(tmp_path_factory.mktemp("world"))
    with pytest.raises(StopRequested):
        train.run(train_options(**CHANGES), world, Listener(world.runs / "one", 2))
    named(world.runs / "one", 2)
    return world


def named(run: Path, step: int) -> None:
    """Let a run that no worker made be found by its name, with its checkpoint of `step`."""
    (run / "config.yaml").write_text("{verb: train, device: cpu, after: [], created: 0, options: {}}")
    said = {"event": "checkpoint", "step": step, "path": f"checkpoints/step-{step:06d}", "best": True, "time": 0.0}
    (run / "events.jsonl").write_text(json.dumps(said) + "\n")


@pytest.fixture
def world(made: Workspace, tmp_path: Path) -> Workspace:
    shutil.copytree(made.path, tmp_path / "workspace")
    return Workspace.open(tmp_path / "workspace")


def resumed(world: Workspace) -> Listener:
    listener = Listener(world.runs / "one", 1)
    with pytest.raises(StopRequested):
        train.run(train_options(**CHANGES), world, listener)
    return listener


def extend_anew(world: Workspace, syllables: Sequence[str], language: str = "am") -> None:
    """The extension `tiny-am` made again with another vocabulary."""
    base = family("tiny").load_front_end(world.model("tiny"))
    front_end = base.extended(language, normalisers.for_language(language, base.style), syllables, [])
    for folder in (world.tokenizers, world.extensions):
        shutil.rmtree(folder / "tiny-am")
    front_end.save(world.tokenizers / "tiny-am")
    extend.run(ExtendOptions(model="tiny", tokenizer="tiny-am", extension="tiny-am"), world,
               Listener(world.runs / "extend-again"))


def test_what_did_not_change_goes_on(world: Workspace) -> None:
    assert resumed(world).of("step")[0].step == 3


def test_a_run_from_before_there_were_sections_goes_on(world: Workspace) -> None:
    folder = checkpoint_names.folder_of(world.runs / "one", 2)
    record = records.read_record(folder / records.CHECKPOINT, records.CheckpointRecord)
    write_without_sections(folder / records.CONFIG)
    (folder / records.CHECKPOINT).unlink()
    records.write_record(folder / records.CHECKPOINT, replace(record, files=hash_tree(folder)))
    assert "steps" in yaml.safe_load((folder / records.CONFIG).read_text("utf-8"))["options"]
    assert resumed(world).of("step")[0].step == 3


def test_fewer_sentences_may_be_evaluated_on_resume_but_the_metric_stays(world: Workspace) -> None:
    run = world.runs / "one"
    path = checkpoint_names.folder_of(run, 2) / records.CONFIG
    saved = yaml.safe_load(path.read_text("utf-8"))
    path.write_text(yaml.safe_dump({**saved, "options": in_sections(
        TrainOptions, {**without_sections(TrainOptions, saved["options"]), "evaluation_sentences": 5})}))
    options = train_options(**{**CHANGES, "evaluation_sentences": 2})
    setup.check_options(run, 2, options, 1)
    with pytest.raises(UserError, match="evaluation_sentences 0, wanted 5"):
        setup.check_options(run, 2, train_options(**CHANGES), 1)


def test_a_vocabulary_of_the_same_size_is_refused_by_its_content(world: Workspace) -> None:
    extend_anew(world, sorted(SYLLABLES[:-1] + "ፐ"))
    with pytest.raises(UserError, match=r"another vocabulary \(57 ids, wanted 57; .*differ: .*'ፐ'") as caught:
        resumed(world)
    assert "--init-from run:one@2" in caught.value.hint


def test_a_run_without_a_checkpoint_is_not_resumed_on_other_rows(world: Workspace) -> None:
    run = Listener(world.runs / "none")
    for _ in range(2):
        setup.setup_run(train_options(**CHANGES), world, run, CPU)
    shutil.rmtree(world.extensions / "tiny-am")
    extend.run(ExtendOptions(model="tiny", tokenizer="tiny-am", extension="tiny-am", initialisation="random"), world,
               Listener(world.runs / "extend-again"))
    with pytest.raises(UserError, match="made again since this run started: its new rows differ"):
        setup.setup_run(train_options(**CHANGES), world, run, CPU)


def test_another_order_of_the_same_tokens_is_another_vocabulary(world: Workspace) -> None:
    extend_anew(world, sorted(SYLLABLES, reverse=True))
    with pytest.raises(UserError, match="another vocabulary"):
        resumed(world)


def test_another_front_end_with_the_same_tokens_is_refused(world: Workspace) -> None:
    settings = world.extensions / "tiny-am" / "front_end" / "front_end.json"
    content = json.loads(settings.read_text("utf-8"))
    content["languages"]["am"]["normaliser"] = "latin"
    settings.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    from data.front_end import FrontEnd

    record = world.extensions / "tiny-am" / "extension.json"
    values = json.loads(record.read_text("utf-8"))
    values["origin"]["fingerprint"] = FrontEnd.load(settings.parent).fingerprint
    record.write_text(json.dumps(values))
    with pytest.raises(UserError, match="tokens are the same, but its text front-end differs"):
        resumed(world)


def test_a_run_goes_on_without_the_extension_it_began_with(world: Workspace) -> None:
    shutil.rmtree(world.extensions / "tiny-am")
    assert resumed(world).of("step")[0].step == 3


def test_features_that_changed_are_refused(world: Workspace) -> None:
    from safetensors.numpy import load_file, save_file

    path = sorted(world.cache.rglob("*.safetensors"))[0]
    arrays = load_file(path)
    arrays["speech_codes"][0] ^= 1
    save_file(arrays, path)
    with pytest.raises(UserError, match="features or ids of its clips"):
        resumed(world)


def shared_by(world: Workspace, world_size: int, **others: object) -> Path:
    """Let the run's checkpoint be one that so many processes made, with other numbers; its folder."""
    folder = checkpoint_names.folder_of(world.runs / "one", 2)
    numbers = folder / "training.json"
    numbers.write_text(json.dumps({**json.loads(numbers.read_text()), "world_size": world_size, **others}))
    there = records.read_checkpoint(folder)
    records.write_record(folder / records.CHECKPOINT,
                  replace(there, files=hash_tree(folder, (records.CHECKPOINT,))))
    return folder


def test_a_run_that_torchrun_shared_out_is_not_continued_alone(world: Workspace) -> None:
    shared_by(world, 2)
    with pytest.raises(UserError, match=r"run one was started with 2 processes by torchrun, with 8 clips in a step; "
                                        r"with 1 process it would be 4, and the order of the clips") as caught:
        resumed(world)
    assert (f"torchrun --nproc-per-node 2 -m scripts.train --workspace {world.path} --resume one"
            in caught.value.hint)
    assert "--init-from run:one@2" in caught.value.hint


def test_torchrun_with_other_processes_is_refused(world: Workspace) -> None:
    with pytest.raises(UserError, match="with 1 process, with 4 clips in a step; with 3 processes") as caught:
        setup.check_options(world.runs / "one", 2, train_options(**CHANGES), 3)
    assert f": python -m scripts train --workspace {world.path} --resume one;" in caught.value.hint


@pytest.mark.parametrize(("dropout", "fits"), [(0.0, True), (0.1, False)])
def test_as_large_steps_may_be_shared_otherwise_unless_each_process_draws(
        world: Workspace, dropout: float, fits: bool) -> None:
    folder = shared_by(world, 2)
    config = folder / records.CONFIG
    saved = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump({**saved, "options": in_sections(
        TrainOptions, {**without_sections(TrainOptions, saved["options"]), "adapter_dropout": dropout})}))
    with nullcontext() if fits else pytest.raises(UserError, match="batch_size 8, wanted 4"):
        setup.check_options(world.runs / "one", 2,
                               train_options(batch_size=8, adapter_dropout=dropout, **CHANGES), 1)


def test_how_many_processes_there_were_is_saved_with_the_generators_of_each(world: Workspace) -> None:
    def gather(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {f"rank-{rank}/{name}": value.clone() for rank in (1, 2)
                for name, value in tensors.items()}

    training_run, _ = train.prepare_run(train_options(**CHANGES), world, Listener(world.runs / "shared"))
    training_run.trainer.group = SimpleNamespace(rank=0, world_size=3, gather=gather, run_on_rank0=lambda work: work())
    training_run.save()
    run = world.runs / "shared"
    state = checkpoint.load_state(run, 0)
    assert (checkpoint.read_world_size(run, 0), state.world_size) == (3, 3)
    assert {"generator/torch", "rank-1/generator/torch", "rank-2/generator/torch"} <= state.tensors.keys()


def test_a_checkpoint_that_is_saved_again_is_never_gone(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    run = world.runs / "one"
    folder, rename = checkpoint_names.folder_of(run, 2), Path.rename
    training_run, _ = train.prepare_run(train_options(**CHANGES), world, Listener(run))

    def broken(path: Path, target: Path) -> Path:
        if path.name == ".writing-step-000002":
            raise OSError(5, "made up")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", broken)
    with pytest.raises(UserError, match=r"could not be saved in .*The checkpoint of step 2 is intact"):
        training_run.save()
    monkeypatch.undo()
    assert records.find_damage(folder) is None
    folder.rename(folder.with_name(".replaced-step-000002"))  # killed there
    checkpoint.recover_interrupted_save(run)
    assert records.find_damage(folder) is None
    training_run.save()
    assert records.find_damage(folder) is None
    assert not list(folder.parent.glob(".*step*"))


@pytest.mark.parametrize(("damaged", "way"), [
    ((2,), "or start a new run."), ((4,), "or resume the run: it resumes from the checkpoint of step 2, which")])
def test_a_run_whose_measured_checkpoints_are_damaged_says_what_to_do(
        world: Workspace, damaged: tuple[int, ...], way: str) -> None:
    run = world.runs / "one"
    if 4 in damaged:
        shutil.copytree(checkpoint_names.folder_of(run, 2), checkpoint_names.folder_of(run, 4))
    checkpoints.write_ranking(run, checkpoints.Ranking(RankingMetric.SPEECH_LOSS).with_value(damaged[0], 1.0))
    (checkpoint_names.folder_of(run, damaged[0]) / "training.json").write_text("{}")
    with pytest.raises(UserError, match="Every evaluated checkpoint of one is damaged") as caught:
        checkpoint.best_intact(run, lambda message: None)
    assert way in caught.value.hint


def test_another_precision_of_auto_is_said(world: Workspace) -> None:
    state = checkpoint.load_state(world.runs / "one", 2)
    now = Precision("cuda", torch.float16, "compute capability 7.5")
    assert state.precision == "float32"
    here = state.numeric_environment
    assert setup.rounding_warning(state, Precision("cpu", torch.float32, "asked for"), here) == ""
    said = setup.rounding_warning(state, now, "")
    assert "computed in float32 up to step 2 and resumes in float16 (compute capability 7.5)" in said
    shared_by(world, 1, precision="bfloat16")
    (warned,) = [event.message for event in resumed(world).of("warning") if "in the last bits" in event.message]
    assert "computed in bfloat16 up to step 2 and resumes in float32" in warned


def test_another_machine_number_of_threads_or_torch_is_said(
    world: Workspace, monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not [event for event in resumed(world).of("warning") if "in the last bits" in event.message]
    monkeypatch.setattr(compute, "numeric_environment", lambda device: "Another, 64 threads, torch 2.8.0")
    (warned,) = [event.message for event in resumed(world).of("warning") if "in the last bits" in event.message]
    assert "up to step 3 and resumes on Another, 64 threads, torch 2.8.0" in warned
    assert f"{torch.get_num_threads()} thread" in warned
    assert torch.__version__ in warned


def fresh(world: Workspace, **changes: object) -> TTSModel:
    return setup.new_model(train_options(**changes), world, CPU)


def rows_of(tts: TTSModel) -> dict[str, torch.Tensor]:
    rows = new_rows(tts.lm.module, tts.lm.text_tables)
    return {name: value.detach().clone() for name, value in rows.items()}


def test_adopted_weights_are_those_of_the_checkpoint_with_fresh_optimizer_state(world: Workspace) -> None:
    listener = Listener(world.runs / "two", 1)
    options = train_options(init_from="run:one", steps=20, **CHANGES)
    assert check_requirements(world, "train", options) == ()
    with pytest.raises(StopRequested):
        train.run(options, world, listener)
    said = listener.of("warning")[0].message
    assert said.startswith("The run starts from the weights of run:one (step 2), with a new optimizer")
    assert "all 11 new rows are copied. Its adapters are copied" in said
    assert [step.step for step in listener.of("step")] == [1]
    tensors = checkpoint.load_state(world.runs / "two", 1).tensors
    assert {value.item() for name, value in tensors.items() if name.endswith("/step")} == {1.0}
    tts, there = fresh(world), load_checkpoint(world, checkpoint_names.folder_of(world.runs / "one", 2), CPU)
    untrained = rows_of(tts)
    setup.warm_start(world, "run:one@2", tts, lambda message: None)
    for name, value in rows_of(there).items():
        assert torch.equal(rows_of(tts)[name], value)
        assert not torch.equal(untrained[name], value)
    assert there.adapters
    assert tts.adapters
    own = tts.adapters.tensors()
    assert all(torch.equal(own[name], value) for name, value in there.adapters.tensors().items())


def test_rows_of_another_vocabulary_are_taken_by_their_token(world: Workspace) -> None:
    extend_anew(world, sorted(SYLLABLES[:6] + "ፐፈ", reverse=True))
    tts, said = fresh(world, scope="rows"), list[str]()
    untrained, there = rows_of(tts), load_checkpoint(world, checkpoint_names.folder_of(world.runs / "one", 2), CPU)
    setup.warm_start(world, "run:one@2", tts, said.append)
    assert "its vocabulary differs: 7 of 9 new rows are copied by the text of their token" in said[0]
    assert "2 start with the values of the extension ('ፐ', 'ፈ'), 4 of its rows are not used" in said[0]
    assert "Its adapters are not used" in said[0]
    theirs = {token.text: token.id - 46 for token in there.front_end.added_tokens()}
    for token in tts.front_end.added_tokens():
        for name, value in rows_of(tts).items():
            source = untrained[name][token.id - 46] if token.text in "ፐፈ" else rows_of(there)[name][theirs[token.text]]
            assert torch.equal(value[token.id - 46], source), token.text


def test_weights_of_another_base_or_of_other_adapters_are_refused(world: Workspace) -> None:
    with pytest.raises(UserError, match=r"do not fit this run: .*rank 4"):
        setup.warm_start(world, "run:one", fresh(world, adapter_rank=2), lambda message: None)
    with pytest.raises(UserError, match="no checkpoint of a run"):
        setup.warm_start(world, "base:tiny", fresh(world), lambda message: None)
    shutil.rmtree(world.models / "tiny")
    write_model(world.models / "tiny", seed=5)
    shutil.rmtree(world.extensions / "tiny-am")
    extend.run(ExtendOptions(model="tiny", tokenizer="tiny-am", extension="tiny-am"), world,
               Listener(world.runs / "extend-again"))
    with pytest.raises(UserError, match="was trained on another base model"):
        setup.warm_start(world, "run:one", fresh(world), lambda message: None)


def test_what_a_run_changed_of_the_base_is_adopted_by_a_run_in_full_alone(world: Workspace) -> None:
    changes = {"scope": "full", "steps": 1, **CHANGES}
    train.run(train_options(**changes), world, Listener(world.runs / "full"))
    named(world.runs / "full", 1)
    there = load_checkpoint(world, checkpoint_names.folder_of(world.runs / "full", 1), CPU)
    said: list[str] = []
    tts = setup.warm_start(world, "run:full", fresh(world, scope="full"), said.append)
    assert f"The {len(there.changed)} tensors of the base that it changed are copied" in said[-1]
    theirs, own = there.lm.module.state_dict(), tts.lm.module.state_dict()
    assert all(torch.equal(own[name], theirs[name]) for name in there.changed)
    assert set(tts.base_values) == set(there.changed)
    setup.warm_start(world, "run:full", fresh(world, scope="rows"), said.append)
    assert "are not copied: scope" in said[-1]
    with pytest.raises(UserError, match="run:full changed embeddings, layers of the base; this run trains heads"):
        setup.warm_start(world, "run:full", fresh(world, scope="full"), said.append, ("heads",))
    options = train_options(**{**changes, "init_from": "run:full", "steps": 5})
    listener = Listener(world.runs / "second")
    training_run, _ = train.prepare_run(options, world, listener)
    trainer, base = training_run.trainer, load_base(world, "tiny", CPU)
    base_now = base.lm.module.state_dict()
    held = trainer.tts.lm.module.state_dict()
    with trainer.base_weights() as seen:
        assert seen.adapters is None
        assert all(torch.equal(held[name], base_now[name]) for name in there.changed)
    assert all(torch.equal(held[name], theirs[name]) for name in there.changed)
    training_run.evaluate_base()
    found = checkpoint_evaluation.validation_samples(trainer.tts, trainer.data, training_run.drift_clips)
    wanted = checkpoint_evaluation.measure_losses(base, {code: found[code] for code in ("en", "fr")}, 4,
                                                  trainer.precision)
    assert training_run.base_losses == {code: one.speech_loss for code, one in wanted.items()}
    shown = listener.of("evaluated")[0].languages
    assert all(shown[code]["speech_loss"] != training_run.base_losses[code] for code in ("en", "fr"))


@pytest.mark.parametrize("kind", ["lora", "dora", "adalora"])
def test_adopted_adapters_act_as_they_did_at_another_scale(world: Workspace, kind: str) -> None:
    train.train_loop(train.prepare_run(train_options(adapter=kind, ema=0.5, steps=2, **CHANGES), world,
                             Listener(world.runs / "other"))[0])
    named(world.runs / "other", 2)
    said: list[str] = []
    tts = fresh(world, adapter=kind, adapter_scale=5.0)
    setup.warm_start(world, "run:other@2", tts, said.append)
    there = load_checkpoint(world, checkpoint_names.folder_of(world.runs / "other", 2), CPU)
    assert tts.adapters
    assert there.adapters
    wanted = there.adapters.merged_weights()
    for name, value in tts.adapters.merged_weights().items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-5, atol=1e-7)
    assert "the EMA of its training (0.5)" in said[0]
    assert "scaled by 0.4 so that their effect is the same" in said[0]


def test_what_is_adopted_must_be_there_when_it_is_asked_for(world: Workspace) -> None:
    with pytest.raises(UserError, match="no run named 'gone'"):
        check_requirements(world, "train", train_options(init_from="run:gone"))
