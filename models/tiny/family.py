"""The built-in family behind the protocols of `models.base`.

A model folder holds t3.safetensors, codec.safetensors, vocoder.safetensors, recogniser.safetensors, the front-end,
`voices/NAME.ogg`, `held_out.jsonl` with `held_out/*.ogg`, and SHA256SUMS.json.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from config import foreign
from config.errors import UserError
from data.acoustics import audio
from data.durable_files import check_no_link_out
from data.front_end import FrontEnd
from models.base import (
    AdaptedDecoder,
    Emotion,
    ExportFile,
    Family,
    Features,
    Sampling,
    VocoderOptions,
    Voice,
)
from models.decoder import DecoderConfig
from models.language_model import TENSOR_LAYOUT, TransformerLanguageModel
from models.speech_network import T3, T3Config
from models.tiny import decoder_adaptation, model_folder
from models.tiny.codec import Codec, CodecConfig
from models.tiny.model_folder import load_config, load_module
from models.tiny.recogniser import TinyRecogniser
from models.tiny.vocoder import MelVocoder, MelVocoderConfig
from models.weights import LazyWeights

MEL_SETTINGS = audio.MelSettings()
BASE_CODE_LIMIT, CODES_PER_TOKEN = 12, 6  # A text has half a second, and a quarter for each token.
MAX_PROMPT_CODES = 50  # Two seconds of a reference clip.
FEATURES_VERSION = 3  # increased when the extractor computes other features from the same clip and codec
DEFAULT_VOICE = "low"
LANGUAGE_MODEL, CODEC, VOCODER = "t3.safetensors", "codec.safetensors", "vocoder.safetensors"
RECOGNISER = "recogniser.safetensors"


class TinyExtractor:
    """Codes and speaker embedding of a waveform by the codec."""

    sample_rate = MEL_SETTINGS.sample_rate

    def __init__(self, codec: Codec, fingerprint: str, device: torch.device) -> None:
        self.codec, self.fingerprint, self.device = codec, fingerprint, device

    def extract(self, waveform: torch.Tensor) -> Features:
        """Waveform (S,) at 16 kHz to features."""
        mel = audio.log_mel(waveform[None].to(self.device), MEL_SETTINGS)
        codes = self.codec.encode(mel)[0].cpu().numpy().astype(np.uint16)
        return Features(codes, {"speaker_embedding": self.codec.embed_speaker(mel)[0].cpu().numpy(),
                                "prompt_codes": codes[:MAX_PROMPT_CODES]})

    def extract_batch(self, waveforms: Sequence[torch.Tensor]) -> list[Features]:
        """One after another: the codec is small, and padding would change the last codes of a clip."""
        return [self.extract(waveform) for waveform in waveforms]


class TinyVocoder:
    """Codes to mel by the codec, mel to sound by `MelVocoder`."""

    sample_rate = MEL_SETTINGS.sample_rate

    def __init__(self, codec: Codec, vocoder: MelVocoder, device: torch.device) -> None:
        self.codec, self.vocoder, self.device = codec, vocoder, device

    def decode(self, codes: np.ndarray, voice: Voice, options: VocoderOptions | None = None,
               hidden_states: torch.Tensor | None = None) -> torch.Tensor:
        """Codes (U,) to waveform (640 U - 160,) at 16 kHz; of the options only `decoder` has an effect."""
        rows = torch.from_numpy(np.asarray(codes, dtype=np.int64))[None].to(self.device)
        speaker = torch.from_numpy(voice.conditioning["speaker_embedding"])[None].to(self.device)
        codec = options.decoder.module if options and options.decoder else self.codec
        assert isinstance(codec, Codec)
        return self.vocoder.decode(codec.decode(rows, speaker))[0].cpu()

    def stream(self, voice: Voice, options: VocoderOptions | None = None) -> None:
        """See `models.base.Vocoder`; None, because a whole sentence is made faster than its first second is heard."""

    def cast_(self, dtype: torch.dtype) -> None:
        """See `models.base.Vocoder`; no effect, because the codec is small."""

    def free_buffers(self) -> None:
        """See `models.base.Vocoder`."""


class Tiny(Family):
    """The built-in family; see `models.base.Family` for methods without a docstring."""

    name = "tiny"
    sampling = Sampling()
    sound_options: tuple[str, ...] = ()
    tensor_layout = TENSOR_LAYOUT
    adapts_decoder = True

    def load_front_end(self, folder: Path) -> FrontEnd:
        """The base front-end; its size must be the number of text rows in the checkpoint."""
        front_end = FrontEnd.load(folder)
        rows = _language_model_config(folder).text_rows
        if front_end.size != rows:
            raise UserError(
                f"{folder / 'tokenizer.json'} has {front_end.size} ids, "
                f"and {folder / LANGUAGE_MODEL} has {rows} text rows.",
                "They belong to different models; download the model again.",
            )
        return front_end

    def load_language_model(self, folder: Path, device: torch.device) -> TransformerLanguageModel:
        """The base language model, frozen, in evaluation mode."""
        config = _language_model_config(folder)
        module = load_module(folder / LANGUAGE_MODEL, T3(config)).to(device)
        module.requires_grad_(False)
        return TransformerLanguageModel(module, config.text_rows, device, MAX_PROMPT_CODES, BASE_CODE_LIMIT,
                                        CODES_PER_TOKEN)

    def open_weights(self, path: Path) -> LazyWeights:
        return LazyWeights.open(path)

    def max_speech_length(self, folder: Path) -> int:
        """See `models.base.Family`; the start token takes a position."""
        return _language_model_config(folder).speech_positions - 1

    def max_text_length(self, folder: Path) -> int:
        return _language_model_config(folder).text_positions

    def language_model_file(self, folder: Path) -> Path:
        path = folder / LANGUAGE_MODEL
        if not path.is_file():
            raise UserError(f"{path} is missing.", "Download the model again.")
        return path

    def load_extractor(self, folder: Path, device: torch.device) -> TinyExtractor:
        """The codec as extractor."""
        return TinyExtractor(_codec(folder, device), self.extractor_fingerprint(folder), device)

    def extractor_fingerprint(self, folder: Path) -> str:
        """Hash of the codec file, and the version of the features."""
        digest = hashlib.sha256((folder / CODEC).read_bytes()).hexdigest()
        return f"tiny-{FEATURES_VERSION}-{digest[:16]}"

    def load_vocoder(self, folder: Path, device: torch.device) -> TinyVocoder:
        vocoder = load_module(folder / VOCODER, MelVocoder(load_config(folder / VOCODER, MelVocoderConfig)))
        return TinyVocoder(_codec(folder, device), vocoder.to(device), device)

    def adapt_decoder(self, folder: Path, device: torch.device, waveforms: Sequence[torch.Tensor], seconds: float,
                      seed: int, report: Callable[[float], None]) -> dict[str, torch.Tensor]:
        mels = [audio.log_mel(waveform[None], MEL_SETTINGS)[0] for waveform in waveforms]
        voices = [torch.from_numpy(voice.conditioning["speaker_embedding"])
                  for voice in self.load_voices(folder).values()]
        return decoder_adaptation.adapt_decoder(_codec(folder, device), mels, seconds, seed, report, voices)

    def load_adapted_decoder(self, folder: Path, device: torch.device,
                             tensors: Mapping[str, torch.Tensor]) -> AdaptedDecoder:
        codec = _codec(folder, device)
        shapes = {name: value.shape for name, value in codec.decoder_parameters()}
        unfit = tensors.keys() - shapes.keys()
        unfit |= {name for name, shape in shapes.items() if name not in tensors or tensors[name].shape != shape}
        if unfit:
            raise UserError(f"The adapted decoder does not fit the codec in {folder}: {len(unfit)} of {len(shapes)} "
                            f"tensors differ in name or shape, such as {min(unfit)}.", "Take another checkpoint.")
        codec.load_state_dict(dict(tensors), strict=False)
        return AdaptedDecoder(dict(tensors), codec)

    def load_recogniser(self, folder: Path) -> TinyRecogniser:
        return TinyRecogniser.load(folder / RECOGNISER)

    def load_voices(self, folder: Path) -> dict[str, Voice]:
        """One voice per recording in `voices/`."""
        extractor = self.load_extractor(folder, torch.device("cpu"))
        paths = {path.stem: path for path in (folder / "voices").glob("*.ogg")}
        names = sorted(paths, key=lambda name: (name != DEFAULT_VOICE, name))
        return {name: _voice(extractor.extract(audio.load(paths[name], extractor.sample_rate))) for name in names}

    def voice_from_recording(self, folder: Path, device: torch.device, waveform: torch.Tensor, sample_rate: int,
                             emotion: Emotion | None = None) -> Voice:
        extractor = self.load_extractor(folder, device)
        return _voice(extractor.extract(audio.resample(waveform, sample_rate, extractor.sample_rate)))

    def load_replay_clips(self, folder: Path) -> list[tuple[str, str, Features]]:
        """The recordings with the split `replay`, as features."""
        extractor = self.load_extractor(folder, torch.device("cpu"))
        return [
            (row["language"], row["text"],
             extractor.extract(audio.load(check_no_link_out(folder, row["audio"]), extractor.sample_rate)))
            for row in _held_out(folder) if row["split"] == "replay"
        ]

    def held_out_recordings(self, folder: Path, language: str) -> list[tuple[str, Path]]:
        return [(row["text"], check_no_link_out(folder, row["audio"])) for row in _held_out(folder)
                if row["language"] == language and row["split"] != "replay"]

    def export(self, base: Path, folder: Path, tensors: Mapping[str, torch.Tensor],
               merged: Mapping[str, torch.Tensor] | None, front_end: FrontEnd) -> tuple[ExportFile, ...]:
        return model_folder.write_export(base, folder, LANGUAGE_MODEL, _language_model_config(base), tensors, merged)


def _voice(features: Features) -> Voice:
    return Voice(features.conditioning)


def _held_out(folder: Path) -> list[dict[str, str]]:
    """The rows of `held_out.jsonl`, a file that others may have made."""
    path = folder / "held_out.jsonl"
    with foreign.reading(path, "Download the model again, or copy the export again."):
        rows: list[dict[str, str]] = []
        for line in foreign.read_bytes(path).decode("utf-8").split("\n"):
            if line.strip():
                row = foreign.loads(line)
                rows.append({name: str(row[name]) for name in ("language", "text", "audio", "split")})
        return rows


def _codec(folder: Path, device: torch.device) -> Codec:
    return load_module(folder / CODEC, Codec(load_config(folder / CODEC, CodecConfig))).to(device)


def _language_model_config(folder: Path) -> T3Config:
    config = load_config(folder / LANGUAGE_MODEL, T3Config)
    if isinstance(config.decoder, DecoderConfig):
        return config
    settings = dict(vars(config))  # the header stores the nested config as a plain object
    settings["decoder"] = DecoderConfig(**settings["decoder"])
    settings["aligned_heads"] = tuple((layer, head) for layer, head in settings["aligned_heads"])
    return T3Config(**settings)
