"""Clips side by side as HTML: players, spectrograms, what the judge heard. Pure functions of a comparison's state."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from core.job.journal import AudioMade
from core.job.state import JobState
from ui import job_views, media
from ui.job_views import error_badge
from ui.markup import NOTHING, Html, div, element, join, paragraph, player, shortened, span, table

SIDES = ("base", "finetuned")
ONE = "speech"  # the side of a text that one model speaks
VERBS = ("compare", "synthesize")
"""Jobs that speak: two sides, or one."""
BEFORE_HERE = ("So this “before” is not that of the certificate, which is the same letters with rows that are not "
               "trained yet.")
_LONG, _LETTERS_A_PIECE, _LONGEST_WORD = 300, 80, 200  # letters
_TITLES = {"base": "Before", "finetuned": "After", ONE: "One voice"}


@dataclass(frozen=True)
class BlindMode:
    """How a comparison is shown without saying which is which; `voted` are the clips whose answer is out."""

    on: bool
    voted: frozenset[int] = frozenset()

    def hides(self, index: int) -> bool:
        return self.on and index not in self.voted


def clips(state: JobState) -> dict[int, dict[str, AudioMade]]:
    """The finished clips by number and side."""
    found: dict[int, dict[str, AudioMade]] = {}
    for clip in state.audio:
        found.setdefault(clip.index, {})[clip.side] = clip
    return dict(sorted(found.items()))


def sides_of(state: JobState) -> tuple[str, ...]:
    """Of a comparison two, else one."""
    return SIDES if state.verb == "compare" else (ONE,)


def texts_of(state: JobState) -> tuple[tuple[str, str], ...]:
    """Language and text of what is to be said; empty where the job chooses the texts itself."""
    settings = state.job.settings
    if state.verb == "synthesize":
        return ((str(settings.get("language", "")), str(settings.get("text", ""))),)
    texts = settings.get("texts")
    return tuple((str(code), str(text)) for code, text in texts) if isinstance(texts, Sequence) else ()


def open_question(state: JobState, voted: frozenset[int]) -> int | None:
    """The first clip with both sides that has no vote yet."""
    return next((index for index, sides in clips(state).items() if len(sides) == 2 and index not in voted), None)


def comparison(state: JobState, originals: Mapping[str, float], blind: BlindMode) -> Html:
    """All clips of a job that speaks, each side beside the other; those still to come are shown as coming."""
    made = clips(state)
    wanted = range(max(len(texts_of(state)), len(made)))
    rows = [_pair(state, index, made.get(index, {}), originals, blind) for index in wanted]
    return join(rows) if rows else NOTHING


def _pair(state: JobState, index: int, sides: Mapping[str, AudioMade], originals: Mapping[str, float],
          blind: BlindMode) -> Html:
    language, text = _asked(state, index, sides)
    names = sides_of(state)
    blind = blind if len(names) > 1 else BlindMode(False)
    order = blind_order(state.id, index) if blind.hides(index) else names
    hidden = blind.hides(index)
    cards = [
        _side(state, sides.get(side), (f"Voice {letter}", f"Voice {letter}") if hidden else _title(state, side),
              originals.get(language), hidden)
        for letter, side in zip("AB", order, strict=False)
    ]
    notes = [] if blind.hides(index) else list(dict.fromkeys(clip.note for clip in sides.values() if clip.note))
    return div(
        "pair", div("said", span("badge", job_views.language_name(language)),
                    element("blockquote", shortened(text), lang=language),
                    *(span("small note", shortened(note, 500)) for note in notes),
                    span("small note", BEFORE_HERE) if _base_reads_otherwise(sides) and notes else NOTHING),
        div("sides", *cards), data_index=index,
    )


def _base_reads_otherwise(sides: Mapping[str, AudioMade]) -> bool:
    """Whether the base reads another spelling; what is the same for both sides is no such note."""
    base, other = (sides[side].note if side in sides else "" for side in SIDES)
    return bool(base) and base != other


def length_notice(text: str, states: Sequence[JobState]) -> Html:
    """What a long text will cost, by the last comparison where there is one; nothing for a short one."""
    letters = len(text.strip())
    if letters <= _LONG:
        return NOTHING
    said = f"{letters:,} letters: about {math.ceil(letters / _LETTERS_A_PIECE)} pieces, one after another"
    last = next((state for state in states if state.verb in VERBS and state.status == "finished" and state.audio), None)
    if last is not None:
        first = sides_of(last)[0]
        spoken = sum(len(sides[first].text) for sides in clips(last).values() if first in sides)
        seconds = sum(clip.seconds for clip in last.audio) / max(1, spoken) * letters
        who = "both voices take" if last.verb == "compare" else "one voice takes"
        said += f"; {who} about {job_views.duration(seconds)}, as fast as the last time"
    longest = max(text.split(), key=len)
    if len(longest) > _LONGEST_WORD:
        said += (f". One word has {len(longest):,} letters ({shortened(longest, 12)}); a word is not cut, so it may be "
                 "refused: put spaces into it")
    return job_views.notice(f"{said}.")


def _asked(state: JobState, index: int, sides: Mapping[str, AudioMade]) -> tuple[str, str]:
    for clip in sides.values():
        return clip.language, clip.text
    return texts_of(state)[index]


def _title(state: JobState, side: str) -> tuple[str, Html]:
    """What a side is called, alone for a player's name and with its model."""
    model = str(state.job.settings.get("voice_model" if side == ONE else side, ""))
    return _TITLES[side], join((element("strong", _TITLES[side]), span("small", model)))


