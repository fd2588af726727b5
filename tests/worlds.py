"""A whole small world in a workspace: a random base model of the built-in family, and a dataset in a new language.

The weights are noise and the recordings are tones, but every file is of the true kind, so
the true code path runs in seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, wraps
from pathlib import Path

import numpy as np
import soundfile
import torch

from config.loading import parse_options
from config.schema import CertifyOptions, ExportOptions, ExtendOptions, TrainOptions, without_sections
from core import certify, extend, train
from core.jobs.events import Event, Result, Step
from core.workspace import Workspace
from data import manifest, normalisers
from data.acoustics import audio
from data.feature_cache import FeatureCache
from data.front_end import FrontEnd
from data.manifest import ManifestClip
from models.base import VocoderOptions, Voice
from models.decoder import DecoderConfig
from models.registry import family
from models.speech_network import T3, T3Config
from models.tiny.codec import Codec, CodecConfig
from models.tiny.model_folder import save_module
from models.tiny.recogniser import RecogniserConfig, RecogniserNetwork
from models.tiny.vocoder import MelVocoder, MelVocoderConfig

LETTERS = "abcdefghijklmnopqrstuvwxyz'àâçèéêëîïôùûü"
RATE = 16000
DEVICE = torch.device(os.environ.get("LISAN_TEST_DEVICE", "cpu"))  # of training in tests; `make gpu` sets it
ENGLISH = ("the cat sees a dog", "we go home now", "five green birds sing", "she reads a book")
FRENCH = ("le chat voit un chien", "nous rentrons à la maison", "cinq oiseaux chantent", "elle lit un livre")
SYLLABLES = "ሀለመሰረቀበተነከ"
GREEK = "αβγδεζικλο"


class Listener:
    """A reporter that keeps the events; `stop_after` a number of steps it asks for a stop."""

    def __init__(self, directory: Path, stop_after: int | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.stop_after, self.events = directory, stop_after, list[Event]()

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def stop_requested(self) -> bool:
        return self.stop_after is not None and len(self.of("step")) >= self.stop_after

    def of(self, kind: str) -> list:
        return [event for event in self.events if event.kind == kind]

    def clips(self) -> list:
        """The clips with their scores; each was there before without."""
        return [event for event in self.of("audio") if not event.scoring]


def losses(listeners: Sequence[Listener]) -> list[tuple[float, float, float]]:
    """Speech, text and the gradient's norm of the steps, in their order."""
    steps: list[Step] = [event for listener in listeners for event in listener.of("step")]
    return [(step.speech_loss, step.text_loss, step.gradient_norm) for step in steps]


class CodesAsSound:
    """A vocoder in no time: the codes are the samples, as loud as a voice, so equal sound is equal codes."""

    sample_rate = RATE

    def decode(self, codes: np.ndarray, voice: Voice, options: VocoderOptions | None = None,
               hidden_states: torch.Tensor | None = None) -> torch.Tensor:
        return 0.1 + torch.from_numpy(codes).float() / 2**16

    def stream(self, voice: Voice, options: VocoderOptions | None = None) -> None:
        return None

    def cast_(self, dtype: torch.dtype) -> None:
        pass

    def free_buffers(self) -> None:
        pass


