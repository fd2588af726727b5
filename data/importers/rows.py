"""Rows of a dataset: the parsed items, the known columns, the search for recordings, and ids.

A reader yields `ParsedUtterance`, or `SkippedRow` with a reason; it opens no recording. `resolve_rows` finds the
recordings and makes unique ids. Both are generators and remember what they must on disk, so memory does not grow with
the number of utterances.
"""

from __future__ import annotations

import math
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Literal

from rapidfuzz import fuzz, process

from config import confinement
from config.languages import same_language
from data import sound_containers
from data.channels import AUTO
from data.disk_collections import DiskDict
from data.manifest import HELD_OUT, TEST, TRAIN

DEFAULT_SPEAKER = "speaker"
_LONGEST_ID = 120  # bytes; a file name may have 255, with what is put behind it
SOUND_SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".oga", ".aiff", ".aif", ".au", ".caf", ".w64")
"""Read directly, by libsndfile."""
FILM_SUFFIXES = (".m4a", ".mp4", ".m4b", ".m4v", ".mov", ".mkv", ".mka", ".webm", ".avi", ".aac", ".amr", ".3gp",
                 ".wma", ".wmv", ".mpg", ".mpeg", ".ts", ".flv")
"""The audio track is extracted by ffmpeg."""
AUDIO_SUFFIXES = SOUND_SUFFIXES + FILM_SUFFIXES
TEXT_SUFFIXES = (".txt", ".lab", ".srt", ".vtt", ".lrc", ".textgrid", ".eaf", ".csv", ".tsv", ".psv", ".list", ".json",
                 ".jsonl", ".ndjson", ".jsonl.gz", ".scp", ".stm", ".data")
"""Texts and tables that a reader knows; archives and repositories have others too."""
AUDIO_FOLDERS = ("", "wavs", "audio", "clips", "wav", "mp3", "recordings", "audios")
_NAME_ENCODINGS = ("utf-8", "gb18030", "shift_jis", "cp866", "cp1251", "koi8-r", "big5", "euc-kr", "euc-jp", "cp850",
                   "cp437", "cp1252", "cp1256", "cp1255", "cp1253", "cp874", "cp1258")
"""Of names in archives that older programs packed."""
_NEAR, _MOST_COMPARED = 60.0, 20_000  # similarity out of 100, by rapidfuzz; number of recordings' names
_LONGEST_NAME = 240  # bytes in one part of a path; longer ones are texts in the wrong column
COLUMNS = {  # names of columns and keys by meaning
    "audio": ("audio", "audio_path", "audio_file", "audio_filepath", "audio_filename", "path", "file", "file_name",
              "filename", "file_path", "filepath", "wav", "wav_path", "wav_file", "wav_filename", "mp3", "clip",
              "target_audio_path", "target_audio"),
    "text": ("text", "sentence", "transcript", "transcription", "normalized_text", "text_normalized",
             "raw_transcription", "text_original", "original_text", "wrd", "subtitle", "caption", "target_text"),
    "spelled": ("normalized", "normalised", "normalized_transcription", "normalized transcription",
                "normalized_text", "text_normalized"),
    "id": ("target_id", "id", "utterance_id", "utt_id", "segment_id", "index"),
    "speaker": ("speaker", "speaker_id", "speaker_name", "client_id", "spk", "spk_id", "target_speaker"),
    "language": ("language", "language_id", "lang", "lang_id", "language_code", "locale", "target_language"),
    "split": ("split", "set", "subset"),
    "begin": ("begin", "begin_s", "begin_time", "start", "start_s", "start_time", "offset"),
    "end": ("end", "end_s", "end_time", "stop"),
    "duration": ("duration", "duration_s"),
}
def _bare(name: str) -> str:
    """A column's name without case, blanks, `_` and `-`."""
    return re.sub(r"[\s_-]+", "", name.lower())


_KNOWN = {_bare(name): name for name in chain.from_iterable(COLUMNS.values())}


def column_names(header: Sequence[str]) -> list[str]:
    """The names of a header as `COLUMNS` has them, as `speaker_id` for `Speaker ID`; others in lower case.

    Of two columns that mean the same name, the later one keeps its own.
    """
    names = list[str]()
    lower = [name.strip().strip('"').strip().lower() for name in header]
    for name in lower:
        standard = _KNOWN.get(_bare(name), name)
        names.append(name if standard in names or (standard in lower and standard != name) else standard)
    return names


