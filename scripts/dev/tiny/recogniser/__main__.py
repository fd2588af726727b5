"""Train the built-in recogniser, a CTC head on the phonetic encoder, and test it.

    python -m scripts.dev.tiny.recogniser --output FOLDER --people FOLDER --whisper FOLDER --kokoro FOLDER

Needs espeak-ng and the package wordfreq. The stage `texts` writes what Kokoro reads (see `kokoro.py` beside this file);
`--kokoro` has its recordings with `metadata.jsonl`. `--people` has French recordings in `clips/`, which the stage
`transcribe` gives texts by Whisper base. Each stage keeps what it finds: texts, files of features, rounds of the
training, and the recogniser, `OUTPUT/recogniser.safetensors`.

    python -m scripts.dev.tiny.recogniser --stages test --recogniser FILE --test FILE

A test is a file of rows with `set`, `language`, `text` and `audio`; `held_out.jsonl` of OUTPUT is one.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from core.speech import dataset_recogniser
from core.speech.transcription import HubTranscriber
from data.acoustics import audio
from data.durable_files import write_text
from models.base import RecognitionScore
from models.phonetic_encoder.ctc_head import CTCHead
from models.phonetic_encoder.encoder import SAMPLE_RATE
from models.tiny.family import RECOGNISER
from models.tiny.model_folder import load_module, save_module
from scripts.command import exit_with
from scripts.dev.tiny.pack import PACK
from scripts.dev.tiny.recogniser import corpus, phonetic
from scripts.dev.tiny.recogniser.corpus import Counts, Speaker, SpokenText

SEED = 0
STAGES = ("texts", "transcribe", "features", "train", "test")
LEAST_SCORE = 0.85  # Whisper's mean probability of a transcript that is used
_MANY = 1000  # epochs, more than fit into the time
HELD_OUT = 10  # of the recordings of people, and of Kokoro's texts, one in ten is not trained on
METADATA, TEST, KOKORO_TEXTS = "metadata.jsonl", "held_out.jsonl", "kokoro.txt"


def transcribe(folder: Path, whisper: Path) -> None:
    """Write `metadata.jsonl` of the recordings in `folder/clips` that Whisper is sure of, without digits."""
    if (folder / METADATA).exists():
        return
    transcriber = HubTranscriber.load(whisper, torch.device("cpu"), "fr", "")
    rows = []
    paths = sorted((folder / "clips").glob("*.ogg"))
    for path in paths:
        transcript = transcriber.transcribe([audio.load(path, SAMPLE_RATE).numpy()])[0]
        letters = sum(character.isalpha() for character in transcript.text)
        if transcript.score >= LEAST_SCORE and letters >= 4 and not any(map(str.isdigit, transcript.text)):
            rows.append({"audio": f"clips/{path.name}", "text": transcript.text, "score": round(transcript.score, 3)})
    write_text(folder / METADATA, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
    print(f"transcribe: {len(rows)} of {len(paths)} recordings are used", flush=True)


def split(clips: Sequence[SpokenText]) -> tuple[list[SpokenText], list[SpokenText]]:
    """Clips to train on and held-out clips."""
    held_out = set(random.Random(SEED).sample(range(len(clips)), len(clips) // HELD_OUT))
    return ([clip for number, clip in enumerate(clips) if number not in held_out],
            [clip for number, clip in enumerate(clips) if number in held_out])


def build_features(output: Path, people: Path | None, kokoro: Path) -> None:
    """Write the features of all clips, and the list of the recordings that are held out."""
    counts = Counts()
    kokoro_train, kokoro_test = split(corpus.read_recordings(kokoro, "kokoro", "en"))
    people_train, people_test = split(corpus.read_recordings(people, "people", "fr")) if people else ([], [])
    rows = [{"set": f"{clip.source}, held out", "language": clip.language, "text": clip.text,
             "audio": str(clip.recording)} for clip in (*kokoro_test, *people_test)]
    write_text(output / TEST, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))

    speaker, encoder, start = Speaker(PACK), corpus.load_encoder(), time.process_time()
    groups = [("kokoro-1", kokoro_train), ("speech", corpus.speech_clips(counts, SEED))]
    groups += [(f"kokoro-{number}", kokoro_train) for number in range(2, counts.kokoro + 1)]
    groups += [(f"people-{number}", people_train) for number in range(1, counts.people + 1)]
    for name, clips in groups:
        print(f"features: {name}, {len(clips)} clips", flush=True)
        for line in corpus.write_features(output / "features" / name, clips, speaker, encoder):
            print(f"features: {line} {time.process_time() - start:.0f} s", flush=True)


def train(output: Path, rounds: int, cpu_minutes: float, config_of_head: tuple[int, int]) -> None:
    """Train the head on all features in rounds, each of which goes on from the one before, and write the recogniser.

    The learning rate falls to nearly nothing in each round (Loshchilov and Hutter 2017), so each can be tested.
    """
    data = corpus.read_features(sorted((output / "features").iterdir()))
    minutes = {name: round(value, 1) for name, value in sorted(data.minutes.items())}
    print(f"train: {len(data.clips)} clips, minutes {minutes}", flush=True)
    config = phonetic.PhoneticRecogniserConfig(corpus.LANGUAGES, data.letters, *config_of_head)
    head: CTCHead | None = None
    for number in range(rounds):
        path = output / f"round-{number}.safetensors"
        if path.exists():
            head = load_module(path, CTCHead(config.head)).train()
            continue
        start = time.process_time()
        trained = dataset_recogniser.train_head(data.clips, config.head, _MANY, 60 * cpu_minutes / rounds,
                                                torch.device("cpu"), SEED + number, start_head=head)
        head = trained.head
        save_module(path, head, config)
        seconds = time.process_time() - start
        print(f"train: round {number}, {trained.epochs:.1f} epochs in {seconds:.0f} s of a processor", flush=True)
    shutil.copyfile(output / f"round-{rounds - 1}.safetensors", output / RECOGNISER)


def test(recogniser_path: Path, tests: Sequence[Path]) -> None:
    """Print the CER of each set with its 95% interval over clips."""
    recogniser = phonetic.load(recogniser_path)
    scores: dict[str, list[RecognitionScore]] = {}
    seconds = speech = 0.0
    for path in tests:
        for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            waveform = audio.load(path.parent / row["audio"], SAMPLE_RATE)
            start = time.process_time()
            score = recogniser.score(waveform, SAMPLE_RATE, row["text"], row["language"])
            seconds, speech = seconds + time.process_time() - start, speech + len(waveform) / SAMPLE_RATE
            scores.setdefault(f"{row['set']} ({row['language']})", []).append(score)
    for name, scores_of_set in scores.items():
        rate = dataset_recogniser.held_out_error(scores_of_set)
        print(f"| {name} | {rate.clips} | {rate.error:.1%} ({rate.low:.1%} to {rate.high:.1%}) |")
    print(f"{60 * seconds / speech:.2f} processor seconds for a minute of speech")


def main() -> int:
    """Run the chosen stages in their order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", nargs="*", choices=STAGES, default=STAGES[1:4])
    parser.add_argument("--output", type=Path, default=Path("workspace/build"))
    parser.add_argument("--people", type=Path)
    parser.add_argument("--whisper", type=Path)
    parser.add_argument("--kokoro", type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--cpu-minutes", type=float, default=60.0, help="processor time of the training, in all rounds")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--recogniser", type=Path, default=PACK / RECOGNISER, help="what is tested")
    parser.add_argument("--test", type=Path, nargs="*", default=[], help="files of rows")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    needed = {"transcribe": ("people", "whisper"), "features": ("kokoro",), "test": ("test",)}
    for stage in arguments.stages:
        missing = [f"--{name}" for name in needed.get(stage, ()) if not getattr(arguments, name)]
        if missing:
            parser.error(f"the stage {stage} needs {' and '.join(missing)}")

    torch.set_num_threads(arguments.threads)
    arguments.output.mkdir(parents=True, exist_ok=True)
    if "texts" in arguments.stages:
        write_text(arguments.output / KOKORO_TEXTS, "".join(f"{text}\n" for text in corpus.kokoro_texts(SEED)))
    if "transcribe" in arguments.stages:
        transcribe(arguments.people, arguments.whisper)
    if "features" in arguments.stages:
        build_features(arguments.output, arguments.people, arguments.kokoro)
    if "train" in arguments.stages and not (arguments.output / RECOGNISER).exists():
        train(arguments.output, arguments.rounds, arguments.cpu_minutes, (arguments.width, arguments.blocks))
    if "test" in arguments.stages:
        test(arguments.recogniser, arguments.test)
    return 0


if __name__ == "__main__":
    exit_with(main)
