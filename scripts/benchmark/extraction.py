"""Feature extraction: hours of recordings in an hour, all clips of a batch together."""

from __future__ import annotations

import torch

from models.chatterbox.s3gen import S3Gen
from models.chatterbox.sound import ChatterboxExtractor
from models.chatterbox.voice_encoder import VoiceEncoder
from scripts.benchmark.bench import Bench
from scripts.benchmark.extent import draw
from scripts.benchmark.rows import Found, Row
from scripts.benchmark.timing import Measure, in_turns, seconds

PART = "extraction"


def measure(bench: Bench) -> Found:
    """One row: codes, prompt codes and speaker embedding of each clip."""
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
    return Found((Row(PART, what, "h/h", found["ours"], found.get("package"), more_is_better=True),))
