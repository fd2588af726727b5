"""Synthesized clips as files of a job: each chunk at once, then the whole clip, its measures and its spectrogram."""

from __future__ import annotations

import csv
import hashlib
import io
import math
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from core.jobs.events import CLIPS_ARCHIVE, AudioChunk, AudioGenerated, WarningRaised
from core.jobs.reporter import Reporter, StopRequested, pluralize
from core.speech import evaluation
from core.speech.scoring import Recogniser, measured_by, unmeasured_reason
from core.speech.synthesis import SynthesizedChunk, finish_reason, join_chunks
from data.acoustics import audio
from data.durable_files import atomic_path
from data.importers.tables import CLIP_COLUMNS, safe_cell
from models.base import FinishReason, RecognitionScore

FOLDER = "audio"
_SILENCE_DB = -120.0
_INK = "#8a8a8a"  # contrast of at least 3 against black and against white
_SIZE_INCHES, _DPI = (6.4, 2.2), 120
_DYNAMIC_RANGE_NEPERS = 7.0  # the spectrogram's range below its maximum; about 60 dB
_CUT_OFF = {
    "limit": "the model did not stop, so the speech was cut off",
    "repetition": "the model began to repeat itself, so the speech was cut off there",
    "no_speech": "no speech: the model gives only silence where the sentence should begin, also with two other seeds",
}


@dataclass(frozen=True)
class SynthesizedClip:
    """A synthesized text. `path` is relative to the job's directory; `synthesis_s` is its computation time."""

    waveform: torch.Tensor  # (S,)
    sample_rate: int
    path: str
    chunks: int
    synthesis_s: float
    finish_reason: FinishReason = "stop"

    @property
    def duration_s(self) -> float:
        return len(self.waveform) / self.sample_rate

    @property
    def real_time_factor(self) -> float:
        """Seconds of computation per second of speech."""
        return self.synthesis_s / max(self.duration_s, 1e-9)

    @property
    def peak(self) -> float:
        """Largest absolute sample."""
        return float(self.waveform.abs().max())

    @property
    def level_db(self) -> float:
        """Root mean square in decibels below full scale."""
        power = float(self.waveform.double().square().mean())
        return 10 * math.log10(power) if power > 0 else _SILENCE_DB

    def event(self, side: str, index: int, text: str, language: str) -> AudioGenerated:
        """The event of the finished clip, without its score."""
        return AudioGenerated(side, index, self.path, text, language, round(self.duration_s, 3),
                              round(self.synthesis_s, 3), None, "", "", finish_reason=self.finish_reason)

    def scored(self, event: AudioGenerated, recogniser: Recogniser | None,
               reference: str) -> tuple[AudioGenerated, RecognitionScore | None]:
        """The `event` of this clip with its score against `reference`, the text in words, or why it has none."""
        language = event.language
        score = evaluation.score_waveform(recogniser, self.waveform, self.sample_rate, reference, language)
        return replace(event, error=score.error if score else None,
                       transcript=evaluation.spaced_transcript(recogniser, score, reference, language),
                       unmeasured=unmeasured_reason(recogniser, language),
                       measured_by=measured_by(recogniser, language)), score

    @property
    def sha256(self) -> str:
        """Hash of the samples before they are rounded for the file."""
        return hashlib.sha256(self.waveform.contiguous().numpy().tobytes()).hexdigest()


