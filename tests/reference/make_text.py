"""What the published package (chatterbox-tts 0.1.7, MIT) makes of sentences, with a tokenizer made up here.

Run with the Python of an environment that has that package, from the repository root:
    python tests/reference/make_text.py
It writes `chatterbox/tokenizer.json` and `chatterbox/Cangjie5_TC.json`, made up in the form of
the published files, and `chatterbox/text.json`: texts and ids by language.
Japanese is by the real pykakasi; `stand_ins` is used where a model comes from the network.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUT = HERE / "chatterbox"
TEXTS = HERE.parents[1] / "scripts" / "dev" / "tiny" / "udhr.jsonl"
LANGUAGES = ("ar", "da", "de", "el", "en", "es", "fi", "fr", "he", "hi", "it", "ja", "ko", "ms", "nl", "no", "pl",
             "pt", "ru", "sv", "sw", "tr", "zh")
OTHER_TAGS = ["[cs]", "[vi]", "[laughter]", "[UH]", "[ipa]"]  # as there are in the published files
KEYS = [*"abcdefghijklmnopqrstuvwxyz0123456789", "."]
MARKS = " !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~¡«»¿–—‘’“”…،؛؟۔।॥、。「」・"
MERGES = ["t h", "th e", "i n", "a n", "an d", "e r", "o u", "l l", "e n", "d e", "a l", "c h", "s ch", "h o"]
SENTENCES, LONGEST = 20, 90
PROBES = (  # what the order of the published steps shows in
    "hello... world", " leading space: and; colon", "“Quoted” — dash – dash, ‘single’", "ends with comma,",
    "straße", "ßtart", "ılık İstanbul", "No full stop", "Really?!", "10:30 - 3.5 [laughter] ok", "ﬁne ½ café",
    "两个、句子。", "ends 好！", "\ttabs\nand  lines ", "é", "Already e\u0301 decomposed",
)


def texts() -> dict[str, list[str]]:
    found = {}
    for line in TEXTS.read_text("utf-8").splitlines():
        row = json.loads(line)
        if row["language"] in LANGUAGES:
            parts = [paragraph[:LONGEST].rsplit(" ", 1)[0] for paragraph in row["paragraphs"]]
            found[row["language"]] = list(dict.fromkeys(parts))[:SENTENCES]
    return found


def tokenizer(sentences: dict[str, list[str]]) -> dict[str, object]:
    """Characters with and without NFKD, merges, tags among them, place holders, and an id that is left out."""
    raw = "".join(text for group in sentences.values() for text in group) + MARKS + "".join(PROBES)
    forms = raw + raw.lower() + unicodedata.normalize("NFKD", raw.lower()) + "".join(map(chr, range(0x3041, 0x30FF)))
    characters = sorted({c for c in forms + "\u0301\u05b8" if not c.isspace() and c not in "两个句子好"
                         and not 0x4E00 <= ord(c) <= 0x9FFF and not 0xAC00 <= ord(c) <= 0xD7A3})
    special = ["[STOP]", "[UNK]", "[SPACE]"]
    tags = [f"[{code}]" for code in LANGUAGES] + OTHER_TAGS + [f"[cj_{key}]" for key in KEYS]
    names = [*special, *characters[:200], *(merge.replace(" ", "") for merge in MERGES), *characters[200:], *tags]
    ids = {name: index if index < 255 else index + 1 for index, name in enumerate(names)}
    ids = {name: index if index < 329 else index + 1 for name, index in ids.items()}  # 329 is nobody's
    ids["[START]"] = 255
    for number in range(55, 64):
        ids[f"[PLACEHOLDER{number}]"] = max(ids.values()) + 1
    added = [name for name in ids if name in (*special, *tags, "[START]") or name.startswith("[PLACEHOLDER")]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": ids[name], "content": name, **flags} for name in added],
        "normalizer": None, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "dropout": None, "unk_token": "[UNK]", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "vocab": ids, "merges": MERGES},
    }


def cangjie(sentences: dict[str, list[str]]) -> list[str]:
    """Made-up codes, many of them shared, so that the number after a code has one and two digits."""
    characters = sorted({c for text in sentences["zh"] for c in text if 0x4E00 <= ord(c) <= 0x9FFF})
    characters += [c for c in "两个句子好" if c not in characters]
    entries = [f"{c}\t{'abcdefghijklmnopqrst'[ord(c) % 20]}{'xyz'[ord(c) % 3]}\tx" for c in characters]
    return [*entries, f"{characters[0]}\tsecondcode"]


def published_ids(sentences: dict[str, list[str]]) -> dict[str, list[list[object]]]:
    """Texts with their ids by language, by `english` for the English model and by `he-pointed` for Hebrew with points.

    Start and stop are left out.
    """
    sys.path.insert(0, str(HERE))
    import stand_ins

    stand_ins.install()
    from chatterbox import mtl_tts, tts
    from chatterbox.models.tokenizers import EnTokenizer
    from chatterbox.models.tokenizers import tokenizer as module

    module.hf_hub_download = lambda filename, **_: str(OUT / filename)
    multilingual, english = module.MTLTokenizer(str(OUT / "tokenizer.json")), EnTokenizer(str(OUT / "tokenizer.json"))
    found = {
        code: [[text, multilingual.encode(mtl_tts.punc_norm(text), language_id=code)] for text in (*group, *PROBES)]
        for code, group in sentences.items()
    }
    module._dicta = stand_ins.Dicta("made up")  # as the package means it; its own call lacks the path and fails
    found["he-pointed"] = [[text, multilingual.encode(mtl_tts.punc_norm(text), language_id="he")]
                           for text in (*sentences["he"], *PROBES)]
    found["english"] = [[text, english.encode(tts.punc_norm(text))] for text in (*sentences["en"], *PROBES)]
    return found


def write(name: str, value: object) -> None:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    (OUT / name).write_text(text.replace('],["', '],\n["') + "\n", encoding="utf-8")


if __name__ == "__main__":
    everything = texts()
    OUT.mkdir(exist_ok=True)
    write("tokenizer.json", tokenizer(everything))
    write("Cangjie5_TC.json", cangjie(everything))
    write("text.json", published_ids(everything))
