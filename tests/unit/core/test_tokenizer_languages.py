"""A new language on Chatterbox: its marks become the base's own, nothing spoken is lost, and the base stays."""

import random
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from core import tokenizer
from core.model import loading
from core.model.row_initialisation import initial_rows
from core.text.tokenizer_report import TokenizerReport
from core.workspace import Workspace
from data import text_chunking
from data.front_end import FrontEnd
from data.languages import words
from data.languages.words import script_kind
from data.normalisers import dropped, for_language, is_mark, normalise
from models.chatterbox.front_end import LANGUAGES, base_front_end
from tests.unit.chatterbox_text import (
    ROWS,
    english_file,
    forget_tools,
    install_stand_ins,
    multilingual,
    paragraphs,
    remove_packages,
)
from tests.unit.core.test_tokenizer import options, write
from tests.unit.small_data import Recorder

TEXTS = paragraphs()
NEW = sorted(set(TEXTS) - set(LANGUAGES))
AMHARIC = (*TEXTS["am"][:12], "ሰላም፡ለሁሉም። እንዴት፣ነህ፤ወንድሜ፧ ደህና፡፡ እሺ::")


@pytest.fixture(autouse=True)
def tools() -> Iterator[None]:
    yield
    forget_tools()


@dataclass
class ChatterboxText:
    """What the tokenizer asks of a family."""

    base: FrontEnd

    def load_front_end(self, folder: Path) -> FrontEnd:
        return self.base


@pytest.fixture
def base(tmp_path: Path) -> FrontEnd:
    folder = tmp_path / "model"
    folder.mkdir()
    return multilingual(folder)


