"""A certificate is computed from files, and sees it when one of them is not what it should be."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from config.errors import UserError
from config.schema import CertifyOptions
from core import certify as certify_job
from core import train
from core.export import CardFacts, _errors, _not_proven, card
from core.jobs.checkpoint_names import checkpoint_steps, folder_of, set_choice
from core.jobs.events import Finished, Journal, Progress, append_event
from core.jobs.job import Job, create_job
from core.jobs.reporter import JournalReporter, StopRequested
from core.jobs.state import JobReader
from core.library import certificate, records
from core.library.certificate import Certificate, CertificateCheck
from core.library.lineage import Model
from core.library.records import CheckpointRecord, ExportRecord, read_checkpoint
from core.model.loading import load_base
from core.proof import certification
from core.sources import recognisers
from core.speech.evaluation import SpeechEvaluator
from core.submission.jobs import select_named_checkpoint
from core.workspace import Workspace
from data.front_end import FrontEnd
from models.base import Sampling
from models.tiny.family import TinyVocoder
from tests import chatterbox_world
from tests.worlds import Listener, extend_world, extended_world, train_options
from ui import records as records_of_page
from ui.certificate import certificate_view

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = extended_world(tmp_path_factory.mktemp("certificate"))
    for scope in ("gated", "full"):
        options = train_options(scope=scope, evaluation_sentences=0)
        train.run(options, workspace, Listener(workspace.runs / scope))
    return workspace


def certified(world: Workspace, run: str = "gated") -> Certificate:
    return certification.certify_folder(world, folder_of(world.runs / run, 8), CPU, sentences=2)


def export_card(world: Workspace, run: str, proof: Certificate) -> str:
    """README.md of an export of the run's last checkpoint."""
    found = read_checkpoint(folder_of(world.runs / run, 8))
    record = ExportRecord("given", run, 8, run, found.dataset, ("am",), found.origin, {}, {})
    return card(record, proof, CardFacts("", "", (), (), (), ""))


def forget_scores(world: Workspace) -> None:
    for path in (world.cache / "certificates").glob("scores-*"):
        path.unlink()


def test_gated_passes_every_check(world: Workspace) -> None:
    made = certified(world)
    assert [check.name for check in made.checks if check.result != "passed"] == ["character_error_rates"]
    assert made.check("base_logits").actual == "4 of 4 samples (en, fr) bit-identical"
    assert made.check("prefix_rows").expected == made.check("prefix_rows").actual


