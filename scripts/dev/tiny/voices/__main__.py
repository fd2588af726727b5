"""Train the codec for people's voices, the vocoder, and a language model on the codec's codes.

    python -m scripts.dev.tiny.voices --recordings FOLDER --output FOLDER --device cuda --stages codec vocoder model

`--recordings` has a sub-folder for each reader with sound files of 16 kHz; `--stages espeak` adds espeak-ng's voices to
it. `weights/README.md` names the readers that were used. A stage saves as it goes, and continues from what it saved:
the weights and the time spent, not the optimizer's moments, which are warm again after 200 steps. The stage `model`
needs espeak-ng and makes a corpus of its own in OUTPUT/corpus.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

import numpy as np
import soundfile
import torch
from safetensors.torch import load_file, save_file

from config.errors import UserError
from models.phonetic_encoder.encoder import PhoneticEncoder
from models.tiny.family import VOCODER
from models.tiny.model_folder import load_module, save_module
from models.tiny.vocoder import MelVocoder, MelVocoderConfig
from scripts.command import exit_with
from scripts.dev.tiny import sentences, train_model
from scripts.dev.tiny.corpus import ESPEAK_NAMES, SETTINGS, VOICES, Corpus, build_language
from scripts.dev.tiny.espeak import Espeak
from scripts.dev.tiny.voices import recordings, train_codec, train_vocoder
from scripts.dev.tiny.voices.codec import CRITIC, ENCODER, READER, Codec, CodecConfig
from scripts.dev.tiny.voices.train_codec import CodecTraining

SEED = 0
VARIANTS = ("+f1", "+f2", "+f4", "+f5", "+m1", "+m2", "+m3", "+m4", "+m5", "+m6", "+m7")  # beside the pack's voices
PACK_VOICES = ("", "+f3")
SENTENCES, FRAGMENTS, OPUS_LEVEL = 560, 12, 0.9  # for each base language, for each other one
SPOKEN = 12000  # sentences of each base language, for the language model
JOINED, TEXT_POSITIONS, SPEECH_POSITIONS = 0.25, 160, 320  # of the language model


def speak(folder: Path) -> None:
    """Add a reader for each variant of espeak-ng: 30 minutes of the pack's two voices, 20 of the others."""
    espeak, shuffler = Espeak(SETTINGS.sample_rate), random.Random(SEED)
    texts = []
    for language in ("en", "fr"):
        pool = list(sentences.build(language, 6000, 40, SEED).train)
        texts += [(language, ", ".join(shuffler.sample(pool, shuffler.choice((1, 2, 2))))) for _ in range(SENTENCES)]
    for language in sentences.languages():
        if language not in VOICES:
            texts += [(language, text) for text in sentences.fragments(language, FRAGMENTS, SEED)]
    shuffler.shuffle(texts)
    for number, (language, text) in enumerate(texts):
        variant = shuffler.choice(PACK_VOICES if shuffler.random() < 0.62 else VARIANTS)
        name = "en-us" if language == "en" else ESPEAK_NAMES.get(language, language)
        try:
            waveform = espeak.say(text, name + variant).waveform
        except UserError:  # a language that this espeak-ng does not speak
            continue
        target = folder / f"espeak{variant or '+0'}" / f"{number:04d}.ogg"
        target.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(target, waveform, SETTINGS.sample_rate, "OPUS", format="OGG", compression_level=OPUS_LEVEL)


def train_the_codec(arguments: argparse.Namespace, data: recordings.Recordings) -> None:
    """Train, or go on training, the codec with its heads and its discriminator."""
    output, device = arguments.output, arguments.device
    progress, state = output / "codec.json", output / "codec_training.safetensors"
    training = CodecTraining(Codec(CodecConfig()).to(device), PhoneticEncoder.load().to(device), arguments.rate)
    before = 0.0
    if arguments.start and not progress.is_file():
        training.load_weights(arguments.start)
    if progress.is_file():
        before = json.loads(progress.read_text())["seconds"]
        training.load_state_dict(load_file(state))
        print(f"codec: continues after {before:.0f} s")
    begin = time.time()

    def save() -> None:
        training.average.save(output)
        save_module(output / CRITIC, training.discriminator, CodecConfig())
        save_module(output / READER, training.reader, CodecConfig())
        save_file({name: value.contiguous() for name, value in training.state_dict().items()}, state)
        progress.write_text(json.dumps({"seconds": before + time.time() - begin, "steps": training.steps}))

    train_codec.train(training, data, 60 * arguments.minutes, before, SEED, arguments.batch_size,
                      tuple(arguments.held_out), save)
    save()


