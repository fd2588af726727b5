"""20,000 characters in any language: nothing lost, no word cut, no piece too long, and no work done over and over."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.errors import UserError
from data.front_end import FrontEnd
from data.languages import verbalizer
from data.normalisers import normalise
from data.text_chunking import split_for_model, split_sentences, split_text
from models.chatterbox.front_end import LANGUAGES
from tests.unit.chatterbox_text import forget_tools, install_stand_ins, multilingual, paragraphs
from ui import job_views

TEXTS = paragraphs()
ADDED = ("am", "ti", "th", "my")
UNSPACED = ("zh", "ja", "th", "my")
LENGTH = 20_000  # characters
LIMIT, LONGEST = 200, 2048  # ids


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontEnd]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("model")
        install_stand_ins(patch, folder)
        yield multilingual(folder)
    forget_tools()


def long_text(language: str, without: str = "") -> str:
    text = "\n".join(TEXTS[language])
    text = "\n".join([text] * (LENGTH // len(text) + 1))[:LENGTH]
    return "".join(character for character in text if character not in without)


def front_end_for(language: str, base: FrontEnd) -> FrontEnd:
    if language in base.languages:
        return base
    name = base.normaliser_for(language)
    characters = sorted({character for text in TEXTS[language] for character in normalise(text, name)} - {" "})
    return base.extended(language, name, characters, [])


@pytest.mark.parametrize("language", [*LANGUAGES, *ADDED])
def test_long_text_is_whole_in_its_pieces(language: str, base: FrontEnd) -> None:
    if language == "ja":
        pytest.importorskip("pykakasi", reason="optional")
    front_end = front_end_for(language, base)
    known = "".join(
        character for character in long_text(language)
        if character.isspace() or not front_end.unknown_characters(f"a {character}", language)
    )
    assert len(known) > 0.85 * LENGTH
    pieces = split_for_model(known, language, front_end, LIMIT, LONGEST)
    assert "".join("".join(piece.text.split()) for piece in pieces) == "".join(known.split())
    assert max(len(front_end.encode(piece.text, language)) for piece in pieces) <= LIMIT
    if language not in UNSPACED:
        spoken = [word for piece in pieces for word in piece.text.replace("፡", " ").split()]
        assert spoken == known.replace("፡", " ").split()
    ends = [piece.boundary for piece in pieces]
    assert ends.count("sentence") >= len(split_sentences(known, language=language))


@pytest.mark.parametrize("language", [*LANGUAGES, *ADDED])
def test_text_is_measured_a_few_times_and_not_over_and_over(language: str) -> None:
    """Without any mark to go by, halves of halves are measured: each character about once for each halving."""
    text = " ".join(long_text(language, ".!?。።།।၊။،؛؟,、;:·፣፤፥፧…").split())
    measured = 0

    def count(part: str) -> int:
        nonlocal measured
        measured += len(part)
        return len(part)

    pieces = split_text(text, 100, count)
    assert max(len(piece.text) for piece in pieces) <= 100
    assert measured < 16 * LENGTH


@pytest.mark.parametrize("text", [
    "A. " * 30_000, "etc. " * 20_000, "J. K. " * 20_000, "1. " * 30_000, "\n \n" * 30_000, "( " * 40_000,
    "a.b" * 30_000, "… " * 30_000, "?» " * 20_000, ",\n" * 40_000, "Dr." * 40_000,
])
def test_odd_text_takes_no_forever(text: str) -> None:
    """Each of these was quadratic in one of the patterns, or could be: a minute instead of a moment."""
    pieces = split_sentences(text)
    assert "".join("".join(piece.split()) for piece in pieces) == "".join(text.split())


def test_characters_that_are_not_known_are_named_before_a_word_is_spoken(base: FrontEnd) -> None:
    with pytest.raises(UserError, match=r"'Then ሰ\.' has characters outside the vocabulary of 'en': ሰ"):
        split_for_model("First this. Then ሰ.", "en", base, 40, LONGEST)


@pytest.mark.parametrize(("text", "message"), [
    ("\U0001f642\U0001f642\U0001f642", r"The text is empty: '\U0001f642\U0001f642\U0001f642' has nothing to speak"),
    ("Здравствуйте", r"^'Здравствуйте', read as '[^З]+', has characters outside the vocabulary of 'am': "),
    ("ሰላም\n ሰላም ቀ", r"^'ሰላም ሰላም ቀ' has characters outside the vocabulary of 'am': ቀ"),
])
def test_what_cannot_be_spoken_is_quoted_as_it_was_written(base: FrontEnd, text: str, message: str) -> None:
    rules = verbalizer.checked_rules(verbalizer.rules_text("am"), "am")
    front_end = base.extended("am", base.normaliser_for("am"), ("ሰ", "ላ", "ም"), [], rules=rules)
    with pytest.raises(UserError, match=message) as caught:
        split_for_model(text, "am", front_end, 40, LONGEST)
    assert not {"leave_out", "unk"} & set(re.findall(r"\w+", job_views.on_page(caught.value.hint)))


@pytest.mark.parametrize("text", ["", " ", "!", "... \n\n ?"])
def test_text_without_words_is_refused(text: str, base: FrontEnd) -> None:
    with pytest.raises(UserError, match="The text is empty"):
        split_for_model(text, "en", base, 40, LONGEST)


def test_marks_alone_are_no_piece(base: FrontEnd) -> None:
    assert [piece.text for piece in split_for_model("Go. ! … Stop.", "en", base, 40, LONGEST)] == ["Go.", "Stop."]


def test_word_that_is_too_long_is_named(base: FrontEnd) -> None:
    with pytest.raises(UserError, match="the model speaks at most 60 at once"):
        split_for_model("a " + "z" * 80, "en", base, 40, 60)


def test_thai_is_cut_at_a_space_rather_than_between_letters() -> None:
    text = "กฎบัตรถึงความเชื่อมั่น ในสิทธิมนุษยชนอันเป็นหลักมูลในเกียรติศักดิ์และคุณค่า"
    assert [piece.text for piece in split_text(text, 60, len)] == text.split(" ")


def test_burmese_is_not_cut_before_a_final_consonant(tmp_path: Path) -> None:
    text = "".join(TEXTS["my"][3].split())[:120].replace("၊", "")
    for limit in range(20, 60):
        assert not [piece.text for piece in split_text(text, limit, len) if piece.text[1:2] in ("\u103a", "\u1039")]
