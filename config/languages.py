"""Names of languages by code, and doubts about a code and about the script of texts in its language.

The data is the BCP 47 registry (https://www.iana.org/assignments/language-subtag-registry), which has all codes of ISO
639, from the package langcodes.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

NAMES: Mapping[str, str] = {
    "am": "Amharic", "ar": "Arabic", "da": "Danish", "de": "German", "el": "Greek", "en": "English", "es": "Spanish",
    "fi": "Finnish", "fr": "French", "ha": "Hausa", "he": "Hebrew", "hi": "Hindi", "it": "Italian", "ja": "Japanese",
    "ko": "Korean", "ms": "Malay", "nl": "Dutch", "no": "Norwegian", "om": "Oromo", "pl": "Polish",
    "pt": "Portuguese", "ru": "Russian", "so": "Somali", "sv": "Swedish", "sw": "Swahili", "ti": "Tigrinya",
    "tr": "Turkish", "yo": "Yoruba", "zh": "Chinese", "zu": "Zulu",
}
"""The app's names of common languages; others have the registry's name."""

NATIVE_NAMES: Mapping[str, tuple[str, ...]] = {
    "af": ("Afrikaans",), "ak": ("Akan",), "am": ("አማርኛ",), "ar": ("العربية",), "bm": ("Bamanankan",), "bn": ("বাংলা",),
    "da": ("Dansk",), "de": ("Deutsch",), "ee": ("Eʋegbe",), "el": ("Ελληνικά",), "es": ("Español",), "fa": ("فارسی",),
    "ff": ("Fulfulde", "Pulaar"), "fi": ("Suomi",), "fr": ("Français",), "gez": ("ግዕዝ",), "gu": ("ગુજરાતી",),
    "ha": ("Harshen Hausa",), "he": ("עברית",), "hi": ("हिन्दी",), "ig": ("Asụsụ Igbo",), "id": ("Bahasa Indonesia",),
    "it": ("Italiano",), "ja": ("日本語",), "ki": ("Gĩkũyũ",), "km": ("ខ្មែរ",), "kg": ("Kikongo",), "ko": ("한국어",),
    "lg": ("Luganda", "Oluganda"), "ln": ("Lingála",), "luo": ("Dholuo",), "mdw": ("Embosi", "Mboshi"),
    "mg": ("Malagasy",), "mr": ("मराठी",), "ms": ("Bahasa Melayu",), "my": ("မြန်မာ",), "ne": ("नेपाली",),
    "nl": ("Nederlands",), "no": ("Norsk",), "ny": ("Chichewa", "Chinyanja"), "om": ("Afaan Oromoo",), "pa": ("ਪੰਜਾਬੀ",),
    "pl": ("Polski",), "pt": ("Português",), "rn": ("Ikirundi",), "ru": ("Русский",), "rw": ("Ikinyarwanda",),
    "sid": ("Sidaamu Afo", "Sidama"), "sn": ("chiShona",), "so": ("Soomaali", "Af-Soomaali"), "st": ("Sesotho",),
    "sv": ("Svenska",), "sw": ("Kiswahili",), "ta": ("தமிழ்",), "te": ("తెలుగు",), "th": ("ไทย",), "ti": ("ትግርኛ",),
    "tig": ("ትግሬ",), "tn": ("Setswana",), "tr": ("Türkçe",), "ts": ("Xitsonga",), "tw": ("Twi",), "uk": ("Українська",),
    "umb": ("Umbundu",), "ur": ("اردو",), "ve": ("Tshivenḓa",), "vi": ("Tiếng Việt",), "wal": ("Wolayttattuwa",),
    "wo": ("Wolof",), "xh": ("isiXhosa",), "yo": ("Èdè Yorùbá",), "zh": ("中文",), "zu": ("isiZulu",),
}
"""Names that speakers give their languages, and other spellings that the registry lacks."""
_ALIKE_NAMES = 75.0  # The ratio of rapidfuzz, from 0 to 100.
_NEAR = 5  # suggestions for an unknown code
_SEVERAL_SCRIPTS = {"Hans": ("Hani", "Bopo"), "Hant": ("Hani", "Bopo"), "Jpan": ("Hani", "Hira", "Kana"),
                    "Kore": ("Hang", "Hani")}  # codes of ISO 15924 that stand for several scripts
_ALIKE = {"Latn", "Grek", "Cyrl"}  # scripts with letters that look the same
_LATIN_TWINS = {"ε": "ɛ", "ω": "ꞷ", "γ": "ɣ", "β": "ꞵ", "φ": "ɸ", "χ": "ꭓ", **dict.fromkeys("δθλξπσψ", "")}
"""Greek letters that look like no letter of ASCII, and Latin letters of the same shape: orthographies such as that of
Mboshi write them beside Latin letters."""
_LATIN_CAPITALS = frozenset("ΕΒΧ")  # Their capitals that look like a letter of ASCII.
_NO_SCRIPT = ("Zyyy", "Zinh", "Zzzz")  # marks that belong to every script
_EXAMPLE = 40  # characters


@dataclass(frozen=True)
class _Entry:
    """An entry of the registry; `usual`: the preferred code instead of it, or empty."""

    name: str
    usual: str


def language_name(code: str) -> str:
    """Such as "Amharic"; the code itself if it is unknown. Of several codes with commas between them, all names."""
    if "," in code:
        return ", ".join(map(language_name, code.split(",")))
    # A code with a region or a script says more than a name.
    if code in NAMES or len(code) > 3:
        return NAMES.get(code, code)
    entry = _registry().get(code)
    return entry.name if entry else code


def code_of(language: str) -> str:
    """The code of a language that was given by its code, its English or its own name; empty if it is none of them.

    A code means itself, even if it is the name of another language: `ga` is Irish, and the language Ga is `gaa`.
    """
    name = language.strip().lower()
    if name in NAMES or name in _registry():
        return name
    usual = next((code for code, english_name in NAMES.items() if english_name.lower() == name), "")
    usual = usual or next((code for code, names in NATIVE_NAMES.items() if name in map(str.lower, names)), "")
    return usual or next((code for code, entry in _registry().items() if entry.name.lower() == name), "")


def typed_code(language: str | None) -> str:
    """The code of a language that was chosen, or typed by its name or code; what is unknown stays as it was typed."""
    return code_of(language or "") or (language or "").strip().lower()


def language_title(code: str) -> str:
    """Such as "Amharic · አማርኛ (am)"."""
    names = dict.fromkeys([language_name(code), *NATIVE_NAMES.get(code, ())])
    return f"{' · '.join(names)} ({code})"


def find_languages(text: str, limit: int = 8) -> list[str]:
    """Codes of the languages of ISO 639 whose code or one of whose names is like `text`, the most alike first."""
    from rapidfuzz import fuzz

    query = _plain(text)
    if len(query) < 2:
        return []
    likenesses: dict[str, float] = {}
    for code, names in _plain_names().items():
        likeness = 101.0 if query in (code, *names) else 0.0
        for name in names if not likeness else ():
            likeness = max(likeness, 99.0 if name.startswith(query) else 90.0 if f" {query}" in name else
                           fuzz.ratio(query, name, score_cutoff=_ALIKE_NAMES))
        if likeness:
            likenesses[code] = likeness

    def rank(code: str) -> tuple[float, bool, bool, int, str]:
        return -likenesses[code], code not in NAMES, code not in NATIVE_NAMES, len(code), code

    # Of equally alike names, those of languages with a name in the lists of this module come first.
    return sorted(likenesses, key=rank)[:limit]


@cache
def _plain_names() -> Mapping[str, tuple[str, ...]]:
    """The names of each language without accents and case; codes that another one replaces are left out."""
    return {code: tuple(map(_plain, (entry.name, language_name(code), *NATIVE_NAMES.get(code, ()))))
            for code, entry in _registry().items() if not entry.usual}


def _plain(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text.strip().casefold())
    return "".join(character for character in decomposed if unicodedata.category(character) != "Mn")


def same_language(language: str, other: str) -> bool:
    """Whether two codes or English names mean one language, as `sw`, `swa`, `sw-KE` and `Swahili` do."""
    return _primary(language) == _primary(other)


@lru_cache(maxsize=1024)
def _primary(language: str) -> str:
    """The usual code of a language, without region and script, its macrolanguage for one of its parts."""
    import langcodes  # slow: its tables take a tenth of a second

    tag = language.strip().replace("_", "-")
    code = code_of(tag) or code_of(tag.partition("-")[0]) or tag.lower()
    try:
        return langcodes.standardize_tag(code, macro=True).partition("-")[0].lower()
    except ValueError:
        return code


def doubt(code: str) -> str:
    """Why a code may be wrong, as a sentence; empty for a known one and for private use.

    Private are `qaa` to `qtz` and what begins with `x-` (RFC 5646, 2.2.1 and 2.2.7).
    """
    import langcodes  # slow: its tables take a tenth of a second

    language = code.partition("-")[0]
    if language == "x" or (len(language) == 3 and "qaa" <= language <= "qtz"):
        return ""

    # The registry names a usual code for codes that are out of use.
    entry = _registry().get(language)
    usual = entry.usual if entry else langcodes.Language.get(language).language or ""
    if usual in _registry() and usual != language:
        return (f"{code!r} is not the usual code of {language_name(usual)}, which is {usual!r}: a model that knows the "
                "language knows it by that one.")
    if entry is None:
        return (f"{language!r} is the code of no language (ISO 639, BCP 47). Similar codes: "
                f"{', '.join(_near(language))}. Start a code of your own with x-, such as x-mine.")
    if not langcodes.tag_is_valid(code):
        return f"{code!r}: {language!r} is {entry.name}; what follows is no script, region or variant of BCP 47."
    return ""


def script_doubt(code: str, texts: Iterable[str]) -> str:
    """Why the letters of `texts` may be wrong for the language, as a sentence that names the scripts; else empty.

    Either most letters belong to no script of the language, or a word mixes two scripts whose letters look alike, or
    one letter has two codes. For a language without a registered code, only the latter two are reported. fontTools
    knows the script of each letter.
    """
    from fontTools.unicodedata import script  # slow: its tables take a moment

    script_of, usual = cache(script), _usual_scripts(code)
    letters: Counter[str] = Counter()
    text_of: dict[str, str] = {}  # an example for each script
    text_of_letter: dict[str, str] = {}  # and for each letter of `_LATIN_TWINS`, on both sides
    twins = {*_LATIN_TWINS, *filter(None, _LATIN_TWINS.values())}
    mixed, example = 0, ""
    capitals: dict[str, tuple[int, str]] = {}  # words with one of `_LATIN_CAPITALS`, and an example
    for text in texts:
        for word in text.split():
            script_by_letter = [(letter, script_of(letter)) for letter in word if letter.isalpha()]
            # In Latin text, Greek letters that look like no Latin one belong to the orthography.
            greek = {_base_letter(letter) for letter, name in script_by_letter if name == "Grek"}
            is_latin = "Grek" not in usual and all(letter.lower() in _LATIN_TWINS for letter in greek)
            if is_latin:
                script_by_letter = [(letter, "Latn" if name == "Grek" else name) for letter, name in script_by_letter]
            letters.update(name for _, name in script_by_letter)
            for letter, name in script_by_letter:
                text_of.setdefault(name, text)
                if name == "Latn" and _base_letter(letter) in twins:
                    text_of_letter.setdefault(_base_letter(letter), text)

            # A single letter of another script in a word is a common slip of the keyboard.
            scripts = Counter(name for _, name in script_by_letter if name in _ALIKE)
            if len(scripts) > 1:
                mixed += 1
                rare = min(scripts, key=lambda name: scripts[name])
                stray = next(letter for letter, name in script_by_letter if name == rare)
                example = example or _letter_in_word(rare, stray, word)
            for capital in greek & _LATIN_CAPITALS if is_latin and len(script_by_letter) > 1 else ():
                count, earlier_example = capitals.get(capital, (0, ""))
                capitals[capital] = count + 1, earlier_example or _letter_in_word("Grek", capital, word)

    # A capital that looks like a Latin one is a slip where no small letter shows that the orthography has it.
    for capital, (count, capital_example) in capitals.items():
        if capital.lower() not in text_of_letter:
            mixed, example = mixed + count, example or capital_example

    # Letters that all scripts share say nothing about the language.
    for name in _NO_SCRIPT:
        del letters[name]

    # A language with several scripts, such as Japanese, may be written in any of them.
    total = letters.total()
    if usual and total and sum(letters[name] for name in usual) < total / 2:
        (found_script, count), = letters.most_common(1)
        return (f"{language_name(code)} is written in {script_title(usual[0])} letters; {count / total:.0%} of the "
                f"letters here are {script_title(found_script)}, as in {text_of[found_script][:_EXAMPLE]!r}.")
    if mixed:
        return (f"{mixed} {'word has' if mixed == 1 else 'words have'} letters of several scripts that look alike: "
                f"{example}.")
    for greek_letter, latin_letter in _LATIN_TWINS.items():
        if greek_letter in text_of_letter and latin_letter in text_of_letter:
            places = ", ".join(f"{letter} (U+{ord(letter):04X}) in {text_of_letter[letter][:_EXAMPLE]!r}"
                               for letter in (greek_letter, latin_letter))
            return f"It seems that one letter is written in two ways: {places}."
    return ""


@lru_cache(maxsize=4096)
def _base_letter(letter: str) -> str:
    """The letter without its accents."""
    return unicodedata.normalize("NFD", letter)[0]


def _letter_in_word(script: str, letter: str, word: str) -> str:
    return f"the {script_title(script)} letter {letter} (U+{ord(letter):04X}) in {word[:_EXAMPLE]!r}"


def script_title(script: str) -> str:
    """The registry's name of a script, such as "Ethiopic" for `Ethi`."""
    entry = _entries("script").get(script)
    return entry.name.partition(" (")[0] if entry else script


