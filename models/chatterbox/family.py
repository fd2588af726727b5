"""Chatterbox Multilingual behind the protocols of `models.base`.

A model folder holds the published files under their published names; see `models.chatterbox.model_folder`. The shapes
of its T3 decide which version it is, and its tokenizer is checked against it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from data.acoustics.voice_encoder import VoiceEncoder
from data.front_end import FrontEnd
from models import weights
from models.base import Emotion, ExportFile, Family, Sampling, Voice
from models.chatterbox import codec, model_folder, s3gen, t3
from models.chatterbox.front_end import base_front_end
from models.chatterbox.s3gen import S3Gen
from models.language_model import TENSOR_LAYOUT, TransformerLanguageModel
from models.speech_network import T3Config
from models.weights import LazyWeights

BASE_CODE_LIMIT, CODES_PER_TOKEN = 25, 10  # codes of a text: one second, and 0.4 s for each token
PREFERRED_MAX_TEXT_LENGTH = 250  # ids: the published package takes texts of up to 300 characters
FEATURES_VERSION = 2  # increased when the extractor computes other features from the same clip and weights


class Chatterbox(Family):
    """The family of Resemble AI's Chatterbox; see `models.base.Family` for methods without a docstring."""

    name = "chatterbox"
    sampling = Sampling(temperature=0.8, min_p=0.05, top_p=1.0, repetition_penalty=2.0, guidance=0.5,
                        alignment_guard=True)  # the published values
    sound_options: tuple[str, ...] = ("exaggeration", "flow_steps", "flow_prompt_s", "watermark", "hebrew")
    tensor_layout = TENSOR_LAYOUT

    def sampling_for(self, languages: Sequence[str]) -> Sampling:
        """See `models.base.Family`; as the published English package speaks where English is the only language."""
        if tuple(languages) != ("en",):
            return self.sampling
        return replace(self.sampling, repetition_penalty=1.2, alignment_guard=False)

    def load_front_end(self, folder: Path) -> FrontEnd:
        """The base front-end; its size is the number of text rows of T3."""
        checkpoint = model_folder.find_files(folder).t3
        config = t3.config_from_shapes(weights.shapes(checkpoint), str(checkpoint))
        return base_front_end(folder, config.text_rows, checkpoint.name)

    def load_language_model(self, folder: Path, device: torch.device) -> TransformerLanguageModel:
        module = t3.load(model_folder.find_files(folder).t3).to(device)
        module.requires_grad_(False)
        return TransformerLanguageModel(module, module.config.text_rows, device, codec.MAX_PROMPT_CODES,
                                        BASE_CODE_LIMIT, CODES_PER_TOKEN, PREFERRED_MAX_TEXT_LENGTH)

    def language_model_file(self, folder: Path) -> Path:
        return model_folder.find_language_model(folder)

    def load_extractor(self, folder: Path, device: torch.device) -> codec.ChatterboxExtractor:
        """Speech tokenizer and voice encoder."""
        return codec.ChatterboxExtractor(*self._codec(folder, device), self.extractor_fingerprint(folder))

    def open_weights(self, path: Path) -> LazyWeights:
        return LazyWeights.open(path)

    def max_speech_length(self, folder: Path) -> int:
        """See `models.base.Family`; the start token takes a position."""
        return self._t3_config(folder).speech_positions - 1

    def max_text_length(self, folder: Path) -> int:
        return self._t3_config(folder).text_positions

    def extractor_fingerprint(self, folder: Path) -> str:
        """Hash of the two files with the models of the extractor."""
        files = model_folder.find_files(folder)
        digest = hashlib.sha256()
        for path in (files.s3gen, files.voice_encoder):
            digest.update(weights.file_hash(path))
        return f"chatterbox-{FEATURES_VERSION}-{digest.hexdigest()[:16]}"

    def load_vocoder(self, folder: Path, device: torch.device) -> codec.ChatterboxVocoder:
        """Flow and HiFT."""
        return codec.ChatterboxVocoder(s3gen.load(model_folder.find_files(folder).s3gen, device))

    def load_voices(self, folder: Path) -> dict[str, Voice]:
        """The built-in voice, if the folder has one."""
        conditionals = model_folder.find_files(folder).conditionals
        return {model_folder.VOICE: model_folder.read_voice(conditionals)} if conditionals else {}

    def voice_from_recording(self, folder: Path, device: torch.device, waveform: torch.Tensor, sample_rate: int,
                             emotion: Emotion | None = None) -> Voice:
        return codec.voice_from_clip(*self._codec(folder, device), waveform, sample_rate)

    def export(self, base: Path, folder: Path, tensors: Mapping[str, torch.Tensor],
               merged: Mapping[str, torch.Tensor] | None, front_end: FrontEnd) -> tuple[ExportFile, ...]:
        return model_folder.write_export(base, folder, tensors, merged)

    def _t3_config(self, folder: Path) -> T3Config:
        path = model_folder.find_language_model(folder)
        return t3.config_from_shapes(weights.shapes(path), str(path))

    def _codec(self, folder: Path, device: torch.device) -> tuple[S3Gen, VoiceEncoder]:
        files = model_folder.find_files(folder)
        return s3gen.load(files.s3gen, device), codec.load_voice_encoder(files.voice_encoder, device)
