"""The texts of the demo dataset: what is held out is not trained on."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.dev.tiny import sentences

DEMO = Path(__file__).resolve().parents[5] / "data" / "demo" / "am"


def rows(split: str) -> list[dict[str, str]]:
    lines = (DEMO / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["split"] == split]


def test_no_training_text_is_held_out_or_stands_beside_a_held_out_one() -> None:
    train, held_out = rows("train"), rows("held_out")
    texts = {row["text"] for row in train}
    assert len(texts) == len(train)
    assert not texts & {row["text"] for row in held_out}
    udhr = Path(sentences.__file__).with_name("udhr.jsonl").read_text(encoding="utf-8").splitlines()
    amharic = next(row for row in map(json.loads, udhr) if row["language"] == "am")
    paragraphs = [f" {sentences.normalise(paragraph, 'am')} " for paragraph in amharic["paragraphs"]]
    windows = [f" {row['text']} " for row in held_out if row["id"].startswith("running")]
    apart = [p for p in paragraphs if any(window in p for window in windows)]
    assert len(windows) == 40
    assert len(apart) == 7
    elsewhere = " ".join(p for p in paragraphs if p not in apart)
    assert [text for text in texts if len(text.split()) > 2 and f" {text} " not in elsewhere
            and any(f" {text} " in p for p in apart)] == []


def test_every_syllable_of_the_held_out_texts_is_trained_on() -> None:
    trained = sentences.coverage(row["text"] for row in rows("train"))
    needed = sentences.coverage(row["text"] for row in rows("held_out"))
    assert {syllable: trained[syllable] for syllable in needed if trained[syllable] < sentences.MIN_OCCURRENCES} == {}
