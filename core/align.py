"""Find where in long recordings their texts are spoken, and cut clips there. Subtitle timestamps are ignored.

The result is segments as `segment` and `transcribe` make them, with the text as it was written, and a score: the mean
probability of the clip's letters where they were found. Subtitles are written with the times that were found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from config import confinement
from config.errors import UserError
from config.schema import AlignOptions
from core.dataset import cutting, languages, reference_text
from core.dataset.cutting import FoundClip, LongRecording, RecordingClips, RecordingCutter, cut_settings, finish_of
from core.dataset.reference_text import AlignedText, ReferenceSentence
from core.jobs.engines import Engine
from core.jobs.events import Plan, Result, WarningRaised
from core.jobs.reporter import Reporter, duration_text, pluralize, stage
from core.library.segments import Segments
from core.sources import dataset_source
from core.speech import transcription as recognisers
from core.speech.transcription import CTCModel, RecogniserSource
from core.text import text_rules
from core.workspace import Workspace
from data.acoustics.voice_activity import detect_voice
from data.ctc_alignment import CTCAligner
from data.durable_files import hash_file
from data.importers import is_audio, sidecars
from data.sound_files import write_denoised

# Files with the number of sentences of each recording's text, and how many were not found.
_COUNTS = "work/sentences"
# The voice over the noise below which a recogniser may find nothing.
_NOISY_DB = 20.0
_SAMPLE = 20_000  # characters from which the script is detected


def run(options: AlignOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Make `segments/NAME` of recordings and their texts; returns the counts."""
    text_path = confinement.open_path(options.text) if options.text else None
    if text_path:
        reference_text.check_reference(text_path)
    # the content of the text counts, not its path only, since the user may correct it
    settings = {**cut_settings(options), **{name: getattr(options, name) for name in (
        "text", "recogniser", "recogniser_language", "revision", "rules", "flag_below", "drop_below")},
        "text_sha256": hash_file(text_path) if text_path and text_path.is_file() else ""}
    cutter = RecordingCutter(workspace, reporter, options.segments, options.language, options.source, "aligned",
                             settings, finish_of(options), options.recogniser,
                             Engine.from_options(options, options.device, reporter))
    languages.warn_doubtful_code(options.language, reporter)
    existing = cutter.existing()
    if existing is not None:
        return {**_report(existing), "state": "already there"}
    # Unknown rules are refused before a recogniser is downloaded.
    text_rules.reading(workspace, options.rules, options.language, "words")

    with dataset_source.open_source(options.source, options.language, workspace, reporter) as gathered:
        recordings = cutting.find_recordings(gathered, options, reporter)
        root = gathered.path if gathered.path.is_dir() else gathered.path.parent
        texts = _read_texts(options, text_path, recordings, root, reporter)
        recordings = [recording for recording in recordings if recording.name in texts]
        sample = " ".join(chain.from_iterable(texts.values()))[:_SAMPLE]
        recogniser = recognisers.find_recogniser(options.recogniser, options.revision, options.language,
                                                 options.recogniser_language, options.device, workspace, reporter)
        load_finder = partial(_TextFinder.load, options, workspace, texts, sample, recogniser)

        length = duration_text(sum(recording.seconds for recording in recordings))
        count = pluralize(sum(len(texts[recording.name]) for recording in recordings), "sentence")
        reporter.emit(Plan((f"{pluralize(len(recordings), 'recording')}, {length}; {count}.",)))
        with stage(reporter, "align"):
            segments = cutter.make(recordings, load_finder)
    return {**_report(segments), "state": "written"}


