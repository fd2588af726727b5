"""Annotations beside recordings: TextGrids of Praat, ELAN documents, JSON, and texts of TIMIT; all but the last timed.

TextGrid (https://www.fon.hum.uva.nl/praat/manual/TextGrid_file_formats.html): of the file only free-standing numbers,
quoted texts and flags count, whatever stands between them, so the long and the short form are read alike.
ELAN (https://www.mpi.nl/tools/elan/EAF_Annotation_Format_3.0_and_ELAN.pdf): annotations of tiers without a parent, or,
where these hold only numbers as Toolbox has them, of the transcripts below them.
JSON: one object for a whole recording (WebDataset, Emilia), or `segments` with times (Whisper, WhisperX).

A tier whose name says that it is a transcript is read, and the others are named as not read; a translation, a gloss or
phones never are. Of tiers with other names each is a speaker if they take turns; where two of them cover the same time
it cannot be told which is spoken, and none is read.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from config import foreign
from config.errors import UserError, join_names
from data.importers import text_files
from data.importers.rows import ParsedItem, ParsedUtterance, SkippedRow, SourceNote, notation_of, standard_values

_DEEPEST = 8  # tiers above one another
_NO_SPEECH = 0.6  # Whisper's own threshold (`no_speech_threshold`)
_LONGEST = 1 << 24  # characters of one recording's annotation
_TOKEN = re.compile(r'"((?:[^"]|"")*)"|<(\w+)>|(?<![^\s])([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)(?![^\s])')
_TRANSCRIPTS = frozenset((  # words in the names of tiers that hold what is spoken, as it is written
    "utterance", "utterances", "sentence", "sentences", "transcript", "transcripts", "transcription", "transcriptions",
    "text", "texts", "phrase", "phrases", "ort", "ortho", "orthography", "orthographic", "tx", "txt", "utt",
    "trs", "speech", "transkription", "transkript", "transcripcion", "transcrição", "transcripción"))
_OTHERS = frozenset((  # words in the names of tiers that hold something else
    "translation", "translations", "translated", "gloss", "glosses", "glossing", "gls", "ft", "lt", "ge", "note",
    "notes", "comment", "comments", "remark", "remarks", "memo", "pos", "morph", "morphs", "morpheme", "morphemes",
    "mb", "ps", "lemma", "ipa", "phonetic", "phonemic", "phonology", "pinyin", "romanization", "romanized",
    "romanised", "transliteration", "translit", "event", "events", "noise", "noises", "music", "topic", "topics",
    "emotion", "emotions", "gesture", "gestures", "gaze", "tobi", "breaks", "prosody", "intonation", "pitch", "f0",
    "stress", "ref", "segnum", "vad", "silence", "silences", "übersetzung", "uebersetzung", "traduction", "traducción",
    "traduccion", "tradução", "traducao", "traduzione", "перевод"))
_OTHERS_ALONE = frozenset((  # the same, unless a name or number follows
    "speaker", "speakers", "spk", "language", "languages", "lang", "channel", "turn", "turns", "segment", "segments",
    "segmentation", "section", "sections", "id", "code", "codes", "style", "quality", "tone", "tones", "accent",
    "literal", "free", "page", "paragraph"))
_ALIGNED = frozenset(("words", "word", "phones", "phone", "phonemes", "phoneme", "phon", "phons", "syllables",
                      "syllable", "syll", "mau", "kan"))  # tiers of a forced alignment
_SAME_TIME = 0.3  # share of the shorter of two tiers: when people take turns, less is spoken at once
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
        file_type, object_class = quoted(), quoted()
        if (file_type, object_class) != ("ooTextFile", "TextGrid"):
            raise UserError(f"{path.name} is no TextGrid but {object_class!r}.", "Save it from Praat as a TextGrid.")
        number(), number()  # begin and end of the whole file
        for _ in range(int(number())):
            # Each tier has a class, a name, two times and the number of its spans.
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

    # The declaration is removed, because its encoding is not that of these bytes. Expat limits the growth of entities.
    try:
        content = re.sub(r"^\s*<\?xml[^>]*\?>", "", text_files.read(path, _LONGEST).lstrip("\ufeff"))
        root = ElementTree.fromstring(content.encode())
    except ElementTree.ParseError as error:
        yield SkippedRow(path.name, f"is not an ELAN document: {error}")
        return

    # Annotations refer to time slots, or to other annotations, whose times they share.
    times = {}
    for slot in root.iter("TIME_SLOT"):
        value = slot.get("TIME_VALUE", "")
        if value.isdecimal():
            times[slot.get("TIME_SLOT_ID")] = int(value) / 1000
    spans: dict[str | None, tuple[float, float]] = {}  # keyed by annotation id
    refers: dict[str | None, str | None] = {}
    for annotation in root.iter("ALIGNABLE_ANNOTATION"):
        slots = (annotation.get("TIME_SLOT_REF1"), annotation.get("TIME_SLOT_REF2"))
        if all(slot in times for slot in slots):
            spans[annotation.get("ANNOTATION_ID")] = times[slots[0]], times[slots[1]]
    for annotation in root.iter("REF_ANNOTATION"):
        refers[annotation.get("ANNOTATION_ID")] = annotation.get("ANNOTATION_REF")

    # Each tier gets the text of its annotations by their times; `below` are tiers with a parent.
    tiers, below = list[Tier](), list[Tier]()
    for tier in root.iter("TIER"):
        texts: dict[tuple[float, float], str] = {}
        for annotation in (*tier.iter("ALIGNABLE_ANNOTATION"), *tier.iter("REF_ANNOTATION")):
            name = annotation.get("ANNOTATION_ID")
            for _ in range(_DEEPEST):
                name = refers.get(name, name)
            if name in spans:
                text = f"{texts.get(spans[name], '')} {annotation.findtext('ANNOTATION_VALUE') or ''}"
                texts[spans[name]] = " ".join(text.split())
        name = tier.get("TIER_ID", "")
        result = Tier(name, tier.get("PARTICIPANT", "") or name, [(*span, text) for span, text in texts.items()])
        (below if tier.get("PARENT_REF") else tiers).append(result)

    # In files from Toolbox, the parent of a transcript is a tier of numbers.
    if not any(_kind_of(tier) in ("transcript", "") for tier in tiers):
        tiers += [tier for tier in below if _kind_of(tier) == "transcript"]
    yield from _of_tiers(path, audio, tiers)


def _of_tiers(path: Path, audio: str, tiers: Sequence[Tier]) -> Iterator[ParsedItem]:
    """The utterances of the transcript tiers. Other tiers are named and not read."""
    # Empty intervals and marks of pauses are no utterances.
    filled = []
    for tier in tiers:
        spans = [span for span in tier.spans if span[2].lower() not in _PAUSES]
        if spans:
            filled.append(Tier(tier.name, tier.speaker, spans))
    if not filled:
        yield SkippedRow(path.name, "has no annotated interval")
        return

    # Tiers that are named as transcripts are read; without any, those whose name says nothing.
    kinds = [_kind_of(tier) for tier in filled]
    names = join_names([repr(tier.name) for tier in filled], 6)
    texts = [tier for tier, kind in zip(filled, kinds, strict=True) if kind == "transcript"]
    texts = texts or [tier for tier, kind in zip(filled, kinds, strict=True) if not kind]
    if not texts:
        content = "no tier of the text" if "other" in kinds else "the words and phones of a forced alignment alone"
        yield SkippedRow(path.name, f"has {content} (tiers {names}); a tier of utterances is wanted: call it 'text'")
        return

    # Two tiers for the same speech are versions of it, and only a person can tell which is the transcript.
    rivals = _rivals(texts)
    if rivals is not None:
        earlier, later = rivals
        yield SkippedRow(path.name, f"has several tiers for the same times, and which one is the transcript cannot be "
                         f"told: {earlier.name!r} and {later.name!r} (tiers {names}); call it 'text'")
        return
    for tier in filled:
        if not any(tier is text for text in texts):
            yield SkippedRow(f"{path.name} tier {tier.name!r}", f"is not read, since "
                             f"{join_names([repr(text.name) for text in texts], 3)} is the transcript")

    # With several tiers, each is a speaker; the name of a single tier may be a mere label.
    several = len(texts) > 1
    for tier in texts:
        speaker = _voice_of(tier) if several or tier.speaker != tier.name else ""
        for begin_s, end_s, text in tier.spans:
            location = f"{path.name} tier {tier.name!r} at {begin_s:g} s"
            yield ParsedUtterance(location, audio, text, speaker=speaker, begin_s=begin_s, end_s=end_s)


def _rivals(tiers: Sequence[Tier]) -> tuple[Tier, Tier] | None:
    """The first two tiers that annotate the same speech."""
    for number, later in enumerate(tiers):
        for earlier in tiers[:number]:
            if _overlap(earlier, later):
                return earlier, later
    return None


def _parts(name: str) -> list[str]:
    """The words of a tier's name: `A_Transcription-txt`, `tx@SP1` and `Speaker 1 - utterances` have several."""
    return [part for part in re.split(r"[^\w]+|_", name.strip().casefold()) if part]


