"""Clips that the model or its tokenizer cannot take: speech or text too long, characters unknown.

They are counted when a dataset is prepared, and not only when training begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import floor

from config.errors import UserError
from core.jobs.events import Plan, WarningRaised
from core.jobs.reporter import Reporter, pluralize
from core.library.segments import PREFIX
from core.workspace import Workspace
from data.feature_cache import FeatureCache
from data.front_end import FrontEnd, name_characters
from data.manifest import ManifestClip, PreparedDataset

_SHOWN = 5  # clips in a warning


@dataclass(frozen=True)
class TokenizerCoverage:
    """By clip: the characters that the tokenizer does not know, and in words, texts that are too long in tokens."""

    tokenizer: str = ""  # empty: the base's own
    checked: bool = False  # whether there was a tokenizer to check the texts with
    unknown: dict[str, str] = field(default_factory=dict)
    too_long: dict[str, str] = field(default_factory=dict)


UNKNOWN_COVERAGE = TokenizerCoverage()


def newest_tokenizer(workspace: Workspace, base: FrontEnd, *languages: str) -> str:
    """The newest merged tokenizer of `base` that knows all `languages`; empty without one."""
    candidates = []
    for name in workspace.list_tokenizers():
        folder = workspace.tokenizers / name
        try:
            front_end = FrontEnd.load(folder)
        except UserError:
            continue  # incomplete or damaged: the Tokenizer tab says so
        has_languages = all(code in front_end.languages and front_end.is_new(code) for code in languages)
        if has_languages and front_end.base_fingerprint == base.base_fingerprint:
            candidates.append((folder.stat().st_mtime, name))
    return max(candidates)[1] if candidates else ""


def check_texts(clips: Iterable[ManifestClip], front_end: FrontEnd, longest: int,
                tokenizer: str = "") -> TokenizerCoverage:
    """Check `clips` against a front-end and a model that holds `longest` tokens of text, without start, tag and stop.

    `tokenizer` is the name of the merged tokenizer that `front_end` is; empty for the base's own.
    """
    coverage = TokenizerCoverage(tokenizer, checked=True)
    for clip in clips:
        count = len(front_end.body(clip.text, clip.language))
        if count > longest:
            coverage.too_long[clip.id] = f"{count} tokens of text, the model holds {longest}"
        unknown = front_end.unknown_characters(clip.text, clip.language)
        if unknown:
            coverage.unknown[clip.id] = "".join(unknown)
    return coverage


def warn_uncovered(coverage: TokenizerCoverage, reporter: Reporter) -> None:
    """Warn of the texts that the tokenizer or the model cannot take, with the first ids."""
    reader, use, remedy = "the model", "replayed", "Edit these texts."
    if coverage.tokenizer:
        reader, use = f"the tokenizer {coverage.tokenizer}", "trained on"
        remedy = "Make the tokenizer again on this dataset, or edit these texts."
        reporter.emit(Plan((f"Texts are counted by {reader}, the last one of this language.",)))
    if coverage.unknown:
        characters = sorted(set("".join(coverage.unknown.values())))
        reporter.emit(WarningRaised(
            f"{pluralize(len(coverage.unknown), 'text')} {'has' if len(coverage.unknown) == 1 else 'have'} characters "
            f"that {reader} does not know and will not be {use} with it: "
            f"{name_characters(characters)}, as in {_shown(list(coverage.unknown))}. {remedy}"))
    if coverage.too_long:
        reporter.emit(WarningRaised(
            f"{pluralize(len(coverage.too_long), 'text')} {'is' if len(coverage.too_long) == 1 else 'are'} longer than "
            f"the model can hold and will not be {use}: "
            f"{_shown(list(coverage.too_long))}. Cut these recordings, with their texts."))


def find_too_long(dataset: PreparedDataset, cache: FeatureCache, longest: int) -> list[tuple[ManifestClip, int]]:
    """The clips with more than `longest` speech codes, with the number of these, the longest first."""
    lengths = {key: count for key, count in cache.lengths(dataset.card.fingerprint, "speech_codes") if count > longest}
    clips = [(clip, lengths[clip.feature_key]) for clip in dataset.clips if clip.feature_key in lengths]
    return sorted(clips, key=lambda pair: -pair[1])


def warn_too_long(dataset: PreparedDataset, cache: FeatureCache, longest: int, reporter: Reporter) -> int:
    """Warn of the clips with more than `longest` speech codes, and say how to shorten them; how many they are."""
    long = find_too_long(dataset, cache, longest)
    if long:
        most_s = floor(2 * min(longest * clip.duration_s / codes for clip, codes in long)) / 2
        remedy = (f"Cut these recordings into ones of at most {most_s:g} s, with their texts, and prepare them under "
                  "another name.")
        if dataset.card.source.startswith(PREFIX):
            remedy = (f"Make the clips again under another name with --max-clip-s {most_s:g} (python -m scripts "
                      "segment or python -m scripts align; on the page: Long recordings, Clip length, audio and "
                      "speakers, Maximum clip length), and prepare those.")
        reporter.emit(WarningRaised(
            f"{len(long)} of {len(dataset.clips)} clips are longer than the {longest} codes that the model can hold, "
            "and will not be trained on: "
            f"{_shown([f'{clip.id} ({codes} codes, {clip.duration_s:.1f} s)' for clip, codes in long])}. {remedy}"))
    return len(long)


def _shown(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (" ..." if len(names) > _SHOWN else "")
