"""Who speaks in a dataset, as a table. Pure: counts in, HTML out."""

from __future__ import annotations

from core.dataset.clip_index import SpeakerSummary
from ui import present
from ui.markup import NOTHING, Html, element, join, paragraph

SHOWN = 12


def speakers(found: SpeakerSummary) -> Html:
    """The voices with the most speech; those with one clip are told apart, because they leave no pair."""
    if not found.count:
        return NOTHING
    rows = [(one.name, f"{one.clips:,}", present.duration(one.seconds)) for one in found.largest]
    table = present.table_of(("Speaker", "Clips", "Speech"), rows) if rows else NOTHING
    more = found.count - found.alone - len(rows)
    return join((element("h4", f"{found.count:,} speaker{'s' if found.count != 1 else ''}"), table,
                 paragraph(f"{more:,} more have less speech.", class_="small") if more else NOTHING, _alone(found)))


def _alone(found: SpeakerSummary) -> Html:
    if not found.alone:
        return NOTHING
    names = ", ".join(one.name for one in found.some_alone)
    more = f" and {found.alone - len(found.some_alone):,} more" if found.alone > len(found.some_alone) else ""
    who = "One speaker has" if found.alone == 1 else f"{found.alone:,} speakers have"
    return paragraph(f"{who} a single clip, so there is no other of theirs that could be its prompt: {names}{more}.",
                     class_="small")
