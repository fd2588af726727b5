"""The shipped vocoder beside Griffin-Lim and beside itself with other numbers of rounds, on held-out recordings.

    python -m scripts.dev.tiny.compare_vocoders

Each of the 160 English and French recordings of the pack goes through the codec once, and its mel through each vocoder.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import librosa
import numpy as np
import torch

from core.library.evaluation_report import bootstrap_interval, paired_test
from core.speech import measures
from data.acoustics import audio
from models.tiny.family import MEL_SETTINGS, Tiny
from scripts.dev.tiny.pack import BASE_LANGUAGES, PACK, SPLITS
from scripts.dev.tiny.score import sentences_of

ROUNDS = (0, 1, 2, 5, 15)


def griffin_lim(mel: torch.Tensor) -> torch.Tensor:
    """librosa's fast Griffin-Lim of a log-mel (1, n_mels, F) from zero phase, 32 rounds: (1, (F - 1) * hop_length)."""
    settings = MEL_SETTINGS
    waveform = librosa.griffinlim(audio.magnitude(mel, settings)[0].numpy(), n_iter=32, hop_length=settings.hop_length,
                                  win_length=settings.win_length, n_fft=settings.n_fft, momentum=0.99, init=None)
    return torch.from_numpy(waveform)[None, :(mel.shape[-1] - 1) * settings.hop_length]


def main() -> None:
    """Print a Markdown row a vocoder: naturalness, its paired difference to Griffin-Lim, CER, mel-cepstral distance."""
    family, cpu = Tiny(), torch.device("cpu")
    extractor, recogniser = family.load_extractor(PACK, cpu), family.load_recogniser(PACK)
    vocoder = family.load_vocoder(PACK, cpu).vocoder

    vocoders: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"Griffin-Lim, 32 rounds": griffin_lim}
    for rounds in ROUNDS:
        vocoders[f"network, rounds: {rounds}"] = partial(vocoder.decode, rounds=rounds)
    scores: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in ("recording", *vocoders)}

    for language in BASE_LANGUAGES:
        for sentence in (entry for split in SPLITS for entry in sentences_of(language, split)):
            assert sentence.original is not None
            recording = audio.load(sentence.original, MEL_SETTINGS.sample_rate)
            mel = audio.log_mel(recording[None], MEL_SETTINGS)
            # All vocoders get the same decoded mel.
            coded = extractor.codec.decode(extractor.codec.encode(mel), extractor.codec.embed_speaker(mel))
            sounds = {"recording": recording, **{name: make(coded)[0] for name, make in vocoders.items()}}
            cepstra = {name: measures.mel_cepstra(sound, MEL_SETTINGS.sample_rate) for name, sound in sounds.items()}
            for name, sound in sounds.items():
                score = recogniser.score(sound, MEL_SETTINGS.sample_rate, sentence.text, language)
                scores[name].append((measures.naturalness(sound, MEL_SETTINGS.sample_rate), score.edits,
                                     len(score.reference),
                                     measures.mel_cepstral_distance(cepstra["recording"], cepstra[name])))

    base = np.array(scores["Griffin-Lim, 32 rounds"])
    print(f"{len(base)} sentences, 95% bootstrap intervals\n\n"
          "| | naturalness | difference | CER | distance, dB |\n|---|---|---|---|---|")
    for name, rows in scores.items():
        values, weights = np.array(rows), np.ones(len(rows))
        low, high = bootstrap_interval(values[:, 0], weights)
        difference, lower, upper, _ = paired_test((base[:, 0], weights), (values[:, 0], weights))
        print(f"| {name} | {values[:, 0].mean():.2f} ({low:.2f} to {high:.2f}) | {difference:.2f} ({lower:.2f} to "
              f"{upper:.2f}) | {values[:, 1].sum() / values[:, 2].sum():.1%} | {values[:, 3].mean():.2f} |")


if __name__ == "__main__":
    main()
