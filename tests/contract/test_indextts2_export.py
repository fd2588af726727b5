"""A trained IndexTTS2: its certificate, its export in the published layout, and its speech from there alone."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import soundfile
import torch
import yaml

from config import foreign
from config.schema import CertifyOptions, CompareOptions, SamplingOptions, SoundOptions
from core import certify, compare, export
from core.library import certificate, records
from core.model import loading
from core.model.loading import load
from core.speech.evaluation import recording_of
from core.speech.model_cache import CachedSynthesizer, ModelCache
from core.speech.synthesis import Synthesizer, find_voice, join_chunks
from core.workspace import Workspace
from data.languages import indextts2_normaliser
from models import weights
from models.indextts2 import model_folder
from tests import indextts2_world
from tests.trained import RUN, write_checkpoint
from tests.worlds import ENGLISH, Listener, export_options

CPU = torch.device("cpu")
TEXT = "ሀለመ ሰረቀ"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = indextts2_world.extended_world(tmp_path_factory.mktemp("indextts2-export"))
    write_checkpoint(workspace, "gated")
    return workspace


@pytest.fixture(scope="module")
def exported(world: Workspace) -> Path:
    export.run(export_options(run=f"run:{RUN}", export="am"), world, Listener(world.runs / "export-am"))
    return world.exports / "am"


def test_the_certificate_probes_generated_codes_and_says_so(exported: Path) -> None:
    proof = certificate.read(exported / "certificate.json")
    assert not proof.failed()
    logits = proof.check("base_logits")
    assert {logits.result, *(proof.check(name).result for name in ("export_reloads", "merged_reloads"))} == {"passed"}
    assert "9 of 9 samples (en, zh) bit-identical" in logits.actual  # its tokenizer reads one Chinese sentence
    assert "over generated codes and conditioning" in logits.actual
    assert proof.check("prefix_rows").result == proof.check("base_tokens").result == "passed"


def test_an_export_is_certified_again_beside_its_base(world: Workspace, exported: Path) -> None:
    copy = world.exports / "again"
    shutil.copytree(exported, copy)
    settings = foreign.read_yaml(copy / model_folder.MERGED_CONFIG)
    for changed, failed in (({}, ()), ({"stop_mel_token": 5}, ("codec_and_vocoder",))):
        values = {**settings, "gpt": {**settings["gpt"], **changed}}
        (copy / model_folder.MERGED_CONFIG).write_text(yaml.safe_dump(values), encoding="utf-8")
        loading.write_sums(copy)
        certify.run(CertifyOptions(run="export:again", again=True), world, Listener(world.runs / "certify-again"))
        assert certificate.read(copy / "certificate.json").failed() == failed


def test_all_three_text_tables_keep_the_bytes_of_the_base(world: Workspace, exported: Path) -> None:
    base, rows = weights.read(world.model("indextts2") / "gpt.pth"), load(world, f"run:{RUN}", CPU).front_end.size
    for name in (model_folder.GPT, model_folder.MERGED):
        written = weights.read(exported / name)
        grown = {key for key in base if written[key].shape != base[key].shape}
        assert grown == {"text_embedding.weight", "text_head.weight", "text_head.bias"}
        assert all(len(written[key]) == rows and torch.equal(written[key][:len(base[key])], base[key]) for key in grown)
    plain = weights.read(exported / model_folder.GPT)
    assert all(torch.equal(plain[key][:len(value)], value) for key, value in base.items())


def test_the_shared_tokenizer_gives_the_rows_of_the_model(world: Workspace, exported: Path) -> None:
    front_end = load(world, f"run:{RUN}", CPU).front_end
    shared = sentencepiece.SentencePieceProcessor(model_file=str(exported / "bpe.model"))
    assert shared.get_piece_size() == front_end.size
    assert shared.is_control(front_end.base_ids)  # the spare row
    for token in front_end.added_tokens():
        assert shared.piece_to_id(token.text) == token.id
    for text in ENGLISH:
        normal = front_end.normalise(text, "en")
        assert [front_end.start_id, *shared.encode(normal), front_end.stop_id] == front_end.encode(text, "en").tolist()


def test_the_base_speaks_in_the_clip_of_the_run_that_it_is_compared_with(world: Workspace) -> None:
    shutil.copytree(world.dataset("demo-am"), world.datasets / "demo-other")
    for path in (world.dataset("demo-other") / "audio").glob("*.wav"):
        waveform, rate = soundfile.read(path)
        soundfile.write(path, waveform[::-1], rate)
    write_checkpoint(world, "gated", name="other", dataset="demo-other")
    cache = ModelCache()

    def base_beside(run: str) -> CachedSynthesizer:
        settings = (world, CPU, "float32", "", SoundOptions())
        return cache.synthesizer("base:indextts2", *settings,
                                 trained_on=cache.synthesizer(f"run:{run}", *settings).synthesizer.model)

    one, other = base_beside(RUN), base_beside("other")
    clip = Path(recording_of(world, load(world, f"run:{RUN}", CPU)))
    assert one.voice == other.voice == f"of the training clip {clip.name}"
    assert other.cached
    one_style, other_style = (made.synthesizer.voice.timbre["style"] for made in (one, other))
    assert not np.array_equal(one_style, other_style)
    shutil.rmtree(world.dataset("demo-other"))
    shutil.rmtree(world.runs / "other")


def test_it_speaks_alone_in_the_voice_of_a_recording(world: Workspace, exported: Path, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    shutil.copytree(exported, folder)
    trained = load(world, f"run:{RUN}", CPU)
    recording = recording_of(world, trained)
    sounds = [join_chunks(list(Synthesizer(model, find_voice(model, recording)).synthesize(TEXT, "am",
                                                                                             SamplingOptions(seed=3))))
              for model in (loading.load_export(folder, CPU), trained)]
    assert torch.equal(*sounds)
    assert len(sounds[0]) > 0.1 * 22050
    assert np.isfinite(sounds[0].numpy()).all()


def test_another_version_of_the_package_that_writes_numbers_out_is_said(world: Workspace, exported: Path,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    record = records.read_export_record(exported)
    assert record.text_library == indextts2_normaliser.rules_version()
    monkeypatch.setattr(indextts2_normaliser, "rules_version", lambda: "wetext 9.9")
    models = [load(world, f"run:{RUN}", CPU), loading.load_export(exported, CPU)]
    models = [replace(model, text_library="wetext 0.1.7") for model in models]
    for model in models:
        speaker = Synthesizer(model, find_voice(model, recording_of(world, models[0])))
        (note,) = speaker.reading_notes(ENGLISH[0], "en")
        assert "written out by wetext 0.1.7" in note
        assert "wetext 9.9 is installed" in note
        assert speaker.reading_notes(TEXT, "am") == []  # a new language is written out by its own rules
    assert replace(models[0], text_library="wetext 9.9").text_library_note() == ""
    assert replace(models[0], text_library="").text_library_note() == ""  # made before it was stored


def test_both_models_are_compared_in_one_voice_and_english_is_identical(world: Workspace) -> None:
    listener = Listener(world.runs / "compare")
    result = compare.run(CompareOptions(base="base:indextts2", finetuned=f"run:{RUN}",
                                        texts=(("en", ENGLISH[0]), ("am", TEXT))), world, listener)
    assert result["texts"] == 2
    english = [event for event in listener.clips() if event.language == "en"]
    assert len(english) == 2
    assert any("dentical" in event.note for event in english)
