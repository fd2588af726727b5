"""`segments/NAME` on disk: clips cut from long recordings, and their texts. Never loads torch.

All clips of a recording stand one behind the other in `audio/RECORDING.flac`, resampled, denoised and at one loudness.
`work/pieces.jsonl` says where each clip starts there and where it was in the recording; `metadata.jsonl`, which
`prepare` reads like any table, has the clips with a text. `segments.yaml` is the card.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

import yaml

from config import foreign
from config.errors import UserError
from core.jobs.locks import locked
from core.library import artefacts
from core.workspace import Workspace
from data.durable_files import write_text

Record = TypeVar("Record", "SegmentsCard", "SegmentClip")
PREFIX = "segments:"
CARD, PIECES, TABLE = "segments.yaml", "work/pieces.jsonl", "metadata.jsonl"
_COLUMNS = {"begin_s": "begin", "end_s": "end"}  # field by the column that importers know
_FIELDS = {column: name for name, column in _COLUMNS.items()}
_MOST = 1e12  # seconds, and clips
_LOCK_TIMEOUT_S = 10.0
_AGAIN = "Cut or align the recordings again under another name."


@dataclass(frozen=True)
class SegmentClip:
    """A clip. Its text is empty until it is transcribed; `doubt` is a sentence that says why to listen to it."""

    id: str
    audio: str  # relative to the folder
    begin_s: float  # seconds in `audio`
    end_s: float
    recording: str  # its name in the source
    from_s: float  # seconds in the recording
    to_s: float
    speaker: str = ""
    in_speech: bool = False  # cut where there is no pause
    text: str = ""
    score: float | None = None  # 0 to 1: confidence of the recogniser
    doubt: str = ""

    @property
    def duration_s(self) -> float:
        return self.end_s - self.begin_s


@dataclass(frozen=True)
class SegmentsCard:
    """A description of the segments, for people and for the check that the same was requested."""

    name: str
    language: str
    source: str
    # `cut`, or `aligned` with an existing text.
    made: str
    settings: dict[str, object]
    recordings: int
    clips: int
    duration_s: float  # length of all clips
    recorded_s: float  # length of all recordings
    texts: int = 0
    doubtful: int = 0
    recogniser: str = ""  # recogniser that found or aligned the texts


@dataclass(frozen=True)
class Segments:
    """A folder of segments with its card."""

    folder: Path
    card: SegmentsCard

    @classmethod
    def load(cls, folder: Path) -> Segments:
        path = folder / CARD
        try:
            return cls(folder, _record(SegmentsCard, foreign.read_yaml(path)))
        except (OSError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path} could not be read: {foreign.reason_of(error)}.", _AGAIN) from error

    def pieces(self) -> tuple[SegmentClip, ...]:
        """Every clip, with its text where it has one."""
        table = self.folder / TABLE
        transcribed = {piece.id: piece for piece in read_clips(table)} if table.is_file() else {}
        return tuple(transcribed.get(piece.id, piece) for piece in read_clips(self.folder / PIECES))

    def save_texts(self, pieces: Iterable[SegmentClip], recogniser: str) -> Segments:
        """Write the table of the clips that have a text, and update the card."""
        with_text = [piece for piece in pieces if piece.text]
        write_clips(self.folder / TABLE, with_text)
        card = replace(self.card, texts=len(with_text), doubtful=sum(bool(piece.doubt) for piece in with_text),
                       recogniser=recogniser)
        write_card(self.folder, card)
        return replace(self, card=card)


TYPED = "typed by hand"
"""The recogniser of segments whose texts a person typed."""


def save_typed_text(folder: Path, clip_id: str, text: str) -> Segments:
    """Write the text that a person typed for a clip; an empty one takes the clip out of the table."""
    with locked(folder / "work" / "typing.lock", _LOCK_TIMEOUT_S, "Others have been saving texts of these segments for "
                f"{_LOCK_TIMEOUT_S:g} s.", "Try again."):
        segments = Segments.load(folder)
        pieces = segments.pieces()
        if clip_id not in {piece.id for piece in pieces}:
            raise UserError(f"{folder.name!r} has no clip {clip_id!r}.", "Choose the segments again.")
        typed = [replace(piece, text=" ".join(text.split()), score=None, doubt="") if piece.id == clip_id else piece
                 for piece in pieces]
        return segments.save_texts(typed, segments.card.recogniser or TYPED)


_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "float": (int, float), "bool": (bool,), "float | None": (int, float, type(None)),
    "dict[str, object]": (dict,)}


def _record(kind: type[Record], values: object) -> Record:
    """`kind` from foreign values; `ValueError` names a field that has another type, or a number that counts nothing.

    Not pydantic: it refuses names of files that are not UTF-8.
    """
    if not isinstance(values, dict):
        raise ValueError("it holds no names with values")
    fields_by_name = {kind_field.name: kind_field for kind_field in fields(kind)}
    unknown = [name for name in values if name not in fields_by_name]
    if unknown:
        raise ValueError(f"it has the unknown name {unknown[0]!r:.40}")
    for name, item in fields_by_name.items():
        if name not in values and item.default is MISSING:
            raise ValueError(f"it lacks {name}")
        value = values.get(name, item.default)
        fits = isinstance(value, _TYPES[str(item.type)]) and isinstance(value, bool) == (item.type == "bool")
        if not fits or (isinstance(value, int | float) and not 0 <= value < _MOST):
            raise ValueError(f"{name} is {value!r:.40}")
    return kind(**values)


def damaged_segments(workspace: Workspace) -> dict[str, str]:
    """As `artefacts.damaged`, of segments: their card, their clips and the table of those with a text."""
    def read(name: str) -> None:
        loaded = Segments.load(workspace.segments / name)
        for path in (PIECES, *((TABLE,) if loaded.card.texts else ())):
            fault = _table_fault(loaded.folder / path)
            if fault:
                raise UserError(fault, _AGAIN)

    return artefacts.find_damaged(workspace.list_segments(), read)


@foreign.cached_by_file(256)
def _table_fault(path: Path) -> str:
    """Why the clips in `path` cannot be read, else empty; it is read once for each of its states."""
    try:
        read_clips(path)
    except UserError as error:
        return error.message
    return ""


def find_segments(workspace: Workspace, source: str) -> Path:
    """The folder of the source `segments:NAME`; `UserError` where it has no texts."""
    folder = workspace.segment_folder(source.removeprefix(PREFIX))
    if not (folder / TABLE).is_file():
        raise UserError(f"The segments {folder.name!r} have no texts yet.",
                        f"Transcribe them first: python -m scripts transcribe --segments {folder.name}.")
    return folder


def read_clips(path: Path) -> tuple[SegmentClip, ...]:
    """The clips of a table that `write_clips` wrote."""
    try:
        # texts may hold what Python takes for other line ends
        lines = foreign.read_bytes(path, 1 << 30).decode("utf-8").split("\n")
        return tuple(_clip_of(line) for line in lines if line)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path} could not be read: {foreign.reason_of(error)}.", _AGAIN) from error


def _clip_of(line: str) -> SegmentClip:
    """The clip of a line, whose columns may have the names that importers know."""
    return _record(SegmentClip, {_FIELDS.get(name, name): value for name, value in foreign.loads(line).items()})


def _line_of(clip: SegmentClip) -> str:
    columns = {_COLUMNS.get(name, name): value for name, value in asdict(clip).items()}
    return json.dumps(columns, ensure_ascii=False) + "\n"


def write_clips(path: Path, pieces: Iterable[SegmentClip]) -> None:
    """A line a clip, under the column names that importers know; a file that is there stays until this one is whole."""
    lines = map(_line_of, pieces)
    path.parent.mkdir(parents=True, exist_ok=True)
    # surrogates, from file names that are not UTF-8, are escaped
    write_text(path, foreign.LONE_SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", "".join(lines)))


def write_card(folder: Path, card: SegmentsCard) -> None:
    write_text(folder / CARD, yaml.safe_dump(asdict(card), allow_unicode=True, sort_keys=False))
