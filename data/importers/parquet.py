"""Parquet and Arrow tables of the hub with audio inside: written as files and JSON lines, a few rows at a time.

The audio column is the hub's `Audio` feature: a struct of `bytes` and `path`
(https://huggingface.co/docs/datasets/about_dataset_features).
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config import confinement
from config.errors import UserError
from data.disk_collections import DiskDict
from data.importers.rows import COLUMNS, column_names, safe_id, unused_id

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

MANIFEST, FOLDER = "manifest.jsonl", "audio"
_ROWS = 16  # rows in memory
_BUFFER = 1 << 17  # bytes of each column in memory
_MAGIC = ((b"RIFF", ".wav"), (b"fLaC", ".flac"), (b"OggS", ".ogg"), (b"ID3", ".mp3"), (b"\xff\xfb", ".mp3"),
          (b"\xff\xf3", ".mp3"), (b"\xff\xf2", ".mp3"))


def count_rows(table: Path | io.RawIOBase, name: str) -> int:
    """Number of rows of a table, from its footer."""
    with _opened(table, name) as file:
        return int(file.metadata.num_rows)


def write_out(table: Path | io.RawIOBase, name: str, folder: Path, split: str, ids: DiskDict, *,
              keep_paths: bool = False) -> Iterator[int]:
    """Write the recordings of the table `name` into `folder` and a line of `manifest.jsonl` for each.

    Yields the size in bytes of each row once it is written. `ids` holds the names in use. Only the needed columns are
    read, and few more rows than are consumed. `keep_paths`: a recording that is only named keeps its path.
    """
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    with open(folder / MANIFEST, "a", encoding="utf-8") as lines:
        for columns, batch in _batches(table, name):
            for record in batch.to_pylist():
                values = {meaning: record[column] for meaning, column in columns.items()}
                yield _row(values, folder, split, ids, lines, keep_paths)


def _batches(table: Path | io.RawIOBase, name: str) -> Iterator[tuple[dict[str, str], Any]]:
    """The columns by their meanings, and a few rows at a time."""
    if not name.lower().endswith(".arrow"):
        with _opened(table, name) as file:
            columns = _columns(file.schema_arrow, name)
            for batch in file.iter_batches(batch_size=_ROWS, columns=list(dict.fromkeys(columns.values())),
                                           use_threads=False):
                yield columns, batch
        return
    import pyarrow
    import pyarrow.ipc

    assert isinstance(table, Path), "only Parquet is read from the hub by ranges"
    with confinement.verified(table) as readable, pyarrow.memory_map(readable) as source:
        try:
            try:  # the stream format, which the datasets library writes
                reader = pyarrow.ipc.open_stream(source)
                batches: Iterator[Any] = iter(reader)
            except pyarrow.ArrowInvalid:
                source.seek(0)
                reader = pyarrow.ipc.open_file(source)
                batches = map(reader.get_batch, range(reader.num_record_batches))
            columns = _columns(reader.schema, name)
            for record_batch in batches:
                # Record batches may be large, so they are passed on in slices.
                for start in range(0, record_batch.num_rows, _ROWS):
                    yield columns, record_batch.slice(start, _ROWS)
        except pyarrow.ArrowException as error:
            raise UserError(f"{name} could not be read as an Arrow table: {str(error)[:200]}.",
                            "It may be cut off: fetch it again.") from error


@contextmanager
def _opened(table: Path | io.RawIOBase, name: str) -> Iterator[ParquetFile]:
    """The table, read by small buffers: a row group may hold the whole table."""
    import pyarrow
    import pyarrow.parquet

    try:
        with ExitStack() as stack:
            source = stack.enter_context(confinement.verified(table)) if isinstance(table, Path) else table
            yield stack.enter_context(pyarrow.parquet.ParquetFile(source, buffer_size=_BUFFER, pre_buffer=False))
    except pyarrow.ArrowException as error:
        raise UserError(f"{name} could not be read as a Parquet table: {str(error)[:200]}.",
                        "It may be cut off: fetch it again.") from error


def _columns(schema: Any, name: str) -> dict[str, str]:
    """The table's column for each meaning; audio bytes and a text are required."""
    names = dict(zip(column_names(schema.names), schema.names, strict=True))
    columns = {}
    for meaning in ("audio", "text", "id", "speaker", "language"):
        column = next((names[name] for name in COLUMNS[meaning] if name in names), None)
        if column is not None:
            columns[meaning] = column

    # Audio must be in the table itself, as bytes.
    holds = str(schema.field(columns["audio"]).type) if "audio" in columns else ""
    if "text" not in columns or "bytes" not in holds:
        raise UserError(
            f"{name} has the columns {', '.join(schema.names[:20])}; recordings within the table and a text are "
            "wanted.",
            f"Lisan takes an audio column of bytes and a text called {', '.join(COLUMNS['text'][:4])} or the like.",
        )
    return columns


def _row(record: dict[str, Any], folder: Path, split: str, ids: DiskDict, lines: Any, keep_paths: bool) -> int:
    cell = record["audio"] or {}
    content = cell.get("bytes") or b""
    original = Path(str(cell.get("path") or record.get("id") or "clip"))

    # The name comes from the table, the suffix from the content if its first bytes are known.
    name = ""
    if content:
        suffix = next((suffix for magic, suffix in _MAGIC if content.startswith(magic)), original.suffix.lower()[:8])
        stem = unused_id(safe_id(original.stem), "", ids)
        name = f"{FOLDER}/{stem}.{safe_id(suffix.lstrip('.')) if suffix else 'wav'}"
        (folder / name).write_bytes(content)
    elif keep_paths:
        name = str(cell.get("path") or "")

    line = {"audio": name, "text": str(record["text"] or ""), "speaker": str(record.get("speaker") or ""),
            "language": str(record.get("language") or ""), "split": split, "bytes": len(content)}
    lines.write(json.dumps(line, ensure_ascii=False) + "\n")
    return len(content)
