"""IndexTTS 2.5's model folder, the rows of new languages, and an export that the published package loads."""

from __future__ import annotations

import base64
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from config.errors import UserError
from config.schema import DoctorOptions, DownloadOptions
from core import doctor, download
from core.library import artefacts, diagnosis
from core.library.catalog import find_entry, variant
from core.model.loading import load_base
from core.model.row_initialisation import initial_rows
from core.workspace import Workspace
from data.front_end import FrontEnd
from data.segmenters import LANGUAGE_CODES, ByteLevelBpe
from models import weights
from models.base import VocoderOptions
from models.gpt2 import transpose_matrices
from models.indextts2 import model_folder, semantic_codec, unified_voice
from models.indextts2.family import IndexTTS2
from models.indextts2.unified_voice import LANGUAGE_TABLE, VoiceConditioning
from tests.hub import serving
from tests.indextts2_world import CODES, PUBLISHED_FEATURES
from tests.indextts25_world import LANGUAGES, write_model
from tests.unit.hub_model import Recorder
from tests.worlds import tone

CPU = torch.device("cpu")
ROOT = Path(__file__).resolve().parents[4]
MERGES = [("ሀ", "ለ"), (" ", "ሀለ"), ("the", "re")]
TEXTS = {"am": "ሀለ ሀመ, the there cat ሀለthe.", "om": "manni the there keenya, 'cat'.", "en": "the cat's dog! 12"}
TABLES = ("text_embedding.weight", "text_head.weight", "text_head.bias")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("indextts25") / "model"
    write_model(folder, PUBLISHED_FEATURES)
    return folder


@pytest.fixture(scope="module")
def front_end(made: Path) -> FrontEnd:
    """With Amharic, which has a row among the base's languages, and Oromo, which has none."""
    base = IndexTTS2().load_front_end(made)
    amharic = base.extended("am", "indextts25-new-ethiopic", list("ሀለመ"), MERGES[:2])
    return amharic.extended("om", "indextts25-new-latin", [], [("a", "n"), ("an", "n"), (" ", "the")][:2])


def test_the_catalog_lists_the_files_that_the_folder_needs(made: Path) -> None:
    listed = {part.path(name) for part in variant(find_entry("indextts2"), "2.5").parts
              for choice in part.files for name in choice}
    there = {path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file()} - {"model.json"}
    assert listed == there


def test_a_folder_is_told_by_its_gpt(made: Path, tmp_path: Path) -> None:
    files = model_folder.find_files(made)
    assert (files.tokenizer.name, files.semantic_codec.name) == (ByteLevelBpe.base_file, "codec.pth")
    for name in ("gpt.pth", "bpe.model"):
        (tmp_path / name).write_bytes((made / "gpt.pth").read_bytes() if name == "gpt.pth" else b"")
    with pytest.raises(UserError, match=r"lacks .*codec\.pth.*; its gpt\.pth is one of IndexTTS 2\.5"):
        model_folder.find_files(tmp_path)


def test_stripping_leaves_the_codec_alone(made: Path, tmp_path: Path) -> None:
    assert model_folder.strip(made / "codec.pth", tmp_path / "codec.pth")
    assert weights.read_nested(tmp_path / "codec.pth").keys() == {"model"}
    semantic_codec.load(tmp_path / "codec.pth", CPU)
    assert not model_folder.strip(tmp_path / "codec.pth", tmp_path / "again.pth")
    assert not model_folder.strip(made / "s2mel.pth", tmp_path / "s2mel.pth")


def test_a_tokenizer_that_does_not_fit_is_refused(made: Path, tmp_path: Path) -> None:
    content = (made / ByteLevelBpe.base_file).read_bytes()
    for name in ("gpt.pth", "config.yaml"):
        (tmp_path / name).write_bytes((made / name).read_bytes())
    path = tmp_path / ByteLevelBpe.base_file
    path.write_bytes(content + b"".join(b"%s %d\n" % (base64.b64encode(b"zz%d" % one), 330 + one)
                                        for one in range(9)))
    with pytest.raises(UserError, match=r"has 2012 ids, and gpt\.pth has 2006 text rows"):
        IndexTTS2().load_front_end(tmp_path)
    for wrong in (content[:-30], b"\x00\x01", content.replace(b"IQ== 0\n", b"")):
        path.write_bytes(wrong)
        with pytest.raises(UserError, match=ByteLevelBpe.base_file):
            IndexTTS2().load_front_end(tmp_path)


