"""IndexTTS2's model folder: finding and reading its files, stripping one, and writing an export.

A folder has the layout of the published code (index-tts/index-tts): the files of IndexTeam/IndexTTS-2, and those of
four other repositories in `hf_cache`. IndexTTS 2.5 has its own tokenizer and its own codec beside the GPT, which tells
the two apart: a GPT with a table of languages is one of 2.5. An export is such a folder with larger text tables in
`gpt.pth`, a tokenizer with more pieces, and a `config.yaml` that names the size. Files that training does not change
are hard links if the disk allows it. A script in it shows how the published package loads the files.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
import yaml

from config import foreign
from config.errors import UserError
from config.foreign import cached_by_file
from data.durable_files import link_or_copy
from data.segmenters import ByteLevelBpe, SentencePieceModel
from models import weights
from models.base import ExportFile
from models.gpt2 import transpose_matrices
from models.indextts2 import s2mel
from models.indextts2.unified_voice import LANGUAGE_TABLE, used_tensors

GPT, MERGED = "gpt.pth", "gpt-merged.pth"
CONFIG, MERGED_CONFIG = "config.yaml", "config-merged.yaml"
SCRIPT, SCRIPT_2_5 = "load_with_indextts2.py", "load_with_indextts25.py"
LICENCES = ("LICENSE.txt", "LICENSE_ZH.txt")  # clause 3.4(b): a copy of the agreement in every copy of the model
CODEC = "codec.pth"  # file of 2.5
_TABLES = ("text_embedding.weight", "text_head.weight", "text_head.bias")  # a row for each text id
_UNDER = ("model",)  # key under which a training checkpoint of the GPT holds the state dict


@dataclass(frozen=True)
class IndexTTS2Files:
    """The files of one model."""

    gpt: Path
    s2mel: Path
    statistics: Path  # mean and variance of the w2v-bert features
    voices: Path  # a voice for each emotion vector
    emotions: Path  # emotion vectors
    tokenizer: Path
    config: Path
    w2v_bert: Path
    w2v_bert_config: Path
    w2v_bert_features: Path  # settings of transformers' feature extractor, which the published code reads
    semantic_codec: Path
    campplus: Path
    vocoder: Path
    vocoder_config: Path


_PATHS = IndexTTS2Files(*map(Path, (
    GPT, "s2mel.pth", "wav2vec2bert_stats.pt", "feat1.pt", "feat2.pt", SentencePieceModel.base_file, CONFIG,
    "hf_cache/w2v-bert-2.0/model.safetensors", "hf_cache/w2v-bert-2.0/config.json",
    "hf_cache/w2v-bert-2.0/preprocessor_config.json", "hf_cache/semantic_codec_model.safetensors",
    "hf_cache/campplus_cn_common.bin", "hf_cache/bigvgan/bigvgan_generator.pt", "hf_cache/bigvgan/config.json",
)))
_PATHS_2_5 = replace(_PATHS, tokenizer=Path(ByteLevelBpe.base_file), semantic_codec=Path(CODEC))
_PURPOSES = {
    "s2mel": "codes to mel, as published", "statistics": "mean and variance of the features, as published",
    "voices": "a voice for each emotion vector, as published", "emotions": "emotion vectors, as published",
    "w2v_bert": "w2v-bert 2.0, the speech features (facebook/w2v-bert-2.0, MIT)",
    "w2v_bert_config": "its settings", "w2v_bert_features": "settings of its input",
    "semantic_codec": "features to codes (amphion/MaskGCT, CC-BY-NC-4.0: non-commercial)",
    "campplus": "the speaker encoder (funasr/campplus, Apache-2.0)",
    "vocoder": "BigVGAN v2, the vocoder (nvidia/bigvgan_v2_22khz_80band_256x, MIT)", "vocoder_config": "its settings",
}
_PURPOSES_2_5 = {"semantic_codec": "features to codes and back, as published",
                 "tokenizer": "the base's tokenizer, as published; `front_end` has those of new languages"}


def is_2_5(folder: Path) -> bool:
    """Whether the GPT in `folder` is one of IndexTTS 2.5."""
    return LANGUAGE_TABLE in gpt_shapes(find_language_model(folder))


def find_files(folder: Path) -> IndexTTS2Files:
    """The files of the model in `folder`; `UserError` names all that are missing."""
    of_2_5 = (folder / GPT).is_file() and is_2_5(folder)
    files = {field.name: folder / getattr(_PATHS_2_5 if of_2_5 else _PATHS, field.name)
             for field in fields(IndexTTS2Files)}
    absent = [path.relative_to(folder).as_posix() for path in files.values() if not path.is_file()]
    if absent:
        version = f"; its {GPT} is one of IndexTTS 2.5" if of_2_5 else ""
        raise UserError(f"{folder} lacks {', '.join(absent)}{version}.",
                        "Download the model again: what is there stays, and what is missing comes.")
    return IndexTTS2Files(**files)


def s2mel_parts(folder: Path) -> tuple[str, ...]:
    """The parts of `s2mel.pth` that are used: S2Mel of 2.5 takes no states of the GPT."""
    return s2mel.PARTS[:2] if is_2_5(folder) else s2mel.PARTS


def find_language_model(folder: Path) -> Path:
    """The GPT in `folder`; `UserError` if there is none."""
    if not (folder / GPT).is_file():
        raise UserError(f"{folder} lacks {GPT}.", "Download the model again, or give the folder of a model.")
    return folder / GPT


def read_gpt(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a GPT under their published names, also of a training checkpoint that holds them as `model`.

    Matrices of GPT-2 are input by output. `UserError` for a file of another version.
    """
    tensors = weights.read(path, _UNDER)
    _check_version(path, tensors)
    return tensors