def tone(seed: int, seconds: float, pitch: float = 150.0) -> torch.Tensor:
    """A waveform (S,) whose harmonics change every tenth of a second."""
    noise = np.random.default_rng(seed)
    time = np.arange(int(seconds * RATE)) / RATE
    levels = np.repeat(noise.random((int(seconds * 10) + 1, 6)), RATE // 10, axis=0)[: len(time)]
    harmonics = np.stack([np.sin(2 * np.pi * pitch * (k + 1) * time) for k in range(6)], 1)
    return torch.from_numpy((0.1 * (levels * harmonics).sum(1)).astype(np.float32))


def write_model(folder: Path, seed: int = 0) -> None:
    """A model folder of the built-in family with random weights."""
    torch.manual_seed(seed)
    for part in ("voices", "held_out"):
        (folder / part).mkdir(parents=True)
    front_end = FrontEnd.base({"en": "latin", "fr": "latin"}, LETTERS)
    front_end.save(folder)
    codec = CodecConfig(width=16, encoder_blocks=1, decoder_blocks=1, levels=(3, 3, 3), speaker_size=8)
    save_module(folder / "codec.safetensors", Codec(codec), codec)
    recogniser = RecogniserConfig(("en", "fr", "am"), tuple(LETTERS), ("a", "b"), width=16)
    save_module(folder / "recogniser.safetensors", RecogniserNetwork(recogniser), recogniser)
    size = codec.codebook_size
    config = T3Config(
        DecoderConfig(width=32, layers=2, heads=2, mlp_width=48), text_rows=front_end.size, speech_rows=size + 2,
        start_speech=size, stop_speech=size + 1, text_positions=48, speech_positions=64, speaker_size=8,
        prompt_queries=2, aligned_heads=((0, 0), (1, 1)),
    )
    save_module(folder / "t3.safetensors", T3(config), config)
    vocoder = MelVocoderConfig(width=16, blocks=1)
    save_module(folder / "vocoder.safetensors", MelVocoder(vocoder), vocoder)
    for name, pitch in (("low", 100.0), ("high", 220.0)):
        soundfile.write(folder / "voices" / f"{name}.ogg", tone(seed, 1.0, pitch).numpy(), RATE)
    _write_held_out(folder)
    sums = {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file()}
    (folder / "SHA256SUMS.json").write_text(json.dumps(sums))


def _write_held_out(folder: Path) -> None:
    rows = []
    for language, texts in (("en", ENGLISH), ("fr", FRENCH)):
        for split in ("combinations", "replay"):
            for index, text in enumerate(texts):
                name = f"held_out/{language}-{split}-{index}.ogg"
                soundfile.write(folder / name, tone(len(rows) + 50, 0.8, (100.0, 220.0)[index % 2]).numpy(), RATE)
                rows.append({"language": language, "text": text, "audio": name, "split": split})
    (folder / "held_out.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def write_dataset(workspace: Workspace, name: str = "demo-am", train: int = 12, held_out: int = 4,
                  model: str = "tiny", language: str = "am", letters: str = SYLLABLES) -> None:
    """A prepared dataset of tones in two voices with its features, as `model` extracts them, in the cache."""
    folder = workspace.datasets / name
    (folder / "audio").mkdir(parents=True)
    extractor = family(model).load_extractor(workspace.model(model), torch.device("cpu"))
    cache = FeatureCache(workspace.cache, extractor.fingerprint)
    noise, clips = np.random.default_rng(1), []
    for index in range(train + held_out):
        words = ["".join(noise.choice(list(letters), 3)) for _ in range(2 + index % 3)]
        seconds = 0.5 + 0.1 * (index % 4)
        path = folder / "audio" / f"{index:03d}.wav"
        audio.save(path, tone(index + 100, seconds, (100.0, 220.0)[index % 2]), RATE)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        cache.save(digest, extractor.extract(audio.load(path, RATE)).arrays)
        split, speaker = "train" if index < train else "held_out", f"s{index % 2}"
        clips.append(ManifestClip(path.stem, f"audio/{path.name}", " ".join(words), language, split, seconds,
                                  speaker, digest))
    manifest.save(folder, manifest.make_card(name, language, "tones", clips), clips)


def write_tokenizer(workspace: Workspace, name: str = "tiny-am", model: str = "tiny") -> FrontEnd:
    """A merged tokenizer with the dataset's syllables."""
    base = family(model).load_front_end(workspace.model(model))
    front_end = base.extended("am", normalisers.for_language("am", base.style), sorted(SYLLABLES), [])
    front_end.save(workspace.tokenizers / name)
    return front_end


def made_once(make: Callable[[Path], Workspace]) -> Callable[[Path], Workspace]:
    """`make` once a process; each caller has a copy of what it made, which takes a tenth of the time."""

    @cache
    def original() -> tempfile.TemporaryDirectory[str]:
        folder = tempfile.TemporaryDirectory(prefix="world-")
        make(Path(folder.name))
        return folder

    @wraps(make)
    def copied(path: Path) -> Workspace:
        return Workspace.open(shutil.copytree(original().name, path, dirs_exist_ok=True))

    return copied


@made_once
def extended_world(path: Path) -> Workspace:
    """A workspace with the model, a dataset, the tokenizer and the extension."""
    workspace = Workspace.open(path)
    write_model(workspace.models / "tiny")
    return extend_world(workspace, "tiny")


def extend_world(workspace: Workspace, model: str) -> Workspace:
    """A dataset, a tokenizer and the extension `tiny-am` for a model that is there."""
    write_dataset(workspace, model=model)
    write_tokenizer(workspace, model=model)
    options = ExtendOptions(model=model, tokenizer="tiny-am", extension="tiny-am")
    extend.run(options, workspace, Listener(workspace.runs / "extend"))
    return workspace


def train_and_certify(options: TrainOptions, workspace: Workspace, listener: Listener) -> Result:
    """A training and its certificate, as one result."""
    trained = train.run(options, workspace, listener)
    return {**trained, **certify.run(CertifyOptions(run=f"run:{listener.directory.name}"), workspace, listener)}


def export_options(**changes: object) -> ExportOptions:
    """Options of an export of a run of seconds, which learned nothing."""
    return ExportOptions(**{"accept_learning": True, **changes})  # type: ignore[arg-type]


def train_options(**changes: object) -> TrainOptions:
    """Options of a run of seconds."""
    values: dict[str, object] = {
        "extension": "tiny-am", "dataset": "demo-am", "steps": 8, "batch_size": 4, "warmup": 2, "adapter_rank": 4,
        "checkpoint_every": 4, "evaluation_sentences": 2, "precision": "float32", "device": DEVICE.type, **changes,
    }
    return parse_options(TrainOptions, values)


def train_settings(**changes: object) -> dict[str, object]:
    """The values of `train_options` by their names without sections."""
    return without_sections(TrainOptions, train_options(**changes).model_dump(mode="json"))
