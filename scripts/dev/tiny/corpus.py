"""The synthetic world: spoken sentences as log-mel frames with word and phoneme times, kept on disk.

One folder per language: `clips.jsonl` (one object a clip) and `mel.npy` (frames, n_mels) float16 of
all clips end to end. The sound itself is not kept: espeak-ng makes the same samples again.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch

from config.errors import UserError
from data.acoustics.audio import MelSettings, log_mel
from scripts.dev.tiny import sentences
from scripts.dev.tiny.espeak import Espeak
from scripts.dev.tiny.voices.codec import normalise_level

VOICES = {"en": ("en-us", "en-us+f3"), "fr": ("fr", "fr+f3"), "am": ("am", "am+f3")}
VOICE_NAMES = ("low", "high")
# espeak's names where they differ from the language code of the texts
ESPEAK_NAMES = {"pt": "pt", "zh": "cmn", "no": "nb"}
SETTINGS = MelSettings()


@dataclass(frozen=True)
class CorpusClip:
    """One spoken sentence; `start` and `frames` index the folder's `mel.npy`."""

    language: str
    split: str  # train, combinations, running or demo
    text: str
    voice: int
    start: int
    frames: int
    words: list = field(default_factory=list)  # [[character, seconds]]
    phonemes: list = field(default_factory=list)  # [[IPA, seconds]]


class Corpus:
    """The clips of one language with their mel frames, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        lines = (folder / "clips.jsonl").read_text(encoding="utf-8").splitlines()
        self.clips = [CorpusClip(**json.loads(line)) for line in lines]
        self._mel = np.load(folder / "mel.npy", mmap_mode="r")

    def mel(self, clip: CorpusClip) -> np.ndarray:
        """Log-mel of one clip, (frames, n_mels) float32."""
        return np.asarray(self._mel[clip.start : clip.start + clip.frames], dtype=np.float32)

    def split(self, name: str) -> list[CorpusClip]:
        return [clip for clip in self.clips if clip.split == name]


class _Writer:
    """Appends clips and frames; `close` puts the folder in place."""

    def __init__(self, folder: Path, espeak: Espeak, normalised: bool = False) -> None:
        self.folder, self.espeak, self.normalised = folder, espeak, normalised
        folder.mkdir(parents=True, exist_ok=True)
        self.clips: list[CorpusClip] = []
        self.mels: list[np.ndarray] = []
        self.frames = 0

    def add(self, language: str, split: str, text: str, voice: int, voice_name: str) -> None:
        speech = self.espeak.say(text, voice_name)
        waveform = torch.from_numpy(speech.waveform)
        if self.normalised:
            waveform = normalise_level(waveform)
        mel = log_mel(waveform[None], SETTINGS)[0].T.numpy().astype(np.float16)
        self.clips.append(CorpusClip(
            language, split, text, voice, self.frames, len(mel),
            [[p, round(float(t), 3)] for p, t in speech.words],
            [[n, round(float(t), 3)] for n, t in speech.phonemes],
        ))
        self.mels.append(mel)
        self.frames += len(mel)

    def close(self) -> None:
        np.save(self.folder / "mel.npy", np.concatenate(self.mels))
        lines = "".join(json.dumps(asdict(clip), ensure_ascii=False) + "\n" for clip in self.clips)
        (self.folder / "clips.jsonl").write_text(lines, encoding="utf-8")


def build_language(folder: Path, language: str, n_train: int, seed: int, normalised: bool = False) -> None:
    """Speak the sentences of a judged language in its two voices, alternating.

    `normalised`: at the level of the codec in `voices`.
    """
    texts = sentences.build(language, n_train, 40, seed)
    groups = [("train", texts.train), ("combinations", texts.combinations), ("running", texts.running)]
    if language == "am":
        groups.append(("demo", sentences.demo(300, 40, seed).train))
    writer = _Writer(folder, Espeak(SETTINGS.sample_rate), normalised)
    for split, group in groups:
        for index, text in enumerate(group):
            voice = index % 2
            writer.add(language, split, text, voice, VOICES[language][voice])
    writer.close()


def build_others(folder: Path, languages: list[str], n_each: int, seed: int) -> None:
    """Short fragments of many other languages, for the codec alone; never Amharic."""
    writer = _Writer(folder, Espeak(SETTINGS.sample_rate))
    shuffler = random.Random(seed)
    for language in languages:
        name = ESPEAK_NAMES.get(language, language)
        for index, text in enumerate(sentences.fragments(language, n_each, seed)):
            voice = shuffler.randrange(2)
            try:
                writer.add(language, "train", text, voice, name + ("+f3" if voice else ""))
            except UserError as error:
                if index == 0:
                    print(f"{language}: left out ({error})")
                    break
    writer.close()


def frame_phonemes(clip: CorpusClip, index: dict[str, int], frame_rate: float) -> np.ndarray:
    """The phoneme id sounding at each mel frame, (frames,) int64; 0 is silence or unknown."""
    labels = np.zeros(clip.frames, dtype=np.int64)
    ends = clip.phonemes[1:] + [["", clip.frames / frame_rate]]
    for (name, begin), (_, end) in zip(clip.phonemes, ends, strict=True):
        begin_frame, end_frame = (max(0, round(t * frame_rate)) for t in (begin, end))
        labels[begin_frame:end_frame] = index.get(name, 0)
    return labels
