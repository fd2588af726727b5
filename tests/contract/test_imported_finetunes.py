"""A finetune in each layout that people have is imported, spoken with, certified, trained further and exported."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import pytest
import soundfile
import torch
from safetensors.torch import load_file

from config.errors import UserError
from config.schema import CertifyOptions, DoctorOptions, ImportModelOptions, SynthesizeOptions
from core import certify, doctor, export, import_model, synthesize, train
from core.jobs.events import CheckpointSaved, Event, Journal, Result
from core.jobs.job import create_job, load_job
from core.jobs.state import JobReader
from core.library import certificate, diagnosis, lineage, records
from core.library.certificate import Preservation
from core.library.lineage import Model
from core.model.loading import load, load_base, load_export
from core.model.prefix import base_tensors, whole_table
from core.workspace import Workspace
from tests import chatterbox_world, finetunes, indextts2_world, worlds
from tests.finetunes import LAYOUTS, LETTERS, Base
from tests.worlds import Listener, export_options, train_options

CPU = torch.device("cpu")
WORLDS = {"tiny": worlds.extended_world, "chatterbox": chatterbox_world.extended_world,
          "indextts2": indextts2_world.extended_world}
FEW = os.environ.get("LISAN_ALL_CASES") is None
LONG = ("adapters", "merged")  # of the other families; the remaining layouts take a minute each


def _marks(family: str, layout: str) -> Sequence[pytest.MarkDecorator]:
    if not FEW or family == "tiny":
        return ()
    return (pytest.mark.long if layout in LONG else pytest.mark.slow,)


CASES = [pytest.param(family, layout, id=f"{family}-{layout}", marks=_marks(family, layout))
         for family, layout in product(WORLDS, LAYOUTS)]
INTACT = ("rows_alone", "embedding_alone")


class JobListener(Listener):
    """Writes the journal of a job too, as its worker does."""

    def emit(self, event: Event) -> None:
        super().emit(event)
        journal = Journal(self.directory / "events.jsonl")
        journal.append(event)
        journal.close()


def imported(base: Base, name: str, checkpoint: Path, tokenizer: Path | None = None,
             **changes: object) -> tuple[Result, JobListener]:
    values = {"base": base.name, "checkpoint": str(checkpoint), "tokenizer": str(tokenizer or ""), "language": "am",
              **changes}
    options = ImportModelOptions(**values)  # type: ignore[arg-type]
    job = create_job(base.workspace, "import_model", options, job_id=name)
    listener = JobListener(job.directory)
    return import_model.run(options, base.workspace, listener), listener


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return Base(worlds.extended_world(tmp_path_factory.mktemp("tiny") / "workspace"), "tiny")


@pytest.mark.parametrize(("family", "layout"), CASES)
def test_each_layout_goes_the_whole_way(family: str, layout: str, tmp_path: Path) -> None:
    workspace = WORLDS[family](tmp_path / "workspace")
    base, folder = Base(workspace, family), tmp_path / "elsewhere"
    folder.mkdir()
    checkpoint, tokenizer = LAYOUTS[layout](base, folder)
    before = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    result, _ = imported(base, "ours", checkpoint, tokenizer)
    assert result["new_rows"] == len(LETTERS)
    assert result["scope"] == ("rows" if layout in INTACT else "full")
    assert {path: path.read_bytes() for path in before} == before  # the finetune itself is not touched

    recording = str(tmp_path / "voice.wav") if family == "indextts2" else ""  # it has no voice of its own
    if recording:
        soundfile.write(recording, worlds.tone(3, 2.0).numpy(), worlds.RATE)
    options = SynthesizeOptions(voice_model="run:ours", language="am", text="ሀለ መሰ", voice=recording)
    spoken = synthesize.run(options, workspace, Listener(tmp_path / "synthesize"))
    assert spoken["clips"] == 1
    certified = certify.run(CertifyOptions(run="run:ours"), workspace, Listener(tmp_path / "certify"))
    assert not str(certified["certificate"]).startswith("failed")
    _check_certificate(certificate.read(workspace.run("ours") / certificate.CERTIFICATE), layout, family)

    if family == "tiny" and FEW and layout not in ("model_step", "adapters"):
        return  # the rest is the same for each
    training = train_options(extension="ours", init_from="run:ours", scope="full" if result["changed"] else "gated",
                            steps=2, checkpoint_every=2, warmup=0, replay=0.25 if result["changed"] else 0.0)
    assert train.run(training, workspace, Listener(workspace.runs / "further"))["steps"] == 2
    if layout == "model_step":  # old rows that moved are kept, and nothing has trained them
        further, ours = (base_tensors(load(workspace, ref, CPU).lm.module) for ref in (
            _only_checkpoint(workspace, "further"), "run:ours"))
        assert all(torch.equal(further[table], ours[table]) for table in base.tables)
    exported = export.run(export_options(run="run:ours", export="ours"), workspace, Listener(tmp_path / "export"))
    assert exported["export_reloads"] == "passed"
    card = (workspace.exports / "ours" / "README.md").read_text("utf-8")
    assert f"imported into Lisan from `{checkpoint.name}`" in card
    assert "Only the new rows were trained" not in card
    plain, again = load(workspace, "run:ours", CPU), load_export(workspace.exports / "ours", CPU)
    assert all(torch.equal(whole_table(plain.lm.module, table), whole_table(again.lm.module, table))
               for table in plain.lm.text_tables)


def _only_checkpoint(workspace: Workspace, name: str) -> str:
    """A run whose training was not a job."""
    folder = next((workspace.runs / name / "checkpoints").glob("step-*"))
    create_job(workspace, "train", train_options(), job_id="copy")
    target = workspace.runs / "copy" / "checkpoints" / folder.name
    target.parent.mkdir()
    folder.rename(target)
    journal = Journal(load_job(workspace, "copy").journal)
    record = records.read_checkpoint(target)
    journal.append(CheckpointSaved(record.step, f"checkpoints/{target.name}", best=True))
    journal.close()
    return "run:copy"


def _check_certificate(proof: certificate.Certificate, layout: str, family: str) -> None:
    """What was changed is measured; what nobody saw is not proven; nothing is called preserved that moved."""
    results = {check.name: check.result for check in proof.checks}
    assert results["frozen_in_training"] == "not proven"
    assert proof.learning is certificate.Learning.NOT_MEASURED
    if layout in INTACT:
        assert results["prefix_rows"] == results["frozen_tensors"] == results["base_logits"] == "passed"
        assert "changed_tensors" not in results
        return
    assert proof.preservation in (Preservation.CHANGED, Preservation.BROKEN, Preservation.NOT_PROVEN)
    assert results["changed_tensors"] == "measured"
    assert results["base_logits"] == "measured"
    moved = layout in ("model_step", "raw_and_average", "trainer_folder")
    assert results["prefix_rows"] == ("measured" if moved else "passed")
    if moved:
        assert "rows of text_emb" in proof.check("prefix_rows").actual
        assert "differ from the base file" in proof.check("prefix_rows").actual


@pytest.mark.parametrize(("name", "step"), [
    ("model_step38000.pth", 38_000), ("epoch=3-step=500.ckpt", 500), ("t3_step_12000.safetensors", 12_000),
    ("gpt-steps-40.pth", 40), ("checkpoint-1000", 1000), ("latest.pth", 0), ("epoch=3.ckpt", 0)])
def test_the_step_is_that_of_the_name(name: str, step: int) -> None:
    assert import_model._step_of(f"/elsewhere/{name}") == step


def test_an_intact_finetune_is_the_base_and_new_rows(tiny: Base, tmp_path: Path) -> None:
    checkpoint, tokenizer = finetunes.rows_alone(tiny, tmp_path)
    result, _ = imported(tiny, "intact", checkpoint, tokenizer)
    assert (result["assessment"], result["scope"], result["changed"]) == ("good", "rows", 0)
    model, base = load(tiny.workspace, "run:intact", CPU), load_base(tiny.workspace, "tiny", CPU)
    own, before = base_tensors(model.lm.module), base.lm.module.state_dict()
    assert all(torch.equal(own[name], value) for name, value in before.items())
    held = torch.load(checkpoint, weights_only=True)
    for table in tiny.tables:
        new = whole_table(model.lm.module, table)[len(before[table]):]
        assert torch.equal(new, held[table][len(before[table]):].float())
    first = model.front_end.prefix_size
    assert model.front_end.encode("ሀለ", "am").tolist()[1:-1] == [first, first + 1]
    assert model.front_end.encode("the cat", "en").tolist() == base.front_end.encode("the cat", "en").tolist()


def test_the_import_is_a_run_for_every_list(tiny: Base, tmp_path: Path) -> None:
    checkpoint, tokenizer = finetunes.merged(tiny, tmp_path)
    result, _ = imported(tiny, "listed", checkpoint, tokenizer)
    states = [JobReader(load_job(tiny.workspace, name)).state() for name in tiny.workspace.list_runs()
              if (tiny.workspace.runs / name / "config.yaml").is_file()]
    assert "run:listed" in [one.reference for one in lineage.list_models(tiny.workspace, states)]
    assert Model.open(tiny.workspace, "run:listed").step == result["step"] == 0
    assert (tiny.workspace.run("listed") / diagnosis.DIAGNOSIS).is_file()
    record = records.read_extension(tiny.workspace.extension("listed"))
    assert record.languages == ("am",)


def test_raw_and_averaged_weights_are_told_apart(tiny: Base, tmp_path: Path) -> None:
    checkpoint, tokenizer = finetunes.raw_and_average(tiny, tmp_path)
    held = torch.load(checkpoint, weights_only=False)  # made by this test
    values = {}
    for weights in ("auto", "raw", "ema"):
        _, listener = imported(tiny, f"average-{weights}", checkpoint, tokenizer, weights=weights)
        values[weights] = load(tiny.workspace, f"run:average-{weights}", CPU).lm.module.state_dict()
        lines = "\n".join(line for plan in listener.of("plan") for line in plan.lines)
        assert "It holds the model 2 times" in lines
        assert "of an optimizer, a schedule or a random generator." in lines
    name = finetunes.Base(tiny.workspace, "tiny").matrices[0]
    assert torch.equal(values["auto"][name], held["ema_model"][name])
    assert torch.equal(values["ema"][name], held["ema_model"][name])
    assert torch.equal(values["raw"][name], held["model"][name])
    checkpoint, tokenizer = finetunes.model_step(tiny, tmp_path)
    with pytest.raises(UserError, match=r"holds no averaged \(EMA\) weights"):
        imported(tiny, "no-average", checkpoint, tokenizer, weights="ema")


def test_adapters_of_peft_are_merged_as_peft_merges_them(tiny: Base, tmp_path: Path) -> None:
    folder, _ = finetunes.adapters(tiny, tmp_path)
    imported(tiny, "merged-adapters", folder)
    values = load(tiny.workspace, "run:merged-adapters", CPU).lm.module.state_dict()
    before = tiny.tensors()
    saved = load_file(folder / "adapter_model.safetensors")
    for name in tiny.matrices:
        down, up = (saved[f"base_model.model.{name.removesuffix('.weight')}.lora_{side}.weight"] for side in "AB")
        assert torch.allclose(values[name], before[name] + 2.0 * up @ down, atol=1e-6)
    settings = json.loads((folder / "adapter_config.json").read_text())
    for changed, message in (({"peft_type": "IA3"}, "only 'LORA' can be merged"),
                             ({"lora_alpha": "x"}, "lora_alpha 'x'"),
                             ({"layer_replication": [[0, 4]]}, "layer_replication")):
        (folder / "adapter_config.json").write_text(json.dumps({**settings, **changed}))
        with pytest.raises(UserError, match=message):
            imported(tiny, f"wrong-{len(message)}", folder)


def test_a_damaged_import_can_be_restored_by_its_run(tiny: Base, tmp_path: Path) -> None:
    held = finetunes.with_rows(tiny)
    for table in tiny.tables:
        held[table][:-len(LETTERS)] *= 0.98
    torch.save({"model": held}, tmp_path / "decayed.pth")
    imported(tiny, "decayed", tmp_path / "decayed.pth", tiny.tokenizer(tmp_path / "tokenizer"))
    options = DoctorOptions(part="model", checkpoint="run:decayed", restore="mended", measure=False)
    result = doctor.run(options, tiny.workspace, Listener(tmp_path / "doctor"))
    assert result["ref"] == "export:mended"
    assert not certificate.read(tiny.workspace.exports / "mended" / certificate.CERTIFICATE).failed()


def test_a_finetune_without_new_rows_speaks_with_the_tokenizer_of_the_base(tiny: Base, tmp_path: Path) -> None:
    torch.save({"model": finetunes.trained(tiny.tensors())}, tmp_path / "voice.pth")
    result, _ = imported(tiny, "voice", tmp_path / "voice.pth", language="en-studio")
    assert (result["new_rows"], result["scope"]) == (0, "full")
    spoken = synthesize.run(SynthesizeOptions(voice_model="run:voice", language="en-studio", text="the cat"),
                            tiny.workspace, Listener(tmp_path / "synthesize"))
    assert spoken["clips"] == 1


WRONG: dict[str, tuple[Callable[[Base, Path], dict[str, object]], str]] = {
    "no language": (lambda base, folder: {"language": ""}, "language of the finetune was not given"),
    "a language of the base": (lambda base, folder: {"language": "en"}, "speaks 'en' already"),
    "no tokenizer": (lambda base, folder: {"tokenizer": ""}, r"has 10 new rows, and no tokenizer says"),
    "a tokenizer of another model": (lambda base, folder: {"tokenizer": str(_other(base, folder))},
                                     "cannot be taken over"),
    "another network": (lambda base, folder: {"checkpoint": str(_network(folder))}, "of the 39 tensors of tiny"),
    "values that are no numbers": (lambda base, folder: {"checkpoint": str(_broken(base, folder))},
                                   "values are no numbers"),
    "no file": (lambda base, folder: {"checkpoint": str(folder / "no.pth")}, "There is no checkpoint"),
    "no weights": (lambda base, folder: {"checkpoint": str(_text(folder))}, "is not a whole PyTorch file"),
}


def _other(base: Base, folder: Path) -> Path:
    content = json.loads(base.tokenizer(folder / "tokenizer").read_bytes())
    vocab = content["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (folder / "other.json").write_text(json.dumps(content))
    return folder / "other.json"


def _network(folder: Path) -> Path:
    """As a small network of one's own: an embedding, an encoder and a decoder of spectrograms."""
    torch.save({"model_state_dict": {"text_emb.weight": torch.randn(56, 32), "mel_decoder.0.weight": torch.ones(8, 8)}},
               folder / "own.pt")
    return folder / "own.pt"


