"""Train the codec for people's voices, the vocoder, and a language model on the codec's codes.

    python -m scripts.dev.tiny.voices --recordings FOLDER --output FOLDER --stages espeak phones prepare
    python -m scripts.dev.tiny.voices --recordings FOLDER --output FOLDER --stages encoder --minutes 30
    python -m scripts.dev.tiny.voices --recordings FOLDER --output FOLDER --stages decoder --minutes 600

`--recordings` has a sub-folder for each reader with sound files of 16 kHz and, if the words are known, `metadata.csv`
with a line `NAME|text` for each; `espeak` adds espeak-ng's voices to it and `phones` turns texts into phones.
`prepare` computes the features of all recordings once, into OUTPUT/features. `weights/README.md` names the readers that
were used. A stage saves as it goes, and continues from what it saved: the weights and the time spent, not the
optimizer's moments, which are warm again after 200 steps. With a larger `--minutes` a finished stage goes on. The stage
`model` needs espeak-ng and makes a corpus of its own in OUTPUT/corpus; its clips have no waveform, so it takes a codec
that hears the mel, such as the one in `weights`.
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
from scripts.dev.tiny import schedule, sentences, train_model
from scripts.dev.tiny.corpus import ESPEAK_NAMES, SETTINGS, VOICES, Corpus, build_language
from scripts.dev.tiny.espeak import Espeak
from scripts.dev.tiny.voices import phones, recordings, train_decoder, train_encoder, train_vocoder
from scripts.dev.tiny.voices.codec import CRITIC, DECODER, ENCODER, Codec, CodecConfig, ContentEncoder
from scripts.dev.tiny.voices.features import SpeechFeatures
from scripts.dev.tiny.voices.recordings import Recordings

SEED = 0
STAGES = ("espeak", "phones", "prepare", "encoder", "decoder", "vocoder", "model")
PACK_VOCODER = Path(__file__).parents[4] / "models" / "tiny" / "pack" / VOCODER
ENCODER_RATE, DECODER_RATE = 1e-3, 5e-4
ENCODER_BATCH, DECODER_BATCH = 8, 8
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
    tables: dict[Path, list[tuple[str, str]]] = {}
    for number, (language, text) in enumerate(texts):
        variant = shuffler.choice(PACK_VOICES if shuffler.random() < 0.62 else VARIANTS)
        name = "en-us" if language == "en" else ESPEAK_NAMES.get(language, language)
        try:
            speech = espeak.say(text, name + variant)
        except UserError:  # a language that this espeak-ng does not speak
            continue
        target = folder / f"espeak{variant or '+0'}" / f"{number:04d}.ogg"
        target.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(target, speech.waveform, SETTINGS.sample_rate, "OPUS", format="OGG",
                        compression_level=OPUS_LEVEL)
        spoken = phones.phones_of_ipa("".join(phoneme for phoneme, _ in speech.phonemes))
        tables.setdefault(target.parent, []).append((target.name, spoken))
    for reader, rows in tables.items():
        phones.write_table(reader / phones.TABLE, rows)


def trained_on(data: Recordings, arguments: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """The clips of the training, and those of readers that are held out."""
    known = torch.tensor([name not in arguments.held_out for name in data.names],
                         device=data.readers.device)[data.readers]
    return known.nonzero()[:, 0], (~known).nonzero()[:, 0]


def train_the_encoder(arguments: argparse.Namespace, data: Recordings) -> None:
    """Train, or go on training, the encoder with its heads."""
    output, device = arguments.output, arguments.device
    progress, state = output / "encoder.json", output / "encoder_training.safetensors"
    clips, _ = trained_on(data, arguments)
    alphabet = phones.alphabet_of(arguments.recordings)
    encoder = ContentEncoder(CodecConfig(phonetic=True)).to(device)
    load_module(PACK_VOCODER, encoder.vocoder).requires_grad_(False)
    sample = data.features[0, :: max(1, data.features.shape[1] // 20000)].float()
    encoder.mean.copy_(sample.mean(0))
    encoder.std.copy_(sample.std(0))

    training, before = train_encoder.EncoderTraining(encoder, alphabet, arguments.rate or ENCODER_RATE), 0.0
    if progress.is_file():
        saved = json.loads(progress.read_text(encoding="utf-8"))
        if saved["alphabet"] != alphabet:
            raise UserError(f"{progress} is of the phones {saved['alphabet']}; the recordings have {alphabet}.",
                            "Name another folder as --output, or the recordings that it was trained on.")
        before, training.steps = saved["seconds"], saved["steps"]
        training.load_state_dict(load_file(state))
    if before >= 60 * arguments.minutes:
        print(f"encoder: finished after {before:.0f} s", flush=True)
        return
    if (output / "decoder.json").is_file():
        raise UserError(f"The decoder in {output} was trained on the codes of this encoder, which would change.",
                        "Name another folder as --output, or delete decoder.json and decoder_training.safetensors.")
    begin = time.process_time()

    def save() -> None:
        save_module(output / ENCODER, training.average, encoder.config)
        save_file({name: value.contiguous() for name, value in training.state_dict().items()}, state)
        progress.write_text(json.dumps({"seconds": before + time.process_time() - begin, "steps": training.steps,
                                        "alphabet": alphabet}), encoding="utf-8")

    torch.manual_seed(SEED + training.steps)
    sampler = train_encoder.Sampler(data, alphabet, encoder, clips.cpu(), SEED + training.steps)
    batch_size = arguments.batch_size or ENCODER_BATCH
    schedule.train_for(60 * arguments.minutes, before, "encoder", training, lambda: sampler.batch(batch_size), save,
                       report_every=100)
    save()


def train_the_decoder(arguments: argparse.Namespace, data: Recordings) -> None:
    """Train, or go on training, the decoder and the speaker path on the codes of the encoder."""
    output, device = arguments.output, arguments.device
    progress, state = output / "decoder.json", output / "decoder_training.safetensors"
    config = CodecConfig(phonetic=True)
    codec = Codec(config).to(device)
    load_module(output / ENCODER, codec.encoder).requires_grad_(False)
    quantized = train_decoder.codes_of(data, codec)

    training = train_decoder.DecoderTraining(codec, PhoneticEncoder.load().to(device), arguments.rate or DECODER_RATE)
    before = 0.0
    if progress.is_file():
        saved = json.loads(progress.read_text(encoding="utf-8"))
        before, training.steps = saved["seconds"], saved["steps"]
        training.load_state_dict(load_file(state))
    elif arguments.start:
        training.start_from(arguments.start)
    begin = time.process_time()

    def save() -> None:
        training.averaged().save(output)
        save_module(output / CRITIC, training.discriminator, config)
        save_file({name: value.contiguous() for name, value in training.state_dict().items()}, state)
        progress.write_text(json.dumps({"seconds": before + time.process_time() - begin, "steps": training.steps}),
                            encoding="utf-8")

    torch.manual_seed(SEED + training.steps)
    clips, held_out_clips = trained_on(data, arguments)
    sampler = train_decoder.Sampler(data, quantized, config, clips, SEED + training.steps)

    def held_out() -> str:
        if not len(held_out_clips):
            return ""
        others = train_decoder.Sampler(data, quantized, config, held_out_clips, SEED)
        return f"held-out l1 {train_decoder.held_out(training.averaged(), others):.4f} "

    batch_size = arguments.batch_size or DECODER_BATCH
    schedule.train_for(60 * arguments.minutes, before, "decoder", training, lambda: sampler.batch(batch_size), save,
                       report_every=200, held_out=held_out)
    save()


def train_the_vocoder(arguments: argparse.Namespace, data: Recordings) -> None:
    """Train the vocoder from the pack's on recordings, half of them through the codec if it was trained."""
    output, device = arguments.output, arguments.device
    path = output / VOCODER
    vocoder = load_module(path if path.is_file() else PACK_VOCODER, MelVocoder(MelVocoderConfig())).to(device).train()
    coded = train_vocoder.decoded_mels(Codec.load(output).to(device), data) if (output / DECODER).is_file() else None
    clips, _ = trained_on(data, arguments)
    trained = train_vocoder.train(vocoder, data, clips, 60 * arguments.minutes, SEED, coded)
    save_module(path, trained, trained.config)


