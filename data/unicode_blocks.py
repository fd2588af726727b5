"""Unicode blocks of the letters of living scripts: first and last code point, and name (Blocks.txt).

Blocks too large to be learned whole from one voice (Hangul, Han) are listed for their names only; see `letters`.
"""

from __future__ import annotations

import sys
import unicodedata
from bisect import bisect_right

_LEARNABLE = 600  # letters of a block; of a larger one, no text has them all

_BLOCKS = (
    (0x0000, 0x007F, "Basic Latin"), (0x0080, 0x00FF, "Latin-1 Supplement"), (0x0100, 0x017F, "Latin Extended-A"),
    (0x0180, 0x024F, "Latin Extended-B"), (0x0250, 0x02AF, "IPA Extensions"),
    (0x02B0, 0x02FF, "Spacing Modifier Letters"), (0x0300, 0x036F, "Combining Diacritical Marks"),
    (0x0370, 0x03FF, "Greek and Coptic"), (0x0400, 0x04FF, "Cyrillic"), (0x0500, 0x052F, "Cyrillic Supplement"),
    (0x0530, 0x058F, "Armenian"), (0x0590, 0x05FF, "Hebrew"), (0x0600, 0x06FF, "Arabic"), (0x0700, 0x074F, "Syriac"),
    (0x0750, 0x077F, "Arabic Supplement"), (0x0780, 0x07BF, "Thaana"), (0x07C0, 0x07FF, "NKo"),
    (0x0900, 0x097F, "Devanagari"), (0x0980, 0x09FF, "Bengali"), (0x0A00, 0x0A7F, "Gurmukhi"),
    (0x0A80, 0x0AFF, "Gujarati"), (0x0B00, 0x0B7F, "Oriya"), (0x0B80, 0x0BFF, "Tamil"), (0x0C00, 0x0C7F, "Telugu"),
    (0x0C80, 0x0CFF, "Kannada"), (0x0D00, 0x0D7F, "Malayalam"), (0x0D80, 0x0DFF, "Sinhala"), (0x0E00, 0x0E7F, "Thai"),
    (0x0E80, 0x0EFF, "Lao"), (0x0F00, 0x0FFF, "Tibetan"), (0x1000, 0x109F, "Myanmar"), (0x10A0, 0x10FF, "Georgian"),
    (0x1100, 0x11FF, "Hangul Jamo"), (0x1200, 0x137F, "Ethiopic"), (0x1380, 0x139F, "Ethiopic Supplement"),
    (0x13A0, 0x13FF, "Cherokee"), (0x1400, 0x167F, "Unified Canadian Aboriginal Syllabics"),
    (0x1780, 0x17FF, "Khmer"), (0x1800, 0x18AF, "Mongolian"), (0x1C50, 0x1C7F, "Ol Chiki"),
    (0x1E00, 0x1EFF, "Latin Extended Additional"), (0x1F00, 0x1FFF, "Greek Extended"),
    (0x2D30, 0x2D7F, "Tifinagh"), (0x2D80, 0x2DDF, "Ethiopic Extended"), (0x3040, 0x309F, "Hiragana"),
    (0x30A0, 0x30FF, "Katakana"), (0x3400, 0x4DBF, "CJK Unified Ideographs Extension A"),
    (0x4E00, 0x9FFF, "CJK Unified Ideographs"), (0xA000, 0xA48F, "Yi Syllables"), (0xA500, 0xA63F, "Vai"),
    (0xAB00, 0xAB2F, "Ethiopic Extended-A"), (0xAC00, 0xD7AF, "Hangul Syllables"),
    (0x10D00, 0x10D3F, "Hanifi Rohingya"), (0x1E900, 0x1E95F, "Adlam"),
)
_STARTS = [start for start, _, _ in _BLOCKS]
OTHER = "Other"


def block_of(character: str) -> str:
    """Name of the block that holds `character`; `Other` for one that is not listed here."""
    index = bisect_right(_STARTS, ord(character)) - 1
    return _BLOCKS[index][2] if index >= 0 and ord(character) <= _BLOCKS[index][1] else OTHER


def letters(block: str) -> tuple[str, ...]:
    """Letters and vowel signs of a block in code order; none of a block that is too large to be learnt whole."""
    for start, end, name in _BLOCKS:
        if name == block and end <= sys.maxunicode:
            found = tuple(chr(code) for code in range(start, end + 1) if unicodedata.category(chr(code))[0] in "LM")
            return found if len(found) <= _LEARNABLE else ()
    return ()
