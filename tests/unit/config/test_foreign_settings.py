"""Files and commands of other finetuning projects: read, translated, or answered with the nearest thing here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import yaml

from config import foreign_settings
from config.errors import UserError
from config.loading import parse_options
from config.schema import TrainOptions
from core.jobs.verbs import read_preset
from core.text import pieces
from data.front_end import FrontEnd, read_segmenter
from data.importers import import_source
from data.manifest import HELD_OUT, TRAIN
from scripts import import_config, suggestions

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = {  # the sections and keys of a published training_config.yaml
    "model": {"n_vocab": 2535, "freeze_original_embeddings": True, "freeze_until_index": 2454},
    "data": {"batch_size": 16, "num_workers": 2, "sampling_rate": 22050},
    "training": {"optimizer": "AdamW", "learning_rate": "1e-5", "weight_decay": 0.01, "lr_scheduler": "ExponentialLR",
                 "warmup_steps": 4000, "max_epochs": 1000, "grad_clip_val": 0.5, "grad_accumulation_steps": 2,
                 "save_interval": 5000, "use_amp": True, "early_stopping": True, "patience": 50, "min_delta": 0.001},
    "logging": {"use_wandb": False}, "paths": {"checkpoints": "models/checkpoints"},
}


def saved(path: Path, values: object = None) -> Path:
    path.write_text(yaml.safe_dump(SETTINGS if values is None else values), encoding="utf-8")
    return path


def test_settings_of_another_program_become_options(tmp_path: Path) -> None:
    options = read_preset(saved(tmp_path / "training_config.yaml"), "train")
    assert options == {
        "batch_size": 16, "optimizer": "adamw", "layer_lr": 1e-5, "weight_decay": 0.01, "warmup": 4000,
        "max_epochs": 1000, "max_grad_norm": 0.5, "gradient_accumulation": 2, "checkpoint_every": 5000, "patience": 50,
        "min_improvement": 0.001}
    parse_options(TrainOptions, options)
    assert read_preset(tmp_path / "training_config.yaml", "preflight") == options


def test_every_key_has_a_line_that_says_what_it_is_here(tmp_path: Path) -> None:
    table = "\n".join(suggestions.foreign_settings_table(str(saved(tmp_path / "settings.yaml"))))
    assert "model.freeze_original_embeddings: True\n      -> freezing is always on: the old rows are a buffer" in table
    assert "training.learning_rate: 1e-5\n      -> layer_lr: 1e-05 (rate of the base's layers" in table
    assert "nobody types their number" in table
    keys = [f"{section}.{key}:" for section, values in SETTINGS.items() for key in values]
    assert not [key for key in keys if key not in table]


@pytest.mark.parametrize("values", [
    {"steps": 800, "batch_size": 4, "seed": 1, "weight_decay": 0.0}, {"train": {"steps": 3, "warmup": 2}},
    {"verb": "train", "options": {"steps": 3}}, {}, [], {"preset": {"title": "x"}, "steps": 4},
])
def test_options_of_lisan_are_not_translated(values: object) -> None:
    assert not foreign_settings.is_foreign(values)


@pytest.mark.parametrize("preset", sorted((ROOT / "config" / "presets").glob("*.yaml")), ids=lambda path: path.stem)
def test_presets_of_lisan_are_not_translated(preset: Path) -> None:
    assert not foreign_settings.is_foreign(yaml.safe_load(preset.read_text("utf-8")))


def test_a_value_that_is_not_used_is_told() -> None:
    keys = {entry.key: entry.here for entry in foreign_settings.translate({"training": {
        "max_epochs": None, "num_train_epochs": 20, "epochs": 30, "max_steps": -1, "optim": "lion"}}).keys}
    assert keys["training.max_epochs"] == "not a value of `max_epochs` here"
    assert keys["training.num_train_epochs"] == "passes over the clips"
    assert keys["training.epochs"] == "`max_epochs` is set by another key"
    assert keys["training.max_steps"] == "not a value of `steps` here"
    assert keys["training.optim"] == "not a value of `optimizer` here"


def test_early_stopping_that_is_off_stays_off() -> None:
    values = {"training": {"early_stopping": False, "patience": 50, "learning_rate": 1e-4}}
    assert foreign_settings.translate(values).options["patience"] == 0


def test_a_preset_is_written_and_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = saved(tmp_path / "training_config.yaml"), tmp_path / "preset.yaml"
    words = ["--workspace", str(tmp_path / "workspace"), str(source), "--output", str(target)]
    assert import_config.main(words) == 0
    assert read_preset(target, "train") == read_preset(source, "train")
    assert "freezing is always on" in capsys.readouterr().out
    assert import_config.main(words) == 2
    assert import_config.main(["--workspace", str(tmp_path / "workspace"), str(target)]) == 2


@pytest.mark.parametrize(("given", "nearest"), [
    ("--learning-rate", "--row-lr or --adapter-lr or --layer-lr"), ("--epochs", "--max-epochs"),
    ("--warmup-steps", "--warmup"), ("--grad_accumulation_steps", "--gradient-accumulation"),
    ("--batchsize", "--batch-size"), ("--checkpoint-evry", "--checkpoint-every"),
])
def test_an_unknown_option_is_answered_with_the_nearest(
    given: str, nearest: str, capsys: pytest.CaptureFixture[str],
) -> None:
    from scripts.command import build_parser

    with pytest.raises(SystemExit):
        build_parser("train").parse_args([given, "3"])
    assert f"{given} is not an option; {nearest}" in capsys.readouterr().err


@pytest.mark.parametrize("script", ["train", "export"])
def test_a_script_runs_by_its_path_from_any_folder(script: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / f"{script}.py"), "--help"], cwd=tmp_path,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"python -m scripts {script}" in done.stdout


def test_pairs_of_prompt_and_target_are_read_by_their_target(tmp_path: Path) -> None:
    recordings, project = tmp_path / "elsewhere", tmp_path / "project"
    recordings.mkdir()
    (project / "codes").mkdir(parents=True)
    for split, numbers in (("train", range(4)), ("val", range(4, 6))):
        rows = []
        for number in numbers:
            path = recordings / f"clip{number}.wav"
            soundfile.write(path, np.random.default_rng(number).normal(0, 0.1, 16000), 16000)
            np.save(project / "codes" / f"c{number}.npy", np.arange(4))
            rows += [{"id": f"p{prompt}__c{number}", "prompt_id": f"c{prompt}", "target_id": f"c{number}",
                      "prompt_audio_path": str(recordings / "clip0.wav"), "target_audio_path": str(path),
                      "target_text": f"ሰላም {number}", "target_codes_path": f"codes/c{number}.npy"}
                     for prompt in range(2)]
        (project / f"{split}_pairs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    source = import_source(project)
    assert [(row.id, row.text, row.split) for row in source.rows] == [
        (f"c{number}", f"ሰላም {number}", TRAIN if number < 4 else HELD_OUT) for number in range(6)]
    assert {row.audio.parent for row in source.rows} == {recordings}
    assert len(source.skipped) == 6  # each target has two prompts


FLAT = {"[STOP]": 0, "[UNK]": 1, "[SPACE]": 2, "[START]": 3, "[en]": 4, "a": 5, "b": 6, "ab": 7, "ሀ": 8, "ለ": 9}


def test_a_flat_vocabulary_is_a_tokenizer_of_characters(tmp_path: Path) -> None:
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps(FLAT, ensure_ascii=False), encoding="utf-8")
    segmenter = read_segmenter(path.read_bytes(), str(path))
    assert segmenter.encode("ሀለ ab") == ([8, 9, 2, 5, 6], "")
    assert segmenter.encode("ሐ") == ([1], "ሐ")
    path.write_text(json.dumps({**FLAT, "c": 5}))
    with pytest.raises(UserError, match="two of its pieces have one id"):
        read_segmenter(path.read_bytes(), str(path))


@pytest.mark.parametrize(("name", "content"), [
    ("vocab.json", json.dumps({"<unk>": 0, "ሀ": 1, "ለ": 2, "ሀለ": 3})), ("vocab.txt", "<unk>\nሀ\nለ\nሀለ\n"),
    ("vocab.txt", "[UNK]\nሀ\nለ\n##ሀለ\n"), ("am.vocab", "<unk>\t0\nሀ\t-1\nለ\t-2\nሀለ\t-3\n"),
])
def test_a_list_of_pieces_is_used_by_their_texts(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    base = FrontEnd.base({"en": "latin"}, "ab")
    found = pieces.import_pieces(base, str(tmp_path / name))
    assert found.characters == ("ሀ", "ለ")
    assert found.merges == (("ሀ", "ለ"),)


def test_a_text_is_no_list_of_pieces(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("ሰላም ለዓለም\nእንደምን አደርክ\n", encoding="utf-8")
    with pytest.raises(UserError, match="one of its lines is 'ሰላም ለዓለም'"):
        pieces.read_tokenizer(tmp_path / "texts.txt")
