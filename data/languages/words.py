"""The normalisers of new languages: `words` without punctuation, `punctuated` with the marks of Chatterbox.

Anything spoken stays: letters, marks, digits and symbols. Homophones (Amharic ሀ and ሐ) are not merged. `punctuated`
maps the marks of all scripts to `. , ? ! -` and the apostrophe, for which Chatterbox has rows; a mark between letters
or digits (3.5, example.com) stays, and quotes are removed.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

ScriptKind = Literal["latin", "turkic", "uzbek", "ethiopic", "generic"]

APOSTROPHES = "\u2018\u2019\u02bc\u2032\u00b4`\uff07"
SPOKEN_PUNCTUATION = frozenset("%‰&@#*/\\§٪၌၍၎၏")  # category P, but read aloud: encoding reports them
SILENT_SYMBOLS = frozenset("|~^")  # category S, but never read aloud
JOINERS = "\u200c\u200d"  # part of the spelling in Persian and Indic scripts, noise elsewhere
_VIRAMAS = "\u094d\u09cd\u0a4d\u0acd\u0b4d\u0bcd\u0c4d\u0ccd\u0d4d\u0dca"
_DOUBLED_JOINER = re.compile(f"([{JOINERS}])[{JOINERS}]+")
_LOOSE_JOINER = re.compile(rf"(?<![^\s.,?!'-])[{JOINERS}]|(?<![{_VIRAMAS}])[{JOINERS}](?![^\s.,?!'-])")
_OPENING, _CLOSING = re.compile(r"(?<!\w)'"), re.compile(r"'(?!\w)")
LONE_APOSTROPHE = re.compile(r"(?<!\w)'+(?!\w)")
_FOLD = {ord(character): "'" for character in APOSTROPHES}
_SPACES = re.compile(r" {2,}")
_TURKIC_CAPITALS = str.maketrans({"I": "ı", "İ": "i"})
_TURKIC_SMALL = str.maketrans({"i": "İ"})
_TURKIC_CASE = {"i": "İ", "İ": "i", "ı": "I", "I": "ı"}

_ETHIOPIC = frozenset({"am", "ti", "tig", "gez", "byn", "sgw"})
_TURKIC = frozenset({"tr", "az", "crh", "gag", "kaa", "tt"})  # Latin letters with a dotless i
_UZBEK = frozenset({"uz"})
# Codes of ISO 639-3 for languages with rules. azb, which is also az, is written in Arabic letters.
_TWO_LETTERS = {"amh": "am", "aze": "az", "azj": "az", "tat": "tt", "tir": "ti", "tur": "tr", "uzb": "uz", "uzn": "uz"}
_LATIN = frozenset({
    "af", "ca", "cs", "cy", "da", "de", "en", "es", "et", "eu", "fi", "fr", "ga", "ha", "hr", "hu", "id", "ig",
    "is", "it", "lg", "ln", "lt", "lv", "mg", "ms", "mt", "nl", "no", "om", "pl", "pt", "ro", "rw", "sk", "sl",
    "sn", "so", "sq", "st", "sv", "sw", "tl", "tn", "vi", "wo", "xh", "yo", "zu",
})
KEPT_MARKS = ".,?!-"
_GAP = "\x1f"  # white space where a script writes none; removed again within a number
_STOPS = "።፨।॥。｡．︒។៕៖\u104b།༎։᠃᠉᙮꓿𑅁۔"
_QUESTIONS = "፧？؟⁇\u037e"
_COMMAS = "፣፤፥፦、，；：､\u104a،؛\u055d()[]{}（）［］｛｝【】〔〕"
_MARKS = str.maketrans({
    **dict.fromkeys(_STOPS, f".{_GAP}"), **dict.fromkeys(_QUESTIONS, f"?{_GAP}"), "！": f"!{_GAP}",
    **dict.fromkeys(_COMMAS, f",{_GAP}"), ":": ",", ";": ",", "…": f",{_GAP}", "፡": " ",
    **dict.fromkeys("\u055b\u055c\u055e", ""),  # Armenian writes these within words
})
REPLACED_MARKS = frozenset(map(chr, _MARKS))  # replaced, not left out
_ETHIOPIC_STOP = re.compile("፡፡|::")
_ELLIPSIS = re.compile(r"\.{2,}")
_NUMBER = re.compile(rf"(?<=\d)([.,]){_GAP}(?=\d)")
_LOOSE_DASH = re.compile(r"(?:^| )-+(?: |$)")
_EDGE_DASH = re.compile(r"(?<![^ .,?!])-+|-+(?![^ .,?!])")
_RUN = re.compile(r" ?[.,?!][ .,?!]*+")


def script_kind(code: str) -> ScriptKind:
    """The kind of script of a language, by its primary subtag and script; `generic` if none is known.

    `tr-TR` and `tur` are read as `tr`, `az-Latn` as `az`, and `az-Cyrl` is generic.
    """
    language, *subtags = code.replace("_", "-").split("-")
    language = _TWO_LETTERS.get(language.lower(), language.lower())
    script = next((part.title() for part in subtags if len(part) == 4 and part.isalpha()), "")
    if script == "Ethi" or (not script and language in _ETHIOPIC):
        return "ethiopic"
    if script not in ("", "Latn"):
        return "generic"
    if language in _TURKIC:
        return "turkic"
    if language in _UZBEK:
        return "uzbek"
    return "latin" if script or language in _LATIN else "generic"


def words(text: str, kind: ScriptKind, *, keep_case: bool = False) -> str:
    """Lower-case words with one space between them; apostrophes within a word stay.

    The Ethiopic word space U+1361 and the stops up to U+1368 are punctuation in Unicode. `keep_case`: for an
    orthography whose capitals are letters of their own.
    """
    text = without_quotes(composed(text, kind) if keep_case else lower_composed(text, kind))
    text = _tidy_joiners("".join(_replacement(character, kind) for character in text))
    return _SPACES.sub(" ", LONE_APOSTROPHE.sub(" ", text)).strip()


def without_quotes(text: str) -> str:
    """`text` without the apostrophes around a quotation within a line.

    As the pattern `(?<!\\w)'(.+?)'(?!\\w)`, which looks for the end of each quotation up to the end of the line.
    """
    closings = [match.start() for match in _CLOSING.finditer(text)]
    pieces, copied_to, number, line_end = list[str](), 0, 0, -1
    for match in _OPENING.finditer(text):
        begin = match.start()
        if begin < copied_to:
            continue

        # The closing mark must be at least two characters behind the opening one.
        while number < len(closings) and closings[number] < begin + 2:
            number += 1
        if number == len(closings):
            break
        # A quotation ends in its own line.
        if line_end < begin:
            line_end = text.find("\n", begin)
            line_end = len(text) if line_end < 0 else line_end
        end = closings[number]
        if end < line_end:
            pieces += (text[copied_to:begin], text[begin + 1:end])
            copied_to = end + 1
    return "".join((*pieces, text[copied_to:]))


def lower_composed(text: str, kind: ScriptKind) -> str:
    """Composed, in lower case, with one kind of apostrophe.

    A capital İ becomes i in any language: Unicode's lower case of it is an i and a second dot (U+0307).
    """
    text = unicodedata.normalize("NFC", text)
    lower = (text.translate(_TURKIC_CAPITALS) if kind == "turkic" else text).lower().replace("i\u0307", "i")
    return composed(lower, kind)


def composed(text: str, kind: ScriptKind) -> str:
    """Composed, with one kind of apostrophe."""
    text = unicodedata.normalize("NFC", text)
    # U+02BB is a consonant in Hawaiian, and one of the spellings of the apostrophe of oʻ and gʻ in Uzbek, as is U+201B.
    if kind in ("uzbek", "turkic"):
        text = text.replace("\u02bb", "'").replace("\u201b", "'")
    return text.translate(_FOLD)


def _tidy_joiners(text: str) -> str:
    """Without joiners that are doubled, or that join nothing because they stand beside a space.

    A joiner behind a virama stays at the end of a word: it makes a chillu of Malayalam.
    """
    if not any(joiner in text for joiner in JOINERS):
        return text
    return _LOOSE_JOINER.sub("", _DOUBLED_JOINER.sub(r"\1", text))


def upper_composed(text: str, kind: ScriptKind) -> str:
    """Composed, in upper case; a Turkic i keeps its dot."""
    text = unicodedata.normalize("NFC", text)
    return unicodedata.normalize("NFC", (text.translate(_TURKIC_SMALL) if kind == "turkic" else text).upper())


def case_exchanged(text: str, kind: ScriptKind) -> str:
    """Composed, small letters as capitals and capitals as small letters; a Turkic i keeps its dot or has none."""
    text = unicodedata.normalize("NFC", text)
    pairs = _TURKIC_CASE if kind == "turkic" else {}
    exchanged = "".join(pairs.get(character, character.swapcase()) for character in text)
    return unicodedata.normalize("NFC", exchanged.replace("i\u0307", "i"))


def is_spoken(character: str, kind: ScriptKind) -> bool:
    """Whether a character is read aloud, and so stays."""
    category = unicodedata.category(character)
    if category == "Cf":
        return kind == "generic" and character in JOINERS
    if character in SILENT_SYMBOLS or character.isspace():
        return False
    return character in SPOKEN_PUNCTUATION or category[0] not in "PZ"


def _replacement(character: str, kind: ScriptKind) -> str:
    if character == "'" or is_spoken(character, kind):
        return character
    return "" if unicodedata.category(character) == "Cf" else " "


def punctuated(text: str, kind: ScriptKind, *, keep_case: bool = False) -> str:
    """Lower case unless `keep_case`, NFKD, one space between words, one mark after a phrase, and a mark at the end."""
    text = _ELLIPSIS.sub(f",{_GAP}", _ETHIOPIC_STOP.sub("።", text) if kind == "ethiopic" else text)
    text = _NUMBER.sub(r"\1", text.translate(_MARKS))
    text = (composed if keep_case else lower_composed)(unicodedata.normalize("NFKC", text), kind)
    text = " ".join(_tidy_joiners("".join(_mark_replacement(character, kind) for character in text)).split())
    text = " ".join(LONE_APOSTROPHE.sub(" ", without_quotes(text)).split())
    text = _EDGE_DASH.sub(" ", _LOOSE_DASH.sub(", ", text))
    text = _RUN.sub(_one_mark, " ".join(text.split())).strip()
    if not any(is_spoken(character, kind) for character in text):
        return ""
    text = text if text.endswith((".", "?", "!", ",")) else f"{text}."
    return unicodedata.normalize("NFD", text)


def _mark_replacement(character: str, kind: ScriptKind) -> str:
    if character == "'" or character in KEPT_MARKS or is_spoken(character, kind):
        return character
    return {"Cf": "", "Pd": "-"}.get(unicodedata.category(character), " ")


def _one_mark(run: re.Match[str]) -> str:
    """The strongest mark of a run at the end of a phrase; none at the start of a text."""
    marks = run.group().strip(" ")
    if not run.start():
        return ""
    if run.end() < len(run.string) and " " not in marks and not run.group().endswith(" "):
        return run.group()[:-len(marks)] + marks[0]  # within a word or a number
    return next(mark for mark in "?!.," if mark in marks) + " "


def scored_letters(text: str) -> str:
    """What is compared with a transcript: letters, digits and their combining marks, case folded."""
    return "".join(sign for sign in unicodedata.normalize("NFKC", text).casefold()
                   if sign.isalnum() or unicodedata.category(sign)[0] == "M")