@pytest.fixture
def extended(base: FrontEnd, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> FrontEnd:
    """The base with Amharic, made by the tokenizer job without any optional package."""
    remove_packages(monkeypatch)
    monkeypatch.setattr(loading, "family_named", lambda name: ChatterboxText(base))
    (workspace.models / "tiny").mkdir(parents=True, exist_ok=True)
    write(workspace, "amharic", "am", AMHARIC)
    tokenizer.run(options("amharic", merges=40), workspace, Recorder())
    return FrontEnd.load(workspace.tokenizer("new"))


@pytest.mark.parametrize(("text", "language", "wanted"), [
    ("ሰላም፡ለሁሉም።እንዴት፣ነህ፤ወንድሜ፧", "am", "ሰላም ለሁሉም. እንዴት, ነህ, ወንድሜ?"),
    ("ደህና፡፡ ዋጋው 3.5 ነው:: “እሺ” አለ", "ti", "ደህና. ዋጋው 3.5 ነው. እሺ አለ."),
    ("یہ ٹھیک ہے۔ کیا؟ ہاں، بالکل", "ur", "یہ ٹھیک ہے. کیا? ہاں, بالکل."),
    ("می‌روم؛ خوب", "fa", "می\u200cروم, خوب."),
    ("এটা ঠিক। কি", "bn", unicodedata.normalize("NFD", "এটা ঠিক. কি.")),
    ("ဟုတ်တယ်။ ၏", "my", "ဟုတ်တယ်. ၏."),
    ("Ինչո՞ւ։ Բարեւ", "hy", "ինչու. բարեւ."),
    ("Wait… what — really ?!  (Yes) ", "so", "wait, what, really? yes,"),
    ("lo' ‘hal’ go'aan", "so", "lo' hal go'aan."),
    ("well-known - 10:30, 1,000.5; example.com", "so", "well-known, 10,30, 1,000.5, example.com."),
    ("...Hello", "so", "hello."), ("- a -", "so", "a,"), ("ＡＢ，３．５！", "so", "ab, 3.5!"),
    ("Được", "vi", unicodedata.normalize("NFD", "được.")),
    ("ISPARTA İyi", "az", "ısparta iyi."),
    ("?!", "am", ""), ("።", "am", ""), ("", "am", ""),
])
def test_marks_become_those_of_the_base(text: str, language: str, wanted: str) -> None:
    assert normalise(text, for_language(language, "chatterbox")) == wanted


def test_every_sentence_end_and_pause_that_is_known_is_mapped() -> None:
    marks = text_chunking._STOPS + text_chunking._SPACED_STOPS + text_chunking._MARKS + text_chunking._SPACED_MARKS
    for mark in marks:
        written = normalise(f"a{mark} b", "chatterbox-new-generic")
        assert set(written) <= set("ab .,?!-"), f"{mark} (U+{ord(mark):04X}) gives {written!r}"
    for mark in text_chunking._STOPS + text_chunking._SPACED_STOPS.replace("…", ""):
        assert normalise(f"a{mark}", "chatterbox-new-generic")[-1] in ".?!", mark


@pytest.mark.parametrize("language", NEW)
def test_nothing_spoken_is_lost(language: str) -> None:
    name = for_language(language, "chatterbox")
    for text in TEXTS[language]:
        written = normalise(text, name)
        assert letters(written) == letters(unicodedata.normalize("NFKD", text.lower()))
        assert written[-1] in ".?!,"
        assert set(filter(is_mark, written)) <= set(words.KEPT_MARKS)
        assert unicodedata.is_normalized("NFKD", written)
        assert normalise(written, name) == written


def letters(text: str) -> list[str]:
    return [character for character in text if unicodedata.category(character)[0] in "LMN" or character in "၌၍၎၏"]


def test_normalised_text_is_normal() -> None:
    generator = random.Random(5)
    pool = "ab c ሀ።፣፡::…‘’'“”-—–.,?!;()3５，é ıİ\u200c\u0301՞։ \n\x1f"
    for _ in range(3000):
        text = "".join(generator.choice(pool) for _ in range(generator.randrange(1, 24)))
        for kind in ("generic", "ethiopic", "turkic", "latin"):
            once = normalise(text, f"chatterbox-new-{kind}")
            assert normalise(once, f"chatterbox-new-{kind}") == once, repr(text)


def test_long_runs_of_marks_are_read_once() -> None:
    text = "a" + ".,?! " * 20_000 + "b" + "." * 50_000 + " -" * 20_000 + " '" * 20_000 + "c"
    assert normalise(text, "chatterbox-new-generic").endswith("c.")


def test_dropped_names_what_is_left_out_and_no_mark_that_is_replaced() -> None:
    assert dropped("“ሰላም”፡ለሁሉም። (እሺ)", for_language("am", "chatterbox")) == {"“": 1, "”": 1}


def test_new_language_reuses_the_marks_of_the_base(extended: FrontEnd, base: FrontEnd) -> None:
    added = {token.text for token in extended.added_tokens()}
    assert "[am]" in added
    assert not any(is_mark(character) for text in added - {"[am]"} for character in text)
    ids = extended.encode("ሰላም፣ እንዴት ነህ፧", "am").tolist()
    known = base._vocabulary
    assert ids[:2] == [known["[START]"], extended.tag_id("am")]
    assert ids[-2:] == [known["?"], known["[STOP]"]]
    assert known[","] in ids
    assert ids.count(known["[SPACE]"]) == 2


def test_new_language_is_covered_and_unknown_characters_are_named(extended: FrontEnd) -> None:
    for text in AMHARIC:
        assert extended.unknown_characters(text, "am") == ()
        assert extended.encode(text, "am").max() < extended.size
    assert extended.unknown_characters("ሰላም ጷ", "am") == ("ጷ",)


def test_base_languages_keep_their_ids(extended: FrontEnd, base: FrontEnd, tmp_path: Path,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    install_stand_ins(monkeypatch, tmp_path)
    pytest.importorskip("pykakasi", reason="optional; the other languages are compared without it elsewhere")
    assert extended.base_languages == LANGUAGES
    for language in LANGUAGES:
        for text in TEXTS[language]:
            assert extended.body(text, language) == base.body(text, language)


def test_proof_says_what_it_lacked(extended: FrontEnd, workspace: Workspace) -> None:
    report = TokenizerReport.load(workspace.tokenizer("new"))
    assert report.unprepared == ("ja", "ru", "zh")
    assert report.base_unchanged
    assert report.unproven == ()
    assert report.normaliser == "chatterbox-new-ethiopic"
    assert report.unknown_rate == 0
    recorder = Recorder()
    tokenizer.run(options("amharic", merges=40), workspace, recorder)
    assert "ja was proven without what its text needs. Japanese text needs the package pykakasi" in recorder.warnings


def test_saved_extension_writes_as_before(extended: FrontEnd, tmp_path: Path) -> None:
    extended.save(tmp_path / "again")
    loaded = FrontEnd.load(tmp_path / "again")
    assert loaded.fingerprint == extended.fingerprint
    assert (loaded.style, loaded.normaliser_for("ti")) == ("chatterbox", "chatterbox-new-ethiopic")
    for text in AMHARIC:
        assert loaded.encode(text, "am").tolist() == extended.encode(text, "am").tolist()


@pytest.mark.parametrize("language", NEW)
def test_any_language_can_be_added(language: str, base: FrontEnd) -> None:
    name = base.normaliser_for(language)
    texts = [normalise(text, name) for text in TEXTS[language]]
    characters = sorted({character for text in texts for character in text} - {" "})
    new = base.extended(language, name, characters, [])
    assert name == f"chatterbox-new-{script_kind(language)}"
    for text in TEXTS[language]:
        assert new.unknown_characters(text, language) == ()
        assert new.encode(text, language)[1] == new.tag_id(language) >= base.size


def test_romanised_spelling_gives_new_rows_a_start(base: FrontEnd) -> None:
    extended = base.extended("am", base.normaliser_for("am"), ["ላ", "ሆ", "።"], [("ላ", "ሆ")])
    table = torch.randn(base.size, 8, generator=torch.Generator().manual_seed(1))
    made = initial_rows({"text_emb": table}, base, extended, "romanised", seed=0)
    known, rows = base._vocabulary, made.rows["text_emb"]
    tag, la, ho, _, word = rows
    spread = 0.1 * table.std(0)  # no row is left equal to another
    torch.testing.assert_close(la, table[[known["l"], known["a"]]].mean(0))
    assert ((ho - table[known["ho"]]).abs() < spread).all()  # a merge of the base, so one row of it
    torch.testing.assert_close(word, table[[known["l"], known["a"], known["ho"]]].mean(0))
    torch.testing.assert_close(tag, table[[known[f"[{code}]"] for code in LANGUAGES]].mean(0))
    assert made.tags == ("[am]",)
    assert made.fallen_back == ()


def test_base_without_tags_lends_its_mean_to_a_tag(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(english_file())
    english = base_front_end(tmp_path, ROWS)
    extended = english.extended("am", english.normaliser_for("am"), ["ሀ"], [])
    table = torch.randn(english.size, 8, generator=torch.Generator().manual_seed(1))
    made = initial_rows({"text_emb": table}, english, extended, "romanised", seed=0)
    assert (made.rows["text_emb"][0] - table.mean(0)).abs().max() < 0.5 * table.std()
    assert extended.encode("ሀ", "am").tolist()[:2] == [255, english.size]