def unused_columns(names: Sequence[str], spelled: bool = False) -> list[str]:
    """Which of `column_names` no value is taken from; `spelled`: whether the normalised text is read."""
    used = set[str]()
    for meaning, synonyms in COLUMNS.items():
        if meaning != "spelled" or spelled:
            used.update([name for name in synonyms if name in names][:1])
    times = ("onset", "offset", "from", "to", "timestamp", "timestamps")
    return [name for name in names if name and name not in used and name not in times and not _MS.fullmatch(name)
            and not _OTHER_UNIT.fullmatch(name)]


_MS = re.compile(r"(?:begin|start|onset|end|stop|offset)(?:_time)?_?ms")
_OTHER_UNIT = re.compile(r"(?:begin|start|onset|end|stop|offset)_?(?:samples?|frames?)")
SPLIT_NAMES = {
    "train": TRAIN, "training": TRAIN, "held_out": HELD_OUT, "held-out": HELD_OUT, "heldout": HELD_OUT,
    "test": TEST, "validation": HELD_OUT, "valid": HELD_OUT, "dev": HELD_OUT, "val": HELD_OUT, "eval": HELD_OUT,
}


def split_of_folders(folders: Iterable[str]) -> str:
    """The name of `SPLIT_NAMES` that `train-clean-100`, `dev_other` or `train.clean.100` begins with; empty for none.

    `held_out` and `held-out` are whole names.
    """
    names = []
    for folder in folders:
        lower = folder.strip().lower()
        names.append(lower if lower in SPLIT_NAMES else re.split(r"[-_.\s]", lower)[0])
    return next((name for name in names if name in SPLIT_NAMES), "")


_SWAPPED = "; its text is the name of a recording there: the columns of recording and text are swapped"
_STRESS = "ˈˌː"
_IPA = frozenset("ɹɾɚɝɜɐɒɪɡɫʁɕʑɸʎɴʂʐʈᵻ")  # letters of no orthography, unlike ɛ, ɔ, ŋ, ɓ, ɣ, ɨ or ʊ
_ARPABET = re.compile(r"[A-Z]{1,2}[0-2]?|sp|sil|spn")
_PINYIN = re.compile(r"[a-zü]{1,6}[1-5]")


def notation_of(texts: Iterable[str]) -> str:
    """The notation of most of the texts if they are no spelling: phonemes in IPA, phones or pinyin; else empty."""
    filled = [text for text in texts if text.strip()]
    notations = Counter(map(_notation, filled))
    return next((name for name, count in notations.most_common(1) if name and 2 * count > len(filled)), "")


