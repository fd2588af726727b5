"""A recogniser of the user's choice scores a new language, also for a family without one of its own."""

from __future__ import annotations

import re
import shlex
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub.utils import filter_repo_objects

from config.errors import UserError
from core.library import dataset_recognisers
from core.library.dataset_recognisers import DatasetRecogniserRecord, HeldOutCER
from core.library.records import MODEL_RECORD, ExportRecord, ModelRecord, Origin, write_record
from core.model import loading, tensor_files
from core.sources import recognisers
from core.speech import scoring
from core.speech.scoring import TranscribingRecogniser
from core.speech.transcription import Transcript, recogniser_language_names
from core.training import setup
from core.workspace import Workspace
from data import manifest
from data.durable_files import hash_file, write_json
from models.base import RecognitionScore
from models.phonetic_encoder.ctc_head import CTCHead, CTCHeadConfig
from tests.unit import tiny_recognisers
from tests.unit.small_data import Recorder
from tests.worlds import Listener, train_options


class Parrot:
    """Hears what it is told to, and keeps what it was given."""

    sample_rate = 16_000

    def __init__(self, text: str) -> None:
        self.text, self.given = text, list[np.ndarray]()

    def transcribe(self, waveforms: list[np.ndarray]) -> list[Transcript]:
        self.given += waveforms
        return [Transcript(self.text, 1.0) for _ in waveforms]


@pytest.mark.parametrize(("wanted", "heard", "edits"), [
    ("abc", "abc", 0), ("abc", "", 3), ("", "ab", 2), ("kitten", "sitting", 3), ("abc", "axbxc", 2),
])
def test_edits_are_counted(wanted: str, heard: str, edits: int) -> None:
    assert RecognitionScore.of(wanted, heard).edits == edits


@pytest.mark.parametrize(("text", "heard", "error"), [
    ("ሰላም፣ ዓለም።", "ሰላም ዓለም", 0.0), ("Straße 12!", "STRASSE 12", 0.0), ("ሰላም", "ሰለም", 1 / 3), ("ሰላም", "", 1.0),
    ("नमस्ते", "नमसते", 1 / 6),
])
def test_only_letters_are_compared(text: str, heard: str, error: float) -> None:
    found = TranscribingRecogniser(Parrot(heard), "am").score(torch.zeros(1600), 16_000, text, "am")
    assert found.error == pytest.approx(error)


def test_sound_comes_at_the_recognisers_rate() -> None:
    parrot = Parrot("x")
    TranscribingRecogniser(parrot, "am").score(torch.randn(24_000), 24_000, "x", "am")
    assert [len(one) for one in parrot.given] == [16_000]


def test_the_models_own_recogniser_keeps_its_languages(tmp_path: Path) -> None:
    class Own:
        languages = ("en", "am")

        def score(self, waveform: torch.Tensor, sample_rate: int, text: str, language: str) -> RecognitionScore:
            return RecognitionScore.of("own", language)

    both = scoring.CompositeRecogniser(TranscribingRecogniser(Parrot("ሰላም"), "am"), Own())
    assert both.languages == ("am", "en")
    assert both.score(torch.zeros(9), 16_000, "ሰላም", "am").error == 0.0
    assert both.score(torch.zeros(9), 16_000, "hello", "en").transcript == "en"


def test_nobody_takes_the_place_of_a_recogniser_that_is_gone() -> None:
    class Own:
        languages = ("en", "am")

        def score(self, waveform: torch.Tensor, sample_rate: int, text: str, language: str) -> RecognitionScore:
            return RecognitionScore.of("own", language)

    left = scoring.UnavailableRecogniser(Own(), ("am",), "it is gone")
    assert left.languages == ("en",)
    assert left.score(torch.zeros(9), 16_000, "hello", "en").transcript == "en"
    assert scoring.UnavailableRecogniser(None, ("am",), "it is gone").languages == ()
    assert [scoring.unmeasured_reason(left, code) for code in ("am", "en")] == ["it is gone", ""]
    assert scoring.unmeasured_reason(Own(), "am") == ""


