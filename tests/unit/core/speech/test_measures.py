"""Measures of speech beside the transcript: against other implementations, and on speech that is made worse."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from types import ModuleType

import jiwer
import librosa
import numpy as np
import pytest
import torch

from core.library import evaluation_report
from core.model.loading import load_base
from core.speech import measures
from core.speech.evaluation import SpeechEvaluator, corpus_score
from core.workspace import Workspace
from data.acoustics import audio
from data.languages.latin import romanise
from models.base import RecognitionScore, Voice
from models.registry import family

ROOT = Path(__file__).resolve().parents[4]
DEMO, PACK = ROOT / "data" / "demo" / "am", ROOT / "models" / "tiny" / "pack"
RATE = 16000
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def held_out() -> list[tuple[torch.Tensor, str, str]]:
    """Recordings of the demo's held-out sentences: waveform, text, speaker."""
    rows = [json.loads(line) for line in (DEMO / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
    chosen = [row for row in rows if row["split"] != "train"][:24]
    return [(audio.load(DEMO / row["audio"], RATE), row["text"], row["speaker"]) for row in chosen]


def recognised(waveform: torch.Tensor, text: str) -> RecognitionScore:
    recogniser = family("tiny").load_recogniser(PACK)
    assert recogniser is not None
    return recogniser.score(waveform, RATE, text, "am")


def noisy(waveform: torch.Tensor, snr_db: float) -> torch.Tensor:
    noise = torch.randn(waveform.shape, generator=torch.Generator().manual_seed(1))
    return waveform + noise * waveform.norm() / noise.norm() * 10 ** (-snr_db / 20)


@pytest.mark.parametrize(("words", "transcript"), [
    ("the cat sees a dog", "the cat sees a dog"), ("the cat sees a dog", "the cut sees a dog"),
    ("the cat sees a dog", "the sees a"), ("the cat sees a dog", "xxx yyy sees a dog"),
])
def test_edits_are_those_of_jiwer(words: str, transcript: str) -> None:
    letters = transcript.replace(" ", "")
    found = measures.count_edits(words.split(), letters)
    other = jiwer.process_characters(words.replace(" ", ""), letters)
    assert (found.substitutions + found.deletions + found.insertions
            == other.substitutions + other.deletions + other.insertions)
    assert found.deletions - found.insertions == other.deletions - other.insertions
    spoken = jiwer.process_words(words, transcript)
    assert found.wrong_words == spoken.substitutions + spoken.deletions


@pytest.mark.parametrize(("transcript", "repeats"), [
    ("selamlehulum", False), ("selamselamlehulum", True), ("selamlehulumlehulumlehulum", True), ("", False),
])
def test_what_follows_itself_is_a_repetition(transcript: str, repeats: bool) -> None:
    assert measures.has_repetition("selamlehulum", transcript) is repeats
    assert not measures.has_repetition("tatatatata", "tatatatata")  # the text says so


def test_the_pitch_is_that_of_librosa(held_out: list[tuple[torch.Tensor, str, str]]) -> None:
    for waveform, _, speaker in held_out[:4]:
        found = measures.pitch(waveform, RATE)
        other = librosa.yin(waveform.numpy(), fmin=60, fmax=500, sr=RATE, frame_length=1024, hop_length=160)
        assert np.isfinite(found).mean() > 0.3
        assert np.nanmedian(found) == pytest.approx(np.median(other), rel=0.12), speaker
    sweep = torch.sin(2 * torch.pi * torch.cumsum(torch.linspace(150, 300, 2 * RATE), 0) / RATE)
    assert measures.pitch_range(measures.pitch(sweep, RATE)) == pytest.approx(12 * 0.9, abs=1.0)
    assert measures.pitch_range(measures.pitch(torch.zeros(RATE), RATE)) is None


def test_the_path_and_distance_are_those_of_librosa_and_scipy(held_out: list[tuple[torch.Tensor, str, str]]) -> None:
    from scipy.fft import dct

    costs = np.random.default_rng(0).random((17, 23))
    _, path = librosa.sequence.dtw(C=costs)
    assert np.array_equal(measures.warp(costs), path[::-1])
    one, other = held_out[0][0], held_out[0][0][1600:] * 0.5
    cepstra = [measures.mel_cepstra(waveform, RATE) for waveform in (one, other)]
    mel = audio.log_mel(audio.trim_silence(one)[None], audio.MelSettings())[0].double().numpy()
    assert cepstra[0] == pytest.approx(dct(mel, axis=0, norm="ortho")[1:14].T * np.sqrt(2 / len(mel)), abs=1e-9)
    distances = 10 / np.log(10) * np.sqrt(2 * ((cepstra[0][:, None] - cepstra[1][None]) ** 2).sum(-1))
    _, path = librosa.sequence.dtw(C=distances)
    assert measures.mel_cepstral_distance(*cepstra) == pytest.approx(distances[path[:, 0], path[:, 1]].mean(), rel=1e-6)
    assert measures.mel_cepstral_distance(cepstra[0], cepstra[0]) == 0


def test_the_speaker_embedding_is_that_of_the_package(held_out: list[tuple[torch.Tensor, str, str]],
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "webrtcvad", ModuleType("webrtcvad"))  # only its own trimming needs it
    from resemblyzer import VoiceEncoder

    waveform = audio.trim_silence(torch.cat([clip for clip, _, speaker in held_out if speaker == "low"][:3]))
    waveform = waveform * 10 ** (-25 / 20) / float(waveform.square().mean().sqrt())
    other = VoiceEncoder("cpu", verbose=False).embed_utterance(waveform.numpy(), rate=RATE / 160 / 77, min_coverage=0.8)
    assert measures.cosine(measures.similarity_embedding(waveform, RATE), other) > 0.999


def test_another_speaker_lowers_the_similarity(held_out: list[tuple[torch.Tensor, str, str]]) -> None:
    tiny = family("tiny")
    extractor, model = tiny.load_extractor(PACK, CPU), tiny.load_language_model(PACK, CPU)
    for vector in (lambda one: measures.similarity_embedding(one, RATE),
                   lambda one: model.speaker_embedding(extractor.extract(one).conditioning)):
        vectors = [(vector(waveform), speaker) for waveform, _, speaker in held_out[:8]]
        same, others = [], []
        for (one, first), (two, second) in itertools.combinations(vectors, 2):
            (same if first == second else others).append(measures.cosine(one, two))
        assert min(len(same), len(others)) > 5
        assert np.mean(same) > np.mean(others) + 0.1


def test_noise_raises_the_error_and_lowers_the_naturalness(held_out: list[tuple[torch.Tensor, str, str]]) -> None:
    """In the mean: the estimated opinion score of a single clip may rise from 20 to 10 dB."""
    clips = [waveform for waveform, _, _ in held_out[:2]]
    clips += [audio.load(PACK / "held_out" / f"{name}.ogg", RATE) for name in ("en-running-00", "fr-running-02")]
    errors, scores = [], []
    for snr_db in (20, 10, 0):
        errors.append(np.mean([recognised(noisy(waveform, snr_db), text).error for waveform, text, _ in held_out[:12]]))
        scores.append(np.mean([measures.naturalness(noisy(waveform, snr_db), RATE) for waveform in clips]))
    assert errors[0] < errors[1] < errors[2]
    assert scores[0] > scores[1] > scores[2]


def test_recordings_beat_the_codec_and_the_codec_beats_the_model(held_out: list[tuple[torch.Tensor, str, str]],
                                                                 tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path)
    (workspace.models / "tiny").symlink_to(PACK)
    base, tiny = load_base(workspace, "tiny", CPU), family("tiny")
    extractor, evaluator = tiny.load_extractor(PACK, CPU), SpeechEvaluator.of(base)
    features = [extractor.extract(waveform) for waveform, _, _ in held_out]
    codec = [evaluator.vocoder.decode(one.speech_codes, Voice(one.conditioning)) for one in features]
    spoken = evaluator.speak(base, [("en", romanise(text)) for _, text, _ in held_out[:8]], base.sampling)
    errors = [corpus_score("am", [recognised(waveform, text) for waveform, (_, text, _) in zip(
        some, held_out, strict=False)]).error
        for some in ([waveform for waveform, _, _ in held_out], codec, [one.waveform for one in spoken])]
    assert errors[0] < errors[1] < errors[2]


def test_half_a_sentence_raises_the_deletions(held_out: list[tuple[torch.Tensor, str, str]]) -> None:
    for waveform, text, _ in held_out[:4]:
        whole, half = (recognised(clip, text) for clip in (waveform, waveform[:len(waveform) // 2]))
        deletions = [measures.count_edits([one.reference], one.transcript).deletions for one in (whole, half)]
        assert deletions[1] > deletions[0] + len(whole.reference) / 4


def test_a_pause_between_words_is_measured() -> None:
    tone = 0.3 * np.sin(2 * np.pi * 200 * np.arange(RATE // 2) / RATE).astype(np.float32)
    waveform = np.concatenate([np.zeros(RATE, np.float32), tone, np.zeros(RATE, np.float32), tone])
    assert measures.longest_pause(waveform, RATE) == pytest.approx(1.0, abs=0.05)
    assert measures.longest_pause(tone, RATE) == 0
    assert measures.speech_seconds(waveform, RATE) == pytest.approx(2.0, abs=0.1)


def test_intervals_and_p_values_are_those_of_plain_loops() -> None:
    draws = np.random.default_rng(3)
    letters = draws.integers(10, 40, 30).astype(float)
    first, second = (draws.binomial(letters.astype(int), share).astype(float) for share in (0.4, 0.25))
    low, high = evaluation_report.bootstrap_interval(first, letters)
    resampled = []
    for _ in range(4000):
        rows = draws.integers(0, 30, 30)
        resampled.append(sum(first[rows]) / sum(letters[rows]))
    assert (low, high) == pytest.approx(np.percentile(resampled, (2.5, 97.5)), abs=0.012)
    few = slice(0, 10)  # all 1024 exchanges can be listed
    difference, _, _, p_value = evaluation_report.paired_test((first[few], letters[few]), (second[few], letters[few]))
    exact = [abs(sum(sign * (b - a) for sign, a, b in zip(signs, first[few], second[few], strict=True)))
             for signs in itertools.product((1, -1), repeat=10)]
    wanted = np.mean([one >= abs(sum(second[few] - first[few])) - 1e-9 for one in exact])
    assert p_value == pytest.approx(wanted, abs=0.015)
    assert difference == pytest.approx(sum(second[few] - first[few]) / sum(letters[few]))
    assert evaluation_report.paired_test((first, letters), (first, letters))[3] == 1.0
    assert evaluation_report.bootstrap_interval(first[:1], letters[:1]) == (first[0] / letters[0],) * 2
