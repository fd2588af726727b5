"""Annotations beside recordings: TextGrids of Praat, ELAN documents, JSON, and texts of TIMIT; all but the last timed.

TextGrid (https://www.fon.hum.uva.nl/praat/manual/TextGrid_file_formats.html): of the file only free-standing numbers,
quoted texts and flags count, whatever stands between them, so the long and the short form are read alike.
ELAN (https://www.mpi.nl/tools/elan/EAF_Annotation_Format_3.0_and_ELAN.pdf): annotations of tiers without a parent.
JSON: one object for a whole recording (WebDataset, Emilia), or `segments` with times (Whisper, WhisperX).

Several tiers are speakers, unless two of them have an interval with the same two ends: then one annotates the other,
such as a translation, and only a tier with a usual name for a transcript is read.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from config import foreign
from config.errors import UserError, join_names
from data.importers import text_files
from data.importers.rows import ParsedItem, ParsedUtterance, SkippedRow, standard_values

_LONGEST = 1 << 24  # characters of one recording's annotation
_TOKEN = re.compile(r'"((?:[^"]|"")*)"|<(\w+)>|(?<![^\s])([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)(?![^\s])')
_TRANSCRIPTS = ("utterance", "utterances", "sentence", "sentences", "transcript", "transcription", "text", "phrase",
                "phrases", "ort", "ort-mau", "orthography", "default")
_ALIGNED = ("words", "word", "phones", "phone", "phonemes", "syllables", "mau", "kan-mau")  # of a forced alignment
_PAUSES = ("", "sil", "sp", "spn", "silence", "<sil>", "<unk>", "<p:>", "#", "xxx")


@dataclass(frozen=True)
class Tier:
    """The annotations of one tier: begin and end in seconds, and the text."""

    name: str
    speaker: str
    spans: Sequence[tuple[float, float, str]]


def read_textgrid(path: Path, audio: str) -> Iterator[ParsedItem]:
    """The intervals of the TextGrid at `path`, which belongs to the recording `audio`."""
    tokens = iter(_TOKEN.findall(text_files.read(path, _LONGEST)))

    def quoted() -> str:
        return next(text.replace('""', '"') for text, flag, number in tokens if not flag and not number)

    def number() -> float:
        return float(next(value for _, _, value in tokens if value))

    tiers = []
    try:
        if (kind := (quoted(), quoted())) != ("ooTextFile", "TextGrid"):
            raise UserError(f"{path.name} is no TextGrid but {kind[1]!r}.", "Save it from Praat as a TextGrid.")
        number(), number()  # the time of the whole
        for _ in range(int(number())):
            is_interval, name = quoted() == "IntervalTier", quoted()
            number(), number()
            spans = []
            for _ in range(int(number())):
                begin_s = number()
                end_s = number() if is_interval else begin_s
                spans.append((begin_s, end_s, " ".join(quoted().split())))
            if is_interval:
                tiers.append(Tier(name.strip(), name.strip(), spans))
    except (StopIteration, ValueError, OverflowError):
        yield SkippedRow(path.name, "is cut off or no TextGrid in Praat's text format")
        return
    yield from _of_tiers(path, audio, tiers)


def read_elan(path: Path, audio: str) -> Iterator[ParsedItem]:
    """The annotations of the ELAN document at `path`, which belongs to the recording `audio`."""
    try:
        # without its declaration, whose encoding is not that of these bytes; expat limits the growth of entities
        content = re.sub(r"^\s*<\?xml[^>]*\?>", "", text_files.read(path, _LONGEST).lstrip("\ufeff"))
        root = ElementTree.fromstring(content.encode())
    except ElementTree.ParseError as error:
        yield SkippedRow(path.name, f"is not an ELAN document: {error}")
        return
    times = {slot.get("TIME_SLOT_ID"): int(value) / 1000 for slot in root.iter("TIME_SLOT")
             if (value := slot.get("TIME_VALUE", "")).isdecimal()}
    tiers = []
    for tier in root.iter("TIER"):
        if tier.get("PARENT_REF"):
            continue
        spans = []
        for annotation in tier.iter("ALIGNABLE_ANNOTATION"):
            slots = (annotation.get("TIME_SLOT_REF1"), annotation.get("TIME_SLOT_REF2"))
            text = " ".join((annotation.findtext("ANNOTATION_VALUE") or "").split())
            if all(slot in times for slot in slots):
                spans.append((times[slots[0]], times[slots[1]], text))
        name = tier.get("TIER_ID", "")
        tiers.append(Tier(name, tier.get("PARTICIPANT", "") or name, spans))
    yield from _of_tiers(path, audio, tiers)


def _of_tiers(path: Path, audio: str, tiers: Sequence[Tier]) -> Iterator[ParsedItem]:
    """The utterances of the tiers that are transcripts."""
    spoken = [Tier(tier.name, tier.speaker, found) for tier in tiers
              if (found := [span for span in tier.spans if span[2].lower() not in _PAUSES])]
    if not spoken:
        yield SkippedRow(path.name, "has no annotated interval")
        return
    if all(re.split(r" - ", tier.name)[-1].lower() in _ALIGNED for tier in spoken):
        yield SkippedRow(path.name, f"has the words and phones of a forced alignment alone (tiers "
                         f"{join_names([repr(tier.name) for tier in spoken], 6)}); a tier of utterances is wanted")
        return
    spoken = [tier for tier in spoken if re.split(r" - ", tier.name)[-1].lower() not in _ALIGNED]
    ends = [{span[:2] for span in tier.spans} for tier in spoken]
    if any(one & two for number, one in enumerate(ends) for two in ends[:number]):
        named = [tier for tier in spoken if tier.name.strip().lower() in _TRANSCRIPTS]
        if len(named) != 1:
            yield SkippedRow(path.name, f"has several tiers for the same times, and which one is the transcript cannot "
                             f"be told: {join_names([repr(tier.name) for tier in spoken], 6)}; call it 'text'")
            return
        spoken = named
    several = len(spoken) > 1
    for tier in spoken:
        speaker = tier.speaker if several or tier.speaker != tier.name else ""
        for begin_s, end_s, text in tier.spans:
            where = f"{path.name} tier {tier.name!r} at {begin_s:g} s"
            yield ParsedUtterance(where, audio, text, speaker=speaker, begin_s=begin_s, end_s=end_s)


def read_json(path: Path, audio: str) -> Iterator[ParsedItem]:
    """The JSON object beside the recording `audio`: its text, or segments with times."""
    try:
        record = foreign.loads(text_files.read(path, _LONGEST))
    except (ValueError, RecursionError) as error:
        yield SkippedRow(path.name, f"is not JSON: {error}")
        return
    if not isinstance(record, dict):
        yield SkippedRow(path.name, "is not one JSON object with the text of its recording")
        return
    record = {str(name).lower(): value for name, value in record.items()}
    segments = record.get("segments")
    if isinstance(segments, list) and segments:
        for number, segment in enumerate(segments, 1):
            where = f"{path.name} segment {number}"
            try:
                begin_s, end_s, text = float(segment["start"]), float(segment["end"]), str(segment["text"]).strip()
            except (KeyError, TypeError, ValueError):
                yield SkippedRow(where, "has no start, end and text")
                continue
            yield ParsedUtterance(where, audio, text, speaker=str(segment.get("speaker") or ""), begin_s=begin_s,
                                  end_s=end_s)
        return
    values = standard_values(record)  # its times, if any, are those in a longer recording
    if values.get("text", "").strip():
        yield ParsedUtterance(audio, audio, values["text"], speaker=values.get("speaker", ""))
    else:
        yield SkippedRow(audio, f"{path.name} beside it has no text")


def speaker_of(path: Path) -> str:
    """The speaker that the JSON object at `path` names; empty for none."""
    try:
        record = foreign.loads(text_files.read(path, _LONGEST))
    except (UserError, ValueError, RecursionError):
        return ""
    return standard_values(record).get("speaker", "") if isinstance(record, dict) else ""
