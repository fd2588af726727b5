"""A prepared dataset on disk: `manifest.jsonl` (one clip a line) and `dataset.yaml` (its card).

Files may have a byte order mark; a wrong line raises `UserError` with its number.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import IO

import yaml

from config import foreign
from config.errors import UserError
from data.disk_collections import DiskList, DiskSequence, sorted_on_disk
from data.durable_files import check_no_link_out, write_text

MANIFEST_FILE = "manifest.jsonl"
CARD_FILE = "dataset.yaml"
TRAIN, HELD_OUT, TEST = "train", "held_out", "test"
SPLITS = (TRAIN, HELD_OUT, TEST)
"""Held-out clips select checkpoints; test clips select nothing, and an evaluation uses them first."""
_LATER_FIELDS = {"trimmed_start_s", "trimmed_end_s"}  # absent from datasets that were prepared before these existed


@dataclass(frozen=True)
class ManifestClip:
    """One recording with its text."""

    id: str
    audio: str  # relative to the dataset's folder
    text: str  # not normalised
    language: str
    split: str  # member of SPLITS
    duration_s: float  # seconds of the used part
    speaker: str
    sha256: str  # hash of the audio file's bytes
    source: str = ""  # the recording it was cut from; empty for a whole recording
    trimmed_start_s: float = 0.0  # silence at the start of the file that is not used
    trimmed_end_s: float = 0.0

    @property
    def is_trimmed(self) -> bool:
        return self.trimmed_start_s > 0 or self.trimmed_end_s > 0

    @property
    def feature_key(self) -> str:
        """The key of its features in the cache: the hash of the file's bytes, and of the part of it that is used."""
        if not self.is_trimmed:
            return self.sha256
        part = f"{self.sha256} {self.trimmed_start_s:.3f} {self.trimmed_end_s:.3f}"
        return hashlib.sha256(part.encode()).hexdigest()


@dataclass(frozen=True)
class HeldOutSentence:
    """A held-out sentence to synthesize, with its original recording where there is one."""

    text: str
    original: Path | None
    speaker: str = ""  # The recording's speaker; empty if unknown.
    category: str = ""  # Only lists with categories have one.


