"""Make a listening test from an evaluation: its clips at one loudness and rate, in one HTML file that names no model.

Recordings are the hidden reference. The anchor is made of them: noise that follows the speech at 10 dB (ITU-T P.810,
the modulated noise reference unit), then all above 3.5 kHz is cut off (the low anchor of ITU-R BS.1534-3).
"""

from __future__ import annotations

import base64
import io
import secrets
from collections.abc import Mapping
from dataclasses import asdict

import numpy as np
import soundfile
from scipy import signal

from config.errors import UserError
from config.languages import language_name
from config.schema import ListeningTestOptions
from core.jobs.events import Plan, Progress, Result
from core.jobs.reporter import Reporter, check_stop, pluralize, stage
from core.library import evaluation_report, listening
from core.library.evaluation_report import ANCHOR, REFERENCE
from core.library.listening import ListeningClip, ListeningTest
from core.workspace import Workspace
from data import measures
from data.acoustics import audio
from data.durable_files import check_no_link_out, write_json, write_text
from data.measures import Samples

ANCHOR_HZ, ANCHOR_Q_DB = 3500.0, 10.0
_LUFS = -23.0  # EBU R 128; lower where a clip's peak forbids it
_LEAST_RATE = 16_000
_METHODS = {
    "rating": "Naturalness and intelligibility (as listening effort) were rated from 1 to 5 (absolute category rating, "
              "ITU-T P.800).",
    "preference": "Which of two clips sounds more natural, or neither, was chosen.",
    "abx": "Which of two clips is the third was chosen (ABX).",
}