@dataclass(frozen=True)
class _TextFinder:
    """Finds the clips of a recording by its text."""

    options: AlignOptions
    texts: Mapping[str, list[str]]  # Keys are names of recordings.
    listener: CTCModel
    verbalize: Callable[[str], str]

    @classmethod
    def load(cls, options: AlignOptions, workspace: Workspace, texts: Mapping[str, list[str]], sample: str,
             recogniser: RecogniserSource) -> _TextFinder:
        """Load the recogniser and the text rules; `sample` is some text of the language."""
        reading = text_rules.reading(workspace, options.rules, options.language, "words")
        return cls(options, texts, recogniser.load_ctc_model(sample), reading.verbalize)

    def __call__(self, recording: LongRecording, folder: Path, progress: Callable[[float], None]) -> RecordingClips:
        sentences = reference_text.spell_sentences(self.texts[recording.name],
                                                   lambda word: self.listener.encode(self.verbalize(word)))
        match = aligned(sentences, self.listener, recording.path, progress)
        voice, reasons = None, []

        # A poor match may be the fault of noise: then a denoised copy is searched, and the person is told.
        sure = [clip for clip in self._choose(match, recording)[0] if not clip.doubt]
        if 2 * sum(len(clip.text) for clip in sure) < sum(len(sentence.text) for sentence in sentences):
            voice = detect_voice(recording.path)
            ratio = voice.signal_to_noise_db
            if ratio is not None and ratio < _NOISY_DB:
                cause = (f"its text fits with a mean score of only {match.mean_score:.2f}, and {match.missing} of "
                         f"{pluralize(len(sentences), 'sentence')} were not found. Noise is the likely reason: the "
                         f"voice is only {round(ratio)} dB above it")
                if len(voice.noise):
                    copy = cutting.denoised_copy(folder, recording)
                    write_denoised(recording.path, voice.noise, copy)
                    match = max(match, aligned(sentences, self.listener, copy, progress),
                                key=lambda candidate: candidate.mean_score)
                    copy.unlink()
                    cause += (f". In a denoised copy, made for the search alone, the better score is "
                              f"{match.mean_score:.2f}, and {len(sentences) - match.missing} were found")
                else:
                    cause += (", as far as its quietest moments tell, for it has no pause: other voices or music "
                              "may go on behind the speaker")
                reasons = [f"{cause}."]
            elif not voice.has_voice:
                reasons = ["no voice was detected in it; noise may cover it."]

        # The counts and the subtitles stay in the folder, so that a resumed job can report all recordings.
        counts = folder / _COUNTS / f"{recording.key}.json"
        counts.parent.mkdir(parents=True, exist_ok=True)
        counts.write_text(json.dumps({"sentences": len(match.sentences), "not_found": match.missing}),
                          encoding="utf-8")
        (folder / "aligned").mkdir(exist_ok=True)
        (folder / "aligned" / f"{recording.key}.srt").write_text(reference_text.to_srt(match), encoding="utf-8")

        clips, dropped = self._choose(match, recording)
        noise = np.zeros(0, np.float32)
        if self.options.denoise:
            noise = (voice or detect_voice(recording.path)).noise
        return RecordingClips(clips, noise, [*reasons, *dropped])

    def _choose(self, match: AlignedText, recording: LongRecording) -> tuple[list[FoundClip], list[str]]:
        return reference_text.choose_clips(match, recording.seconds, cutting.limits_of(self.options),
                                           self.options.flag_below, self.options.drop_below)


def _report(segments: Segments) -> Result:
    """The counts of all attempts together, from the files that each recording has in the folder."""
    counts = [json.loads(path.read_text(encoding="utf-8")) for path in (segments.folder / _COUNTS).glob("*.json")]
    sums: Result = {name: sum(counted[name] for counted in counts)
                    for name in ("sentences", "not_found")} if counts else {}
    return {**cutting.summarize(segments), "doubtful": segments.card.doubtful, **sums,
            "mean_score": round(float(np.mean([piece.score for piece in segments.pieces()])), 4)}


def _read_texts(options: AlignOptions, text_path: Path | None, recordings: list[LongRecording], root: Path,
                reporter: Reporter) -> dict[str, list[str]]:
    """By the name of a recording, the text that was given for it, or the one beside it."""
    if text_path:
        if len(recordings) != 1:
            raise UserError(f"One text was given, and there are {len(recordings)} recordings.",
                            "Put a text of the same name beside each recording, and give no text.")
        return {recordings[0].name: reference_text.read_reference(text_path, recordings[0].name,
                                                                   language=options.language)}

    texts: dict[str, list[str]] = {}
    without = []
    # A recording takes the text file that bears its name.
    for recording in recordings:
        place = root / recording.name
        names = sorted(path.name for path in place.parent.iterdir() if path.is_file())
        candidates = [name for name in names if name.lower().endswith(sidecars.SUFFIXES)]
        sounds = [name for name in names if is_audio(name)]
        own_sidecars = sidecars.matching_sidecars(place.name, sidecars.by_stems(candidates), sounds, candidates,
                                                  options.language)
        if own_sidecars:
            texts[recording.name] = reference_text.read_reference(place.parent / own_sidecars[0], recording.name,
                                                                   language=options.language)
        else:
            without.append(recording.name)

    # Some recordings may lack a text, but not all.
    if not texts:
        raise UserError(f"No recording in {root} has a text beside it.",
                        "Give the text (--text FILE), or put a text or subtitles of the same name beside each "
                        "recording; recordings without text are cut with `segment`.")
    for name in without:
        reporter.emit(WarningRaised(f"{name} is skipped: there is no text beside it."))
    return texts


def aligned(sentences: list[ReferenceSentence], listener: CTCModel, path: Path,
            progress: Callable[[float], None]) -> AlignedText:
    """Find the words of a text in a recording."""
    # The label between words, if the recogniser has one.
    separator = listener.separator
    labels: list[list[int]] = []
    edges: list[tuple[int, int]] = []  # letters of the first and of the last word of each sentence

    for sentence in sentences:
        words = [word.ids for word in sentence.words if word.ids]
        ids_of_sentence: list[int] = []
        for ids in words:
            ids_of_sentence += [separator] if ids_of_sentence and separator is not None else []
            ids_of_sentence += ids
        labels.append(ids_of_sentence)
        edges.append((len(words[0]), len(words[-1])) if words else (0, 0))

    if not any(labels):
        raise UserError("The recogniser has no letters for the text.",
                        "Choose a recogniser of this language, or text rules that write it out.")
    alignment = CTCAligner(labels, listener.blank, edges=edges)
    for block in recognisers.stream_log_probabilities(listener, path, progress):
        alignment.push(block)
    return reference_text.match_words(sentences, alignment.finish(), listener.frame_s, separator is not None)
