"""Held-out sentences with their original recordings, and what the judge makes of them.

An error of synthesized speech says little without the judge's own error on recordings of
the same language, so the two are always shown together.
"""

from __future__ import annotations

import torch

from core.library import exports, records
from core.library.catalog import resolve
from core.library.records import CheckpointRecord
from core.speech import evaluate
from core.speech.evaluate import HeldOutSentence
from core.speech.judges import Hearing
from core.voice_model.loading import VoiceModel
from core.workspace import Workspace
from data import manifest
from data.acoustics import audio
from models.base import Verdict

_MOST = 40  # recordings that are judged


def recordings(workspace: Workspace, model: VoiceModel, language: str) -> list[HeldOutSentence]:
    """Held-out sentences of `language` with recordings; none when they are not on this machine."""
    if not model.front_end.is_new(language):
        return evaluate.held_out(model, language)
    dataset = _dataset(workspace, model)
    if dataset is None or dataset.card.language != language:
        return []
    said = model.front_end.verbalize  # a judge hears words, no digits
    return [HeldOutSentence(said(clip.text, language),
                            dataset.audio_path(clip)) for clip in dataset.split(manifest.HELD_OUT)]


def longest_texts(workspace: Workspace, model: VoiceModel) -> dict[str, int]:
    """Text ids of the longest sentence that each language was trained or measured on.

    Positions beyond it are there, but nothing is known of how they sound, so longer texts are spoken in parts.
    """
    found = dict(exports.record_of(model).longest_texts) if model.ref.startswith("export:") else {}
    for language in model.front_end.languages:
        texts = [sentence.text for sentence in recordings(workspace, model, language)]
        if model.front_end.is_new(language) and (dataset := _dataset(workspace, model)) is not None:
            texts = [clip.text for clip in dataset.clips if clip.language == language]
        known = [text for text in texts if not model.front_end.unknown_characters(text, language)]
        if known:
            found[language] = max(len(model.front_end.encode(text, language)) for text in known)
    return found


def judge_error(workspace: Workspace, model: VoiceModel, judge: Hearing | None, language: str) -> float | None:
    """The judge's error on original recordings of `language`; None when there is nothing to measure it on."""
    if judge is None or language not in judge.languages:
        return None
    sentences = evaluate.chosen(recordings(workspace, model, language), _MOST)
    verdicts = [_heard(judge, sentence, language) for sentence in sentences if sentence.original is not None]
    if verdicts:
        return evaluate.score(language, verdicts).error
    if model.ref.startswith("export:"):
        return exports.record_of(model).judge_errors.get(language)
    return None


def verdict(judge: Hearing | None, waveform: torch.Tensor, sample_rate: int, text: str,
            language: str) -> Verdict | None:
    """What the judge makes of waveform (S,); None when it does not know the language."""
    if judge is None or language not in judge.languages:
        return None
    return judge.verdict(waveform, sample_rate, text, language)


def _heard(judge: Hearing, sentence: HeldOutSentence, language: str) -> Verdict:
    assert sentence.original is not None
    waveform, sample_rate = audio.read(sentence.original)
    return judge.verdict(waveform, sample_rate, sentence.text, language)


def _dataset(workspace: Workspace, model: VoiceModel) -> manifest.PreparedDataset | None:
    """The dataset that `model` was trained on, when it is in the workspace."""
    kind = model.ref.partition(":")[0]
    if kind == "run":
        folder = resolve(workspace, model.ref).folder
        name = records.read_record(folder / records.CHECKPOINT, CheckpointRecord).dataset
    elif kind == "export":
        name = exports.record_of(model).dataset
    else:
        return None
    return manifest.load(workspace.dataset(name)) if name in workspace.list_datasets() else None
