"""The script in an export that speaks with it through the published package (resemble-ai/chatterbox, MIT)."""

TEXT = '''"""Speak with this export through the published package: pip install chatterbox-tts

    python load_with_chatterbox.py LANGUAGE "TEXT" [--voice CLIP.wav] [--codes]

The package knows a fixed list of languages and one vocabulary size; both are set by hand here,
from the files. For the new language the weights with the adapters folded in are used, for the
base languages those without: the proof that they are as they were holds for the latter alone.
Text is cleaned by the package, which is not quite the front-end the model was trained with
(`front_end/`): end sentences with a full stop, and write numbers as words.
"""

import argparse
import json
import sys
from pathlib import Path

if "zh" not in sys.argv:  # the package fetches a Chinese segmenter, whatever the language
    sys.modules["spacy_pkuseg"] = None

import torch
from chatterbox import mtl_tts
from chatterbox.models.s3gen import S3Gen
from chatterbox.models.t3 import T3
from chatterbox.models.t3.llama_configs import LLAMA_CONFIGS
from chatterbox.models.t3.modules.t3_config import T3Config
from chatterbox.models.tokenizers import MTLTokenizer
from chatterbox.models.voice_encoder import VoiceEncoder
from safetensors.torch import load_file

folder = Path(__file__).resolve().parent
parser = argparse.ArgumentParser()
parser.add_argument("language")
parser.add_argument("text")
parser.add_argument("--voice", help="a reference recording; without it, the built-in voice")
parser.add_argument("--codes", action="store_true", help="stop after T3 and print its first codes")
asked = parser.parse_args()

front_end = json.loads((folder / "front_end" / "front_end.json").read_text(encoding="utf-8"))
language = front_end["languages"][asked.language]
new = asked.language not in front_end["base_languages"]
merged = folder / "t3-merged.safetensors"
state = load_file(merged if new and merged.is_file() else folder / "t3_finetuned.safetensors")

sizes = T3Config(text_tokens_dict_size=state["text_emb.weight"].shape[0])  # the package's own: 2454
layers = 1 + max(int(key.split(".")[2]) for key in state if key.startswith("tfmr.layers."))
LLAMA_CONFIGS[sizes.llama_config_name]["num_hidden_layers"] = layers
t3 = T3(sizes)
t3.load_state_dict(state)  # strictly
tokenizer = MTLTokenizer(str(folder / "front_end" / language["tokenizer"]))
mtl_tts.SUPPORTED_LANGUAGES[asked.language] = asked.language  # the package's own list is fixed

if asked.codes:
    ids = tokenizer.text_to_tokens(mtl_tts.punc_norm(asked.text), language_id=asked.language)
    ids = torch.nn.functional.pad(ids, (1, 0), value=sizes.start_text_token)
    ids = torch.nn.functional.pad(ids, (0, 1), value=sizes.stop_text_token)
    voice = mtl_tts.Conditionals.load(folder / "conds.pt")
    codes = t3.eval().inference(t3_cond=voice.t3, text_tokens=torch.cat([ids, ids]), max_new_tokens=20,
                                temperature=0.8, top_p=1e-6, repetition_penalty=1.2, cfg_weight=0.5)
    print(json.dumps({"text_ids": ids[0].tolist(), "codes": codes[0].tolist()}))
    raise SystemExit


def published(module, name):
    """A model of the package with the weights of NAME.safetensors or NAME.pt."""
    whole = folder / f"{name}.safetensors"
    held = load_file(whole) if whole.is_file() else torch.load(folder / f"{name}.pt", weights_only=True)
    module.load_state_dict(held, strict=False)  # fixed analysis windows are not in every file
    return module.eval()


s3gen = "s3gen_v3" if any(folder.glob("s3gen_v3.*")) else "s3gen"
conditionals = folder / "conds.pt"
model = mtl_tts.ChatterboxMultilingualTTS(
    t3.eval(), published(S3Gen(), s3gen), published(VoiceEncoder(), "ve"), tokenizer, "cpu",
    mtl_tts.Conditionals.load(conditionals) if conditionals.is_file() else None)
waveform = model.generate(asked.text, language_id=asked.language, audio_prompt_path=asked.voice)

import soundfile

soundfile.write("speech.wav", waveform[0].numpy(), model.sr)
print(f"speech.wav: {waveform.shape[1] / model.sr:.2f} s")
'''
