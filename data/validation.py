"""Validation of a dataset before anything is computed from it.

An error leaves the clip out; with a warning it stays. Every finding names its place. Limits are in `SegmentLimits`.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from pathlib import Path

import numpy as np

from config import confinement
from config.errors import UserError
from data.channels import AUTO
from data.disk_collections import DiskDict, DiskList
from data.importers import SkippedRow, SourceEntry, SourceNote, SourceRow
from data.measures import silence_at_ends
from data.normalisers import TextNormaliser, dropped, is_mark, measure_case
from data.sound_files import cut_to_flac, examine, read_samples, read_sound, silence_to_trim, to_flac
from data.text_match import TextMatch, match_texts, text_length
from data.unspoken_text import UnspokenSigns, without_signs

_MAX_NAMED = 12  # characters
_APOSTROPHES = "'\u02bb\u02bc\u2018\u2019\u02bf\u02be\ua78b\ua78c\u02b9\u02ca\u2035`\u00b4"
_DIRECTION_MARKS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")  # Unicode Standard Annex 9


@dataclass(frozen=True)
class ClipCheckLimits:
    """Bounds of a usable clip."""

    min_duration_s: float = 0.4
    max_duration_s: float = 30.0
    silent_peak: float = 0.005  # fraction of full scale
    clipped_level: float = 0.999  # fraction of full scale
    clipped_share: float = 0.001  # share of samples
    min_characters_per_s: float = 2.0
    max_characters_per_s: float = 35.0
    possible_characters_per_s: float = 100.0  # more cannot be this recording's text
    rare_occurrences: int = 3


@dataclass(frozen=True)
class ValidationFinding:
    """One error or warning; `kind` is a short word for grouping."""

    kind: str
    where: str
    message: str


@dataclass(frozen=True)
class CheckedRow:
    """A row that can be used."""

    row: SourceRow
    normal: str  # normalised text
    duration_s: float  # seconds of the used part
    sha256: str  # hash of the bytes that the dataset gets
    is_rewritten: bool = False  # these are a mono FLAC file, as other programs would read the file otherwise
    trimmed_start_s: float = 0.0  # silence at the start of the file that is not used
    trimmed_end_s: float = 0.0


@dataclass(frozen=True)
class ValidationReport:
    """The findings, and what remains."""

    found: int
    kept: int
    duration_s: float
    characters: dict[str, int]  # characters of the normalised texts
    dropped: dict[str, int]  # characters that the normaliser dropped
    errors: Sequence[ValidationFinding]
    warnings: Sequence[ValidationFinding]
    form: str = ""  # the recognised format
    notes: tuple[str, ...] = ()  # about the format
    trimmed_clips: int = 0  # trimmed clips among the kept
    trimmed_s: float = 0.0  # silence at their ends that is not used
    text_match: TextMatch | None = None  # None in reports of older versions, and of reviewed datasets

    def with_warnings(self, warnings: Iterable[ValidationFinding]) -> ValidationReport:
        return replace(self, warnings=with_more(self.warnings, warnings))

    def with_errors(self, errors: Iterable[ValidationFinding]) -> ValidationReport:
        return replace(self, errors=with_more(self.errors, errors))

    def save(self, path: Path) -> None:
        """Write it as JSON, a finding a line."""
        listed = {"errors": self.errors, "warnings": self.warnings}
        with open(path, "w", encoding="utf-8") as file:
            for number, field in enumerate(fields(self)):
                file.write(("{" if number == 0 else ",") + f"\n {json.dumps(field.name)}: ")
                # There may be a finding for each row, so they are written one by one.
                if field.name in listed:
                    lines = (json.dumps(asdict(finding), ensure_ascii=False) for finding in listed[field.name])
                    file.write("[")
                    file.writelines(("," * bool(number)) + f"\n  {line}" for number, line in enumerate(lines))
                    file.write("]")
                else:
                    value = getattr(self, field.name)
                    value = value.to_json() if isinstance(value, TextMatch) else value
                    file.write(json.dumps(value, ensure_ascii=False))
            file.write("\n}\n")

    @classmethod
    def from_json(cls, values: dict) -> ValidationReport:
        findings = {name: tuple(ValidationFinding(**entry) for entry in values[name]) for name in ("errors",
                                                                                                   "warnings")}
        match = values.get("text_match")
        return cls(**{**values, **findings, "notes": tuple(values.get("notes", ())),
                      "text_match": TextMatch.from_json(match) if match else None})


CheckAll = Callable[[Iterable[SourceEntry]], "Iterator[tuple[SourceEntry, RowCheck | None]]"]
"""Checks rows and yields all entries in their order; other entries than rows have no check."""


def findings_on_disk() -> DiskList[ValidationFinding]:
    """An empty list of findings on disk: there may be one for every row."""
    return DiskList(lambda finding: json.dumps(asdict(finding)), lambda line: ValidationFinding(**json.loads(line)))


def with_more(findings: Sequence[ValidationFinding],
              additions: Iterable[ValidationFinding]) -> Sequence[ValidationFinding]:
    """Both, concatenated on disk."""
    combined = findings_on_disk()
    for finding in chain(findings, additions):
        combined.add(finding)
    return combined


def validate(entries: Iterable[SourceEntry], normaliser: str, limits: ClipCheckLimits = ClipCheckLimits(),
             progress: Callable[[int], None] = lambda entries: None, verbalize: Callable[[str], str] = str,
             folder: Path | None = None, *, remove_unspoken: bool = False, keep_edges: bool = True,
             channel: str = AUTO, check_all: CheckAll | None = None) -> tuple[Sequence[CheckedRow], ValidationReport]:
    """Check every row; `UserError` if none is left. `progress` gets the number of entries checked so far.

    `verbalize` applies text rules before the normaliser. The rows lie in an unnamed file in `folder`.
    `channel`: the channel of each recording that a person chose.
    `remove_unspoken`: remove from the texts what `data.unspoken_text` finds. The whole clip is checked; without
    `keep_edges` the silence at its ends is trimmed. `check_all` checks the rows, in several processes for example.
    """

    # Texts and durations of all entries are collected for the comparison of their lengths.
    reading = TextNormaliser(normaliser, verbalize)
    errors, warnings = findings_on_disk(), findings_on_disk()
    entry_count, unspoken = 0, UnspokenSigns()
    valid = checked_rows_on_disk(folder)
    # Each entry has a value here, also a skipped one.
    lengths, durations, speech = array("d"), array("d"), array("d")
    columns: dict[str, array[float]] = {}  # lengths of the texts in columns that were not read
    # `first_use` holds location and text by hash, `recordings` the location by path.
    with DiskDict() as first_use, DiskDict() as recordings:
        checker = RowChecker(reading, limits, remove_unspoken, keep_edges, channel)
        for entry, check in (check_all or _one_by_one(checker))(entries):
            if isinstance(entry, SourceNote):
                warnings.add(ValidationFinding("source", entry.location, entry.reason))
                continue

            # The values stay NaN unless the entry passes its checks, so that rows and texts remain aligned.
            entry_count += 1
            lengths.append(math.nan)
            durations.append(math.nan)
            speech.append(math.nan)
            other_lengths = entry.other_lengths if isinstance(entry, SourceRow) else {}
            for name in {**columns, **other_lengths}:
                column = columns.setdefault(name, array("d", [math.nan] * (entry_count - 1)))
                column.append(other_lengths.get(name, math.nan))

            if isinstance(entry, SkippedRow):
                errors.add(ValidationFinding("skipped", entry.location, entry.reason))
                progress(entry_count)
                continue

            assert check is not None
            unspoken.add(entry.text, entry.location)
            # Findings about a recording are reported once, however many parts are cut from it.
            recording_warnings = check.recording_warnings
            if recording_warnings and entry.is_part and recordings.put(str(entry.audio), entry.location) is not None:
                recording_warnings = ()
            for finding in chain(check.text_warnings, recording_warnings, check.clip_warnings):
                warnings.add(finding)
            for finding in check.errors:
                errors.add(finding)
            if check.checked is not None:
                checked, speech[-1] = check.checked, check.speech_s
                lengths[-1], durations[-1] = text_length(checked.normal), checked.duration_s
                earlier_row = first_use.put(checked.sha256, json.dumps([entry.location, checked.normal]))
                if earlier_row is None:
                    valid.add(checked)
                else:
                    _note_duplicate(checked, earlier_row, errors, warnings)
            progress(entry_count)

    # Long recordings have a way of their own, which the hint names.
    if not valid:
        long = any(finding.kind == "too long" for finding in errors)
        raise UserError(_nothing_left(entry_count, errors), (
            "Cut long recordings by their texts first: Long recordings on the Data tab, or python -m scripts align."
            if long else "Fix the dataset; each reason names the file or line."))

    # Lengths of texts and durations tell whether the table is shifted.
    match = match_texts(lengths, durations, speech, columns)
    report = replace(_report(entry_count, valid, reading, errors, warnings, limits), text_match=match)
    return valid, report.with_warnings(_unspoken_findings(unspoken, entry_count, removed=remove_unspoken))


def _one_by_one(checker: RowChecker) -> CheckAll:
    def check_all(entries: Iterable[SourceEntry]) -> Iterator[tuple[SourceEntry, RowCheck | None]]:
        for entry in entries:
            yield entry, checker.check(entry) if isinstance(entry, SourceRow) else None

    return check_all


def _unspoken_findings(unspoken: UnspokenSigns, text_count: int, *, removed: bool) -> list[ValidationFinding]:
    """One finding for each kind of sign, at its first place."""
    advice = "removed" if removed else ("they would be learnt as speech. Remove them (--remove-unspoken), or correct "
                                        "the texts if some are spoken")
    findings = []
    for kind, count in unspoken.counts.items():
        place, sign = unspoken.examples[kind]
        message = f"{count} of {text_count} texts have {kind}, such as {sign[:60]!r}: {advice}"
        findings.append(ValidationFinding(f"unspoken: {kind}", place, message))
    return findings


def _note_duplicate(row: CheckedRow, first_use: str, errors: DiskList[ValidationFinding],
                    warnings: DiskList[ValidationFinding]) -> None:
    """The first of two equal recordings stays; if their texts differ, it gets a warning too."""
    location = row.row.location
    first_location, text = json.loads(first_use)
    message = f"the same recording as {first_location}"
    if row.normal == text:
        errors.add(ValidationFinding("duplicate", location, message))
    else:
        errors.add(ValidationFinding("duplicate", location, f"{message}, with another text"))
        warnings.add(ValidationFinding("duplicate", first_location,
                                       f"the recording of {location} too, which has another text and is left "
                                       "out: listen which one is right"))


def checked_rows_on_disk(folder: Path | None = None) -> DiskList[CheckedRow]:
    """An empty list of rows on disk, in an unnamed file in `folder`."""
    return DiskList(lambda row: json.dumps({**asdict(row), "row": {**asdict(row.row), "audio": str(row.row.audio)}}),
                    _from_line, folder)


def _from_line(line: bytes) -> CheckedRow:
    values = json.loads(line)
    row = values.pop("row")
    return CheckedRow(SourceRow(**{**row, "audio": Path(row["audio"])}), **values)


@dataclass(frozen=True)
class RowCheck:
    """What a check found in one row: the row that can be used, or none, and its findings."""

    checked: CheckedRow | None = None
    speech_s: float = math.nan  # between the silent ends
    errors: tuple[ValidationFinding, ...] = ()
    text_warnings: tuple[ValidationFinding, ...] = ()
    recording_warnings: tuple[ValidationFinding, ...] = ()  # About the file that the row is a part of.
    clip_warnings: tuple[ValidationFinding, ...] = ()


@dataclass(frozen=True)
class RowChecker:
    """Checks rows, each by itself. The whole clip is checked; without `keep_edges` silence at its ends is trimmed."""

    reading: TextNormaliser
    limits: ClipCheckLimits = ClipCheckLimits()
    remove_unspoken: bool = False
    keep_edges: bool = True
    channel: str = AUTO

    def check(self, row: SourceRow) -> RowCheck:
        """The row with its findings."""
        limits = self.limits
        row = replace(row, channel=self.channel)
        if self.remove_unspoken:
            row = replace(row, text=without_signs(row.text))
        row, text_warnings = _without_controls(row)

        # The text must have something to speak.
        normal = self.reading.normal(row.text)
        if not normal:
            finding = ValidationFinding("empty text", row.location,
                                        f"the text {row.text!r} of {row.id} has nothing to speak")
            return RowCheck(errors=(finding,), text_warnings=text_warnings)

        # The recording must decode, and its part must not be far longer than a clip may be.
        try:
            stored = store_row(row, 2 * limits.max_duration_s)
        except (UserError, OSError) as error:
            message = (error.message if isinstance(error, UserError)
                       else f"{row.audio} could not be read: {error.strerror}")
            if row.location.endswith(row.audio.name):  # the place names the file
                message = message.removeprefix(f"{row.audio} ")
            return RowCheck(errors=(ValidationFinding("not audio", row.location, message.removesuffix(".")),),
                            text_warnings=text_warnings)
        facts = examine(row.audio, row.channel)
        if stored is None:
            finding = ValidationFinding("too long", row.location, f"{row.id} {_too_long(facts.duration_s, limits)}")
            return RowCheck(errors=(finding,), text_warnings=text_warnings)
        content, above, waveform, sample_rate = stored.content, stored.above, stored.waveform, stored.sample_rate
        name = row.audio.name if row.is_part else row.id
        recording_warnings = tuple(ValidationFinding(fact.kind, row.location, f"{name}: {fact.message}")
                                   for fact in facts.findings())

        duration_s = len(waveform) / sample_rate
        peak = float(np.abs(waveform).max())
        fault = _fault(duration_s, peak, limits)
        if fault:
            kind, description = fault
            return RowCheck(errors=(ValidationFinding(kind, row.location, f"{row.id} {description}"),),
                            text_warnings=text_warnings, recording_warnings=recording_warnings)

        # A part is measured itself; the share of a whole recording is known from decoding.
        clip_warnings = []
        clipped = facts.downmix.full_scale_share
        if row.is_part:
            clipped = float((np.abs(waveform) >= limits.clipped_level).mean())
        if above:
            message = (f"{row.id}: {above} samples were above full scale, and were cut to it; lower the recording's "
                       "level and import it again")
            clip_warnings.append(ValidationFinding("clipping", row.location, message))
        elif clipped > limits.clipped_share:
            clip_warnings.append(ValidationFinding("clipping", row.location,
                                                   f"{row.id}: {clipped:.1%} of the samples are at full scale"))

        # A text that cannot be spoken in this time belongs to another recording.
        rate = len(normal) / duration_s
        if rate > limits.possible_characters_per_s:
            message = (f"{row.id} would be {rate:,.0f} characters a second, more than is possible "
                       f"({limits.possible_characters_per_s:g}): the text is of another recording")
            return RowCheck(errors=(ValidationFinding("pace", row.location, message),), text_warnings=text_warnings,
                            recording_warnings=recording_warnings, clip_warnings=tuple(clip_warnings))
        if not limits.min_characters_per_s <= rate <= limits.max_characters_per_s:
            clip_warnings.append(ValidationFinding("pace", row.location,
                                                   f"{row.id}: {rate:.1f} characters a second; does the text fit?"))

        silence = silence_at_ends(waveform, sample_rate)
        start_s, end_s = (0.0, 0.0) if self.keep_edges else silence_to_trim(*silence, duration_s)
        checked = CheckedRow(row, normal, round(duration_s - start_s - end_s, 3), hashlib.sha256(content).hexdigest(),
                             not row.is_part and not facts.is_plain, start_s, end_s)
        return RowCheck(checked, max(0.0, duration_s - sum(silence)), (), text_warnings, recording_warnings,
                        tuple(clip_warnings))


@dataclass(frozen=True)
class StoredClip:
    """A clip as the dataset gets it; `above` samples were above full scale and cut to it."""

    content: bytes
    above: int
    waveform: np.ndarray  # (S,) float32
    sample_rate: int  # Hz


def store_row(row: SourceRow, longest_s: float = math.inf) -> StoredClip | None:
    """The clip of a row; None for a whole recording longer than `longest_s`.

    A file stays as it is where every program reads the same sound from it, else it becomes mono FLAC.
    """
    if row.is_part:
        content, above = cut_to_flac(row.audio, row.begin_s, row.end_s, row.channel)
        return StoredClip(content, above, *read_samples(io.BytesIO(content), name=row.audio))
    sound = read_sound(row.audio, longest_s, row.channel)
    if sound.facts.duration_s > longest_s:
        return None
    if not sound.facts.is_plain:
        return StoredClip(*to_flac(sound), sound.waveform, sound.facts.sample_rate)
    with confinement.verified(row.audio) as source:
        return StoredClip(Path(source).read_bytes(), 0, sound.waveform, sound.facts.sample_rate)


def _without_controls(row: SourceRow) -> tuple[SourceRow, tuple[ValidationFinding, ...]]:
    """`row` with a space for each control character, such as NUL or a change of text direction; and a warning."""
    controls = [character for character in sorted(set(row.text) - set("\t\n\r"))
                if unicodedata.category(character) in ("Cc", "Cs")
                or unicodedata.bidirectional(character) in _DIRECTION_MARKS]
    if not controls:
        return row, ()
    named = ", ".join(f"U+{ord(character):04X}" for character in controls)
    warning = ValidationFinding("control characters", row.location, f"{row.id}: {named} in the text; taken out")
    text = "".join(" " if character in controls else character for character in row.text)
    return replace(row, text=" ".join(text.split())), (warning,)


def _fault(duration_s: float, peak: float, limits: ClipCheckLimits) -> tuple[str, str] | None:
    if duration_s < limits.min_duration_s:
        return "too short", f"lasts {duration_s:.2f} s, {limits.min_duration_s:g} s or more are wanted"
    if duration_s > limits.max_duration_s:
        return "too long", _too_long(duration_s, limits)
    if peak < limits.silent_peak:
        return "silent", f"is silent: its peak is {peak:.4f} of full scale"
    return None


def _too_long(duration_s: float, limits: ClipCheckLimits) -> str:
    return f"lasts {duration_s:.1f} s, {limits.max_duration_s:g} s or less are wanted; cut it"


def _text_warnings(valid: Sequence[CheckedRow], counts: Mapping[str, int],
                   limits: ClipCheckLimits) -> list[ValidationFinding]:
    # Digits, and signs that are neither marks nor parts of words, are learnt as they are written.
    spoken_otherwise = sorted(character for character in counts if not character.isalpha() and character.isprintable()
                              and (character.isnumeric() or not (is_mark(character) or _in_words(character))))
    findings = []
    if spoken_otherwise:
        places, first_place = 0, ""
        for row in valid:
            if any(character in row.normal for character in spoken_otherwise):
                places, first_place = places + 1, first_place or row.row.location
        findings.append(ValidationFinding(
            "characters", first_place,
            f"{places} of {len(valid)} texts hold digits or signs, which would be learned unchanged: "
            f"{_named(spoken_otherwise)}. Choose text rules that write them out, or spell them as they are spoken",
        ))

    # Rare characters are reported for the whole dataset, not for each clip.
    rare = sorted(character for character, count in counts.items() if count < limits.rare_occurrences)
    if rare:
        findings.append(ValidationFinding("rare characters", "",
                                       f"Characters seen fewer than {limits.rare_occurrences} times in the texts "
                                       f"checked here ({len(valid)}): {' '.join(rare)}"))
    return findings


def _named(characters: Sequence[str]) -> str:
    names = " ".join(f"“{character}”" for character in characters[:_MAX_NAMED])
    remaining = len(characters) - _MAX_NAMED
    return f"{names} and {remaining} others" if remaining > 0 else names


def _in_words(character: str) -> bool:
    return character == "'" or character.isidentifier() or ("a" + character).isidentifier()


def _report(entry_count: int, valid: Sequence[CheckedRow], reading: TextNormaliser, errors: Sequence[ValidationFinding],
            warnings: Sequence[ValidationFinding], limits: ClipCheckLimits) -> ValidationReport:
    characters: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    duration_s = 0.0
    for row in valid:
        characters.update(row.normal)
        lost.update(dropped(reading.verbalize(row.row.text), reading.normaliser))
        duration_s += row.duration_s

    spoken_counts = {character: count for character, count in characters.items() if character != " "}
    return ValidationReport(entry_count, len(valid), round(duration_s, 3), dict(sorted(characters.items())),
                            dict(sorted(lost.items())),
                            errors, with_more(warnings, [*_text_warnings(valid, spoken_counts, limits),
                                                  *_spelling_warnings(valid, spoken_counts)]))


def _spelling_warnings(valid: Sequence[CheckedRow],
                       spoken_counts: Mapping[str, int]) -> list[ValidationFinding]:
    """Several signs for one apostrophe, and capitals that are letters of their own."""
    findings = []

    signs = [sign for sign in _APOSTROPHES if spoken_counts.get(sign)]
    if len(signs) > 1:
        listing = ", ".join(f"{sign} (U+{ord(sign):04X}) {spoken_counts[sign]} times" for sign in signs)
        message = (f"the texts have {len(signs)} signs that look like an apostrophe: {listing}. If they are one "
                   "letter, spell them alike, in a text rule or in the texts; each is learnt as a letter of its own")
        findings.append(ValidationFinding("apostrophes", "", message))

    # Without pairs, a few words are names rather than an orthography.
    case = measure_case(row.row.text for row in valid)
    if not case.within or not (case.pairs or case.is_spelling):
        return findings
    location = next((row.row.location for row in valid
                     if case.example in unicodedata.normalize("NFC", row.row.text)), "")
    description = (f"{case.within} words have capitals within, such as {case.example!r}, as in orthographies whose "
                   "capitals are letters of their own")
    message = (f"{description}. A tokenizer of these texts keeps their case (its option case)" if case.is_spelling else
               f"{description}. {case.example!r} is read as {case.example.lower()!r}: if case is spoken, keep it "
               "(option case of the tokenizer), or write such a letter by a small one (in a text rule, such as N as ŋ)")
    findings.append(ValidationFinding("case", location, message))
    return findings


def _nothing_left(row_count: int, errors: Sequence[ValidationFinding]) -> str:
    reasons = "; ".join(f"{finding.where}: {finding.message.rstrip('.')}" for finding in errors[:3])
    remaining = f"; and {len(errors) - 3} more" if len(errors) > 3 else ""
    has_audio = any(finding.kind not in ("skipped", "empty text") for finding in errors)
    summary = "The dataset has no usable audio" if has_audio else "No row of the dataset can be used"
    return f"{summary}: none of its {row_count} rows is left ({reasons}{remaining})."