def test_logits_are_compared_with_deterministic_algorithms(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which are off while a GPU speaks."""
    seen, equal = set(), certification.equal_logits
    monkeypatch.setattr(certification, "equal_logits", lambda *given: seen.add(
        torch.are_deterministic_algorithms_enabled()) or equal(*given))
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        certified(world)
        assert seen == {True}
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(before, warn_only=True)


def test_full_reports_the_drift_it_measured(world: Workspace) -> None:
    check = certified(world, "full").check("base_logits")
    assert check.result == "measured"
    assert "0 of 4 samples" in check.actual
    assert "largest difference" in check.actual


@pytest.mark.parametrize("scope", ["gated", "full"])
def test_base_logits_that_were_not_probed_are_not_proven(world: Workspace, scope: str,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certification, "base_probes", lambda model: [])
    made = certified(world, scope)
    assert made.check("base_logits").result == "not proven"
    shown = str(certificate_view(made))
    assert "Not proven: base languages." in shown
    assert "bit-identical to those" not in shown
    assert ">All " not in shown
    assert "**Not proven for the base languages**" in export_card(world, scope, made)


def test_the_card_of_an_export_promises_the_old_languages_by_its_scope(world: Workspace) -> None:
    promise = "computed exactly as before"
    assert promise in export_card(world, "gated", certified(world))
    full = export_card(world, "full", certified(world, "full"))
    assert promise not in full
    assert "the certificate says how far the base languages moved, where it could be measured." in full
    assert "Not proven" not in full


def test_a_base_language_that_was_not_probed_is_named_as_not_proven(world: Workspace,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """As Russian is where the package that puts its stresses is not installed."""
    assert certified(world).check("base_languages").actual == "all 2"
    load = certification.base_probes
    monkeypatch.setattr(certification, "base_probes", lambda model: [item for item in load(model)
                                                                     if item.language != "fr"])
    made = certified(world)
    assert made.check("base_logits").result == "passed"
    check = made.check("base_languages")
    assert (check.result, check.actual) == ("not proven", "fr: no clip of it comes with the model")
    assert not made.failed()
    shown = str(certificate_view(made))
    assert "Not proven: some base languages. The other " in shown
    assert "Of others nothing was compared (fr: no clip of it comes with the model)." in shown
    assert ">All " not in shown
    assert f"**Not proven for some base languages**: {check.actual}." in _not_proven(made)


def test_a_language_that_can_be_read_now_asks_for_a_new_certificate(world: Workspace,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """A package, or what it fetches, was not there when the certificate was computed."""
    folder = folder_of(world.runs / "gated", 8)
    readable = certification.compute_input_hash(world, folder, "cpu", 2)
    assert readable == certification.compute_input_hash(world, folder, "cpu", 2)
    monkeypatch.setattr(FrontEnd, "unready", lambda front_end, language: "a package" if language == "fr" else "")
    assert certification.compute_input_hash(world, folder, "cpu", 2) != readable


def test_a_certificate_with_more_error_rates_is_not_lost(world: Workspace) -> None:
    """One of an older version lacks a check, and a new one without a recogniser lacks the rates."""
    new = certified(world)
    old = dataclasses.replace(new, checks=tuple(check for check in new.checks if check.name != "base_languages"))
    poorer = dataclasses.replace(new, errors=new.errors[:1])
    assert old.proves_more(poorer)
    assert not poorer.proves_more(old)
    assert new.proves_more(old)
    assert not old.proves_more(new)
    assert not new.proves_more(new)


def test_the_headline_names_all_that_is_not_proven(world: Workspace) -> None:
    made = certified(world)
    languages = dataclasses.replace(made.check("base_languages"), result="not proven", actual="ru: no package")
    rates = dataclasses.replace(made.check("character_error_rates"), actual=certificate.NOT_PROVEN_YET)
    others = [check for check in made.checks if check.name not in (languages.name, rates.name)]
    shown = str(certificate_view(dataclasses.replace(made, checks=(*others, languages, rates), errors=())))
    assert "Not proven: some base languages and error rates. The other " in shown


def test_a_chatterbox_without_its_voice_speaks_as_a_recording_and_is_probed(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published voice is an optional file; without it a full training moves logits, which must be seen."""
    monkeypatch.setitem(sys.modules, "russian_text_stresser", None)  # not installed
    workspace = Workspace.open(tmp_path)
    chatterbox_world.write_model(workspace.models / "chatterbox")
    (workspace.models / "chatterbox" / "conds.pt").unlink()
    extend_world(workspace, "chatterbox")
    train.run(train_options(scope="full", steps=1, checkpoint_every=1, evaluation_sentences=1, replay=0.0), workspace,
              Listener(workspace.runs / "voiceless"))
    folder = folder_of(workspace.runs / "voiceless", 1)
    made = certification.certify_folder(workspace, folder, CPU, sentences=1)
    check = made.check("base_logits")
    assert check.result == "measured"
    assert "generated codes" in check.actual
    languages = made.check("base_languages")
    assert languages.result == "not proven"
    assert "ru: Russian text needs the package russian-text-stresser, which is not installed" in languages.actual


def test_errors_stand_beside_the_judges_own(world: Workspace) -> None:
    errors = {error.language: error for error in certified(world).errors}
    assert set(errors) == {"en", "fr", "am"}
    assert all(error.recordings_cer is not None for error in errors.values())
    assert errors["en"].before == errors["en"].after


def test_an_adapter_left_on_for_a_base_language_fails(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.model.loading.TTSModel.adapters_of", lambda self, language: self.adapters)
    made = certified(world)
    assert made.failed() == ("base_logits",)
    assert made.blocking() == ("base_logits",)
    assert made.blocking(("base_logits",)) == ()


def test_a_base_tensor_that_moved_fails(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    load = certification.load_checkpoint

    def moved(*given, **named):
        tts = load(*given, **named)
        with torch.no_grad():
            tts.lm.module.get_buffer("text_emb.weight")[3, 0] += 1e-7
        return tts

    monkeypatch.setattr(certification, "load_checkpoint", moved)
    made = certified(world)
    assert {"prefix_rows", "frozen_tensors"} <= set(made.failed())


def test_what_moved_in_the_trainer_fails(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    read = records.read_record

    def other(path: Path, kind):
        record = read(path, kind)
        return dataclasses.replace(record, frozen_hash="0" * 64) if kind is CheckpointRecord else record

    monkeypatch.setattr(records, "read_record", other)
    assert certified(world).failed() == ("frozen_in_training",)


def test_a_deleted_dataset_is_said_and_not_made_up(world: Workspace) -> None:
    folder = world.datasets / "demo-am"
    folder.rename(world.datasets / "elsewhere")
    try:
        made = certified(world)
    finally:
        (world.datasets / "elsewhere").rename(folder)
    assert {error.language for error in made.errors} == {"en", "fr"}
    assert "am: There is no dataset named 'demo-am'" in made.check("character_error_rates").actual


def test_a_certificate_survives_the_disk(tmp_path: Path) -> None:
    check = CertificateCheck("base_logits", "failed", "equal", "not", "Logits.")
    made = Certificate("run:a@1", "a", 1, "gated", "tiny", "tiny-am", "b", "f", 1.0, (check,),
                       (certificate.LanguageCER("am", True, 4, 0.7, None, 0.1),))
    certificate.write(tmp_path / certificate.CERTIFICATE, made)
    assert certificate.read(tmp_path / certificate.CERTIFICATE) == made
    (tmp_path / certificate.CERTIFICATE).write_text("{")
    with pytest.raises(UserError, match="could not be read"):
        certificate.read(tmp_path / certificate.CERTIFICATE)
    with pytest.raises(UserError, match="no certificate"):
        certificate.read(tmp_path / "other.json")


def test_reading_a_certificate_needs_no_torch() -> None:
    code = "import sys, core.library.certificate, core.library.records; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Impatient(Listener):
    """Asks for a stop when it has heard `text` in a count."""

    def __init__(self, directory: Path, text: str) -> None:
        super().__init__(directory)
        self.text = text

    def stop_requested(self) -> bool:
        return any(self.text in f"{event.unit} {event.note}" for event in self.of("progress"))


def test_each_sentence_and_probe_is_told_in_one_count(world: Workspace) -> None:
    forget_scores(world)
    told: list[Progress] = []
    folder = folder_of(world.runs / "gated", 8)
    certification.certify_folder(world, folder, CPU, sentences=2, progress=told.append)
    # a spot check of two languages by both, the base's own, the new one by both, three as recorded, and the probes
    total = 2 * 2 * 2 + 2 * 2 + 2 * 2 + 3 * 2 + 4
    assert {(one.total, one.unit) for one in told} == {(total, "sentences")}
    assert told[0].seconds_left is None
    counts = [one.done for one in told]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, total)
    assert max(later - earlier for earlier, later in zip(counts, counts[1:], strict=False)) <= 2  # spoken once for both
    assert [text for text in ("Amharic", "English", "probes") if not any(text in one.note for one in told)] == []


def test_what_a_certificate_rests_on_is_told_by_content(world: Workspace, tmp_path: Path) -> None:
    folder = folder_of(world.runs / "gated", 8)
    content = certification.compute_input_hash(world, folder, "cpu", 2)
    assert certified(world).input_hash == content
    assert certification.compute_input_hash(world, folder, "cpu", 3) != content
    assert certification.compute_input_hash(world, folder, "cuda", 2) != content
    assert certification.compute_input_hash(world, folder_of(world.runs / "full", 8), "cpu", 2) != content
    for changed in (world.model("tiny") / "recogniser.safetensors", world.dataset("demo-am") / "dataset.yaml",
                    folder / records.CHECKPOINT):
        before = changed.read_bytes()
        changed.write_bytes(before.replace(b"fingerprint: ", b"fingerprint: x").replace(b'"step": 8', b'"step": 9')
                            + b" ")
        assert certification.compute_input_hash(world, folder, "cpu", 2) != content
        changed.write_bytes(before)
    assert certification.compute_input_hash(world, folder, "cpu", 2) == content


def test_a_certificate_rests_on_who_judges(world: Workspace, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"ear")
    assert recognisers.identify(world, "") == ""
    before = recognisers.identify(world, str(tmp_path))
    assert recognisers.identify(world, str(tmp_path)) == before
    (tmp_path / "model.safetensors").write_bytes(b"an ear")
    assert recognisers.identify(world, str(tmp_path)) != before
    assert recognisers.identify(world, "some/deleted") == []


@pytest.mark.parametrize("unit", ["French sentences", "probes"])
def test_a_run_stopped_in_its_certificate_is_whole_and_certified_on_resume(world: Workspace, unit: str) -> None:
    forget_scores(world)
    options, run = train_options(evaluation_sentences=0), world.runs / f"stopped-{unit.split()[0]}"
    proof = CertifyOptions(run=f"run:{run.name}")
    assert train.run(options, world, Listener(run))["certificate"] == certificate.NOT_PROVEN_YET
    with pytest.raises(StopRequested, match="The run can be used; its certificate resumes"):
        certify_job.run(proof, world, Impatient(run, unit))
    assert not (run / certificate.CERTIFICATE).exists()
    assert certify_job.run(proof, world, Listener(run))["certificate"] == "passed"
    assert certificate.read(run / certificate.CERTIFICATE).step == 8


@pytest.fixture(scope="module")
def choices(world: Workspace) -> Job:
    """A training with several checkpoints, without its last event."""
    run = create_job(world, "train", train_options(evaluation_sentences=0, keep_last=9), job_id="choices")
    with closing(Journal(run.journal)) as journal:
        train.run(train_options(evaluation_sentences=0, keep_last=9), world, JournalReporter(journal, lambda: False))
    return run


def test_another_checkpoint_is_chosen_and_certified_by_the_same_job(world: Workspace, choices: Job) -> None:
    run = choices
    best, other = sorted(checkpoint_steps(run.directory), reverse=True)[:2]
    with pytest.raises(UserError, match="a checkpoint can be selected for a finished training only"):
        select_named_checkpoint(world, CertifyOptions(run=f"run:choices@{other}"))
    append_event(run.journal, Finished({}))
    assert certify_job.run(CertifyOptions(run="run:choices"), world, Listener(run.directory))["step"] == best
    proven = JobReader(run).state(worker_alive=False)
    assert records_of_page.unproven_note(proven) == ""
    set_choice(run.directory, str(other))
    assert records_of_page.unproven_note(proven) == ", not proven yet"
    assert Model.open(world, "run:choices").step == other
    for wanted, step in (("run:choices", other), (f"run:choices@{other}", other), ("run:choices@best", best)):
        select_named_checkpoint(world, CertifyOptions(run=wanted))
        assert certify_job.run(CertifyOptions(run=wanted), world, Listener(run.directory))["step"] == step
        assert Model.open(world, "run:choices").step == step
        assert records_of_page.unproven_note(proven) == ""

    # a job that was stopped before another choice, and is resumed after it, takes nothing back
    late = Listener(run.directory)
    assert certify_job.run(CertifyOptions(run=f"run:choices@{other}"), world, late)["step"] == best
    assert f"not of run:choices@{other}: step " in late.of("warning")[0].message
    assert Model.open(world, "run:choices").step == best


def test_of_two_certificates_the_one_of_the_choice_that_proves_more_stays(
    world: Workspace, choices: Job, monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, certify_folder = choices.directory, certification.certify_folder
    best, other = sorted(checkpoint_steps(run), reverse=True)[:2]
    path, options = run / certificate.CERTIFICATE, CertifyOptions(run="run:choices")
    certify_job.run(options, world, Listener(run))
    whole = certificate.read(path)
    assert whole.step == best

    def scores_less(*given: object, **more: object) -> certificate.Certificate:
        made = certify_folder(*given, **more)  # type: ignore[arg-type]
        return dataclasses.replace(made, errors=made.errors[1:], input_hash="")

    monkeypatch.setattr(certification, "find_certificate", lambda *given: None)
    monkeypatch.setattr(certification, "certify_folder", scores_less)  # as on a machine without the recogniser
    listener = Listener(run)
    certify_job.run(options, world, listener)
    assert certificate.read(path) == whole
    warning = listener.of("warning")[0].message
    assert f"of step {best} that proves more (error rate of {whole.errors[0].language})" in warning

    def fails(*given: object, **more: object) -> certificate.Certificate:
        made = scores_less(*given, **more)
        first, *rest = made.checks
        return dataclasses.replace(made, checks=(dataclasses.replace(first, result="failed"), *rest))

    monkeypatch.setattr(certification, "certify_folder", fails)  # what proves more is no reason to hide it
    certify_job.run(options, world, Listener(run))
    assert certificate.read(path).failed() == (whole.checks[0].name,)
    certificate.write(path, whole)

    def chosen_meanwhile(*given: object, **more: object) -> certificate.Certificate:
        set_choice(run, str(other))
        return certify_folder(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(certification, "certify_folder", chosen_meanwhile)
    listener = Listener(run)
    assert certify_job.run(options, world, listener)["step"] == best
    assert f"step {other} of {run.name} is selected now" in listener.of("warning")[0].message
    assert certificate.read(path) == whole
    path.write_text("{")  # a damaged one is no reason
    monkeypatch.setattr(certification, "certify_folder", certify_folder)
    certify_job.run(options, world, Listener(run))
    assert certificate.read(path).step == other


def test_a_stop_while_samples_are_spoken_keeps_the_step(world: Workspace) -> None:
    options, run = train_options(), world.runs / "stopped-samples"
    with pytest.raises(StopRequested, match="Stopped after step 4 of 8, which is saved"):
        train.run(options, world, Impatient(run, "Amharic sentences"))
    listener = Listener(run)
    train.run(options, world, listener)
    assert [event.step for event in listener.of("evaluated")] == [4, 8]


def test_sentences_that_chose_the_checkpoint_are_not_counted(world: Workspace) -> None:
    train.run(train_options(evaluation_sentences=1), world, Listener(world.runs / "chosen"))
    folder = folder_of(world.runs / "chosen", 8)
    assert len(records.read_checkpoint(folder).scored) == 1
    made = certification.certify_folder(world, folder, CPU)
    new = next(error for error in made.errors if error.language == "am")
    assert (new.sentences, new.used_for_selection) == (3, False)
    assert "selected" not in made.check("character_error_rates").actual


def test_a_checkpoint_chosen_by_loss_was_chosen_by_every_held_out_clip(world: Workspace) -> None:
    train.run(train_options(evaluation_sentences=1, select_best_by="speech_loss"), world,
              Listener(world.runs / "by-loss"))
    made = certification.certify_folder(world, folder_of(world.runs / "by-loss", 8), CPU, sentences=2)
    assert {error.language for error in made.errors if error.used_for_selection} == {"am"}


def test_where_no_other_sentence_is_held_out_it_is_said_that_they_chose_the_checkpoint(world: Workspace) -> None:
    train.run(train_options(evaluation_sentences=20), world, Listener(world.runs / "all-chosen"))
    made = certification.certify_folder(world, folder_of(world.runs / "all-chosen", 8), CPU)
    errors = {error.language: error for error in made.errors}
    assert errors["am"].sentences == 4
    assert {code for code, error in errors.items() if error.used_for_selection} == {"am"}
    seen = made.check("character_error_rates").actual
    assert f"am {errors['am'].after:.1%} on the sentences that selected the checkpoint" in seen
    assert seen.count("selected") == 1


def test_the_card_and_the_page_say_whose_sentences_selected_the_checkpoint(world: Workspace) -> None:
    proof = certified(world)
    for wanted in (False, True):
        told = dataclasses.replace(proof, errors=tuple(
            dataclasses.replace(one, used_for_selection=wanted and one.language == "am") for one in proof.errors))
        assert ("The error of am was measured on the sentences that selected the checkpoint" in _errors(told)) == wanted
        shown = str(certificate_view(told))
        assert ("Amharic: measured on the sentences that selected the checkpoint" in shown) == wanted


def spoken_texts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Language and text of what both models generate from now on."""
    found, generate = list[tuple[str, str]](), SpeechEvaluator.generate
    monkeypatch.setattr(SpeechEvaluator, "generate", lambda self, model, batch, *others: (
        found.extend((item.language, item.text) for item in batch), generate(self, model, batch, *others))[1])
    return found


def test_what_the_base_speaks_is_measured_once(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_scores(world)
    monkeypatch.setattr(certification, "_SPOT_CHECK_SENTENCES", 1)
    said = spoken_texts(monkeypatch)
    first = certified(world)
    assert len([language for language, _ in said if language in ("en", "fr")]) == 2 * 2 + 2 * 2  # a spot check, and all
    said.clear()
    options = train_options(scope="gated", evaluation_sentences=0, seed=7)
    train.run(options, world, Listener(world.runs / "another"))
    again = certified(world, "another")
    assert [language for language, _ in said] == ["en", "fr", "am", "am"]  # its own spot check, and the new language
    assert [one for one in again.errors if not one.new] == [one for one in first.errors if not one.new]
    kept, = (world.cache / "certificates").glob("scores-*")
    assert f"(scores {kept.stem[7:19]})" in again.check("character_error_rates").actual
    kept.write_text('{"keys": ["cut o', encoding="utf-8")  # damaged: measured again
    assert certified(world).errors == first.errors


@pytest.fixture
def one_thread() -> Iterator[None]:
    """A forked process has no other threads than its own."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_speech_of_a_certificate_has_no_watermark(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not kept, and the watermark takes longer than the waveform; samples of a training are kept and have it."""
    marked, decode = list[bool](), TinyVocoder.decode

    def noted(self, codes, voice, options=None, hidden_states=None):
        marked.append(options.watermark)
        return decode(self, codes, voice, options, hidden_states)

    monkeypatch.setattr(TinyVocoder, "decode", noted)
    forget_scores(world)
    made = certification.certify_folder(world, folder_of(world.runs / "gated", 8), CPU, sentences=1)
    assert made.errors
    assert {check.name for check in made.checks} <= set(certificate.CHECKS)
    assert marked
    assert not any(marked)
    evaluator = SpeechEvaluator.of(base := load_base(world, "tiny", CPU))
    evaluator.speak(base, [("en", "the cat")], Sampling())
    assert marked[-1]


def test_a_certificate_that_is_killed_speaks_no_sentence_twice(world: Workspace, tmp_path: Path, one_thread: None,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    decode, generate, score = SpeechEvaluator.decode, SpeechEvaluator.generate, certification.evaluation.score_recording
    log, kill_after = tmp_path / "spoken.txt", [0]

    def note(what: str) -> None:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{what}\n")

    def noted(self, model, item, one):
        made = decode(self, model, item, one)
        note(f"decoded {model.ref} {item} {one.codes.tobytes().hex()}")
        return made

    def batch(self, model, items, *others):
        made = generate(self, model, items, *others)
        note(f"generated {model.ref} {items}")
        return made

    def recorded(evaluator, language, sentence):
        made = score(evaluator, language, sentence)
        note(f"recorded {sentence}")
        return made

    def progress(_: Progress) -> None:  # after a sentence is kept, and before the next
        if log.is_file() and len(log.read_text(encoding="utf-8").splitlines()) >= kill_after[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(SpeechEvaluator, "decode", noted)
    monkeypatch.setattr(SpeechEvaluator, "generate", batch)
    monkeypatch.setattr(certification.evaluation, "score_recording", recorded)
    folder = folder_of(world.runs / "gated", 8)
    forget_scores(world)
    whole = certification.certify_folder(world, folder, CPU, sentences=3)
    uninterrupted = sorted(log.read_text(encoding="utf-8").splitlines())
    log.unlink()
    forget_scores(world)
    for kill_after[0] in (2, 7, len(uninterrupted) - 4):  # in the recordings, the spot check, the last ones
        if (child := os.fork()) == 0:
            try:
                certification.certify_folder(world, folder, CPU, sentences=3, progress=progress)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    resumed = certification.certify_folder(world, folder, CPU, sentences=3)
    assert sorted(log.read_text(encoding="utf-8").splitlines()) == uninterrupted
    assert dataclasses.replace(resumed, created=whole.created, signature=whole.signature) == whole
    assert not list((world.cache / "certificates").glob("codes-*"))


def test_the_time_that_is_left_is_told_after_three_sentences_and_within_a_factor_of_two() -> None:
    """Of batches that are generated at once, sentences that differ, and recordings that cost a third of speech."""
    now, told = 0.0, list[tuple[float, float | None]]()
    work = certification.CertificateProgress(lambda progress: told.append((now, progress.seconds_left)), lambda: now)
    work.plan(compared=4, generated=48, decoded=48, recordings=40)
    for _ in range(4):
        with work.measure("compared", 1, ""):
            now += 2.0
    for _ in range(40):
        with work.measure("recordings", 1, ""):
            now += 0.25
    for batch in range(3):
        with work.measure("generated", 16, ""):
            now += 6.0
        for number in range(16):
            with work.measure("decoded", 1, "", cached=batch == 1 and number < 8):
                now += 0.0 if batch == 1 and number < 8 else 0.5 + 0.1 * (number % 5)
    given = [(now - at, left) for at, left in told if left is not None]
    assert next(at for at, left in told if left is not None) < 27  # the third sentence of the first batch
    assert all(actual / 2 <= left <= actual * 2 + 1 for actual, left in given if actual > 5)
    assert given[-1] == (0.0, 0.0)


def test_errors_that_are_reused_are_those_that_both_would_have(world: Workspace,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    reused = certified(world).errors
    forget_scores(world)
    monkeypatch.setattr(certification, "_same_audio", lambda inputs, languages, work: False)
    assert certified(world).errors == reused


def test_nothing_is_reused_where_bits_differ(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_scores(world)
    said = spoken_texts(monkeypatch)
    made = certified(world, "full")
    assert len([language for language, _ in said if language == "en"]) == 2 * 2
    assert "same sound" not in made.check("character_error_rates").actual