def _notation(text: str) -> str:
    if sum(letter in _IPA or letter in _STRESS for letter in text) >= (2 + len(text) // 50 if len(text) > 12 else 1):
        return "phonemes (IPA)"
    words = text.strip("{} ").split()
    if len(words) > 2 and any(word[-1] in "012" for word in words) and all(map(_ARPABET.fullmatch, words)):
        return "phones (ARPAbet)"
    if len(words) > 1 and all(map(_PINYIN.fullmatch, words)):
        return "pinyin"
    letters = [word for word in words if word.isascii() and word.isalpha()]
    return "phones" if len(letters) > 5 and sum(map(len, letters)) < 1.6 * len(letters) == 1.6 * len(words) else ""


@dataclass(frozen=True)
class ParsedUtterance:
    """A text and its recording by the name in the source; a part of the recording where times are given."""

    location: str
    audio: str
    text: str
    id: str = ""  # empty where the source has none
    speaker: str = ""
    split: str = ""  # a name of `SPLIT_NAMES`, or empty
    begin_s: float = 0.0
    end_s: float | None = None  # None is the end of the recording
    language: str = ""  # a code or a name; empty where the source has none
    other_lengths: Mapping[str, int] = field(default_factory=dict, compare=False)  # text lengths in unread columns


@dataclass(frozen=True)
class SkippedRow:
    """A row that cannot be used, and why."""

    location: str
    reason: str


@dataclass(frozen=True)
class SourceNote(SkippedRow):
    """Something about a file, `reason`, that costs no row: a finding."""


ParsedItem = ParsedUtterance | SkippedRow


@dataclass(frozen=True)
class SourceRow:
    """A recording that exists, its text, and its place in the source."""

    id: str
    audio: Path
    text: str
    location: str
    speaker: str = DEFAULT_SPEAKER
    split: str = ""  # empty where the source names none
    begin_s: float = 0.0
    end_s: float | None = None
    other_lengths: Mapping[str, int] = field(default_factory=dict, compare=False)  # see `ParsedUtterance`
    channel: str = AUTO  # the channel of the recording that a person chose, see `data.channels.Downmix.chosen`

    @property
    def is_part(self) -> bool:
        """Whether the row is a part of its recording."""
        return self.begin_s > 0 or self.end_s is not None


SourceEntry = SourceRow | SkippedRow


@dataclass(frozen=True)
class Reread:
    """Entries that are read again on each pass."""

    read: Callable[[], Iterator[SourceEntry]]

    def __iter__(self) -> Iterator[SourceEntry]:
        return self.read()


@dataclass(frozen=True)
class ImportedSource:
    """Every row of a source, usable or skipped, read again on each pass; and the recognised format."""

    entries: Iterable[SourceEntry]
    form: str = ""  # such as "LJSpeech"
    notes: tuple[str, ...] = ()  # the recognised format, and which others would fit

    def __iter__(self) -> Iterator[SourceEntry]:
        return iter(self.entries)

    @property
    def rows(self) -> tuple[SourceRow, ...]:
        return tuple(entry for entry in self if isinstance(entry, SourceRow))

    @property
    def skipped(self) -> tuple[SkippedRow, ...]:
        return tuple(entry for entry in self if isinstance(entry, SkippedRow) and not isinstance(entry, SourceNote))


def resolve_rows(items: Iterable[ParsedItem], lookup: RecordingLookup, language: str = "") -> Iterator[SourceEntry]:
    """Each utterance as a row: its recording must exist, its id must be unique, and its language be `language`."""
    with DiskDict() as raw_ids, DiskDict() as ids:
        for item in items:
            item = replace(item, location=printable(item.location))
            if isinstance(item, SkippedRow):
                yield item
                continue
            if item.language.strip() and language and is_other_language(item.language, language):
                yield SkippedRow(item.location, f"its language is {item.language.strip()[:40]!r}, and {language!r} is "
                                 "imported")
                continue
            try:
                path = lookup.find(item.audio or item.id)
            except RecordingNotFound as error:
                # Swapped columns are a common mistake.
                swapped = is_audio(item.text.strip()) and lookup.has(item.text)
                yield SkippedRow(item.location, f"{error}{_SWAPPED if swapped else ''}")
                continue
            yield _row(item, path, lookup.folder, raw_ids, ids)


def is_other_language(value: str, language: str) -> bool:
    """Whether a value of a table is a language other than `language`; GPT-SoVITS's `auto` says nothing."""
    name = value.strip().lower().removeprefix("all_")
    return not name.startswith("auto") and not same_language({"jp": "ja"}.get(name, name), language)


def _row(item: ParsedUtterance, path: Path, folder: Path, raw_ids: DiskDict, ids: DiskDict) -> SourceEntry:
    split = split_of_folders([item.split])
    if item.split.strip() and not split:
        names = ", ".join(SPLIT_NAMES)
        return SkippedRow(item.location, f"the split {item.split.strip()[:40]!r} is not one of {names}")
    if not 0 <= item.begin_s < (item.end_s if item.end_s is not None else float("inf")):
        return SkippedRow(item.location, f"it goes from {item.begin_s:g} s to {item.end_s or 0:g} s, which is not a "
                          "valid span")

    name = item.id.strip() or _of_audio(item, path, folder)
    # Without an id of its own, a recording may share its stem with another one, as x.wav and x.flac do.
    identity = f"id {name}" if item.id.strip() else f"part {item.begin_s:g} {item.end_s} {path}"
    earlier = raw_ids.put(identity, item.location)
    if earlier is not None:
        return SkippedRow(item.location, f"the id {safe_id(name)!r} was already used at {earlier}")

    text = re.sub(r"[\t\r\n]+", " ", item.text).strip()
    # No file can hold control characters and lone surrogates.
    speaker = re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]+", " ", item.speaker).strip() or DEFAULT_SPEAKER
    return SourceRow(unused_id(safe_id(name), item.location, ids), path, text, item.location, speaker,
                     SPLIT_NAMES.get(split, ""), item.begin_s, item.end_s, item.other_lengths)


