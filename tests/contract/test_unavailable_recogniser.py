"""The recogniser of a training is gone or damaged: what is finished continues, and no other scores in its place."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from config.errors import UserError
from config.schema import CompareOptions, SynthesizeOptions
from core import compare, export, synthesize, train
from core.jobs.checkpoint_names import checkpoint_steps
from core.jobs.events import Result
from core.library import certificate, records
from core.library.records import MODEL_RECORD, ModelRecord, write_record
from core.model.loading import load
from core.speech import scoring
from core.training import setup
from core.workspace import Workspace
from data.durable_files import ExpectedFile
from tests.trained import RUN, trained_world, write_checkpoint
from tests.unit import tiny_recognisers
from tests.worlds import Listener, export_options, extended_world, train_and_certify, train_options

TEXT = "ሀለመ ሰረቀ"
HUB = "some/ear"
ROOT = Path(__file__).resolve().parents[2]


def fetched(workspace: Workspace) -> Path:
    """A recogniser as it stands when it was fetched from the hub."""
    folder = tiny_recognisers.write_ctc(workspace.recognisers / "some--ear", {"amh": tiny_recognisers.ETHIOPIC})
    files = {path.name: ExpectedFile(path.stat().st_size) for path in folder.iterdir()}
    write_record(folder / MODEL_RECORD, ModelRecord("recogniser", HUB, HUB, "1" * 40, "main", files))
    return folder


def cut_off(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def same_size(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(b"\xff" * weights.stat().st_size)


def damaged_record(folder: Path) -> None:
    (folder / MODEL_RECORD).write_text("{", encoding="utf-8")


FAULTS = {"gone": shutil.rmtree, "cut off": cut_off, "other bytes": same_size, "damaged record": damaged_record}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A trained run, an export of it, and the recogniser that scored both."""
    world = trained_world(tmp_path_factory.mktemp("kept") / "workspace", recogniser=HUB)
    fetched(world)
    export.run(export_options(run=f"run:{RUN}", export="scored"), world, Listener(world.runs / "export-judged"))
    return world


@pytest.fixture
def world(kept: Workspace, tmp_path: Path) -> Workspace:
    shutil.copytree(kept.path, tmp_path / "workspace")
    return Workspace.open(tmp_path / "workspace")


def speak(world: Workspace, model: str, language: str = "am", text: str = TEXT) -> tuple[Listener, Result]:
    listener = Listener(world.runs / f"speak-{model.partition(':')[0]}-{language}")
    options = SynthesizeOptions(voice_model=model, language=language, text=text, device="cpu")
    return listener, synthesize.run(options, world, listener)


def warnings(listener: Listener) -> list[str]:
    return [event.message for event in listener.of("warning")]


def assert_told(messages: list[str], of_export: bool = False) -> None:
    """One warning that names the recogniser and the way out, which for an export needs no dataset."""
    (told,) = [message for message in messages if "not measured" in message]
    assert told.startswith(f"Amharic is not measured: the recogniser {HUB} of its training ")
    by_check = f"python -m scripts preflight --dataset demo-am --extension tiny-am --recogniser {HUB}"
    assert (by_check in told, f"hf download {HUB} " in told) == (not of_export, of_export)


@pytest.mark.parametrize(("model", "break_it"), [*((f"run:{RUN}", fault) for fault in FAULTS.values()),
                                                 ("export:scored", shutil.rmtree)], ids=[*FAULTS, "gone, an export"])
def test_synthesis_continues_without_it(world: Workspace, model: str, break_it: Callable[[Path], None]) -> None:
    break_it(world.recognisers / "some--ear")
    listener, result = speak(world, model)
    assert result["error"] is result["recordings_cer"] is None
    assert_told(warnings(listener), of_export=model == "export:scored")
    (clip,) = listener.clips()
    assert (clip.error, clip.transcript) == (None, "")
    assert clip.unmeasured.startswith(f"the recogniser {HUB} of its training ")
    listener, result = speak(world, model, "en", "the cat sees a dog")
    assert result["error"] is not None
    assert not any("measured" in message for message in warnings(listener))


def test_an_export_is_scored_by_the_recogniser_of_its_run(world: Workspace) -> None:
    of_run, of_export = speak(world, f"run:{RUN}")[0].clips()[0], speak(world, "export:scored")[0].clips()[0]
    assert of_run.transcript
    assert set(of_run.transcript) <= {*tiny_recognisers.ETHIOPIC, *"<unk> "}  # the model's own writes Latin letters
    assert (of_export.error, of_export.transcript) == (of_run.error, of_run.transcript)
    compared = Listener(world.runs / "compared")
    compare.run(CompareOptions(base="base:tiny", finetuned="export:scored", texts=(("am", TEXT),), device="cpu"), world,
                compared)
    assert [clip.error for clip in compared.clips() if clip.side == "finetuned"] == [of_run.error]


