"""Sentences against the golden cases of sentencex and pySBD, words against ICU, and UDHR paragraphs that stay whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import pytest
from chatterbox_text import paragraphs
from icu4py.breakers import WordBreaker

from data.text_chunking import split_sentences, split_text

GOLDEN = Path(__file__).parents[1] / "reference" / "sentences" / "golden.jsonl"
TEXTS = paragraphs()


def letters(text: str) -> str:
    return "".join(text.split())


def ends(sentences: Sequence[str]) -> set[int]:
    """Where sentences end, counted in letters."""
    return set(accumulate(len(letters(sentence)) for sentence in sentences))


def test_golden_cases_of_sentencex_and_pysbd() -> None:
    """Before: 296 of 600 with 402 false ends; sentencex alone: 567, 29. Some pairs of cases contradict each other."""
    cases = [json.loads(line) for line in GOLDEN.read_text("utf-8").splitlines()]
    right = false_ends = 0
    for case in cases:
        found = split_sentences(case["text"], language=case["language"])
        right += found == case["sentences"]
        false_ends += len(ends(found) - ends(case["sentences"]))
        assert letters("".join(found)) == letters(case["text"])
    assert len(cases) == 600
    assert right >= 566  # 690 of 732, as a share
    assert false_ends < 20


@pytest.mark.parametrize(("language", "text"), [
    ("de", "Was folgt aus der Abstimmung vom 12. Juni für uns?"), ("de", "Es gibt z. B. Äpfel, d. h. Obst."),
    ("da", "Der er f. eks. Danmark i dag."), ("no", "Vi har f. eks. Norge og bl.a. Oslo kl. 5 i dag."),
    ("en", "At 5 p.m. he left."), ("it", "Ho visto il sig. Rossi ieri."), ("ru", "Он живёт на ул. Мира в доме 5."),
    ("sv", "T.ex. Sverige och bl.a. Norge."), ("tr", "Ali vb. Kişiler geldi."), ("am", "አቶ አ. ከበደ መጣ።"),
    ("ti", "ኣይተ ገ. ሃይለ መጺኡ።"),
    ("hi", "डॉ. राम आए।"), ("fi", "Hän tuli 5. kesäkuuta."), ("el", "Το κόστος ήταν περίπου 5 π.μ. σήμερα."),
])
def test_what_is_one_sentence_stays_one(language: str, text: str) -> None:
    assert split_sentences(text, language=language) == [text]


@pytest.mark.parametrize(("language", "sentences"), [
    ("am", ["ሰላም፡፡", "ደህና ነህ።", "እሺ::", "አዎ፨", "ምን፧", "አለ!"]), ("ti", ["ሰላም፡፡", "ከመይ ኣለኻ፧"]),
    ("el", ["Τι κάνεις;", "Καλά.", "Εσύ;", "Ναι."]), ("hy", ["Բարեւ։", "Ինչպես ես:", "Լավ։"]),
    ("zh", ["我们明天一起去看《摔跤吧！爸爸》好吗？", "好！"]), ("km", ["សួស្តី។", "អរគុណ។"]),
])
def test_ends_of_sentences_in_their_script(language: str, sentences: list[str]) -> None:
    more = "።፧፨" if language in ("am", "ti") else ""
    assert split_sentences(" ".join(sentences), more, language) == sentences


def test_a_long_quotation_is_cut_at_its_sentences() -> None:
    text = "“" + " ".join(f"This is sentence number {number} of it." for number in range(8)) + "”"
    assert split_sentences(text, language="en") == [text]
    assert {piece.boundary for piece in split_text(text, 60, len, language="en")} == {"sentence"}


@pytest.mark.parametrize("language", sorted(TEXTS))
def test_nothing_is_lost_and_no_cut_is_within_a_word_of_icu(language: str) -> None:
    for text in (" ".join(paragraph.split()) for paragraph in TEXTS[language][:12]):
        edges, place = {0, *accumulate(map(len, WordBreaker(text, "en")))}, 0
        pieces = [piece.text for piece in split_text(text, 30, len, 400, language=language)]
        assert letters("".join(pieces)) == letters(text)
        for piece in pieces:
            start = text.index(piece, place)
            place = start + len(piece)
            assert {start, place} <= edges, piece
