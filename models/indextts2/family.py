"""IndexTTS2 and IndexTTS 2.5 behind the protocols of `models.base`.

A model folder holds the published files in the layout of the published code; see `models.indextts2.model_folder`. It
comes without voices, clips and recogniser: a voice is made of a reference recording.

The published GPT has one text row more than `bpe.model` has pieces (12,001 for 12,000); no text leads to it, and new
tokens come after it. A checkpoint that was made with an extended file has as many. Chinese and English have no language
tag; a new language gets one. Source of the ids: index-tts/index-tts, `utils/front.py` (start 0, stop 1, unknown 2).

Which of the two a folder holds, the GPT tells (`model_folder.is_2_5`). In 2.5 the tokens are bytes joined, and a text
begins with its language's tag, which decides the row of the table of languages that all its tokens get. Of the 106
languages that have a row, the model was trained to speak five (README of indextts25-inference 0.2.0).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch

from config.errors import UserError
from data.front_end import FrontEnd
from data.normalisers import INDEXTTS2, INDEXTTS25
from data.segmenters import LANGUAGE_CODES, ByteLevelBpe, SentencePieceModel, highest_id
from models import campplus, weights
from models.base import Emotion, ExportFile, Family, Sampling, Voice
from models.indextts2 import bigvgan, model_folder, s2mel, semantic_codec, unified_voice, w2v_bert
from models.indextts2.conditioning import EmotionBanks
from models.indextts2.extractor import IndexTTS2Extractor, voice_from_clip
from models.indextts2.unified_voice import TENSOR_LAYOUT, IndexTTS2LanguageModel, UnifiedVoiceConfig
from models.indextts2.vocoder import IndexTTS2Vocoder
from models.weights import LazyWeights

LANGUAGES = ("zh", "en")
_SPECIAL = (0, 1, 2)  # ids of start, stop and unknown in the published code
_SPARE_ROWS = 1
_MOST_SPARE_ROWS_2_5 = 1024  # the published number is not known; more are another tokenizer's
PREFERRED_MAX_TEXT_LENGTH = 122  # ids: a published segment has at most 120 pieces, and start and stop
FEATURES_VERSION = 3  # increased when the extractor computes other features from the same clip and weights


class IndexTTS2(Family):
    """The family of bilibili's IndexTTS2; see `models.base.Family` for methods without a docstring."""

    name = "indextts2"
    sampling = Sampling(temperature=0.8, top_k=30, top_p=0.8, min_p=0.0, repetition_penalty=10.0,
                        guidance=0.0)  # the published values, except for one beam in place of three
    sound_options: tuple[str, ...] = ("flow_steps", "flow_prompt_s", "emotion", "duration_s", "speaking_rate",
                                      "position_scheme")
    tensor_layout = TENSOR_LAYOUT

    def load_front_end(self, folder: Path) -> FrontEnd:
        """The base front-end; its size is the number of text rows of the GPT."""
        config = self._config(folder)
        make = base_front_end if config.speaker else base_front_end_2_5
        return make(folder, config.text_rows, model_folder.GPT)

    def load_language_model(self, folder: Path, device: torch.device) -> IndexTTS2LanguageModel:
        path = model_folder.find_language_model(folder)
        module = unified_voice.load(model_folder.read_gpt(path), str(path)).to(device)
        module.requires_grad_(False)
        if not module.config.speaker:
            ids = _segmenter_2_5(folder).ids
            tags = {row: ids.get(ByteLevelBpe.tag_form.format(code)) for row, code in enumerate(LANGUAGE_CODES)}
            module.assign_languages({tag: row for row, tag in tags.items() if tag is not None})
        return unified_voice.language_model(module, device, PREFERRED_MAX_TEXT_LENGTH)

    def language_model_file(self, folder: Path) -> Path:
        return model_folder.find_language_model(folder)

    def strip_file(self, path: Path, target: Path) -> bool:
        """`s2mel.pth`, or the codec of 2.5, without the state of its training's optimizer."""
        return model_folder.strip(path, target)

    def open_weights(self, path: Path) -> LazyWeights:
        return LazyWeights.open(path)

    def max_speech_length(self, folder: Path) -> int:
        return self._config(folder).max_codes

    def max_text_length(self, folder: Path) -> int:
        return self._config(folder).text_positions

    def load_extractor(self, folder: Path, device: torch.device) -> IndexTTS2Extractor:
        """w2v-bert, the semantic codec, the voice conditioner in the GPT's file, and in 2.5 CAMPPlus."""
        files = model_folder.find_files(folder)
        conditioner = unified_voice.load_voice_conditioner(model_folder.read_gpt(files.gpt), str(files.gpt)).to(device)
        return IndexTTS2Extractor(w2v_bert.load(files.w2v_bert, files.statistics, device),
                                  semantic_codec.load(files.semantic_codec, device), conditioner,
                                  self.extractor_fingerprint(folder),
                                  None if conditioner.config.speaker else _style_encoder(files.campplus, device))

    def extractor_fingerprint(self, folder: Path) -> str:
        """Hash of the files with the models of the extractor."""
        files = model_folder.find_files(folder)
        digest = hashlib.sha256()
        style = (files.campplus,) if model_folder.is_2_5(folder) else ()
        for path in (files.gpt, files.w2v_bert, files.statistics, files.semantic_codec, *style):
            digest.update(weights.file_hash(path))
        return f"indextts2-{FEATURES_VERSION}-{digest.hexdigest()[:16]}"

    def load_vocoder(self, folder: Path, device: torch.device) -> IndexTTS2Vocoder:
        """S2Mel and BigVGAN."""
        files = model_folder.find_files(folder)
        return IndexTTS2Vocoder(s2mel.load(files.s2mel, device, model_folder.s2mel_parts(folder)),
                                bigvgan.load(files.vocoder, device),
                                semantic_codec.load(files.semantic_codec, device).embed,
                                "states" if model_folder.is_2_5(folder) else "codes")

    def voice_from_recording(self, folder: Path, device: torch.device, waveform: torch.Tensor, sample_rate: int,
                             emotion: Emotion | None = None) -> Voice:
        files = model_folder.find_files(folder)
        extractor = self.load_extractor(folder, device)
        banks = None
        if emotion and emotion.weights:
            banks = EmotionBanks.of(weights.read_tensor(files.voices).to(device),
                                    weights.read_tensor(files.emotions).to(device),
                                    extractor.conditioner.config.decoder.width)
        return voice_from_clip(extractor, extractor.style_encoder or _style_encoder(files.campplus, device), waveform,
                               sample_rate, emotion, banks)

    def export(self, base: Path, folder: Path, tensors: Mapping[str, torch.Tensor],
               merged: Mapping[str, torch.Tensor] | None, front_end: FrontEnd) -> tuple[ExportFile, ...]:
        # It is None in 2.5, whose script reads the languages' own files.
        shared = front_end.shared_file()
        return model_folder.write_export(base, folder, tensors, merged, shared.content if shared else None)

    def _config(self, folder: Path) -> UnifiedVoiceConfig:
        path = model_folder.find_language_model(folder)
        return unified_voice.config_from_shapes(model_folder.gpt_shapes(path), str(path))


