"""IndexTTS2's model folder: what is read, what is refused by name, and an export that the published package loads."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import sentencepiece
import torch
import yaml
from safetensors.torch import load_file, save_file

from config.errors import UserError
from core.library.catalog import BILIBILI, find_entry
from models import weights
from models.campplus import CAMPPlus
from models.gpt2 import transpose_matrices
from models.indextts2 import bigvgan, model_folder, s2mel, semantic_codec, unified_voice, w2v_bert
from models.indextts2.unified_voice import VoiceConditioning
from tests.indextts2_world import CODES, PUBLISHED_FEATURES, tokenizer, write_model

CPU = torch.device("cpu")
ROOT = Path(__file__).resolve().parents[4]
NEW = "ሀለመ"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("indextts2") / "model"
    write_model(folder)
    return folder


def extended_tokenizer(base: bytes) -> bytes:
    """The base's pieces, a control piece for the spare row, and three letters."""
    from sentencepiece import sentencepiece_model_pb2 as proto

    model = proto.ModelProto.FromString(base)
    model.pieces.add(piece="<spare>", score=0.0, type=proto.ModelProto.SentencePiece.CONTROL)
    for letter in NEW:
        model.pieces.add(piece=letter, score=-1000.0)
    return bytes(model.SerializeToString())


def extended(tensors: Mapping[str, torch.Tensor], rows: int, shift: float = 0.0) -> dict[str, torch.Tensor]:
    """The tensors with `rows` more text rows; `shift` stands for merged adapters."""
    torch.manual_seed(5)
    changed = dict(tensors)
    for name in ("text_embedding.weight", "text_head.weight", "text_head.bias"):
        changed[name] = torch.cat([changed[name], torch.randn(rows, *changed[name].shape[1:])])
    changed["gpt.h.0.attn.c_attn.weight"] = changed["gpt.h.0.attn.c_attn.weight"] + shift
    return changed


def export(base: Path, folder: Path, merged: bool = True) -> tuple[str, ...]:
    folder.mkdir()
    tensors = transpose_matrices(model_folder.read_gpt(base / "gpt.pth"))
    written = model_folder.write_export(base, folder, extended(tensors, 3),
                                        extended(tensors, 3, 0.1) if merged else None, extended_tokenizer(tokenizer()))
    return tuple(file.path for file in written)


def test_every_file_is_of_the_kind_that_its_model_loads(made: Path) -> None:
    files = model_folder.find_files(made)
    rows = unified_voice.load(model_folder.read_gpt(files.gpt), "gpt.pth").config.text_rows
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(files.tokenizer)).get_piece_size()
    assert rows == pieces + 1 == model_folder.read_config(files.config)["gpt"]["number_text_tokens"] + 1
    s2mel.load(files.s2mel, CPU)
    bigvgan.load(files.vocoder, CPU)
    w2v_bert.load(files.w2v_bert, files.statistics, CPU)
    semantic_codec.load(files.semantic_codec, CPU)
    weights.load_into(CAMPPlus(), weights.read(files.campplus), "campplus")
    assert weights.read_tensor(files.voices).shape == (73, 192)
    assert weights.read_tensor(files.emotions).shape[0] == 73


def test_stripping_leaves_the_models_and_halves_the_file(made: Path, tmp_path: Path) -> None:
    before = s2mel.load(made / "s2mel.pth", CPU).state_dict()
    assert model_folder.strip(made / "s2mel.pth", tmp_path / "s2mel.pth")
    after = s2mel.load(tmp_path / "s2mel.pth", CPU).state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert (tmp_path / "s2mel.pth").stat().st_size < 0.55 * (made / "s2mel.pth").stat().st_size
    assert not model_folder.strip(tmp_path / "s2mel.pth", tmp_path / "again.pth")
    assert not (tmp_path / "again.pth").exists()


def test_a_training_checkpoint_is_read_as_the_published_file(made: Path, tmp_path: Path) -> None:
    tensors = model_folder.read_gpt(made / "gpt.pth")
    torch.save({"model": tensors, "epoch": 3, "optimizer": {"state": {}}}, tmp_path / "gpt.pth")
    found = model_folder.read_gpt(tmp_path / "gpt.pth")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], value) for name, value in tensors.items())
    assert model_folder.gpt_shapes(tmp_path / "gpt.pth") == model_folder.gpt_shapes(made / "gpt.pth")


def test_the_gpt_of_an_older_version_is_refused_as_what_it_is(made: Path, tmp_path: Path) -> None:
    held = {name: value for name, value in model_folder.read_gpt(made / "gpt.pth").items()
            if not name.startswith("emo")}
    torch.save(held, tmp_path / "gpt.pth")
    with pytest.raises(UserError, match="is the GPT of IndexTTS 1 or 1.5, which has no emotion") as caught:
        model_folder.read_gpt(tmp_path / "gpt.pth")
    assert "IndexTeam/IndexTTS-2" in caught.value.hint


@pytest.mark.parametrize("text", ["", "gpt: {}", "- a", "gpt: {number_text_tokens: x}\ndataset: {}", "\tx: ["])
def test_settings_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=r"config\.yaml holds no settings of IndexTTS2"):
        model_folder.read_config(tmp_path / "config.yaml")