def amharic_model(ref: str = "run:one") -> Any:
    """A model that was trained on Amharic, and whose family has no recogniser."""
    front_end = SimpleNamespace(languages=("en", "am"), is_new=lambda language: language == "am")
    family = SimpleNamespace(load_recogniser=lambda folder: None)
    return SimpleNamespace(ref=ref, family=family, base_folder=Path(), front_end=front_end,
                           new_languages=("am",))


def of_export(recogniser: str, language: str = "") -> ExportRecord:
    origin = Origin("tiny", "tiny", "b", 5, 6, "f")
    return ExportRecord("given", "one", 8, "gated", "demo", ("am",), origin, {}, {}, recogniser=recogniser,
                        recogniser_language=language)


@pytest.mark.parametrize(("choice", "said"), [
    (scoring.NamedRecogniser("built-in", extension="e", dataset="d"),
     "of its training cannot be loaded: gone. Get the built-in model"),
    (scoring.NamedRecogniser("me/ear", "amh", extension="e", dataset="d"),
     r"of its training is not there any more \(.*me--ear\)\. Fetch it again .* "
     "--dataset d --extension e --recogniser me/ear --recogniser-language amh;"),
    (scoring.NamedRecogniser("/no/such/ear", extension="e", dataset="d"),
     r"ear of its training is not there any more \(/no/such/ear\)\. Put a whole recogniser into /no"),
    (of_export("built-in"), "of its training cannot be loaded: gone. Get the built-in model"),
    (of_export("me/ear"), r"me/ear of its training is not here \(.*me--ear\)\. Fetch it \(hf download "
                          r"me/ear .*'adapter\.amh\*\.safetensors' .* --local-dir /.*/recognisers/me--ear\), then"),
    (of_export("me/ear", "own"), r".*'adapter\.own\*\.safetensors' "),
    (of_export("ear"), r"ear of its training is on the machine that it was trained on\. "
                       r"Copy it into /.*/recognisers/ear, then do this again\.$"),
])
def test_a_warning_names_the_way_out(workspace: Workspace, choice: scoring.RecogniserChoice, said: str) -> None:
    told: list[str] = []
    left = scoring.replace_unavailable(workspace, amharic_model(), told.append, choice, UserError("gone.", ""))
    assert re.match(f"Amharic is not measured: the recogniser .*{said}", told[0])
    assert isinstance(choice, scoring.NamedRecogniser) or "preflight" not in told[0]
    assert "/no" not in left.reason
    assert left.languages == ()


@pytest.mark.parametrize("other_revision", [False, True])
def test_what_was_fetched_by_hand_is_the_recogniser(workspace: Workspace, other_revision: bool) -> None:
    """As `hf download` leaves it: without a record."""
    if other_revision:
        first = tiny_recognisers.write_ctc(workspace.recognisers / "me--ear")
        write_record(first / MODEL_RECORD, ModelRecord("recogniser", "me/ear", "me/ear", "1" * 40, "v1", {}))
    told: list[str] = []
    scoring.replace_unavailable(workspace, amharic_model(), told.append, of_export("me/ear"), UserError("gone.", ""))
    command = shlex.split(told[0][told[0].index("hf download"):told[0].rindex("), then")])
    folder = Path(command[command.index("--local-dir") + 1])
    tiny_recognisers.write_ctc(folder, {"amh": tiny_recognisers.ETHIOPIC})
    assert recognisers.folder_of(workspace, "me/ear", "main") == folder
    recognisers.check(folder)
    assert recognisers.ensure_recogniser("me/ear", "main", recogniser_language_names("am"), workspace,
                                         Recorder()) == folder
    wanted = {path.name for path in folder.iterdir()} | {"pytorch_model-00001-of-00002.bin", "spiece.model"}
    others = {"adapter.eng.safetensors", "adapter.amh.bin", "onnx/model.onnx", "flax_model.msgpack", "README.md"}
    patterns = {option: [command[at + 1] for at, word in enumerate(command) if word == option]
                for option in ("--include", "--exclude")}
    taken = filter_repo_objects(sorted({*wanted, *others}), allow_patterns=patterns["--include"],
                                ignore_patterns=patterns["--exclude"])
    assert set(taken) == wanted


