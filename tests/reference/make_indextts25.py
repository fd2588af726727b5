"""Write `indextts25/*` with the published code of IndexTTS 2.5, at a small size.

It is indextts25-inference 0.2.0; the encoding half of the codec, which that package leaves out, is the RepCodec of
indextts2-inference 2.1.1 with `downsample_scale` 2. Run this in their environment:

    make reference && .reference/bin/python tests/reference/make_indextts25.py

`make_indextts25.py spanish` writes `spanish.json` alone, for which nemo-text-processing 1.2.0 must be installed there,
and `make_indextts25.py japanese` writes `japanese.json`, for which fugashi 1.5.2 and unidic-lite 1.0.8 must be.

The models are filled from a seed by `scripts.dev.random_weights`, so that only inputs, outputs and the shapes of the
published tensors are stored. The package has no text head: text logits are products of its states with one from the
seed. The tokenizer's file is made here: byte-level BPE over `udhr.jsonl`.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path

import torch
from indextts.s2mel.modules.commons import MyModel as NormedModel
from indextts.utils.maskgct.models.codec.kmeans.repcodec_model import RepCodec
from indextts25.codec.models import EnhancedCodec
from indextts25.gpt.model_v2 import UnifiedVoice
from indextts25.infer_v2_5 import IndexTTS2
from indextts25.s2mel.modules.commons import MyModel
from indextts25.utils.checkpoint import fold_weight_norm
from indextts25.utils.front import TextNormalizer
from indextts25.utils.tokenizer import LANGUAGE_DICT, get_encoding, lang_to_token
from munch import Munch
from safetensors.torch import save_file
from torch.nn.functional import linear

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.dev.random_weights import tensor
from tests.reference.byte_level import tiktoken_file
from tests.reference.make_indextts2_text import Digits
from tests.reference.make_indextts2_text import texts as made_texts

HERE = Path(__file__).resolve().parent
SEED, WIDTH, CODES, START, STOP, TEXT_ROWS, FAVOURED = 25, 128, 70, 68, 69, 41, 0.8
HIDDEN, GUIDANCE, STEPS = 64, 0.7, 10
TARGET = HERE / "indextts25"
NAME = "multilingual_zh_ja_yue_char_del"


@torch.no_grad()
def fill(module: torch.nn.Module) -> dict[str, list[int]]:
    """Fill all but fixed tables; the shapes of all."""
    state = module.state_dict()
    for name, value in state.items():
        if name.rpartition(".")[2] not in ("freqs", "input_pos", "pe"):
            value.copy_(torch.from_numpy(tensor(name, tuple(value.shape), SEED)))
    return {name: list(value.shape) for name, value in state.items()}


def draw(name: str, *shape: int) -> torch.Tensor:
    """An input, normal numbers."""
    scale = float(torch.tensor(shape[1:]).prod()) ** 0.5 if len(shape) > 1 else 1.0
    return torch.from_numpy(tensor(f"input:{name}", shape, SEED)) * scale


def save(name: str, outputs: dict[str, torch.Tensor], **metadata: object) -> None:
    path = TARGET / f"{name}.safetensors"
    save_file({key: value.contiguous().clone() for key, value in outputs.items()}, str(path),
              {key: json.dumps(value) for key, value in metadata.items()})
    print(path, path.stat().st_size)


def gpt() -> None:
    stack = {"output_size": 16, "linear_units": 24, "attention_heads": 2, "num_blocks": 1, "input_layer": "conv2d2",
             "perceiver_mult": 1}
    model = UnifiedVoice(layers=2, model_dim=WIDTH, heads=2, max_text_tokens=30, max_mel_tokens=60,
                         number_text_tokens=TEXT_ROWS - 1, number_mel_codes=CODES, start_mel_token=START,
                         stop_mel_token=STOP, emo_condition_module=stack).eval()
    shapes = fill(model)
    model.mel_head.bias[1] += FAVOURED
    model.post_init_gpt2_config()
    prompt, emotion = draw("prompt", 1, 27, 1024) / 32, draw("emotion", 1, 20, 1024) / 32
    style, lengths = draw("style", 1, 192), torch.tensor([1024])  # as the package passes it: the width
    mixed = model.merge_emovec(prompt, emotion, lengths, lengths, alpha=0.6)
    ids = torch.arange(12)[None] * 7 % 38 + 2
    ids[0, 5] = 0  # an exclamation mark, and the id of the start
    language = torch.tensor([lang_to_token("am")])
    codes = torch.arange(9)[None] * 5 % 60 + 3
    latent = model.spk_emb_proj(style)[:, None] + mixed[:, None]
    conditioning = torch.cat([latent, latent.new_zeros(1, 2, WIDTH)], 1)
    _, rows, _ = model.prepare_gpt_inputs(conditioning, ids, language)
    speech = torch.cat([torch.tensor([[START]]), codes], 1)
    speech_rows = model.mel_embedding(speech) + model.mel_pos_embedding(speech)
    states = model.final_norm(model.gpt(inputs_embeds=torch.cat([rows, speech_rows], 1)).last_hidden_state)
    weight, bias = (torch.from_numpy(tensor(f"text_head.{kind}", shape, SEED))
                    for kind, shape in (("weight", (TEXT_ROWS, WIDTH)), ("bias", (TEXT_ROWS,))))
    text = torch.cat([torch.tensor([[0]]), ids, torch.tensor([[1]])], 1)
    outputs = {"style": style, "emotion_vector": mixed, "text_ids": text, "codes": codes, "conditioning": conditioning,
               "text_logits": linear(states[:, 3:3 + text.shape[1]], weight, bias),
               "speech_logits": model.mel_head(states[:, -speech.shape[1]:]), "language": language}
    for name, penalty in (("", 1.0), ("_penalty_10", 10.0)):
        outputs["published" + name] = model.inference_speech(
            ids, language, mixed, style, max_generate_length=36, do_sample=False, num_beams=1,
            repetition_penalty=penalty)
        print(name, outputs["published" + name].tolist())
    save("gpt", outputs, shapes=shapes)


def codec_and_s2mel() -> None:
    sizes = {"codebook_size": CODES, "hidden_size": HIDDEN, "vocos_dim": 24, "vocos_intermediate_dim": 48,
             "vocos_num_layers": 2}
    whole = RepCodec(**sizes, downsample_scale=2).eval()
    codec_shapes = fill(whole)
    published = EnhancedCodec(**sizes).eval()
    with tempfile.NamedTemporaryFile(suffix=".pth") as file:
        torch.save({"model": whole.state_dict()}, file.name)
        published.load_checkpoint(file.name)
    outputs = {}
    for frames in (29, 44):
        states = draw(f"states_{frames}", 1, frames, HIDDEN)
        outputs |= {f"states_{frames}": states, f"codes_{frames}": whole.quantize(states)[0]}
    codes = outputs["codes_29"]
    outputs["decoded"] = published.decode(codes)

    tree = Munch.fromDict({
        "dit_type": "DiT", "reg_loss_type": "l1", "style_encoder": {"dim": 6},
        "DiT": {"hidden_dim": 64, "num_heads": 1, "depth": 5, "class_dropout_prob": 0.1, "in_channels": 8,
                "style_condition": True, "final_layer_type": "wavenet", "content_dim": 64,
                "content_codebook_size": 1024, "content_type": "discrete", "is_causal": False,
                "long_skip_connection": True, "time_as_token": False, "style_as_token": False,
                "uvit_skip_connection": True},
        "wavenet": {"hidden_dim": 64, "num_layers": 3, "kernel_size": 5, "dilation_rate": 1, "p_dropout": 0.2,
                    "style_condition": True},
        "length_regulator": {"channels": 64, "sampling_ratios": [1, 1, 1, 1], "is_discrete": False,
                             "in_channels": HIDDEN, "content_codebook_size": 2048},
    })
    normed = NormedModel(tree, use_gpt_latent=False).models
    normed["cfm"].estimator.setup_caches(max_batch_size=1, max_seq_length=8192)
    s2mel_shapes = fill(normed)
    model = MyModel(tree).models
    for name, part in model.items():
        state = {key: value for key, value in normed[name].state_dict().items() if key in fold_keys(part)}
        part.load_state_dict(fold_weight_norm(state, "cpu"))
    model["cfm"].estimator.setup_caches(max_batch_size=1, max_seq_length=8192)
    model.eval()
    style, mel = draw("s2mel_style", 1, 6), draw("prompt_mel", 1, 8, 21)
    regulator = model["length_regulator"]
    content = outputs["decoded"]
    frames = int(content.shape[1] * 1.72)
    condition = torch.cat([regulator(outputs["states_44"], ylens=torch.LongTensor([21])),
                           regulator(content, ylens=torch.LongTensor([frames]))], 1)
    noise = draw("noise", 1, 8, 21 + frames)
    made = model["cfm"].solve_euler(noise.clone(), torch.LongTensor([21 + frames]), mel, condition, style, None,
                                    torch.linspace(0, 1, STEPS + 1), GUIDANCE)
    outputs |= {"style": style, "prompt_mel": mel, "noise": noise, "condition": condition, "mel": made[..., 21:]}
    save("sound", outputs, codec_shapes=codec_shapes, s2mel_shapes=s2mel_shapes)


def fold_keys(part: torch.nn.Module) -> set[str]:
    """The keys of a checkpoint that the package's part of S2Mel reads: those it has, and their weight norm."""
    own = set(part.state_dict())
    return own | {f"{name}{half}" for name in own for half in ("_g", "_v")}


