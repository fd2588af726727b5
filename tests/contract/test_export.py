"""An export stands alone, reloads strictly with equal logits, and is blocked by a failed check."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from pydantic import ValidationError
from safetensors.torch import load_file

from config.errors import UserError
from config.schema import DoctorOptions, ExportOptions, PackOptions, SamplingOptions, UnpackOptions
from core import doctor, export, pack, push, unpack
from core.export import EXAMPLE, plain_tensors, same_logits
from core.jobs.reporter import StopRequested
from core.library import certificate, diagnosis, records
from core.model import loading
from core.model.adapters import Adapters
from core.model.loading import TTSModel, load
from core.model.prefix import new_rows
from core.proof import certification
from core.speech import evaluation
from core.speech.synthesis import Synthesizer, join_chunks
from core.submission.jobs import check_requirements
from core.training import replay
from core.workspace import Workspace
from data.acoustics import audio
from data.durable_files import hash_tree
from models.speech_network import T3
from models.tiny import model_folder as tiny_folder
from models.tiny.family import _language_model_config
from models.tiny.model_folder import load_module
from tests.trained import RUN, trained_world
from tests.worlds import Listener, export_options
from ui.certificate import certificate_view

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return trained_world(tmp_path_factory.mktemp("world") / "workspace")


@pytest.fixture(scope="module")
def exported(world: Workspace) -> Path:
    result = export.run(export_options(run=f"run:{RUN}", export="first"), world, Listener(world.runs / "export-first"))
    assert result["ref"] == "export:first"
    assert result["base_logits"] == "passed"
    return world.exports / "first"


def probes(model: TTSModel) -> list[replay.ProbeSample]:
    clips = replay.load(model, model.family.load_voices(model.base_folder)).drift_clips
    found = replay.probes(clips, model.lm)
    new = replace(found[0].sample, text_ids=model.front_end.encode("ሀለመ ሰረቀ", "am"))
    return [*found, replay.ProbeSample("am", "ሀለመ ሰረቀ", new)]


def test_an_export_reloads_with_equal_logits(world: Workspace, exported: Path) -> None:
    checkpoint, again = load(world, f"run:{RUN}", CPU), load(world, "export:first", CPU)
    assert again.base_hash == checkpoint.base_hash
    assert all(same_logits(checkpoint, again, item) for item in probes(checkpoint))


def test_the_weights_load_strictly_at_the_new_size(world: Workspace, exported: Path) -> None:
    model = load(world, f"run:{RUN}", CPU)
    config = _language_model_config(exported)
    assert config.text_rows == model.front_end.size > model.front_end.prefix_size
    plain = load_module(exported / "t3.safetensors", T3(config))
    assert set(plain.state_dict()) == set(load(world, "base:tiny", CPU).lm.module.state_dict())
    item = probes(model)[0]
    tiny = replace(load(world, "base:tiny", CPU).lm, module=plain)
    wanted, seen = model.lm.probe(item.sample), tiny.probe(item.sample)
    assert torch.equal(wanted.speech_logits, seen.speech_logits)
    torch.testing.assert_close(wanted.text_logits, seen.text_logits)


def test_old_rows_keep_the_bytes_of_the_base_file(world: Workspace, exported: Path) -> None:
    base, new = load_file(world.model("tiny") / "t3.safetensors"), load_file(exported / "t3.safetensors")
    for name, value in base.items():
        assert torch.equal(new[name][:len(value)].to(value.dtype), value)
        assert new[name].dtype == value.dtype or name in ("text_emb.weight", "text_head.weight")


def test_the_merged_weights_speak_like_the_adapters_and_change_the_base(world: Workspace, exported: Path) -> None:
    model = load(world, f"run:{RUN}", CPU)
    merged = load_module(exported / "t3-merged.safetensors", T3(_language_model_config(exported)))
    tiny = replace(load(world, "base:tiny", CPU).lm, module=merged)
    english, amharic = probes(model)[0], probes(model)[-1]
    with model.adapters_for("am"):
        wanted = model.lm.probe(amharic.sample).speech_logits
    torch.testing.assert_close(tiny.probe(amharic.sample).speech_logits, wanted, atol=1e-4, rtol=1e-4)
    with model.adapters_for("en"):
        wanted = model.lm.probe(english.sample).speech_logits
    assert not torch.allclose(tiny.probe(english.sample).speech_logits, wanted)
    assert "`t3-merged.safetensors` has the adapters merged" in (exported / "README.md").read_text(encoding="utf-8")


def test_peft_loads_the_adapters_itself(world: Workspace, exported: Path) -> None:
    model = load(world, f"run:{RUN}", CPU)
    plain = load_module(exported / "t3.safetensors", T3(_language_model_config(exported)))
    wrapped = PeftModel.from_pretrained(plain, str(exported / "adapter"))
    tiny = replace(load(world, "base:tiny", CPU).lm, module=wrapped.base_model.model)
    item = probes(model)[-1]
    with model.adapters_for("am"):
        torch.testing.assert_close(tiny.probe(item.sample).speech_logits, model.lm.probe(item.sample).speech_logits)


def test_an_export_stands_alone(exported: Path, tmp_path: Path) -> None:
    """Copied away, without base, run or dataset, it speaks by its own script."""
    folder = tmp_path / "elsewhere"
    shutil.copytree(exported, folder)
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))  # packages may be there
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(folder / "load_example.py")], cwd=tmp_path, env=environment,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "speech.wav").stat().st_size > 44
    model = loading.load_export(folder, CPU)
    speaker = Synthesizer(model, "low", loading.export_record(model).longest_texts)
    assert len(join_chunks(list(speaker.synthesize(["the cat", " ሀ"][0], "en", SamplingOptions())))) > 0


def test_an_export_that_speaks_the_new_language_otherwise_is_refused(world: Workspace,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal tensors and equal base languages, but adapters of twice the strength."""
    assemble = export.assemble_export

    def stronger(folder: Path, device: torch.device) -> TTSModel:
        model = assemble(folder, device)
        for layer in model.adapters._layers:  # type: ignore[union-attr]
            layer.scaling["default"] *= 2  # type: ignore[index,operator]
        return model

    monkeypatch.setattr(export, "assemble_export", stronger)
    with pytest.raises(UserError, match="does not reload as it was"):
        export.run(export_options(run=f"run:{RUN}", export="stronger"), world, Listener(world.runs / "export-stronger"))


