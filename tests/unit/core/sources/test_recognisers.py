"""Recognisers of a person's choice: fetched whole, loaded without the network, and what they hear."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from config.errors import UserError
from config.loading import parse_options
from config.schema import AlignOptions, SegmentOptions, TranscribeOptions
from core.library.records import MODEL_RECORD, ModelRecord, read_model_record, write_record
from core.sources import recognisers
from core.sources.hub import Hub
from core.sources.partial_downloads import partial_folder
from core.speech.transcription import (
    HubCTCModel,
    HubTranscriber,
    Speller,
    best_path,
    recogniser_language_names,
    stream_log_probabilities,
)
from core.workspace import Workspace
from data.durable_files import ExpectedFile
from tests.hub import LoopbackHub, serving
from tests.unit.hub_model import QUICK
from tests.unit.small_data import Recorder
from tests.unit.tiny_recognisers import ETHIOPIC, LETTERS, write_ctc, write_whisper

NAMED = {"segments": "talks", "language": "am"}
CPU = torch.device("cpu")
NOISE = np.random.default_rng(0).uniform(-0.1, 0.1, 3 * 16000).astype(np.float32)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def served() -> Iterator[LoopbackHub]:
    with serving() as hub:
        yield hub


@pytest.mark.usefixtures("offline")
def test_whisper_writes_in_the_language_with_its_sureness(tmp_path: Path) -> None:
    recogniser = HubTranscriber.load(write_whisper(tmp_path / "w"), CPU, "am", "")
    first, second = recogniser.transcribe([NOISE, NOISE[:16000]])
    assert recogniser.sample_rate == 16000
    assert first.text
    assert all(0 < heard.score < 0.2 for heard in (first, second))  # random weights are sure of nothing
    with pytest.raises(UserError, match="does not know 'ti'"):
        HubTranscriber.load(tmp_path / "w", CPU, "ti", "")


@pytest.mark.usefixtures("offline")
def test_a_ctc_model_writes_and_hears_frame_by_frame(tmp_path: Path) -> None:
    write_ctc(tmp_path / "c")
    heard = HubTranscriber.load(tmp_path / "c", CPU, "sw", "").transcribe([NOISE])[0]
    listener = HubCTCModel.load(tmp_path / "c", CPU, "sw", "", "habari ya asubuhi")
    rows = listener.log_probabilities(NOISE)
    assert listener.frame_s == pytest.approx(0.02)
    assert rows.shape == (149, 32)
    assert np.allclose(np.exp(rows).sum(1), 1, atol=1e-4)
    assert listener.separator == 4
    assert best_path(rows, listener.blank)[1] == pytest.approx(heard.score)
    assert listener.encode("Ya'a, 5!") == [5 + LETTERS.index(letter) for letter in "ya'a"]
    assert HubCTCModel.load(tmp_path / "c", CPU, "am", "", "ሰላም ለሁሉም").encode("ሰላም") == [
        5 + LETTERS.index(letter) for letter in "selam"]  # romanised: it knows Latin letters alone


@pytest.mark.usefixtures("offline")
def test_of_a_model_with_a_part_for_each_language_that_of_the_language_is_taken(tmp_path: Path) -> None:
    write_ctc(tmp_path / "mms", {"eng": LETTERS, "amh": ETHIOPIC})
    listener = HubCTCModel.load(tmp_path / "mms", CPU, "am", "", "ሀለመ")
    assert listener.log_probabilities(NOISE).shape[1] == 5 + len(ETHIOPIC)
    assert listener.encode("ለሀ") == [6, 5]
    english = HubCTCModel.load(tmp_path / "mms", CPU, "am", "eng", "abc")
    assert english.log_probabilities(NOISE).shape[1] == 5 + len(LETTERS)
    with pytest.raises(UserError, match="no language som or so"):
        HubTranscriber.load(tmp_path / "mms", CPU, "so", "")


def test_whisper_cannot_align_and_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="gives no time of a letter"):
        HubCTCModel.load(write_whisper(tmp_path / "w"), CPU, "am", "", "ሰላም")
    (tmp_path / "w/config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
    with pytest.raises(UserError, match="BertModel is no speech recogniser"):
        HubTranscriber.load(tmp_path / "w", CPU, "am", "")
    write_ctc(tmp_path / "c")
    (tmp_path / "c/model.safetensors").write_bytes(b"cut off")
    with pytest.raises(UserError, match="could not be loaded"):
        HubTranscriber.load(tmp_path / "c", CPU, "sw", "")


def test_blocks_of_a_recording_are_heard_as_the_whole(tmp_path: Path) -> None:
    class Ear:
        """Hears the mean of each 20 ms."""

        sample_rate, frame_s, blank, separator = 16000, 0.02, 0, None

        def log_probabilities(self, waveform: np.ndarray) -> np.ndarray:
            return waveform[:len(waveform) // 320 * 320].reshape(-1, 320).mean(1, keepdims=True)

        def encode(self, word: str) -> list[int]:
            return []

    for seconds in (3.0, 16.0, 18.0, 51.37, 64.0):
        samples = np.random.default_rng(1).uniform(-0.5, 0.5, round(seconds * 16000)).astype(np.float32)
        soundfile.write(tmp_path / "a.wav", samples, 16000, subtype="FLOAT")
        told: list[float] = []
        rows = np.concatenate(list(stream_log_probabilities(Ear(), tmp_path / "a.wav", told.append)))
        whole = Ear().log_probabilities(samples)
        assert len(whole) <= len(rows) <= len(whole) + 1
        assert np.allclose(rows[:len(whole)], whole, atol=1e-6)
        assert told[-1] == pytest.approx(seconds, abs=0.01)


def test_a_recogniser_comes_from_the_hub_once(tmp_path: Path, workspace: Workspace, served: LoopbackHub) -> None:
    folder = write_ctc(tmp_path / "mms", {"eng": LETTERS, "amh": ETHIOPIC})
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    served.add("some/mms", {**files, "pytorch_model.bin": b"pickle", "onnx/model.onnx": b"x", "README.md": b"# hi"})
    hub = Hub(served.url)

    def bring(language: str) -> Path:
        return recognisers.ensure_recogniser("some/mms", "main", recogniser_language_names(language), workspace,
                                             Recorder(), hub,
                                             QUICK)

    there = bring("am")
    names = {path.name for path in there.iterdir()}
    assert {"config.json", "model.safetensors", "vocab.json", "adapter.amh.safetensors"} <= names
    assert not names & {"pytorch_model.bin", "onnx", "README.md", "adapter.eng.safetensors"}
    assert HubTranscriber.load(there, CPU, "am", "").transcribe([NOISE])
    asked = len(served.asked)
    assert bring("am") == there
    assert len(served.asked) == asked  # nothing is asked for twice
    bring("en")
    assert (there / "adapter.eng.safetensors").read_bytes() == files["adapter.eng.safetensors"]
    assert workspace.list_models() == []


def test_two_jobs_that_need_a_language_do_not_write_into_one_file(
        tmp_path: Path, workspace: Workspace, served: LoopbackHub) -> None:
    write_ctc(tmp_path / "mms", {"eng": LETTERS, "amh": ETHIOPIC})
    served.add("me/mms", {path.name: path.read_bytes() for path in (tmp_path / "mms").iterdir()})
    hub = Hub(served.url)
    recognisers.ensure_recogniser("me/mms", "main", ("eng",), workspace, Recorder(), hub, QUICK)
    target = workspace.recognisers / "me--mms"
    with partial_folder(target), pytest.raises(UserError, match="downloaded by another job"):
        recognisers.ensure_recogniser("me/mms", "main", ("amh",), workspace, Recorder(), hub, QUICK)
    assert not (target / "adapter.amh.safetensors").exists()
    recognisers.ensure_recogniser("me/mms", "main", ("amh",), workspace, Recorder(), hub, QUICK)
    assert (target / "adapter.amh.safetensors").read_bytes() == (tmp_path / "mms/adapter.amh.safetensors").read_bytes()


def test_another_revision_is_another_recogniser(tmp_path: Path, workspace: Workspace, served: LoopbackHub) -> None:
    """Its transcripts are filed by revision, so what wrote them must be of that revision."""
    folder = write_ctc(tmp_path / "ctc")
    served.add("some/ctc", {path.name: path.read_bytes() for path in folder.iterdir()})
    hub = Hub(served.url)

    def bring(revision: str) -> Path:
        return recognisers.ensure_recogniser("some/ctc", revision, (), workspace, Recorder(), hub, QUICK)

    newest = bring("main")
    record = read_model_record(newest)
    assert record is not None
    assert bring(record.revision) == newest  # the same, by its commit
    with pytest.raises(UserError, match="has no revision 'v9/beta'"):
        bring("v9/beta")
    assert not recognisers.folder_of(workspace, "some/ctc", "v9/beta").exists()
    # as where another was requested first
    write_record(newest / MODEL_RECORD, replace(record, requested_revision="v1"))
    again = bring("main")
    assert again != newest
    assert read_model_record(again) == record
    asked = len(served.asked)
    assert (bring("main"), bring("v1")) == (again, newest)
    assert len(served.asked) == asked


def test_a_hint_names_it_too_where_the_hub_cannot_be_reached(workspace: Workspace) -> None:
    with pytest.raises(UserError, match="a/b could not be downloaded") as caught:
        recognisers.ensure_recogniser("a/b", "main", (), workspace, Recorder(), Hub("http://127.0.0.1:1"), QUICK)
    assert "--recogniser FOLDER; on the page: Recogniser" in caught.value.hint
    assert "--folder" not in caught.value.hint


@pytest.mark.parametrize("name", ["no/such", "some/gated"])
def test_a_hint_names_what_the_verb_has(workspace: Workspace, served: LoopbackHub, name: str,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError) as caught:
        recognisers.ensure_recogniser(name, "main", (), workspace, Recorder(), Hub(served.url), QUICK)
    assert "--folder" not in caught.value.hint
    assert "--recogniser FOLDER; on the page: Recogniser" in caught.value.hint


@pytest.mark.usefixtures("offline")
def test_a_fault_names_the_option_for_the_language(tmp_path: Path) -> None:
    whisper = write_whisper(tmp_path / "w")
    for called in ("am", "Amharic", "<|am|>", "am-ET", "am_et"):
        assert HubTranscriber.load(whisper, CPU, "x-own", called)._loaded.language == "am"
    mms = write_ctc(tmp_path / "mms", {"eng": LETTERS, "amh": ETHIOPIC})
    assert HubTranscriber.load(mms, CPU, "x-own", "amh").transcribe([NOISE])
    for folder, called in ((whisper, ""), (whisper, "amh"), (mms, ""), (mms, "amharic")):
        with pytest.raises(UserError, match="does not know|has no language") as caught:
            HubTranscriber.load(folder, CPU, "x-own", called)
        assert "(--recogniser-language; on the page: Recogniser language)" in caught.value.hint
        assert "(--recogniser)" in caught.value.hint


def test_a_recogniser_that_was_damaged_since_is_named(tmp_path: Path, workspace: Workspace) -> None:
    folder = write_ctc(workspace.recognisers / "some--ctc")
    files = {path.name: ExpectedFile(path.stat().st_size) for path in folder.iterdir()}
    write_record(folder / MODEL_RECORD, ModelRecord("recogniser", "some/ctc", "some/ctc", "1" * 40, "main", files))
    assert recognisers.ensure_recogniser("some/ctc", "main", (), workspace, Recorder()) == folder
    for name, content, fault in (("config.json", b"{", "config.json has 1 bytes"), ("vocab.json", None, "lacks vocab")):
        before = (folder / name).read_bytes()
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)
        with pytest.raises(UserError, match=fault) as caught:
            recognisers.ensure_recogniser("some/ctc", "main", (), workspace, Recorder())
        assert f"Delete {folder}" in caught.value.hint
        assert "(--recogniser)" in caught.value.hint
        (folder / name).write_bytes(before)


def test_options_that_no_recording_can_meet_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"max_clip_s: clips of 9 to 4 s cannot be cut .* here 19"):
        parse_options(SegmentOptions, {**NAMED, "source": "a.wav", "min_clip_s": 9, "max_clip_s": 4})
    with pytest.raises(UserError, match="max_clip_s: clips of 8 to 15 s cannot be cut"):
        parse_options(AlignOptions, {**NAMED, "source": "a.wav", "min_clip_s": 8})
    for value in ("", "demo", "hub:some/set", "segments:talks"):
        with pytest.raises(UserError) as caught:
            parse_options(SegmentOptions, {**NAMED, "source": value})
        assert "give a recording, a film, a folder of them" in caught.value.message
        assert "OWNER/NAME" not in caught.value.message
    assert SegmentOptions(source="https://some.where/talk.mp3", **NAMED).source == "https://some.where/talk.mp3"


def test_what_is_no_recogniser_is_refused(tmp_path: Path, workspace: Workspace, served: LoopbackHub) -> None:
    served.add("some/ggml", {"config.json": b"{}", "ggml.gguf": b"x"})
    with pytest.raises(UserError, match="lacks weights"):
        recognisers.ensure_recogniser("some/ggml", "main", (), workspace, Recorder(), Hub(served.url), QUICK)
    with pytest.raises(UserError, match="holds no recogniser"):
        recognisers.ensure_recogniser(str(tmp_path), "main", (), workspace, Recorder())
    with pytest.raises(UserError, match="names no recogniser"):
        parse_options(TranscribeOptions, {"recogniser": "whisper"})
    assert TranscribeOptions(recogniser="hub:openai/whisper-tiny").recogniser == "openai/whisper-tiny"
    assert TranscribeOptions(recogniser="built-in").recogniser == "built-in"


def test_the_script_decides_how_a_word_is_spelled() -> None:
    capitals = {letter.upper(): number for number, letter in enumerate(LETTERS, 1)}
    assert Speller.of(capitals, "some text").encode("Añb") == [1, 14, 2]
    assert Speller.of({"ሰ": 1, "ላ": 2}, "ሰላ").encode("«ሰላ»") == [1, 2]
