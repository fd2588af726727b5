"""Extensions: the old rows are those of the base, and what does not belong together is refused."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from config.errors import UserError
from config.schema import ExtendOptions
from core import extend
from core.library import records
from core.model import tensor_files
from core.model.loading import load_base, load_extension
from core.model.prefix import base_tensors, hash_tensors
from core.workspace import Workspace
from data.front_end import FrontEnd
from tests.worlds import LETTERS, SYLLABLES, Listener, write_model, write_tokenizer

CPU = torch.device("cpu")
OPTIONS = ExtendOptions(model="tiny", tokenizer="tiny-am", extension="tiny-am")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = Workspace.open(tmp_path_factory.mktemp("extend"))
    write_model(workspace.models / "tiny")
    write_tokenizer(workspace)
    return workspace


def listener(workspace: Workspace) -> Listener:
    return Listener(workspace.runs / "extend")


def test_old_rows_are_equal_to_the_bit_in_both_tables(world: Workspace) -> None:
    result = extend.run(OPTIONS, world, listener(world))
    base, extended = load_base(world, "tiny", CPU), load_extension(world, "tiny-am", CPU)
    assert hash_tensors(base_tensors(extended.lm.module)) == base.base_hash
    for table in ("text_emb", "text_head"):
        old = base.lm.module.get_parameter(f"{table}.weight")
        assert torch.equal(extended.lm.module.get_buffer(f"{table}.weight"), old)
        new = extended.lm.module.get_parameter(f"{table}.new")
        assert new.shape == (len(SYLLABLES) + 1, old.shape[1])
        assert len(new.unique(dim=0)) == len(new)
    assert (result["new_rows"], result["old_rows"], result["rows"], result["tables"]) == (11, 46, 57, 2)


def test_the_same_extension_twice_is_there_already(world: Workspace) -> None:
    extend.run(OPTIONS, world, listener(world))
    assert extend.run(OPTIONS, world, listener(world))["state"] == "already there"


def test_the_record_counts_the_rows_that_the_base_can_spell(world: Workspace) -> None:
    for strategy, spelled in (("romanised", 10), ("neighbours", 0), ("mean", 0)):
        told = listener(world)
        result = extend.run(OPTIONS.model_copy(update={"initialisation": strategy, "extension": strategy}), world, told)
        record = records.read_extension(world.extension(strategy))
        assert (record.from_spelling, result["from_spelling"], result["from_mean"]) == (spelled, spelled, 10 - spelled)
        warned = [event.message for event in told.of("warning")]
        assert ["the same rows as 'mean'" in message for message in warned] == [True] * (strategy == "neighbours")


def test_another_extension_under_the_same_name_is_refused(world: Workspace) -> None:
    extend.run(OPTIONS, world, listener(world))
    message = ("already is another extension named 'tiny-am': start of new rows .* there, mean requested; "
               "seed .* there, 4 requested")
    with pytest.raises(UserError, match=message):
        extend.run(OPTIONS.model_copy(update={"seed": 4, "initialisation": "mean"}), world, listener(world))


def test_a_tokenizer_of_another_model_is_refused_with_both_sizes(world: Workspace) -> None:
    other = FrontEnd.base({"en": "latin", "fr": "latin"}, LETTERS[:-3]).extended("am", "ethiopic", SYLLABLES, [])
    other.save(world.tokenizers / "other")
    with pytest.raises(UserError, match="43 ids.*46") as caught:
        extend.run(OPTIONS.model_copy(update={"tokenizer": "other", "extension": "x"}), world, listener(world))
    assert "Make the tokenizer again for this model" in caught.value.hint


def test_a_tokenizer_of_the_same_size_and_other_characters_is_refused(world: Workspace) -> None:
    shuffled = LETTERS[::-1]
    FrontEnd.base({"en": "latin", "fr": "latin"}, shuffled).extended("am", "ethiopic", SYLLABLES, []).save(
        world.tokenizers / "shuffled")
    with pytest.raises(UserError, match="do not belong together"):
        extend.run(OPTIONS.model_copy(update={"tokenizer": "shuffled", "extension": "x"}), world, listener(world))
    assert not (world.extensions / "x").exists()


def test_rows_that_are_not_those_that_were_written_are_refused(world: Workspace) -> None:
    extend.run(OPTIONS.model_copy(update={"extension": "spoiled"}), world, listener(world))
    path = world.extension("spoiled") / records.ROWS
    rows = tensor_files.read(path, "")
    rows["text_emb"][0, 0] = float("nan")
    tensor_files.write(path, rows)
    with pytest.raises(UserError, match="was changed or damaged") as caught:
        load_extension(world, "spoiled", CPU)
    assert "make it again" in caught.value.hint


def test_a_tokenizer_that_adds_nothing_is_refused(world: Workspace) -> None:
    FrontEnd.load(world.model("tiny")).save(world.tokenizers / "plain")
    with pytest.raises(UserError, match="adds no token"):
        extend.run(OPTIONS.model_copy(update={"tokenizer": "plain", "extension": "x"}), world, listener(world))


def test_a_full_disk_leaves_nothing_half_written(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match="could not be written: No space left"):
        extend.run(OPTIONS.model_copy(update={"extension": "full-disk"}), world, listener(world))
    assert [path.name for path in world.extensions.iterdir() if "full-disk" in path.name] == []


def test_rows_of_another_count_are_refused(world: Workspace) -> None:
    from safetensors.torch import load_file, save_file

    extend.run(OPTIONS.model_copy(update={"extension": "short"}), world, listener(world))
    path = world.extensions / "short" / "rows.safetensors"
    save_file({name: value[:-1].contiguous() for name, value in load_file(path).items()}, path)
    with pytest.raises(UserError, match="new rows do not fit.*10.*11.*wanted"):
        load_extension(world, "short", CPU)
