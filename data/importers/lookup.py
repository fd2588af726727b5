"""From the name that a source has for a recording to the file, which lies within the source's folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath

SOUND_SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".oga", ".aiff", ".aif", ".au", ".caf", ".w64")
"""What is read as it is; by libsndfile."""
FILM_SUFFIXES = (".m4a", ".mp4", ".m4b", ".m4v", ".mov", ".mkv", ".mka", ".webm", ".avi", ".aac", ".amr", ".3gp",
                 ".wma", ".wmv", ".mpg", ".mpeg", ".ts", ".flv")
"""Whose sound is taken out by ffmpeg."""
AUDIO_SUFFIXES = SOUND_SUFFIXES + FILM_SUFFIXES
AUDIO_FOLDERS = ("", "wavs", "audio", "clips", "wav", "mp3", "recordings")
_LONGEST_NAME = 240  # bytes in one part of a path; what is longer is a text in the place of a name


class NotThere(Exception):
    """There is no such recording, or it must not be read; the text says why."""


def is_audio(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in AUDIO_SUFFIXES


class Lookup:
    """Finds recordings of the source in `folder`.

    Nothing outside of it is read, neither by `..` nor by a link. A table on this machine may name whole paths, since
    whoever wrote it could have read them; one that came from elsewhere (`foreign`) may not.
    """

    def __init__(self, folder: Path, *, foreign: bool = False) -> None:
        self.folder = folder
        self._foreign = foreign
        self._real = os.path.realpath(folder)

    def find(self, name: str) -> Path:
        """The file called `name`, with or without its ending, perhaps in one of `AUDIO_FOLDERS`; or `NotThere`."""
        name = name.strip()
        if not name:
            raise NotThere("no audio is named (missing index)")
        if "\0" in name or any(len(part.encode("utf-8", "replace")) > _LONGEST_NAME for part in name.split("/")):
            raise NotThere(f"{name[:60]!r} is no name of a file")
        for path in self._candidates(name.encode("utf-8", "replace").decode()):
            if os.path.isfile(path):  # false too for a name that the system does not take
                return self._checked(Path(path), name)
        raise NotThere(f"the audio {name[:60]!r} is not in {self.folder}")

    def has(self, name: str) -> bool:
        """Whether `find` finds it."""
        try:
            return bool(self.find(name))
        except NotThere:
            return False

    def _candidates(self, name: str) -> Iterator[str]:
        """Where it may be. As strings, and in folders that are there: most are looked for in vain, for every row."""
        pure = PurePosixPath(name.replace("\\", "/")) if "\\" in name else PurePosixPath(name)
        if pure.is_absolute() or name[1:2] == ":":
            if not self._foreign:
                yield name
        else:
            for place in self._places:
                yield f"{place}{pure}"
                if not is_audio(name):
                    yield from (f"{place}{pure}{suffix}" for suffix in AUDIO_SUFFIXES)
        parts = [part for part in pure.parts if part not in ("/", "..") and not part.endswith(":")]
        if ".." not in pure.parts:
            for first in range(0 if pure.is_absolute() else 1, len(parts)):  # the table was written in another folder
                rest = "/".join(parts[first:])
                yield f"{self.folder}/{rest}"
                yield f"{self.folder}/{AUDIO_FOLDERS[1]}/{rest}"

    @cached_property
    def _places(self) -> list[str]:
        """Those of `AUDIO_FOLDERS` that are there, each with what parts it from a name."""
        return [f"{path}/" for place in AUDIO_FOLDERS if os.path.isdir(path := os.path.join(self.folder, place))]

    def _checked(self, path: Path, name: str) -> Path:
        whole = os.path.isabs(name) and path == Path(name) and not self._foreign
        real = os.path.realpath(path)
        if whole or os.path.commonpath([real, self._real]) == self._real:
            return path
        if ".." in path.parts:
            raise NotThere(f"{name[:60]!r} leads out of {self.folder}; what lies outside is not read")
        raise NotThere(f"{name[:60]!r} is a link to {real!r}, outside of {self.folder}; put the file itself there")