def test_new_tokens_come_after_the_rows_and_base_text_is_cut_as_before(made: Path, front_end: FrontEnd) -> None:
    base = IndexTTS2().load_front_end(made)
    assert [token.text for token in front_end.added_tokens()] == ["[am]", "ሀ", "ለ", "መ", "ሀለ", " ሀለ", "[om]", "an",
                                                                  "ann"]
    assert front_end.added_tokens()[0].id == base.prefix_size
    assert front_end.encode(TEXTS["en"], "en").tolist() == base.encode(TEXTS["en"], "en").tolist()
    names = front_end.tokens(TEXTS["am"], "am")
    assert names[:4] == [" ሀለ", " ", "ሀ", "መ"]
    assert "".join(names) == f" {front_end.normalise(TEXTS['am'], 'am')}"
    assert "ann" in front_end.tokens(TEXTS["om"], "om")
    assert front_end.unknown_characters("ሠ 猫", "am") == ()  # bytes spell it


def test_a_saved_front_end_is_read_back(front_end: FrontEnd, tmp_path: Path) -> None:
    front_end.save(tmp_path)
    again = FrontEnd.load(tmp_path)
    assert again.fingerprint == front_end.fingerprint
    for language, text in TEXTS.items():
        assert again.encode(text, language).tolist() == front_end.encode(text, language).tolist()


def test_a_language_starts_from_its_own_row_or_from_those_that_are_spoken(made: Path, front_end: FrontEnd) -> None:
    base, model = IndexTTS2().load_front_end(made), IndexTTS2().load_language_model(made, CPU)
    table = model.module.get_parameter(LANGUAGE_TABLE).data
    text = model.module.get_parameter(TABLES[0]).data
    rows = initial_rows({"lang_embedding": table, "text_embedding": text}, base, front_end, "romanised", 0,
                        "lang_embedding").rows
    assert rows["lang_embedding"].shape == (2, table.shape[1])
    assert torch.equal(rows["lang_embedding"][0], table[LANGUAGE_CODES.index("am")])
    spoken = table[[LANGUAGE_CODES.index(code) for code in base.base_languages]].mean(0)
    torch.testing.assert_close(rows["lang_embedding"][1], spoken)
    own_tag = base.base_vocabulary["<|am|>"]
    assert torch.nn.functional.cosine_similarity(rows["text_embedding"][0], text[own_tag], 0) > 0.99


def export(base: Path, folder: Path, front_end: FrontEnd) -> dict[str, torch.Tensor]:
    """An export with made-up new rows; its tensors."""
    torch.manual_seed(3)
    tensors = model_folder.read_gpt(base / "gpt.pth")
    for name in (*TABLES, LANGUAGE_TABLE):
        count = 2 if name == LANGUAGE_TABLE else front_end.size - front_end.prefix_size
        tensors[name] = torch.cat([tensors[name], torch.randn(count, *tensors[name].shape[1:])])
    folder.mkdir()
    written = model_folder.write_export(base, folder, transpose_matrices(tensors), None, None)
    assert {file.path for file in written} == {path.relative_to(folder).as_posix() for path in folder.rglob("*")
                                               if path.is_file()}
    front_end.save(folder / "front_end")
    return tensors


@torch.inference_mode()
def speech_logits(tensors: dict[str, torch.Tensor], given: dict[str, torch.Tensor], ids: np.ndarray,
                  tag: int, row: int) -> torch.Tensor:
    model = unified_voice.load(tensors, "gpt.pth")
    model.assign_languages({tag: row})
    conditioning = model.embed_conditioning(VoiceConditioning(
        given["style"], model.emotion_vector(given["features"]), torch.zeros(1, dtype=torch.long)))
    rows = [conditioning, model.embed_text(torch.from_numpy(ids)[None]), model.embed_speech(given["codes"])]
    return model.mel_head(model.hidden_states(torch.cat(rows, 1))[:, -given["codes"].shape[1]:])


