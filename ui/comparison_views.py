"""The clips of a comparison side by side (players, spectrograms, scores), and the votes of a blind one.

Votes are JSON lines in the workspace's `votes.jsonl`. A blind comparison is noted there too, so that no reload and no
second browser reveals it.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from core.jobs.events import CLIPS_ARCHIVE, AudioGenerated
from core.jobs.reporter import duration_text, pluralize
from core.jobs.state import JobState
from core.jobs.verbs import SYNTHESIS_VERBS
from core.library.certificate import Certificate
from core.library.verification import Outcome, Verification
from ui import job_views, media
from ui.job_views import error_badge
from ui.markup import NOTHING, Html, div, element, join, paragraph, player, shortened, span, table
from ui.titles import title_of

SIDES = ("base", "finetuned")
ONE = "speech"  # the only side of a synthesis with one model
ROMANISED_BASELINE = "“Before” on the certificate is different: the same text with untrained embedding rows."
_SHOWN = 24  # clips of a job on the page
_LONG, _CHARACTERS_PER_CHUNK, _LONGEST_WORD = 300, 80, 200  # characters
_TITLES = {"base": "Before", "finetuned": "After", ONE: "Speech"}
Choice = Literal["base", "finetuned", "same"]
CHOICES: tuple[Choice, ...] = ("base", "finetuned", "same")


def clips(state: JobState) -> dict[int, dict[str, AudioGenerated]]:
    """The finished clips by index and side."""
    by_index: dict[int, dict[str, AudioGenerated]] = {}
    for clip in state.audio:
        by_index.setdefault(clip.index, {})[clip.side] = clip
    return dict(sorted(by_index.items()))


def sides_of(state: JobState) -> tuple[str, ...]:
    """Two sides of a comparison, else one."""
    return SIDES if state.verb == "compare" else (ONE,)


def texts_of(state: JobState) -> tuple[tuple[str, str], ...]:
    """Language and text of each clip; empty where the job chooses the texts itself."""
    settings = state.job.settings
    if state.verb == "synthesize" and settings.get("file"):
        return ()
    if state.verb == "synthesize":
        return ((str(settings.get("language", "")), str(settings.get("text", ""))),)
    texts = settings.get("texts")
    return tuple((str(code), str(text)) for code, text in texts) if isinstance(texts, Sequence) else ()


def open_question(state: JobState, voted: frozenset[int]) -> int | None:
    """The first clip with both sides that has no vote yet."""
    return next((index for index, sides in clips(state).items() if len(sides) == 2 and index not in voted), None)


def comparison(state: JobState, originals: Mapping[str, float], blind: bool = False,
               voted: frozenset[int] = frozenset(), recording: Callable[[str], str] = lambda text: "") -> Html:
    """All clips of a job, both sides beside each other; those to come are shown as such.

    `recording`: the address of the original recording of a text, or "". In a `blind` comparison only the sides of the
    clips in `voted` are named. It ends with the clip to vote on: a vote counts for that one, and the buttons are below
    it.
    """
    finished = clips(state)
    count = max(len(texts_of(state)), len(finished))
    # One explanation on the page suffices.
    romanised = next((index for index, sides in finished.items() if _base_reads_otherwise(sides)), None)
    indices = range(min(count, _SHOWN))
    remark = f"{_SHOWN} of {count} clips are shown; all are in the ZIP file." if count > _SHOWN else ""

    # A blind comparison ends with the clip to vote on.
    current = _clip_to_vote_on(state, count, voted) if blind else None
    if current is not None:
        indices = range(current + 1)[-_SHOWN:]
        remark = f"Clip {current + 1} of {count}. The next one appears after your vote." if current + 1 < count else ""

    pairs = [_pair(state, index, finished.get(index, {}), originals, blind and index not in voted, index == romanised,
                   recording) for index in indices]
    return join((paragraph(remark, class_="small") if remark else NOTHING, *pairs))


def _clip_to_vote_on(state: JobState, count: int, voted: frozenset[int]) -> int | None:
    """The clip to vote on; while the job runs, else the next one that is to come."""
    current = open_question(state, voted)
    if current is None and state.alive:
        current = next((index for index in range(count) if index not in voted), None)
    return current


def download_view(state: JobState, blind: bool) -> Html:
    """The link to all clips of a job in one file; none in a `blind` comparison, whose files name the sides."""
    if blind or not (state.job.directory / CLIPS_ARCHIVE).is_file():
        return NOTHING
    return paragraph(element("a", f"Download {pluralize(len(state.audio), 'clip')} and their table (ZIP)",
                             href=media.clips_url(state.id), download=True), class_="small download")


def verification_view(result: Verification | None) -> Html:
    """A line about the certificate of the model that speaks, unless it passed or its files are still being read."""
    if result is None or result.outcome is Outcome.PASSED:
        return NOTHING
    return job_views.notice(result.describe(), "bad" if result.outcome.bad else "wait")


def means_view(proof: Certificate, language: str) -> Html:
    """The mean error over held-out sentences of the run that speaks, so that no single clip decides the impression."""
    errors = next((error for error in proof.errors if error.language == language), None)
    if errors is None or errors.after is None:
        return NOTHING
    parts = [f"{job_views.percent(errors.after)} after training"]
    if errors.before is not None:
        parts.append(f"{job_views.percent(errors.before)} before")
    if errors.recordings_cer is not None:
        parts.append(f"{job_views.percent(errors.recordings_cer)} original recordings")
    title = f"{job_views.language_name(language)}, mean over {errors.sentences} held-out sentences (CER): "
    return paragraph(element("strong", title), ", ".join(parts), f". Step {proof.step}.",
                     f" Measured by {errors.measured_by}." if errors.measured_by else "", class_="means")


def _base_reads_otherwise(sides: Mapping[str, AudioGenerated]) -> bool:
    """Whether the base alone has a note, which says that it reads another spelling."""
    base_note, other_note = (sides[side].note if side in sides else "" for side in SIDES)
    return bool(base_note and base_note != other_note)


def _pair(state: JobState, index: int, sides: Mapping[str, AudioGenerated], originals: Mapping[str, float],
          blind: bool, explained: bool, recording: Callable[[str], str] = lambda text: "") -> Html:
    """Both sides of a text; `explained`: with the sentence that tells its "before" from that of the certificate."""
    # The texts of a job that chooses them are known from its clips only.
    first_clip = next(iter(sides.values()), None)
    language, text = (first_clip.language, first_clip.text) if first_clip else texts_of(state)[index]
    names = sides_of(state)
    # A comparison is blind only while both sides may still be voted on.
    votable = state.alive or len(sides) == len(names)  # a single side of an ended job is heard, not voted on
    hidden = len(names) > 1 and blind and votable
    if hidden and len(sides) < len(names):
        sides = {}  # the side that is ready first would tell which it is

    # Hidden sides are shuffled by the job and the clip, so that a reload keeps their order.
    order = blind_order(state.id, index) if hidden else names
    cards = [_side(state, side, index, sides.get(side), f"Sample {letter}" if hidden else "", originals.get(language))
             for letter, side in zip("AB", order, strict=False)]
    address = "" if hidden else recording(text)
    if address:
        cards.insert(0, div("side", div("side-head", element("strong", "Original recording")),
                            player(address, "Original recording"), waveform(address)))

    keys = paragraph("Keys after a click on a player: ", element("kbd", "a"), " the next one at the same place, ",
                     *(element("kbd", str(number)) for number in range(1, len(cards) + 1)), " one of them, ",
                     element("kbd", "space"), " play or pause.", class_="small keys") if len(cards) > 1 else NOTHING
    notes = [] if hidden else list(dict.fromkeys(clip.note for clip in sides.values() if clip.note))

    return div(
        "pair", div("said", span("badge", job_views.language_name(language)),
                    element("blockquote", shortened(text), lang=language),
                    *(span("small note", shortened(note, 500)) for note in notes),
                    span("small note", ROMANISED_BASELINE) if explained and notes else NOTHING),
        div("sides", *cards), keys, data_index=index,
    )


def waveform(address: str) -> Html:
    """A place for the waveform of a sound, which the page's script draws when it comes into sight."""
    return div("wave", span("wave-at"), title="Click to play from here", data_wave=address)