@cached_by_file(4)  # every part of a model asks which version it is of
def gpt_shapes(path: Path) -> Mapping[str, tuple[int, ...]]:
    """The shapes of `read_gpt`."""
    return {name: tuple(value.shape) for name, value in read_gpt(path).items()}


def _check_version(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    if "text_embedding.weight" in tensors and "emovec_layer.weight" not in tensors:
        raise UserError(f"{path} is the GPT of IndexTTS 1 or 1.5, which has no emotion, and that of IndexTTS2 is "
                        "wanted.", "Give gpt.pth of IndexTeam/IndexTTS-2 or IndexTTS-2.5, or a finetune of one.")


def strip(path: Path, target: Path) -> bool:
    """Write `s2mel.pth` or the codec to `target` without the state of its training; False if it has none.

    S2Mel of 2.5 may have no `gpt_layer`.
    """
    held = weights.read_nested(path)
    if path.name == CODEC:
        content: dict[str, object] = {"model": held.get("model")}
        if not isinstance(content["model"], dict):
            raise UserError(f"{path} is no codec of IndexTTS 2.5: it has no `model`.", "Download it again.")
        if held.keys() == content.keys():
            return False
    else:
        net = held.get("net")
        net_parts = net if isinstance(net, dict) else {}
        parts = [part for part in s2mel.PARTS if isinstance(net_parts.get(part), dict)]
        absent = [part for part in s2mel.PARTS[:2] if part not in parts]
        if absent:
            raise UserError(f"{path} is no S2Mel of IndexTTS2: it lacks {', '.join(absent)} under `net`.",
                            "Give s2mel.pth of IndexTeam/IndexTTS-2.")
        if held.keys() == {"net"} and net_parts.keys() == set(parts):
            return False
        content = {"net": {part: net_parts[part] for part in parts}}

    weights.write_pytorch(target, content)
    return True


def read_config(path: Path) -> dict[str, Any]:
    """The settings in `config.yaml`; `UserError` if they are none of IndexTTS2."""
    try:
        # The folder may be a stranger's.
        values = foreign.read_yaml(path)
        if isinstance(values["gpt"]["number_text_tokens"], int) and isinstance(values.get("dataset", {}), dict):
            return dict(values)
        fault = "gpt.number_text_tokens is no number"
    except (OSError, ValueError, KeyError, TypeError) as error:
        fault = foreign.reason_of(error)
    raise UserError(f"{path} holds no settings of IndexTTS2: {fault}.", "Give config.yaml of IndexTeam/IndexTTS-2.")


def write_export(base: Path, folder: Path, tensors: Mapping[str, torch.Tensor],
                 merged: Mapping[str, torch.Tensor] | None, tokenizer: bytes | None) -> tuple[ExportFile, ...]:
    """Write the export's model files into `folder`; returns their names and purposes.

    `tensors` and `merged` are under the published names, matrices as `torch.nn.Linear` has them. `tokenizer` is the
    SentencePiece model of all languages, whose piece ids are rows of the text tables; None for 2.5, whose file numbers
    its marks behind its tokens and so cannot hold more: there the script reads the new languages' own files.
    """
    files, of_2_5 = find_files(base), LANGUAGE_TABLE in tensors
    rows = len(tensors[_TABLES[0]])
    settings = read_config(files.config)
    purposes = _PURPOSES | (_PURPOSES_2_5 if of_2_5 else {})
    export_files = []

    # The GPT, and the GPT with merged adapters, each with its settings.
    for name, config, state, purpose in (
            (GPT, CONFIG, tensors, "the GPT: base rows, then new rows; without adapters"),
            (MERGED, MERGED_CONFIG, merged, "the GPT with the adapters merged; it CHANGES the base languages")):
        if state is None:
            continue
        published = transpose_matrices(state)
        _check_tensors(files.gpt, published, rows)
        weights.write_pytorch(folder / name, published)
        # These are gigabytes, freed before the next file is made.
        del published
        # The published code makes one row more than `number_text_tokens`.
        changed = {**settings, "gpt": {**settings["gpt"], "number_text_tokens": rows - 1}, "gpt_checkpoint": name}
        if tokenizer is not None:
            changed["dataset"] = {**settings.get("dataset", {}), "bpe_model": SentencePieceModel.base_file}
        (folder / config).write_text(yaml.safe_dump(changed, sort_keys=False, allow_unicode=True), encoding="utf-8")
        export_files += [ExportFile(name, purpose), ExportFile(config, f"the published settings for {name}")]

    # The tokenizer of all languages, then what is published with the base.
    if tokenizer is not None:
        (folder / SentencePieceModel.base_file).write_bytes(tokenizer)
        export_files.append(ExportFile(SentencePieceModel.base_file,
                                  "SentencePiece model of all languages, for the published code"))
    for field in fields(IndexTTS2Files):
        if field.name in purposes:
            source, path = getattr(files, field.name), getattr(_PATHS_2_5 if of_2_5 else _PATHS, field.name)
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(source, folder / path)
            export_files.append(ExportFile(path.as_posix(), purposes[field.name]))

    # The licence, and a script that speaks with the export.
    for name in LICENCES:
        shutil.copyfile(Path(__file__).with_name(name), folder / name)
        purpose = "the bilibili Model Use License Agreement, which binds whoever receives this"
        export_files.append(ExportFile(name, purpose))
    name, script, package = (SCRIPT_2_5, EXPORT_SCRIPT_2_5, "indextts25-inference") if of_2_5 else (
        SCRIPT, EXPORT_SCRIPT, "indextts2-inference")
    (folder / name).write_text(script, encoding="utf-8")
    return (*export_files, ExportFile(name, f"speaks with these files through the published package {package}"))


def _check_tensors(base: Path, tensors: Mapping[str, torch.Tensor], rows: int) -> None:
    """Names and shapes are the base's, with more text rows: so the published code loads what is written."""
    expected = dict(gpt_shapes(base))
    if LANGUAGE_TABLE in expected:
        expected[LANGUAGE_TABLE] = (len(tensors[LANGUAGE_TABLE]), *expected[LANGUAGE_TABLE][1:])
    wrong = [name for name in tensors if name not in expected or tuple(tensors[name].shape) != (
        (rows, *expected[name][1:]) if name in _TABLES else expected[name])]
    assert not wrong, f"not as published: {wrong[:3]}"
    assert used_tensors(expected).keys() <= tensors.keys(), "every tensor is written"


EXPORT_SCRIPT = '''"""Speak with this export through the published package: pip install indextts2-inference

    python load_with_indextts2.py "TEXT" VOICE.wav [--base]

The package downloads the speech features, the codec, the speaker encoder and the vocoder; here they come from
`hf_cache`. The language model that reads emotions from a text is not part of the export, and not used. The GPT with
the adapters merged is taken where there is one, which is for the new language; with --base it is the GPT without them:
the proof that the base languages are as they were holds for that one alone. Text is cleaned by the package, by Chinese
rules for letters that it does not know, which is not the front-end that the model was trained with (`front_end/`):
write numbers as words, and end sentences with a full stop. A language that an earlier training added has adapters of
its own, in `earlier_trainings`, which only Lisan uses.
"""

import argparse
from pathlib import Path

import indextts.infer_v2 as published
from indextts.utils import maskgct_utils

folder = Path(__file__).resolve().parent
parser = argparse.ArgumentParser()
parser.add_argument("text")
parser.add_argument("voice", help="a reference recording")
parser.add_argument("--base", action="store_true", help="the GPT without adapters, for the base languages")
arguments = parser.parse_args()

parts = folder / "hf_cache"
folders = {"facebook/w2v-bert-2.0": parts / "w2v-bert-2.0", "nvidia/bigvgan_v2_22khz_80band_256x": parts / "bigvgan"}
files = {"amphion/MaskGCT": parts / "semantic_codec_model.safetensors",
         "funasr/campplus": parts / "campplus_cn_common.bin"}


def from_here(load):
    """`load` of a repository, from the folder of the export that holds its files."""
    return lambda name, *rest, **options: load(str(folders.get(name, name)), *rest, **options)


for kind in (published.SeamlessM4TFeatureExtractor, maskgct_utils.Wav2Vec2BertModel, published.bigvgan.BigVGAN):
    kind.from_pretrained = from_here(kind.from_pretrained)
published.hf_hub_download = lambda repository, filename: str(files[repository])
published.QwenEmotion = lambda folder: None

merged = folder / "config-merged.yaml"
settings = merged if merged.is_file() and not arguments.base else folder / "config.yaml"
model = published.IndexTTS2(model_dir=str(folder), cfg_path=str(settings))
model.infer(spk_audio_prompt=arguments.voice, text=arguments.text, output_path="speech.wav")
print("speech.wav")
'''

EXPORT_SCRIPT_2_5 = '''"""Speak with this export through the published package: pip install indextts25-inference

    python load_with_indextts25.py "TEXT" VOICE.wav --language CODE [--base]

New languages have rows behind those of the base, and tokenizer files in `front_end`, which the package does not know:
this script tells it. The speech features, the speaker encoder and the vocoder come from `hf_cache`. The GPT with the
adapters merged is taken where there is one, which is for the new language; with --base it is the GPT without them: the
proof that the base languages are as they were holds for that one alone. Text of a new language reaches the tokenizer
almost as it is, which is not the front-end that the model was trained with: write numbers as words, in lower case, and
end sentences with a full stop. A language that an earlier training added has adapters of its own, in
`earlier_trainings`, which only Lisan uses: it is refused here.
"""

import argparse
import itertools
import json
from pathlib import Path

import indextts25.infer_v2_5 as published
import regex
from indextts25.utils.tokenizer import LANGUAGE_DICT, get_encoding

folder = Path(__file__).resolve().parent
base_row = dict(LANGUAGE_DICT)


class Encoding:
    """The package's tokenizer, and for texts of a new language that language's tokens."""

    def __init__(self, base, language, file):
        self.base, self.prefix = base, f"<|{language.lower()}|> "
        self.tag, self.ids = file["appended"][file["tag"]], file["appended"]
        self.alone = {text for text in self.ids if len(text) == 1}
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(file["merges"])}

    def encode(self, text, allowed_special="all"):
        tagged = text.startswith(self.prefix)
        text = text.removeprefix(self.prefix)
        found = [self.tag] if tagged else []
        for word in regex.findall(self.base._pat_str, f" {text}" if tagged else text):
            found += self.word(word)
        return found

    def word(self, word):
        symbols = []
        for alone, run in itertools.groupby(word, key=lambda character: character in self.alone):
            if alone:
                symbols += [(character, self.ids[character]) for character in run]
            else:
                for token in self.base._encode_single_piece("".join(run)):
                    content = self.base.decode_single_token_bytes(token)
                    try:
                        name = content.decode()
                    except UnicodeDecodeError:
                        name = "".join(f"<0x{byte:02X}>" for byte in content)
                    symbols.append((name, token))
        while len(symbols) > 1:
            pairs = [(left, right) for (left, _), (right, _) in itertools.pairwise(symbols)]
            place = min(range(len(pairs)), key=lambda at: self.ranks.get(pairs[at], len(self.ranks)))
            if pairs[place] not in self.ranks:
                break
            joined = "".join(pairs[place])
            known = self.ids[joined] if joined in self.ids else self.base._encode_single_piece(joined)[0]
            symbols[place:place + 2] = [(joined, known)]
        return [token for _, token in symbols]


def teach(language):
    """Tell the package of the new languages; returns the maker of the tokenizer for a text of `language`."""
    settings = json.loads((folder / "front_end" / "front_end.json").read_text("utf-8"))
    files = {}
    for code, entry in settings["languages"].items():
        if code not in settings["base_languages"]:
            files[code] = json.loads((folder / "front_end" / entry["tokenizer"]).read_text("utf-8"))
    # Rows of new languages follow those of the base, of which the last belongs to no language. The package makes a row
    # more than it knows languages, so a language of the base that has a new row keeps its old one under another name.
    for row, code in enumerate(files, len(base_row) + 1):
        if code.lower() in base_row:
            LANGUAGE_DICT[f"{code.lower()} of the base"] = base_row[code.lower()]
        LANGUAGE_DICT[code.lower()] = row

    def make(name, model_dir):
        base = get_encoding(name, model_dir=model_dir)
        return Encoding(base, language, files[language]) if language in files else base

    return make


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("text")
    parser.add_argument("voice", help="a reference recording")
    parser.add_argument("--language", required=True, help="code of the text's language")
    parser.add_argument("--base", action="store_true", help="the GPT without adapters, for the base languages")
    arguments = parser.parse_args()
    origin = json.loads((folder / "export.json").read_text("utf-8"))["origin"]
    earlier = ",".join(one["language"] for one in origin.get("earlier_trainings", ()))
    if arguments.language in earlier.split(","):
        raise SystemExit(f"{arguments.language} has adapters of its own, in a folder of earlier_trainings: "
                         "speak it with Lisan (load_example.py).")
    published.get_encoding = teach(arguments.language)
    merged = folder / "config-merged.yaml"
    settings = merged if merged.is_file() and not arguments.base else folder / "config.yaml"
    model = published.IndexTTS2(model_dir=str(folder), cfg_path=str(settings))
    model.infer(spk_audio_prompt=arguments.voice, text=arguments.text, output_path="speech.wav",
                lang=arguments.language)
    print("speech.wav")
'''
