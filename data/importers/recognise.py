"""The format of a file or folder, by its content; names help.

If several formats fit, the first of `forms_of` is used: one that names its recordings comes before one that matches
file names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from pathlib import Path

from config.errors import ErrorKind, UserError
from data.importers import corpora, public_corpora, sidecars, tables, text_files
from data.importers.rows import COLUMNS, SPLIT_NAMES, ParsedItem, ParsedUtterance, RecordingLookup, is_audio

WANTED = ("Give a folder with recordings and a table of audio and text (CSV or JSON lines), or with a text or "
          "subtitles of the same name beside each recording.")
TABLE_NAMES = ("manifest.jsonl", "metadata.jsonl", "metadata.csv", "metadata.tsv", "metadata.txt", "metadata.json")
_TABLE_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".psv", ".list", ".txt")
LONG = "Long recordings on the Data tab, or python -m scripts segment and python -m scripts transcribe"
_SURE_TABLES = (".csv", ".tsv", ".psv", ".jsonl", ".ndjson")  # the likelier ones first
_COMPARED = 1000  # entries of two tables
_MAX_CANDIDATES = 60  # files that are opened to find a table

_TO_SRT = "Convert it to SRT, with ffmpeg for example, and put that beside its recording"
_TO_TABLE = "Write a table of audio and text from it (CSV or JSON lines)"
_TO_FILES = "Write its recordings as sound files, and a table of audio and text"
_UNREAD = {  # formats that are told by the suffix: what it is, and what helps
    ".ass": ("subtitles of SubStation Alpha", _TO_SRT), ".ssa": ("subtitles of SubStation Alpha", _TO_SRT),
    ".sbv": ("YouTube's SBV subtitles", _TO_SRT), ".ttml": ("TTML subtitles", _TO_SRT),
    ".dfxp": ("TTML subtitles", _TO_SRT), ".stl": ("EBU subtitles", _TO_SRT),
    ".trs": ("a transcript of Transcriber", "Export it from ELAN (.eaf) or as a TextGrid"),
    ".exb": ("a transcript of EXMARaLDA", "Export it from ELAN (.eaf) or as a TextGrid"),
    ".cha": ("a transcript in CHAT (CHILDES, TalkBank)", "Convert it by CLAN's chat2elan or chat2praat"),
    ".mlf": ("a master label file of HTK", _TO_TABLE), ".ctm": ("NIST's CTM, words with times", _TO_TABLE),
    ".trn": ("a transcript of THCHS-30, KsponSpeech or SCTK", _TO_TABLE),
    ".xlsx": ("a spreadsheet", "Save it as CSV (UTF-8)"), ".xls": ("a spreadsheet", "Save it as CSV (UTF-8)"),
    ".ods": ("a spreadsheet", "Save it as CSV (UTF-8)"), ".docx": ("a document of Word", _TO_TABLE),
    ".pdf": ("a PDF document", _TO_TABLE),
    ".tfrecord": ("TensorFlow's TFRecord", _TO_FILES), ".tfrecords": ("TensorFlow's TFRecord", _TO_FILES),
    ".h5": ("HDF5", _TO_FILES), ".hdf5": ("HDF5", _TO_FILES), ".mdb": ("a database of LMDB", _TO_FILES),
    ".ark": ("an archive of Kaldi", _TO_FILES), ".npy": ("an array of NumPy", _TO_FILES),
    ".npz": ("an array of NumPy", _TO_FILES), ".pkl": ("a pickle, which may run code", _TO_FILES),
    ".pcm": ("raw samples without a header", "Convert it to WAV: sox or ffmpeg, with its rate and sample format"),
    ".gz": ("a file compressed by gzip", "Unpack it and give the folder"),
    ".7z": ("an archive of 7-Zip", "Unpack it and give the folder"), ".rar": ("an archive of RAR",
                                                                             "Unpack it and give the folder"),
}

Reader = Callable[[], Iterator[ParsedItem]]


@dataclass(frozen=True)
class SourceForm:
    """A format that fits: its title, its files, why it is preferred, and its reader."""

    title: str
    description: str
    reason: str
    read: Reader


def recognise(source: Path, language: str) -> tuple[Path, list[SourceForm]]:
    """The folder of the recordings, and the formats that fit, the best first. `UserError` for none."""
    if source.is_dir():
        folder = _only_folder(source)
        forms = list(forms_of(folder, language))
        if not forms:
            raise _nothing(folder)
        return folder, forms
    if not source.is_file():
        raise UserError(f"There is no dataset at {source}.", "Give the path of a folder or file on this machine.")

    # A single file is one half of a pair, a known transcript, or a table.
    if is_audio(source.name) or source.suffix.lower() in sidecars.TIMED_SUFFIXES or (
            source.suffix.lower() == ".txt" and sidecars.kind_of(source).timed):
        return source.parent, [_pair(source, language)]
    layout = public_corpora.layout_of(source.parent, source)
    if layout:
        return source.parent, [SourceForm(layout.title, source.name, "it is what was given",
                                          partial(layout.read, source.parent, [source]))]
    return source.parent, [_required(source)]


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

    transcripts = corpora.librispeech_transcripts(folder)
    if transcripts:
        yield SourceForm("LibriSpeech", f"{len(transcripts)} transcripts {corpora.TRANSCRIPT_SUFFIX}",
                         "it names recordings and readers",
                         lambda: corpora.read_librispeech(folder, transcripts))

    for layout, texts in public_corpora.find_layouts(folder):
        yield SourceForm(layout.title, _shown(folder, texts), "it names recordings and their texts",
                         partial(layout.read, folder, texts))

    splits = corpora.common_voice_tables(folder)
    if splits:
        names = " and ".join(path.name for path in splits)
        yield SourceForm("Common Voice", names, f"{names} is what Common Voice says of its clips",
                         lambda: corpora.read_common_voice(splits))
    else:
        yield from _tables_in(folder)

    kind = _companion(folder)
    if kind is not None:
        speakers = sidecars.speaker_folders(folder)
        voices_of = f", whose {len(speakers)} folders are taken for speakers" if speakers else ""
        yield SourceForm(kind.title, folder.name + voices_of, "texts stand beside recordings of the same name",
                         lambda: sidecars.read_sidecars(folder, language, speakers))


def _shown(folder: Path, texts: list[Path]) -> str:
    first_text = str(texts[0].relative_to(folder))
    return first_text if len(texts) == 1 else f"{first_text} and {len(texts) - 1} more"


def _tables_in(folder: Path) -> Iterator[SourceForm]:
    """Tables at the top of `folder`; those named after splits, or in folders named so, are one source."""
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    files = [path for path in inside if path.suffix.lower() in _TABLE_SUFFIXES and path.is_file()]
    stems = {path.stem for path in inside if is_audio(path.name)}
    lookup = RecordingLookup(folder)

    splits: list[tuple[Path, SourceForm]] = []

    # A table in a folder that is named after a split belongs to that split.
    for path in inside:
        if path.is_dir() and path.name.lower() in SPLIT_NAMES:
            name = next((name for name in TABLE_NAMES if (path / name).is_file()), None)
            form = _table(path / name) if name else None
            if form is not None:
                splits.append((path, form))
    if len(splits) > 1:
        yield _joined([(path.name.lower(), _below(path.name, form)) for path, form in splits])
    # A single folder separates nothing.
    if len(splits) == 1:
        yield from (_below(path.name, form) for path, form in splits)

    # Tables with a usual name are required to be readable; others are tried.
    named_tables = [folder / name for name in TABLE_NAMES if (folder / name).is_file()]
    yield from (_required(path) for path in named_tables)
    candidates = [path for path in files if path not in named_tables and path.stem not in stems][:_MAX_CANDIDATES]
    fitting = []
    for path in candidates:
        form = _table(path)
        if form is not None and _names_one(form, lookup):
            fitting.append((path, form))
    named = [(_split_in_name(path.stem), form) for path, form in fitting if _split_in_name(path.stem)]
    if len(named) > 1:
        yield _joined(named)

    single = [form for path, form in fitting if len(named) == 1 or not _split_in_name(path.stem)]
    if len(single) > 1 and len({form.title for form in single}) == 1 and _name_others(single):
        yield replace(_joined([("", form) for form in single]), reason="each names other recordings")
    yield from single


def _split_in_name(stem: str) -> str:
    """The split that a table is named after, as `dev` and `metadata_train` are; empty for none."""
    parts = re.split(r"[._-]", stem.lower())
    if len(parts) == 2 and parts[1] in ("pairs", "manifest"):  # train_pairs, val_manifest
        return parts[0] if parts[0] in SPLIT_NAMES else ""
    last = parts[-1]
    return stem.lower() if stem.lower() in SPLIT_NAMES else last if last in SPLIT_NAMES else ""


def _other_splits(path: Path) -> list[Path]:
    """Lists that are named as `path` is but for the split, such as `val.txt` beside `train.txt`."""
    if not _split_in_name(path.stem):
        return []
    return sorted(other for other in path.parent.iterdir() if other != path and _split_in_name(other.stem)
                  and other.suffix == path.suffix and tables.header_of(text_files.head(other)) is None
                  and tables.ljspeech_delimiter(text_files.head(other)))


def _joined(parts: list[tuple[str, SourceForm]]) -> SourceForm:
    """Tables of splits as one source."""
    def read() -> Iterator[ParsedItem]:
        for split, form in parts:
            for item in form.read():
                yield replace(item, split=item.split or split) if isinstance(item, ParsedUtterance) else item

    description = ", ".join(form.description for _, form in parts)
    return SourceForm(parts[0][1].title, description, "tables are there for its splits", read)


def _below(place: str, form: SourceForm) -> SourceForm:
    """A format whose recordings are named relative to the folder `place`."""
    def read() -> Iterator[ParsedItem]:
        for item in form.read():
            location = f"{place}/{item.location}"
            yield (replace(item, location=location, audio=f"{place}/{item.audio or item.id}")
                   if isinstance(item, ParsedUtterance) else replace(item, location=location))

    return replace(form, description=f"{place}/{form.description}", read=read)


def _name_others(forms: Sequence[SourceForm]) -> bool:
    """Whether no recording is named by two of the tables, as far as their starts tell."""
    named = []
    for form in forms:
        items = islice(form.read(), _COMPARED)
        named.append({item.audio or item.id for item in items if isinstance(item, ParsedUtterance)})
    return sum(map(len, named)) == len(set().union(*named))


def _names_one(form: SourceForm, lookup: RecordingLookup) -> bool:
    """Whether one of the first entries names an existing recording."""
    return any(isinstance(item, ParsedUtterance) and lookup.has(item.audio or item.id)
               for item in islice(form.read(), 20))


def _table(path: Path) -> SourceForm | None:
    """The table at `path`; None for another file."""
    start = text_files.head(path)
    reason = f"{path.name} names its recordings itself"

    # A header is the surest sign, then JSON, then a list, then pairs.
    header = tables.header_of(start)
    if header:
        name = {"\t": "TSV", ",": "CSV", ";": "CSV with semicolons", "|": "LJSpeech with a header"}[header[0]]
        return SourceForm(name, _with_unused(path), reason, lambda: tables.read_table(path))

    if start.lstrip()[:1] in ("{", "[") and path.suffix.lower() in (".json", ".jsonl", ".ndjson"):
        if tables.is_json_lines(start) or (path.suffix.lower() != ".json" and not start.lstrip().startswith("[")):
            return SourceForm("JSON lines", _with_unused(path), reason, lambda: tables.read_json_lines(path))
        return SourceForm("JSON", path.name, reason, lambda: tables.read_json(path))

    # Without a header, values are compared with the recordings beside the table.
    lookup = RecordingLookup(path.parent)
    bar = tables.ljspeech_delimiter(start)
    if bar and sidecars.kind_of(path) is sidecars.PLAIN:
        try:
            columns = tables.list_columns(path, _other_splits(path))
        except UserError:
            # A table that names recordings is a list, even if its columns are unclear.
            if any(lookup.has(line.split(bar)[0]) for line in start.splitlines()[:20]):
                raise
            return None
        return SourceForm(columns.title, "; ".join((path.name, *columns.notes)), reason,
                          lambda: tables.read_ljspeech(path, columns))

    delimiter = tables.pair_delimiter(start, lookup.has)
    if delimiter and not sidecars.kind_of(path).timed:
        return SourceForm("CSV without a header", path.name, reason, lambda: tables.read_pairs(path, delimiter))
    return None


def _with_unused(path: Path) -> str:
    """The name of a table, and which of its columns are not used."""
    return "; ".join((path.name, *tables.unused_notes(path)))


def _required(path: Path) -> SourceForm:
    """The table at `path`; `UserError` for another file."""
    unread = _unread([path])
    if unread is not None:
        raise unread
    form = _table(path)
    if form is not None:
        return form

    first_line = next((line for _, line in text_files.lines(path) if line.strip()), None)
    if first_line is None:
        raise UserError(f"{path} has no rows.", "Write one recording a line: its audio file and its text.")
    if path.suffix.lower() not in _SURE_TABLES and path.name not in TABLE_NAMES:
        # The line is not quoted: the file may be anything.
        raise UserError(f"{path} is no table of audio and text.", WANTED)
    raise UserError(
        f"{path}, line 1 names no column for audio and text: {first_line.rstrip()[:80]!r}.",
        f"Write a header with {COLUMNS['audio'][0]} and {COLUMNS['text'][0]}, or use lines of the form id|text.",
    )


def _companion(folder: Path) -> sidecars.SidecarKind | None:
    """The format of the sidecar of the first recording that has one; None without any."""
    for place, names in sidecars.walk_folders(folder):
        recordings = [name for name in names if is_audio(name)]
        texts = [name for name in names if name.lower().endswith(sidecars.SUFFIXES)]
        if not recordings or not texts:
            continue
        by_stem = sidecars.by_stems(texts)
        for name in recordings:
            matches = sidecars.matching_sidecars(name, by_stem, recordings, texts, "")
            if matches:
                return sidecars.kind_of(place / matches[0])
    return None


def _pair(path: Path, language: str) -> SourceForm:
    """The recording and its text; `path` is one of the two."""
    names = sorted(entry.name for entry in path.parent.iterdir() if entry.is_file())
    texts = [name for name in names if name.lower().endswith(sidecars.SUFFIXES)]
    recordings = [name for name in names if is_audio(name)]

    # Find the other half: the text of a recording, or the recording of a text.
    if is_audio(path.name):
        matches = sidecars.matching_sidecars(path.name, sidecars.by_stems(texts), recordings, texts, language)
        if not matches:
            raise UserError(
                f"{path.name} is a recording without a text: no {path.stem}.srt, .vtt, .lrc or .txt is beside it.",
                "Put its subtitles, labels or text there under the same name; or let Lisan cut and transcribe it: "
                f"{LONG}.", ErrorKind.NO_TEXT,
            )
        audio, words = path.name, path.parent / matches[0]
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


def _unread(paths: Iterable[Path]) -> UserError | None:
    """The error for the first file of a known format that Lisan does not read; None without one."""
    for path in paths:
        known_format = _UNREAD.get(path.suffix.lower())
        if known_format is not None:
            return UserError(f"{path} is {known_format[0]}, which Lisan does not read.", f"{known_format[1]}.")
    return None


def _nothing(folder: Path) -> UserError:
    files: list[Path] = []
    for place, names in sidecars.walk_folders(folder):
        files += [place / name for name in names]
    recordings = sum(is_audio(path.name) for path in files)

    # The most helpful fault comes first: a misplaced table, a table of other recordings, an unknown format.
    fault = (_table_below(folder) or _unused_table(folder, _SURE_TABLES)) if recordings else None
    fault = fault or _unread(files) or (_unused_table(folder, (".json",)) if recordings else None)
    if fault is not None:
        return fault
    if recordings:
        return UserError(
            f"{folder} has no text for any of its recordings ({recordings}).",
            "Put a text, subtitles (SRT, VTT) or Audacity labels of the same name beside each, or give a table; or let "
            f"Lisan cut and transcribe them: {LONG}.", ErrorKind.NO_TEXT,
        )
    return UserError(f"{folder} is a dataset without audio: there is no recording in it.", WANTED)


def _table_below(folder: Path) -> UserError | None:
    """A table in a folder below that names recordings of this one; None without one."""
    lookup = RecordingLookup(folder)
    below: list[Path] = []
    for place, names in sidecars.walk_folders(folder):
        if place != folder:
            below += [place / name for name in names if name.lower().endswith(_TABLE_SUFFIXES)]
    for path in below[:_MAX_CANDIDATES]:
        try:
            form = _table(path)
        except UserError:
            continue
        if form is not None and _names_one(form, lookup):
            return UserError(f"{path} names recordings of {folder}, but lies in a folder below it.",
                             "Move it to the top of the folder.")
    return None


def _unused_table(folder: Path, suffixes: Sequence[str]) -> UserError | None:
    """Why the first table in `folder`, by its suffix, cannot be used; None without one."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
    candidates = [path for suffix, path in product(suffixes, files) if path.suffix.lower() == suffix]
    if not candidates:
        return None
    try:
        items = _required(candidates[0]).read()
        named = next((item.audio or item.id for item in items if isinstance(item, ParsedUtterance)), "")
    except UserError as error:
        return error
    example = f", such as {named[:60]!r}" if named else ""
    return UserError(f"{candidates[0]} names no recording that is in {folder}{example}.",
                     "Put its recordings into the folder under the names that the table has for them.")