def length_notice(text: str, states: Sequence[JobState]) -> Html:
    """The estimated duration of a long text, by the speed of the last job; nothing for a short one."""
    # A short text needs no estimate.
    letters = len(text.strip())
    if letters <= _LONG:
        return NOTHING
    message = f"{letters:,} characters: about {math.ceil(letters / _CHARACTERS_PER_CHUNK)} chunks"
    last = next((state for state in states
                 if state.verb in SYNTHESIS_VERBS and state.status == "finished" and state.audio), None)
    if last is not None:
        side = sides_of(last)[0]
        spoken_length = sum(len(sides[side].text) for sides in clips(last).values() if side in sides)
        seconds = sum(clip.seconds for clip in last.audio) / max(1, spoken_length) * letters
        subject = "both models take" if last.verb == "compare" else "one model takes"
        message += f"; {subject} about {duration_text(seconds)} at the speed of the last job"

    # Chunks end between words, so that a very long word exceeds any chunk.
    longest = max(text.split(), key=len)
    if len(longest) > _LONGEST_WORD:
        message += (f". One word has {len(longest):,} characters ({shortened(longest, 12)}) and may be refused, as "
                    "words are not split: add spaces")
    return job_views.notice(f"{message}.")


def _side(state: JobState, side: str, index: int, clip: AudioGenerated | None, hidden_as: str,
          original: float | None) -> Html:
    """One side of the clip `index`; `hidden_as` is its title while it must not be known which it is.

    The page's script shows the button where the clip is streamed.
    """
    label = hidden_as or _TITLES[side]
    model = str(state.job.settings.get("voice_model" if side == ONE else side, ""))
    pause = element("button", "Pause", type="button", class_="stream-toggle", hidden=True)
    # The model's name would tell the side.
    head = div("side-head", label) if hidden_as else div(
        "side-head", element("strong", label), span("small", title_of(state.job.workspace, model)), pause)
    place = f"{state.id}/{index}/{side}"
    if clip is None:
        return div("side coming", head, paragraph("In progress." if state.alive else "Not available.", class_="small"),
                   data_clip="" if hidden_as else place)

    def address(path: str) -> str:
        return media.covered_url(state.id, path) if hidden_as else media.url("runs", state.id, path)

    # File names tell the side too, so hidden clips have covered addresses.
    picture = element("img", src=address(clip.spectrogram), alt=f"Spectrogram, {label}", loading="lazy",
                      class_="spectrogram") if clip.spectrogram else NOTHING
    length = f"{clip.duration_s:.1f} s of audio" + ("" if hidden_as else f", synthesized in {clip.seconds:.1f} s")
    silent = NOTHING
    if clip.finish_reason == "no_speech":
        silent = paragraph(span("badge bad", "no speech"), " Only silence where the sentence should begin.",
                           class_="small")

    later = paragraph("The score appears after your vote.", class_="small")
    return div("side", head, player(address(clip.path), label), waveform(address(clip.path)), picture, silent,
               paragraph(length, class_="small"), later if hidden_as else _score(clip, original),
               data_clip="" if hidden_as else place)


