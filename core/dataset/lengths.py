"""Clips that are longer than the model can hold, counted when their features are made and not when training begins."""

from __future__ import annotations

from math import floor

from core.jobs.events import WarningRaised
from core.jobs.reporter import Reporter
from core.segments.folder import PREFIX
from data.features import FeatureCache
from data.manifest import Clip, Dataset

_NAMED = 5


def tell_of_long(dataset: Dataset, cache: FeatureCache, longest: int, reporter: Reporter) -> int:
    """Warn of the clips with more than `longest` codes, with their numbers and the way out; how many they are."""
    long = too_long(dataset, cache, longest)
    if long:
        named = ", ".join(f"{clip.id} ({codes} codes, {clip.duration_s:.1f} s)" for clip, codes in long[:_NAMED])
        most_s = floor(2 * min(longest * clip.duration_s / codes for clip, codes in long)) / 2
        reporter.emit(WarningRaised(
            f"{len(long)} of {len(dataset.clips)} clips are longer than the {longest} codes that the model can hold, "
            f"and will not be trained on: {named}{' ...' if len(long) > _NAMED else ''}. "
            + _way_out(dataset, most_s)))
    return len(long)


def _way_out(dataset: Dataset, most_s: float) -> str:
    if dataset.card.source.startswith(PREFIX):
        return (f"Make the clips again under another name with --max-clip-s {most_s:g} (scripts.segment or "
                "scripts.align; on the page: Long recordings, Clips, sound and speakers, Longest clip), and prepare "
                "those.")
    return (f"Cut these recordings into ones of at most {most_s:g} s, with their texts, and prepare them under another "
            "name.")


def too_long(dataset: Dataset, cache: FeatureCache, longest: int) -> list[tuple[Clip, int]]:
    """The clips with more than `longest` codes, with the number of these, the longest first."""
    found = {sha256: count for sha256, count in cache.lengths(dataset.card.fingerprint, "speech_codes")
             if count > longest}
    clips = [(clip, found[clip.sha256]) for clip in dataset.clips if clip.sha256 in found]
    return sorted(clips, key=lambda one: -one[1])