def give_dataset_a_recogniser(workspace: Workspace, edits: int, name: str = "demo-am") -> None:
    """A head that was never trained, with a record that states so many errors in 100 held-out letters."""
    folder, letters = dataset_recognisers.folder_of(workspace, name), tuple("abc")
    folder.mkdir(exist_ok=True)
    head = CTCHead(CTCHeadConfig(len(letters)))
    tensor_files.write(folder / dataset_recognisers.WEIGHTS, head.state_dict())
    (folder / dataset_recognisers.TEXTS).write_text("abc\n", encoding="utf-8")
    files = {file: hash_file(folder / file) for file in (dataset_recognisers.WEIGHTS, dataset_recognisers.TEXTS)}
    card = manifest.load_card(workspace.dataset(name))
    record = DatasetRecogniserRecord(name, card.fingerprint, "", files, letters, 700, 54.0, 0, 16.0, 300.0,
                                     {"am": HeldOutCER(40, 100, edits, 0.05, 0.2)})
    write_json(folder / dataset_recognisers.RECORD, asdict(record))


def test_the_recogniser_of_the_dataset_is_chosen_where_none_is_named(world: Workspace) -> None:
    options = train_options()
    assert scoring.choose(world, options).recogniser == ""

    give_dataset_a_recogniser(world, edits=11)

    assert scoring.choose(world, options).recogniser == "dataset:demo-am"
    independent = train_options(recogniser="openai/whisper-small")
    assert scoring.choose(world, independent).recogniser == "openai/whisper-small"


def test_a_recogniser_that_cannot_measure_is_not_chosen(world: Workspace) -> None:
    give_dataset_a_recogniser(world, edits=51)

    assert scoring.choose(world, train_options()).recogniser == ""
    model = loading.load_extension(world, "tiny-am", torch.device("cpu"))
    with pytest.raises(UserError, match="CER of 51%"):
        scoring.load_recogniser(world, model, scoring.NamedRecogniser("dataset:demo-am"))


def test_figures_name_the_recogniser_of_the_dataset_and_no_other(world: Workspace) -> None:
    give_dataset_a_recogniser(world, edits=11)
    model = loading.load_extension(world, "tiny-am", torch.device("cpu"))

    recogniser = scoring.load_recogniser(world, model, scoring.choose(world, train_options()))

    assert scoring.measured_by(recogniser, "am") == ("a recogniser trained on 54 minutes of this dataset (CER 11% on "
                                                     "held-out recordings)")
    assert scoring.measured_by(recogniser, "en") == ""
    own = scoring.load_recogniser(world, model, scoring.NamedRecogniser(""))
    assert scoring.measured_by(own, "am") == ""


def test_a_run_records_the_recogniser_of_its_dataset(world: Workspace) -> None:
    give_dataset_a_recogniser(world, edits=11)
    listener = Listener(world.runs / "first")

    record = setup.setup_run(train_options(), world, listener, torch.device("cpu")).record

    assert record.recogniser == "dataset:demo-am"
    assert "54 minutes of this dataset" in listener.of("plan")[0].lines[0]


def test_without_the_recogniser_of_its_dataset_a_language_is_not_measured(world: Workspace) -> None:
    """Another one does not take over, because the errors of two recognisers cannot be compared."""
    model = loading.load_extension(world, "tiny-am", torch.device("cpu"))
    warnings: list[str] = []

    unavailable = scoring.load_recogniser_or_warn(world, model, warnings.append,
                                                  scoring.NamedRecogniser("dataset:demo-am"))

    assert unavailable is not None
    assert "am" not in unavailable.languages
    assert "scripts recogniser --dataset demo-am" in warnings[0]
