"""The doctor and IndexTTS2: rows are put back, also where new pieces begin on the row that no piece of the base has."""

from __future__ import annotations

from pathlib import Path

import pytest
import sentencepiece
import torch
from sentencepiece import sentencepiece_model_pb2 as proto

from config.schema import DoctorOptions
from core import doctor
from core.library import certificate
from core.model.loading import load
from core.workspace import Workspace
from models.indextts2 import model_folder
from tests.indextts2_world import write_model
from tests.unit.models.indextts2.test_model_folder import NEW, extended
from tests.worlds import Listener

TABLES = ("text_embedding.weight", "text_head.weight", "text_head.bias")
TEXT = "ሀለ"


@pytest.mark.parametrize("spare", [True, False], ids=["a piece for the spare row", "none, as sentencepiece appends"])
def test_damaged_rows_are_put_back_and_new_ones_kept(tmp_path: Path, spare: bool) -> None:
    workspace = Workspace.open(tmp_path / "workspace")
    write_model(workspace.models / "indextts2")
    base = model_folder.read_gpt(workspace.models / "indextts2" / "gpt.pth")
    tokenizer = proto.ModelProto.FromString((workspace.models / "indextts2" / "bpe.model").read_bytes())
    rows = len(base[TABLES[0]])
    if spare:
        tokenizer.pieces.add(piece="<spare>", score=0.0, type=proto.ModelProto.SentencePiece.CONTROL)
    for letter in NEW:
        tokenizer.pieces.add(piece=letter, score=-1000.0)
    first = len(tokenizer.pieces) - len(NEW)  # row of the first new piece in the finetune
    assert first == rows - (not spare)
    held = extended(base, len(NEW))  # without a piece for the spare row, there is one at the end, as published
    for table in TABLES:
        held[table][:first] *= 0.99
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    torch.save(held, folder / "gpt.pth")
    (folder / "bpe.model").write_bytes(tokenizer.SerializeToString())
    options = DoctorOptions(part="model", base="indextts2", checkpoint=str(folder), measure=False, restore="mended",
                            language="am")
    doctor.run(options, workspace, Listener(tmp_path / "job"))

    mended = workspace.exports / "mended"
    assert not certificate.read(mended / certificate.CERTIFICATE).failed()
    written = model_folder.read_gpt(mended / "gpt.pth")
    for table in TABLES:
        assert torch.equal(written[table][:rows], base[table])
        assert torch.equal(written[table][rows:], held[table][first:first + len(NEW)])
    front_end = load(workspace, "export:mended", torch.device("cpu")).front_end
    own = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.SerializeToString())
    wanted = [number + (number >= first) * (rows - first) for number in own.encode(front_end.normalise(TEXT, "am"))]
    assert front_end.encode(TEXT, "am").tolist()[1:-1] == wanted
    assert {rows, rows + 1} <= set(wanted)
