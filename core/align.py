"""Find where in long recordings their texts are said, and cut clips there; times of subtitles are not believed.

What comes out are segments as `segment` and `transcribe` make them, with the text as it was written, and a score: the
mean probability of the clip's letters where they were found. Subtitles are written anew with the times that were found.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from config.errors import UserError
from config.schema import AlignOptions
from core.dataset import languages
from core.incoming import sources
from core.job.journal import Plan, Result, Warned
from core.job.reporter import Reporter, counted, stage
from core.library.records import hash_file
from core.segment import cut_settings, finish_of
from core.segments import cutting, said
from core.segments.cutting import Chosen, Cutter, Recording
from core.segments.folder import Segments
from core.segments.matching import Match, chosen_clips, match_words, subtitles
from core.segments.said import Line, Sentence
from core.speech import transcription as recognisers
from core.speech.transcription import CTCModel
from core.text import text_rules
from core.workspace import Workspace
from data import long_audio
from data.ctc_alignment import Alignment
from data.cuts import Limits
from data.importers import companions, is_audio

_COUNTS = "work/sentences"  # of each recording, how many its text has and how many were not heard
_SAMPLE = 20_000  # characters by which the script is known


@dataclass(frozen=True)
class _Texts:
    """The sentences of each recording, by its name; those without any are named."""

    by_recording: dict[str, list[Line]]
    without: tuple[str, ...]


def run(options: AlignOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Make `segments/NAME` of recordings and their texts; hands back the counts."""
    limits = cutting.limits_of(options)
    if options.text:
        said.check_text(Path(options.text))
    cutter = Cutter(workspace, reporter, options.segments, options.language, options.source, "aligned",
                    _settings(options), finish_of(options), options.recogniser)
    languages.tell_doubt(options.language, reporter)
    there = cutter.there()
    if there is not None:
        return {**_report(there), "state": "already there"}
    with sources.gathered(options.source, options.language, workspace, reporter) as gathered:
        found = cutting.recordings(gathered, options, reporter)
        root = gathered.path if gathered.path.is_dir() else gathered.path.parent
        texts = _texts(options, found, root)
        for name in texts.without:
            reporter.emit(Warned(f"{name} is left out: there is no text beside it."))
        found = [one for one in found if one.name in texts.by_recording]
        sample = " ".join(line.text for lines in texts.by_recording.values() for line in lines)[:_SAMPLE]
        listener = recognisers.load_ctc_model(options.recogniser, options.revision, options.language,
                                             options.recogniser_language, sample, options.device, workspace, reporter)
        hours = sum(one.seconds for one in found) / 3600
        count = sum(len(texts.by_recording[one.name]) for one in found)
        reporter.emit(Plan((f"{counted(len(found), 'recording')}, {hours:.2f} hours; {counted(count, 'sentence')}.",)))
        with stage(reporter, "align"):
            segments = cutter.make(found, _by_text(options, limits, texts, listener, workspace))
    return {**_report(segments), "state": "written"}


def _report(segments: Segments) -> Result:
    """What all tries together found, by what each recording left in the folder."""
    counts = [json.loads(path.read_text(encoding="utf-8")) for path in (segments.folder / _COUNTS).glob("*.json")]
    sums: Result = {name: sum(one[name] for one in counts) for name in ("sentences", "not_found")} if counts else {}
    return {**cutting.report(segments), "doubtful": segments.card.doubtful, **sums,
            "mean_score": round(float(np.mean([piece.score for piece in segments.pieces()])), 4)}


def _settings(options: AlignOptions) -> dict[str, object]:
    """All that decides what comes out beside the recordings: of a text what it says, since a person may mend it."""
    names = ("text", "recogniser", "recogniser_language", "revision", "rules", "flag_below", "drop_below")
    text = Path(options.text) if options.text else None
    said_hash = hash_file(text) if text is not None and text.is_file() else ""
    return {**cut_settings(options), **{name: getattr(options, name) for name in names}, "text_sha256": said_hash}


def _texts(options: AlignOptions, found: list[Recording], root: Path) -> _Texts:
    """The text that was given for the one recording, or that beside each."""
    if options.text:
        if len(found) != 1:
            raise UserError(f"One text was given, and there are {len(found)} recordings.",
                            "Put a text of the same name beside each recording, and give no text.")
        return _Texts({found[0].name: said.lines_of(Path(options.text), found[0].name)}, ())
    by_recording, without = {}, []
    for recording in found:
        place = root / recording.name
        names = sorted(path.name for path in place.parent.iterdir() if path.is_file())
        texts = [name for name in names if name.lower().endswith(companions.SUFFIXES)]
        sounds = [name for name in names if is_audio(name)]
        mine = companions.matching(place.name, companions.by_stems(texts), sounds, texts, options.language)
        if mine:
            by_recording[recording.name] = said.lines_of(place.parent / mine[0], recording.name)
        else:
            without.append(recording.name)
    if not by_recording:
        raise UserError(f"No recording in {root} has a text beside it.",
                        "Give the text (--text FILE), or put a text or subtitles of the same name beside each "
                        "recording; recordings without text are cut with `segment`.")
    return _Texts(by_recording, tuple(without))


def _by_text(options: AlignOptions, limits: Limits, texts: _Texts, listener: CTCModel,
             workspace: Workspace) -> cutting.Choose:
    written_out = text_rules.reading(workspace, options.rules, options.language, "words").written_out

    def choose(recording: Recording, folder: Path, tell: Callable[[float], None]) -> Chosen:
        sentences = said.spelled(texts.by_recording[recording.name], lambda word: listener.encode(written_out(word)))
        match = aligned(sentences, listener, recording.path, tell)
        counts = folder / _COUNTS / f"{recording.key}.json"
        counts.parent.mkdir(parents=True, exist_ok=True)
        counts.write_text(json.dumps({"sentences": len(match.sentences), "not_found": match.missing}), encoding="utf-8")
        aside = folder / "aligned"
        aside.mkdir(exist_ok=True)
        (aside / f"{recording.key}.srt").write_text(subtitles(match), encoding="utf-8")
        clips, left_out = chosen_clips(match, recording.seconds, limits, options.flag_below,
                                       options.drop_below)
        noise = long_audio.hear(recording.path).noise if options.denoise else np.zeros(0, np.float32)
        return Chosen(clips, noise, left_out)

    return choose


def aligned(sentences: list[Sentence], listener: CTCModel, path: Path, tell: Callable[[float], None]) -> Match:
    """Where the words of a text are in a recording."""
    separator = listener.separator
    labels = [_labels(sentence, separator) for sentence in sentences]
    if not any(labels):
        raise UserError("The recogniser has no letters for the text.",
                        "Choose a recogniser of this language, or text rules that write it out.")
    alignment = Alignment(labels, listener.blank, edges=[_edges(sentence) for sentence in sentences])
    for block in recognisers.stream_log_probabilities(listener, path, tell):
        alignment.push(block)
    return match_words(sentences, alignment.finish(), listener.frame_s, separator is not None)


def _edges(sentence: Sentence) -> tuple[int, int]:
    """Letters of its first and of its last word."""
    sizes = [len(word.ids) for word in sentence.words if word.ids]
    return (sizes[0], sizes[-1]) if sizes else (0, 0)


def _labels(sentence: Sentence, separator: int | None) -> list[int]:
    """The letters of a sentence, with what stands between words where the recogniser writes that."""
    found: list[int] = []
    for word in sentence.words:
        if word.ids:
            found += [separator] if found and separator is not None else []
            found += word.ids
    return found
