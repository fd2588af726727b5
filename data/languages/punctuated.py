"""A new language on a model that reads punctuation: its marks become those that the base languages taught it.

Chatterbox has rows for `. , ? ! -` and the apostrophe, and took text in lower case and NFKD.
So whatever ends a sentence in any script becomes a full stop, and so on; a mark between
letters or digits (3.5, example.com) stays where it is. Quotes are not read aloud and go.
"""

from __future__ import annotations

import re
import unicodedata

from data.languages.words import LONE_APOSTROPHE, QUOTED, Kind, folded, spoken

KEPT = ".,?!-"
_GAP = "\x1f"  # white space where a script writes none; it goes again inside of a number
_STOPS = "።፨।॥。｡．︒។៕៖\u104b།༎։᠃᠉᙮꓿𑅁۔"
_QUESTIONS = "፧？؟⁇\u037e"
_COMMAS = "፣፤፥፦、，；：､\u104a،؛\u055d()[]{}（）［］｛｝【】〔〕"
_MARKS = str.maketrans({
    **dict.fromkeys(_STOPS, f".{_GAP}"), **dict.fromkeys(_QUESTIONS, f"?{_GAP}"), "！": f"!{_GAP}",
    **dict.fromkeys(_COMMAS, f",{_GAP}"), ":": ",", ";": ",", "…": f",{_GAP}", "፡": " ",
    **dict.fromkeys("\u055b\u055c\u055e", ""),  # Armenian writes these inside of words
})
REPLACED = frozenset(map(chr, _MARKS))  # they are written otherwise, not left out
_ETHIOPIC_STOP = re.compile("፡፡|::")
_ELLIPSIS = re.compile(r"\.{2,}")
_NUMBER = re.compile(rf"(?<=\d)([.,]){_GAP}(?=\d)")
_LOOSE_DASH = re.compile(r"(?:^| )-+(?: |$)")
_EDGE_DASH = re.compile(r"(?<![^ .,?!])-+|-+(?![^ .,?!])")
_RUN = re.compile(r" ?[.,?!][ .,?!]*+")


def punctuated(text: str, kind: Kind) -> str:
    """Lower case, NFKD, one space between words, one mark after a phrase, and a mark at the end."""
    text = _ELLIPSIS.sub(f",{_GAP}", _ETHIOPIC_STOP.sub("።", text) if kind == "ethiopic" else text)
    text = _NUMBER.sub(r"\1", text.translate(_MARKS))
    text = folded(unicodedata.normalize("NFKC", text), kind)
    text = " ".join("".join(_replacement(character, kind) for character in text).split())
    text = " ".join(LONE_APOSTROPHE.sub(" ", QUOTED.sub(r"\1", text)).split())
    text = _EDGE_DASH.sub(" ", _LOOSE_DASH.sub(", ", text))
    text = _RUN.sub(_one_mark, " ".join(text.split())).strip()
    if not any(spoken(character, kind) for character in text):
        return ""
    text = text if text.endswith((".", "?", "!", ",")) else f"{text}."
    return unicodedata.normalize("NFD", text)


def _replacement(character: str, kind: Kind) -> str:
    if character == "'" or character in KEPT or spoken(character, kind):
        return character
    return {"Cf": "", "Pd": "-"}.get(unicodedata.category(character), " ")


def _one_mark(run: re.Match[str]) -> str:
    """The strongest mark of a run that ends a phrase; none at the start of a text."""
    marks = run.group().strip(" ")
    if not run.start():
        return ""
    if run.end() < len(run.string) and " " not in marks and not run.group().endswith(" "):
        return run.group()[:-len(marks)] + marks[0]  # inside of a word or a number
    return next(mark for mark in "?!.," if mark in marks) + " "
