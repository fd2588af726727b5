"""What the published package (indextts2-inference 2.1.1) makes of texts, with a tokenizer trained here.

Run with the Python of an environment that has that package, from the repository root:
    python tests/reference/make_indextts2_text.py
It writes `indextts2/bpe.model`, a small SentencePiece BPE over Chinese and English, and
`indextts2/text.json`: texts with what they become, and their ids in segments of 120 and 30 tokens.
Only digits are verbalized, one by one, by a stand-in for the package of rules.
"""

from __future__ import annotations

import io
import json
import random
import tempfile
import unicodedata
import warnings
from pathlib import Path

import sentencepiece
from indextts.utils.common import tokenize_by_CJK_char
from indextts.utils.front import TextNormalizer, TextTokenizer
from sentencepiece import sentencepiece_model_pb2

HERE = Path(__file__).resolve().parent
OUT = HERE / "indextts2"
TEXTS = HERE.parents[1] / "scripts" / "dev" / "tiny" / "udhr.jsonl"
PIECES = 1200
DIGITS = {True: "零一二三四五六七八九",
          False: ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")}
PARTS = (
    "GPT-5-mini", "什么", "what's", "It's", "克里斯·诺兰", "xuan4", "ju2", "qün3", "lüe4", "JUAN1", "er2", "ng4",
    "…", "...", "，，，", ",,,", "……", "“a”", "：", "；", "$5", "—", "～", "·", "(x)", "[y]", "「z」", " ", "\n", "5",
    "beta2", "安-妮", "A-b", "ＡＢ", "！？", "。", "x", "the", "日本語", "한국", "İi", "ß", "，", "fine.", "'quoted.'",
    "a@b.com",
)
SPACED = "\u00a0\u200b\u200c\u200d\u3000\ufeff"  # read as a space, as in SentencePiece's `nmt_nfkc`


class Digits:
    """Stands in for the package of rules."""

    def __init__(self, chinese: bool) -> None:
        self.names = {ord(str(digit)): name for digit, name in enumerate(DIGITS[chinese])}

    def normalize(self, text: str, verbose: bool = False) -> str:
        return text.translate(self.names)


def paragraphs() -> dict[str, list[str]]:
    rows = [json.loads(line) for line in TEXTS.read_text("utf-8").splitlines()]
    return {row["language"]: row["paragraphs"] for row in rows}


def train(normalizer: TextNormalizer) -> bytes:
    """A model with a small table of normalisation in place of the published 240 kB: what tests need of NFKC."""
    folded = [chr(code) for code in (*range(0xFF01, 0xFF5F), 0x0E33, 0x0EB3, *range(0xFB00, 0xFB05))]
    rules = [(one, unicodedata.normalize("NFKC", one)) for one in folded]
    rules += [("A\u0301", "Á"), ("E\u0301", "É"), *((one, " ") for one in SPACED)]
    lines = "".join("\t".join(" ".join(f"{ord(c):X}" for c in side) for side in rule) + "\n" for rule in rules)
    sentences = [tokenize_by_CJK_char(normalizer.normalize(text)) for code in ("en", "zh")
                 for text in paragraphs()[code]]
    sentences += ["0 1 2 3 4 5 6 7 8 9 A B C D E F G H I J K L M N O P Q R S T U V W X Y Z . , ? ! - ' …"] * 5
    made = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as table:
        table.write(lines)
        table.flush()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences), model_writer=made, model_type="bpe", vocab_size=PIECES, bos_id=0,
            eos_id=1, unk_id=2, character_coverage=0.9995, normalization_rule_tsv=table.name, num_threads=1,
            minloglevel=2)
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(made.getvalue())
    model.normalizer_spec.ClearField("normalization_rule_tsv")  # a path on the machine
    return model.SerializeToString(deterministic=True)


def texts() -> list[str]:
    rng = random.Random(0)
    made = ["".join(rng.choice(PARTS) + rng.choice(["", "", " "]) for _ in range(rng.randint(1, 9)))
            for _ in range(150)]
    spoken = [text for code in ("en", "zh") for text in paragraphs()[code][:15]]
    long = [" ".join(paragraphs()["en"][:6]), "".join(paragraphs()["zh"][:6])]
    return [*made, *spoken, *long, "A", "好", "a", " ", "", "12345", "a\nb\nc", "x" * 200]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    normalizer = TextNormalizer()
    normalizer._normalizers = {"zh": Digits(True), "en": Digits(False)}
    normalizer.load = lambda: None
    OUT.mkdir(exist_ok=True)
    (OUT / "bpe.model").write_bytes(train(normalizer))
    tokenizer = TextTokenizer(str(OUT / "bpe.model"), normalizer)
    found = []
    for text in texts():
        tokens = tokenizer.tokenize(text)
        segments = {limit: [tokenizer.convert_tokens_to_ids(one) for one in tokenizer.split_segments(tokens, limit)]
                    for limit in (120, 30)}
        found.append({"text": text, "chinese": normalizer.use_chinese(text), "ids": tokenizer.encode(text),
                      "marked": normalizer.normalize(text), "segments_120": segments[120], "segments_30": segments[30]})
    content = ",\n".join(json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in found)
    (OUT / "text.json").write_text(f"[\n{content}\n]\n", encoding="utf-8")
