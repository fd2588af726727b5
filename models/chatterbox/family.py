"""Chatterbox Multilingual behind the protocols of `models.base`.

A model folder holds the published files under their published names; see `files.find`. Which
T3 it is follows from its shapes, and its tokenizer is checked against it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch

from data.front_end import FrontEnd
from models import weights
from models.base import CTCRecogniser, ExportFile, Features, Sampling, Voice
from models.chatterbox import export, files, s3gen, s3gen_sizes, sound, t3
from models.chatterbox.s3gen import S3Gen
from models.chatterbox.text import base_front_end
from models.chatterbox.voice_encoder import VoiceEncoder
from models.language_model import ANATOMY, LanguageModel
from models.lazy_weights import LazyWeights

CODES_AT_LEAST, CODES_A_TOKEN = 25, 10  # a text may take a second, and 0.4 s for each token
USUAL_TEXT = 250  # ids of a long sentence: the published package is asked for texts of up to 300 characters
FEATURES_VERSION = 1  # raised when an extractor would give other arrays for the same clip and weights


class Chatterbox:
    """The family of Resemble AI's Chatterbox."""

    name = "chatterbox"
    sampling = Sampling(temperature=0.8, min_p=0.05, top_p=1.0, repetition_penalty=2.0, guidance=0.5)  # as published
    sound_controls: tuple[str, ...] = ("exaggeration", "flow_steps", "flow_prompt_s", "watermark")
    anatomy = ANATOMY

    def check(self, folder: Path) -> None:
        """Raise `UserError` when a part is missing, or belongs to another model."""
        self.front_end(folder)
        found = files.find(folder)
        s3gen_sizes.config_of(weights.shapes(found.s3gen), str(found.s3gen))
        sound.load_voice_encoder(found.voice_encoder, torch.device("cpu"))

    def front_end(self, folder: Path) -> FrontEnd:
        """The base front-end; its size is the number of text rows in the checkpoint."""
        checkpoint = files.find(folder).t3
        config = t3.config_of(weights.shapes(checkpoint), str(checkpoint))
        return base_front_end(folder, config.text_rows, checkpoint.name)

    def speech_model(self, folder: Path, device: torch.device) -> LanguageModel:
        """The base language model, frozen, in evaluation mode."""
        module = t3.load(files.find(folder).t3).to(device)
        module.requires_grad_(False)
        return LanguageModel(module, module.config.text_rows, device, sound.PROMPT, CODES_AT_LEAST, CODES_A_TOKEN,
                             USUAL_TEXT)

    def language_model_file(self, folder: Path) -> Path:
        """See `models.base.Family`."""
        return files.language_model(folder)

    def open_weights(self, path: Path) -> LazyWeights:
        """See `models.base.Family`."""
        return LazyWeights.open(path)

    def extractor(self, folder: Path, device: torch.device) -> sound.ChatterboxExtractor:
        """Speech tokenizer and voice encoder."""
        return sound.ChatterboxExtractor(*self._sound(folder, device), self.extractor_fingerprint(folder))

    def longest_speech(self, folder: Path) -> int:
        """See `models.base.Family`; the start takes a position."""
        path = files.language_model(folder)
        return t3.config_of(weights.shapes(path), str(path)).speech_positions - 1

    def longest_text(self, folder: Path) -> int:
        """See `models.base.Family`."""
        path = files.language_model(folder)
        return t3.config_of(weights.shapes(path), str(path)).text_positions

    def extractor_fingerprint(self, folder: Path) -> str:
        """Of the bytes of the two files that hold it."""
        found = files.find(folder)
        digest = hashlib.sha256()
        for path in (found.s3gen, found.voice_encoder):
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return f"chatterbox-{FEATURES_VERSION}-{digest.hexdigest()[:16]}"

    def vocoder(self, folder: Path, device: torch.device) -> sound.ChatterboxVocoder:
        """Flow and HiFT."""
        return sound.ChatterboxVocoder(s3gen.load(files.find(folder).s3gen, device))

    def recogniser(self, folder: Path) -> CTCRecogniser | None:
        """There is none for so many languages."""
        return None

    def voices(self, folder: Path) -> dict[str, Voice]:
        """The built-in voice, where the folder has one."""
        conditionals = files.find(folder).conditionals
        return {files.VOICE: files.voice(conditionals)} if conditionals else {}

    def voice(self, folder: Path, device: torch.device, waveform: torch.Tensor, sample_rate: int) -> Voice:
        """The voice heard in a reference clip (S,)."""
        return sound.voice_of(*self._sound(folder, device), waveform, sample_rate)

    def replay(self, folder: Path) -> list[tuple[str, str, Features]]:
        """No clips come with it."""
        return []

    def held_out(self, folder: Path, language: str) -> list[tuple[str, Path]]:
        """No recordings come with it."""
        return []

    def export(self, base: Path, folder: Path, tensors: Mapping[str, torch.Tensor],
               merged: Mapping[str, torch.Tensor] | None) -> tuple[ExportFile, ...]:
        """See `models.base.Family`."""
        return export.write(base, folder, tensors, merged)

    def _sound(self, folder: Path, device: torch.device) -> tuple[S3Gen, VoiceEncoder]:
        found = files.find(folder)
        return s3gen.load(found.s3gen, device), sound.load_voice_encoder(found.voice_encoder, device)
