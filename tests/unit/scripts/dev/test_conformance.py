"""The comparison with the published models: it passes for what they gave, and fails for anything else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from scripts.dev.conformance.__main__ import main

REFERENCE = Path(__file__).parents[3] / "reference"
NAME = "t3_2layers.safetensors"


def run(folder: Path) -> int:
    return main(["chatterbox", str(folder)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of T3's vectors alone."""
    shutil.copyfile(REFERENCE / "vectors" / NAME, tmp_path / NAME)
    return tmp_path


def change(path: Path, **tensors: torch.Tensor | None) -> None:
    """Replace or (None) remove tensors of a file of vectors."""
    with safe_open(str(path), framework="pt") as file:
        held, metadata = {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118
    held |= {name: value for name, value in tensors.items() if value is not None}
    save_file({key: value for key, value in held.items() if tensors.get(key, value) is not None}, str(path), metadata)


def tensor(path: Path, name: str) -> torch.Tensor:
    with safe_open(str(path), framework="pt") as file:
        return file.get_tensor(name).clone()


def test_our_models_give_what_the_published_ones_gave(capsys: pytest.CaptureFixture) -> None:
    assert run(REFERENCE / "vectors") == 0
    shown = capsys.readouterr().out
    assert "greedy_tokens" in shown
    assert "FAILED" not in shown


@pytest.mark.slow
def test_so_do_they_at_full_size() -> None:
    assert run(REFERENCE / "full_size") == 0


def test_a_small_difference_fails(folder: Path, capsys: pytest.CaptureFixture) -> None:
    path = folder / NAME
    logits, codes = tensor(path, "speech_logits"), tensor(path, "greedy_tokens")
    logits[0, 1, 2] += 2e-4 * logits.abs().max()
    codes[0, 5] += 1
    change(path, speech_logits=logits, greedy_tokens=codes)
    assert run(folder) == 1
    shown = capsys.readouterr().out
    assert [line.split()[3] for line in shown.splitlines() if "FAILED" in line] == ["speech_logits", "greedy_tokens"]
    assert "4 of 6 passed" in shown


@pytest.mark.parametrize("broken", [torch.full((1, 9, 2454), torch.nan), torch.zeros(1, 8, 2454)])
def test_a_reference_of_no_numbers_or_of_another_shape_fails(folder: Path, broken: torch.Tensor) -> None:
    change(folder / NAME, text_logits=broken)
    assert run(folder) == 1


def test_what_cannot_be_compared_is_an_error_and_no_pass(folder: Path, tmp_path: Path,
                                                         capsys: pytest.CaptureFixture) -> None:
    change(folder / NAME, something_new=torch.zeros(1))
    assert run(folder) == 2
    assert "something_new, which is not compared" in capsys.readouterr().err
    change(folder / NAME, something_new=None, text_tokens=None)
    assert run(folder) == 2
    assert "lacks 'text_tokens'" in capsys.readouterr().err
    (folder / "other.safetensors").write_bytes(b"")
    assert run(folder) == 2
    assert run(tmp_path / "nowhere") == 2
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / "empty") == 2


def test_a_list_of_keys_is_compared_both_ways(tmp_path: Path) -> None:
    from data.acoustics.voice_encoder import VoiceEncoder

    keys = {key: list(value.shape) for key, value in VoiceEncoder().state_dict().items()}
    path = tmp_path / "ve_keys.json"
    path.write_text(json.dumps(keys))
    assert run(tmp_path) == 0
    for other in ({**keys, "more": [1]}, {key: keys[key] for key in list(keys)[1:]}, {**keys, "proj.bias": [255]}):
        path.write_text(json.dumps(other))
        assert run(tmp_path) == 1