def base_front_end(folder: Path, text_rows: int, checkpoint: str = "the checkpoint") -> FrontEnd:
    """The front-end of the GPT in the file `checkpoint` of `folder`, which has `text_rows` rows of text.

    `UserError` when `bpe.model` is missing, is no SentencePiece BPE with the published special ids, or belongs to
    another number of rows.
    """
    path = Path(folder) / SentencePieceModel.base_file
    content = _read(path)
    model = SentencePieceModel(content, str(path))

    # A tokenizer of another model is recognised by its special ids and its size.
    special = model.start_id, model.stop_id, model.unknown_id
    if special != _SPECIAL:
        raise UserError(
            f"{path} has start, stop and unknown at {special}, IndexTTS2 at {_SPECIAL}: it is another tokenizer.",
            "Use the tokenizer that was published with this checkpoint; download the model again.")
    pieces = len(model.ids)
    if text_rows - pieces not in (0, _SPARE_ROWS):
        raise UserError(
            f"{path} has {pieces} pieces, and {checkpoint} has {text_rows} text rows: they do not belong together.",
            f"{checkpoint} needs a tokenizer of {text_rows - _SPARE_ROWS} pieces: use the one that was published with "
            "it.")
    return FrontEnd.wrap(content, dict.fromkeys(LANGUAGES, INDEXTTS2), text_rows, style="indextts2", tagged=False,
                         segmenter="sentencepiece")


def base_front_end_2_5(folder: Path, text_rows: int, checkpoint: str = "the checkpoint") -> FrontEnd:
    """`base_front_end` for a GPT of 2.5; `UserError` when the tokenizer is missing, damaged or does not fit."""
    segmenter = _segmenter_2_5(folder)
    ids = highest_id(segmenter.ids) + 1
    if not 0 <= text_rows - ids <= _MOST_SPARE_ROWS_2_5:
        raise UserError(
            f"{Path(folder) / ByteLevelBpe.base_file} has {ids} ids, and {checkpoint} has {text_rows} text rows: they "
            "do not belong together.", "Use the tokenizer that was published with this checkpoint.")
    return FrontEnd.wrap(segmenter.content, {code: name for name, code in INDEXTTS25.items()}, text_rows,
                         style="indextts25", segmenter="bytes")


def _segmenter_2_5(folder: Path) -> ByteLevelBpe:
    path = Path(folder) / ByteLevelBpe.base_file
    return ByteLevelBpe(_read(path), str(path))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} could not be read: {error.strerror}.", "Download the model again.") from error


def _style_encoder(path: Path, device: torch.device) -> campplus.CAMPPlus:
    encoder = campplus.CAMPPlus()
    weights.load_into(encoder, weights.read(path), str(path))
    return encoder.eval().to(device)