def _kind_of(tier: Tier) -> str:
    """`transcript`, `aligned` or `other` by the words in the tier's name and its texts; empty if neither tells."""
    parts = _parts(tier.name)
    if notation_of(span[2] for span in tier.spans):
        return "other"
    if any(part in _OTHERS for part in parts) or "".join(parts) in _OTHERS_ALONE:
        return "other"
    if any(part in _TRANSCRIPTS for part in parts):
        return "transcript"
    return "aligned" if any(part in _ALIGNED for part in parts) else ""


def _voice_of(tier: Tier) -> str:
    """The speaker of a tier among others: its participant, or its name without the words for a transcript."""
    parts = [part for part in re.split(r"[^\w]+|_", tier.name.strip()) if part]
    name_parts = [part for part in parts if part.casefold() not in _TRANSCRIPTS]
    return tier.speaker if tier.speaker != tier.name or name_parts == parts else " ".join(name_parts)


def _overlap(tier: Tier, other: Tier) -> bool:
    """Whether two tiers annotate the same speech: one is spoken during much of the other."""
    shared, number, spans = 0.0, 0, sorted(other.spans)
    for begin_s, end_s, _ in sorted(tier.spans):
        while number < len(spans) and spans[number][1] <= begin_s:
            number += 1
        for other_begin_s, other_end_s, _ in spans[number:]:
            if other_begin_s >= end_s:
                break
            shared += min(end_s, other_end_s) - max(begin_s, other_begin_s)
    lengths = [sum(end_s - begin_s for begin_s, end_s, _ in annotated.spans) for annotated in (tier, other)]
    return shared > _SAME_TIME * min(lengths)


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
        yield from _doubtful_segments(path, segments)
        for number, segment in enumerate(segments, 1):
            location = f"{path.name} segment {number}"
            try:
                begin_s, end_s, text = float(segment["start"]), float(segment["end"]), str(segment["text"]).strip()
            except (KeyError, TypeError, ValueError):
                yield SkippedRow(location, "has no start, end and text")
                continue
            yield ParsedUtterance(location, audio, text, speaker=str(segment.get("speaker") or ""), begin_s=begin_s,
                                  end_s=end_s)
        return

    # Times of the object, if it has any, are those in a longer recording.
    values = standard_values(record)
    if values.get("text", "").strip():
        yield ParsedUtterance(audio, audio, values["text"], speaker=values.get("speaker", ""))
    else:
        yield SkippedRow(audio, f"{path.name} beside it has no text")