def run(options: ListeningTestOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Write the test, its key and the HTML file into the job's folder; see the module."""
    with stage(reporter, "plan"):
        source = workspace.run(options.evaluation)
        report = evaluation_report.read(source)
        test_plan = listening.plan(report, options)
        test_clips, trials, rows = listening.lay_out(test_plan, options.kind)
        controls = ("Recordings are the hidden reference; the anchor is a recording with speech-modulated noise at "
                    f"{ANCHOR_Q_DB:.0f} dB (ITU-T P.810) below {ANCHOR_HZ / 1000:.1f} kHz (ITU-R BS.1534-3)."
                    if ANCHOR in test_plan.models else
                    "There are no recordings, so there is neither a hidden reference nor an anchor.")
        reporter.emit(Plan((f"{pluralize(len(rows[0]), 'page')} a listener in {len(rows)} balanced rows, "
                            f"{pluralize(len(test_clips), 'clip')} of {', '.join(test_plan.models)}. {controls}",),
                           {"clips": len(test_clips)}))

    # All sounds have one rate and one loudness, so that neither tells the model.
    with stage(reporter, "read"):
        waveforms: dict[str, Samples] = {}
        # The anchor is made from the recording.
        sources = {clip.id: test_plan.clips[REFERENCE if clip.model == ANCHOR else clip.model, clip.sentence].audio
                   for clip in test_clips}
        read = {name: audio.read(check_no_link_out(source, path)) for name, path in sources.items()}
        rate = max(_LEAST_RATE, *(clip_rate for _, clip_rate in read.values()))
        for clip in test_clips:
            waveform, own_rate = read[clip.id]
            samples = audio.to_numpy(audio.resample(waveform, own_rate, rate))
            waveforms[clip.id] = anchor_of(samples, rate, clip.sentence) if clip.model == ANCHOR else samples
            reporter.emit(Progress(len(waveforms), len(test_clips), "clips"))
            check_stop(reporter)

    # The page holds the sounds, and the key stays in the folder.
    with stage(reporter, "write"):
        waveforms, lufs = match_loudness(waveforms, rate)
        about = (f"{_METHODS[options.kind]} {len(rows[0])} sentences a listener, each once, in a Latin square of "
                 f"{pluralize(len(rows), 'row')} and in random order; all clips at {lufs:.1f} LUFS (ITU-R BS.1770-4) "
                 f"and {rate} Hz. {controls}")
        test = ListeningTest(secrets.token_hex(8), options.evaluation, options.kind, test_plan.language, about,
                             test_plan.models, test_clips, trials, rows)
        texts = {number: next(clip.text
                              for (_, number_of_clip), clip in test_plan.clips.items() if number_of_clip == number)
                 for number in test_plan.sentences}
        page = page_of(test, texts, {clip.id: _flac(waveforms[clip.id], rate, clip) for clip in test_clips})
        if len(page.encode()) > listening.PAGE_BYTES:
            raise UserError(f"The test has {len(page) / 1e6:.0f} MB; at most {listening.PAGE_BYTES / 1e6:.0f} fit.",
                            "Compare fewer models, or ask for fewer sentences (--count).")
        write_text(reporter.directory / listening.PAGE, page)
        # This file holds what listeners may not know.
        write_json(reporter.directory / listening.TEST, asdict(test))
    return {"clips": len(test_clips), "pages": len(rows[0]), "rows": len(rows), "lufs": round(lufs, 1),
            "megabytes": round(len(page) / 1e6, 1), "report": listening.PAGE}


def anchor_of(samples: Samples, rate: int, seed: int) -> Samples:
    """The anchor of a recording (S,): noise in proportion to each sample, then the low-pass filter."""
    noise = np.random.default_rng(seed).standard_normal(len(samples))
    noisy = samples * (1 + 10 ** (-ANCHOR_Q_DB / 20) * noise)
    if rate <= 2 * ANCHOR_HZ + 1000:
        return noisy.astype(np.float32)
    taps, beta = signal.kaiserord(60.0, 2 * 400.0 / rate)
    low_pass = signal.firwin(taps | 1, ANCHOR_HZ + 250.0, window=("kaiser", beta), fs=rate)
    return signal.convolve(noisy, low_pass, mode="same").astype(np.float32)


def match_loudness(waveforms: Mapping[str, Samples], rate: int) -> tuple[dict[str, Samples], float]:
    """All waveforms (S,) at one loudness in LUFS, the highest up to -23 that no peak forbids; silent ones unchanged."""
    measured = {name: measures.integrated_loudness(samples, rate) for name, samples in waveforms.items()}
    peaks = {name: float(np.abs(samples).max(initial=0.0)) for name, samples in waveforms.items()}
    target = min([_LUFS, *(value + 20 * np.log10(measures.PEAK_CEILING / peaks[name])
                           for name, value in measured.items() if value is not None)])
    levelled = dict(waveforms)
    for name, value in measured.items():
        if value is not None:
            levelled[name] = (waveforms[name] * 10 ** ((target - value) / 20)).astype(np.float32)
    return levelled, float(target)


def _flac(samples: Samples, rate: int, clip: ListeningClip) -> bytes:
    """The clip as 16-bit FLAC. X of ABX gets dither, so that its bytes differ from those of A and B."""
    if clip.copy:
        dither = np.random.default_rng().triangular(-1, 0, 1, len(samples)) / 32768
        samples = (samples + dither).astype(np.float32)
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="FLAC", subtype="PCM_16")
    return file.getvalue()


def page_of(test: ListeningTest, texts: Mapping[int, str], sounds: Mapping[str, bytes]) -> str:
    """The HTML file: pages and sounds under their ids, and nothing that tells which model they are of.

    A text is shown where its sound is not to be understood from the sound alone.
    """
    shown_texts = {} if test.kind == "rating" else {trial.id: texts[trial.sentence] for trial in test.trials}
    values = {
        "format": listening.FORMAT, "test": test.id, "kind": test.kind, "language": test.language,
        "languageName": language_name(test.language), "rows": test.rows,
        "trials": {trial.id: {"clips": trial.clips, "text": shown_texts.get(trial.id, "")} for trial in test.trials},
        "sounds": {name: base64.b64encode(content).decode() for name, content in sorted(sounds.items())},
    }
    return listening.fill_page(values)
