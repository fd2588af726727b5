"""IndexTTS2's published preparation of Chinese and English text, so that they get the ids it was trained with.

The order of the package (index-tts/index-tts at ee40fa7, `utils/front.py` and `utils/common.py`): `'s` to `is` after
some pronouns; hyphens within words, names and pinyin are replaced by placeholders; the text is verbalized by Chinese
or English rules, whichever the text itself asks for; the placeholders are replaced again; marks become those that the
model knows; each CJK character stands alone; upper case.

The rules come from the package `wetext`, which the published code uses where WeTextProcessing does not install; its
options here are WeTextProcessing's defaults, as the model knows simplified characters alone. Versions differ in places
(`C#` is `C number` or `C hash`), so `rules_version` names the one in use.

IndexTTS 2.5 prepares its languages much alike: `normalise_for_2_5`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import cache, lru_cache
from importlib import metadata
from typing import Any

from config.errors import missing_package
from config.foreign import LONE_SURROGATE

Verbalize = Callable[[str, bool], str]  # text, and whether to read it by Chinese rules

WETEXT = "wetext==0.1.8"
FUGASHI, UNIDIC = "fugashi==1.5.2", "unidic-lite==1.0.8"
_HAN = "\u4e00-\u9fff"
_CONTRACTION = re.compile("(what|where|who|which|how|t?here|it|s?he|that|this)'s", re.IGNORECASE)
_EMAIL = re.compile(r"[a-zA-Z0-9]+@[a-zA-Z0-9]+\.[a-zA-Z]+\n?")
# Both begin where their first run does: within a run that nothing follows, each character would look to its end.
_HYPHENATED = re.compile(r"(?<![A-Za-z0-9])[0-9]*[A-Za-z][A-Za-z0-9]*(?:-[A-Za-z0-9]+)+")
_NAME = re.compile(f"(?<![{_HAN}])[{_HAN}]+(?:[-·—][{_HAN}]+){{1,2}}")
_INITIALS = "zh|ch|sh|b|p|m|f|d|t|n|l|g|k|h|j|q|x|z|c|s|r|y|w"
_FINALS = ("a|o|e|i|u|ü|v|ai|ei|ua|ui|uo|ao|ou|ia|iu|ie|ue|üe|ve|uan|üan|van|uang|üang|vang|uai|an|en|in|un|vn|"
           "ang|eng|ing|ong|ian|iao|iang|iong")
_PINYIN = re.compile(f"(?<![a-z])(?:(?:{_INITIALS})?(?:{_FINALS})|ng|er)[1-5]", re.IGNORECASE)
_ROUNDED = re.compile(r"([jqx])[uü]((?:n|e|an)*\d)", re.IGNORECASE)  # ju is spoken jü, which the model knows as jv
_ESCAPED = re.compile(r"""\\(["\\])""")  # wetext 0.1.8 leaves its own escapes
_PLACEHOLDER = re.compile("PRONPLACEHOLDER[a-z]+PRONPLACEHOLDER")
_SHIELDED = re.compile("<(?:pinyin|n)_.>", re.DOTALL)
_MOST_NAMES = 1000  # names that are replaced one after another
_KANA = re.compile("[\u3040-\u309f]+|[\u30a0-\u30ff]+")
_SPACES = re.compile("( +)")
_TOKEN = re.compile(r"<\|[^|]+\|>")
_MARKS = {
    **dict.fromkeys(("...", "……", ",,,"), "…"), **dict.fromkeys("：；;，、:", ","), "。": ".", "！": "!", "？": "?",
    "\n": " ", **dict.fromkeys("“”\"‘’（）()《》【】[]「」", "'"), **dict.fromkeys("·—～~", "-"),
}
_CHINESE_MARKS = {**_MARKS, "$": "."}
_CJK = re.compile("([\u1100-\u11ff\u2e80-\ua4cf\ua840-\ud7af\uf900-\ufaff\ufe30-\ufe4f\uff65-\uffdc"
                  "\U00020000-\U0002ffff])")


def normalise(text: str, verbalize: Verbalize | None = None) -> str:
    """`text` as the model's tokenizer reads it. A single character stays as it is; empty if there is none.

    `verbalize` stands for the package of rules; `UserError` without either package.
    """
    if len(text.strip()) <= 1:
        return text.strip()
    return spaced(marked(text, verbalize))


def normalise_for_2_5(text: str, language: str, verbalize: Verbalize | None = None) -> str:
    """`text` of a base language as the tokenizer of IndexTTS 2.5 reads it; `verbalize` as in `normalise`.

    After indextts25-inference 0.2.0, `infer_v2_5.py`: Chinese and English are verbalized and in lower case, Spanish is
    in upper case, Japanese is in lower case with a space between its words. `<word|reading>` gives a reading, as in
    `<行|XING2>`. Spanish is verbalized if nemo-text-processing is installed, which that package requires on Linux;
    otherwise digits stay. In Arabic and Japanese they always stay. With `verbalize`, Japanese is not cut into words,
    which takes a package as well.
    """
    verbalized = language in ("zh", "en")
    spanish = _spanish_rules() if language == "es" and verbalize is None else None
    if spanish:
        text = spanish(text)
    if language not in ("es", "ja"):
        text = _with_marks(text, ":：" if verbalized else "")

    # Readings are replaced by placeholders, which no rule changes.
    if verbalized:
        readings: dict[str, str] = {}

        def shield(word: str, reading: str) -> str:
            placeholder = f"PRONPLACEHOLDER{_letters(len(readings))}PRONPLACEHOLDER"
            readings[placeholder] = f"<{word}|{reading}>"
            return placeholder

        text = marked(_replace_readings(text, shield), verbalize, None if language == "zh" else False)
        text = _PLACEHOLDER.sub(lambda match: readings.get(match.group(), match.group()), text)

    text = _with_marks(text)
    text = text.lower() if verbalized or language == "ja" else text.upper() if language == "es" else text
    text = _replace_readings(text, _reading_token)
    if language == "ja" and verbalize is None:
        text = "".join(" ".join(_japanese_words(part)) if part.strip() else part for part in _SPACES.split(text))
    return _TOKEN.sub(lambda match: match.group().upper(), text)


def _with_marks(text: str, unchanged: str = "") -> str:
    return _marks_pattern(False).sub(
        lambda match: match.group() if match.group() in unchanged else _MARKS[match.group()], text)


def _letters(number: int) -> str:
    """0 is `a`, 26 is `aa`."""
    last = chr(ord("a") + number % 26)
    return _letters(number // 26 - 1) + last if number >= 26 else last


def _replace_readings(text: str, replace: Callable[[str, str], str]) -> str:
    """`text` with `replace(word, reading)` for each `<word|reading>` within a line.

    As the pattern `<([^|>\\n]+)\\|([^>\\n]+)>`, which looks from each `<` up to the end of the line.
    """
    pieces, copied, after = list[str](), 0, 0
    for match in _READING_END.finditer(text):
        end = match.start()
        # A reading lies within one line.
        begin = text.find("<", max(after, text.rfind("\n", after, end) + 1), end)
        after = end + 1
        while begin >= 0:
            bar = text.find("|", begin + 1, end)
            if bar in (-1, end - 1):
                break
            if bar > begin + 1:
                pieces += (text[copied:begin], replace(text[begin + 1:bar], text[bar + 1:end]))
                copied = after
                break
            begin = text.find("<", begin + 1, end)
    return "".join((*pieces, text[copied:]))


_READING_END = re.compile(">")


def _reading_token(word: str, reading: str) -> str:
    reading = reading.upper()
    if _KANA.fullmatch(reading):
        return f" {reading} "
    mark = f"<|SPECIAL_TOKEN_{2 if re.search(f'[{_HAN}]', word) else 1}|>"
    return f"{mark}{reading}{mark}"


def marked(text: str, verbalize: Verbalize | None = None, chinese: bool | None = None) -> str:
    """`text` verbalized, with the model's marks: what the published normaliser gives, before `spaced`.

    `chinese`: whether to read it by Chinese rules; None leaves that to the text.
    """
    verbalize = verbalize or _verbalize_by_package
    if chinese is None:
        chinese = reads_as_chinese(text)
    text = _CONTRACTION.sub(r"\1 is", text)
    if chinese:
        text = text.rstrip()

    # Hyphens of terms, names and pinyin are shielded from the rules.
    text, terms = _HYPHENATED.subn(lambda match: match.group().replace("-", "<H>"), text)
    shielded: dict[str, str] = {}  # keyed by placeholder
    if chinese:
        for kind, pattern in (("pinyin", _PINYIN), ("n", _NAME)):
            for number, name in enumerate(_longest_first(pattern, text)[:_MOST_NAMES]):
                placeholder = f"<{kind}_{chr(ord('a') + number)}>"
                text = text.replace(name, placeholder)
                shielded[placeholder] = _correct_pinyin(name) if kind == "pinyin" else name

    text = verbalize(text, chinese)
    text = _SHIELDED.sub(lambda match: shielded.get(match.group(), match.group()), text)
    # Spaces that the rules put around the hyphens of terms are removed.
    if terms:
        head, *tail = text.split("<H>")
        text = "-".join((head.rstrip(), *(part.strip() for part in tail[:-1]), tail[-1].lstrip())) if tail else head

    marks = _CHINESE_MARKS if chinese else _MARKS
    return _marks_pattern(chinese).sub(lambda match: marks[match.group()], text)


def reads_as_chinese(text: str) -> bool:
    """Whether Chinese rules read `text`: it has a CJK character, no Latin letter or pinyin, or is an e-mail address."""
    if re.search(f"[{_HAN}]", text) or not re.search("[a-zA-Z]", text) or _EMAIL.fullmatch(text):
        return True
    return bool(_PINYIN.search(text))


def spaced(text: str) -> str:
    """`text` in upper case, with each CJK character between spaces."""
    return " ".join(part.strip().upper() for part in _CJK.split(text.strip()) if part.strip())


def rules_version() -> str:
    """Name and version of the package that verbalizes; empty if it is not installed."""
    try:
        return f"wetext {metadata.version('wetext')}"
    except metadata.PackageNotFoundError:
        return ""


def spanish_rules_version() -> str:
    """Name and version of the package that verbalizes Spanish; empty if it is not installed."""
    try:
        return f"nemo-text-processing {metadata.version('nemo_text_processing')}"
    except metadata.PackageNotFoundError:
        return ""


def _longest_first(pattern: re.Pattern[str], text: str) -> list[str]:
    """Distinct matches, the longest first, so that none is replaced within another."""
    return sorted(dict.fromkeys(pattern.findall(text)), key=len, reverse=True)


def _correct_pinyin(syllable: str) -> str:
    """Upper case and `v` for `ü` after j, q and x; others are changed by `spaced` alone."""
    return _ROUNDED.sub(r"\1v\2", syllable).upper() if syllable[0] in "jqxJQX" else syllable


@cache
def _marks_pattern(chinese: bool) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, _CHINESE_MARKS if chinese else _MARKS)))


