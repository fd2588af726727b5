"""A Kaldi data folder: `wav.scp`, `text`, and where they are there `segments` and `utt2spk`.

Commands in `wav.scp` (lines that end in a bar) are never run. One that does nothing but decode a file, as the recipes
for LibriSpeech and others write them, stands for that file. https://kaldi-asr.org/doc/data_prep.html
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from data.importers import text
from data.importers.rows import Found, Skipped, Utterance
from data.kept import Kept

_FORMAT = {"-t": True, "-r": True, "-b": True, "-e": True, "-c": True}
_DECODERS: dict[str, dict[str, bool]] = {  # options that leave the sound what it is, and whether a value follows
    "flac": {"-c": False, "-d": False, "-s": False, "-cd": False, "-cds": False, "-dcs": False, "-sdc": False,
             "--decode": False, "--stdout": False, "--silent": False},
    "sox": _FORMAT,
    "ffmpeg": {"-i": True, "-f": True, "-ar": True, "-ab": True, "-ac": True, "-acodec": True, "-v": True,
               "-loglevel": True, "-nostdin": False, "-vn": False},
}


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
        path = decoded_file(path)
    if not path:
        return Skipped(where, f"wav.scp has a command for {span[0][:60]!r}, and commands are not run; give a file")
    return Utterance(where, path, words.strip(), name, speaker, begin_s=begin_s, end_s=end_s)


def decoded_file(command: str) -> str:
    """The file that a command of `wav.scp` decodes and does nothing else to; empty for any other command.

    `flac -c -d -s FILE |`, and `sox FILE -t wav - |` or `ffmpeg -i FILE -f wav - |`, which may change rate and format.
    """
    try:
        program, *words = shlex.split(command.strip().removesuffix("|"))
    except ValueError:
        return ""
    takes = _DECODERS.get(Path(program).name)
    if takes is None:
        return ""
    files, rest = [], iter(words)
    for word in rest:
        if word.startswith("-") and word != "-":
            if word not in takes or (takes[word] and next(rest, None) is None):
                return ""
        elif word != "-":
            files.append(word)
    if Path(program).name == "ffmpeg":
        return words[words.index("-i") + 1] if words.count("-i") == 1 and not files else ""
    return files[0] if len(files) == 1 else ""


def _keep(path: Path, kept: Kept) -> bool:
    """Keep the rest of each line under its first word; whether there is such a file."""
    if not path.is_file():
        return False
    for _, line in text.lines(path):
        name, _, rest = line.strip().replace("\t", " ").partition(" ")
        if name:
            kept.put(name, rest.strip())
    return True
