"""Ways to get forged figures into a certificate of this workspace, or beside it: card, evaluation, learning, scores."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from config.errors import UserError
from config.schema import CertifyOptions, EvaluateOptions, PackOptions, PushOptions, ServeOptions, UnpackOptions
from core import certify, evaluate, export, pack, push, unpack
from core.library import certificate, evaluation_report, learning, records, verification
from core.library.certificate import CERTIFICATE, Certificate
from core.library.learning import Learning, LearningRecord, LearningReport
from core.library.verification import Outcome
from core.model.loading import load
from core.serving.served_models import ServedModels
from core.sources import recognisers
from core.sources.hub import Hub
from core.speech import scoring
from core.workspace import Workspace
from data.durable_files import check_no_link_out, hash_file
from scripts import certify as script
from tests.hostile import certified_world as world
from tests.hostile.certified_world import EXPORT, copied, export_of, outcome, relist, rewrite, run_of, seal
from tests.trained import RUN, change_checkpoint
from tests.unit.serving_world import serving
from tests.worlds import Listener, export_options
from ui import certificate as tab
from ui import records as records_of_page

OF_EXPORT, OF_RUN = f"export:{EXPORT}", f"run:{RUN}"


@pytest.fixture
def attacked(tmp_path: Path) -> Workspace:
    return copied(tmp_path / "workspace")


def pushed(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Listener:
    """A push to a hub that does not answer."""
    monkeypatch.setenv("HF_TOKEN", "token")
    listener = Listener(workspace.runs / "push")
    push.push(PushOptions(export=EXPORT, repository="me/mine"), workspace, listener, Hub("http://127.0.0.1:9", "token"))
    return listener


def edit_card(folder: Path) -> None:
    path = folder / records.EXPORT_CARD
    path.write_text(path.read_text() + "\n| am | 40 | 41.3% | 0.1% |\n")


def add_evaluation(folder: Path) -> None:
    (folder / "evaluation").mkdir()
    (folder / "evaluation" / "evaluation.json").write_text('{"cer": 0.001}')


TEXTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "an edited card": (edit_card, "README.md differs"),
    "an added evaluation": (add_evaluation, "evaluation/evaluation.json is new"),
    "no card": (lambda folder: (folder / records.EXPORT_CARD).unlink(), "README.md is missing"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_with_other_figures_are_other_files(attacked: Workspace, monkeypatch, tmp_path: Path, name: str) -> None:
    """The list of hashes of an export can be written again by anybody."""
    edit, reason = TEXTS[name]
    edit(export_of(attacked))
    seal(export_of(attacked))
    result = world.verify(attacked, "export")
    assert result.outcome is Outcome.OTHER_FILES
    assert reason in result.reason
    assert script.main(["--workspace", str(attacked.path), "--check", OF_EXPORT]) == 1
    page = records_of_page.verify(attacked, OF_EXPORT)
    assert page is not None
    assert "verdict good" not in str(tab.verified_view(page))
    with pytest.raises(UserError, match="It is not pushed"):
        pushed(attacked, monkeypatch)
    with pytest.raises(UserError, match="It is not packed"):
        pack.run(PackOptions(item=OF_EXPORT), attacked, Listener(tmp_path / "pack"))


def test_an_edited_card_stays_other_files_when_it_is_certified_again(attacked: Workspace) -> None:
    edit_card(export_of(attacked))
    seal(export_of(attacked))
    certify.run(CertifyOptions(run=OF_EXPORT, again=True), attacked, Listener(attacked.runs / "certify"))
    assert "README.md differs" in world.verify(attacked, "export").reason


def test_the_card_of_a_sender_is_named_whenever_it_leaves(attacked: Workspace, monkeypatch, tmp_path: Path, capsys
                                                          ) -> None:
    """`certify --again` computes the checks, and nothing in the card."""
    elsewhere = Workspace.open(tmp_path / "elsewhere")
    shutil.copytree(attacked.models, elsewhere.models, dirs_exist_ok=True)
    shutil.copytree(export_of(attacked), export_of(elsewhere))
    edit_card(export_of(elsewhere))
    rewrite(elsewhere, "export", lambda proof: dataclasses.replace(proof, texts=()))
    certify.run(CertifyOptions(run=OF_EXPORT), elsewhere, Listener(tmp_path / "certify"))
    assert outcome(elsewhere, "export") is Outcome.PASSED
    note = "Whether the figures in README.md are those of the certificate is not known"
    script.main(["--workspace", str(elsewhere.path), "--check", OF_EXPORT])
    assert note in capsys.readouterr().out
    packing = Listener(tmp_path / "pack")
    pack.run(PackOptions(item=OF_EXPORT), elsewhere, packing)
    assert any(note in event.message for event in packing.of("warning"))
    listener = Listener(elsewhere.runs / "push")
    monkeypatch.setenv("HF_TOKEN", "token")
    with pytest.raises(UserError, match="could not be reached"):
        push.push(PushOptions(export=EXPORT, repository="me/mine"), elsewhere, listener,
                  Hub("http://127.0.0.1:9", "token"))
    assert any(note in event.message for event in listener.of("warning"))


def test_a_certificate_of_an_older_version_keeps_its_signature(attacked: Workspace) -> None:
    """It was signed without the field for texts."""
    proof = certificate.read(run_of(attacked) / CERTIFICATE)
    path = run_of(attacked) / CERTIFICATE
    values = json.loads(path.read_text())
    assert values.pop("texts") == []
    path.write_text(json.dumps(values))
    assert verification.is_own(attacked, certificate.read(path))
    assert not verification.is_own(attacked, dataclasses.replace(proof, texts=proof.files[:1]))


# Evaluations, whose figures an export repeats in its certificate.

def evaluated(workspace: Workspace, *models: str, name: str = "evaluation") -> Listener:
    listener = Listener(workspace.runs / name)
    evaluate.run(EvaluateOptions(models=models, languages=("am",), count=1, device="cpu"), workspace, listener)
    return listener


def exported_again(workspace: Workspace) -> str:
    """The figures of an evaluation in the certificate of a new export; empty if there are none."""
    shutil.rmtree(export_of(workspace))
    export.run(export_options(run=OF_RUN, export=EXPORT), workspace, Listener(workspace.runs / "export-2"))
    return figures(workspace)


def figures(workspace: Workspace) -> str:
    proof = certificate.read(export_of(workspace) / CERTIFICATE)
    return next((check.actual for check in proof.checks if check.name == evaluation_report.CHECK), "")


def forge_report(folder: Path) -> None:
    path = folder / evaluation_report.JSON
    values = json.loads(path.read_text())
    for by_language in values["estimates"].values():
        for metrics in by_language.values():
            for estimate in metrics.values():
                estimate.update(value=0.012, low=0.01, high=0.02)
    path.write_text(json.dumps(values))


def forge_in_imported_run(folder: Path) -> None:
    """An archive of a run may hold any file."""
    forge_report(folder)
    evil = folder.with_name("evil")
    shutil.copytree(folder.parent / RUN, evil)
    for file in evaluation_report.FILES:
        shutil.move(folder / file, evil / file)


FORGED_REPORTS: dict[str, Callable[[Path], object]] = {
    "estimates": forge_report, "of an imported run": forge_in_imported_run,
    "the page": lambda folder: (folder / evaluation_report.HTML).write_text("0.1%"),
    "no signature": lambda folder: (folder / evaluation_report.JSON).write_text(json.dumps(
        {**json.loads((folder / evaluation_report.JSON).read_text()), "signature": ""})),
    "the weights": lambda folder: (folder / evaluation_report.JSON).write_text(
        (folder / evaluation_report.JSON).read_text().replace('"weights": "', '"weights": "0')),
    "other weights": lambda folder: change_checkpoint(Workspace(folder.parent.parent)),
}


@pytest.mark.parametrize("name", FORGED_REPORTS)
def test_an_export_takes_no_figures_that_were_not_measured_of_it(attacked: Workspace, name: str) -> None:
    listener = evaluated(attacked, OF_RUN)
    FORGED_REPORTS[name](listener.directory)
    assert exported_again(attacked) == ""
    assert not (export_of(attacked) / evaluation_report.FOLDER).exists()


def test_an_export_takes_the_figures_that_were_measured_of_it(attacked: Workspace) -> None:
    listener = evaluated(attacked, OF_RUN)
    # The text is written again from the signed values.
    (listener.directory / evaluation_report.MARKDOWN).write_text("FORGED")
    assert "am Naturalness" in exported_again(attacked)
    folder = export_of(attacked) / evaluation_report.FOLDER
    assert "FORGED" not in (folder / evaluation_report.MARKDOWN).read_text()
    assert outcome(attacked, "export") is Outcome.PASSED
    forge_report(folder)
    seal(export_of(attacked))
    assert outcome(attacked, "export") is Outcome.OTHER_FILES


def test_figures_of_other_weights_are_not_added_to_a_certificate(attacked: Workspace) -> None:
    world.flip_bit(export_of(attacked) / "adapter" / "adapter_model.safetensors")
    seal(export_of(attacked))
    listener = evaluated(attacked, OF_EXPORT)
    assert figures(attacked) == ""
    assert any("The report is not added" in event.message for event in listener.of("warning"))


def test_weights_that_change_while_they_are_evaluated_are_refused(attacked: Workspace, monkeypatch) -> None:
    measure = evaluate._measure

    def swapping(*given: object) -> object:
        measured = measure(*given)  # type: ignore[arg-type]
        change_checkpoint(attacked)
        return measured

    monkeypatch.setattr(evaluate, "_measure", swapping)
    with pytest.raises(UserError, match="changed while it was evaluated"):
        evaluated(attacked, OF_RUN)


def test_clips_of_other_weights_are_not_measured_when_an_evaluation_goes_on(attacked: Workspace, monkeypatch) -> None:
    spoken: list[str] = []
    speak = evaluate._SynthesisWorker.speak

    def count(worker: evaluate._SynthesisWorker, batch: object) -> object:
        spoken.append("x")
        return speak(worker, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(evaluate._SynthesisWorker, "speak", count)
    evaluated(attacked, OF_RUN)
    evaluated(attacked, OF_RUN)
    assert len(spoken) == 1
    change_checkpoint(attacked)
    evaluated(attacked, OF_RUN)
    assert len(spoken) == 2


def test_forged_measures_in_the_cache_are_measured_again(attacked: Workspace) -> None:
    def naturalness(listener: Listener) -> float:
        return evaluation_report.read(listener.directory).estimates[OF_RUN]["am"]["naturalness"].value

    true = naturalness(evaluated(attacked, OF_RUN))
    for path in (attacked.cache / "evaluation").glob("*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "naturalness": 4.99}))
    assert naturalness(evaluated(attacked, OF_RUN, name="second")) == true


# What a training reported.

def forge_learning(run_dir: Path) -> None:
    record = LearningRecord(reports={"8": LearningReport(8, Learning.LEARNED)})
    (run_dir / learning.LEARNING).write_text(json.dumps(dataclasses.asdict(record)))


def test_a_forged_report_of_a_training_is_the_word_of_others(attacked: Workspace) -> None:
    learning.write_learning(run_of(attacked), LearningRecord(reports={"8": LearningReport(8, Learning.NOT_LEARNED)}))
    certify.run(CertifyOptions(run=OF_RUN), attacked, Listener(attacked.runs / "certify"))
    proof = certificate.read(run_of(attacked) / CERTIFICATE)
    assert (proof.learning, proof.trained_elsewhere) == (Learning.NOT_LEARNED, False)
    forge_learning(run_of(attacked))
    assert records_of_page.is_imported(SimpleNamespace(job=SimpleNamespace(directory=run_of(attacked))))  # type: ignore[arg-type]
    certify.run(CertifyOptions(run=OF_RUN), attacked, Listener(attacked.runs / "certify"))
    proof = certificate.read(run_of(attacked) / CERTIFICATE)
    assert (proof.learning, proof.trained_elsewhere) == (Learning.LEARNED, True)


def test_a_training_that_goes_on_does_not_sign_the_report_of_others(attacked: Workspace) -> None:
    forge_learning(run_of(attacked))
    learning.write_learning(run_of(attacked), learning.read_learning(run_of(attacked)))
    assert not learning.is_own(run_of(attacked))


def test_the_report_of_another_run_is_not_that_of_this_one(attacked: Workspace) -> None:
    other = attacked.runs / "other"
    other.mkdir()
    learning.write_learning(other, LearningRecord(reports={"8": LearningReport(8, Learning.LEARNED)}))
    assert learning.is_own(other)
    shutil.copy(other / learning.LEARNING, run_of(attacked))
    assert not learning.is_own(run_of(attacked))


def test_an_imported_run_stays_one_without_its_note(attacked: Workspace, tmp_path: Path) -> None:
    learning.write_learning(run_of(attacked), LearningRecord(reports={"8": LearningReport(8, Learning.LEARNED)}))
    archive = pack.run(PackOptions(item=OF_RUN, model=True), attacked, Listener(tmp_path / "pack"))["path"]
    elsewhere = Workspace.open(tmp_path / "elsewhere")
    unpack.run(UnpackOptions(archive=str(archive)), elsewhere, Listener(tmp_path / "unpack"))
    (run_of(elsewhere) / verification.IMPORTED).unlink()
    assert verification.is_trained_elsewhere(run_of(elsewhere))


def test_nothing_is_green_in_a_failed_certificate_of_a_sender(attacked: Workspace) -> None:
    def edit(proof: Certificate) -> Certificate:
        checks = tuple(dataclasses.replace(check, result="failed") if check.name == "base_tokens" else check
                       for check in proof.checks)
        return dataclasses.replace(proof, checks=checks, learning=Learning.LEARNED)

    rewrite(attacked, "export", edit)
    result = records_of_page.verify(attacked, OF_EXPORT)
    assert result is not None
    assert result.outcome is Outcome.FAILED
    shown = str(tab.verified_view(result))
    assert "verdict good" not in shown
    assert "check good" not in shown


# Recognisers, which measure the figures.

def hub_recogniser(workspace: Workspace) -> Path:
    folder = workspace.recognisers / "some--one"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights " * 100)
    files = {path.name: {"size": path.stat().st_size, "sha256": hash_file(path), "blob": ""}
             for path in sorted(folder.iterdir())}
    (folder / records.MODEL_RECORD).write_text(json.dumps({
        "family": "recogniser", "variant": "", "repository": "some/one", "revision": "a", "requested_revision": "main",
        "files": files}))
    return folder


def test_a_changed_recogniser_measures_nothing(attacked: Workspace, monkeypatch) -> None:
    loaded: list[object] = []
    monkeypatch.setattr(scoring, "HubTranscriber", SimpleNamespace(load=lambda *given: loaded.append(given)))
    folder = hub_recogniser(attacked)
    model, warnings = load(attacked, OF_RUN, torch.device("cpu")), list[str]()
    choice = scoring.NamedRecogniser("some/one")
    scoring.load_recogniser_or_warn(attacked, model, warnings.append, choice)
    assert (len(loaded), warnings) == (1, [])
    world.flip_bit(folder / "model.safetensors")
    scoring.load_recogniser_or_warn(attacked, model, warnings.append, choice)
    assert len(loaded) == 1
    assert "is not as it was downloaded" in warnings[0]


@pytest.mark.parametrize("name", ["a folder", "built-in", "some/one"])
def test_a_recogniser_of_the_same_size_and_time_is_another(attacked: Workspace, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "mine" if name == "a folder" else attacked.models / "tiny" if name == "built-in" else (
        hub_recogniser(attacked))
    if name == "a folder":
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"weights " * 100)
        name = str(folder)
    path = folder / ("recogniser.safetensors" if name == "built-in" else "model.safetensors")
    identity, status = recognisers.identify(attacked, name), path.stat()
    world.flip_bit(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert recognisers.identify(attacked, name) != identity


# Servers, and models that speak.

def test_a_server_that_loads_a_senders_model_says_so(attacked: Workspace) -> None:
    models = ServedModels(ServeOptions(models=(OF_EXPORT,)), attacked, torch.device("cpu"))
    models.describe(OF_EXPORT)
    assert models.take_notes() == []
    world.flip_bit(export_of(attacked) / "adapter" / "adapter_model.safetensors")
    relist(attacked, "export")
    models.open(OF_EXPORT, "", "", "")
    assert ["computed by the sender" in note for note in models.take_notes()] == [True]
    # A certificate that is gone says nothing either.
    (export_of(attacked) / CERTIFICATE).unlink()
    world.flip_bit(export_of(attacked) / "adapter" / "adapter_model.safetensors")
    seal(export_of(attacked))
    models.open(OF_EXPORT, "", "", "")
    assert ["There is no certificate" in note for note in models.take_notes()] == [True]


def test_a_server_says_that_a_run_has_no_certificate(attacked: Workspace) -> None:
    (run_of(attacked) / CERTIFICATE).unlink()
    with serving(attacked, "served", models=(OF_RUN,)) as server:
        assert any("has no certificate" in event.message for event in server.listener.of("warning"))


def test_a_certificate_whose_step_was_edited_is_not_passed_over(attacked: Workspace) -> None:
    change_checkpoint(attacked)
    path = run_of(attacked) / CERTIFICATE
    path.write_text(json.dumps({**json.loads(path.read_text()), "step": 7}))
    assert "no job of this workspace computed it" in verification.spoken_note(attacked, OF_RUN)


def test_a_base_that_is_read_as_another_family_is_another(attacked: Workspace) -> None:
    """Its record is no certified file: it changes when the model is probed."""
    (attacked.models / "tiny" / records.MODEL_RECORD).write_text(json.dumps({
        "family": "chatterbox", "variant": "", "repository": "", "revision": "", "requested_revision": "",
        "files": {}}))
    result = world.verify(attacked, "run")
    assert result.outcome is Outcome.OTHER_FILES
    assert "is of the family 'tiny'" in result.reason


def test_a_file_that_changes_after_its_check_is_not_committed(attacked: Workspace, monkeypatch) -> None:
    from huggingface_hub import HfApi

    committed: list[object] = []
    monkeypatch.setattr(HfApi, "create_repo", lambda *given, **more: None)
    monkeypatch.setattr(HfApi, "model_info", lambda *given, **more: SimpleNamespace(private=True))
    monkeypatch.setattr(HfApi, "preupload_lfs_files", lambda *given, **more: None)

    def commit(*given: object, **more: object) -> SimpleNamespace:
        committed.append(given)
        return SimpleNamespace(oid="0" * 40)

    monkeypatch.setattr(HfApi, "create_commit", commit)
    pushed(attacked, monkeypatch)
    assert len(committed) == 1

    def swapping(folder: Path, name: str) -> Path:
        path = check_no_link_out(folder, name)
        world.flip_bit(folder / "codec.safetensors")
        return path

    monkeypatch.setattr("core.push.check_no_link_out", swapping)
    with pytest.raises(UserError, match="codec.safetensors changed while it was pushed"):
        pushed(attacked, monkeypatch)
    assert len(committed) == 1
