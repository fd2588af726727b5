"""A Kaldi data folder: `wav.scp`, `text`, and where they are there `segments` and `utt2spk`.

Commands in `wav.scp` (lines that end in a bar) are never run. https://kaldi-asr.org/doc/data_prep.html
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from data.importers import text
from data.importers.rows import Found, Skipped, Utterance
from data.kept import Kept


def fits(folder: Path) -> bool:
    return (folder / "wav.scp").is_file() and (folder / "text").is_file()


def read(folder: Path) -> Iterator[Found]:
    """The utterances that `text` names."""
    with Kept() as recordings, Kept() as speakers, Kept() as segments:
        _keep(folder / "wav.scp", recordings)
        _keep(folder / "utt2spk", speakers)
        has_segments = _keep(folder / "segments", segments)
        for number, line in text.lines(folder / "text"):
            if not line.strip():
                continue
            name, _, words = line.strip().replace("\t", " ").partition(" ")
            where = f"text line {number}"
            span = segments.get(name) if has_segments else name
            if span is None:
                yield Skipped(where, f"segments has no {name[:60]!r}")
                continue
            yield _utterance(where, name, words, span.split(), recordings, speakers.get(name) or "")


def _utterance(where: str, name: str, words: str, span: list[str], recordings: Kept, speaker: str) -> Found:
    """`span` is a recording's name, then perhaps begin and end."""
    begin_s, end_s = 0.0, None
    if len(span) not in (1, 3):
        return Skipped(where, f"segments has {' '.join(span)[:60]!r} for {name[:60]!r}, not a recording, begin and end")
    if len(span) == 3:
        try:
            begin_s, end_s = float(span[1]), float(span[2])
        except ValueError:
            return Skipped(where, f"segments has {' '.join(span[1:])[:60]!r} for {name[:60]!r}, which are no seconds")
        end_s = None if end_s < 0 else end_s  # -1 is the end of the recording
    path = recordings.get(span[0])
    if path is None:
        return Skipped(where, f"wav.scp has no {span[0][:60]!r}")
    if path.endswith("|"):
        return Skipped(where, f"wav.scp has a command for {span[0][:60]!r}, and commands are not run; give a file")
    return Utterance(where, path, words.strip(), name, speaker, begin_s=begin_s, end_s=end_s)


def _keep(path: Path, kept: Kept) -> bool:
    """Keep the rest of each line under its first word; whether there is such a file."""
    if not path.is_file():
        return False
    for _, line in text.lines(path):
        name, _, rest = line.strip().replace("\t", " ").partition(" ")
        if name:
            kept.put(name, rest.strip())
    return True
