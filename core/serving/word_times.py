"""When each word of a synthesized text is spoken, by CTC alignment with a recogniser of the language."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from config.errors import UserError
from core.jobs.reporter import Reporter
from core.library.lineage import Model
from core.sources.recognisers import BUILT_IN
from core.speech import transcription
from core.speech.transcription import CTCModel
from core.workspace import Workspace
from data.acoustics import audio
from data.ctc_alignment import CTCAligner


@dataclass(frozen=True)
class WordTime:
    """A word, and the seconds from its begin to its end; None for a word without letters of the recogniser."""

    word: str
    start_s: float | None
    end_s: float | None


def load_word_recogniser(workspace: Workspace, reference: str, language: str, new_languages: Collection[str],
                         device: str, reporter: Reporter) -> CTCModel:
    """The recogniser of a language that gives the time of each letter; `UserError` if there is none.

    For a new language of the model at `reference` it is that of its training.
    """
    model, name, its_language = Model.open(workspace, reference), BUILT_IN, ""
    if model.kind != "base" and language in new_languages:
        record = model.record
        name, its_language = record.recogniser or BUILT_IN, record.recogniser_language
    try:
        return transcription.load_ctc_model(name, "main", language, its_language, "", device, workspace, reporter)
    except UserError as error:
        raise UserError(f"No recogniser gives word times in {language!r}: {error.message}",
                        "Leave out the times of words.") from error


def align_words(text: str, waveform: np.ndarray, sample_rate: int, recogniser: CTCModel) -> list[WordTime]:
    """The time of each word of `text`, as it is written between spaces, in its speech (S,)."""
    words = text.split()
    spelled = [recogniser.encode(word) for word in words]
    if not any(spelled):
        raise UserError("The recogniser has no letters for the text, so its words have no times.",
                        "Leave out `timestamps`.")
    labels: list[int] = []
    first_labels: list[int | None] = []  # The place of each word's first letter in `labels`.
    for ids in spelled:
        if ids and labels and recogniser.separator is not None:
            labels.append(recogniser.separator)
        first_labels.append(len(labels) if ids else None)
        labels += ids

    resampled = audio.resample(torch.from_numpy(waveform), sample_rate, recogniser.sample_rate).numpy()
    aligner = CTCAligner([labels], recogniser.blank, edges=[_edges(spelled)])
    aligner.push(recogniser.log_probabilities(resampled))
    aligned = aligner.finish()

    times: list[WordTime] = []
    for word, ids, start in zip(words, spelled, first_labels, strict=True):
        if start is None or aligned.begins[start] < 0:
            times.append(WordTime(word, None, None))
            continue
        begin, end = aligned.begins[start], aligned.ends[start + len(ids) - 1]
        times.append(WordTime(word, round(float(begin) * recogniser.frame_s, 3),
                              round(float(end) * recogniser.frame_s, 3)))
    return times


def _edges(spelled: Sequence[Sequence[int]]) -> tuple[int, int]:
    """The numbers of labels of the first and the last word that has some."""
    lengths = [len(ids) for ids in spelled if ids]
    return lengths[0], lengths[-1]