def test_no_path_of_the_machine_leaves_with_an_export(world: Workspace, tmp_path: Path) -> None:
    """It names the folder of its recogniser, which is found here by the run, and nowhere without it."""
    ear = tiny_recognisers.write_ctc(tmp_path / "own" / "ear", {"amh": tiny_recognisers.ETHIOPIC})
    write_checkpoint(world, "gated", "other", recogniser=str(ear))
    shutil.rmtree(world.recognisers / "some--ear")
    export.run(export_options(run="run:other", export="theirs"), world, Listener(world.runs / "export-theirs"))
    folder = world.exports / "theirs"
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path.name for path in files if str(tmp_path).encode() in path.read_bytes()] == []
    assert [path.name for path in files if str(ROOT).encode() in path.read_bytes()] == []
    options = yaml.safe_load((folder / records.TRAINING_OPTIONS).read_text(encoding="utf-8"))["options"]
    assert records.read_export_record(folder).recogniser == "ear"
    assert (options["evaluation"]["recogniser"], options["dataset"]) == ("ear", "demo-am")
    (clip,) = speak(world, "export:theirs")[0].clips()
    assert clip.transcript
    shutil.rmtree(world.runs / "other")  # as on another machine
    listener, result = speak(world, "export:theirs")
    assert result["error"] is None
    (told,) = [message for message in warnings(listener) if "not measured" in message]
    assert told.endswith(f"ear of its training is on the machine that it was trained on. Copy it into "
                         f"{world.recognisers / 'ear'}, then do this again.")
    shutil.copytree(ear, world.recognisers / "ear")
    assert speak(world, "export:theirs")[0].clips()[0].transcript == clip.transcript


@pytest.mark.parametrize(("recogniser", "here", "wanted"), [
    ("", True, ""), ("built-in", True, "built-in"), ("me/ear", True, "me/ear"), ("ear", True, "own/ear"),
    ("ear", False, "ear"), ("other", True, "other"),
])
def test_the_run_gives_the_folder_of_a_recogniser(kept: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                  recogniser: str, here: bool, wanted: str) -> None:
    record = replace(records.read_export_record(kept.exports / "scored"), recogniser=recogniser)
    run = records.read_checkpoint(kept.runs / RUN / "checkpoints" / "step-000008")
    monkeypatch.setattr(scoring.records, "read_record", lambda *_: replace(run, recogniser=str(tmp_path / "own/ear")))
    found = scoring._locate_recogniser(kept, record if here else replace(record, run="none")).recogniser
    assert found == (str(tmp_path / wanted) if "own" in wanted else wanted)


def test_a_comparison_continues_without_the_recogniser(world: Workspace) -> None:
    cut_off(world.recognisers / "some--ear")
    listener = Listener(world.runs / "compared")
    options = CompareOptions(base="base:tiny", finetuned="export:scored", device="cpu",
                             texts=(("am", TEXT), ("en", "the cat sees a dog")))
    result = compare.run(options, world, listener)
    assert_told(warnings(listener), of_export=True)
    clips = {(clip.language, clip.side): clip for clip in listener.clips()}
    assert result["error_am_finetuned"] is None
    assert clips["am", "base"].error is None
    assert "cannot be loaded" in clips["am", "finetuned"].unmeasured
    assert (clips["en", "finetuned"].error is not None, clips["en", "finetuned"].unmeasured) == (True, "")


def test_an_export_continues_without_it_and_is_measured_when_it_is_back(world: Workspace, tmp_path: Path) -> None:
    shutil.rmtree(world.cache / "certificates")
    ear = (world.recognisers / "some--ear").rename(tmp_path / "ear")

    def exported(name: str) -> tuple[Listener, certificate.Certificate, str]:
        listener = Listener(world.runs / f"export-{name}")
        export.run(export_options(run=f"run:{RUN}", export=name), world, listener)
        folder = world.exports / name
        card = (folder / "README.md").read_text(encoding="utf-8")
        return listener, certificate.read(folder / certificate.CERTIFICATE), card

    listener, proof, card = exported("without")
    assert_told(warnings(listener))
    reason = f"not measured, because the recogniser {HUB} of its training is not there any more"
    assert {one.language for one in proof.errors} == {"en", "fr"}
    assert f"am: {reason}" in proof.check("character_error_rates").actual
    assert not proof.failed()
    assert reason[:40] in card
    record = records.read_export_record(world.exports / "without")
    assert (record.recogniser, "am" in record.recordings_cer) == (HUB, False)
    ear.rename(world.recognisers / "some--ear")
    listener, proof, _ = exported("with")
    assert "am" in {one.language for one in proof.errors}
    assert not any("measured" in message for message in warnings(listener))


