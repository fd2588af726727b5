"""How alike recordings of one person and of two are, as `core.resynthesize` compares them: for its limit.

    python -m scripts.dev.same_voice FOLDER

Each folder below FOLDER with a folder `clips` is one reader. In each draw three clips of a reader, of 3 to 12 seconds,
are compared with the mean of two other clips of the same reader, and of each other reader; the median of the three is
what the limit judges.
"""

from __future__ import annotations

import argparse
import random
import statistics
from pathlib import Path

import numpy as np

from config.errors import UserError
from core.library.reproduction import LEAST_SIMILARITY
from core.speech import measures
from data.acoustics import audio
from data.importers.rows import is_audio
from scripts.command import exit_with

RATE = 16_000  # Hz
SHORTEST_S, LONGEST_S = 3.0, 12.0
CLIPS, DRAWS = 24, 20  # clips embedded of each reader, and draws from them


def read_embeddings(folder: Path, generator: random.Random) -> list[np.ndarray]:
    """Speaker embeddings (256,) of random clips of one reader."""
    paths = sorted(path for path in folder.iterdir() if is_audio(path.name))
    embeddings: list[np.ndarray] = []
    for path in generator.sample(paths, len(paths)):
        waveform = audio.load(path, RATE)
        if SHORTEST_S <= len(waveform) / RATE <= LONGEST_S:
            embeddings.append(measures.similarity_embedding(waveform, RATE))
        if len(embeddings) == CLIPS:
            break
    return embeddings


def main() -> int:
    """Print the distribution of both, and what the limit makes of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    generator = random.Random(0)
    folder: Path = parser.parse_args().folder
    readers = {clips.parent.name: read_embeddings(clips, generator) for clips in sorted(folder.glob("*/clips"))}
    readers = {name: embeddings for name, embeddings in readers.items() if len(embeddings) >= 5}
    if len(readers) < 2:
        raise UserError(f"{folder} has {len(readers)} readers with five clips of 3 to 12 seconds; 2 are compared.",
                        "Name the folder that holds their folders.")

    same_reader, other_readers = list[float](), list[float]()
    for name, embeddings in readers.items():
        for _ in range(DRAWS):
            *clips, embedding, other_embedding = generator.sample(embeddings, 5)
            for other, other_embeddings in readers.items():
                # The three clips are held against two others of their reader, or two of another reader.
                pair = (embedding, other_embedding) if other == name else generator.sample(other_embeddings, 2)
                centre = np.mean(pair, axis=0)
                similarity = statistics.median(measures.cosine(clip, centre) for clip in clips)
                (same_reader if other == name else other_readers).append(similarity)

    print(f"{len(readers)} readers: {', '.join(readers)}")
    for title, values, share in (("one reader", same_reader, np.mean(np.array(same_reader) >= LEAST_SIMILARITY)),
                                 ("two readers", other_readers, np.mean(np.array(other_readers) < LEAST_SIMILARITY))):
        low, median, high = np.quantile(values, (0.1, 0.5, 0.9))
        print(f"{title}: {len(values)} comparisons, median {median:.2f}, 80% from {low:.2f} to {high:.2f}; "
              f"{share:.1%} on the right side of {LEAST_SIMILARITY}")
    return 0


if __name__ == "__main__":
    exit_with(main)