def printable(name: str) -> str:
    """A name for display: characters that are invisible or change the direction of text are escaped."""
    return name if name.isprintable() else "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in name)


def unused_id(name: str, location: str, ids: DiskDict) -> str:
    """`name`, or `name-2` and so on if it is taken; case is ignored, as on some file systems."""
    number, free = 1, name
    while ids.put(free.casefold(), location) is not None:
        number += 1
        free = f"{name}-{number}"
    return free


def safe_id(name: str) -> str:
    """An id that can be a file name: other characters become `_`; a long name is cut and gets a hash."""
    safe = re.sub(r"[^\w.-]", "_", name).lstrip(".") or "_"
    if len(safe.encode()) <= _LONGEST_ID:
        return safe
    cut = safe.encode()[:_LONGEST_ID - 9].decode(errors="ignore")
    return f"{cut}-{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def _of_audio(item: ParsedUtterance, path: Path, folder: Path) -> str:
    """An id from the recording's name, and for a part from its times in milliseconds: it does not depend on others."""
    inside = path.relative_to(folder) if path.is_relative_to(folder) else Path(path.name)
    if not item.audio.isascii() and is_audio(item.audio) and PurePosixPath(item.audio).name != path.name:
        # The file was found in another encoding of its name.
        inside = inside.with_name(PurePosixPath(item.audio).name)
    parts = inside.with_suffix("").parts
    stem = "-".join(parts[1:] if len(parts) > 1 and parts[0] in AUDIO_FOLDERS else parts)
    if item.begin_s == 0 and item.end_s is None:
        return stem
    end = "end" if item.end_s is None else f"{round(item.end_s * 1000):07d}"
    return f"{stem}-{round(item.begin_s * 1000):07d}-{end}"


def _misread(name: str) -> Iterator[str]:
    """`name` as an unpacker shows it that does not know the encoding of an archive's names."""
    for encoding in _NAME_ENCODINGS:
        try:
            raw = name.encode(encoding)
        except UnicodeEncodeError:
            continue
        for displayed in ("cp437", "latin-1", "cp1252", "cp866"):
            try:
                yield raw.decode(displayed)
            except UnicodeDecodeError:
                continue
        yield raw.decode("utf-8", "surrogateescape")


class RecordingNotFound(Exception):
    """The recording does not exist or may not be read; the message says why."""


def leads_out(path: str | Path) -> bool:
    """Whether a path, by its parts alone, does not lie below the folder that it is relative to."""
    normal = os.path.normpath(str(path).replace("\\", "/"))
    return os.path.isabs(normal) or normal.partition("/")[0] == ".."