def text() -> None:
    paragraphs = {row["language"]: row["paragraphs"] for row in map(
        json.loads, (HERE.parents[1] / "scripts/dev/tiny/udhr.jsonl").read_text("utf-8").splitlines())}
    (TARGET / f"{NAME}.tiktoken").write_bytes(tiktoken_file(
        [one for several in paragraphs.values() for one in several], 1500))
    encoding = get_encoding(NAME, model_dir=str(TARGET))
    reader = object.__new__(IndexTTS2)
    reader.text_process = TextNormalizer(enable_glossary=True)
    reader.text_process.zh_normalizer, reader.text_process.en_normalizer = Digits(True), Digits(False)
    chance = random.Random(5)
    readings = ("<行|xing2>", "<going|G OW1 . IH0 NG>", "14:30：", "¿Qué?", "<仮|カリ>", "<|happy|>")
    found = []
    for language in ("zh", "en", "es", "ar"):
        given = [one.strip() for one in made_texts()[:50]] + paragraphs.get(language, [])[:12]
        given += [chance.choice(readings) + one for one in given[:20]]
        for one in given:
            if not one:
                continue
            normal = reader._prepare_text(one, language)
            found.append({"language": language, "text": one, "normal": normal,
                          "ids": encoding.encode(f"<|{language}|> {normal}", allowed_special="all")})
    found += [{"language": "", "text": one, "normal": one,
               "ids": encoding.encode(f"<|en|> {one}", allowed_special="all")}
              for several in paragraphs.values() for one in several[:2]]
    content = ",\n".join(json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in found)
    languages = json.dumps(LANGUAGE_DICT)
    (TARGET / "text.json").write_text(f'{{"languages": {languages},\n"texts": [\n{content}\n]}}\n', encoding="utf-8")
    print(len(found), (TARGET / "text.json").stat().st_size)


