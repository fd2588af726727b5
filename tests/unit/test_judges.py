"""A recogniser of one's choice judges a new language, for a family without a judge of its own too."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from config.errors import UserError
from config.schema import TrainOptions
from core.segments.recogniser import Heard
from core.speech import judges
from core.speech.judges import RecogniserJudge
from core.workspace import Workspace
from models.base import Verdict


class Parrot:
    """Hears what it is told to, and keeps what it was given."""

    sample_rate = 16_000

    def __init__(self, text: str) -> None:
        self.text, self.given = text, list[np.ndarray]()

    def transcribe(self, waveforms: list[np.ndarray]) -> list[Heard]:
        self.given += waveforms
        return [Heard(self.text, 1.0) for _ in waveforms]


@pytest.mark.parametrize(("wanted", "heard", "edits"), [
    ("abc", "abc", 0), ("abc", "", 3), ("", "ab", 2), ("kitten", "sitting", 3), ("abc", "axbxc", 2),
])
def test_edits_are_counted(wanted: str, heard: str, edits: int) -> None:
    assert Verdict.of(wanted, heard).edits == edits


@pytest.mark.parametrize(("text", "heard", "error"), [
    ("ሰላም፣ ዓለም።", "ሰላም ዓለም", 0.0), ("Straße 12!", "STRASSE 12", 0.0), ("ሰላም", "ሰለም", 1 / 3), ("ሰላም", "", 1.0),
    ("नमस्ते", "नमसते", 1 / 6),
])
def test_only_letters_are_compared(text: str, heard: str, error: float) -> None:
    found = RecogniserJudge(Parrot(heard), "am").verdict(torch.zeros(1600), 16_000, text, "am")
    assert found.error == pytest.approx(error)


def test_sound_comes_at_the_recognisers_rate() -> None:
    parrot = Parrot("x")
    RecogniserJudge(parrot, "am").verdict(torch.randn(24_000), 24_000, "x", "am")
    assert [len(one) for one in parrot.given] == [16_000]


def test_the_models_own_judge_keeps_its_languages(tmp_path: Path) -> None:
    class Own:
        languages = ("en", "am")

        def verdict(self, waveform: torch.Tensor, sample_rate: int, text: str, language: str) -> Verdict:
            return Verdict.of("own", language)

    both = judges._Both(RecogniserJudge(Parrot("ሰላም"), "am"), Own())
    assert both.languages == ("am", "en")
    assert both.verdict(torch.zeros(9), 16_000, "ሰላም", "am").error == 0.0
    assert both.verdict(torch.zeros(9), 16_000, "hello", "en").heard == "en"


def test_nobody_takes_the_place_of_a_recogniser_that_is_gone() -> None:
    class Own:
        languages = ("en", "am")

        def verdict(self, waveform: torch.Tensor, sample_rate: int, text: str, language: str) -> Verdict:
            return Verdict.of("own", language)

    left = judges.Without(Own(), "am", "it is gone")
    assert left.languages == ("en",)
    assert left.verdict(torch.zeros(9), 16_000, "hello", "en").heard == "en"
    assert judges.Without(None, "am", "it is gone").languages == ()
    assert [judges.unmeasured(left, code) for code in ("am", "en")] == ["it is gone", ""]
    assert judges.unmeasured(Own(), "am") == ""


@pytest.mark.parametrize(("judge", "said"), [
    ("built-in", "the judge of its training, cannot be loaded: gone. Get the built-in model"),
    ("me/ear", r"the judge of its training, is not there any more \(.*me--ear\)\. Fetch it anew .* --judge me/ear "
               "--judge-language amh;"),
    ("/no/such/ear", r"ear, .* is not there any more \(/no/such/ear\)\. Put a whole recogniser into /no"),
])
def test_a_warning_names_the_way_out(workspace: Workspace, judge: str, said: str) -> None:
    class Family:
        def judge(self, folder: Path) -> None:
            return None

    class FrontEnd:
        languages = ("en", "am")

        def is_new(self, language: str) -> bool:
            return language == "am"

    model: Any = SimpleNamespace(family=Family(), base_folder=Path(), front_end=FrontEnd())
    told: list[str] = []
    left = judges.without(workspace, model, told.append, TrainOptions(judge=judge, judge_language="amh"),
                          UserError("gone.", ""))
    assert re.match(f"Amharic is not measured: the recogniser .*{said}", told[0])
    assert "/no" not in left.reason
    assert left.languages == ()
