"""The probe tells a base model of noise, and one whose rows are out of place, from one that predicts speech."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from config.schema import DownloadOptions
from core import download, machine_check
from core.jobs.events import WarningRaised
from core.library import catalog
from core.library.records import BaseProbe, read_model_record
from core.model.loading import TTSModel, load_base
from core.proof import base_probe
from core.training.dataloader import Utterance
from core.workspace import Workspace
from models.base import LossOptions
from scripts import download as scripts_download
from tests import chatterbox_world, indextts2_world, worlds
from tests.worlds import Listener

CPU = torch.device("cpu")
WORLDS: dict[str, Callable[[Path], None]] = {
    "tiny": worlds.write_model, "chatterbox": lambda folder: chatterbox_world.write_model(folder, quick=True),
    "indextts2": indextts2_world.write_model}


@pytest.fixture(autouse=True)
def few_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_probe, "_RECORDINGS", 2)


@pytest.fixture(scope="module", params=["tiny", *(pytest.param(name, marks=pytest.mark.long) for name in
                                                  ("chatterbox", "indextts2"))])
def noise(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, str]:
    """A workspace with a model of random noise, and its name."""
    workspace = Workspace.open(tmp_path_factory.mktemp(request.param))
    WORLDS[request.param](workspace.models / request.param)
    return workspace, request.param


def encoded(base: TTSModel) -> list[Utterance]:
    return base_probe._encode_recordings(base.family, base.base_folder, base.front_end)


def fault(base: TTSModel, recordings: list[Utterance]) -> str:
    voice = base_probe._find_voice(base.family, base.base_folder)
    return base_probe._language_model_fault(base_probe._check_language_model(base, recordings, ["en", "fr"], voice))


def teach(base: TTSModel, recordings: list[Utterance]) -> None:
    """Train the small model on the recordings until it knows them by heart, which is what a probe can see."""
    samples = [item.sample for item in base_probe.replay.probes(recordings, base.lm)]
    module = base.lm.module.requires_grad_(True)
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    for _ in range(120):
        losses = base.lm.losses(samples, LossOptions())
        loss = losses.speech_sum / losses.speech_count + losses.text_sum / losses.text_count
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    module.requires_grad_(False)


@torch.no_grad()
def permute_rows(base: TTSModel) -> None:
    """Put the rows of every text table into another order."""
    values = base.lm.module.state_dict()
    for number, name in enumerate(base.lm.text_tables):
        order = torch.randperm(len(values[name]), generator=torch.Generator().manual_seed(number))
        values[name].copy_(values[name][order])


def test_noise_is_called_noise_a_taught_model_is_not_and_permuted_rows_are_found(noise: tuple[Workspace, str]) -> None:
    base = load_base(*noise, CPU)
    recordings = encoded(base)
    assert fault(base, recordings).startswith("noise. It predicts the codes of recorded speech no better than chance (")
    teach(base, recordings)
    assert fault(base, recordings) == ""
    permute_rows(base)
    assert fault(base, recordings) != ""


def test_a_noise_model_is_broken_and_costs_no_synthesis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace.open(tmp_path)
    worlds.write_model(workspace.models / "tiny")
    monkeypatch.setattr(base_probe, "_speak", None)
    probe = base_probe.probe_base(workspace, "tiny", Listener(tmp_path / "job"))
    assert probe.outcome == "broken"
    assert probe.words.startswith("broken: noise. ")
    assert probe.device == "cpu"
    assert (probe.sentences, probe.entropy) == (0, None)


@pytest.mark.parametrize("width", [0.02, 1.0, 10.0])
def test_noise_is_noise_at_any_scale(tmp_path: Path, width: float) -> None:
    workspace = Workspace.open(tmp_path)
    worlds.write_model(workspace.models / "tiny")
    base = load_base(workspace, "tiny", CPU)
    with torch.no_grad():
        for number, value in enumerate(base.lm.module.state_dict().values()):
            value.copy_(width * torch.randn(value.shape, generator=torch.Generator().manual_seed(number)))
    assert fault(base, encoded(base)).startswith("noise. ")


def test_a_model_that_does_not_fit_into_memory_is_not_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace.open(tmp_path)
    worlds.write_model(workspace.models / "tiny")
    monkeypatch.setattr(base_probe.machine, "free_memory", lambda: 1000)
    probe = base_probe.probe_base(workspace, "tiny", Listener(tmp_path / "job"))
    assert probe.outcome == "not probed"
    assert probe.words.startswith("not probed: ")
    assert "of memory are free, and " in probe.words


def test_a_model_that_cannot_be_loaded_is_broken(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path)
    worlds.write_model(workspace.models / "tiny")
    (workspace.models / "tiny" / "t3.safetensors").write_bytes(b"no weights")
    probe = base_probe.probe_base(workspace, "tiny", Listener(tmp_path / "job"))
    assert probe.outcome == "broken"
    assert probe.words.startswith("broken: it cannot be loaded or run. ")


def test_synthesis_that_would_take_too_long_is_not_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace.open(tmp_path)
    worlds.write_model(workspace.models / "tiny")
    base = load_base(workspace, "tiny", CPU)
    voice = base_probe._find_voice(base.family, base.base_folder)
    monkeypatch.setattr(base_probe, "_LONGEST_S", 1e-9)
    known = BaseProbe("not probed", "", ("en",), speech_loss=1.0, speech_chance=3.0, text_loss=1.0, text_chance=3.0,
                      text_contrast=0.5)
    probe = base_probe._speak(base, ["en"], voice, known, Listener(tmp_path / "job"))
    assert probe.outcome == "not probed"
    assert "no sentence was synthesized, which would take" in probe.words


def test_what_a_small_model_speaks_is_checked(tmp_path: Path) -> None:
    """Random weights seldom stop in time; whatever they do is counted."""
    workspace = Workspace.open(tmp_path)
    worlds.write_model(workspace.models / "tiny")
    base = load_base(workspace, "tiny", CPU)
    voice = base_probe._find_voice(base.family, base.base_folder)
    known = BaseProbe("not probed", "", ("en", "fr"), speech_loss=1.0, speech_chance=3.0, text_loss=1.0,
                      text_chance=3.0, text_contrast=0.5)
    probe = base_probe._speak(base, ["en", "fr"], voice, known, Listener(tmp_path / "job"))
    assert probe.sentences == 6
    assert f"{probe.stops} of 6 sentences (en, fr) end" in probe.words
    enough = min(probe.stops * 2 / 6, probe.durations * 2 / 6, probe.levels * 2 / max(1, probe.decoded)) > 1
    assert probe.outcome == ("speaks" if enough else "broken")


def test_durations_of_speech_depend_on_the_script() -> None:
    assert base_probe._is_speech_duration("There is a house.", 1.2, "en")
    assert not base_probe._is_speech_duration("There is a house.", 0.2, "en")
    assert not base_probe._is_speech_duration("There is a house.", 12.0, "en")
    assert base_probe._is_speech_duration("河边有一座小房子。", 2.0, "zh")


def test_a_linked_model_of_noise_is_broken_and_not_verified(tmp_path: Path) -> None:
    source = tmp_path / "mine"
    chatterbox_world.write_model(source, quick=True)
    (source / "model.json").unlink()
    workspace, listener = Workspace.open(tmp_path / "workspace"), Listener(tmp_path / "job")
    names = tuple(path.name for path in source.iterdir())
    result = download.run(DownloadOptions(model="chatterbox", variant="multilingual-v2", folder=str(source),
                                          accept_unknown=names), workspace, listener)
    assert str(result["probe"]).startswith("broken: noise. ")
    assert "verified" not in str(result["outcome"])
    assert any("broken: noise" in event.message for event in listener.events if isinstance(event, WarningRaised))
    assert scripts_download.grade(SimpleNamespace(result=result)) == 1  # type: ignore[arg-type]
    record = read_model_record(workspace.model("chatterbox-multilingual-v2"))
    assert record is not None
    assert record.probe is not None
    assert record.probe.outcome == "broken"
    [check] = machine_check.check_models(workspace.path)
    assert check.result == "fail"
    assert "broken: noise" in check.found


@pytest.mark.long
def test_the_built_in_model_speaks_and_its_damaged_copies_are_broken(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path)
    download.run(DownloadOptions(), workspace, Listener(tmp_path / "job"))
    probe = base_probe.probe_base(workspace, "tiny", Listener(tmp_path / "job"))
    assert (probe.outcome, probe.sentences, probe.stops, probe.durations, probe.levels) == ("speaks", 6, 6, 6, 2)
    path, whole = workspace.models / "tiny" / "t3.safetensors", catalog.pack_folder("tiny") / "t3.safetensors"
    with safe_open(str(whole), "pt") as file:
        metadata = file.metadata()
    held, generator = load_file(whole), torch.Generator().manual_seed(0)
    order = torch.randperm(len(held["text_emb.weight"]), generator=generator)
    permuted = {name: value[order] if name.startswith(("text_emb.", "text_head.")) else value
                for name, value in held.items()}
    random = {name: torch.randn(value.shape, generator=generator) * value.float().std(correction=0)
              for name, value in held.items()}
    for tensors, words in ((permuted, "broken: it does not follow its text."), (random, "broken: noise.")):
        save_file({name: value.half().contiguous() for name, value in tensors.items()}, str(path), metadata=metadata)
        assert base_probe.probe_base(workspace, "tiny", Listener(tmp_path / "job")).words.startswith(words)


def test_a_probe_without_recordings_judges_the_text() -> None:
    check = base_probe._LanguageModelCheck(None, 8.0, 2.0, 7.8, None, None)
    assert base_probe._language_model_fault(check) == ""
    said = base_probe._language_model_fault(replace(check, text_loss=7.7))
    assert said.startswith("noise. It predicts text no better")