def _verbalize_by_package(text: str, chinese: bool) -> str:
    """`text` by the rules of `wetext`; unchanged if they find no reading, as published."""
    try:
        read = _rules(chinese)(" ".join(LONE_SURROGATE.sub("", text).split()))
    except AssertionError:  # such as three spaces within English text, in 0.1.8
        return text
    return _ESCAPED.sub(r"\1", read)


@cache
def _rules(chinese: bool) -> Callable[[str], str]:
    try:
        from wetext import Normalizer
    except ImportError as error:
        raise missing_package("Chinese and English", "wetext", WETEXT) from error
    rules = Normalizer(lang="zh" if chinese else "en", operator="tn", remove_erhua=False, traditional_to_simple=True,
                       full_to_half=True)
    return lru_cache(maxsize=1024)(rules.normalize)  # 150 microseconds a character


def _japanese_words(text: str) -> list[str]:
    return [word.surface for word in _japanese_tagger()(text)]


@cache
def _japanese_tagger() -> Any:
    """MeCab over the small UniDic, as the published package has it; its dictionary decides where words end."""
    try:
        import unidic_lite
        from fugashi import Tagger
    except ImportError as error:
        raise missing_package("Japanese", "fugashi with unidic-lite", f"{FUGASHI} {UNIDIC}") from error
    return Tagger(f'-d "{unidic_lite.DICDIR}" -r "{unidic_lite.DICDIR}/mecabrc"')


@cache
def _spanish_rules() -> Callable[[str], str] | None:
    """Spanish by NeMo's grammar, which takes half a minute to build; None if the package is not installed."""
    try:
        from nemo_text_processing.text_normalization.normalize import Normalizer
    except ImportError:
        return None
    logging.getLogger("NeMo-text-processing").setLevel(logging.WARNING)
    rules = Normalizer(input_case="cased", lang="es")

    def read(text: str) -> str:
        try:
            return str(rules.normalize(text, verbose=False)) if text else text
        except (ValueError, RuntimeError, AssertionError, IndexError):  # unchanged, as in the published code
            return text

    return lru_cache(maxsize=1024)(read)
