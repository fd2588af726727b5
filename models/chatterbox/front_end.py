"""The text front-end of a published Chatterbox model: its tokenizer file, checked against its T3.

The number of text rows decides which tokenizer belongs to a T3; the published files have no spare row: the highest
id plus one is 704, 2352 or 2454 (the file of 2352 has 2351 tokens, as one id is unused). The English model has no
language tags and keeps upper case; its file has tags of languages that it was not trained on. Source of the language
list: resemble-ai/chatterbox (MIT), `mtl_tts.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

from config.errors import UserError
from data.front_end import FrontEnd
from data.normalisers import DATA_FILES, for_base_language
from data.segmenters import highest_id, vocabulary

LANGUAGES = ("ar", "da", "de", "el", "en", "es", "fi", "fr", "he", "hi", "it", "ja", "ko", "ms", "nl", "no", "pl",
             "pt", "ru", "sv", "sw", "tr", "zh")
TOKENIZERS = ("grapheme_mtl_merged_expanded_v1.json", "mtl_tokenizer.json", "tokenizer.json")
_ENGLISH_TAG = "[en]"  # only the multilingual files have it
_SINGLE_LANGUAGE = re.compile(r"t3_([a-z]{2})(_[a-z]+)*\.safetensors")  # t3_pt_br.safetensors, t3_hi.safetensors


def base_front_end(folder: Path, text_rows: int, checkpoint: str = "the checkpoint") -> FrontEnd:
    """The front-end of the T3 in the file `checkpoint` of `folder`, which has `text_rows` rows of text.

    It uses the tokenizer file with exactly these ids; `UserError` names every file and its size if none fits. The name
    of a single-language checkpoint selects that language alone.
    """

    folder = Path(folder)
    contents = {name: (folder / name).read_bytes() for name in TOKENIZERS if (folder / name).is_file()}
    if not contents:
        raise UserError(
            f"{folder} has no tokenizer; one of {', '.join(TOKENIZERS)} is wanted.", "Download the model again.")

    # Several files may be present; the number of ids tells which one belongs to the checkpoint.
    ids = {name: vocabulary(content, str(folder / name)) for name, content in contents.items()}
    fitting = [name for name in contents if highest_id(ids[name]) + 1 == text_rows]
    if not fitting:
        sizes = " and ".join(f"{folder / name} has {highest_id(ids[name]) + 1} ids" for name in contents)
        raise UserError(
            f"{sizes}, and {_place(folder, checkpoint)} has {text_rows} text rows: they do not belong together.",
            "Use the tokenizer that was published with this checkpoint; download the model again.",
        )

    name = fitting[0]
    # The tags of languages show whether the tokenizer is multilingual.
    multilingual = _ENGLISH_TAG in ids[name]
    codes = _languages(checkpoint) if multilingual else ("en",)
    data = {file: (folder / file).read_bytes() for file in DATA_FILES if multilingual and (folder / file).is_file()}
    normalisers = {code: for_base_language(code, multilingual) for code in codes}
    return FrontEnd.wrap(contents[name], normalisers, text_rows, style="chatterbox", tagged=multilingual, data=data)


def _languages(checkpoint: str) -> tuple[str, ...]:
    match = _SINGLE_LANGUAGE.fullmatch(Path(checkpoint).name)
    return (match[1],) if match and match[1] in LANGUAGES else LANGUAGES


def _place(folder: Path, checkpoint: str) -> str:
    return str(folder / checkpoint) if (folder / checkpoint).is_file() else checkpoint