SPANISH = (
    "Son las 14:30 del 3 de mayo de 2024.", "Cuesta 25,50 € y pesa 3,5 kg.", "El 15% de 1.234.567 personas vino.",
    "Capítulo IV, página 12.", "Llame al 91 123 45 67.", "Felipe II murió en 1598.", "El Sr. López vive en la calle 5.",
    "Suba al 2º piso y a la 3ª planta.", "Añada 2/3 de taza: basta.", "¿Cuántos? ¡1.000.000!", "Hace -5 °C.",
    "El 21 de enero hubo 31 accidentes.", "<going|G OW1> 7 veces", "GPT-5-mini cuesta $20.", "Mide 1,80 m.",
    "Escriba a ana@correo.com.", "Ni un número “hoy”…", "Los años 90 y 101.", "12/10/1492", "1ª",
)


def spanish() -> None:
    """Spanish with numbers, by NeMo's grammar as the package calls it, and as the model gets it."""
    from indextts25.utils.nemo_tn import normalize_text

    encoding = get_encoding(NAME, model_dir=str(TARGET))
    reader = object.__new__(IndexTTS2)
    reader.text_process = TextNormalizer(enable_glossary=True)
    found = []
    for one in SPANISH:
        normal = reader._prepare_text(one, "es")
        found.append({"text": one, "written_out": normalize_text(one, "es"), "normal": normal,
                      "ids": encoding.encode(f"<|es|> {normal}", allowed_special="all")})
    assert any(one["written_out"] != one["text"] for one in found), "nemo-text-processing is not installed"
    content = ",\n".join(json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in found)
    (TARGET / "spanish.json").write_text(f"[\n{content}\n]\n", encoding="utf-8")


JAPANESE = (
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。", "猫が犬を見ている。",
    "彼女は本を読みます。", "午後3時30分に東京駅で会いましょう!", "価格は1,980円です(税込)。",
    "2024年5月3日、気温は-5℃でした。", "GPT-5miniを使ってみた…", "「もう行くの?」と聞いた。",
    "コンピューターでメールを送る。", "お母さんは今日(きょう)も元気だ。", "すもももももももものうち。",
    "全角　の空白と 半角の 空白", "  前後に空白  ", "百聞は一見に如かず;急がば回れ:そう言う。", "<仮|カリ>の住まい",
    "<行|xing2>こう", "𠮷野家で食べた。", "ｶﾀｶﾅとＡＢＣ、ａｂｃ", "そう、、、ですか,,,はい……",
    "https://example.com を開く", "ヴァイオリンを弾く🎻", "改行\nの後", "ー", "々", "iPhone15のCMを観た〜",
    "<|happy|>嬉しい!",
)


def japanese() -> None:
    """Japanese, cut into words by the package, with the words of each part between spaces."""
    encoding = get_encoding(NAME, model_dir=str(TARGET))
    reader = object.__new__(IndexTTS2)
    reader.text_process, reader._ja_text_process = TextNormalizer(enable_glossary=True), None
    words: dict[str, list[str]] = {}
    cut = reader.ja_text_process.tokenize

    def keep(part: str) -> list[tuple[str, str]]:
        found = cut(part)
        words[part] = [word for word, _ in found]
        return found

    reader.ja_text_process.tokenize, found = keep, []
    for one in JAPANESE:
        words.clear()
        normal = reader._prepare_text(one, "ja")
        found.append({"text": one, "words": dict(words), "normal": normal,
                      "ids": encoding.encode(f"<|ja|> {normal}", allowed_special="all")})
    content = ",\n".join(json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in found)
    (TARGET / "japanese.json").write_text(f"[\n{content}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    TARGET.mkdir(exist_ok=True)
    if sys.argv[1:] in (["spanish"], ["japanese"]):
        {"spanish": spanish, "japanese": japanese}[sys.argv[1]]()
        sys.exit()
    with torch.inference_mode():
        gpt()
        codec_and_s2mel()
    text()
