"""Write what ships: the model folder `models/tiny/pack` and the demo dataset `data/demo/am`, with their scores.

Every number in the pack's README is measured here, on the files as they ship, from the
compressed recordings and the sound that a person hears.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import soundfile
import torch

import data
import models
from data.acoustics import audio
from models.base import Sampling, Voice
from models.tiny.family import Tiny
from scripts.dev.tiny import sentences
from scripts.dev.tiny.corpus import SETTINGS, VOICE_NAMES, VOICES, Corpus, CorpusClip
from scripts.dev.tiny.espeak import Espeak
from scripts.dev.tiny.train_judge import error
from scripts.dev.tiny.train_model import base_front_end

PACK = Path(models.__file__).parent / "tiny" / "pack"
DEMO = Path(data.__file__).parent / "demo" / "am"
BASE_LANGUAGES = ("en", "fr")
SUMS = "SHA256SUMS.json"
MORE_DEMO = 850  # clips that `add_demo_clips` adds: with 300 alone the demo learns them by heart
REPLAY = 40  # training clips a language that are kept, to probe the old languages and to replay them
OPUS_LEVEL = 0.93  # about 24 kbit/s
SAMPLINGS = {"model": Sampling(), "model, greedy": Sampling(temperature=0.0, guidance=0.0)}
SPLITS = ("combinations", "running")
LANGUAGE_NAMES = {"en": "English", "fr": "French", "am": "Amharic"}


@dataclass(frozen=True)
class PackScore:
    """Letter and phoneme error of one set of sentences."""

    language: str
    split: str
    what: str
    letters: float
    phonemes: float


def build(folder: Path) -> None:
    """Copy the weights, compress the recordings, measure, and write READMEs and checksums."""
    for target in (PACK, DEMO):
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
    for name in ("t3.safetensors", "codec.safetensors", "vocoder.safetensors", "recogniser.safetensors"):
        shutil.copyfile(folder / name, PACK / name)
    base_front_end().save(PACK)
    corpora = {name: Corpus(folder / "corpus" / name) for name in (*BASE_LANGUAGES, "am")}
    _write_voices(corpora["en"])
    _write_held_out({name: corpora[name] for name in BASE_LANGUAGES})
    _write_demo(corpora["am"])
    scores = measure(corpora)
    _write_readme(scores, folder)
    _write_checksums()


@cache
def _espeak() -> Espeak:
    return Espeak(SETTINGS.sample_rate)


def _compress(clip: CorpusClip, target: Path) -> None:
    """Speak the clip again (espeak-ng gives the same samples) and write it as Ogg Opus."""
    target.parent.mkdir(parents=True, exist_ok=True)
    samples = _espeak().say(clip.text, VOICES[clip.language][clip.voice]).waveform
    soundfile.write(str(target), samples, SETTINGS.sample_rate, "OPUS", format="OGG", compression_level=OPUS_LEVEL)


def _write_voices(corpus: Corpus) -> None:
    """The longest held-out recording of each voice is its reference."""
    for voice, name in enumerate(VOICE_NAMES):
        clips = [c for split in SPLITS for c in corpus.split(split) if c.voice == voice]
        _compress(max(clips, key=lambda c: c.frames), PACK / "voices" / f"{name}.ogg")


def _write_held_out(corpora: dict[str, Corpus]) -> None:
    lines = []
    for language, corpus in corpora.items():
        for split, name in (*((s, s) for s in SPLITS), ("train", "replay")):
            for number, clip in enumerate(corpus.split(split)[:REPLAY]):
                path = f"held_out/{language}-{name}-{number:02d}.ogg"
                _compress(clip, PACK / path)
                lines.append({"language": language, "split": name, "text": clip.text, "audio": path,
                              "voice": VOICE_NAMES[clip.voice]})
    _write_jsonl(PACK / "held_out.jsonl", lines)


def _write_demo(corpus: Corpus) -> None:
    lines = []
    for split, name in (("demo", "train"), *((s, s) for s in SPLITS)):
        for number, clip in enumerate(corpus.split(split)):
            path = f"clips/{name}-{number:03d}.ogg"
            _compress(clip, DEMO / path)
            lines.append({"id": f"{name}-{number:03d}", "audio": path, "text": clip.text, "language": "am",
                          "split": "train" if name == "train" else "held_out", "speaker": VOICE_NAMES[clip.voice]})
    _write_demo_index(lines)


def add_demo_clips() -> None:
    """Speak further training clips into the demo dataset that is there; what is there stays as it is."""
    rows = [json.loads(line) for line in (DEMO / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
    shipped = [[row for row in rows if row["id"].startswith(split)] for split in ("train", *SPLITS)]
    train, combinations, running = (tuple(row["text"] for row in part) for part in shipped)
    for number, text in enumerate(
            sentences.more_demo(sentences.SentenceSets(train, combinations, running), MORE_DEMO), len(train)):
        name, path, voice = f"train-{number:03d}", f"clips/train-{number:03d}.ogg", number % 2
        _compress(CorpusClip("am", "train", text, voice, 0, 0), DEMO / path)
        shipped[0].append({"id": name, "audio": path, "text": text, "language": "am", "split": "train",
                           "speaker": VOICE_NAMES[voice]})
    _write_demo_index([row for part in shipped for row in part])


def _write_demo_index(rows: list[dict[str, str]]) -> None:
    _write_jsonl(DEMO / "manifest.jsonl", rows)
    train = sum(row["split"] == "train" for row in rows)
    (DEMO / "README.md").write_text(DEMO_README.format(train=train), encoding="utf-8")


def _write_jsonl(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def measure(corpora: dict[str, Corpus]) -> list[PackScore]:
    """Originals, codec round trip with the vocoder, and the language model, each as a person hears it."""
    family, cpu = Tiny(), torch.device("cpu")
    recogniser, extractor = family.load_recogniser(PACK).network, family.load_extractor(PACK, cpu)
    vocoder, model = family.load_vocoder(PACK, cpu), family.load_language_model(PACK, cpu)
    front_end, voices = family.load_front_end(PACK), family.load_voices(PACK)
    scores = []

    def score(language: str, split: str, kind: str, clips: list[CorpusClip], waveforms: list[torch.Tensor]) -> None:
        mels = [(c, audio.log_mel(w[None], audio.MelSettings())[0]) for c, w in zip(clips, waveforms, strict=True)]
        scores.append(PackScore(language, split, kind, *error(recogniser, mels)))
        print(scores[-1], flush=True)

    for language, corpus in corpora.items():
        for split in SPLITS:
            clips = corpus.split(split)
            originals = [audio.load(_shipped(language, split, i), extractor.sample_rate) for i in range(len(clips))]
            score(language, split, "original", clips, originals)

            features = [extractor.extract(waveform) for waveform in originals]
            decoded = [vocoder.decode(f.speech_codes, Voice(f.conditioning)) for f in features]
            score(language, split, "codec", clips, decoded)

            if language not in BASE_LANGUAGES:
                continue
            # Each text is spoken by every voice.
            twice = [clip for clip in clips for _ in VOICE_NAMES]
            texts = [front_end.encode(clip.text, language) for clip in twice]
            speakers = [voices[name] for _ in clips for name in VOICE_NAMES]
            for title, sampling in SAMPLINGS.items():
                generated = model.generate(texts, speakers, sampling)
                syntheses = [vocoder.decode(s.codes, v) for s, v in zip(generated, speakers, strict=True)]
                score(language, split, title, twice, syntheses)
    return scores


def _shipped(language: str, split: str, number: int) -> Path:
    if language in BASE_LANGUAGES:
        return PACK / "held_out" / f"{language}-{split}-{number:02d}.ogg"
    return DEMO / "clips" / f"{split}-{number:03d}.ogg"


def _write_readme(scores: list[PackScore], folder: Path) -> None:
    seconds = {p.name.split(".")[0]: json.loads(p.read_text()) for p in sorted(folder.glob("*.seconds.json"))}
    times = ", ".join(f"{name} {value['seconds'] / 60:.0f} min" for name, value in seconds.items() if name != "pack")
    rows = "\n".join(
        f"| {LANGUAGE_NAMES[s.language]} {s.split} | {s.what} | {100 * s.letters:.1f} | {100 * s.phonemes:.1f} |"
        for s in scores
    )
    (PACK / "README.md").write_text(README.format(times=times, rows=rows), encoding="utf-8")


def _write_checksums() -> None:
    files = [p for p in sorted(PACK.rglob("*")) if p.is_file() and p.suffix != ".md" and p.name != SUMS]
    sums = {str(p.relative_to(PACK)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
    (PACK / SUMS).write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")


README = """# The built-in model

