"""Feature extraction: hours of recordings in an hour, all clips of a batch together, and on a GPU its errors.

Extractors stay in float32 on every device. On a GPU cuDNN takes TF32 for convolutions and LSTMs, but for the built-in
model's.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from core.jobs.events import Event
from core.prepare import extract_features
from core.sources.dataset_source import demo_dataset
from core.workspace import Workspace
from data.acoustics import audio
from data.acoustics.voice_encoder import VoiceEncoder
from data.importers import import_source
from data.manifest import TRAIN, ManifestClip, PreparedDataset, make_card
from data.sound_files import file_duration
from models import tiny as pack
from models.base import Extractor, Voice
from models.campplus import CAMPPlus
from models.chatterbox import codec as chatterbox
from models.chatterbox.s3gen import S3Gen
from models.indextts2 import extractor as indextts2
from models.indextts2.semantic_codec import SemanticCodec
from models.indextts2.unified_voice import VoiceConditioner as ConditioningNetworks
from models.indextts2.w2v_bert import W2vBert
from models.registry import family
from scripts.dev.benchmark.bench import Bench
from scripts.dev.benchmark.results import BenchmarkResults, BenchmarkRow, Cost
from scripts.dev.benchmark.sizes import fill_randomly
from scripts.dev.benchmark.timing import Measure, measure_interleaved, seconds

PART = "extraction"
Arrays = Mapping[str, np.ndarray]


def measure(bench: Bench) -> BenchmarkResults:
    """Codes and conditioning of each clip, for Chatterbox, IndexTTS2 and the built-in model."""
    sizes = bench.sizes
    parts = [
        _measure_random(
            bench, "Chatterbox", ("s3gen", "extract"), [S3Gen(sizes.sound), VoiceEncoder()],
            lambda models, encoder: chatterbox.ChatterboxExtractor(models, encoder, ""),
            lambda extractor, clip, models, encoder: chatterbox.voice_from_clip(
                models, encoder, clip, extractor.sample_rate)),
        _measure_random(
            bench, "IndexTTS2", ("indextts2", "extract_indextts2"),
            [W2vBert(sizes.extractor.states), SemanticCodec(sizes.extractor.codec), ConditioningNetworks(sizes.voice),
             CAMPPlus()],
            lambda states, codec, conditioner, _: indextts2.IndexTTS2Extractor(states, codec, conditioner, ""),
            lambda extractor, clip, *modules: indextts2.voice_from_clip(
                extractor, modules[-1], clip, extractor.sample_rate)),
        _built_in(bench),
    ]
    return BenchmarkResults(tuple(row for part in parts for row in part.rows),
                            tuple(cost for part in parts for cost in part.costs))


def _measure_random(bench: Bench, name: str, package: tuple[str, str], modules: list[nn.Module],
                    make: Callable[..., Extractor], voice: Callable[..., Voice]) -> BenchmarkResults:
    """Features of random clips by random weights; errors also of what the longest clip gives to the vocoder.

    `package` is asked to load its models and to extract; `make` and `voice` take the modules.
    """

    bench.say(f"Feature extraction, {name}")
    for module in modules:
        module.requires_grad_(False).eval().to(bench.device)
        fill_randomly(module)
    extractor = make(*modules)
    lengths = [round(length_s * extractor.sample_rate) for length_s in bench.sizes.clip_durations_s]
    random = torch.Generator().manual_seed(0)
    clips = [0.1 * torch.randn(length, generator=random) for length in lengths]
    total_s = sum(bench.sizes.clip_durations_s)

    measures: dict[str, Measure] = {
        "ours": lambda: total_s / seconds(lambda: extractor.extract_batch(clips), bench.device)}
    reference = bench.reference
    if reference is not None:
        reference.ask(package[0])
        measures["package"] = lambda: total_s / reference.ask(package[1], lengths=lengths)["seconds"]

    stats = measure_interleaved(measures, bench.sizes.repeats)
    title = f"{name}, {len(clips)} clips of {min(bench.sizes.clip_durations_s):g} to " \
           f"{max(bench.sizes.clip_durations_s):g} s"
    row = BenchmarkRow(PART, title, "h/h", stats["ours"], stats.get("package"), more_is_better=True)
    bench.keep([row])

    # On a GPU the features are compared with those of a CPU.
    costs: list[Cost] = []
    if bench.device.type != "cpu":
        def compute(*modules: nn.Module) -> tuple[list[Arrays], Arrays]:
            extractor = make(*modules)
            return ([features.arrays for features in extractor.extract_batch(clips)],
                    voice(extractor, clips[-1], *modules).timbre)

        (features, timbre), (expected, wanted_timbre) = compute(*modules), compute(*map(bench.on_cpu, modules))
        costs += _costs(f"{name}, float32", features, expected)
        costs += _costs(f"{name}, float32, reference clip", [timbre], [wanted_timbre])
    bench.tidy()
    return BenchmarkResults((row,), tuple(costs))


def _costs(name: str, results: Sequence[Arrays], expected: Sequence[Arrays]) -> list[Cost]:
    """For each array of the clips the share of equal codes, or the mean relative error."""
    costs, note = [], f"{len(expected)} {'clip' if len(expected) == 1 else 'clips'}, against float32 on the CPU"
    for key, first in expected[0].items():
        pairs = [(result[key].astype(np.float64), true[key].astype(np.float64))
                 for result, true in zip(results, expected, strict=True)]
        array = key.replace("_", " ")
        if first.dtype.kind in "iu":
            same = np.concatenate([result == true for result, true in pairs])
            costs.append(Cost(PART, f"{name}: {array} that are the same", 100 * float(same.mean()), "%", note))
        else:
            errors = [float(np.linalg.norm(result - true) / np.linalg.norm(true)) for result, true in pairs]
            costs.append(Cost(PART, f"{name}: relative error of the {array}", 100 * float(np.mean(errors)), "%", note))
    return costs


def _built_in(bench: Bench) -> BenchmarkResults:
    """Features of the demo's clips for the built-in model as preparing makes them: read, extracted and cached."""
    bench.say("Feature extraction, built-in model")
    folder = Path(pack.__file__).parent / "pack"

    extractor = family("tiny").load_extractor(folder, bench.device)
    source = demo_dataset("am")
    rows = import_source(source, "am").rows[:bench.sizes.demo_clips]
    clips = [ManifestClip(row.id, str(row.audio.relative_to(source)), row.text, "am", TRAIN, file_duration(row.audio),
                          "",
                  hashlib.sha256(row.id.encode()).hexdigest()) for row in rows]
    dataset = PreparedDataset(source, make_card("demo", "am", "demo", clips), tuple(clips))
    # The unit is hours of speech in an hour.
    total_s = sum(clip.duration_s for clip in clips)

    def prepare() -> float:
        with tempfile.TemporaryDirectory() as folder:
            workspace = Workspace.open(folder)
            return total_s / seconds(lambda: extract_features(dataset, extractor, workspace, _Silent()), bench.device)

    stats = measure_interleaved({"ours": prepare}, bench.sizes.repeats)
    title = f"built-in model, {len(clips)} clips of the demo ({total_s / 60:.1f} min), read and cached"
    row = BenchmarkRow(PART, title, "h/h", stats["ours"], None, more_is_better=True)

    if bench.device.type == "cpu":
        return BenchmarkResults((row,))

    on_cpu = family("tiny").load_extractor(folder, torch.device("cpu"))
    waveforms = [audio.load(row.audio, extractor.sample_rate) for row in rows]
    features, expected = ([features.arrays for features in model.extract_batch(waveforms)]
                          for model in (extractor, on_cpu))
    return BenchmarkResults((row,), tuple(_costs("built-in model, float32", features, expected)))


class _Silent:
    """A reporter without output."""

    directory = Path()

    def emit(self, event: Event) -> None:
        pass

    def stop_requested(self) -> bool:
        return False