@pytest.mark.parametrize("fault", ["the plain weights", "half of the adapters"])
def test_a_merged_file_that_is_not_the_adapters_is_refused(world: Workspace, monkeypatch: pytest.MonkeyPatch,
                                                           fault: str) -> None:
    write, merge = tiny_folder.write_export, Adapters.merged_weights
    if fault == "the plain weights":
        monkeypatch.setattr(tiny_folder, "write_export", lambda *given: write(*given[:-1], given[-2]))
    else:
        monkeypatch.setattr(Adapters, "merged_weights",
                            lambda self: dict(list(merge(self).items())[::2]))
    with pytest.raises(UserError, match="The file with the adapters merged does not reload as it was"):
        export.run(export_options(run=f"run:{RUN}", export="merged"), world, Listener(world.runs / fault))
    assert not (world.exports / "merged").exists()


def test_it_carries_certificate_card_and_samples(exported: Path, world: Workspace) -> None:
    proof = certificate.read(exported / "certificate.json")
    assert not proof.failed()
    assert proof.check("export_reloads").result == proof.check("merged_reloads").result == "passed"
    card = (exported / "README.md").read_text(encoding="utf-8")
    for part in ("licence Apache-2.0", "| recordings |", "`base_logits` | passed", EXAMPLE, "samples/am.wav"):
        assert part in card
    for language in ("am", "en", "fr"):
        assert (exported / "samples" / f"{language}.wav").is_file()
    model = loading.load_export(exported, CPU)  # the samples are in a voice of the data, not in one of the base's
    recording = evaluation.recording_of(world, load(world, f"run:{RUN}", CPU))
    speaker = Synthesizer(model, recording, loading.export_record(model).longest_texts)
    texts = export._sample_texts(world, load(world, f"run:{RUN}", CPU))
    for (language, _), chunks in zip(texts, speaker.synthesize_batch(texts, SamplingOptions()), strict=True):
        written, _ = audio.read(exported / "samples" / f"{language}.wav")
        torch.testing.assert_close(written, join_chunks(list(chunks)), atol=1e-3, rtol=0)
    sums = json.loads((exported / "SHA256SUMS.json").read_text(encoding="utf-8"))
    there = {path.relative_to(exported).as_posix() for path in exported.rglob("*") if path.is_file()}
    assert set(sums) == there - {"SHA256SUMS.json"}


