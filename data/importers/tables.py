"""Tables: delimited text with a header (CSV, TSV, `;`, `|`), LJSpeech lines, pairs without header, JSON lines, JSON.

Columns and keys may have any of the names in `rows.COLUMNS`, in any order. Everything is streamed; only a JSON file
that is one object is read at once.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from pathlib import Path
from statistics import correlation

from rapidfuzz import fuzz

from config import foreign
from config.errors import UserError, join_names
from config.languages import code_of, language_name
from data.importers import text_files
from data.importers.rows import (
    COLUMNS,
    SPLIT_NAMES,
    ParsedItem,
    ParsedUtterance,
    RecordingLookup,
    SkippedRow,
    column_names,
    has_clip_columns,
    is_audio,
    is_clock,
    notation_of,
    span_of,
    split_of_folders,
    standard_values,
    unused_columns,
)
from data.manifest import TRAIN
from data.text_match import text_length

DELIMITERS = ("\t", "|", ",", ";")
_LONGEST_CELL_LINES = 20  # a quote that is still open then is no quote
_PAIR_SAMPLE = 50  # lines
_QUOTED = 0.8  # share of the cells that begin with a quote
_QUOTED_CELL = re.compile(r'"((?:[^"]|"")*)"(?!")')
_MOST_UNUSED = 8  # columns that are named
_CHAT_KEYS = ("messages", "conversations", "audios")
_CHAT_AUDIO = re.compile(r"<audio>(.{1,300}?)</audio>", re.DOTALL)
_LONGEST_OBJECT = 1 << 20  # characters of one recording's entry
_LONGEST_WHOLE = 1 << 26  # characters of a file that is one object, which is read at once
CLIP_COLUMNS = ("file", "text", "language", "duration_s", "cer", "transcript")
"""The first columns of the table of synthesized clips; its cells are those of `safe_cell`."""
_FORMULA = re.compile(r"'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # the last are full-width
_INNER_FORMULA = re.compile(r"""(?<![\s";])([\s";]+)('*[=+\-@\uff1d\uff0b\uff0d\uff20])""")
_BREAK = re.compile(r"[;\t\r\n]")
"""Where a spreadsheet whose separator is not a comma begins another cell within one of ours."""
_SEPARATOR = re.compile(r"[ \t\r\n,]*")
_ALIKE = 60.0  # similarity out of 100, by rapidfuzz; two different sentences of one language have up to 50
_LONGEST_NAME = 40  # characters of a speaker
_LANGUAGE = re.compile(r"([A-Za-z]{2,3})(?:[_-][A-Za-z]{2,4})?|all_[a-z]{2,3}|auto(?:_yue)?")  # GPT-SoVITS's codes
_MOST_LANGUAGES = 40
_NO_NAMES = frozenset((  # values that name an emotion, a style, a gender, an age, a recording or its check
    "amused", "anger", "angry", "calm", "disgust", "disgusted", "drunk", "excited", "fear", "fearful", "happy", "joy",
    "neutral", "sad", "sadness", "sleepy", "surprise", "surprised", "whisper", "whispering", "default", "narration",
    "conversation", "conversational", "read", "spontaneous", "news", "studio", "indoor", "outdoor", "clean", "noisy",
    "other", "good", "bad", "ok", "true", "false", "valid", "invalid", "validated", "m", "f", "male", "female", "man",
    "woman", "masculine", "feminine", "child", "adult", "young", "old", "unknown", "n/a", "none"))
_MEASURE = re.compile(r"-?\d{1,5}(?:[.,]\d+)?")  # such as seconds
_NOTATIONS = ("phonemes (IPA)", "phones (ARPAbet)", "pinyin", "phones")
_NO_TEXT = ("nothing", "splits", "numbers", "measures", *_NOTATIONS)
_FIRST_LINES, _SAMPLE = 200, 4096  # lines of a list without a header
_LONGER = 1.5  # length of texts, relative to names of speakers
# With fewer lines, numbers that grow with the text may still be speakers.
_FEW_LINES, _CORRELATED = 8, 0.6
_NOT_TEXT = frozenset(chain.from_iterable(
    synonyms for meaning, synonyms in COLUMNS.items() if meaning not in ("text", "spelled")))
_LIST_KEYS = ("data", "utterances", "clips", "items", "segments", "samples", "rows")


def header_of(head: str) -> tuple[str, list[str]] | None:
    """The delimiter and the column names of a header line; None for a header without audio and text."""
    first_line = next((line for line in head.splitlines() if line.strip()), "")
    for delimiter in DELIMITERS:
        names = column_names(first_line.split(delimiter))
        if has_clip_columns(names):
            return delimiter, names
    return None


def safe_cell(value: str) -> str:
    """`value` for a table that is opened in a spreadsheet: what would be run as a formula gets an apostrophe before it.

    Also behind a semicolon or tab, where another spreadsheet begins a cell.

    https://owasp.org/www-community/attacks/CSV_Injection. `given_cell` takes it away again.
    """
    value = _INNER_FORMULA.sub(lambda match: f"{match[1]}'{match[2]}" if _BREAK.search(match[1]) else match[0], value)
    return f"'{value}" if _FORMULA.match(value) else value


def given_cell(value: str) -> str:
    """The value from which `safe_cell` made this one."""
    value = value[1:] if value.startswith("'") and _FORMULA.match(value) else value
    return _INNER_FORMULA.sub(lambda match: f"{match[1]}{match[2].removeprefix(chr(39))}" if _BREAK.search(match[1])
                              else match[0], value)


def read_table(path: Path) -> Iterator[ParsedItem]:
    """Every row of the table at `path`, which has a header."""
    start = text_files.head(path)
    header = header_of(start)
    assert header is not None
    delimiter, names = header

    for row in table_rows(path, delimiter, has_quotes(start, delimiter), len(names), header=True):
        if isinstance(row, SkippedRow):
            yield row
            continue
        location, cells = row
        # Cells of Lisan's own tables are escaped against formulas.
        if names[:len(CLIP_COLUMNS)] == list(CLIP_COLUMNS):
            cells = list(map(given_cell, cells))
        values = standard_values(dict(zip(names, cells, strict=True)))
        spelled = values.get("spelled", "").strip() if delimiter == "|" else ""
        item = _utterance(location, {**values, "text": spelled or values.get("text", "")})
        # Lengths of unread texts show whether another column fits the recordings better.
        if isinstance(item, ParsedUtterance):
            item = replace(item, other_lengths={
                name: text_length(cell) for name, cell in zip(names, cells, strict=True)
                if name not in _NOT_TEXT and any(map(str.isalpha, cell))})
        yield item


def table_rows(path: Path, delimiter: str, with_quotes: bool, width: int, *,
               header: bool) -> Iterator[tuple[str, list[str]] | SkippedRow]:
    """The place and the cells of each row after the header; one that has not `width` cells is skipped."""
    for number, cells in table_records(text_files.lines(path), delimiter, with_quotes):
        location = f"{path.name} line {number}"
        if isinstance(cells, str):
            yield SkippedRow(location, cells)
        elif header:
            header = False
        elif len(cells) != width:
            yield SkippedRow(location, wrong_field_count(cells, width, delimiter))
        else:
            yield location, cells


def _utterance(location: str, values: dict[str, str]) -> ParsedItem:
    """An utterance from the values of `rows.standard_values`."""
    try:
        begin_s, end_s = span_of(values)
    except ValueError as error:
        return SkippedRow(location, str(error))
    return ParsedUtterance(location, values.get("audio", "").strip(), values.get("text", ""),
                           values.get("id", "").strip(), values.get("speaker", ""), values.get("split", "").strip(),
                           begin_s, end_s, values.get("language", "").strip())


def wrong_field_count(cells: list[str], width: int, delimiter: str) -> str:
    """Message for a line with another number of cells."""
    name = "tab" if delimiter == "\t" else delimiter
    return f"{len(cells)} fields instead of {width}; is a {name} in the text, or one missing?"


def unused_notes(path: Path) -> list[str]:
    """Notes about the columns of a table with a header, or of JSON lines, that are not read, with examples."""
    start = text_files.head(path)
    examples: dict[str, dict[str, None]] = {}
    header = header_of(start)
    if header:
        delimiter, names = header
        if names[:len(CLIP_COLUMNS)] == list(CLIP_COLUMNS):  # Lisan's own
            return []
        rows = table_rows(path, delimiter, has_quotes(start, delimiter), len(names), header=True)
        unused = unused_columns(names, spelled=delimiter == "|")
        for row in islice(rows, _PAIR_SAMPLE):
            for name, cell in zip(names, row[1], strict=True) if not isinstance(row, SkippedRow) else ():
                examples.setdefault(name, {})[cell.strip()] = None
    else:
        # In JSON lines, each object names its own columns.
        for line in start.splitlines()[:_PAIR_SAMPLE]:
            try:
                record = _loaded(line)
            except ValueError:
                continue
            for name, value in record.items() if isinstance(record, dict) else ():
                examples.setdefault(name, {})["" if value is None else str(value)] = None
        originals = dict(zip(column_names(list(examples)), examples, strict=True))
        unused = [originals[name] for name in unused_columns(list(originals)) if name not in _CHAT_KEYS]

    # Columns without a value are not worth a note.
    notes = []
    for name in unused[:_MOST_UNUSED]:
        values = [repr(value[:30]) for value in examples.get(name, {}) if value]
        if values:
            notes.append(f"column `{name[:40]}` has {join_names(values, 2)} and is not used")
    if len(unused) > _MOST_UNUSED:
        notes.append(f"{len(unused) - _MOST_UNUSED} more columns are not used")
    return notes


def has_quotes(head: str, delimiter: str) -> bool:
    """Whether quotes enclose cells; with tabs and bars if nearly all cells that begin with a quote end with one."""
    if delimiter in ",;":
        return True
    lines = head.split("\n")[:-1] or [head]
    cells = [cell.strip("\r\n") for cell in chain.from_iterable(line.split(delimiter) for line in lines)]
    opened = [cell for cell in cells if cell.startswith('"')]
    closed = sum(len(cell) > 1 and cell.endswith('"') and '"' not in cell[1:-1].replace('""', "") for cell in opened)
    return closed > 0 and closed >= _QUOTED * len(opened)


def table_records(lines: Iterable[tuple[int, str]], delimiter: str,
                  with_quotes: bool) -> Iterator[tuple[int, list[str] | str]]:
    """The number of each record's last line, and its cells or, instead, its fault.

    A quote opens a cell only at its beginning, as Python's csv and pandas have it. A cell may have several lines, but
    none that is a record itself: a quote that is never closed costs its own line alone.
    """
    unread, put_back = iter(lines), list[tuple[int, str]]()
    width = 0  # cells of the first record

    def next_line() -> tuple[int, str] | None:
        return put_back.pop() if put_back else next(unread, None)

    while True:
        first_line = next_line()
        if first_line is None:
            return
        number, line = first_line
        if not line.strip():
            continue
        cells = line.rstrip("\r\n").split(delimiter)
        if with_quotes and '"' in line:
            # Lines are added until the quote is closed, or until a line is a record itself.
            record = [first_line]
            parsed = _quoted_cells(line, delimiter)
            while parsed is None and len(record) <= _LONGEST_CELL_LINES:
                following = next_line()
                if following is None:
                    break
                record.append(following)
                if _is_record(following[1], delimiter, width):
                    break
                parsed = _quoted_cells("".join(part for _, part in record), delimiter)
            if parsed is None:
                put_back += reversed(record[1:])
                yield number, "a quote is opened that is never closed"
                continue
            number, cells = record[-1][0], parsed

        # Records of empty cells are left out.
        width = width or len(cells)
        if any(cell.strip() for cell in cells):
            yield number, cells


def _is_record(line: str, delimiter: str, width: int) -> bool:
    """Whether a line within a quoted cell is a record itself: it has all cells, and one names a recording."""
    cells = line.rstrip("\r\n").split(delimiter)
    return len(cells) >= width > 1 and any(is_audio(cell.strip(' "')) for cell in cells)


def _quoted_cells(record: str, delimiter: str) -> list[str] | None:
    """The cells of a record; None if a quoted cell is still open at its end.

    Where a cell goes on behind its closing quote, as in `"Go" she said`, its quotes are part of the text.
    """
    record = record.rstrip("\r\n")
    cells, offset = list[str](), 0
    while True:
        match = _QUOTED_CELL.match(record, offset) if record.startswith('"', offset) else None
        # A quoted cell ends at the delimiter or at the end of the record.
        if match is not None and (match.end() == len(record) or record.startswith(delimiter, match.end())):
            cells.append(match[1].replace('""', '"'))
            offset = match.end()
        elif match is None and record.startswith('"', offset):
            return None
        else:
            end = record.find(delimiter, offset)
            end = len(record) if end < 0 else end
            cells.append(record[offset:end])
            offset = end

        # A delimiter at the end opens an empty cell.
        if offset >= len(record):
            return cells
        offset += len(delimiter)
        if offset == len(record):
            return [*cells, ""]


def ljspeech_delimiter(head: str) -> str | None:
    """The bar or tab between the fields; None when the first line has neither."""
    first_line = next((line for line in head.splitlines() if line.strip()), "")
    return "|" if "|" in first_line else "\t" if "\t" in first_line else None


@dataclass(frozen=True)
class ListColumns:
    """What the columns of a list without a header hold: the first one names the recording."""

    title: str
    width: int
    text: int
    speaker: int | None = None
    spelled: int | None = None  # the text as it is spoken
    split: int | None = None
    notes: tuple[str, ...] = ()  # conclusions from the values
    header: bool = False  # the first line is one, in words that are not known
    language: int | None = None

    def utterance(self, location: str, cells: list[str]) -> ParsedUtterance:
        """A line of `width` cells."""
        spelled_text = cells[self.spelled].strip() if self.spelled else ""
        speaker = cells[self.speaker].strip() if self.speaker else ""
        return ParsedUtterance(location, cells[0].strip(), spelled_text or cells[self.text].strip(),
                               speaker=f"speaker-{speaker}" if speaker.isdecimal() else speaker,
                               split=cells[self.split].strip() if self.split else "",
                               language=cells[self.language].strip() if self.language else "")


def list_columns(path: Path, beside: Sequence[Path] = ()) -> ListColumns:
    """The columns of the list at `path`, by the values of its lines; `UserError` if they cannot be told.

    `id|text` and `id|text|normalised text` (LJ Speech; the normalised text is preferred, since numbers are spelled out
    there), `id|speaker|text` (Piper), `path|speaker number|text` (VITS), `path|text|speaker` (StyleTTS2, Mellotron),
    `path|text|normalised text|seconds` (CSS10), `path|text|expanded|decomposed|seconds|translation` (KSS),
    `path|speaker|language|text` (GPT-SoVITS, Bert-VITS2; the latter with phones, tones and their counts behind it once
    it was preprocessed), `id|speaker|{phones}|text` (FastSpeech 2). A tab may replace the bar. Columns of seconds,
    genders, emotions, splits or one language may stand anywhere. A column is a speaker only where such a layout has
    one, or where the recordings' names have its values. `beside`: lists of the other splits, whose lines count too.
    """
    delimiter = ljspeech_delimiter(text_files.head(path))
    assert delimiter is not None
    sample = _sample(path, delimiter)
    is_there = RecordingLookup(path.parent).has

    header = len(sample) > 1 and _is_unknown_header(sample, is_there)
    sample = sample[1:] if header else sample
    for other in beside:
        sample += _sample(other, delimiter)

    # A few lines may have a bar in their text, so the usual number of cells counts.
    width = Counter(len(cells) for cells in sample).most_common(1)[0][0]
    rows = [list(map(str.strip, cells)) for cells in sample if len(cells) == width]
    if width == 1:
        raise UserError(f"{path} has {delimiter!r} in its first line, but not in most others.",
                        "Write one recording a line: its name and its text, with a bar or a tab between.")
    try:
        columns = _columns_of(list(zip(*rows, strict=True)), width)
    except _Unclear as unclear:
        text = max(range(1, width), key=lambda column: sum(len(row[column]) for row in rows))
        other_columns = [column for column in range(1, width) if column != text]

        def header_with(speaker: int | None) -> str:
            names = {speaker: "speaker", 0: "audio", text: "text"}
            return (" (tab) " if delimiter == "\t" else delimiter).join(
                names.get(column, f"other{column + 1}") for column in range(width))

        # Suggest headers that would make the list clear.
        means = [header_with(None)]
        if other_columns:
            means = [f"{header_with(other_columns[0])} where column {other_columns[0] + 1} is the speaker",
                     f"{header_with(None)} where it is none"]
        listing = ", ".join(f"column {number} {cell[:40]!r}" for number, cell in enumerate(rows[0], 1))
        raise UserError(
            f"{path} has {width} fields a line, and {unclear}: {listing}.",
            f"{unclear.advice or 'Put'} a header above them{', in the place of the first line' if header else ''}: "
            f"{', or '.join(filter(None, means))}.") from None
    return replace(columns, header=header)


class _Unclear(Exception):
    """Why the columns cannot be told, as half a sentence."""

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.advice = advice


def _sample(path: Path, delimiter: str) -> list[list[str]]:
    """The cells of the first lines and of later lines at even distances, since lists are sorted by speakers."""
    records: list[list[str]] = []
    step = 1
    lines = (line for _, line in text_files.lines(path) if line.strip())
    for number, line in enumerate(lines):
        if number < _FIRST_LINES or number % step == 0:
            records.append(line.rstrip("\r\n").split(delimiter))
            if len(records) == _SAMPLE:
                step *= 2
                records = records[:_FIRST_LINES] + records[_FIRST_LINES::2]
    return records


def _is_unknown_header(sample: list[list[str]], is_there: Callable[[str], bool]) -> bool:
    """Whether the first line names columns in words that are not known: it names no recording, and the next ones do."""
    first_cells, following = sample[0], sample[1:6]
    return (all(len(cell) <= _LONGEST_NAME and len(cell.split()) <= 2 and not any(map(str.isdigit, cell))
                for cell in first_cells)
            and not is_audio(first_cells[0].strip()) and not is_there(first_cells[0])
            and any(is_there(cells[0]) for cells in following))


def _columns_of(columns: list[tuple[str, ...]], width: int) -> ListColumns:
    """Raises `_Unclear`."""

    # Layouts of well-known projects are recognised by their width and the kinds of their columns.
    kinds = [_kind_of(column) for column in columns]
    if width in (4, 7) and kinds[2] == "languages" and _are_short(columns[1]) and kinds[3] not in _NO_TEXT:
        return ListColumns("path|speaker|language|text", width, 3, 1, language=2,
                           notes=(_speakers_note(1, columns, ""),))
    if width == 4 and all(cell.startswith("{") and cell.endswith("}") for cell in columns[2]):
        return ListColumns("id|speaker|{phones}|text", width, 3, 1, notes=(_speakers_note(1, columns, ""),))
    if width == 6 and kinds[4] == "measures" and _are_alike(*columns[1:3]):
        return ListColumns("path|text|normalised text|seconds", width, 1, spelled=2)

    # Each column is a candidate for text, speaker or split, or is not used.
    notes: list[str] = []
    split: int | None = None
    texts, labels = list[int](), list[int]()  # candidates for the text and for the speaker
    for column in range(1, width):
        kind, values = kinds[column], sorted(set(filter(None, columns[column])))
        if kind == "text":
            texts.append(column)
        elif kind == "splits" and split is None and len(values) > 1 and TRAIN in (
                SPLIT_NAMES[_split_of(value)] for value in values):
            split = column
            notes.append(f"column {column + 1} is taken for the split ({join_names(values, 3)})")
        elif kind in ("names", "numbers") and (len(values) > 1 or (column, width) == (1, 3) and kind == "names"):
            labels.append(column)
        elif kind == "languages" and len(values) > 1 and width > 2:
            raise _Unclear(f"column {column + 1} looks like codes of several languages ({join_names(values, 4)})")
        elif width > 2 and kind != "nothing":
            content = kind
            if len(values) == 1 and kind not in ("measures", *_NOTATIONS):
                content = f"{values[0][:20]!r} in every line"
            notes.append(f"column {column + 1} has {content}, and is not used")

    # Without a column of long texts, short ones are texts if nothing speaks for another meaning.
    spelled = None
    if (not texts and len(labels) == 2 and kinds[labels[0]] == "names"
            and _are_alike(*(columns[label] for label in labels))):
        texts, labels = labels, []
    if not texts and len(labels) == 1 and kinds[labels[0]] == "names" and split is None:
        texts, labels = labels, []
    if len(texts) == 2 and _are_alike(*(columns[text] for text in texts)):
        texts, spelled = texts[:1], texts[1]
    # In two columns, words such as "no" and "happy" are texts.
    if width == 2 and kinds[1] in ("names", "languages", "labels"):
        texts, labels = [1], []

    # A guess could train on wrong texts, so what remains unclear is refused.
    if not texts:
        notation = next((column for column in range(1, width) if kinds[column] in _NOTATIONS), None)
        if notation is not None:
            raise _Unclear(f"column {notation + 1} holds {kinds[notation]} instead of text, as lists of StyleTTS2 and "
                           "cleaned ones do", "Give the texts as they are written; to train on these instead, put")
        raise _Unclear("none of them looks like a text")
    if len(texts) > 1:
        raise _Unclear(f"columns {texts[0] + 1} and {texts[1] + 1} both look like texts, but not like one sentence "
                       "as it is written and as it is spoken, so it cannot be told which is spoken")

    # One column of labels is the speaker, if there is evidence for it.
    speaker = labels[0] if labels else None
    if len(labels) > 1:
        raise _Unclear(f"it cannot be told which of the columns {labels[0] + 1} and {labels[1] + 1} is the speaker")
    if speaker is not None:
        evidence = _speaker_evidence(columns, kinds, speaker, texts[0])
        notes.insert(0, _speakers_note(speaker, columns, evidence))

    title = ("path|text|speaker" if speaker and speaker > texts[0] else "path|speaker|text" if speaker else
             "path|text|normalised text|seconds" if width == 4 and spelled and "measures" in kinds else "LJSpeech")
    return ListColumns(title, width, texts[0], speaker, spelled, split, tuple(notes))


def _split_of(value: str) -> str:
    return split_of_folders([value])


def _kind_of(values: tuple[str, ...]) -> str:
    """The kind of a column, by its values."""
    distinct = {value for value in values if value}
    if not distinct:
        return "nothing"

    # Narrow kinds come first: names of splits and times would pass as text.
    if all(map(_split_of, distinct)):
        return "splits"
    if all(value.casefold() in _NO_NAMES for value in distinct):
        return "labels"
    if all(map(str.isdecimal, distinct)):
        return "numbers"
    if all(_MEASURE.fullmatch(value) or is_clock(value) for value in distinct):
        return "measures"
    if len(distinct) <= _MOST_LANGUAGES and all(map(_is_language, distinct)):
        return "languages"
    notation = notation_of(values)
    if notation:
        return notation
    return "names" if _are_labels(values) else "text"


def _is_language(value: str) -> bool:
    """Whether it is the code of a language, as `ig`, `en-US` or GPT-SoVITS's `all_zh`, or its name in English."""
    match = _LANGUAGE.fullmatch(value)
    if match is None:
        return bool(code_of(value))
    code = (match[1] or "").lower()
    return not code or code == "jp" or language_name(code) != code


def _are_short(values: tuple[str, ...]) -> bool:
    return all(len(value) <= _LONGEST_NAME and len(value.split()) <= 3 for value in values)


def _speaker_evidence(columns: list[tuple[str, ...]], kinds: list[str], column: int, text: int) -> str:
    """Why `column` is the speaker; raises `_Unclear` if nothing says so."""
    names, values = columns[0], columns[column]
    examples = join_names([repr(value[:20]) for value in dict.fromkeys(values)], 3)

    # Numbers may count lines or measure durations.
    if kinds[column] == "numbers":
        numbers = [int(value or 0) for value in values]
        # Speakers recur; numbers of lines and durations do not.
        if 3 * len(set(numbers)) > 2 * len(numbers):
            raise _Unclear(f"column {column + 1} has numbers ({examples}) that seldom come back, so they number no "
                           "speakers")
        steps = [number - previous for previous, number in pairwise(numbers[:_FIRST_LINES])]
        if len(set(numbers)) > 2 and 2 * steps.count(1) > len(steps):
            raise _Unclear(f"column {column + 1} counts up from line to line ({examples}), so it numbers no speakers")
        lengths = [len(value) for value in columns[text]]
        if len(numbers) >= _FEW_LINES and len(set(lengths)) > 1 and correlation(numbers, lengths) > _CORRELATED:
            raise _Unclear(f"column {column + 1} ({examples}) grows with the length of the text as durations do, so it "
                           "numbers no speakers")

    # The names of the recordings, or a known layout, are the evidence.
    if _in_names(names, values):
        return "which the recordings' names have too"
    if kinds[column] == "numbers":
        listed = min(numbers) == 0 and 2 * len(set(numbers)) > max(numbers) and all(map(is_audio, names))
        if listed and column in (1, 2) and text in (1, 2):
            return "numbered from 0 as in the lists of VITS and StyleTTS2"
    elif sum(map(len, columns[text])) > _LONGER * sum(map(len, values)):  # else they could be names in another script
        if column == 1 and text == 2:
            return "as in the lists of Piper"
        if column == 2 and text == 1 and all(map(is_audio, names)):
            return "as in the lists of StyleTTS2 and TensorFlowTTS"
    raise _Unclear(f"column {column + 1} ({examples}) may be a speaker or something else")


def _in_names(names: tuple[str, ...], values: tuple[str, ...]) -> bool:
    """Whether the recordings' names, or the folders they are in, have the values as parts, nearly all of them."""
    count = sum(re.search(rf"(?<![^\W_]){re.escape(value.casefold())}(?![^\W_])", name.casefold()) is not None
                for name, value in zip(names, values, strict=True) if value)
    return len(set(values)) > 1 and count >= 0.9 * len(values)


def _are_alike(texts: tuple[str, ...], other_texts: tuple[str, ...]) -> bool:
    """Whether the texts of two columns are mostly the same, as a text and its numbers spelled out; empty ones too."""
    pairs = [(text, other) for text, other in zip(texts, other_texts, strict=True) if other]
    alike = sum(fuzz.ratio(text.casefold(), other.casefold()) >= _ALIKE for text, other in pairs)
    return 2 * alike > len(pairs) or not pairs


def _are_labels(values: tuple[str, ...]) -> bool:
    """Whether a column holds names that come back on several lines rather than texts."""
    return 3 * len(set(values)) <= 2 * len(values) and _are_short(values)


def _speakers_note(column: int, columns: list[tuple[str, ...]], evidence: str) -> str:
    names = [repr(name[:40]) for name in dict.fromkeys(columns[column]) if name]
    return f"column {column + 1} is taken for the speaker ({join_names(names, 3)}){', ' if evidence else ''}{evidence}"


def read_ljspeech(path: Path, columns: ListColumns | None = None) -> Iterator[ParsedItem]:
    """Lines of a list without a header; `list_columns` tells what its columns hold."""
    delimiter = ljspeech_delimiter(text_files.head(path))
    assert delimiter is not None
    columns = columns or list_columns(path)
    has_header = columns.header
    for number, line in text_files.lines(path):
        if not line.strip():
            continue
        location, cells = f"{path.name} line {number}", line.rstrip("\r\n").split(delimiter)
        if has_header:
            has_header = False
            yield SkippedRow(location, f"is taken for a header, whose names are not known: {line.strip()[:60]!r}")
        elif len(cells) != columns.width:
            yield SkippedRow(location, wrong_field_count(cells, columns.width, delimiter))
        else:
            yield columns.utterance(location, cells)


def pair_delimiter(head: str, is_there: Callable[[str], bool]) -> str | None:
    """The delimiter of two columns without a header; None unless the first line names an existing recording."""
    lines = list(enumerate(islice(head.splitlines(keepends=True), _PAIR_SAMPLE)))
    for delimiter in (",", ";"):
        sample = [cells for _, cells in table_records(lines, delimiter, True) if not isinstance(cells, str)]
        widths = Counter(map(len, sample))
        if sample and len(sample[0]) == widths.most_common(1)[0][0] == 2 and is_there(sample[0][0].strip()):
            return delimiter
    return None


def read_pairs(path: Path, delimiter: str) -> Iterator[ParsedItem]:
    """Every line of a table of two columns without a header: a recording and its text."""
    for row in table_rows(path, delimiter, True, 2, header=False):
        yield row if isinstance(row, SkippedRow) else ParsedUtterance(row[0], row[1][0].strip(), row[1][1].strip())


def is_json_lines(head: str) -> bool:
    """Whether each line is a JSON object."""
    first_lines = [line.strip() for line in head.split("\n") if line.strip()][:2]
    return len(first_lines) == 2 and all(line.startswith("{") for line in first_lines) and first_lines[0].endswith("}")


def read_json_lines(path: Path) -> Iterator[ParsedItem]:
    """JSON lines: one object with keys of `COLUMNS` a line."""
    for number, line in text_files.lines(path):
        location = f"{path.name} line {number}"
        if not line.strip():
            continue
        try:
            record = _loaded(line)
        except ValueError as error:
            yield SkippedRow(location, f"is not JSON: {error}")
            continue
        yield _entry(record, location)


def read_json(path: Path) -> Iterator[ParsedItem]:
    """A JSON file: a list of objects, or an object of objects or texts by the name of their recording."""
    if text_files.head(path).lstrip().startswith("["):
        yield from _read_list(path)
        return
    try:
        content = _loaded(text_files.read(path, _LONGEST_WHOLE))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}.", "Write a list of objects, or one object a line.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is neither a list nor an object: {str(content)[:40]!r}.",
                        "Write a list of objects, or one object a line.")

    # The rows may be under a key, or the object may name its recordings.
    inner = next((content[name] for name in _LIST_KEYS if isinstance(content.get(name), list)), content)
    if has_clip_columns(content):  # it is one row itself
        inner = [content]
    for number, item in enumerate(inner.items() if isinstance(inner, dict) else inner, start=1):
        location = f"{path.name} entry {number}"
        if not isinstance(item, tuple):
            yield _entry(item, location)
        elif isinstance(item[1], dict):
            yield _entry({"id": item[0], **item[1]}, location)
        else:
            yield _entry({"audio": item[0], "text": item[1]}, location)


