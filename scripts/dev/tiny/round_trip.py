"""What the codec and the vocoder make of recordings, measured beside the recordings themselves.

    python -m scripts.dev.tiny.round_trip FOLDER --recogniser FOLDER --count 60 --adapt 15 --json

FOLDER has `clips/` and `metadata.csv` with a line `clips/NAME|text` for each clip. Four versions of the same clips are
measured: `recording`; `vocoder`, from the recording's own mel; `codec`, from its codes with another clip as reference;
and with `--adapt MINUTES` `adapted`, by a decoder trained for that long, on one core, on the clips that are not scored.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rapidfuzz.distance import Levenshtein

from config.errors import UserError
from core.speech import measures
from data.acoustics import audio
from data.languages.words import scored_letters
from models.tiny import codec as shipped
from models.tiny.decoder_adaptation import adapt_decoder
from models.tiny.family import MEL_SETTINGS, Tiny
from models.tiny.vocoder import MelVocoder
from scripts.command import exit_with
from scripts.dev.tiny.voices.codec import WEIGHTS, Codec, normalise_level

SHIPPED = "shipped"
PACK = Path(__file__).parents[3] / "models" / "tiny" / "pack"
UNKNOWN_LANGUAGE = 0.5  # CER of the recordings above which the recogniser does not know the language
RATE = MEL_SETTINGS.sample_rate
WHOLE = 640  # samples of a code


@dataclass(frozen=True)
class Clip:
    """A recording (S,) at 16 kHz, as loud as the codec takes it, and its text; "" if unknown."""

    path: Path
    waveform: torch.Tensor
    text: str


def read_clips(folder: Path) -> list[tuple[Path, str]]:
    """Paths and texts of the folder's clips, in the order of `metadata.csv`."""
    table = folder / "metadata.csv"
    if table.is_file():
        rows = [line.partition("|") for line in table.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
        clips = [(folder / name, text.strip()) for name, _, text in rows]
    else:
        clips = [(path, "") for path in sorted((folder / "clips").glob("*"))]
    if not clips:
        raise UserError(f"{folder} has no clips; metadata.csv or a folder clips is expected.",
                        "Name the folder that holds them.")
    absent = [str(path) for path, _ in clips if not path.is_file()]
    if absent:
        raise UserError(f"{table} names {absent[0]}, which does not exist.", "Correct the table.")
    return clips


def load(path: Path) -> torch.Tensor:
    """A recording (S,) at 16 kHz without silence at its ends, as loud as the codec takes it."""
    return normalise_level(audio.trim_silence(audio.load(path, RATE), 40.0))


class WhisperScorer:
    """Character error rates by a Whisper folder of transformers, which also detects the language."""

    def __init__(self, folder: Path, language: str) -> None:
        from transformers import WhisperForConditionalGeneration, WhisperProcessor  # slow to import

        self.model = WhisperForConditionalGeneration.from_pretrained(folder).float().eval()
        self.processor = WhisperProcessor.from_pretrained(folder)
        self.language = language

    def features(self, waveform: torch.Tensor) -> torch.Tensor:
        return self.processor(waveform.numpy(), sampling_rate=RATE, return_tensors="pt").input_features

    @torch.inference_mode()
    def detect(self, waveforms: Sequence[torch.Tensor]) -> None:
        """Take the language that most of the waveforms are in, if none was named."""
        if not self.language:
            names = {number: token for token, number in self.model.generation_config.lang_to_id.items()}
            votes = Counter(names[int(self.model.detect_language(self.features(waveform)))] for waveform in waveforms)
            self.language = votes.most_common(1)[0][0]

    @torch.inference_mode()
    def errors(self, waveform: torch.Tensor, text: str) -> tuple[int, int]:
        """Edits of the transcript, at most as many as there are letters, and the letters of `text`."""
        ids = self.model.generate(self.features(waveform), language=self.language, task="transcribe",
                                  max_new_tokens=120)
        transcript = scored_letters(self.processor.batch_decode(ids, skip_special_tokens=True)[0])
        letters = scored_letters(text)
        return min(len(letters), Levenshtein.distance(letters, transcript)), len(letters)


def contour(waveform: torch.Tensor) -> np.ndarray:
    """F0 in Hz each 10 ms, NaN where unvoiced."""
    return measures.pitch(waveform, RATE)


def pitch_agreement(recording: np.ndarray, version: np.ndarray) -> tuple[float, float] | None:
    """Correlation of log F0 where both are voiced, and the ratio of their ranges; None with too few voiced frames."""
    length = min(len(recording), len(version))
    voiced = np.isfinite(recording[:length]) & np.isfinite(version[:length])
    ranges = [measures.pitch_range(frequencies) for frequencies in (recording, version)]
    if voiced.sum() < 20 or not all(ranges):
        return None
    logs = [np.log(frequencies[:length][voiced]) for frequencies in (recording, version)]
    if min(log.std() for log in logs) < 1e-4:
        return None
    return float(np.corrcoef(*logs)[0, 1]), float(ranges[1] / ranges[0])  # type: ignore[operator]


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """95% bootstrap interval of the mean."""
    generator = np.random.default_rng(seed)
    array = np.asarray(values)
    means = array[generator.integers(0, len(array), (2000, len(array)))].mean(1)
    low, high = np.percentile(means, (2.5, 97.5))
    return round(float(low), 4), round(float(high), 4)


def measure(clips: Sequence[Clip], versions: Sequence[torch.Tensor], scorer: WhisperScorer | None) -> dict[str, Any]:
    """The figures of one version of the clips; a figure that cannot be measured is None."""
    errors, naturalness, similarity, correlations, ratios = [], [], [], [], []
    for clip, version in zip(clips, versions, strict=True):
        naturalness.append(measures.naturalness(version, RATE))
        similarity.append(measures.cosine(measures.similarity_embedding(clip.waveform, RATE),
                                          measures.similarity_embedding(version, RATE)))
        agreement = pitch_agreement(contour(clip.waveform), contour(version))
        if agreement is not None:
            correlations.append(agreement[0])
            ratios.append(agreement[1])
        if scorer is not None and clip.text:
            errors.append(scorer.errors(version, clip.text))

    result: dict[str, Any] = {"cer": None, "mos": round(float(np.mean(naturalness)), 3),
                              "mos_interval": interval(naturalness),
                              "similarity": round(float(np.mean(similarity)), 3),
                              "f0_correlation": round(float(np.median(correlations)), 3) if correlations else None,
                              "f0_range_ratio": round(float(np.median(ratios)), 3) if ratios else None,
                              "f0_clips": len(correlations)}
    if errors:
        result["cer"] = round(sum(edits for edits, _ in errors) / sum(letters for _, letters in errors), 4)
        result["cer_interval"] = interval([edits / max(1, letters) for edits, letters in errors])
    return result


def vocoded(vocoder: MelVocoder, waveform: torch.Tensor) -> torch.Tensor:
    return vocoder.decode(audio.log_mel(waveform[None], MEL_SETTINGS))[0]


def coded(codec: Codec | shipped.Codec, vocoder: MelVocoder, waveform: torch.Tensor,
          reference: torch.Tensor) -> torch.Tensor:
    """The waveform through codes, with the speaker embedding of `reference`."""
    speaker = codec.embed_speaker(audio.log_mel(reference[None], MEL_SETTINGS))
    return vocoder.decode(codec.decode(codes_of(codec, waveform), speaker))[0]


def codes_of(codec: Codec | shipped.Codec, waveform: torch.Tensor) -> torch.Tensor:
    """Codes (1, U) of a waveform (S,)."""
    if isinstance(codec, Codec):
        return codec.encode_waveform(waveform)
    return codec.encode(audio.log_mel(waveform[None], MEL_SETTINGS))


def main() -> int:
    """Print a table, or JSON with `--json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with clips/ and metadata.csv")
    parser.add_argument("--recogniser", type=Path, help="a Whisper folder of transformers; without it no CER")
    parser.add_argument("--language", default="", help="code of the language; detected from the recordings if empty")
    parser.add_argument("--count", type=int, default=60, help="clips to score")
    parser.add_argument("--adapt", type=float, default=0.0, metavar="MINUTES",
                        help="of one core, with one thread, to train the decoder on the other clips")
    parser.add_argument("--codec", default=str(WEIGHTS),
                        help="a folder of weights, or `shipped` for the built-in model's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, help="also write the versions as WAV files here")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    # The scored clips are drawn at random; the others serve as references and to adapt the decoder.
    paths = read_clips(arguments.folder)
    random.Random(arguments.seed).shuffle(paths)
    count = min(arguments.count, len(paths) if not arguments.adapt else len(paths) * 3 // 4)
    clips = [Clip(path, load(path), text) for path, text in paths[:count]]
    other_clips = [load(path) for path, _ in paths[count : count + 8]] or [clip.waveform for clip in clips]
    scorer = WhisperScorer(arguments.recogniser, arguments.language) if arguments.recogniser else None

    family, cpu = Tiny(), torch.device("cpu")
    vocoder = family.load_vocoder(PACK, cpu).vocoder
    codec = family.load_extractor(PACK, cpu).codec if arguments.codec == SHIPPED else Codec.load(Path(arguments.codec))

    def reference_of(clip: Clip) -> torch.Tensor:
        """Another clip of the reader; the clip itself only if it is the only one."""
        return next((waveform for waveform in other_clips if waveform is not clip.waveform), clip.waveform)

    versions: dict[str, Callable[[Clip], torch.Tensor]] = {
        "recording": lambda clip: clip.waveform,
        "vocoder": lambda clip: vocoded(vocoder, clip.waveform),
        "codec": lambda clip: coded(codec, vocoder, clip.waveform, reference_of(clip)),
    }
    if arguments.adapt:
        heard, adapted = [load(path) for path, _ in paths[count:]], copy.deepcopy(codec)
        # The mel and the codes of a clip have the same frames.
        heard = [waveform[: len(waveform) // WHOLE * WHOLE - 1] for waveform in heard if len(waveform) >= RATE // 2]
        mels = [audio.log_mel(waveform[None], MEL_SETTINGS)[0] for waveform in heard]
        codes = [codes_of(codec, waveform)[0] for waveform in heard]
        decoder = adapt_decoder(codec, mels, arguments.adapt * 60, arguments.seed, codes=codes)
        adapted.load_state_dict(decoder, strict=False)
        versions["adapted"] = lambda clip: coded(adapted, vocoder, clip.waveform, reference_of(clip))

    if scorer is not None:
        scorer.detect([clip.waveform for clip in clips[:8]])
    results: dict[str, Any] = {}
    for name, make in versions.items():
        sounds = [make(clip) for clip in clips]
        results[name] = measure(clips, sounds, scorer)
        if name == "recording" and results[name]["cer"] is not None and results[name]["cer"] > UNKNOWN_LANGUAGE:
            results[name] |= {"cer": None}
            scorer = None  # it does not know the language, so its error says nothing of the others either
        if arguments.output:
            (arguments.output / name).mkdir(parents=True, exist_ok=True)
            for clip, sound_of_clip in zip(clips, sounds, strict=True):
                audio.save(arguments.output / name / f"{clip.path.stem}.wav", sound_of_clip, RATE)
        if not arguments.json:
            print(name, results[name], flush=True)
    results |= {"clips": len(clips), "language": scorer.language if scorer else None}
    if arguments.json:
        print(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    exit_with(main)
