"""The review table as HTML: a row a clip with waveform, player and editable text, and what was found in all of them.

Pure but for what it is handed. What is pressed here is told by `review.js` to the part of the page that decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from core.dataset import review
from core.dataset.clip_index import FindingSummary, IndexedClip
from core.dataset.review import ReviewDecision, ReviewDecisions
from ui import media, present
from ui.markup import NOTHING, Html, div, element, join, paragraph, span
from ui.training import player

_WAVE_HEIGHT = 40.0
_KEYS = (("j", "next clip"), ("k", "previous clip"), ("space", "play or pause"), ("x", "exclude or include"),
         ("e", "edit the text"), ("Esc", "leave the text, which keeps it"), ("n", "next page"), ("p", "previous page"))


def keys() -> Html:
    """What the keyboard does in the table."""
    return div("keys", *(span("key-of", element("kbd", key), " ", does) for key, does in _KEYS))


def rows(dataset: str, shown: Sequence[IndexedClip], made: Mapping[str, ReviewDecision]) -> Html:
    """The clips of a page."""
    return div("clips", *(row(dataset, one, made.get(one.clip.id)) for one in shown), data_dataset=dataset)


def row(dataset: str, one: IndexedClip, made: ReviewDecision | None) -> Html:
    """One clip: what it is, how it sounds, what is said, what was found, and what can be done."""
    included = made is None or made.included
    text = made.text if made and made.text else one.clip.text
    marks = [span("pill", "text anew")] if made and made.text else []
    marks += [span("pill", "will be mended")] if made and made.fixes else []
    marks += [] if included else [span("pill wait", "excluded")]
    head = div("clip-head", element("strong", one.clip.id), *marks, span("small", measures(one)))
    found = [paragraph(present.tone_word(finding.level), " ", finding.message) for finding in one.findings]
    said = element("textarea", text, rows="2", class_="clip-text", lang=one.clip.language, dir="auto",
                   aria_label=f"What is said in {one.clip.id}")
    press = element("button", "Exclude" if included else "Include", type="button", class_="small-button",
                    data_do="exclude" if included else "include")
    sound = div("clip-sound", wave(one), player(media.url("datasets", dataset, one.clip.audio), one.clip.id))
    return div("clip" + ("" if included else " out"), head, sound,
               div("clip-said", said, div("clip-found", *found) if found else NOTHING), div("clip-do", press),
               data_clip=one.clip.id, tabindex="0", role="group", aria_label=f"Clip {one.clip.id}")


def wave(one: IndexedClip) -> Html:
    """The recording drawn from its peaks; the silence at its ends is paler."""
    peaks = list(bytes.fromhex(one.measures.outline)) if one.measures and one.measures.outline else []
    if one.measures is None or not peaks:
        return div("wave none", "No waveform: prepare the dataset once more, and it is measured.")
    heights = [max(0.6, _WAVE_HEIGHT / 2 * peak / 255) for peak in peaks]
    top = " ".join(f"{at},{_WAVE_HEIGHT / 2 - height:.1f}" for at, height in enumerate(heights))
    bottom = " ".join(f"{at},{_WAVE_HEIGHT / 2 + heights[at]:.1f}" for at in reversed(range(len(heights))))
    width, duration_s = len(peaks) - 1, max(one.measures.duration_s, 1e-3)
    ends = [(0.0, one.measures.silence_start_s), (duration_s - one.measures.silence_end_s, one.measures.silence_end_s)]
    silent = join(element("rect", x=f"{width * start / duration_s:.1f}", y="0", height=f"{_WAVE_HEIGHT:g}",
                          width=f"{width * length / duration_s:.1f}", class_="silent") for start, length in ends)
    drawing = element("svg", element("polygon", points=f"{top} {bottom}"), silent, preserveAspectRatio="none",
                      viewBox=f"0 0 {width} {_WAVE_HEIGHT:g}", aria_hidden="true")
    return div("wave", drawing, span("wave-at"), title="Press where it shall play from")


def measures(one: IndexedClip) -> str:
    """What was measured, in a line."""
    if one.measures is None:
        return "not measured"
    parts = [f"{one.measures.duration_s:.1f} s"]
    parts += [f"{one.measures.level_lufs:.0f} LUFS"] if one.measures.level_lufs is not None else []
    parts += [f"{one.measures.snr_db:.0f} dB over the noise"] if one.measures.snr_db is not None else []
    parts += [f"{one.rate:.1f} letters a second"] if one.rate is not None else []
    return " · ".join(parts)


def found(dataset: str, kinds: Sequence[FindingSummary], made: ReviewDecisions, level_lufs: float | None) -> Html:
    """Each kind of finding with how many clips have it, and what can be done about all of them at once."""
    if not kinds:
        return present.notice("Nothing to complain about.", "good")
    lines = [_kind(one, made, level_lufs) for one in kinds]
    return div("kinds", present.table_of(("", "Finding", "Clips", "For all of them at once"), lines),
               data_dataset=dataset)


def _kind(one: FindingSummary, made: ReviewDecisions, level_lufs: float | None) -> tuple[object, ...]:
    fix = review.FIXES.get(one.kind, "")
    out, mended = made.excluded[one.kind], made.mended[fix] if fix else 0
    does = review.describe_fix(one.kind, one.count, level_lufs)
    buttons = [_button("Show", "show", one.kind)]
    buttons += [_button(does.rstrip("."), "fix", one.kind)] if does and mended < one.count else []
    buttons += _excluding(one, out)
    buttons += [_button("Undo", "undo-kind", one.kind)] if out or mended else []
    told = [f"{out:,} excluded"] if out else []
    told += [f"{mended:,} will be mended"] if mended else []
    note = review.BEFORE_EXCLUDING.get(one.kind, "") if out < one.count else ""
    return (present.tone_word(one.level), one.kind, one.parts or f"{one.count:,}",
            div("bulk", *buttons, *(span("pill wait", words) for words in told), span("small", note) if note else ""))


def _excluding(one: FindingSummary, out: int) -> list[Html]:
    """Leave out all, or first the errors alone: a warning is for the ear to decide."""
    if out >= one.count:
        return []
    if not one.parts:
        return [_button(f"Exclude {one.count:,} clip{'s' if one.count != 1 else ''}", "exclude-kind", one.kind)]
    errors = [_button(f"Exclude the {f'{one.errors:,} errors' if one.errors != 1 else 'error'}", "exclude-errors",
                      one.kind)] if out < one.errors else []
    return [*errors, _button(f"Exclude all {one.count:,}", "exclude-kind", one.kind)]


def _button(words: str, do: str, kind: str) -> Html:
    return element("button", words, type="button", class_="small-button", data_do=do, data_kind=kind)