def test_every_file_of_an_export_can_be_read_by_whom_the_umask_lets(exported: Path) -> None:
    plain = (exported / "README.md").stat().st_mode
    files = [path for path in exported.rglob("*") if path.is_file()]
    assert {path.name for path in files if path.stat().st_mode != plain} == set()


def test_a_damaged_export_is_refused(exported: Path, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(exported, folder)
    with open(folder / "t3.safetensors", "r+b") as file:
        file.truncate(1000)
    with pytest.raises(UserError, match=r"t3\.safetensors is damaged: its 1000 bytes have the SHA-256"):
        loading.load_export(folder, CPU)
    (folder / "t3.safetensors").unlink()
    with pytest.raises(UserError, match=r"t3\.safetensors is missing"):
        loading.load_export(folder, CPU)


def test_a_failed_check_blocks_the_export_unless_it_is_named(world: Workspace, exported: Path, monkeypatch) -> None:
    proof = certificate.read(exported / "certificate.json")
    failed = replace(proof, checks=tuple(
        replace(check, result="failed", actual="something else") if check.name == "prefix_rows" else check
        for check in proof.checks if not check.name.endswith("_reloads")))
    monkeypatch.setattr(certification, "find_certificate", lambda *_arguments: failed)
    listener = Listener(world.runs / "export-failed")
    message = r"failed checks, so it is not exported: prefix_rows: wanted \w+, got something else"
    with pytest.raises(UserError, match=message) as caught:
        export.run(export_options(run=f"run:{RUN}", export="blocked"), world, listener)
    assert "--override prefix_rows" in caught.value.hint
    with pytest.raises(UserError, match="There is no check named prefix"):
        export.run(export_options(run=f"run:{RUN}", export="blocked", override=("prefix",)), world, listener)
    assert world.list_exports() == ["first"]
    export.run(export_options(run=f"run:{RUN}", export="forced", override=("prefix_rows",)), world, listener)
    assert "in spite of failed checks" in (world.exports / "forced" / "README.md").read_text(encoding="utf-8")
    assert "prefix_rows" in listener.of("warning")[0].message
    shutil.rmtree(world.exports / "forced")


def test_an_export_before_the_certificate_says_so_and_is_not_pushed(world: Workspace, exported: Path,
                                                                    monkeypatch) -> None:
    monkeypatch.setattr(certification, "find_certificate", lambda *_arguments: None)
    monkeypatch.setattr("core.speech.evaluation.SpeechEvaluator.generate", None)  # no sentence is spoken for it
    listener = Listener(world.runs / "export-early")
    result = export.run(export_options(run=f"run:{RUN}", export="early", unproven=True), world, listener)
    assert (result["certificate"], result["base_logits"]) == ("not proven yet", "passed")
    assert "the error rates are not proven yet" in listener.of("warning")[0].message
    folder = world.exports / "early"
    proof = certificate.read(folder / "certificate.json")
    assert (proof.complete, proof.errors, proof.failed()) == (False, (), ())
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "**Not proven yet**" in card
    assert "## Intelligibility\n\nNot proven yet: it was exported before its certificate was complete." in card
    assert "Not proven yet: error rates. The other" in str(certificate_view(proof))
    with pytest.raises(UserError, match="error rates of early are not proven yet"):
        push.check_certificate(world, folder)
    shutil.rmtree(folder)


def test_an_export_that_is_there_is_not_touched(world: Workspace, exported: Path) -> None:
    with pytest.raises(UserError, match="There is already an export named 'first'"):
        export.run(export_options(run=f"run:{RUN}", export="first"), world, Listener(world.runs / "export-again"))
    records.check_export_files(exported)


def test_a_full_disk_leaves_no_half_export(world: Workspace, exported: Path, monkeypatch) -> None:
    def full(_folder: Path) -> None:
        raise OSError(28, "No space left on device")

    proof = certificate.read(exported / "certificate.json")
    monkeypatch.setattr(certification, "find_certificate", lambda *_arguments: proof)
    monkeypatch.setattr(export, "write_sums", full)
    with pytest.raises(UserError, match="No space left on device") as caught:
        export.run(export_options(run=f"run:{RUN}", export="halved"), world, Listener(world.runs / "export-halved"))
    assert "then continue" in caught.value.hint
    assert [path.name for path in world.exports.iterdir()] == ["first"]


class Impatient(Listener):
    """Asks for a stop when it has heard `text` in a count."""

    def __init__(self, directory: Path, text: str) -> None:
        super().__init__(directory)
        self.text = text

    def stop_requested(self) -> bool:
        return any(self.text in event.note for event in self.of("progress"))


@pytest.mark.parametrize("text", ["Amharic sentences", "chunks"])
def test_a_stop_leaves_no_half_export(world: Workspace, exported: Path, text: str, monkeypatch) -> None:
    before = sorted(path.name for path in world.exports.iterdir())
    if text == "Amharic sentences":
        monkeypatch.setattr(certification, "find_certificate", lambda *_arguments: None)
    with pytest.raises(StopRequested, match="nothing was exported"):
        export.run(export_options(run=f"run:{RUN}", export="stopped"), world,
                   Impatient(world.runs / "export-stopped", text))
    assert sorted(path.name for path in world.exports.iterdir()) == before


def test_a_certificate_of_the_same_files_is_not_made_again(world: Workspace, exported: Path, monkeypatch) -> None:
    """What a stopped export had of it is there for its resume, and for another export of the same."""
    monkeypatch.setattr(certification, "load_certificate_inputs", None)
    listener = Listener(world.runs / "export-second")
    export.run(export_options(run=f"run:{RUN}", export="second"), world, listener)
    assert "computed from the same files" in listener.of("plan")[0].lines[0]
    first, second = (certificate.read(world.exports / name / "certificate.json") for name in ("first", "second"))
    # The card and `export.json` have the name.
    assert first == replace(second, files=first.files, texts=first.texts, signature=first.signature)
    shutil.rmtree(world.exports / "second")


def test_a_certificate_of_other_files_is_not_taken(world: Workspace, exported: Path) -> None:
    folder = world.runs / RUN / "checkpoints" / "step-000008"
    wanted = certification.compute_input_hash(world, folder, "cpu", certification.SENTENCES)
    made = certificate.read(exported / "certificate.json")
    assert made.input_hash == wanted
    found = certification.find_certificate(world, world.runs / RUN, wanted)
    assert found is not None
    assert found.created == made.created
    assert certification.find_certificate(world, world.runs / RUN, "0" * 64) is None
    certificate.write(world.runs / RUN / certificate.CERTIFICATE, replace(made, input_hash=""))  # as older ones are
    assert certification.find_certificate(world, world.runs / RUN, wanted) == found
    (world.runs / RUN / certificate.CERTIFICATE).unlink()


def test_an_export_has_one_count(world: Workspace, exported: Path, monkeypatch) -> None:
    monkeypatch.setattr(certification, "SENTENCES", 2)
    listener = Listener(world.runs / "export-counted")
    export.run(export_options(run=f"run:{RUN}", export="counted"), world, listener)
    told = listener.of("progress")
    assert len({(event.total, event.unit) for event in told}) == 1
    counts = [event.done for event in told]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, told[0].total)
    shutil.rmtree(world.exports / "counted")