@pytest.mark.long
@pytest.mark.parametrize("language", ["am", "om", "en"])
def test_the_published_package_loads_an_export_with_the_same_ids_and_logits(
        made: Path, front_end: FrontEnd, tmp_path: Path, language: str) -> None:
    python = ROOT / ".reference" / "bin" / "python"
    if not python.is_file():
        pytest.skip("the published package is not there: make reference")
    tensors = export(made, tmp_path / "export", front_end)
    text = front_end.normalise(TEXTS[language], language)
    ids = front_end.encode(TEXTS[language], language)
    torch.manual_seed(0)
    given = {"features": torch.randn(1, 60, PUBLISHED_FEATURES), "style": torch.randn(1, 192),
             "codes": torch.cat([torch.tensor([[CODES]]), torch.randint(0, CODES, (1, 12))], 1),
             "text": torch.tensor(list(text.encode()), dtype=torch.uint8)}
    save_file(given, str(tmp_path / "inputs.safetensors"))
    script, folder = str(ROOT / "tests" / "reference" / "indextts25_logits.py"), str(tmp_path / "export")
    files = [str(tmp_path / f"{name}.safetensors") for name in ("inputs", "outputs")]
    done = subprocess.run([str(python), script, folder, "config.yaml", language, *files], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = load_file(tmp_path / "outputs.safetensors")
    assert theirs["ids"][0].tolist() == ids[1:-1].tolist()
    tag = front_end.tag_id(language)
    assert tag is not None
    row = {"am": LANGUAGES, "om": LANGUAGES + 1, "en": LANGUAGE_CODES.index("en")}[language]
    ours = speech_logits(tensors, given, ids, tag, row)
    assert ours.abs().max() > 0.1
    torch.testing.assert_close(theirs["mel_logits"], ours, rtol=0, atol=1e-4)


def test_a_base_row_of_a_language_is_never_written_over(made: Path, front_end: FrontEnd, tmp_path: Path) -> None:
    export(made, tmp_path / "export", front_end)
    base, written = (weights.read(folder / "gpt.pth") for folder in (made, tmp_path / "export"))
    assert len(written[LANGUAGE_TABLE]) == LANGUAGES + 2
    assert all(torch.equal(written[name][:len(value)], value) for name, value in base.items() if value.ndim)
    settings = json.loads((tmp_path / "export" / "front_end" / "front_end.json").read_text("utf-8"))
    assert settings["segmenter"] == "bytes"


def test_it_is_downloaded_after_its_licences_are_accepted(made: Path, tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    workspace, chosen = Workspace.open(tmp_path), variant(find_entry("indextts2"), "2.5")
    accepted = tuple(licence.name for licence in chosen.licences)
    with serving() as hub:
        for part in chosen.parts:
            files = {name: (made / part.path(name)).read_bytes() for [name] in part.files}
            hub.repositories.pop(part.repository, None)
            commit = hub.add(part.repository, files)
            hub.repositories[part.repository].refs[part.revision] = commit
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with pytest.raises(UserError, match="licences that you have not accepted") as caught:
            download.run(DownloadOptions(model="indextts2", variant="2.5", accept_licence=accepted[1:]), workspace,
                         Recorder(workspace.runs))
        assert "--accept-licence bilibili" in caught.value.hint
        unknown = tuple(part.path(name) for part in chosen.parts for [name] in part.files)
        download.run(DownloadOptions(model="indextts2", variant="2.5", accept_licence=accepted, accept_unknown=unknown,
                                     probe=False), workspace, Recorder(workspace.runs))
    folder = workspace.model("indextts2-2.5")
    assert weights.read_nested(folder / "codec.pth").keys() == {"model"}
    assert load_base(workspace, "indextts2-2.5", CPU).lm.language_table == LANGUAGE_TABLE


def test_the_doctor_tells_old_rows_of_languages_from_new_ones(made: Path, front_end: FrontEnd, tmp_path: Path) -> None:
    export(made, tmp_path / "export", front_end)
    workspace, layout = Workspace.open(tmp_path / "work"), IndexTTS2.tensor_layout
    case = doctor.open_case(workspace, DoctorOptions(base=str(made), checkpoint=str(tmp_path / "export")))
    found = {(one.name, one.part): one.state for one in doctor.compare(case, Recorder(workspace.runs))
             if one.name == layout.language_table}
    assert found == {(LANGUAGE_TABLE, diagnosis.OLD_ROWS): "equal", (LANGUAGE_TABLE, diagnosis.NEW_ROWS): "new"}


def test_a_wanted_duration_is_that_of_the_sound(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    family, clip = IndexTTS2(), tone(5, 1.5)
    voice = family.voice_from_recording(tmp_path / "model", CPU, clip, 16000)
    assert {name: value.shape for name, value in voice.conditioning.items()} == {
        "style": (192,), "emotion_vector": (64,), "emotion_latent": (64,)}
    vocoder, codes = family.load_vocoder(tmp_path / "model", CPU), np.arange(20)
    for wanted_s, frames in ((0.0, 68), (0.5, 43)):
        made = vocoder.decode(codes, voice, VocoderOptions(flow_steps=2, duration_s=wanted_s))
        assert len(made) == 256 * frames
    model = family.load_language_model(tmp_path / "model", CPU)
    plain, timed = (model.prepare(replace(voice, duration_s=wanted_s)).keys_and_values for wanted_s in (0.0, 0.5))
    assert torch.equal(plain, timed)


def test_the_page_offers_its_tokenizers(made: Path, tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path)
    (workspace.models / "indextts2-2.5").symlink_to(made)
    base = IndexTTS2().load_front_end(made)
    base.extended("am", "indextts25-new-ethiopic", list("ሀለመ"), MERGES[:2]).save(workspace.tokenizers / "mine")
    assert artefacts.matching_tokenizers(workspace, "indextts2-2.5") == ["mine"]