@dataclass(frozen=True)
class DatasetCard:
    """Facts about a dataset, and the fingerprint that shows a change."""

    name: str
    language: str  # language codes, separated by commas
    source: str
    clips: int
    train_clips: int
    held_out_clips: int
    duration_s: float
    fingerprint: str  # over audio, its parts that are used, texts, languages, splits and speakers
    licence: str = ""  # licence of the recordings; empty if unknown
    reviewed: str = ""  # the dataset that it was made from in a review
    split: str = ""  # how held-out clips were drawn
    trimmed_clips: int = 0  # clips whose file has silence at its ends that is not used
    trimmed_s: float = 0.0
    test_clips: int = 0

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages of the clips, in the order in which they were added."""
        return tuple(self.language.split(","))

    @property
    def by_speaker(self) -> bool:
        """Whether the split keeps speakers apart."""
        return " by speaker," in self.split


@dataclass(frozen=True)
class PreparedDataset:
    """A prepared dataset: its folder, card and clips (perhaps on disk)."""

    folder: Path
    card: DatasetCard
    clips: Sequence[ManifestClip]

    def split(self, name: str, language: str = "") -> tuple[ManifestClip, ...]:
        """Clips of one of SPLITS, or only those of `language`."""
        return tuple(clip for clip in self.clips if clip.split == name and language in ("", clip.language))

    def audio_path(self, clip: ManifestClip) -> Path:
        return check_no_link_out(self.folder, clip.audio)


def make_card(name: str, language: str, source: str, clips: Iterable[ManifestClip], licence: str = "",
              split: str = "") -> DatasetCard:
    """The card of `clips`, which are iterated once."""
    counts: Counter[str] = Counter()
    duration_s = trimmed_s = 0.0
    trimmed_clips = 0

    def counted() -> Iterator[ManifestClip]:
        nonlocal duration_s, trimmed_s, trimmed_clips
        for clip in clips:
            counts[clip.split] += 1
            duration_s += clip.duration_s
            trimmed_s += clip.trimmed_start_s + clip.trimmed_end_s
            trimmed_clips += clip.is_trimmed
            yield clip

    # The fingerprint reads the clips once, and the totals are counted on the way.
    mark, total = fingerprint(counted()), counts.total()
    return DatasetCard(name, language, source, total, counts[TRAIN], counts[HELD_OUT], round(duration_s, 3), mark,
                       licence, split=split, test_clips=counts[TEST], trimmed_clips=trimmed_clips,
                       trimmed_s=round(trimmed_s, 3))


def fingerprint(clips: Iterable[ManifestClip]) -> str:
    """sha256 over what training sees, independent of order and file names."""
    digest = hashlib.sha256()
    for number, line in enumerate(sorted_on_disk(map(_fingerprint_line, clips))):
        digest.update((f"\n{line}" if number else line).encode())
    return digest.hexdigest()


def _fingerprint_line(clip: ManifestClip) -> str:
    """What training sees of a clip; a clip without source or trimming has the line it had before there were such."""
    values: list[object] = [clip.sha256, clip.text, clip.language, clip.split, clip.speaker]
    if clip.source:
        values.append(clip.source)
    if clip.is_trimmed:
        values.append([clip.trimmed_start_s, clip.trimmed_end_s])
    return json.dumps(values)


def with_edges(clips: Iterable[ManifestClip]) -> Iterator[ManifestClip]:
    """The clips with the silence at the ends of their files."""
    for clip in clips:
        trimmed_s = clip.trimmed_start_s + clip.trimmed_end_s
        yield replace(clip, duration_s=round(clip.duration_s + trimmed_s, 3), trimmed_start_s=0.0, trimmed_end_s=0.0)


def save(folder: Path, card: DatasetCard, clips: Iterable[ManifestClip]) -> None:
    """Write manifest and card into `folder`."""
    with open(folder / MANIFEST_FILE, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(clip), ensure_ascii=False) + "\n" for clip in clips)
    save_card(folder, card)


def save_card(folder: Path, card: DatasetCard) -> None:
    """Write the card of the dataset in `folder`; an existing card stays whole until the new one is."""
    write_text(folder / CARD_FILE, yaml.safe_dump(asdict(card), allow_unicode=True, sort_keys=False))


def load(folder: Path) -> PreparedDataset:
    """The dataset in `folder`; `UserError` if it is missing, damaged or does not match its card.

    The clips stay in the file, which is kept open: so the checked content is read, even if the folder changes.
    """
    card = load_card(folder)
    path = folder / MANIFEST_FILE
    file, begins = _opened(path), array("q")
    clips = DiskSequence(file, _stored_clip, begins)
    mark = fingerprint(_checked(file, path, begins))
    begins.append(file.tell())
    if mark != card.fingerprint:
        raise UserError(
            f"{path} is not what {CARD_FILE} describes: {len(clips)} clips, not {card.clips}.",
            "The manifest was changed or cut off; prepare the dataset again under another name.",
        )
    return PreparedDataset(folder, card, clips)


def load_card(folder: Path) -> DatasetCard:
    """The card of the dataset in `folder`."""
    path = folder / CARD_FILE
    try:
        return DatasetCard(**foreign.read_yaml(path))
    except OSError as error:
        raise UserError(f"{path} could not be read: {error.strerror}.", "Prepare the dataset first.") from error
    except (TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged: {foreign.reason_of(error)}.", "Prepare the dataset again.") from error


def _checked(file: IO[bytes], path: Path, begins: array[int]) -> Iterator[ManifestClip]:
    """Clips of a manifest, line by line; appends the start of each line to `begins`."""
    names = {field.name for field in fields(ManifestClip)}
    required = names - _LATER_FIELDS
    for number, begin, row in _json_lines(file, path):
        if not required <= set(row) <= names:
            raise UserError(
                f"{path}, line {number}: missing {sorted(required - set(row))}, unknown {sorted(set(row) - names)}.",
                "Prepare the dataset again.",
            )
        if row["split"] not in SPLITS:
            raise UserError(f"{path}, line {number}: split {row['split']!r} is not one of {SPLITS}.", "Fix the line.")
        begins.append(begin)
        yield ManifestClip(**row)


def clips_on_disk(folder: Path) -> DiskList[ManifestClip]:
    """An empty list of clips on disk, in an unnamed file in `folder`."""
    return DiskList(lambda clip: json.dumps(asdict(clip)), _stored_clip, folder)


def _stored_clip(line: bytes) -> ManifestClip:
    return ManifestClip(**json.loads(line))


def read_json_lines(path: Path) -> Iterator[tuple[int, dict]]:
    """Line number and object of each line that is not blank."""
    with _opened(path) as file:
        for number, _, row in _json_lines(file, path):
            yield number, row


def _json_lines(file: IO[bytes], path: Path) -> Iterator[tuple[int, int, dict]]:
    """Number, offset in the file and object of each line that is not blank."""
    end = 0
    for number, line in enumerate(file, start=1):
        begin, end = end, end + len(line)
        if number == 1 and line.startswith(BOM_UTF8):
            begin, line = len(BOM_UTF8), line[len(BOM_UTF8):]
        if not line.strip():
            continue
        try:
            text = line.decode("utf-8")
            row = foreign.loads(text)
        except UnicodeDecodeError as error:
            raise _not_utf8(path, begin, error) from error
        except ValueError as error:
            raise UserError(f"{path}, line {number} is not JSON: {error}.", "Write one JSON object a line.") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number} is not a JSON object: {text[:40]!r}.", "Write one object a line.")
        yield number, begin, row


def _opened(path: Path) -> IO[bytes]:
    try:
        return foreign.open_plain(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def read_text(path: Path) -> str:
    """A text file in UTF-8, with or without a byte order mark."""
    try:
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise _unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise _not_utf8(path, 0, error) from error


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(f"{path} could not be read: {error.strerror}.", "Check path and permissions.")


def _not_utf8(path: Path, begin: int, error: UnicodeDecodeError) -> UserError:
    return UserError(f"{path} is not UTF-8: byte {begin + error.start} is 0x{error.object[error.start]:02x}.",
                     "Save it as UTF-8 (in a spreadsheet: 'CSV UTF-8').")