def _side(state: JobState, clip: AudioMade | None, title: tuple[str, object], original: float | None,
          hidden: bool) -> Html:
    label, head = title[0], div("side-head", title[1])
    if clip is None:
        return div("side coming", head, paragraph("Being made." if state.alive else "Not made.", class_="small"))
    def address(path: str) -> str:
        return media.covered_url(state.id, path) if hidden else media.url("runs", state.id, path)

    picture = (element("img", src=address(clip.spectrogram), alt=f"Spectrogram, {label}", loading="lazy",
                       class_="spectrogram")
               if clip.spectrogram else NOTHING)
    length = f"{clip.duration_s:.1f} s of sound" + ("" if hidden else f", made in {clip.seconds:.1f} s")
    later = paragraph("The score is shown when you have voted.", class_="small")
    return div("side", head, player(address(clip.path), label), picture,
               paragraph(length, class_="small"), later if hidden else _score(clip, original))


def _score(clip: AudioMade, original: float | None) -> Html:
    """The judge's error beside its error on original recordings, so that neither is read alone."""
    if clip.error is None:
        why = f"Not measured: {clip.unmeasured}." if clip.unmeasured else "No judge for this language."
        return paragraph(why, class_="small")
    beside = span("small", f"original recordings: {job_views.percent(original)}" if original is not None
                  else "original recordings: not measured here")
    heard = paragraph("The judge heard: ", element("q", shortened(clip.heard), lang=clip.language), class_="small")
    return join((div("score", error_badge(clip.error), beside), heard if clip.heard else NOTHING))


def votes_view(all_votes: Sequence[Vote]) -> Html:
    """What people preferred when they did not know."""
    if not all_votes:
        return NOTHING
    counted = count_votes(all_votes)
    rows = [(job_views.language_name(code), *(str(counted[code, choice]) for choice in ("finetuned", "base", "same")))
            for code in sorted({code for code, _ in counted})]
    return div("card", element("h4", "Blind votes so far"),
               table(("Language", "After is better", "Before is better", "No difference"), rows))


Choice = Literal["base", "finetuned", "same"]
CHOICES: tuple[Choice, ...] = ("base", "finetuned", "same")


@dataclass(frozen=True)
class Vote:
    """One answer: which side of clip `index` of the comparison `job` was better, without knowing which is which."""

    job: str
    index: int
    language: str
    text: str
    choice: Choice
    finetuned: str  # reference of the model on the finetuned side
    time: float = 0.0


def blind_order(job: str, index: int) -> tuple[str, str]:
    """Sides behind A and B for one clip: as good as random, yet the same after a reload."""
    flipped = hashlib.blake2b(f"{job} {index}".encode()).digest()[0] % 2
    return ("finetuned", "base") if flipped else ("base", "finetuned")


def save_vote(path: Path, vote: Vote) -> None:
    """Append `vote`."""
    line = json.dumps({**asdict(vote), "time": vote.time or time.time()}, ensure_ascii=False)
    with open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")


def read_votes(path: Path) -> list[Vote]:
    """All votes that can be read."""
    votes = []
    for row in _rows(path):
        try:
            vote = Vote(**row)
        except TypeError:
            continue  # of another version, or no vote
        if vote.choice in CHOICES:
            votes.append(vote)
    return votes


def set_blind(path: Path, job: str, on: bool = True) -> None:
    """Note that the comparison `job` is heard blind; or, with `on` false, that it was uncovered without a vote."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps({"job": job, "covered": on, "time": time.time()}) + "\n")


def is_blind(path: Path, job: str) -> bool:
    """Whether a comparison was asked for blind, and nobody uncovered it."""
    told = [row["covered"] for row in _rows(path) if row.get("job") == job and "covered" in row]
    return bool(told and told[-1])


def _rows(path: Path) -> list[dict[str, Any]]:
    """The lines that can be read; one that was cut off counts for nobody."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    rows = []
    for line in lines:
        with suppress(ValueError):
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def count_votes(votes: Sequence[Vote]) -> Counter[tuple[str, Choice]]:
    """Votes by language and choice."""
    return Counter((vote.language, vote.choice) for vote in votes)
