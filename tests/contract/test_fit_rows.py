"""New rows are fitted to the frozen model's own states for their spelling, and nothing else moves."""

from __future__ import annotations

from pathlib import Path

import torch

from config.schema import ExtendOptions
from core import extend
from core.model import row_initialisation
from core.model.loading import load_extension
from core.model.prefix import base_tensors, hash_tensors, new_rows, rows_name
from core.model.row_initialisation import initial_rows
from core.workspace import Workspace
from tests.contract.conftest import World
from tests.worlds import DEVICE, Listener


def test_a_fit_brings_the_states_nearer_to_those_of_the_spelling(world: World) -> None:
    base, front_end = world.base(), world.extension().front_end
    tables = {rows_name(table): base.lm.module.get_parameter(table) for table in base.lm.text_tables}
    made = initial_rows(tables, base.front_end, front_end, "fitted", 0, rows_name(base.lm.language_table))
    assert len(made.spellings) == front_end.size - front_end.prefix_size
    told: list[tuple[int, int]] = []
    before = hash_tensors(base_tensors(base.lm.module))
    found = row_initialisation.fit_rows(base, front_end, made.rows, made.spellings, 0, lambda *done: told.append(done))
    assert found.after < 0.9 * found.before
    assert told[-1][0] == told[-1][1] == len(told)
    embedding, *heads = map(rows_name, base.lm.text_tables)
    assert not torch.equal(found.rows[embedding], made.rows[embedding])
    assert heads
    assert all(torch.equal(found.rows[head], made.rows[head]) for head in heads)
    tags = [index for index, ids in enumerate(made.spellings) if not ids]
    assert tags
    assert torch.equal(found.rows[embedding][tags], made.rows[embedding][tags])  # nothing is known of them
    assert hash_tensors(base_tensors(base.lm.module)) == before


def test_an_extension_can_start_from_fitted_rows(world: World, tmp_path: Path) -> None:
    options = ExtendOptions(model=world.case.model, tokenizer="tiny-am", extension="fitted", initialisation="fitted")
    listener = Listener(tmp_path / "extend")
    workspace: Workspace = world.workspace
    extend.run(options, workspace, listener)
    assert any("The states of random words are" in line for event in listener.of("plan") for line in event.lines)
    voice, plain = load_extension(workspace, "fitted", DEVICE), world.extension()
    rows, start = (new_rows(one.lm.module, one.lm.text_tables) for one in (voice, plain))
    embedding = rows_name(plain.lm.text_tables[0])
    assert not torch.equal(rows[embedding], start[embedding])
    assert voice.base_hash == plain.base_hash
