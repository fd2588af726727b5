"""A Chatterbox export: it reloads bit-identically, and the published package loads and speaks it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from config.schema import CertifyOptions, SamplingOptions
from core import certify, export
from core.library import certificate
from core.model import loading
from core.model.loading import load
from core.speech.synthesis import Synthesizer, join_chunks
from core.workspace import Workspace
from models.base import Sampling
from models.chatterbox import model_folder, t3
from models.generate import Stepper, prepare_voice
from models.sampling import Sampler
from tests import chatterbox_world
from tests.trained import RUN, write_checkpoint
from tests.worlds import Listener, export_options, extend_world

CPU = torch.device("cpu")
pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
TEXT = "ሀለመ ሰረቀ"


def reference_python() -> Path | None:
    """The interpreter that has the published package: LISAN_REFERENCE, or what `make reference` makes."""
    named = os.environ.get("LISAN_REFERENCE")
    path = Path(named) if named else ROOT / ".reference" / "bin" / "python"
    return path if path.is_file() else None


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Two layers at the published width, since the published package knows no other."""
    workspace = Workspace.open(tmp_path_factory.mktemp("export"))
    config = chatterbox_world.language_model(1024, 2, mlp_width=4096)
    chatterbox_world.write_model(workspace.models / "chatterbox", config)
    extend_world(workspace, "chatterbox")
    write_checkpoint(workspace, "gated")
    return workspace


@pytest.fixture(scope="module")
def exported(world: Workspace) -> Path:
    export.run(export_options(run=f"run:{RUN}", export="am"), world, Listener(world.runs / "export-am"))
    return world.exports / "am"


def test_it_passes_its_certificate_and_reloads_to_the_bit(world: Workspace, exported: Path) -> None:
    proof = certificate.read(exported / "certificate.json")
    assert not proof.failed()
    assert {proof.check(name).result for name in ("base_logits", "export_reloads", "merged_reloads")} == {"passed"}
    assert proof.check("export_reloads").expected == proof.check("export_reloads").actual
    assert int(proof.check("base_logits").actual.split()[0]) >= 19  # of 23 languages, four of which need packages


def test_it_is_certified_again_beside_its_base(world: Workspace, exported: Path) -> None:
    copy = world.exports / "again"
    shutil.copytree(exported, copy)
    certify.run(CertifyOptions(run="export:again", again=True), world, Listener(world.runs / "certify-again"))
    assert not certificate.read(copy / "certificate.json").failed()


def test_it_speaks_alone_as_the_checkpoint_does(world: Workspace, exported: Path, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    shutil.copytree(exported, folder)
    sampling = SamplingOptions(seed=3)
    sounds = [join_chunks(list(Synthesizer(model).synthesize(TEXT, "am", sampling)))
              for model in (loading.load_export(folder, CPU), load(world, f"run:{RUN}", CPU))]
    assert torch.equal(*sounds)


def test_the_files_have_the_published_names_and_sizes(world: Workspace, exported: Path) -> None:
    base = load_file(world.model("chatterbox") / "t3_mtl23ls_v2.safetensors")
    rows = load(world, f"run:{RUN}", CPU).front_end.size
    for name in ("t3_finetuned.safetensors", model_folder.MERGED):
        held = load_file(exported / name)
        assert set(held) == set(base)
        assert {key for key in held if held[key].shape != base[key].shape} == {"text_emb.weight", "text_head.weight"}
        assert len(held["text_emb.weight"]) == len(held["text_head.weight"]) == rows
    plain = load_file(exported / "t3_finetuned.safetensors")
    assert all(torch.equal(plain[key][:len(value)], value) for key, value in base.items())


@pytest.mark.parametrize(("language", "name"), [("am", model_folder.MERGED), ("en", "t3_finetuned.safetensors")])
def test_the_published_package_speaks_it(exported: Path, tmp_path: Path, language: str, name: str) -> None:
    if (python := reference_python()) is None:
        pytest.skip("the published package is not there: make reference")
    text = TEXT if language == "am" else "the cat sees a dog"
    done = subprocess.run([str(python), str(exported / "load_with_chatterbox.py"), language, text, "--codes"],
                          cwd=tmp_path, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    ours = load_export_ids(exported, text, language)
    assert theirs["text_ids"] == ours
    assert theirs["codes"] == greedy(exported / name, exported, theirs["text_ids"], len(theirs["codes"]))


def load_export_ids(folder: Path, text: str, language: str) -> list[int]:
    return loading.load_export(folder, CPU).front_end.encode(text, language).tolist()


def greedy(path: Path, folder: Path, ids: list[int], length: int) -> list[int]:
    """The published loop's codes by our model: it lets every id be chosen."""
    model, voice = t3.load(path), model_folder.read_voice(folder / "conds.pt")
    stepper = Stepper(model, 1, model.config.conditioning_length + len(ids) + 2 + length, length, CPU)
    every = torch.ones(model.config.speech_rows, dtype=torch.bool)
    stepper.sampler = Sampler(1, every, model.config.stop_speech, length)
    sampling = Sampling(temperature=0.8, top_p=1e-6, min_p=0.05, repetition_penalty=1.2, guidance=0.5)
    with torch.inference_mode():
        stepper.prefill([torch.tensor(ids)], [prepare_voice(model, voice, CPU)], sampling)
        for _ in range(length):
            stepper.advance()
    return np.asarray(stepper.codes[0]).tolist()