def test_an_export_that_was_whole_when_its_job_was_killed_is_done_on_resume(world: Workspace, exported: Path) -> None:
    options = export_options(run=f"run:{RUN}", export="killed")
    result = export.run(options, world, Listener(world.runs / "export-killed"))
    before = (world.exports / "killed" / "SHA256SUMS.json").stat()
    assert export.run(options, world, Listener(world.runs / "export-killed")) == result
    assert (world.exports / "killed" / "SHA256SUMS.json").stat() == before
    with pytest.raises(UserError, match="There is already an export named 'killed'"):
        export.run(options, world, Listener(world.runs / "export-killed-2"))
    shutil.rmtree(world.exports / "killed")


def test_the_script_can_go_on(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["export", "--help"])
    with pytest.raises(SystemExit):
        runpy.run_module("scripts.export", run_name="__main__")
    assert "--resume ID" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "fault"), [
    *((name, "cannot be a name") for name in ("../../x", "a/b", ".hidden", "x" * 65)),
    ("", "it is empty; give a name")])
def test_names_that_leave_the_workspace_are_refused(name: str, fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        ExportOptions(run="run:x", export=name)


@pytest.mark.parametrize(("run", "message"), [
    ("", "'' is not a run to export"), ("base:tiny", "'base:tiny' is not a run to export"),
    ("run:nothing", "There is no run named 'nothing'"), ("run:../../x", "cannot be a name in runs"),
    (f"run:{RUN}@7", "has no checkpoint of step '7'"),
])
def test_what_is_no_run_is_refused(world: Workspace, run: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        export.run(export_options(run=run, export="second"), world, Listener(world.runs / "export-second"))


def test_rows_alone_are_exported_without_adapters(tmp_path: Path) -> None:
    world = trained_world(tmp_path / "workspace", "rows")
    export.run(export_options(run=f"run:{RUN}", export="rows"), world, Listener(world.runs / "export"))
    folder = world.exports / "rows"
    assert not (folder / "adapter").exists()
    assert not (folder / "t3-merged.safetensors").exists()
    model = load(world, f"run:{RUN}", CPU)
    rows = new_rows(model.lm.module, model.lm.text_tables)
    written = load_file(folder / "t3.safetensors")
    assert torch.equal(written["text_emb.weight"][model.front_end.prefix_size:], rows["text_emb"])
    assert set(plain_tensors(model)) == set(written)


def test_the_doctor_finds_an_export_by_its_name_and_its_tokenizer(world: Workspace, exported: Path,
                                                                tmp_path: Path) -> None:
    options = DoctorOptions(part="model", base="tiny", checkpoint=f"export:{exported.name}", measure=False)
    assert check_requirements(world, "doctor", options) == ()
    doctor.run(options, world, Listener(tmp_path / "job"))
    found = diagnosis.read(tmp_path / "job")
    assert found.assessment.level != "bad"
    assert found.tokenizer is not None
    assert Path(found.tokenizer.path).parent == exported / records.FRONT_END
    assert (found.tokenizer.moved_count, found.tokenizer.lost_count, found.tokenizer.beyond) == (0, 0, 0)
    assert found.tokenizer.added == found.tokenizer.rows - found.tokenizer.base_size > 0


def test_an_export_is_packed_and_arrives_whole_under_another_name(world: Workspace, exported: Path,
                                                                 tmp_path: Path) -> None:
    packed = pack.run(PackOptions(item=f"export:{exported.name}"), world, Listener(tmp_path / "packing"))
    elsewhere = Workspace.open(tmp_path / "elsewhere")
    made = unpack.run(UnpackOptions(archive=str(packed["path"]), save_as="mine"), elsewhere, Listener(tmp_path / "job"))
    assert (made["item"], made["missing"]) == ("export:mine", "")
    assert hash_tree(elsewhere.exports / "mine") == hash_tree(exported)
    assert loading.assemble_export(elsewhere.exports / "mine", CPU).front_end.languages