def test_an_export_is_a_model_folder_with_more_rows(made: Path, tmp_path: Path) -> None:
    paths = export(made, tmp_path / "export")
    folder = tmp_path / "export"
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == set(paths)
    base, written = model_folder.read_gpt(made / "gpt.pth"), model_folder.read_gpt(folder / "gpt.pth")
    assert written.keys() == base.keys()
    assert all(torch.equal(written[name][:len(value)], value) for name, value in base.items() if value.ndim)
    rows = len(written["text_embedding.weight"])
    assert rows == len(base["text_embedding.weight"]) + 3 == len(written["text_head.bias"])
    for config, gpt in (("config.yaml", "gpt.pth"), ("config-merged.yaml", "gpt-merged.pth")):
        settings = model_folder.read_config(folder / config)
        assert (settings["gpt"]["number_text_tokens"], settings["gpt_checkpoint"]) == (rows - 1, gpt)
        own = {**settings, "gpt": {**settings["gpt"], "number_text_tokens": rows - 4}, "gpt_checkpoint": "gpt.pth"}
        assert own == yaml.safe_load((made / "config.yaml").read_text())
    files = model_folder.find_files(folder)
    assert unified_voice.load(model_folder.read_gpt(files.gpt), "gpt.pth").config.text_rows == rows
    assert files.w2v_bert.samefile(model_folder.find_files(made).w2v_bert)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(files.tokenizer))
    assert pieces.get_piece_size() == rows
    assert pieces.encode(NEW)[-3:] == [rows - 3, rows - 2, rows - 1]


def test_an_export_without_adapters_has_no_merged_variant(made: Path, tmp_path: Path) -> None:
    paths = export(made, tmp_path / "export", merged=False)
    assert not [path for path in paths if "merged" in path]


def test_an_export_of_an_export_can_be_made(made: Path, tmp_path: Path) -> None:
    export(made, tmp_path / "one")
    assert set(export(tmp_path / "one", tmp_path / "two")) == {
        path.relative_to(tmp_path / "one").as_posix() for path in (tmp_path / "one").rglob("*") if path.is_file()}


def test_an_export_ships_the_agreement_that_asks_for_the_notice(made: Path, tmp_path: Path) -> None:
    export(made, tmp_path / "export")
    assert BILIBILI in find_entry("indextts2").licences
    assert BILIBILI.files == model_folder.LICENCES
    assert f"“{BILIBILI.notice}”" in (tmp_path / "export" / BILIBILI.files[0]).read_text(encoding="utf-8")
    assert "中华人民共和国" in (tmp_path / "export" / BILIBILI.files[1]).read_text(encoding="utf-8")


def test_tensors_that_the_published_code_would_not_load_are_never_written(made: Path, tmp_path: Path) -> None:
    tensors = transpose_matrices(model_folder.read_gpt(made / "gpt.pth"))
    turned = {**tensors, "gpt.h.0.attn.c_attn.weight": tensors["gpt.h.0.attn.c_attn.weight"].t()}
    for wrong in (turned, {**tensors, "surplus": torch.zeros(1)},
                  {name: value for name, value in tensors.items() if name != "speed_emb.weight"}):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        with pytest.raises(AssertionError):
            model_folder.write_export(made, folder, wrong, None, b"")
        assert list(folder.iterdir()) == []


@torch.inference_mode()
def logits(path: Path, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Teacher-forced logits of the exported GPT by our model."""
    model = unified_voice.load(model_folder.read_gpt(path), str(path))
    features, no_duration = given["features"], torch.zeros(1, dtype=torch.long)
    conditioning = model.embed_conditioning(VoiceConditioning(
        model.speaker_latents(features), model.emotion_vector(features), no_duration))
    rows = torch.cat([conditioning, model.embed_text(given["text_ids"]), model.embed_speech(given["codes"])], 1)
    states = model.hidden_states(rows)[:, conditioning.shape[1]:]
    length = given["text_ids"].shape[1]
    return {"text_logits": model.text_head(states[:, :length]), "mel_logits": model.mel_head(states[:, length:])}


@pytest.mark.slow
@pytest.mark.parametrize(("config", "name"), [("config.yaml", "gpt.pth"), ("config-merged.yaml", "gpt-merged.pth")])
def test_the_published_package_loads_an_export_with_the_same_logits(tmp_path: Path, config: str, name: str) -> None:
    python = ROOT / ".reference" / "bin" / "python"
    if not python.is_file():
        pytest.skip("the published package is not there: make reference")
    write_model(tmp_path / "base", PUBLISHED_FEATURES)
    export(tmp_path / "base", tmp_path / "export")
    rows = len(model_folder.read_gpt(tmp_path / "export" / name)["text_embedding.weight"])
    torch.manual_seed(0)
    given = {"features": torch.randn(1, 60, PUBLISHED_FEATURES),
             "text_ids": torch.tensor([[0, rows - 3, 20, rows - 1, 5, 40, 1]]),
             "codes": torch.cat([torch.tensor([[CODES]]), torch.randint(0, CODES, (1, 12))], 1)}
    save_file(given, str(tmp_path / "inputs.safetensors"))
    script, folder = str(ROOT / "tests" / "reference" / "indextts2_logits.py"), str(tmp_path / "export")
    files = [str(tmp_path / f"{name}.safetensors") for name in ("inputs", "outputs")]
    done = subprocess.run([str(python), script, folder, config, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs, ours = load_file(tmp_path / "outputs.safetensors"), logits(tmp_path / "export" / name, given)
    for kind, value in ours.items():
        assert value.abs().max() > 0.1
        torch.testing.assert_close(theirs[kind], value, rtol=0, atol=1e-4)
    assert theirs["pieces"][0] == rows
    assert {rows - 3, rows - 2} < set(theirs["pieces"].tolist())