def _usual_scripts(code: str) -> tuple[str, ...]:
    """The scripts that a language is written in, or that its code names; none for a code without a registered one."""
    import langcodes

    if not langcodes.tag_is_valid(code) or code.partition("-")[0] not in _registry():
        return ()
    script = langcodes.Language.get(code).maximize().script or ""
    return _SEVERAL_SCRIPTS.get(script, (script,) if script else ())


def _near(language: str) -> list[str]:
    """Known codes near an unknown one, with names: the language of a country of that code, then similar spellings.

    A country code is the most common mistake: `jp` for Japanese, `dk` for Danish.
    """
    import langcodes
    from rapidfuzz.distance import OSA

    registry = _registry()
    is_country = language.upper() in _entries("region")
    codes = [langcodes.Language.get(f"und-{language}").maximize().language or ""] if is_country else []
    similar = [code for code, entry in registry.items() if not entry.usual and OSA.distance(code, language) == 1]
    codes += sorted(similar, key=lambda code: (code not in NAMES, len(code), code[0] != language[0], code))
    return [f"{code} ({language_name(code)})" for code in dict.fromkeys(codes) if code in registry][:_NEAR]


def _registry() -> Mapping[str, _Entry]:
    """All languages by their codes."""
    return _entries("language")


@cache
def _entries(kind: str) -> Mapping[str, _Entry]:
    """The registry's entries of a kind by code, without ranges for private use."""
    from langcodes.registry_parser import parse_registry

    return {entry["Subtag"]: _Entry(entry["Description"][0], entry.get("Preferred-Value", ""))
            for entry in parse_registry() if entry["Type"] == kind and ".." not in entry["Subtag"]}