def _doubtful_segments(path: Path, segments: list[object]) -> Iterator[SourceNote]:
    """Notes about segments of Whisper that it may have made up: it heard no speech, or repeats itself."""
    objects = [segment for segment in segments if isinstance(segment, dict)]
    # Whisper invents text in silence, and repeats itself when it is lost.
    probabilities = [segment.get("no_speech_prob") for segment in objects]
    silent = [number for number, value in enumerate(probabilities, 1)
              if isinstance(value, int | float) and value > _NO_SPEECH]
    if silent:
        yield SourceNote(path.name, f"{len(silent)} of {len(objects)} segments have a no_speech_prob above "
                         f"{_NO_SPEECH:g}, the first is segment {silent[0]}: what they say may not be in the recording")

    texts = [str(segment.get("text", "")).strip() for segment in objects]
    again = [number for number, (text, following) in enumerate(pairwise(texts), 2) if text and text == following]
    if again:
        yield SourceNote(path.name, f"{len(again)} of {len(objects)} segments repeat the text of the one before, the "
                         f"first is segment {again[0]}: {texts[again[0] - 1][:60]!r}")


def speaker_of(path: Path) -> str:
    """The speaker that the JSON object at `path` names; empty for none."""
    try:
        record = foreign.loads(text_files.read(path, _LONGEST))
    except (UserError, ValueError, RecursionError):
        return ""
    return standard_values(record).get("speaker", "") if isinstance(record, dict) else ""
