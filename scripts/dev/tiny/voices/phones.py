"""Phones of recordings: one alphabet for all languages, so that a network learns sounds and not spellings.

A phone is a letter of the International Phonetic Alphabet without length, stress or tone. espeak-ng knows the phones of
its languages; Hausa and Twi are spelled nearly as they sound.
"""

from __future__ import annotations

import csv
import unicodedata
from pathlib import Path

from config.errors import UserError
from scripts.dev.tiny.espeak import Espeak

TABLE = "phones.csv"  # of a reader: name of the sound file, phones
LANGUAGES = {"asterisk-ru": "ru", "hausa-f": "ha", "hausa-m": "ha", "kokoro": "en-us", "twi-cv": "tw"}  # of readers
_SPELLINGS = {
    "ha": (("sh", "ʃ"), ("c", "tʃ"), ("j", "dʒ"), ("'y", "j"), ("ƴ", "j"), ("y", "j"), ("ƙ", "k")),
    "tw": (("ky", "tɕ"), ("gy", "dʑ"), ("hy", "ɕ"), ("ny", "ɲ"), ("tw", "tɕw"), ("dw", "dʑw"), ("y", "j")),
}
_SAME = str.maketrans({"g": "ɡ", "ᵻ": "ɪ", "ɚ": "ə", "ɝ": "ɜ", "ɐ": "a", "ɫ": "l"})


def phones_of_ipa(text: str) -> str:
    """The letters of a text in the International Phonetic Alphabet, without marks."""
    decomposed = unicodedata.normalize("NFD", text.lower())
    return "".join(letter for letter in decomposed if unicodedata.category(letter) in ("Ll", "Lo")).translate(_SAME)


def phones_of_text(text: str, language: str, espeak: Espeak) -> str:
    """The phones of a text; espeak-ng reads languages that are not in `_SPELLINGS`."""
    if language not in _SPELLINGS:
        return phones_of_ipa("".join(name for name, _ in espeak.say(text, language).phonemes))
    spelled = text.lower()
    for letters, phones in _SPELLINGS[language]:
        spelled = spelled.replace(letters, phones)
    return phones_of_ipa(spelled)


def transcribe(folder: Path, espeak: Espeak) -> None:
    """Write `phones.csv` of each reader in `folder` that has a `metadata.csv` and a language."""
    for table in sorted(folder.glob("*/metadata.csv")):
        target = table.parent / TABLE
        language = LANGUAGES.get(table.parent.name, LANGUAGES.get(table.parent.name.partition("+")[0], ""))
        if target.is_file() or not language:
            continue
        rows = []
        for line in table.read_text(encoding="utf-8-sig").splitlines():
            name, _, text = line.partition("|")
            # Digits are read in ways that the spelling does not show.
            if any(letter.isdigit() for letter in text) and language in _SPELLINGS:
                continue
            rows.append((Path(name).name, phones_of_text(text, language, espeak)))
        write_table(target, rows)


def alphabet_of(folder: Path) -> str:
    """All phones of the readers in `folder`."""
    tables = [read_table(path.parent) for path in sorted(folder.glob(f"*/{TABLE}"))]
    return "".join(sorted({phone for table in tables for phone in "".join(table.values())}))


def write_table(path: Path, rows: list[tuple[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


def read_table(folder: Path) -> dict[str, str]:
    """Phones by the name of the sound file; empty if the reader in `folder` has none."""
    path = folder / TABLE
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    wrong = next((row for row in rows if len(row) != 2), None)
    if wrong is not None:
        raise UserError(f"{path} has a row of {len(wrong)} fields; a file name and its phones are expected.",
                        "Delete the file, and run the stage `phones` again.")
    return dict(rows)
