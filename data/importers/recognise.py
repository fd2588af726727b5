"""The format of a file or folder, by its content; names help.

If several formats fit, the first of `forms_of` is used: one that names its recordings comes before one that matches
file names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from config.errors import UserError
from data.importers import corpora, sidecars, tables, text_files
from data.importers.rows import COLUMNS, SPLIT_NAMES, ParsedItem, ParsedUtterance, RecordingLookup, is_audio

KNOWN_FORMS = ("a table (CSV, TSV, JSON, JSONL) of audio and text; LJSpeech, Common Voice, LibriSpeech or Kaldi; "
               "recordings with a text, subtitles (SRT, VTT), lyrics (LRC) or Audacity labels of the same name beside "
               "each")
TABLE_NAMES = ("manifest.jsonl", "metadata.jsonl", "metadata.csv", "metadata.tsv", "metadata.txt", "metadata.json")
_TABLE_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".psv", ".list", ".txt")
LONG = "Long recordings on the Data tab, or python -m scripts.segment and scripts.transcribe"
_SURE_TABLES = (".csv", ".tsv", ".psv", ".jsonl", ".ndjson", ".json")  # the likelier ones first
_MAX_CANDIDATES = 60  # files that are opened to find a table

Reader = Callable[[], Iterator[ParsedItem]]


@dataclass(frozen=True)
class SourceForm:
    """A format that fits: its title, its files, why it is preferred, and its reader."""

    title: str
    what: str
    why: str
    read: Reader


def recognise(source: Path, language: str) -> tuple[Path, list[SourceForm]]:
    """The folder of the recordings, and the formats that fit, the best first. `UserError` for none."""
    if source.is_dir():
        folder = _only_folder(source)
        found = list(forms_of(folder, language))
        if not found:
            raise _nothing(folder)
        return folder, found
    if not source.is_file():
        raise UserError(f"There is no dataset at {source}.", f"Lisan knows {KNOWN_FORMS}.")
    return source.parent, [_of_file(source, language)]


def _only_folder(folder: Path) -> Path:
    """The innermost folder where archives nest single folders."""
    for _ in range(4):
        inside = [path for path in folder.iterdir() if not path.name.startswith((".", "__MACOSX"))][:2]
        if len(inside) != 1 or not inside[0].is_dir() or inside[0].is_symlink():
            return folder
        folder = inside[0]
    return folder


def forms_of(folder: Path, language: str) -> Iterator[SourceForm]:
    """Every format that fits the folder, in the order of preference."""
    if corpora.is_kaldi(folder):
        yield SourceForm("Kaldi", "wav.scp and text", "it names recordings, segments and speakers",
                         lambda: corpora.read_kaldi(folder))
    if transcripts := corpora.librispeech_transcripts(folder):
        yield SourceForm("LibriSpeech", f"{len(transcripts)} transcripts {corpora.TRANSCRIPT_SUFFIX}",
                         "it names recordings and readers",
                         lambda: corpora.read_librispeech(folder, transcripts))
    if splits := corpora.common_voice_tables(folder):
        names = " and ".join(path.name for path in splits)
        yield SourceForm("Common Voice", names, f"{names} is what Common Voice says of its clips",
                         lambda: corpora.read_common_voice(splits))
    else:
        yield from _tables_in(folder)
    if (kind := _companion(folder)) is not None:
        speakers = sidecars.speaker_folders(folder)
        voices_of = f", whose {len(speakers)} folders are taken for speakers" if speakers else ""
        yield SourceForm(kind.title, folder.name + voices_of, "texts stand beside recordings of the same name",
                         lambda: sidecars.read_sidecars(folder, language, speakers))


def _tables_in(folder: Path) -> Iterator[SourceForm]:
    """Tables at the top of `folder`; those named after splits, or in folders named so, are one source."""
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    files = [path for path in inside if path.suffix.lower() in _TABLE_SUFFIXES and path.is_file()]
    stems = {path.stem for path in inside if is_audio(path.name)}
    lookup = RecordingLookup(folder)
    splits: list[tuple[Path, SourceForm]] = []
    for path in inside:
        if path.is_dir() and path.name.lower() in SPLIT_NAMES:
            name = next((name for name in TABLE_NAMES if (path / name).is_file()), None)
            form = _table(path / name) if name else None
            if form is not None:
                splits.append((path, form))
    if len(splits) > 1:
        yield _joined([(path.name.lower(), _below(path.name, form)) for path, form in splits])
    yield from (_below(path.name, form) for path, form in splits if len(splits) == 1)  # one is no split
    known = [folder / name for name in TABLE_NAMES if (folder / name).is_file()]
    yield from (_required(path) for path in known)
    others = [path for path in files if path not in known and path.stem not in stems][:_MAX_CANDIDATES]
    fitting = [(path, form) for path in others if (form := _table(path)) is not None and _names_one(form, lookup)]
    named = [(path.stem.lower(), form) for path, form in fitting if path.stem.lower() in SPLIT_NAMES]
    if len(named) > 1:
        yield _joined(named)
    yield from (form for path, form in fitting if len(named) == 1 or path.stem.lower() not in SPLIT_NAMES)


def _joined(parts: list[tuple[str, SourceForm]]) -> SourceForm:
    """Tables of splits as one source."""
    def read() -> Iterator[ParsedItem]:
        for split, form in parts:
            for item in form.read():
                yield replace(item, split=item.split or split) if isinstance(item, ParsedUtterance) else item

    return SourceForm(parts[0][1].title, ", ".join(form.what for _, form in parts), "tables are there for its splits",
                      read)


def _below(place: str, form: SourceForm) -> SourceForm:
    """A format whose recordings are named relative to the folder `place`."""
    def read() -> Iterator[ParsedItem]:
        for item in form.read():
            where = f"{place}/{item.where}"
            yield (replace(item, where=where, audio=f"{place}/{item.audio or item.id}")
                   if isinstance(item, ParsedUtterance) else replace(item, where=where))

    return replace(form, what=f"{place}/{form.what}", read=read)


def _names_one(form: SourceForm, lookup: RecordingLookup) -> bool:
    """Whether one of the first entries names an existing recording."""
    return any(isinstance(item, ParsedUtterance) and lookup.has(item.audio or item.id) for item in islice(form.read(),
                                                                                                          20))


def _table(path: Path) -> SourceForm | None:
    """The table at `path`; None for another file."""
    start = text_files.head(path)
    why = f"{path.name} names its recordings itself"
    if header := tables.header_of(start):
        name = {"\t": "TSV", ",": "CSV", ";": "CSV with semicolons", "|": "LJSpeech with a header"}[header[0]]
        return SourceForm(name, path.name, why, lambda: tables.read_table(path))
    if tables.looks_like_json(start) and path.suffix.lower() in (".json", ".jsonl", ".ndjson"):
        if tables.is_json_lines(start) or (path.suffix.lower() != ".json" and not start.lstrip().startswith("[")):
            return SourceForm("JSON lines", path.name, why, lambda: tables.read_json_lines(path))
        return SourceForm("JSON", path.name, why, lambda: tables.read_json(path))
    if tables.ljspeech_delimiter(start) and sidecars.kind_of(path) is sidecars.PLAIN:
        return SourceForm("LJSpeech", path.name, why, lambda: tables.read_ljspeech(path))
    if (delimiter := tables.pair_delimiter(start,
                                           RecordingLookup(path.parent).has)) and not sidecars.kind_of(path).timed:
        return SourceForm("CSV without a header", path.name, why, lambda: tables.read_pairs(path, delimiter))
    return None


def _required(path: Path) -> SourceForm:
    """The table at `path`; `UserError` for another file."""
    form = _table(path)
    if form is not None:
        return form
    first = next((line for _, line in text_files.lines(path) if line.strip()), None)
    if first is None:
        raise UserError(f"{path} has no rows.", "Write one recording a line: its audio file and its text.")
    raise UserError(
        f"{path}, line 1 names no column for audio and text: {first.rstrip()[:80]!r}.",
        f"Write a header with {COLUMNS['audio'][0]} and {COLUMNS['text'][0]}, or use lines of the form id|text. "
        f"Lisan knows {KNOWN_FORMS}.",
    )


def _companion(folder: Path) -> sidecars.SidecarKind | None:
    """The format of the sidecar of the first recording that has one; None where none has."""
    for place, names in sidecars.walk_folders(folder):
        recordings = [name for name in names if is_audio(name)]
        texts = [name for name in names if name.lower().endswith(sidecars.SUFFIXES)]
        if not recordings or not texts:
            continue
        by_stem = sidecars.by_stems(texts)
        for name in recordings:
            if mine := sidecars.matching_sidecars(name, by_stem, recordings, texts, ""):
                return sidecars.kind_of(place / mine[0])
    return None


def _of_file(path: Path, language: str) -> SourceForm:
    """A single file: a table, or one half of a recording and its text."""
    if is_audio(path.name) or path.suffix.lower() in sidecars.TIMED_SUFFIXES or (
            path.suffix.lower() == ".txt" and sidecars.kind_of(path).timed):
        return _pair(path, language)
    return _required(path)


def _pair(path: Path, language: str) -> SourceForm:
    """The recording and the text of which `path` is one half."""
    names = sorted(entry.name for entry in path.parent.iterdir() if entry.is_file())
    texts = [name for name in names if name.lower().endswith(sidecars.SUFFIXES)]
    recordings = [name for name in names if is_audio(name)]
    if is_audio(path.name):
        mine = sidecars.matching_sidecars(path.name, sidecars.by_stems(texts), recordings, texts, language)
        if not mine:
            raise UserError(
                f"{path.name} is a recording without a text: no {path.stem}.srt, .vtt, .lrc or .txt is beside it.",
                "Put its subtitles, labels or text there under the same name; or let Lisan cut and transcribe it: "
                f"{LONG}.",
            )
        audio, words = path.name, path.parent / mine[0]
    else:
        alone = sidecars.by_stems([path.name])
        beside = [name for name in recordings if sidecars.matching_sidecars(name, alone, recordings, [path.name], "")]
        if not beside:
            raise UserError(
                f"{path.name} has times, but the recording they belong to is not beside it.",
                f"Put the film or recording into the same folder as {path.stem}.mp4, .wav or the like.",
            )
        audio, words = beside[0], path
    kind = sidecars.kind_of(words)
    return SourceForm(kind.title, f"{words.name} with {audio}", "it is what was given",
                      lambda: kind.read(words, audio))


def _nothing(folder: Path) -> UserError:
    recordings = 0
    for _, names in sidecars.walk_folders(folder):
        recordings += sum(is_audio(name) for name in names)
    if recordings and (fault := _unused_table(folder)) is not None:
        return fault
    if recordings:
        return UserError(
            f"{folder} has no text for any of its recordings ({recordings}).",
            "Put a text, subtitles (SRT, VTT) or Audacity labels of the same name beside each, or give a table; or let "
            f"Lisan cut and transcribe them: {LONG}.",
        )
    return UserError(
        f"{folder} is a dataset without audio: there is no recording in it.",
        f"Lisan knows {KNOWN_FORMS}.",
    )


def _unused_table(folder: Path) -> UserError | None:
    """Why the first table in `folder`, by its suffix, cannot be used; None without one."""
    there = [path for suffix in _SURE_TABLES for path in sorted(folder.iterdir())
             if path.suffix.lower() == suffix and path.is_file() and not path.name.startswith(".")]
    if not there:
        return None
    try:
        items = _required(there[0]).read()
        named = next((item.audio or item.id for item in items if isinstance(item, ParsedUtterance)), "")
    except UserError as error:
        return error
    example = f", such as {named[:60]!r}" if named else ""
    return UserError(f"{there[0]} names no recording that is in {folder}{example}.",
                     "Put its recordings into the folder under the names that the table has for them.")