def test_a_finished_training_is_certified_without_its_recogniser_and_any_other_refuses(tmp_path: Path) -> None:
    world = extended_world(tmp_path / "workspace")
    ear = tiny_recognisers.write_ctc(tmp_path / "ear", {"amh": tiny_recognisers.ETHIOPIC})
    options = train_options(steps=2, checkpoint_every=2, evaluation_sentences=1, recogniser=str(ear))
    run = world.runs / "scored"
    train_and_certify(options, world, Listener(run))
    assert "am" in {one.language for one in certificate.read(run / certificate.CERTIFICATE).errors}
    (run / certificate.CERTIFICATE).unlink()  # a kill before it was made
    cut_off(ear)
    resumed = Listener(run)
    result = train_and_certify(options, world, resumed)
    assert (result["best_step"], result["chosen_by"]) == (2, "character error rate")
    (told,) = [message for message in warnings(resumed) if message.startswith("Amharic is not measured")][:1]
    assert f"Put a whole recogniser into {ear}" in told
    proof = certificate.read(run / certificate.CERTIFICATE)
    assert "am: not measured, because the recogniser ear of its training" in proof.check(
        "character_error_rates").actual
    assert (proof.input_hash, str(tmp_path) in proof.check("character_error_rates").actual) == ("", False)
    with pytest.raises(UserError, match=r"could not be loaded.*It is needed to score the speech\.") as refused:
        train.run(options, world, Listener(world.runs / "another"))
    assert "(--recogniser)" in refused.value.hint
    assert checkpoint_steps(world.runs / "another") == []


@pytest.mark.parametrize("chosen_by", ["speech_loss", "auto"])
def test_a_run_continues_without_the_recogniser_only_where_that_does_not_choose(tmp_path: Path, chosen_by: str) -> None:
    world = extended_world(tmp_path / "workspace")
    ear = tiny_recognisers.write_ctc(tmp_path / "ear", {"amh": tiny_recognisers.ETHIOPIC})
    options = train_options(steps=4, checkpoint_every=2, evaluation_sentences=1, recogniser=str(ear),
                            select_best_by=chosen_by)
    run = world.runs / "stopped"
    with pytest.raises(Exception, match="Stopped after step"):
        train.run(options, world, Listener(run, stop_after=2))
    shutil.rmtree(ear)
    again = Listener(run)
    if chosen_by == "auto":
        with pytest.raises(UserError, match="It is needed to score the speech|holds no recogniser") as caught:
            train.run(options, world, again)
        assert "--recogniser" not in caught.value.hint  # a run that continues may have no other
        assert caught.value.hint.startswith("Restore the recogniser")
        assert caught.value.hint.endswith("python -m scripts train --init-from run:stopped@2.")
        assert not again.of("step")
    else:
        assert train.run(options, world, again)["best_step"] in (2, 4)
        assert again.of("evaluated")[-1].errors == {}


@pytest.mark.parametrize(("recogniser", "begins"), [
    ("built-in", "Get the built-in model; or"), ("", "Get the built-in model; or"),
    ("me/ear", "Restore the recogniser (one of the hub is downloaded again if you delete its folder) and "),
])
def test_a_run_that_continues_is_offered_no_other_recogniser(tmp_path: Path, recogniser: str, begins: str) -> None:
    hint = setup._restore_hint(recogniser, "Get the built-in model.", tmp_path / "run", 2)
    assert hint.startswith(begins)
    assert hint.endswith("or start a new run from its weights: python -m scripts train --init-from run:run@2.")


def test_a_training_gives_the_recognisers_name_of_the_language(tmp_path: Path) -> None:
    world = extended_world(tmp_path / "workspace")
    ear = tiny_recognisers.write_ctc(tmp_path / "ear", {"ethio": tiny_recognisers.ETHIOPIC})
    options = train_options(recogniser=str(ear))
    with pytest.raises(UserError, match=r"has no language amh or am\. It is needed") as refused:
        train.run(options, world, Listener(world.runs / "refused"))
    assert "(--recogniser-language;" in refused.value.hint
    write_checkpoint(world, "gated", recogniser=str(ear), recogniser_language="ethio")
    listener, result = speak(world, f"run:{RUN}")
    assert (result["error"] is not None, warnings(listener)) == (True, [])
    loaded = scoring.load_recogniser(world, load(world, f"run:{RUN}", torch.device("cpu")),
                                     scoring.NamedRecogniser(str(ear), "ethio"))
    assert loaded is not None
    assert loaded.languages[0] == "am"
