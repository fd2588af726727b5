"""How much memory a large dataset takes, stage by stage: `python -m scripts.dev.benchmark.memory [UTTERANCES ...]`.

Each stage runs in a separate process over random utterances (200 bytes of text each), whose peak is read at its end.
Prints MiB beyond what the process held when it began, and bytes for each utterance more.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from unittest.mock import patch

from config.schema import PrepareOptions
from core import prepare
from core.dataset.clip_index import MeasureStore, build_index
from core.workspace import Workspace
from data import manifest, splits
from data.disk_collections import chunked
from data.importers import SourceRow, import_source
from data.manifest import ManifestClip, PreparedDataset
from data.normalisers import TextNormaliser
from data.validation import CheckedRow, RowCheck, RowChecker, checked_rows_on_disk
from scripts.dev.benchmark.review import _clip, _spoken

_TEXT = "ሰላም ለሁሉም ሰው እንዴት ነህ ወንድሜ " * 4
_RECORDINGS = 1000


def main(counts: list[int]) -> None:
    """Each stage at each size, one process after the other."""
    for name in STAGES:
        peaks = [_child(name, count) for count in counts]
        # The slope tells what each further utterance costs.
        grows = (peaks[-1] - peaks[0]) * 2**20 / max(1, counts[-1] - counts[0])
        sizes = ", ".join(f"{count:,}: {mib:.0f} MiB" for count, mib in zip(counts, peaks, strict=True))
        print(f"{name}: {sizes} ({grows:.0f} bytes an utterance)", flush=True)


def _child(name: str, count: int) -> float:
    command = [sys.executable, "-m", "scripts.dev.benchmark.memory", "--stage", name, str(count)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def _import(count: int, folder: Path) -> Callable[[], object]:
    (folder / "clips").mkdir()
    (folder / "clips" / "a.wav").write_bytes(b"RIFF")
    with open(folder / "metadata.csv", "w", encoding="utf-8") as file:
        file.write("id,audio,text\n")
        for number in range(count):
            file.write(f"u{number},clips/a.wav,{_TEXT}{number}\n")
    return lambda: deque(import_source(folder), maxlen=0)


def _assign(count: int, folder: Path) -> Callable[[], object]:
    def work() -> None:
        rows = checked_rows_on_disk(folder)
        for number in range(count):
            rows.add(CheckedRow(SourceRow(f"u{number}", Path(f"/in/u{number}.wav"), f"{_TEXT}{number}",
                                    f"metadata.csv:{number}"), f"{_TEXT}{number}", 3.0, f"{number:064x}"))
        splits.overlaps(rows, splits.assign(rows, 0.1, 0))

    return work


def _made(count: int) -> Iterator[ManifestClip]:
    return (ManifestClip(f"u{number}", f"audio/u{number}.wav", f"{_TEXT}{number}", "am", "train", 3.0, "one",
                         f"{number:064x}")
            for number in range(count))


def _save(count: int, folder: Path) -> Callable[[], object]:
    return lambda: manifest.save(folder, manifest.make_card("d", "am", "made", _made(count)), _made(count))


def _load(count: int, folder: Path) -> Callable[[], object]:
    (folder / "large").mkdir()
    command = [sys.executable, "-m", "scripts.dev.benchmark.memory", "--make", str(folder / "large"), str(count)]
    subprocess.run(command, check=True)  # elsewhere, so that its peak is not this one's
    return lambda: deque(manifest.load(folder / "large").clips, maxlen=0)


def _clips(count: int) -> Iterator[ManifestClip]:
    chance = random.Random(0)
    return (_clip(number, chance) for number in range(count))


def _index(count: int, folder: Path) -> Callable[[], object]:
    workspace, chance = Workspace.open(folder), random.Random(1)

    def work() -> None:
        manifest.save(folder, manifest.make_card("made", "am", "random", _clips(count)), _clips(count))
        dataset = manifest.load(folder)
        build_index(workspace, dataset, (_spoken(clip, chance) for clip in dataset.clips), {})

    return work


class _SilentReporter:
    """A reporter without output."""

    directory = Path()

    def emit(self, event: object) -> None:
        pass

    def stop_requested(self) -> bool:
        return False


def _prepare(count: int, folder: Path) -> Callable[[], object]:
    """Import, check, split, write, measure and index, but no sound is read, copied or measured."""

    (folder / "in" / "clips").mkdir(parents=True)
    for number in range(_RECORDINGS):
        (folder / "in" / "clips" / f"r{number}.wav").write_bytes(b"RIFF")

    with open(folder / "in" / "metadata.csv", "w", encoding="utf-8") as file:
        file.write("id,audio,text,speaker\n")
        for number in range(count):
            recording = number % _RECORDINGS
            file.write(f"u{number},clips/r{recording}.wav,{_TEXT}{number},s{recording % 70}\n")

    workspace = Workspace.open(folder / "workspace")
    options = PrepareOptions(source=str(folder / "in"), dataset="made", language="am")

    def checked(checker: RowChecker, row: SourceRow) -> RowCheck:
        row_hash = sha256(row.id.encode()).hexdigest()
        return RowCheck(CheckedRow(row, checker.reading.normal(row.text), 3.0, row_hash), 3.0)

    def measured(dataset: PreparedDataset, workspace: Workspace, *_: object) -> None:
        store = MeasureStore(workspace)
        for part in chunked(dataset.clips, 1000):
            spoken = ((clip.sha256, _spoken(clip, random.Random(clip.id)).measures) for clip in part)
            store.save({name: clip_measures for name, clip_measures in spoken if clip_measures is not None})

    def work() -> None:
        with (patch.object(RowChecker, "check", checked), patch.object(prepare, "_copy_audio", lambda *given: None),
              patch.object(prepare, "measure_dataset", measured)):
            dataset, _, _ = prepare.import_dataset(options, "words", workspace, _SilentReporter())
            prepare.index_clips(dataset, workspace, _SilentReporter(), {"am": TextNormaliser("ethiopic")})

    return work


STAGES: dict[str, Callable[[int, Path], Callable[[], object]]] = {
    "import a CSV": _import, "draw splits": _assign, "write a manifest": _save, "read a manifest": _load,
    "judge and index": _index, "prepare, without sound": _prepare,
}


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def stage(name: str, count: int) -> None:
    """Do one stage; prints what it took at its peak beyond what stood before it."""
    with tempfile.TemporaryDirectory() as folder:
        work = STAGES[name](count, Path(folder))
        baseline_mib = _peak_mib()
        work()
        print(f"{_peak_mib() - baseline_mib:.1f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--make"]:
        _save(int(sys.argv[3]), Path(sys.argv[2]))()
    elif sys.argv[1:2] == ["--stage"]:
        stage(sys.argv[2], int(sys.argv[3]))
    else:
        main([int(count) for count in sys.argv[1:]] or [10_000, 100_000, 300_000])