def is_audio(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in AUDIO_SUFFIXES


def is_film(path: Path) -> bool:
    """Whether ffmpeg must extract the audio track of a file: by its content, and by its suffix if that is unknown."""
    kind = sound_containers.content_of(path)
    return kind in sound_containers.FILM_KINDS or (kind == "" and path.suffix.lower() in FILM_SUFFIXES)


class RecordingLookup:
    """Finds recordings of the source in `folder`.

    Nothing outside of it is read, neither through `..` nor through a link, and `..` is not even looked up there, so
    that a reason does not tell what exists. A table of this machine may name absolute paths, since its author could
    read them; a downloaded one (`foreign`) may not, nor any table while sources are confined.
    """

    def __init__(self, folder: Path, *, foreign: bool = False, title: str = "") -> None:
        self.folder = folder
        self._title = title or str(folder)
        self._foreign = foreign or confinement.is_confined()
        self._real = os.path.realpath(folder)
        places = [os.path.join(folder, place) for place in AUDIO_FOLDERS]
        self._places = [f"{path}/" for path in places if os.path.isdir(path)]

    def find(self, name: str) -> Path:
        """The file called `name`, with or without suffix, also in one of `AUDIO_FOLDERS`; else `RecordingNotFound`."""
        name = name.strip()
        if not name:
            raise RecordingNotFound("no audio is named (missing index)")
        if "\0" in name or any(len(part.encode("utf-8", "replace")) > _LONGEST_NAME for part in name.split("/")):
            raise RecordingNotFound(f"{name[:60]!r} is not a file name")
        encodable = name.encode("utf-8", "replace").decode()
        for path in chain(self._candidates(encodable), *map(self._candidates, self._spellings(encodable))):
            # This is false too for a name that the system does not accept.
            if os.path.isfile(path):
                return self._checked(Path(path), name)
        if leads_out(name) and not os.path.isabs(name):
            raise RecordingNotFound(f"{name[:60]!r} leads out of {self._title}; what lies outside is not read")
        nearest = self._nearest(name)
        raise RecordingNotFound(f"the audio {name[:60]!r} is not in {self._title}"
                                + (f"; the nearest name there is {nearest[:60]!r}" if nearest else ""))

    def _nearest(self, name: str) -> str:
        """The name of a recording here that is most like `name`; empty if none is."""
        match = process.extractOne(PurePosixPath(name.replace("\\", "/")).name, self._names, scorer=fuzz.ratio,
                                   score_cutoff=_NEAR)
        return printable(match[0]) if match else ""

    @cached_property
    def _names(self) -> list[str]:
        """The names of recordings here, at most `_MOST_COMPARED`."""
        recordings = filter(is_audio, chain.from_iterable(names for _, _, names in os.walk(self.folder)))
        return list(islice(recordings, _MOST_COMPARED))

    def has(self, name: str) -> bool:
        """Whether `find` finds it."""
        try:
            return bool(self.find(name))
        except RecordingNotFound:
            return False

    def _candidates(self, name: str) -> Iterator[str]:
        """Possible paths, as strings and in existing folders only: most do not exist, and this runs for every row."""
        pure = PurePosixPath(name.replace("\\", "/")) if "\\" in name else PurePosixPath(name)
        if pure.is_absolute() or name[1:2] == ":":
            if not self._foreign:
                yield name
        else:
            for place in self._places:
                if ".." in pure.parts and leads_out(os.path.relpath(f"{place}{pure}", self.folder)):
                    continue
                yield f"{place}{pure}"
                if not is_audio(name):
                    yield from (f"{place}{pure}{suffix}" for suffix in AUDIO_SUFFIXES)
        parts = [part for part in pure.parts if part not in ("/", "..") and not part.endswith(":")]
        if ".." not in pure.parts:
            # The table may have been written in another folder, so leading folders are left out one after another.
            for start in range(0 if pure.is_absolute() else 1, len(parts)):
                tail = "/".join(parts[start:])
                yield f"{self.folder}/{tail}"
                yield f"{self.folder}/{AUDIO_FOLDERS[1]}/{tail}"

    def _spellings(self, name: str) -> Iterator[str]:
        """The spellings that files here have of a name that was not found."""
        suffixes, forms = self._spelled
        stem, suffix = os.path.splitext(name) if is_audio(name) else (name, "")
        spellings = [f"{stem}{variant}" for variant in suffixes if not suffix or variant.lower() == suffix.lower()]
        spellings += [stem + suffix.lower()]
        for form in forms:
            spellings += [unicodedata.normalize(form, spelling) for spelling in (name, *spellings)]
        if forms and not name.isascii():
            spellings += list(_misread(name))
        yield from (spelling for spelling in dict.fromkeys(spellings) if spelling != name)

    @cached_property
    def _spelled(self) -> tuple[tuple[str, ...], tuple[Literal["NFC", "NFD"], ...]]:
        """Suffixes of recordings in capitals, and the forms of Unicode, that names of files here have."""
        suffixes, forms = set[str](), set[Literal["NFC", "NFD"]]()
        for _, _, names in os.walk(self.folder):
            for name in names:
                suffix = os.path.splitext(name)[1]
                if is_audio(name) and suffix != suffix.lower():
                    suffixes.add(suffix)
                if not name.isascii():
                    forms.add("NFC" if unicodedata.is_normalized("NFC", name) else "NFD")
        return tuple(sorted(suffixes)), tuple(sorted(forms))

    def _checked(self, path: Path, name: str) -> Path:
        is_absolute = os.path.isabs(name) and path == Path(name) and not self._foreign
        real = os.path.realpath(path)
        if is_absolute or os.path.commonpath([real, self._real]) == self._real:
            return path
        if ".." in path.parts:
            raise RecordingNotFound(f"{name[:60]!r} leads out of {self.folder}; what lies outside is not read")
        raise RecordingNotFound(f"{name[:60]!r} is a link to {real!r}, outside of {self.folder}; put the file itself "
                                "there")


def has_clip_columns(names: Collection[str]) -> bool:
    """Whether these columns are enough for a table of recordings."""
    meanings = {meaning for meaning, synonyms in COLUMNS.items() if not set(synonyms).isdisjoint(names)}
    return "text" in meanings and bool(meanings & {"audio", "id"})


def _times_by_other_names(record: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Begin and end from columns named `onset` and `offset`, `from` and `to`, or with a unit at the end.

    Values in samples or frames stay as they are: they are no times in seconds, and are refused as such.
    """
    cells = {name: str(value).strip() for name, value in record.items()
             if value not in (None, "") and isinstance(value, str | int | float)}
    pairs = [("onset", "offset"), ("from", "to")]

    for begin, end in pairs:
        if begin in cells and end in cells and all(re.fullmatch(r"[0-9.,:]+", cells[name]) for name in (begin, end)):
            yield from (("begin", cells[begin]), ("end", cells[end]))

    # Times in milliseconds are converted.
    for name, value in cells.items():
        meaning = "end" if name.startswith(("end", "stop", "offset")) else "begin"
        if _MS.fullmatch(name):
            try:
                yield meaning, str(float(value.replace(",", ".")) / 1000)
            except ValueError:
                yield meaning, f"{name} {value}"
        elif _OTHER_UNIT.fullmatch(name):
            yield meaning, f"{name} {value}"

    # One cell may hold both times.
    for name in ("timestamp", "timestamps"):
        span = record.get(name)
        if isinstance(span, list) and len(span) == 2 and all(isinstance(value, int | float) for value in span):
            yield from (("begin", str(span[0])), ("end", str(span[1])))


def standard_values(record: Mapping[str, object]) -> dict[str, str]:
    """The values of a record under the names of `COLUMNS`; the first of each meaning that is not empty."""
    values = {}
    for meaning, names in COLUMNS.items():
        value = next((record[name] for name in names if record.get(name) not in (None, "")), None)
        # In datasets of the hub, audio is an object with `path` and `bytes`.
        if isinstance(value, Mapping):
            value = value.get("path")
        if value is not None and not isinstance(value, list):
            values[meaning] = str(value)
    if record.get("split") in (None, "") and not split_of_folders([values.get("split", "")]):
        # A column `set` or `subset` may hold anything.
        values.pop("split", None)
    return values | dict(_times_by_other_names(record))


def span_of(values: Mapping[str, str]) -> tuple[float, float | None]:
    """Begin and end in seconds; a duration counts only from a begin. `ValueError` for a value that is no time."""
    begin = _seconds(values.get("begin", "0"))
    if "end" in values:
        return begin, _seconds(values["end"])
    if "begin" in values and "duration" in values:
        return begin, begin + _seconds(values["duration"])
    return begin, None


_CLOCK = re.compile(r"(?:(\d{1,3}):)?([0-5]?\d):([0-5]?\d(?:[.,]\d*)?)")


def is_clock(text: str) -> bool:
    """Whether a text is a time of the form `H:MM:SS.mmm` or `MM:SS`; a comma may replace the dot."""
    return _CLOCK.fullmatch(text.strip()) is not None


def _seconds(text: str) -> float:
    """Seconds, or a time with colons, whose last part counts seconds."""
    trimmed = text.strip()
    clock = _CLOCK.fullmatch(trimmed)
    if clock:
        return int(clock[1] or 0) * 3600 + int(clock[2]) * 60 + float(clock[3].replace(",", "."))
    try:
        value = float(trimmed.replace(",", "."))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]!r} is not a time in seconds, nor of the form H:MM:SS.mmm")
    return value
