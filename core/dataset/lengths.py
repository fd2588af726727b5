"""Clips that are longer than the model can hold, counted when their features are made and not when training begins."""

from __future__ import annotations

from core.job.journal import Warned
from core.job.reporter import Reporter
from data.features import FeatureCache
from data.manifest import Clip, Dataset

_NAMED = 5


def tell_of_long(dataset: Dataset, cache: FeatureCache, longest: int, reporter: Reporter) -> int:
    """Warn of the clips with more than `longest` codes, with their numbers; how many they are."""
    long = too_long(dataset, cache, longest)
    if long:
        named = ", ".join(f"{clip.id} ({codes} codes, {clip.duration_s:.1f} s)" for clip, codes in long[:_NAMED])
        reporter.emit(Warned(
            f"{len(long)} of {len(dataset.clips)} clips are longer than the {longest} codes that the model can hold, "
            f"and will not be trained on: {named}{' ...' if len(long) > _NAMED else ''}. Cut these recordings into "
            "shorter ones, with their texts, and prepare them under another name."))
    return len(long)


def too_long(dataset: Dataset, cache: FeatureCache, longest: int) -> list[tuple[Clip, int]]:
    """The clips with more than `longest` codes, with the number of these, the longest first."""
    found = {sha256: count for sha256, count in cache.lengths(dataset.card.fingerprint, "speech_codes")
             if count > longest}
    clips = [(clip, found[clip.sha256]) for clip in dataset.clips if clip.sha256 in found]
    return sorted(clips, key=lambda one: -one[1])
