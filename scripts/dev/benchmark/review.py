"""How long the review of a large dataset takes, over random clips, about half of which something is decided:

    python -m scripts.dev.benchmark.review [CLIPS [DECISIONS]]
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TypeVar

from core.dataset import review
from core.dataset.clip_index import ClipIndex, build_index
from core.dataset.review import ReviewDecision
from core.workspace import Workspace
from data import manifest
from data.clip_findings import AnalysedClip
from data.manifest import ManifestClip, PreparedDataset, make_card
from data.measures import Measures

PAGE = 10
_LETTERS = "ሀለመረሰቀበተነአከወዘየደገ"
Value = TypeVar("Value")


def main(count: int, decided: int) -> None:
    """Judge and index `count` clips, then open pages of them, and decide about some."""
    chance = random.Random(0)
    clips = tuple(_clip(number, chance) for number in range(count))
    spoken = [_spoken(clip, chance) for clip in clips]

    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace.open(folder)
        dataset = PreparedDataset(workspace.datasets / "made", make_card("made", "am", "random", clips), clips)
        dataset.folder.mkdir()
        manifest.save(dataset.folder, dataset.card, clips)

        _timed("judge and index", lambda: build_index(workspace, dataset, spoken, {}))
        index = ClipIndex(workspace, dataset.card.fingerprint)
        _timed("open: first page, kinds and counts",
               lambda: (index.page(0, PAGE), index.kinds(), index.count(), index.count_with_findings()))
        _timed("page in the middle", lambda: index.page(count // 2, PAGE))
        _timed("last page", lambda: index.page(count - PAGE, PAGE))

        kind = max(index.kinds(), key=lambda summary: summary.count)
        _timed(f"last page of {kind.kind}, {kind.count} clips", lambda: index.page(kind.count - PAGE, PAGE, kind.kind))
        _timed("speakers, the largest 12", lambda: index.speakers(12))

        # Decisions are timed as they are written, read for the first time, and read again.
        decisions = [ReviewDecision(clip.id, included=False, reason="by hand") for clip in clips[:decided]]
        _timed(f"write {decided} decisions at once", lambda: review.decide(workspace, "made", decisions))
        _timed("read them for the first time", lambda: review.read_decisions(workspace, "made"))
        _timed("one more decision", lambda: review.decide(workspace, "made",
                                                          [ReviewDecision(clips[-1].id, text="ሰላም")]))
        _timed("a page with decisions, and their counts", lambda: (
            index.page(count // 2, PAGE), (saved := review.read_decisions(workspace, "made")).excluded, saved.texts,
            saved.clips_to_fix))

        files = sum(path.stat().st_size for path in (workspace.cache / "review").iterdir())
        print(f"{files / 2**20:.0f} MiB on disk")


def _clip(number: int, chance: random.Random) -> ManifestClip:
    text = " ".join("".join(chance.choices(_LETTERS, k=5)) for _ in range(8))
    return ManifestClip(f"c{number:06}", f"audio/c{number:06}.wav", text, "am", "train", chance.uniform(2, 8),
                f"s{chance.randrange(200)}", f"{chance.getrandbits(256):064x}")


def _spoken(clip: ManifestClip, chance: random.Random) -> AnalysedClip:
    measures = Measures(clip.duration_s, 24000, 0.5, 0.01 if chance.random() < 0.02 else 0.0, chance.gauss(-20, 3),
                        chance.gauss(30, 8), 0.1, 0.1, 11000.0, f"{chance.getrandbits(256):064x}")
    return AnalysedClip(clip.id, clip.text, clip.speaker, measures)


def _timed(title: str, work: Callable[[], Value]) -> Value:
    start, used = time.perf_counter(), time.process_time()
    value = work()
    passed, used = time.perf_counter() - start, time.process_time() - used
    print(f"{title}: {1000 * passed:.1f} ms, {1000 * used:.1f} ms of a processor")
    return value


if __name__ == "__main__":
    given = [int(number) for number in sys.argv[1:]]
    main(*given, *(100_000, 50_000)[len(given):])