def _broken(base: Base, folder: Path) -> Path:
    held = finetunes.with_rows(base)
    held[base.matrices[0]][0, 0] = torch.nan
    torch.save(held, folder / "broken.pth")
    return folder / "broken.pth"


def _text(folder: Path) -> Path:
    (folder / "weights.pt").write_text("version https://git-lfs.github.com/spec/v1\n")
    return folder / "weights.pt"


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_imported_is_named_and_nothing_is_made(tiny: Base, tmp_path: Path, wrong: str) -> None:
    change, message = WRONG[wrong]
    checkpoint, tokenizer = finetunes.rows_alone(tiny, tmp_path)
    name = "wrong-" + wrong.replace(" ", "-")
    with pytest.raises(UserError, match=message) as refused:
        imported(tiny, name, **{"checkpoint": checkpoint, "tokenizer": tokenizer,  # type: ignore[arg-type]
                                **change(tiny, tmp_path)})
    assert refused.value.hint
    assert name not in tiny.workspace.list_extensions()
    assert not (tiny.workspace.runs / name / "checkpoints").exists()


def test_an_import_that_was_killed_begins_again(tiny: Base, tmp_path: Path) -> None:
    checkpoint, tokenizer = finetunes.rows_alone(tiny, tmp_path)
    result, listener = imported(tiny, "again", checkpoint, tokenizer)
    job = load_job(tiny.workspace, "again")
    options = ImportModelOptions(**job.settings)  # type: ignore[arg-type]
    assert import_model.run(options, tiny.workspace, listener) == result