def _score(clip: AudioGenerated, original: float | None) -> Html:
    """The error rate of a clip beside that of original recordings, the recogniser's own level."""
    if clip.scoring:
        return paragraph("Being scored.", class_="small")
    if clip.error is None:
        reason = f"Not measured: {clip.unmeasured}." if clip.unmeasured else "No recogniser (ASR) for this language."
        return paragraph(reason, class_="small")
    beside = span("small", f"original recordings: CER {job_views.percent(original)}" if original is not None
                  else "original recordings: not measured here")
    transcript = paragraph("Transcript (ASR): ", element("q", shortened(clip.transcript), lang=clip.language),
                           class_="small")
    by = paragraph(f"Measured by {clip.measured_by}.", class_="small") if clip.measured_by else NOTHING
    return join((div("score", error_badge(clip.error), beside), transcript if clip.transcript else NOTHING, by))


def votes_view(all_votes: Sequence[Vote], base: str, finetuned: str, titles: Sequence[str] = ()) -> Html:
    """Preferences of the blind votes on these two models, by language; `titles` of both, else their references."""
    # Votes that were stored without a base count for every base.
    counted = count_votes([vote for vote in all_votes if vote.finetuned == finetuned and vote.base in ("", base)])
    if not counted:
        return NOTHING
    codes = sorted({code for code, _ in counted})
    rows = [(job_views.language_name(code), *(str(counted[code, choice]) for choice in ("finetuned", "base", "same")))
            for code in codes]
    return div("card", element("h2", f"Blind votes: {' and '.join(titles or (base, finetuned))}"),
               table(("Language", "After is better", "Before is better", "No difference"), rows))


@dataclass(frozen=True)
class Vote:
    """Which side of clip `index` of the comparison `job` was better, by a person who did not know the sides."""

    job: str
    index: int
    language: str
    text: str
    choice: Choice
    finetuned: str  # reference of the model on the finetuned side
    time: float = 0.0
    base: str = ""  # model on the other side; empty in older votes


def blind_order(job: str, index: int) -> tuple[Choice, Choice]:
    """The sides behind A and B for one clip: pseudorandom, and the same after a reload."""
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
            continue  # a line of another version, or no vote
        if vote.choice in CHOICES:
            votes.append(vote)
    return votes


def set_blind(path: Path, job: str, on: bool = True) -> None:
    """Note that the comparison `job` is blind; or, with `on` false, that it was revealed without a vote."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps({"job": job, "covered": on, "time": time.time()}) + "\n")


def is_blind(path: Path, job: str) -> bool:
    """Whether a comparison is blind, and was not revealed."""
    marks = [row["covered"] for row in _rows(path) if row.get("job") == job and "covered" in row]
    return bool(marks and marks[-1])


def _rows(path: Path) -> list[dict[str, Any]]:
    """The lines that can be read; a truncated one is skipped."""
    rows = []
    with suppress(FileNotFoundError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError):
                rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def count_votes(votes: Sequence[Vote]) -> Counter[tuple[str, Choice]]:
    """Votes by language and choice."""
    return Counter((vote.language, vote.choice) for vote in votes)
