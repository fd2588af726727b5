"""The speech that the built-in recogniser learns from, as phonetic features in files.

Texts of three kinds are spoken by espeak-ng: those of the built-in model, running text of this project's documentation
and page, and random rows of frequent words, because spelling is learned word by word. Recordings of people and of
Kokoro are added. Clips are played at other speeds (which shifts pitch and resonances, too), at other levels, through
the codec, with noise, reverberation, or the band of a telephone.

A corpus is a folder for each source, with one file of features and one of rows for each `SHARD` clips; files that exist
are kept.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import nn

import data
from config.errors import UserError
from core.speech.dataset_recogniser import LabelledClip, encode_clip, encode_texts, fits
from data.acoustics import audio
from data.durable_files import write_text
from models.base import Voice
from models.phonetic_encoder.encoder import SAMPLE_RATE, PhoneticEncoder
from models.tiny.family import Tiny
from models.tiny.recogniser import letters_of
from scripts.dev.tiny import sentences
from scripts.dev.tiny.corpus import VOICES
from scripts.dev.tiny.espeak import Espeak

LANGUAGES = ("en", "fr", "am")
SHARD = 100  # clips in a file
SPEEDS = (0.84, 1.18)
_ROOT = Path(data.__file__).parent.parent
_VARIANTS = ("", "+f1", "+f2", "+f3", "+f4", "+f5", "+m1", "+m2", "+m3", "+m4", "+m5", "+m6", "+m7")
_WIDE_VOICES = {"en": ("en-us", "en-us", "en-us", "en"), "fr": ("fr",)}
_RATES = (135, 200)  # words a minute of texts that the built-in model does not speak
_POOL = {"en": 12000, "fr": 12000, "am": 4000}  # sentences of the built-in model to choose from
_FREQUENT = 20000  # words of a language
_FLATNESS = 0.6  # exponent of the frequency with which a word is drawn
_PROSE_SHARE = 0.35  # of wide texts
_KOKORO = (504, 500)  # clips of the built-in model's sentences, and of wide texts
_PROSE = re.compile(r"[^\W\d_][^\W\d_' ,-]*(?:[ ,'’-]+[^\W\d_]+)+")


@dataclass(frozen=True)
class SpokenText:
    """A text and how it is spoken: by a voice of espeak-ng, or in a recording."""

    source: str
    language: str
    text: str
    voice: str = ""
    words_per_minute: int = 170
    recording: Path | None = None
    is_plain: bool = False  # in a voice of the built-in model: degraded less, and by the codec


@dataclass(frozen=True)
class Counts:
    """How many clips of each kind, and how often a recording is used, each time degraded in another way."""

    model: int = 200  # texts of the built-in model, for each language
    wide: tuple[tuple[str, int], ...] = (("en", 800), ("fr", 300))
    kokoro: int = 3
    people: int = 2


def read_recordings(folder: Path, source: str, language: str) -> list[SpokenText]:
    """The recordings in a folder with `metadata.jsonl`, whose rows have `audio` and `text`."""
    rows = [json.loads(line) for line in (folder / "metadata.jsonl").read_text(encoding="utf-8").splitlines()]
    return [SpokenText(source, language, row["text"], recording=folder / row["audio"]) for row in rows]


def speech_clips(counts: Counts, seed: int) -> list[SpokenText]:
    """What espeak-ng speaks, in an order in which each beginning has something of every language and kind."""
    rng = random.Random(seed)
    clips = []

    # Texts and voices of the built-in model, which it is measured with.
    for language in LANGUAGES:
        texts = sentences.build(language, _POOL[language], 40, 0).train
        for _ in range(counts.model):
            text = ", ".join(rng.sample(texts, rng.choice((1, 1, 2))))
            clips.append(SpokenText("model", language, text, rng.choice(VOICES[language]), is_plain=True))

    # Many words, in many voices.
    for language, count in counts.wide:
        for text in wide_texts(language, count, rng):
            voice = rng.choice(_WIDE_VOICES[language]) + rng.choice(_VARIANTS)
            clips.append(SpokenText("wide", language, text, voice, rng.randint(*_RATES)))
    rng.shuffle(clips)
    return clips


def wide_texts(language: str, count: int, rng: random.Random) -> list[str]:
    """Running text and random rows of frequent words."""
    prose, words = read_prose(language), FrequentWords(language)
    return [rng.choice(prose) if rng.random() < _PROSE_SHARE else words.row(rng) for _ in range(count)]


def kokoro_texts(seed: int) -> list[str]:
    """What Kokoro reads: two sentences of the built-in model a clip, then texts of many words."""
    rng = random.Random(f"{seed}/kokoro")
    pool = sentences.build("en", 6000, 40, 0).train
    return [", ".join(rng.sample(pool, 2)) for _ in range(_KOKORO[0])] + wide_texts("en", _KOKORO[1], rng)


@cache
def read_prose(language: str) -> tuple[str, ...]:
    """Parts of sentences of the documentation and the page, of words alone."""
    if language == "en":
        texts = [path.read_text(encoding="utf-8") for path in sorted((_ROOT / "docs").glob("*.md"))]
    else:
        translations = json.loads((_ROOT / "ui" / "texts" / f"{language}.json").read_text(encoding="utf-8"))
        texts = [text for text in translations["texts"].values() if isinstance(text, str)]
    parts: dict[str, None] = {}
    for text in texts:
        for match in _PROSE.finditer(" ".join(text.split())):
            part = match[0].replace("’", "'").strip(" ,'-")
            plain = sentences.normalise(part.replace("-", " "), language)
            # Abbreviations and names of options are not read as words.
            if 12 <= len(plain) <= 70 and not re.search(r"[A-Z]{2}|[a-z][A-Z]", part):
                parts[plain] = None
    return tuple(parts)


class FrequentWords:
    """Rows of random words by the frequencies of the package wordfreq."""

    def __init__(self, language: str) -> None:
        try:
            import wordfreq  # a package of this recipe alone
        except ImportError as error:
            raise UserError("The package wordfreq is missing.", "Install it: pip install wordfreq==3.1.1") from error
        words = [word for word in wordfreq.top_n_list(language, _FREQUENT)
                 if word.isalpha() and sentences.normalise(word, language) == word]
        self.words = [word for word in words if len(word) > 1 or word in ("a", "i", "à", "y")]
        self.weights = [wordfreq.word_frequency(word, language) ** _FLATNESS for word in self.words]

    def row(self, rng: random.Random) -> str:
        """Three to eight words."""
        return " ".join(rng.choices(self.words, self.weights, k=rng.randint(3, 8)))


class Speaker:
    """Clips to degraded waveforms."""

    def __init__(self, pack: Path) -> None:
        family, cpu = Tiny(), torch.device("cpu")
        self.espeak = Espeak(SAMPLE_RATE)
        self.extractor, self.vocoder = family.load_extractor(pack, cpu), family.load_vocoder(pack, cpu)

    def speak(self, clip: SpokenText) -> torch.Tensor:
        """Waveform (S,) at 16 kHz as it is recorded or spoken."""
        if clip.recording is not None:
            return audio.load(clip.recording, SAMPLE_RATE)
        return torch.from_numpy(self.espeak.say(clip.text, clip.voice, clip.words_per_minute).waveform)

    def degrade(self, waveform: torch.Tensor, is_plain: bool, rng: random.Random) -> torch.Tensor:
        """Waveform (S,) as another person, microphone or room would give it."""
        generator = torch.Generator().manual_seed(rng.getrandbits(62))
        if is_plain:
            choice = rng.random()
            if choice < 0.35:
                return waveform
            if choice < 0.75:
                features = self.extractor.extract(waveform)
                return self.vocoder.decode(features.speech_codes, Voice(features.conditioning))
        if rng.random() < 0.75:
            waveform = audio.resample(waveform, round(SAMPLE_RATE * rng.uniform(*SPEEDS)), SAMPLE_RATE)
        if rng.random() < 0.3:
            waveform = reverberate(waveform, rng.uniform(0.1, 0.4), rng.uniform(0.1, 0.5), generator)
        if rng.random() < 0.2:
            waveform = audio.resample(audio.resample(waveform, SAMPLE_RATE, 8000), 8000, SAMPLE_RATE)
        if rng.random() < 0.5:
            waveform = add_noise(waveform, rng.uniform(12, 35), rng.uniform(0, 0.95), generator)
        return waveform * 10 ** rng.uniform(-1.2, 0.1)


def reverberate(waveform: torch.Tensor, seconds: float, share: float, generator: torch.Generator) -> torch.Tensor:
    """(S,) in a room whose echo falls by 60 dB in `seconds`; `share` is the echo's amplitude beside the sound's."""
    times = torch.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    echo = torch.randn(len(times), generator=generator) * torch.exp(-math.log(1000) / seconds * times)
    echo *= share / echo.square().sum().sqrt()
    echo[0] = 1.0
    size = len(waveform) + len(echo) - 1
    spectra = torch.fft.rfft(waveform, size) * torch.fft.rfft(echo, size)
    return torch.fft.irfft(spectra, size)[:len(waveform)]


def add_noise(waveform: torch.Tensor, decibels: float, smoothness: float, generator: torch.Generator) -> torch.Tensor:
    """(S,) with noise `decibels` below the speech; `smoothness` from 0, white, to below 1, which is low noise."""
    white = torch.fft.rfft(torch.randn(len(waveform), generator=generator))
    phases = torch.exp(-2j * math.pi * torch.arange(len(white)) / len(waveform))
    noise = torch.fft.irfft(white / (1 - smoothness * phases), len(waveform))
    level = waveform.square().mean().sqrt() * 10 ** (-decibels / 20)
    return waveform + noise * level / noise.square().mean().sqrt().clamp(min=1e-9)


def load_encoder() -> PhoneticEncoder:
    """The phonetic encoder with matrices in bfloat16, which a CPU would round again for each clip."""
    encoder = PhoneticEncoder.load()
    for module in encoder.modules():
        if isinstance(module, nn.Linear | nn.Conv1d):
            module.to(torch.bfloat16)
    return encoder


def write_features(folder: Path, clips: Sequence[SpokenText], speaker: Speaker,
                   encoder: PhoneticEncoder) -> Iterator[str]:
    """Write the missing files of the corpus; yields a line for each."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, len(clips), SHARD)):
        rows_path = folder / f"{number:03d}.jsonl"
        if rows_path.exists():
            continue
        rng = random.Random(f"{folder.name}/{number}")
        features, rows = [], []
        for clip in clips[start:start + SHARD]:
            try:
                waveform = speaker.degrade(speaker.speak(clip), clip.is_plain, rng)
            except UserError as error:
                yield f"{clip.source}: {clip.text!r} is left out: {error.message}"
                continue
            features.append(encode_clip(encoder, waveform).numpy())
            rows.append({"source": clip.source, "language": clip.language, "frames": len(features[-1]),
                         "letters": letters_of(clip.text, clip.language)})

        # The rows are written last: a file of features without rows is made again.
        np.save(folder / f"{number:03d}.npy", np.concatenate(features))
        write_text(rows_path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
        yield f"{rows_path.stem}: {sum(len(part) for part in features) / 50 / 60:.1f} minutes"


@dataclass(frozen=True)
class EncodedSpeech:
    """Clips to train on, the letters that their labels stand for, and minutes by source and language."""

    clips: list[LabelledClip]
    letters: tuple[str, ...]
    minutes: dict[str, float]


def read_features(folders: Iterable[Path]) -> EncodedSpeech:
    """The corpora in `folders`; their features stay on disk."""
    rows, views = [], []
    for folder in folders:
        for path in sorted(folder.glob("*.jsonl")):
            features, start = np.load(path.with_suffix(".npy"), mmap_mode="c"), 0
            for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
                rows.append(row)
                views.append(torch.from_numpy(features[start:start + row["frames"]]))
                start += row["frames"]

    letters = tuple(sorted({letter for row in rows for letter in row["letters"]}))
    minutes: dict[str, float] = {}
    clips = []
    for row, view, labels in zip(rows, views, encode_texts([row["letters"] for row in rows], letters), strict=True):
        key = f"{row['source']} {row['language']}"
        minutes[key] = minutes.get(key, 0.0) + len(view) / 50 / 60
        clip = LabelledClip(view, torch.tensor(labels), LANGUAGES.index(row["language"]))
        if fits(clip.labels, len(view)):
            clips.append(clip)
    return EncodedSpeech(clips, letters, minutes)
