"""Bad files and values of IndexTTS2 on the command line: one sentence and one hint each, and nothing is lost."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from core.workspace import Workspace
from data.acoustics import audio
from models.indextts2 import model_folder
from scripts.command import run_verb
from tests.indextts2_world import filled_up, tokenizer, write_model
from tests.worlds import RATE, tone

Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("indextts2") / "model"
    write_model(folder)
    return folder


def speak(workspace: Workspace, made: Path, damage: Damage, seconds: float = 2.0, *arguments: str) -> int:
    """The exit code of a synthesis with a damaged copy of the model; its files and the recording stay as they are."""
    folder, voice = workspace.models / "indextts2", workspace.path / "voice.wav"
    shutil.copytree(made, folder)
    damage(folder)
    audio.save(voice, tone(3, seconds), RATE)
    before = contents(folder), voice.read_bytes()
    code = run_verb("synthesize", ["--workspace", str(workspace.path), "--voice-model", "base:indextts2", "--language",
                                   "en", "--text", "She reads a book.", "--voice", str(voice), "--device", "cpu",
                                   "--flow-steps", "1", "--duration-s", "0.2", *arguments])
    assert (contents(folder), voice.read_bytes()) == before
    return code


def contents(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.rglob("*") if path.is_file()}


def write_pieces(count: int) -> Damage:
    return lambda folder: (folder / "bpe.model").write_bytes(filled_up(tokenizer(), count))


def write_gpt(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    def write(folder: Path) -> None:
        held = {name: value.clone() for name, value in model_folder.read_gpt(folder / "gpt.pth").items()}
        torch.save(change(held), folder / "gpt.pth")  # what was read lies in the file, so it is copied first

    return write


def without_emotion(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in tensors.items() if not name.startswith("emo")}


@pytest.mark.parametrize(("damage", "said"), [
    (lambda folder: (folder / "hf_cache" / "campplus_cn_common.bin").unlink(), "lacks hf_cache/campplus_cn_common.bin"),
    (lambda folder: (folder / "bpe.model").unlink(), "bpe.model"),
    (lambda folder: (folder / "bpe.model").write_bytes(b"{}" * 50), "bpe.model"),
    (lambda folder: (folder / "bpe.model").write_bytes(tokenizer(["WHAT IS THIS", "ANOTHER ONE"])),
     "pieces, and gpt.pth has"),
    (write_pieces(24_000), "has 24000 pieces, and gpt.pth has"),
    (write_gpt(without_emotion), "is the GPT of IndexTTS 1 or 1.5, which has no emotion"),
], ids=["companion", "no pieces", "no tokenizer", "other pieces", "24,000 pieces", "version 1.5"])
def test_a_wrong_file_is_named(workspace: Workspace, made: Path, damage: Damage, said: str,
                               capsys: pytest.CaptureFixture[str]) -> None:
    assert speak(workspace, made, damage) != 0
    check_refusal(capsys, said)


def test_a_checkpoint_that_holds_its_tensors_as_model_speaks(workspace: Workspace, made: Path) -> None:
    assert speak(workspace, made, write_gpt(lambda tensors: {"model": tensors, "epoch": 3})) == 0


def test_a_reference_of_a_fifth_of_a_second_is_refused(workspace: Workspace, made: Path,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    assert speak(workspace, made, lambda folder: None, 0.2) != 0
    check_refusal(capsys, "lasts 0.20 s; at least 0.5 s are needed")


@pytest.mark.parametrize(("weights", "said"), [
    (("--happy", "1.5"), "sound.emotion.happy: should be less than or equal to 1"),
    (("--sad", "-0.1"), "sound.emotion.sad: should be greater than or equal to 0"),
    (("--happy", "0.7", "--calm", "0.7"), "sum to 1.4, and at most 1 is wanted"),
])
def test_an_emotion_out_of_range_is_refused(workspace: Workspace, made: Path, weights: tuple[str, ...], said: str,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    assert speak(workspace, made, lambda folder: None, 2.0, *weights) != 0
    check_refusal(capsys, said)


def check_refusal(capsys: pytest.CaptureFixture[str], said: str) -> None:
    """A sentence that says it and a hint, without a traceback."""
    *_, sentence, hint = capsys.readouterr().err.strip().splitlines()
    assert said in sentence
    assert hint
    assert "Traceback" not in sentence + hint
