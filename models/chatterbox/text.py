"""The text front-end of a published Chatterbox model: its tokenizer file, checked against its T3.

Which tokenizer belongs to a T3 follows from the number of text rows, and the published files
leave no spare row: the highest id and one are 704, 2352 or 2454 (the file of 2352 has 2351
tokens, as one id is unused). The English model has no language tags, keeps upper case, and
its file knows tags of languages that it was not published with. Source of the language list:
resemble-ai/chatterbox (MIT), `mtl_tts.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

from config.errors import UserError
from data.bpe import highest_id, vocabulary
from data.front_end import FrontEnd
from data.normalisers import DATA_FILES, for_base_language

LANGUAGES = ("ar", "da", "de", "el", "en", "es", "fi", "fr", "he", "hi", "it", "ja", "ko", "ms", "nl", "no", "pl",
             "pt", "ru", "sv", "sw", "tr", "zh")
TOKENIZERS = ("grapheme_mtl_merged_expanded_v1.json", "mtl_tokenizer.json", "tokenizer.json")
_ENGLISH_TAG = "[en]"  # only the multilingual files have it
_PACK = re.compile(r"t3_([a-z]{2})(_[a-z]+)*\.safetensors")  # t3_pt_br.safetensors, t3_hi.safetensors


def base_front_end(folder: Path, text_rows: int, checkpoint: str = "the checkpoint") -> FrontEnd:
    """The front-end of the T3 in the file `checkpoint` of `folder`, which has `text_rows` rows of text.

    The tokenizer among the published names whose ids are these rows is taken. Raises `UserError` with every
    file and size when none fits. A file whose name says that it is a single-language pack gives that language alone.
    """
    folder = Path(folder)
    there = {name: (folder / name).read_bytes() for name in TOKENIZERS if (folder / name).is_file()}
    if not there:
        raise UserError(
            f"{folder} has no tokenizer; one of {', '.join(TOKENIZERS)} is wanted.", "Download the model again.")
    ids = {name: vocabulary(content, str(folder / name)) for name, content in there.items()}
    fitting = [name for name in there if highest_id(ids[name]) + 1 == text_rows]
    if not fitting:
        sizes = " and ".join(f"{folder / name} has {highest_id(ids[name]) + 1} ids" for name in there)
        raise UserError(
            f"{sizes}, and {_place(folder, checkpoint)} has {text_rows} text rows: they do not belong together.",
            "Use the tokenizer that was published with this checkpoint; download the model again.",
        )
    name = fitting[0]
    multilingual = _ENGLISH_TAG in ids[name]
    codes = _languages(checkpoint) if multilingual else ("en",)
    data = {file: (folder / file).read_bytes() for file in DATA_FILES if multilingual and (folder / file).is_file()}
    normalisers = {code: for_base_language(code, multilingual) for code in codes}
    return FrontEnd.wrap(there[name], normalisers, text_rows, style="chatterbox", tagged=multilingual, data=data)


def _languages(checkpoint: str) -> tuple[str, ...]:
    pack = _PACK.fullmatch(Path(checkpoint).name)
    return (pack[1],) if pack and pack[1] in LANGUAGES else LANGUAGES


def _place(folder: Path, checkpoint: str) -> str:
    return str(folder / checkpoint) if (folder / checkpoint).is_file() else checkpoint
