"""A base front-end, recordings, a reporter and a family: as small as they can be, and real where they are used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soundfile
import torch

from core.jobs.events import Event, WarningRaised
from data.front_end import FrontEnd
from models.base import Features

LETTERS = "abcdefghijklmnopqrstuvwxyz'àâçéèêëîïôùûüœæÿ"
RATE = 16000  # Hz
AMHARIC = ("ሰላም ለሁሉም ሰው", "እንዴት ነህ ወንድሜ", "ውሃ ጠጣ እና ሂድ", "ልጆች በግቢ ውስጥ ይጫወታሉ", "ዛሬ ፀሐይ ወጣች", "ቡና እና ዳቦ እወዳለሁ")
SOMALI = (
    "Dadka dhammaantiis wuxuu dhashaa isagoo xor ah kana siman xagga sharafta iyo xuquuqda.",
    "Qof kastaa wuxuu xaq u leeyahay inuu ku noolaado nabad.",
    "Carruurtu waxay ku ciyaaraan bannaanka guriga.",
    "Hooyadey waxay karinaysaa cunto macaan.",
    "Waxaan rabaa in aan barto luqad cusub.",
)


def base() -> FrontEnd:
    return FrontEnd.base({"en": "latin", "fr": "latin"}, LETTERS)


def write_clip(path: Path, duration_s: float = 1.0, pitch: float = 220.0, level: float = 0.3) -> Path:
    """A tone of its own pitch, so that no two recordings are the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    times = np.arange(int(duration_s * RATE)) / RATE
    soundfile.write(str(path), level * np.sin(2 * np.pi * pitch * times), RATE)
    return path


def write_dataset(folder: Path, texts: tuple[str, ...] = AMHARIC) -> Path:
    """A folder of recordings with a text beside each."""
    for index, text in enumerate(texts):
        write_clip(folder / f"clip{index}.wav", pitch=200 + 10 * index)
        (folder / f"clip{index}.txt").write_text(text + "\n", encoding="utf-8")
    return folder


@dataclass
class Recorder:
    """A reporter that keeps what it is told, and asks for a stop after `stop_after` questions."""

    directory: Path = Path()
    stop_after: int = 10**9
    events: list[Event] = field(default_factory=list)
    asked: int = 0

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def stop_requested(self) -> bool:
        self.asked += 1
        return self.asked > self.stop_after

    @property
    def warnings(self) -> str:
        return "\n".join(event.message for event in self.events if isinstance(event, WarningRaised))


@dataclass
class SmallExtractor:
    """One code a tenth of a second: the loudness."""

    fingerprint: str = "small-1"
    sample_rate: int = RATE
    calls: int = 0
    batches: list[int] = field(default_factory=list)  # clips in each

    def extract(self, waveform: torch.Tensor) -> Features:
        self.calls += 1
        frames = waveform[:len(waveform) // 1600 * 1600].view(-1, 1600)
        codes = (frames.abs().amax(1) * 100).numpy().astype(np.uint16)
        return Features(codes, {"speaker_embedding": np.ones(4, np.float32), "prompt_codes": codes[:5]})

    def extract_batch(self, waveforms: Sequence[torch.Tensor]) -> list[Features]:
        self.batches.append(len(waveforms))
        return [self.extract(waveform) for waveform in waveforms]


@dataclass
class SmallFamily:
    """What preparing and the tokenizer ask of a family."""

    small_extractor: SmallExtractor = field(default_factory=SmallExtractor)
    name: str = "small"

    def load_front_end(self, folder: Path) -> FrontEnd:
        return FrontEnd.load(folder)

    def max_speech_length(self, folder: Path) -> int:
        return 100

    def max_text_length(self, folder: Path) -> int:
        return 60

    def load_extractor(self, folder: Path, device: torch.device) -> SmallExtractor:
        return self.small_extractor

    def extractor_fingerprint(self, folder: Path) -> str:
        return self.small_extractor.fingerprint

    def load_recogniser(self, folder: Path) -> None:
        return None