def train_the_vocoder(arguments: argparse.Namespace, data: recordings.Recordings) -> None:
    """Train the vocoder from the pack's on recordings, half of them through the codec if it was trained."""
    output, device = arguments.output, arguments.device
    path = output / VOCODER
    start = path if path.is_file() else Path(__file__).parents[4] / "models" / "tiny" / "pack" / VOCODER
    vocoder = load_module(start, MelVocoder(MelVocoderConfig())).to(device).train()
    coded = train_vocoder.decoded_mels(Codec.load(output).to(device), data) if (output / ENCODER).is_file() else None
    known = torch.tensor([name not in arguments.held_out for name in data.names], device=device)[data.readers]
    trained = train_vocoder.train(vocoder, data, known.nonzero()[:, 0], 60 * arguments.minutes, SEED, coded)
    save_module(path, trained, trained.config)


def train_the_model(arguments: argparse.Namespace) -> None:
    """Train a language model on the codec's codes of the corpus, a quarter of it joined to longer texts."""
    codec, front_end = Codec.load(arguments.output).to(arguments.device), train_model.base_front_end()
    clips = []
    for language in ("en", "fr"):
        folder = arguments.output / "corpus" / language
        if not (folder / "clips.jsonl").is_file():
            build_language(folder, language, SPOKEN, SEED, normalised=True)
        corpus = Corpus(folder)
        clips += [(f"{language}-{clip.voice}", front_end.encode(clip.text, language), corpus.mel(clip), clip)
                  for clip in corpus.split("train")]
    config = train_model.configure(codec.config.codebook_size, codec.config.speaker_size, front_end.size,
                                   TEXT_POSITIONS, SPEECH_POSITIONS)
    space = int(front_end.encode("a b", "en")[3])
    spoken = train_model.join(train_model.prepare(clips, codec), config, JOINED, space, SEED)
    model = train_model.train(spoken, config, codec.config.levels, train_model.STEPS, SEED, arguments.device,
                              60 * arguments.minutes, 128 if arguments.device.type == "cuda" else train_model.BATCH)
    save_module(arguments.output / "t3.safetensors", model, model.config)


def main() -> int:
    """Run the chosen stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=Path, required=True, help="a sub-folder for each reader")
    parser.add_argument("--output", type=Path, required=True, help="where weights and progress are kept")
    parser.add_argument("--start", type=Path, help="folder of weights that the codec's training begins with")
    parser.add_argument("--stages", nargs="+", choices=("espeak", "codec", "vocoder", "model"), required=True)
    parser.add_argument("--minutes", type=float, default=60.0, help="of each training")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate of the codec")
    parser.add_argument("--held-out", nargs="*", default=[], help="readers that are never trained on")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)

    if "espeak" in arguments.stages:
        speak(arguments.recordings)
    if {"codec", "vocoder"} & set(arguments.stages):
        data = recordings.prepare(recordings.read_folder(arguments.recordings),
                                  PhoneticEncoder.load().to(arguments.device), arguments.device)
        minutes = np.bincount(data.readers.cpu(), data.lengths.cpu()) / 6000
        print(", ".join(f"{name} {count:.1f} min" for name, count in zip(data.names, minutes, strict=True)))
        if "codec" in arguments.stages:
            train_the_codec(arguments, data)
        if "vocoder" in arguments.stages:
            train_the_vocoder(arguments, data)
    if "model" in arguments.stages:
        train_the_model(arguments)
    return 0


if __name__ == "__main__":
    exit_with(main)