def train_the_model(arguments: argparse.Namespace) -> None:
    """Train a language model on the codec's codes of the corpus, a quarter of it joined to longer texts."""
    codec, front_end = Codec.load(arguments.output).to(arguments.device), train_model.base_front_end()
    if codec.extractor is not None:
        raise UserError(f"The codec in {arguments.output} hears waveforms; the corpus of the language model has mels.",
                        "Train the language model on a codec that hears the mel.")
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
    parser.add_argument("--start", type=Path, help="folder of another codec, whose decoder the training begins with")
    parser.add_argument("--stages", nargs="+", choices=STAGES, required=True)
    parser.add_argument("--minutes", type=float, default=60.0,
                        help="of each training; processor time for encoder and decoder")
    parser.add_argument("--batch-size", type=int, default=0, help="clips or crops; of the stage if 0")
    parser.add_argument("--rate", type=float, default=0.0, help="learning rate; of the stage if 0")
    parser.add_argument("--held-out", nargs="*", default=[], help="readers that are never trained on")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(arguments.threads)

    cache = arguments.output / "features"
    if "espeak" in arguments.stages:
        speak(arguments.recordings)
    if "phones" in arguments.stages:
        phones.transcribe(arguments.recordings, Espeak(SETTINGS.sample_rate))
    if "prepare" in arguments.stages:
        vocoder = load_module(PACK_VOCODER, MelVocoder(MelVocoderConfig()))
        recordings.prepare(arguments.recordings, cache, SpeechFeatures(PhoneticEncoder.load(), vocoder))
    trainings = {"encoder": train_the_encoder, "decoder": train_the_decoder, "vocoder": train_the_vocoder}
    if trainings.keys() & set(arguments.stages):
        data = recordings.load(arguments.recordings, cache, arguments.device)
        minutes = np.bincount(data.readers.cpu(), data.lengths.cpu()) / 6000
        print(", ".join(f"{name} {count:.1f} min" for name, count in zip(data.names, minutes, strict=True)), flush=True)
        for stage, train in trainings.items():
            if stage in arguments.stages:
                train(arguments, data)
    if "model" in arguments.stages:
        train_the_model(arguments)
    return 0


if __name__ == "__main__":
    exit_with(main)
