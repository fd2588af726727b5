"""Feature extraction: hours of recordings in an hour, all clips of a batch together."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import torch

from core.jobs.events import Event
from core.prepare import extract_features
from core.sources.dataset_source import demo_dataset
from core.workspace import Workspace
from data.acoustics.voice_encoder import VoiceEncoder
from data.importers import import_source
from data.manifest import TRAIN, ManifestClip, PreparedDataset, make_card
from data.sound_files import file_duration
from models import tiny as pack
from models.chatterbox.codec import ChatterboxExtractor
from models.chatterbox.s3gen import S3Gen
from models.indextts2.extractor import IndexTTS2Extractor
from models.indextts2.semantic_codec import SemanticCodec
from models.indextts2.unified_voice import VoiceConditioner as ConditioningNetworks
from models.indextts2.w2v_bert import W2vBert
from models.registry import family
from scripts.dev.benchmark.bench import Bench
from scripts.dev.benchmark.results import BenchmarkResults, BenchmarkRow
from scripts.dev.benchmark.sizes import fill_randomly
from scripts.dev.benchmark.timing import Measure, measure_interleaved, seconds

PART = "extraction"


def measure(bench: Bench) -> BenchmarkResults:
    """Codes and conditioning of each clip, for Chatterbox, IndexTTS2 and the built-in model."""
    bench.say("Feature extraction")
    models, encoder = S3Gen(bench.sizes.sound), VoiceEncoder()
    for module in (models, encoder):
        module.requires_grad_(False).eval().to(bench.device)
        fill_randomly(module)
    extractor = ChatterboxExtractor(models, encoder, "")
    random = torch.Generator().manual_seed(0)
    lengths = [round(length_s * extractor.sample_rate) for length_s in bench.sizes.clip_durations_s]
    clips = [0.1 * torch.randn(length, generator=random) for length in lengths]
    total_s = sum(bench.sizes.clip_durations_s)
    measures: dict[str, Measure] = {
        "ours": lambda: total_s / seconds(lambda: extractor.extract_batch(clips), bench.device)}
    if (reference := bench.reference) is not None:
        reference.ask("s3gen")
        measures["package"] = lambda: total_s / reference.ask("extract", lengths=lengths)["seconds"]
    found = measure_interleaved(measures, bench.sizes.repeats)
    what = f"{len(clips)} clips of {min(bench.sizes.clip_durations_s):g} to {max(bench.sizes.clip_durations_s):g} s"
    row = BenchmarkRow(PART, what, "h/h", found["ours"], found.get("package"), more_is_better=True)
    bench.keep([row])
    bench.tidy()
    other = _indextts2(bench, lengths)
    bench.keep([other])
    return BenchmarkResults((row, other, _built_in(bench)))


def _indextts2(bench: Bench, lengths: list[int]) -> BenchmarkRow:
    """Codes, speaker latents and emotion vector of each clip."""
    bench.say("Feature extraction, IndexTTS2")
    sizes = bench.sizes.extractor
    states, codec = W2vBert(sizes.states), SemanticCodec(sizes.codec)
    encoder = ConditioningNetworks(bench.sizes.voice)
    for module in (states, codec, encoder):
        module.requires_grad_(False).eval().to(bench.device)
        fill_randomly(module)
    extractor = IndexTTS2Extractor(states, codec, encoder, "")
    random = torch.Generator().manual_seed(0)
    clips = [0.1 * torch.randn(length, generator=random) for length in lengths]
    total_s = sum(bench.sizes.clip_durations_s)
    measures: dict[str, Measure] = {
        "ours": lambda: total_s / seconds(lambda: extractor.extract_batch(clips), bench.device)}
    if (reference := bench.reference) is not None:
        reference.ask("indextts2")
        measures["package"] = lambda: total_s / reference.ask("extract_indextts2", lengths=lengths)["seconds"]
    found = measure_interleaved(measures, bench.sizes.repeats)
    what = f"IndexTTS2, {len(clips)} clips of {min(bench.sizes.clip_durations_s):g} to " \
           f"{max(bench.sizes.clip_durations_s):g} s"
    return BenchmarkRow(PART, what, "h/h", found["ours"], found.get("package"), more_is_better=True)


def _built_in(bench: Bench) -> BenchmarkRow:
    """Features of the demo's clips for the built-in model as preparing makes them: read, extracted and cached."""
    bench.say("Feature extraction, built-in model")
    extractor = family("tiny").load_extractor(Path(pack.__file__).parent / "pack", bench.device)
    source = demo_dataset("am")
    rows = import_source(source, "am").rows[:bench.sizes.demo_clips]
    clips = [ManifestClip(row.id, str(row.audio.relative_to(source)), row.text, "am", TRAIN, file_duration(row.audio),
                          "",
                  hashlib.sha256(row.id.encode()).hexdigest()) for row in rows]
    dataset = PreparedDataset(source, make_card("demo", "am", "demo", clips), tuple(clips))
    total_s = sum(clip.duration_s for clip in clips)

    def prepare() -> float:
        with tempfile.TemporaryDirectory() as folder:
            workspace = Workspace.open(folder)
            return total_s / seconds(lambda: extract_features(dataset, extractor, workspace, _Silent()), bench.device)

    found = measure_interleaved({"ours": prepare}, bench.sizes.repeats)
    what = f"built-in model, {len(clips)} clips of the demo ({total_s / 60:.1f} min), read and cached"
    return BenchmarkRow(PART, what, "h/h", found["ours"], None, more_is_better=True)


class _Silent:
    """A reporter without output."""

    directory = Path()

    def emit(self, event: Event) -> None:
        pass

    def stop_requested(self) -> bool:
        return False
