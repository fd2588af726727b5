"""The same texts, voice and seed through two models, side by side, with the CER of the original recordings.

The base model has no tokens for a new language: it reads the romanised spelling as one of its languages, and a note
says so. Such texts do not share a batch with others. So texts that both models read are computed in batches of the same
shape, and a base language that did not change is bit-identical.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

from config.errors import UserError
from config.schema import CompareOptions
from core import compute
from core.jobs.events import AudioGenerated, Plan, Result, WarningRaised
from core.jobs.reporter import CombinedProgress, Reporter, pluralize, progress_callback, stage
from core.library import verification
from core.model.loading import TTSModel
from core.speech import clips, evaluation
from core.speech.clips import SynthesizedClip
from core.speech.evaluation import TextInput, base_input
from core.speech.model_cache import ModelCache
from core.speech.scoring import load_recogniser_or_warn
from core.speech.synthesis import MAX_BATCH_SIZE, SynthesizedChunk, unused_controls
from core.workspace import Workspace
from models.base import RecognitionScore

BASE, FINETUNED = "base", "finetuned"
REPORT = "comparison.json"
_NEW_SENTENCES = 6
_STOPPED = "Stopped on request; the audio so far is kept."


@dataclass(frozen=True)
class ComparedSide:
    """One side of one text."""

    given: TextInput
    clip: SynthesizedClip
    score: RecognitionScore | None


@dataclass(frozen=True)
class ComparedText:
    """One text on both sides; a side that cannot read it is missing. `identical`: bit-identical."""

    language: str
    text: str
    sides: dict[str, ComparedSide] = field(default_factory=dict)

    @property
    def identical(self) -> bool | None:
        if len(self.sides) < 2:
            return None
        return self.sides[BASE].clip.sha256 == self.sides[FINETUNED].clip.sha256


def run(options: CompareOptions, workspace: Workspace, reporter: Reporter,
        model_cache: ModelCache | None = None) -> Result:
    """Speak every text with both models, emit the clips, write `comparison.json`.

    Models are taken from `model_cache`, and stay there.
    """
    cache = model_cache or ModelCache()
    with stage(reporter, "load"):
        settings = (workspace, compute.setup_device(options.device), options.precision, options.voice, options.sound,
                    options.unknown)
        finetuned_side = cache.synthesizer(options.finetuned, *settings)
        # Both speak in one voice and split texts alike.
        base_side = cache.synthesizer(options.base, *settings, max_text_ids=finetuned_side.synthesizer.max_text_ids,
                                      trained_on=finetuned_side.synthesizer.model)
        synthesizers = {BASE: base_side.synthesizer, FINETUNED: finetuned_side.synthesizer}
        base, finetuned = base_side.synthesizer.model, finetuned_side.synthesizer.model
        texts = options.texts or _sample_texts(workspace, finetuned)
        recogniser = load_recogniser_or_warn(workspace, finetuned,
                                             lambda message: reporter.emit(WarningRaised(message)),
                                             languages={language for language, _ in texts})
    for reference in (options.base, options.finetuned):
        note = verification.spoken_note(workspace, reference)
        if note:
            reporter.emit(WarningRaised(note))
    if base.base_hash != finetuned.base_hash:
        reporter.emit(WarningRaised(f"{finetuned.ref} was not made from {base.ref}: base languages may differ."))

    # The base reads a new language in letters that it knows, or stays silent.
    inputs: list[dict[str, TextInput]] = []
    for language, text in texts:
        # The check comes first: it raises `UserError` for what the finetuned model cannot speak.
        finetuned_side.synthesizer.split(text, language)
        for note in finetuned_side.synthesizer.reading_notes(text, language):
            reporter.emit(WarningRaised(note))
        spelled = base_input(base, finetuned.front_end.verbalize(text, language), language)
        inputs.append({**({BASE: spelled} if spelled else {}), FINETUNED: TextInput(text, language)})

    loaded = 2 - base_side.cached - finetuned_side.cached
    lines = [f"{pluralize(len(texts), 'text')} through {base.ref} and {finetuned.ref}: voice "
             f"{finetuned_side.voice}, seed {options.sampling.seed}; {base_side.precision}"
             f"{'' if loaded else '; already loaded'}."]
    unused = unused_controls(options.sound, base.family)
    if unused:
        lines.append(f"{', '.join(unused)}: no effect, because {base.family.name} has no such control.")
    notes = [sides[BASE].note for sides in inputs if BASE in sides]
    lines += [note for note in dict.fromkeys(notes) if note]
    reporter.emit(Plan(tuple(lines), {"texts": len(texts), "loaded": loaded}))

    for (language, text), sides in zip(texts, inputs, strict=True):
        if BASE not in sides:
            reporter.emit(WarningRaised(f"The base model has no {language!r} and cannot spell {text!r}: it stays "
                                        f"silent."))

    # Texts that both models read alike share batches, and so do the others.
    new = [language in finetuned.new_languages for language, _ in texts]
    batches: list[list[int]] = []
    for kind in (False, True):
        part = [index for index, is_new in enumerate(new) if is_new is kind]
        batches += [part[start:start + MAX_BATCH_SIZE] for start in range(0, len(part), MAX_BATCH_SIZE)]
    batches.sort()

    total = 0
    for sides in inputs:
        for side, text_input in sides.items():
            total += len(synthesizers[side].split(text_input.text, text_input.language))
    count = CombinedProgress(progress_callback(reporter, _STOPPED), total, "chunks")
    rows: dict[int, ComparedText] = {}
    events: list[AudioGenerated] = []
    with stage(reporter, "speak"):
        for batch in batches:
            chunks: dict[tuple[int, str], Iterator[SynthesizedChunk]] = {}
            for side, synthesizer in synthesizers.items():
                indices = [index for index in batch if side in inputs[index]]
                pairs = [(inputs[index][side].language, inputs[index][side].text) for index in indices]
                progress = count.part(sum(len(synthesizer.split(text, language)) for language, text in pairs))
                streams = synthesizer.synthesize_batch(pairs, options.sampling, progress)
                chunks |= {(index, side): stream for index, stream in zip(indices, streams, strict=True)}

            # Clips are written and scored one by one, so that each can be played at once.
            for index in batch:
                language, text = texts[index]
                reference = finetuned.front_end.verbalize(text, language)
                rows[index] = row = ComparedText(language, text)
                for side in (side for side in synthesizers if side in inputs[index]):
                    clip = clips.write_clip(
                        chunks[index, side], synthesizers[side].sample_rate, reporter, side=side, index=index,
                        text=text, language=language, chunk_stem=f"{index:03d}-{side}-chunk",
                        stem=f"{index:03d}-{side}")
                    row.sides[side] = ComparedSide(inputs[index][side], clip, None)
                # Only texts that both models read alike can be bit-identical.
                same = ""
                if row.identical is not None and not new[index]:
                    same = "Both sides are bit-identical." if row.identical else "The two sides differ."
                # Both pictures have one time scale.
                longest_s = max(entry.clip.duration_s for entry in row.sides.values())
                for side, entry in row.sides.items():
                    picture = f"{clips.FOLDER}/{index:03d}-{side}.png"
                    clips.save_spectrogram(reporter.directory / picture, entry.clip.waveform, entry.clip.sample_rate,
                                           longest_s)
                    event, score = entry.clip.scored(
                        replace(entry.clip.event(side, index, text, language), spectrogram=picture,
                                note=entry.given.note or same), recogniser, reference)
                    row.sides[side] = replace(entry, score=score)
                    reporter.emit(event)
                    events.append(event)

    # The archive and the report hold all texts in the order of their index.
    compared_texts = [rows[index] for index in sorted(rows)]
    facts = {"voice": options.voice or finetuned_side.voice, "seed": str(options.sampling.seed)}
    clips.write_archive(reporter.directory, sorted(events, key=lambda clip: clip.index), {
        BASE: {"model": base.ref, **facts}, FINETUNED: {"model": finetuned.ref, **facts}})

    with stage(reporter, "score recordings"):
        recordings_cers = {code: evaluation.recordings_cer(workspace, finetuned, recogniser, code)
                           for code in dict.fromkeys(row.language for row in compared_texts)}
    report = {"recordings_cer": recordings_cers, "rows": [_report_row(row) for row in compared_texts]}
    (reporter.directory / REPORT).write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    result: Result = {"texts": len(compared_texts), "report": REPORT}
    by_language: dict[str, list[ComparedText]] = defaultdict(list)
    for row in compared_texts:
        by_language[row.language].append(row)
    for language, texts_of_language in by_language.items():
        for side in (BASE, FINETUNED):
            scores = [row.sides[side].score for row in texts_of_language if side in row.sides]
            valid = [score for score in scores if score is not None]
            result[f"error_{language}_{side}"] = evaluation.corpus_score(language, valid).error if valid else None
        result[f"error_{language}_recordings"] = recordings_cers[language]
        if language not in finetuned.new_languages and language in base.front_end.languages:
            result[f"identical_{language}"] = all(row.identical for row in texts_of_language)
    compared_sides = chain.from_iterable(row.sides.values() for row in compared_texts)
    result["seconds"] = round(sum(side.clip.synthesis_s for side in compared_sides), 3)
    return result


def _sample_texts(workspace: Workspace, model: TTSModel) -> tuple[tuple[str, str], ...]:
    """Six held-out sentences of each new language, so that no single one decides the impression; one of the others.

    The new ones come first, then those of earlier trainings.
    """
    new = model.new_languages
    codes = sorted(model.front_end.languages, key=lambda code: (code not in new, not model.front_end.is_new(code)))
    pairs = []
    for code in codes:
        recordings = evaluation.held_out_recordings(workspace, model, code)
        sentences = evaluation.spread_evenly(recordings, _NEW_SENTENCES if code in new else 1)
        pairs += [(code, sentence.text) for sentence in sentences]
    if not pairs:
        raise UserError("There are no texts to compare.", "Give pairs of language and text.")
    return tuple(pairs)


def _report_row(row: ComparedText) -> dict[str, object]:
    sides = {side: {
        "spoken_text": compared.given.text, "spoken_language": compared.given.language, "note": compared.given.note,
        "path": compared.clip.path, "sha256": compared.clip.sha256, "chunks": compared.clip.chunks,
        "duration_s": round(compared.clip.duration_s, 3), "seconds": round(compared.clip.synthesis_s, 3),
        "finish_reason": compared.clip.finish_reason,
        "peak": round(compared.clip.peak, 4), "level_db": round(compared.clip.level_db, 1),
        "error": compared.score.error if compared.score else None,
        "transcript": compared.score.transcript if compared.score else "",
    } for side, compared in row.sides.items()}
    return {"language": row.language, "text": row.text, "identical": row.identical, **sides}
