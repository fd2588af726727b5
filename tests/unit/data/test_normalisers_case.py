"""Orthographies whose capitals are letters of their own: a new language keeps its case if its texts show that."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.errors import UserError
from core import tokenizer
from core.jobs.events import WarningRaised
from core.model import loading
from core.workspace import Workspace
from data.front_end import FrontEnd
from data.normalisers import CASED, NORMALISERS, dropped, for_other_language, measure_case, normalise
from models.indextts2.family import base_front_end
from tests.unit.chatterbox_text import forget_tools, multilingual, paragraphs, remove_packages
from tests.unit.core.test_tokenizer import options, write
from tests.unit.data.languages.test_indextts2_normaliser import PIECES, REFERENCE
from tests.unit.small_data import Recorder, base

# In Ibibio's ASCII spelling capitals are letters: N is ŋ, O is ɔ.
IBIBIO = ("ami bON idiok", "owo bon utom", "mkpOn edi dO", "ebOk bON ami", "owo dON ufOk", "ayin bon mme bON")
NAMES = ("McDonald walked to the old house by the sea and came back with iPhone in hand", "nothing else is here to see",
         *(f"the {word} man came home in the evening with his brother and his sister" for word in "abcdefghij"))


@dataclass
class OneFrontEnd:
    """What the tokenizer asks of a family."""

    base: FrontEnd

    def load_front_end(self, folder: Path) -> FrontEnd:
        return self.base


@pytest.fixture(params=["words", "chatterbox", "indextts2"])
def ready(request: pytest.FixtureRequest, workspace: Workspace, tmp_path: Path,
          monkeypatch: pytest.MonkeyPatch) -> FrontEnd:
    """The front-end of a base of each style; the workspace has a model and Ibibio texts."""
    folder = tmp_path / "model"
    folder.mkdir()
    remove_packages(monkeypatch)
    front_end = (base() if request.param == "words" else multilingual(folder) if request.param == "chatterbox"
                 else base_front_end(REFERENCE, PIECES + 1))
    monkeypatch.setattr(loading, "family_named", lambda name: OneFrontEnd(front_end))
    (workspace.models / "tiny").mkdir(parents=True, exist_ok=True)
    write(workspace, "ibibio", "ibb", IBIBIO)
    write(workspace, "names", "so", NAMES)
    yield front_end
    forget_tools()


def ids(front_end: FrontEnd, text: str, language: str) -> list[int]:
    return [int(number) for number in front_end.encode(text, language)]


def made(workspace: Workspace, dataset: str, **more: object) -> tuple[FrontEnd, str]:
    """The tokenizer of a dataset, and what its job said."""
    recorder = Recorder()
    name = f"new-{dataset}-{more.get('case', 'auto')}"
    tokenizer.run(options(dataset, name=name).model_copy(update=more), workspace, recorder)
    said = [event.message for event in recorder.events if isinstance(event, WarningRaised)]
    return FrontEnd.load(workspace.tokenizer(name)), "\n".join(said)


def test_the_texts_decide_whether_case_is_kept(ready: FrontEnd, workspace: Workspace) -> None:
    kept, said = made(workspace, "ibibio")
    assert kept.normaliser_for("ibb").endswith(CASED)
    assert ids(kept, "bON", "ibb") != ids(kept, "bon", "ibb")
    assert not kept.unknown_characters("bON mkpOn", "ibb")
    assert ("published programs of this family fold" in said) == (ready.style != "words")
    names, said = made(workspace, "names")
    assert not names.normaliser_for("so").endswith(CASED)
    assert ids(names, "McDonald", "so") == ids(names, "mcdonald", "so")
    assert "case" not in said


def test_a_person_decides_otherwise(ready: FrontEnd, workspace: Workspace) -> None:
    folded, said = made(workspace, "ibibio", case="fold")
    assert ids(folded, "bON", "ibb") == ids(folded, "bon", "ibb")
    assert "case is folded as chosen: 'bON' is read as 'bon'" in said
    kept, _ = made(workspace, "names", case="keep")
    assert ids(kept, "McDonald", "so") != ids(kept, "mcdonald", "so")


def test_base_languages_keep_their_ids_and_letters_their_rows(ready: FrontEnd, workspace: Workspace) -> None:
    kept, _ = made(workspace, "ibibio")
    language = next(iter(ready.by_code))
    assert ids(kept, "the quick fox", language) == ids(ready, "the quick fox", language)
    # A small letter has the row that the base has for it, and a capital within is a row of its own.
    small, capital = (ids(kept, text, "ibb") for text in ("bon", "bON"))
    assert all(row < ready.size for row in small[-3:] if row not in capital)
    assert any(row >= ready.size for row in capital)


@pytest.mark.parametrize(("texts", "within", "pairs", "is_spelling"), [
    (IBIBIO, 8, 2, True), (NAMES, 2, 0, False), (("NATO AND THE EU",), 0, 0, False), ((), 0, 0, False),
    (("iPhone iphone " * 4,), 4, 4, False), (("aB",) * 4, 4, 0, False), (("aB",) * 5, 5, 0, True),
    (("aB " + "word " * 60,) * 9, 9, 0, False), (("e\u0301N",) * 5, 5, 0, True)])
def test_what_is_measured(texts: tuple[str, ...], within: int, pairs: int, is_spelling: bool) -> None:
    case = measure_case(texts)
    assert (case.within, case.pairs, case.is_spelling) == (within, pairs, is_spelling)


@given(st.text("abON' .,?-ŋŊ1éÉ", max_size=40))
def test_a_cased_normaliser_differs_in_case_alone(text: str) -> None:
    for name in NORMALISERS:
        if not name.endswith(CASED):
            continue
        cased, plain = normalise(text, name), normalise(text, name.removesuffix(CASED))
        assert unicodedata.normalize("NFKD", cased).lower() == unicodedata.normalize("NFKD", plain).lower()
        assert dropped(text.lower(), name) == dropped(text.lower(), name.removesuffix(CASED))


def test_names_of_cased_normalisers() -> None:
    assert normalise("ami bON, owo", "latin-cased") == "ami bON owo"
    assert normalise("ami bON, owo", "chatterbox-new-latin-cased") == "ami bON, owo."
    assert normalise("ami bON, owo", "indextts2-new-latin-cased") == "AMI Bon, OWO."
    assert normalise("ami bON, owo", "indextts25-new-latin-cased") == "ami bON, owo."
    assert for_other_language("latin-cased", "am") == "ethiopic-cased"
    assert for_other_language("chatterbox-new-latin-cased", "am") == "chatterbox-new-ethiopic-cased"
    for name in ("chatterbox-cased", "indextts2-cased", "nothing-cased", "-cased", "latin-cased-cased"):
        with pytest.raises(UserError, match="There is no text normaliser"):
            normalise("a", name)


def test_no_language_keeps_its_case_for_its_names() -> None:
    """Sentences of the base languages, and of 40 languages where their texts are at hand."""
    for code, sentences in paragraphs().items():
        assert not measure_case(sentences).is_spelling, code
