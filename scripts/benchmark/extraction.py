"""Feature extraction: hours of recordings in an hour, all clips of a batch together."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import torch

from core.incoming.sources import demo
from core.jobs.events import Event
from core.prepare import extract_features
from core.workspace import Workspace
from data import audio
from data.importers import import_source
from data.manifest import TRAIN, Clip, Dataset, make_card
from models import tiny as pack
from models.chatterbox.s3gen import S3Gen
from models.chatterbox.sound import ChatterboxExtractor
from models.chatterbox.voice_encoder import VoiceEncoder
from models.registry import family
from scripts.benchmark.bench import Bench
from scripts.benchmark.extent import draw
from scripts.benchmark.rows import Found, Row
from scripts.benchmark.timing import Measure, in_turns, seconds

PART = "extraction"


def measure(bench: Bench) -> Found:
    """Codes, prompt codes and speaker embedding of each clip, for Chatterbox and for the built-in model."""
    bench.say("Feature extraction")
    models, encoder = S3Gen(bench.extent.sound), VoiceEncoder()
    for module in (models, encoder):
        draw(module)
        module.requires_grad_(False).eval().to(bench.device)
    extractor = ChatterboxExtractor(models, encoder, "")
    random = torch.Generator().manual_seed(0)
    lengths = [round(length_s * extractor.sample_rate) for length_s in bench.extent.heard_s]
    clips = [0.1 * torch.randn(length, generator=random) for length in lengths]
    heard_s = sum(bench.extent.heard_s)
    measures: dict[str, Measure] = {
        "ours": lambda: heard_s / seconds(lambda: extractor.extract_many(clips), bench.device)}
    if (reference := bench.reference) is not None:
        reference.ask("s3gen")
        measures["package"] = lambda: heard_s / reference.ask("hear", lengths=lengths)["seconds"]
    found = in_turns(measures, bench.extent.repeats)
    what = f"{len(clips)} clips of {min(bench.extent.heard_s):g} to {max(bench.extent.heard_s):g} s"
    return Found((Row(PART, what, "h/h", found["ours"], found.get("package"), more_is_better=True), _built_in(bench)))


def _built_in(bench: Bench) -> Row:
    """Features of the demo's clips for the built-in model as preparing makes them: read, extracted and cached."""
    bench.say("Feature extraction, built-in model")
    extractor = family("tiny").extractor(Path(pack.__file__).parent / "pack", bench.device)
    folder = demo("am")
    rows = import_source(folder, "am").rows[:bench.extent.demo_clips]
    clips = [Clip(row.id, str(row.audio.relative_to(folder)), row.text, "am", TRAIN, audio.duration(row.audio), "",
                  hashlib.sha256(row.id.encode()).hexdigest()) for row in rows]
    dataset = Dataset(folder, make_card("demo", "am", "demo", clips), tuple(clips))
    heard_s = sum(clip.duration_s for clip in clips)

    def prepare() -> float:
        with tempfile.TemporaryDirectory() as aside:
            workspace = Workspace.open(aside)
            return heard_s / seconds(lambda: extract_features(dataset, extractor, workspace, _Silent()), bench.device)

    found = in_turns({"ours": prepare}, bench.extent.repeats)
    what = f"built-in model, {len(clips)} clips of the demo ({heard_s / 60:.1f} min), read and cached"
    return Row(PART, what, "h/h", found["ours"], None, more_is_better=True)


class _Silent:
    """A reporter that nobody listens to."""

    directory = Path()

    def emit(self, event: Event) -> None:
        pass

    def stop_requested(self) -> bool:
        return False
