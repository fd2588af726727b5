"""The doctor knows Chatterbox by the same protocol: damaged rows are found, and restored bit-identically."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from config.schema import DoctorOptions
from core import doctor
from core.library import certificate, diagnosis
from core.model.loading import load
from core.workspace import Workspace
from tests import damaged
from tests.chatterbox_world import TOKENIZER, write_model
from tests.damaged import TABLES
from tests.worlds import Listener

T3 = "t3_mtl23ls_v2.safetensors"


def test_rows_shrunk_by_weight_decay_are_found_and_put_back(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "workspace")
    write_model(workspace.models / "chatterbox", quick=True)
    base = load_file(workspace.models / "chatterbox" / T3)
    held = damaged.extended(base)
    for table in TABLES:
        held[table][:len(base[table])] *= 0.99
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    damaged.save(folder / "t3_finetuned.safetensors", held)
    own = damaged.tokenizer(workspace, folder / "tokenizer.json", file=f"chatterbox/{TOKENIZER}")
    options = DoctorOptions(part="model", base="chatterbox", checkpoint=str(folder), measure=False, restore="mended",
                            language="am")
    doctor.run(options, workspace, Listener(tmp_path / "job"))
    found = diagnosis.read(tmp_path / "job")
    assert found.family == "chatterbox"
    assert [one.state for one in found.findings if one.part == "old rows"] == ["shrunk", "shrunk"]
    assert found.tokenizer is not None
    assert found.tokenizer.path == str(own)  # taken from the folder
    written = load_file(workspace.exports / "mended" / "t3_finetuned.safetensors")
    assert all(torch.equal(written[name][:len(value)], value) for name, value in base.items() if value.ndim)
    assert all(torch.equal(written[table][len(base[table]):], held[table][len(base[table]):]) for table in TABLES)
    proof = certificate.read(workspace.exports / "mended" / certificate.CERTIFICATE)
    assert {check.name: check.result for check in proof.checks}["base_logits"] == "passed"
    assert not proof.failed()
    restored = load(workspace, "export:mended", torch.device("cpu"))
    assert restored.front_end.is_new("am")
    first = restored.front_end.prefix_size
    assert restored.front_end.encode("ሀለ", "am").tolist()[1:4] == [first + len(damaged.NEW) - 1, first, first + 1]