def write_clip(chunks: Iterable[SynthesizedChunk], sample_rate: int, reporter: Reporter, *, side: str, index: int,
               text: str, language: str, chunk_stem: str, stem: str) -> SynthesizedClip:
    """Write each chunk to `audio/CHUNK_STEM-NNN.wav`, then all of them to `audio/STEM.wav`; each with an event.

    A stop ends the clip after the present chunk: what there is of it is written and emitted, never to be scored.
    """
    (reporter.directory / FOLDER).mkdir(exist_ok=True)
    chunks_written: list[SynthesizedChunk] = []

    def join_written() -> SynthesizedClip:
        path, waveform = f"{FOLDER}/{stem}.wav", join_chunks(chunks_written)
        audio.save(reporter.directory / path, waveform, sample_rate)
        synthesis_s = sum(chunk.synthesis_s for chunk in chunks_written)
        return SynthesizedClip(waveform, sample_rate, path, len(chunks_written), synthesis_s,
                               finish_reason(chunks_written))

    # Each chunk is a file of its own, so that it can be played at once.
    for number, chunk in enumerate(chunks):
        path = f"{FOLDER}/{chunk_stem}-{number:03d}.wav"
        audio.save(reporter.directory / path, chunk.waveform, sample_rate)
        duration_s = len(chunk.waveform) / sample_rate
        reporter.emit(AudioChunk(side, index, number, path, round(duration_s, 3)))
        if chunk.finish_reason != "stop":
            reporter.emit(WarningRaised(f"{side}: {_CUT_OFF[chunk.finish_reason]}: {chunk.text!r}."))
        chunks_written.append(chunk)
        # A stopped clip is kept and not scored.
        if reporter.stop_requested():
            length_text = pluralize(len(chunks_written), "chunk")
            reporter.emit(replace(join_written().event(side, index, text, language),
                                  unmeasured=f"the synthesis was stopped after {length_text}"))
            raise StopRequested(f"Stopped on request after {length_text}; the audio so far is kept.")
    clip = join_written()
    reporter.emit(replace(clip.event(side, index, text, language), scoring=True))
    return clip


def write_archive(folder: Path, clips: Sequence[AudioGenerated], facts: Mapping[str, Mapping[str, str]]) -> str:
    """Write `clips.zip`: the audio of finished clips and `clips.csv`, a line for each; its path in `folder`.

    `facts` are further columns by side, such as the model. No cell is a formula for a spreadsheet (`safe_cell`).
    """
    rows = [{**dict(zip(CLIP_COLUMNS, (
        Path(clip.path).name, clip.text, clip.language, f"{clip.duration_s:.3f}",
        "" if clip.error is None else f"{clip.error:.4f}", clip.transcript), strict=True)), **facts[clip.side]}
            for clip in clips]

    table = io.StringIO()
    writer = csv.DictWriter(table, list(rows[0]), restval="")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: safe_cell(value) for name, value in row.items()})

    # An archive of an earlier attempt stays until this one is complete.
    with atomic_path(folder / CLIPS_ARCHIVE) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr("clips.csv", "\ufeff" + table.getvalue())  # byte order mark: spreadsheets read it as UTF-8
        for clip in clips:
            archive.write(folder / clip.path, Path(clip.path).name)
    return CLIPS_ARCHIVE


def save_spectrogram(path: Path, waveform: torch.Tensor, sample_rate: int, duration_s: float | None = None) -> None:
    """Draw the log-mel of waveform (S,) as PNG over `duration_s` seconds (default: its own length).

    The transparent picture is readable on a dark and on a light page.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import
    from matplotlib.figure import Figure

    settings = replace(audio.MelSettings(), sample_rate=sample_rate, f_max=sample_rate / 2)
    padded = torch.nn.functional.pad(waveform.float(), (0, max(0, settings.n_fft - len(waveform))))
    frames = max(1, len(waveform) // settings.hop_length)
    mel = audio.log_mel(padded[None], settings)[0, :, :frames].numpy()
    peaks = audio.mel_filterbank(settings).argmax(0).numpy() * sample_rate / settings.n_fft
    # Ticks stand at the frequencies of bands, which are not evenly spaced.
    centres = np.maximum.accumulate(peaks + np.arange(len(peaks)) * 1e-6)  # Hz that each band answers most
    ticks = [hz for hz in (250, 500, 1000, 2000, 4000, 8000, 16000) if hz <= centres[-1]]
    own_s = max(len(waveform) / sample_rate, 1e-3)

    figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI, layout="constrained")
    figure.patch.set_alpha(0.0)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.imshow(mel, origin="lower", aspect="auto", cmap="magma", interpolation="nearest",
                extent=(0.0, own_s, 0.0, len(mel)), vmin=mel.max() - _DYNAMIC_RANGE_NEPERS, vmax=mel.max())
    axes.set_xlim(0.0, duration_s or own_s)
    axes.set_yticks(np.interp(ticks, centres, np.arange(len(mel)) + 0.5), [f"{hz:,}" for hz in ticks])
    axes.set_xlabel("Time (s)", color=_INK)
    axes.set_ylabel("Frequency (Hz)", color=_INK)
    axes.tick_params(colors=_INK, labelsize=8)
    axes.patch.set_alpha(0.0)
    for spine in axes.spines.values():
        spine.set_color(_INK)
    figure.savefig(path, format="png")
