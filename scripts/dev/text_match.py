"""How often `data.text_match` raises a false alarm, and how often it finds shifted texts, on corpora of people.

    python -m scripts.dev.text_match FOLDER    a folder of TAR files, each with `metadata.csv` (`clips/ID.ogg|text`)

Random subsets of each corpus, in its order: as they are, and with the texts shifted, cyclically or with the text at one
end lost. Prints a table for each size of a subset.
"""

from __future__ import annotations

import io
import sys
import tarfile
from collections import defaultdict
from pathlib import Path

import numpy as np

from data.measures import silence_at_ends
from data.sound_files import read_samples
from data.text_match import MAX_OFFSET, MatchKind, match_texts, text_length

_SIZES, _SUBSETS = (8, 15, 30, 80), 100


def read_corpus(path: Path) -> np.ndarray:
    """Text length, duration and speech without the silent ends of each clip, (3, N); (3, 0) without texts."""
    values = []
    with tarfile.open(path) as archive:
        members = {member.name: member for member in archive.getmembers()}
        table = next((name for name in members if name.endswith("metadata.csv")), "")
        content = archive.extractfile(members[table]) if table else None
        lines = content.read().decode("utf-8").splitlines() if content else []
        for name, _, text in (line.partition("|") for line in lines):
            recording = archive.extractfile(members[str(Path(table).parent / name)]) if text else None
            if recording is not None:
                samples, rate = read_samples(io.BytesIO(recording.read()), name=name)
                duration_s = len(samples) / rate
                values.append((text_length(text), duration_s,
                               max(0.0, duration_s - sum(silence_at_ends(samples, rate)))))
    return np.array(values, dtype=float).reshape(-1, 3).T


def main(folder: Path) -> None:
    counts: dict[tuple[int, str], list[bool]] = defaultdict(list)
    for path in sorted(folder.glob("*.tar")):
        corpus = read_corpus(path)
        clips = corpus.shape[1]
        if not clips:
            continue

        match_of_all = match_texts(*corpus)
        offsets = [offset for offset in range(-MAX_OFFSET, MAX_OFFSET + 1) if offset]
        named = [match_texts(np.roll(corpus[0], offset), *corpus[1:]).offset for offset in offsets]
        print(f"{path.stem}: {match_of_all.kind}, {match_of_all.measured}; shifted by {offsets} rows: {named}")

        generator = np.random.default_rng(5)
        for size in _SIZES:
            for number in range(_SUBSETS):
                lengths, *durations = corpus[:, np.sort(generator.choice(clips, size, replace=False))]
                match = match_texts(lengths, *durations)
                counts[size, "false: shifted"].append(match.kind is MatchKind.SHIFTED)
                counts[size, "false: unrelated"].append(match.kind is MatchKind.UNRELATED)
                offset = offsets[number % len(offsets)]
                shifted = np.roll(lengths, offset)
                # A shift in a real dataset has no partner at one end.
                lost = shifted.copy()
                lost[:max(0, offset)] = lost[size + min(0, offset):] = np.nan
                for name, texts in (("cyclic", shifted), ("one end lost", lost)):
                    shifted_match = match_texts(texts, *durations)
                    counts[size, f"{abs(offset)} rows, {name}: offset named"].append(
                        (shifted_match.kind, shifted_match.offset) == (MatchKind.SHIFTED, offset))
                    counts[size, f"{abs(offset)} rows, {name}: wrong offset"].append(
                        shifted_match.kind is MatchKind.SHIFTED and shifted_match.offset != offset)

    kinds = sorted({kind for _, kind in counts})
    print(f"\n| of {_SUBSETS} subsets a corpus | {' | '.join(f'{size} clips' for size in _SIZES)} |")
    print(f"|---|{'---|' * len(_SIZES)}")
    for kind in kinds:
        print(f"| {kind} | {' | '.join(f'{np.mean(counts[size, kind]):.1%}' for size in _SIZES)} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
