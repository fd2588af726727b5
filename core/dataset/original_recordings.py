"""The recording of a sentence that is read again, to be heard beside it. Never loads torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from config import foreign
from config.errors import UserError
from core.workspace import Workspace, resolve_inside
from data.durable_files import check_no_link_out


@dataclass(frozen=True)
class OriginalRecording:
    """The recording of a sentence in a dataset."""

    dataset: str
    audio: str  # relative to the dataset
    speaker: str


def original_recording(workspace: Workspace, dataset: str, text: str) -> OriginalRecording | None:
    """The recording of a sentence of a dataset; None if one of the three is not there."""
    try:
        folder = resolve_inside(workspace.datasets, dataset)
        recording = _recordings(folder / "manifest.jsonl").get(_plain(text))
        is_present = recording is not None and check_no_link_out(folder, recording[0]).is_file()
    except (OSError, ValueError, UserError):
        return None
    return OriginalRecording(dataset, *recording) if recording and is_present else None


@foreign.cached_by_file(2)
def _recordings(manifest: Path) -> dict[str, tuple[str, str]]:
    """Recording and speaker by text without case, marks and spaces; of equal texts that of a held-out clip."""
    recordings: dict[str, tuple[str, str]] = {}
    with foreign.open_plain(manifest) as file:
        for line in file:
            clip = foreign.loads(line) if line.strip() else None
            if isinstance(clip, dict):
                # Texts are compared without case and marks, as a person may type them.
                text = _plain(str(clip.get("text", "")))
                if text not in recordings or clip.get("split") == "held_out":
                    recordings[text] = str(clip.get("audio", "")), str(clip.get("speaker", ""))
    return recordings


def _plain(text: str) -> str:
    return "".join(character for character in text.casefold() if character.isalnum())
