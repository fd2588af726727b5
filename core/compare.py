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
from core.speech.scoring import load_recogniser_or_warn, measured_by, unmeasured_reason
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
    if not options.finetuned:
        raise UserError("There is no finetuned model to compare with.", "Choose run:ID or export:NAME.")
    cache = model_cache or ModelCache()
    with stage(reporter, "load"):
        settings = (workspace, compute.setup_device(options.device), options.precision, options.voice, options.sound,
                    options.unknown)
        second = cache.synthesizer(options.finetuned, *settings)
        # Both speak in one voice and split texts alike.
        first = cache.synthesizer(options.base, *settings, max_text_ids=second.synthesizer.max_text_ids,
                                  trained_on=second.synthesizer.model)
        synthesizers = {BASE: first.synthesizer, FINETUNED: second.synthesizer}
        base, finetuned = first.synthesizer.model, second.synthesizer.model
        texts = options.texts or _sample_texts(workspace, finetuned)
        recogniser = load_recogniser_or_warn(workspace, finetuned,
                                             lambda message: reporter.emit(WarningRaised(message)),
                                             languages={language for language, _ in texts})
    for reference in (options.base, options.finetuned):
        if note := verification.spoken_note(workspace, reference):
            reporter.emit(WarningRaised(note))
    if base.base_hash != finetuned.base_hash:
        reporter.emit(WarningRaised(f"{finetuned.ref} was not made from {base.ref}: base languages may differ."))

    inputs: list[dict[str, TextInput]] = []
    for language, text in texts:
        second.synthesizer.split(text, language)  # raises `UserError` for what the finetuned model cannot speak
        for note in second.synthesizer.reading_notes(text, language):
            reporter.emit(WarningRaised(note))
        given = base_input(base, finetuned.front_end.verbalize(text, language), language)
        inputs.append({**({BASE: given} if given else {}), FINETUNED: TextInput(text, language)})
    loaded = 2 - first.cached - second.cached
    lines = [f"{pluralize(len(texts), 'text')} through {base.ref} and {finetuned.ref}: voice "
             f"{second.voice}, seed {options.sampling.seed}; {first.precision}"
             f"{'' if loaded else '; already loaded'}."]
    if unused := unused_controls(options.sound, base.family):
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
    parts = [[index for index, one in enumerate(new) if one is kind] for kind in (False, True)]
    batches = sorted(part[start:start + MAX_BATCH_SIZE] for part in parts
                     for start in range(0, len(part), MAX_BATCH_SIZE))
    total = sum(len(synthesizers[side].split(one.text, one.language)) for sides in inputs
                for side, one in sides.items())
    count = CombinedProgress(progress_callback(reporter, _STOPPED), total, "chunks")
    rows: dict[int, ComparedText] = {}
    spoken: list[AudioGenerated] = []
    with stage(reporter, "speak"):
        for batch in batches:
            chunks: dict[tuple[int, str], Iterator[SynthesizedChunk]] = {}
            for side, synthesizer in synthesizers.items():
                own = [index for index in batch if side in inputs[index]]
                pairs = [(inputs[index][side].language, inputs[index][side].text) for index in own]
                progress = count.part(sum(len(synthesizer.split(text, language)) for language, text in pairs))
                streams = synthesizer.synthesize_batch(pairs, options.sampling, progress)
                chunks |= {(index, side): stream for index, stream in zip(own, streams, strict=True)}
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
                for side, one in row.sides.items():
                    score = evaluation.score_waveform(recogniser, one.clip.waveform, one.clip.sample_rate, reference,
                                                      language)
                    row.sides[side] = replace(one, score=score)
                same = ""
                if row.identical is not None and not new[index]:
                    same = "Both sides are bit-identical." if row.identical else "The two sides differ."
                longest_s = max(one.clip.duration_s for one in row.sides.values())  # one time scale for both pictures
                for side, one in row.sides.items():
                    picture = f"{clips.FOLDER}/{index:03d}-{side}.png"
                    clips.save_spectrogram(reporter.directory / picture, one.clip.waveform, one.clip.sample_rate,
                                           longest_s)
                    event = one.clip.event(
                        side, index, text, language, one.score, picture, one.given.note or same,
                        unmeasured_reason(recogniser, language),
                        evaluation.spaced_transcript(recogniser, one.score, reference, language),
                        measured_by(recogniser, language))
                    reporter.emit(event)
                    spoken.append(event)
    made = [rows[index] for index in sorted(rows)]
    facts = {"voice": options.voice or second.voice, "seed": str(options.sampling.seed)}
    clips.write_archive(reporter.directory, sorted(spoken, key=lambda clip: clip.index), {
        BASE: {"model": base.ref, **facts}, FINETUNED: {"model": finetuned.ref, **facts}})

    with stage(reporter, "score recordings"):
        recordings_cers = {code: evaluation.recordings_cer(workspace, finetuned, recogniser, code)
                           for code in dict.fromkeys(row.language for row in made)}
    report = {"recordings_cer": recordings_cers, "rows": [_report_row(row) for row in made]}
    (reporter.directory / REPORT).write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    result: Result = {"texts": len(made), "report": REPORT}
    by_language: dict[str, list[ComparedText]] = defaultdict(list)
    for row in made:
        by_language[row.language].append(row)
    for language, some in by_language.items():
        for side in (BASE, FINETUNED):
            scores = [row.sides[side].score for row in some if side in row.sides]
            known = [score for score in scores if score is not None]
            result[f"error_{language}_{side}"] = evaluation.corpus_score(language, known).error if known else None
        result[f"error_{language}_recordings"] = recordings_cers[language]
        if language not in finetuned.new_languages and language in base.front_end.languages:
            result[f"identical_{language}"] = all(row.identical for row in some)
    result["seconds"] = round(sum(one.clip.synthesis_s for row in made for one in row.sides.values()), 3)
    return result


def _sample_texts(workspace: Workspace, model: TTSModel) -> tuple[tuple[str, str], ...]:
    """Six held-out sentences of each new language, so that no single one decides the impression; one of the others.

    The new ones come first, then those of earlier trainings.
    """
    new = model.new_languages
    codes = sorted(model.front_end.languages, key=lambda code: (code not in new, not model.front_end.is_new(code)))
    found = [(code, one.text) for code in codes for one in evaluation.spread_evenly(
        evaluation.held_out_recordings(workspace, model, code), _NEW_SENTENCES if code in new else 1)]
    if not found:
        raise UserError("There are no texts to compare.", "Give pairs of language and text.")
    return tuple(found)


def _report_row(row: ComparedText) -> dict[str, object]:
    sides = {side: {
        "spoken_text": one.given.text, "spoken_language": one.given.language, "note": one.given.note,
        "path": one.clip.path, "sha256": one.clip.sha256, "chunks": one.clip.chunks,
        "duration_s": round(one.clip.duration_s, 3), "seconds": round(one.clip.synthesis_s, 3),
        "finish_reason": one.clip.finish_reason,
        "peak": round(one.clip.peak, 4), "level_db": round(one.clip.level_db, 1),
        "error": one.score.error if one.score else None, "transcript": one.score.transcript if one.score else "",
    } for side, one in row.sides.items()}
    return {"language": row.language, "text": row.text, "identical": row.identical, **sides}
