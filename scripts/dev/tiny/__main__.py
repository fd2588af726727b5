"""Rebuild the built-in pack: corpus, codec, recogniser, language model, pack.

The vocoder is trained on recordings of people, see `scripts.dev.tiny.voices`; `WORKSPACE/build` must have its file.

Needs espeak-ng (`apt-get install espeak-ng`). Each stage leaves its files under
`WORKSPACE/build` and is skipped when they are there; delete them to run it again.

    python -m scripts.dev.tiny --stages corpus codec recogniser model pack demo
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from scripts.command import exit_with

SEED = 0
CLIPS = {"en": 12000, "fr": 12000, "am": 4000}
FRAGMENTS = 150
CODEC_STEPS = 7000
RECOGNISER_STEPS = 5000


def build_corpus(folder: Path) -> None:
    """Speak every sentence; about two minutes on two cores."""
    from scripts.dev.tiny import corpus, sentences

    for language, count in CLIPS.items():
        corpus.build_language(folder / "corpus" / language, language, count, SEED)
    other_languages = [language for language in sentences.languages() if language not in CLIPS]
    corpus.build_others(folder / "corpus" / "others", other_languages, FRAGMENTS, SEED)


def build_codec(folder: Path) -> None:
    """Train the codec on every language but Amharic."""
    from models.tiny.codec import CodecConfig
    from models.tiny.model_folder import save_module
    from scripts.dev.tiny import train_codec
    from scripts.dev.tiny.corpus import Corpus

    corpora = [Corpus(folder / "corpus" / name) for name in ("en", "fr", "others")]
    codec = train_codec.train(corpora, CodecConfig(), CODEC_STEPS, SEED)
    save_module(folder / "codec.safetensors", codec, codec.config)


def build_recogniser(folder: Path) -> None:
    """Train the recogniser on English, French and Amharic."""
    from models.tiny.model_folder import save_module
    from scripts.dev.tiny import train_judge
    from scripts.dev.tiny.corpus import Corpus

    corpora = {name: Corpus(folder / "corpus" / name) for name in CLIPS}
    recogniser = train_judge.train(corpora, RECOGNISER_STEPS, SEED)
    save_module(folder / "recogniser.safetensors", recogniser, recogniser.config)


def build_model(folder: Path) -> None:
    """Train the speech language model on the codec's codes of English and French."""
    from scripts.dev.tiny import train_model

    train_model.build(folder, SEED)


def build_pack(folder: Path) -> None:
    """Measure everything and write `models/tiny/pack` and `data/demo/am`."""
    from scripts.dev.tiny import pack

    pack.build(folder)


def build_demo(_folder: Path) -> None:
    """Add further clips to the demo dataset that is there."""
    from scripts.dev.tiny import pack

    pack.add_demo_clips()


STAGES = {
    "corpus": (build_corpus, "corpus/others/clips.jsonl"),
    "codec": (build_codec, "codec.safetensors"),
    "recogniser": (build_recogniser, "recogniser.safetensors"),
    "model": (build_model, "t3.safetensors"),
    "pack": (build_pack, ""),
    "demo": (build_demo, ""),
}


def main() -> int:
    """Run the chosen stages in their order and note how long each took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workspace", type=Path, default=Path("workspace"), help="where `build/` is kept")
    parser.add_argument("--stages", nargs="*", choices=list(STAGES), default=list(STAGES))
    parser.add_argument("--threads", type=int, default=2, help="processor threads")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    folder = arguments.workspace / "build"
    folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.stages:
        stage, product = STAGES[name]
        if product and (folder / product).exists():
            print(f"{name}: already there")
            continue
        begin = time.time()
        stage(folder)
        record = folder / f"{name}.seconds.json"
        record.write_text(json.dumps({"seconds": round(time.time() - begin), "threads": arguments.threads}))
        print(f"{name}: {time.time() - begin:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    exit_with(main)