A small English and French text-to-speech model, made so that Lisan does its whole job without a
download. It speaks the synthetic voices it was trained on and nothing else. Licence: Apache-2.0.

Made by `python -m scripts.dev.tiny` with fixed seeds on two processor cores: {times}.

- Speech: espeak-ng 1.51 (voices `en-us`, `fr`, each also with the variant `+f3`), 170 words a minute, 16 kHz.
- Text: sentence patterns over everyday words, windows of the Universal Declaration of Human Rights,
  shuffled words and pseudo-words (`scripts/dev/tiny/sentences.py`).
- `t3.safetensors`: the speech language model, 12,000 sentences in each language.
- `codec.safetensors`: 25 codes a second, 3,125 values; it heard English, French and short fragments of
  other languages, and no Amharic.
- `vocoder.safetensors`: the phases of the sound, by pulses and noise through an envelope that a network corrects;
  it heard seven people in six languages, and synthetic voices (`scripts/dev/tiny/voices/weights/README.md`).
- `recogniser.safetensors`: recogniser of letters and phonemes for English, French and Amharic.
- `held_out/`: recordings the language model was not trained on; those marked `replay` it was.

Error of the recogniser in percent on 40 held-out sentences a set, on sound as it is heard (recordings after
compression, codes after the vocoder). "combinations" are new combinations of known words, "running" is
running text of paragraphs that were held out. The model speaks each sentence in both voices, at
the app's defaults (temperature 0.2, guidance 0.5) and "greedy", without chance or guidance.

| set | what | letters | phonemes |
|---|---|---|---|
{rows}
"""

DEMO_README = """# Demo dataset: Amharic

{train} clips to train on and 80 held out (40 new combinations of known words, 40 windows of running text),
spoken by espeak-ng (`am` and `am+f3`), compressed as Ogg Opus. The texts are everyday sentences and
windows of the Universal Declaration of Human Rights, made by `scripts/dev/tiny/sentences.py`; a native
speaker has not checked them. Licence: Apache-2.0.
"""
