"""Folders of models and recognisers that somebody gave: their files name no file outside, and no settings multiply."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import soundfile
import torch

from config.errors import UserError
from core.sources.recognisers import check_named_files
from core.speech.transcription import _HubModel
from models.indextts2.model_folder import read_config
from models.tiny.family import Tiny
from models.weights import _shards
from tests.hostile.test_hostile_limits import merged
from tests.worlds import RATE, tone, write_model

OUTSIDE = ("../secret/model.safetensors", "/secret/model.safetensors", "./model.safetensors", "a/model.safetensors",
           "..", "", "model.safetensors/", "..//model.safetensors")
NAMED: Mapping[str, tuple[str, str]] = {
    "an index of safetensors": ("model.safetensors.index.json", "weight_map"),
    "an index of PyTorch files": ("pytorch_model.bin.index.json", "weight_map"),
    "an index of an adapter": ("adapter.am.safetensors.index.json", "weight_map"),
    "a tokenizer's settings": ("tokenizer_config.json", "fast_tokenizer_files"),
}


def written(folder: Path, kind: str, name: object) -> Path:
    file, key = NAMED[kind]
    values = {key: {"layer.weight": name} if key == "weight_map" else [name]}
    (folder / file).write_text(json.dumps(values), encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("kind", NAMED)
def test_a_recogniser_names_no_file_outside_of_its_folder(tmp_path: Path, kind: str, name: str) -> None:
    with pytest.raises(UserError, match="which lies outside of its folder"):
        check_named_files(written(tmp_path, kind, name))


@pytest.mark.parametrize("kind", NAMED)
def test_files_of_the_folder_itself_are_read(tmp_path: Path, kind: str) -> None:
    check_named_files(written(tmp_path, kind, "model-00001-of-00002.safetensors"))


@pytest.mark.parametrize("name", ["vocab_file", "merges_file", "spm_file", "normalizer_file", "tokenizer_file", "vocab",
                                  "merges"])
@pytest.mark.parametrize("value", ["/secret/vocab.json", "../secret/vocab.json", ["/secret/vocab.json"], {"a": 1}])
def test_the_special_tokens_of_a_recogniser_name_no_file(tmp_path: Path, name: str, value: object) -> None:
    """transformers 5.23 opens them: a vocabulary of this machine became the letters of a recogniser of the hub."""
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"pad_token": "<pad>", name: value}))
    with pytest.raises(UserError, match=f"sets '{name}', which is no special token"):
        check_named_files(tmp_path)


@pytest.mark.parametrize("values", [{"vocab": "/secret/vocab.json"}, {"merges": "merges.txt"},
                                    {"tokenizer_class": "XGLMTokenizer", "vocab_file": "/secret/secret.model"},
                                    {"init_inputs": ["/secret/vocab.json"]}])
def test_the_settings_of_a_tokenizer_name_no_vocabulary(tmp_path: Path, values: dict[str, object]) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "WhisperTokenizer", **values}))
    with pytest.raises(UserError, match="which lies outside of its folder"):
        check_named_files(tmp_path)


def test_special_tokens_are_read(tmp_path: Path) -> None:
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({
        "pad_token": "<pad>", "unk_token": {"content": "<unk>", "lstrip": False}, "do_lower_case": False,
        "additional_special_tokens": ["<s>", "</s>"]}))
    check_named_files(tmp_path)


@pytest.mark.parametrize("name", ["/secret/a.wav", "../secret/a.wav", "held_out/../../secret/a.wav",
                                  "held_out/link.wav"])
def test_held_out_recordings_of_a_model_lie_in_its_folder(tmp_path: Path, name: str) -> None:
    """An export that somebody gave away named a recording of this machine, and an evaluation copied it."""
    folder = tmp_path / "model"
    write_model(folder)
    (tmp_path / "secret").mkdir()
    soundfile.write(tmp_path / "secret" / "a.wav", tone(1, 0.8).numpy(), RATE)
    (folder / "held_out" / "link.wav").symlink_to(tmp_path / "secret" / "a.wav")
    named = name.replace("/secret", str(tmp_path / "secret")) if name.startswith("/") else name
    for split, read in (("combinations", lambda: Tiny().held_out_recordings(folder, "en")),
                        ("replay", lambda: Tiny().load_replay_clips(folder))):
        row = {"language": "en", "text": "a cat", "audio": named, "split": split}
        (folder / "held_out.jsonl").write_text(json.dumps(row), encoding="utf-8")
        with pytest.raises(UserError, match="leads out of model"):
            read()


@pytest.mark.parametrize("content", ["[]", "{", '{"text": "a"}', "1", "\xff", "[" * 100_000])
def test_damaged_held_out_sentences_are_refused_in_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "held_out.jsonl").write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=r"held_out\.jsonl"):
        Tiny().held_out_recordings(tmp_path, "en")


def test_it_is_checked_before_transformers_reads_the_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    written(tmp_path, "an index of safetensors", "../../secret/model.safetensors")
    with pytest.raises(UserError, match="'../../secret/model.safetensors', which lies outside"):
        _HubModel(tmp_path, torch.device("cpu"), "am", "")


@pytest.mark.parametrize("content", ["[]", "{", '{"weight_map": []}', '{"weight_map": {"a": ["b"]}}', "{}", "\xff",
                                     "[" * 100_000])
def test_settings_that_are_none_are_refused_in_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError):
        check_named_files(tmp_path)
    with pytest.raises(UserError):
        _shards(tmp_path / "model.safetensors.index.json")


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_index_of_shards_of_a_model_names_no_file_outside(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="lies outside"):
        _shards(written(tmp_path, "an index of safetensors", name) / "model.safetensors.index.json")


@pytest.mark.parametrize("content", [
    merged(5, 20_000), "gpt: &a {number_text_tokens: 3}\nb:\n  <<: *a", "[" * 100_000,
    "!!python/object/apply:os.system [x]",
    "gpt: {number_text_tokens: '3'}", "gpt: 3", "", "a" * (2 << 20), "gpt: {number_text_tokens: \x00}"])
def test_settings_of_a_base_model_are_read_with_limits(tmp_path: Path, content: str) -> None:
    """209 kB of merge keys held the app for half a minute."""
    (tmp_path / "config.yaml").write_text(content, encoding="utf-8")
    begun = time.process_time()
    with pytest.raises(UserError, match="holds no settings of IndexTTS2"):
        read_config(tmp_path / "config.yaml")
    assert time.process_time() - begun < 10


def test_settings_of_a_base_model_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("gpt:\n  number_text_tokens: 12000\ndataset: {}\n", encoding="utf-8")
    assert read_config(tmp_path / "config.yaml")["gpt"] == {"number_text_tokens": 12000}