def _entry(record: object, location: str) -> ParsedItem:
    if not isinstance(record, dict):
        return SkippedRow(location, f"is not a JSON object: {str(record)[:40]!r}")
    chat = _chat_turns(record)
    if chat:
        record = {**record, **chat}

    keys = column_names([str(name) for name in record])
    record = dict(zip(keys, record.values(), strict=True))

    letters = record.get("text")
    # Some tools write a text as the list of its letters.
    if isinstance(letters, list):
        if not letters or not all(isinstance(letter, str) and len(letter) <= 2 for letter in letters):
            return SkippedRow(location, f"its text is a list, and not of letters: {str(letters)[:40]}")
        record["text"] = "".join(letters)

    values = standard_values(record)
    # Emilia's pipeline writes `dnsmos`; its times are those in the recording that the clip was cut from.
    if "dnsmos" in record:
        values = {meaning: value for meaning, value in values.items() if meaning not in ("begin", "end", "duration")}
    return _utterance(location, values)


def _chat_turns(record: Mapping[str, object]) -> dict[str, object]:
    """Text and audio of a conversation of one text and the recording that speaks it; empty for other records."""
    turns = record.get("messages") or record.get("conversations")
    if not isinstance(turns, list):
        return {}
    audio, texts = list[str](), list[str]()
    for turn in turns:
        role = str(turn.get("role") or turn.get("from")) if isinstance(turn, dict) else ""
        content = (turn.get("content") or turn.get("value")) if isinstance(turn, dict) else None
        # The content is a text, or a list of texts and recordings.
        for part in content if isinstance(content, list) else [{"text": content}]:
            part = part if isinstance(part, dict) else {"text": part}
            words = str(part.get("text") or "")
            # A recording of another role is a voice to speak in, not the speech.
            if role in ("assistant", "gpt"):
                audio += [str(part[key]) for key in ("audio", "path") if isinstance(part.get(key), str)]
                audio += _CHAT_AUDIO.findall(words)
            utterance = " ".join(_CHAT_AUDIO.sub(" ", words).replace("<audio>", " ").split())
            if role != "system" and utterance:
                texts.append(utterance)

    listed = record.get("audios")
    if not audio and isinstance(listed, list) and len(listed) == 1:
        audio = [str(listed[0])]
    # Which of several recordings speaks the text is unclear, so only one is accepted.
    return {"audio": audio[0], "text": texts[-1]} if len(audio) == 1 and texts else {}


def _loaded(source: str) -> object:
    try:
        return foreign.loads(source)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _read_list(path: Path) -> Iterator[ParsedItem]:
    """The elements of a list, read piece by piece; what follows an element that cannot be parsed is skipped."""
    decoder, pieces = json.JSONDecoder(), text_files.pieces(path)
    buffer, offset, number = next(pieces, "").lstrip()[1:], 0, 1
    while True:
        offset = _SEPARATOR.match(buffer, offset).end()  # type: ignore[union-attr]  # it matches nothing too
        if buffer.startswith("]", offset):
            return
        try:
            value, end = decoder.raw_decode(buffer, offset)
        except (ValueError, RecursionError) as error:
            # An element may continue in the next piece.
            next_piece = next(pieces, None) if len(buffer) - offset < _LONGEST_OBJECT else None
            if next_piece is None:
                reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
                message = f"is not JSON: {reason}; what follows could not be read"
                yield SkippedRow(f"{path.name} entry {number}", message)
                return
            buffer, offset = buffer[offset:] + next_piece, 0
            continue
        yield _entry(value, f"{path.name} entry {number}")
        offset, number = end, number + 1
