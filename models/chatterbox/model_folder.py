"""Chatterbox's model folder: finding its files, reading the built-in voice, and writing an export.

A folder holds one T3, S3Gen, the voice encoder and perhaps a built-in voice, as published: safetensors or `.pt`. An
export is such a folder with a larger T3. Files that training does not change are hard links where the disk allows it
(they are a gigabyte). A script in it shows how the published package loads the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from config.errors import UserError
from data.durable_files import link_or_copy
from data.normalisers import DATA_FILES
from models import weights
from models.base import ExportFile, Voice
from models.chatterbox.front_end import TOKENIZERS

LANGUAGE_MODEL = "t3_finetuned.safetensors"
MERGED = "t3-merged.safetensors"  # does not match _T3, so that it is never taken for the model
SCRIPT = "load_with_chatterbox.py"
VOICE = "built-in"
_T3 = "t3_*.safetensors"
_PURPOSES = {"s3gen": "speech tokenizer, speaker encoder, flow and vocoder, as published",
             "ve": "voice encoder, as published", "conds": "the built-in voice"}


@dataclass(frozen=True)
class ModelFiles:
    """The files of one model."""

    t3: Path
    s3gen: Path
    voice_encoder: Path
    conditionals: Path | None  # the built-in voice

    @property
    def all(self) -> tuple[Path, ...]:
        """All that exist."""
        paths = (self.t3, self.s3gen, self.voice_encoder, self.conditionals)
        return tuple(path for path in paths if path is not None)


def find_language_model(folder: Path) -> Path:
    """The T3 in `folder`; `UserError` if there is not exactly one."""
    t3 = sorted(folder.glob(_T3))
    if len(t3) != 1:
        names = ", ".join(path.name for path in t3) or "none"
        raise UserError(f"{folder} should hold one T3 checkpoint ({_T3}); there: {names}.",
                        "Keep the one to use in it." if t3 else "Download the model again.")
    return t3[0]


def find_files(folder: Path) -> ModelFiles:
    """The files of the model in `folder`; `UserError` if one is missing or there are several T3."""
    conditionals = folder / "conds.pt"
    return ModelFiles(
        find_language_model(folder), _first(folder, "s3gen.safetensors", "s3gen.pt", "s3gen_v3.safetensors",
                                            "s3gen_v3.pt"),
        _first(folder, "ve.safetensors", "ve.pt"), conditionals if conditionals.is_file() else None,
    )


def _first(folder: Path, *names: str) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{folder} lacks {' or '.join(names)}.", "Download the model again.")


def read_voice(path: Path) -> Voice:
    """The voice in a published `conds.pt`; `UserError` if a part of it is missing."""
    conditionals = weights.read_nested(path)
    try:
        t3, s3gen = conditionals["t3"], conditionals["gen"]
        codes, mel = _row(s3gen["prompt_token"]), _row(s3gen["prompt_feat"])
        # The prompt's mel has two frames a code; the shorter of the two decides.
        length = min(len(codes), len(mel) // 2)
        return Voice(
            {"speaker_embedding": _row(t3["speaker_emb"]).astype(np.float32),
             "prompt_codes": _row(t3["cond_prompt_speech_tokens"]).astype(np.int64)},
            {"codes": codes[:length].astype(np.int64), "mel": mel[:2 * length].astype(np.float32),
             "speaker": _row(s3gen["embedding"]).astype(np.float32)},
        )
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{path} is no voice of Chatterbox: {error!r}.",
                        "Delete it, and give a reference recording instead, or download the model again.") from error


def _row(value: torch.Tensor) -> np.ndarray:
    """The only row of (1, ...)."""
    return value[0].detach().cpu().numpy()


def write_export(base: Path, folder: Path, tensors: Mapping[str, torch.Tensor],
                 merged: Mapping[str, torch.Tensor] | None) -> tuple[ExportFile, ...]:
    """Write the export's model files into `folder`; returns their names and purposes."""
    weights.write(folder / LANGUAGE_MODEL, tensors)
    export_files = [ExportFile(LANGUAGE_MODEL, "T3: base rows, then new rows; without adapters")]
    if merged is not None:
        weights.write(folder / MERGED, merged)
        export_files.append(ExportFile(MERGED, "T3 with the adapters merged; it CHANGES the base languages"))

    # The other model files of the base are linked, the language model is new.
    for path in find_files(base).all[1:]:
        link_or_copy(path, folder / path.name)
        export_files.append(ExportFile(path.name, _PURPOSES[path.name.split(".")[0].removesuffix("_v3")]))

    # Tokenizers and tables are those that the published package reads.
    for name in (*TOKENIZERS, *DATA_FILES):
        if (base / name).is_file():
            link_or_copy(base / name, folder / name)
            export_files.append(ExportFile(name, "of the base model's text front-end, as published"))

    (folder / SCRIPT).write_text(EXPORT_SCRIPT, encoding="utf-8")
    return (*export_files, ExportFile(SCRIPT, "speaks with these files through the published package chatterbox-tts"))


EXPORT_SCRIPT = '''"""Speak with this export through the published package: pip install chatterbox-tts

    python load_with_chatterbox.py LANGUAGE "TEXT" [--voice CLIP.wav] [--codes]

The package knows a fixed list of languages and one vocabulary size; both are set by hand here,
from the files. For the new language the weights with the adapters folded in are used, for the
base languages those without: the proof that they are as they were holds for the latter alone.
A language that an earlier training added has adapters of its own, in `earlier_trainings`, which
only Lisan uses: it is refused here.
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
arguments = parser.parse_args()

front_end = json.loads((folder / "front_end" / "front_end.json").read_text(encoding="utf-8"))
language = front_end["languages"][arguments.language]
new = arguments.language not in front_end["base_languages"]
origin = json.loads((folder / "export.json").read_text(encoding="utf-8"))["origin"]
earlier = ",".join(one["language"] for one in origin.get("earlier_trainings", ()))
if arguments.language in earlier.split(","):
    raise SystemExit(f"{arguments.language} has adapters of its own, in a folder of earlier_trainings: "
                     "speak it with Lisan (load_example.py).")
merged = folder / "t3-merged.safetensors"
state = load_file(merged if new and merged.is_file() else folder / "t3_finetuned.safetensors")

sizes = T3Config(text_tokens_dict_size=state["text_emb.weight"].shape[0])  # the package's own: 2454
layers = 1 + max(int(key.split(".")[2]) for key in state if key.startswith("tfmr.layers."))
LLAMA_CONFIGS[sizes.llama_config_name]["num_hidden_layers"] = layers
t3 = T3(sizes)
t3.load_state_dict(state)  # strictly
tokenizer = MTLTokenizer(str(folder / "front_end" / language["tokenizer"]))
mtl_tts.SUPPORTED_LANGUAGES[arguments.language] = arguments.language  # the package's own list is fixed

if arguments.codes:
    ids = tokenizer.text_to_tokens(mtl_tts.punc_norm(arguments.text), language_id=arguments.language)
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
waveform = model.generate(arguments.text, language_id=arguments.language, audio_prompt_path=arguments.voice)

import soundfile

soundfile.write("speech.wav", waveform[0].numpy(), model.sr)
print(f"speech.wav: {waveform.shape[1] / model.sr:.2f} s")
'''
