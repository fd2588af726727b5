"""The same texts, voice and seed through two models, side by side, with a judge who knows its own error.

For a language that the base model lacks, its side reads the romanised spelling as one of
its own languages, and says so: it has no tokens for the text itself. Such texts share no
batch with the others: what both models read alike is then computed in batches of the same
shape on both sides, so that a base language which did not change is the same sound to the bit.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from config.errors import UserError
from config.schema import CompareOptions
from core import compute
from core.jobs.events import Plan, Result, WarningRaised
from core.jobs.reporter import CombinedProgress, Reporter, pluralize, progress_callback, stage
from core.speech import clips, evaluate, originals, spectrogram
from core.speech.clips import Clip
from core.speech.judges import judge_of, unmeasured
from core.speech.shelf import Shelf
from core.speech.speak import LARGEST_GROUP, Segment, unused_controls
from core.voice_model.loading import VoiceModel
from core.workspace import Workspace
from data.languages.latin import romanise
from models.base import Verdict

BASE, FINETUNED = "base", "finetuned"
REPORT = "comparison.json"
_STOPPED = "Stopped on request; what was spoken is kept."


@dataclass(frozen=True)
class Reading:
    """What a side really speaks for a text; `note` says where that differs from what was asked."""

    text: str
    language: str
    note: str = ""


@dataclass(frozen=True)
class Spoken:
    """One side of one text."""

    reading: Reading
    clip: Clip
    verdict: Verdict | None


@dataclass(frozen=True)
class Row:
    """One text on both sides; a side that cannot speak it is missing. `identical`: equal to the bit."""

    language: str
    text: str
    sides: dict[str, Spoken] = field(default_factory=dict)

    @property
    def identical(self) -> bool | None:
        if len(self.sides) < 2:
            return None
        return self.sides[BASE].clip.sha256 == self.sides[FINETUNED].clip.sha256


def run(options: CompareOptions, workspace: Workspace, reporter: Reporter, shelf: Shelf | None = None) -> Result:
    """Speak every text with both models, emit the clips, write `comparison.json`.

    What is loaded is looked for on the `shelf` first, and left there.
    """
    comparison = Comparison(options, workspace, reporter, shelf or Shelf())
    with stage(reporter, "speak"):
        rows = comparison.rows()
    with stage(reporter, "judge originals"):
        languages = dict.fromkeys(row.language for row in rows)
        own_errors = {code: comparison.error_on_originals(code) for code in languages}
    _write_report(reporter, rows, own_errors)
    return _result(rows, own_errors, comparison.finetuned)


class Comparison:
    """Both models, loaded and checked against all texts before anything is spoken."""

    def __init__(self, options: CompareOptions, workspace: Workspace, reporter: Reporter, shelf: Shelf) -> None:
        self._options, self._workspace, self._reporter = options, workspace, reporter
        if not options.finetuned:
            raise UserError("There is no finetuned model to compare with.", "Choose run:ID or export:NAME.")
        with stage(reporter, "load"):
            device = compute.setup_device(options.device)
            asked = (workspace, device, options.precision, options.voice, options.sound)
            finetuned = shelf.speaker(options.finetuned, *asked)
            base = shelf.speaker(options.base, *asked, longest=finetuned.speaker.longest)  # both split texts alike
            self._speakers = {BASE: base.speaker, FINETUNED: finetuned.speaker}
            self._loaded, self._computed_in = 2 - base.kept - finetuned.kept, base.computed_in
            self.base, self.finetuned = base.speaker.model, finetuned.speaker.model
            self.texts = options.texts or _sample_texts(workspace, self.finetuned)
            self._judge = judge_of(workspace, self.finetuned, lambda message: reporter.emit(WarningRaised(message)),
                                   spoken={language for language, _ in self.texts})
        if self.base.base_hash != self.finetuned.base_hash:
            reporter.emit(WarningRaised(f"{self.finetuned.ref} was not made from {self.base.ref}: base languages may "
                                        f"differ."))
        self._readings = [self._read(language, text) for language, text in self.texts]
        self._announce()

    def rows(self) -> list[Row]:
        """Every text on both sides, several at a time."""
        made: dict[int, Row] = {}
        total = sum(len(self._speakers[side].pieces(one.text, one.language))
                    for sides in self._readings for side, one in sides.items())
        count = CombinedProgress(progress_callback(self._reporter, _STOPPED), total, "pieces")
        for together in self._groups():
            heard = {side: self._heard(side, together, count) for side in self._speakers}
            for index in together:
                made[index] = self._row(index, {side: own[index] for side, own in heard.items() if index in own})
        return [made[index] for index in sorted(made)]

    def _groups(self) -> list[list[int]]:
        """The texts that are spoken together, by number: those that both models read alike, and the others."""
        alike = [not self.finetuned.front_end.is_new(language) for language, _ in self.texts]
        parted = [[index for index, one in enumerate(alike) if one is kind] for kind in (True, False)]
        return sorted(part[start:start + LARGEST_GROUP] for part in parted
                      for start in range(0, len(part), LARGEST_GROUP))

    def _heard(self, side: str, together: Sequence[int], count: CombinedProgress) -> dict[int, Iterator[Segment]]:
        """The texts of these numbers as a side speaks them, where it can."""
        own, speaker = [index for index in together if side in self._readings[index]], self._speakers[side]
        asked = [(one.language, one.text) for one in (self._readings[index][side] for index in own)]
        progress = count.part(sum(len(speaker.pieces(text, language)) for language, text in asked))
        return dict(zip(own, speaker.say_each(asked, self._options.sampling, progress), strict=True))

    def _row(self, index: int, heard: dict[str, Iterator[Segment]]) -> Row:
        """One text on both sides; the pictures share the time scale of the longer clip."""
        language, text = self.texts[index]
        spoken = {side: self._spoken(side, index, segments) for side, segments in heard.items()}
        row = Row(language, text, spoken)
        max_clip_s = max(side.clip.duration_s for side in spoken.values())
        for side, made in spoken.items():
            picture = f"{clips.FOLDER}/{index:03d}-{side}.png"
            spectrogram.save(self._reporter.directory / picture, made.clip.waveform, made.clip.sample_rate, max_clip_s)
            note = made.reading.note or self._sameness(row)
            self._reporter.emit(made.clip.event(side, index, text, language, made.verdict, picture, note,
                                                unmeasured(self._judge, language)))
        return row

    def _sameness(self, row: Row) -> str:
        """Of a language that the base has: whether both sides are the same sound."""
        if row.identical is None or self.finetuned.front_end.is_new(row.language):
            return ""
        return "Both sides are the same sound, equal to the bit." if row.identical else "The two sides differ."

    def error_on_originals(self, language: str) -> float | None:
        return originals.judge_error(self._workspace, self.finetuned, self._judge, language)

    def _spoken(self, side: str, index: int, segments: Iterator[Segment]) -> Spoken:
        (language, text), stem = self.texts[index], f"{index:03d}-{side}"
        clip = clips.write(segments, self._speakers[side].sample_rate, self._reporter, side=side, index=index,
                           piece_stem=f"{stem}-part", stem=stem)
        said = self.finetuned.front_end.verbalize(text, language)
        return Spoken(self._readings[index][side], clip,
                      originals.verdict(self._judge, clip.waveform, clip.sample_rate, said, language))

    def _read(self, language: str, text: str) -> dict[str, Reading]:
        """How each side reads a text; raises `UserError` for what the finetuned model cannot speak."""
        self._speakers[FINETUNED].pieces(text, language)
        found = {FINETUNED: Reading(text, language)}
        base = reading(self.base, self.finetuned.front_end.verbalize(text, language), language)
        return {BASE: base, **found} if base else found

    def _announce(self) -> None:
        count = len(self.texts)
        lines = [f"{pluralize(count, 'text')} through {self.base.ref} and {self.finetuned.ref}: "
                 f"voice {self._options.voice or 'of the model'}, seed {self._options.sampling.seed}; "
                 f"{self._computed_in}{'' if self._loaded else '; loaded already'}."]
        if unused := unused_controls(self._options.sound, self.base.family):
            lines.append(f"{', '.join(unused)}: {self.base.family.name} has no such control; it changes nothing.")
        notes = [sides[BASE].note for sides in self._readings if BASE in sides]
        lines += [note for note in dict.fromkeys(notes) if note]
        self._reporter.emit(Plan(tuple(lines), {"texts": count, "loaded": self._loaded}))
        for (language, text), sides in zip(self.texts, self._readings, strict=True):
            if BASE not in sides:
                message = f"The base model has no {language!r} and cannot spell {text!r}: it stays silent."
                self._reporter.emit(WarningRaised(message))


def reading(model: VoiceModel, text: str, language: str) -> Reading | None:
    """How `model` reads a text: as it stands, or romanised when it lacks the language; None when it cannot."""
    if language in model.front_end.languages:
        return Reading(text, language)
    spelled = romanise(text)
    own = sorted(model.front_end.base_languages, key=lambda code: code != "en")
    for code in own:
        if model.front_end.unready(code):
            continue
        speakable = model.front_end.normalise(spelled, code) and not model.front_end.unknown_characters(spelled, code)
        if speakable:
            note = f"The base model has no {language!r}: it reads the romanised spelling {spelled!r} as {code!r}."
            return Reading(spelled, code, note)
    return None


def _sample_texts(workspace: Workspace, model: VoiceModel) -> tuple[tuple[str, str], ...]:
    """One held-out sentence of each language, new languages first."""
    codes = sorted(model.front_end.languages, key=lambda code: not model.front_end.is_new(code))
    found = [(code, known[0].text) for code in codes if (known := originals.recordings(workspace, model, code))]
    if not found:
        raise UserError("There are no texts to compare.", "Give pairs of language and text.")
    return tuple(found)


def _write_report(reporter: Reporter, rows: Sequence[Row], own_errors: dict[str, float | None]) -> None:
    values = {"error_on_originals": own_errors, "rows": [_row_values(row) for row in rows]}
    text = json.dumps(values, ensure_ascii=False, indent=1) + "\n"
    (reporter.directory / REPORT).write_text(text, encoding="utf-8")


def _row_values(row: Row) -> dict[str, object]:
    sides = {side: {
        "spoken_text": made.reading.text, "spoken_language": made.reading.language, "note": made.reading.note,
        "path": made.clip.path, "sha256": made.clip.sha256, "segments": made.clip.segments,
        "duration_s": round(made.clip.duration_s, 3), "seconds": round(made.clip.seconds, 3),
        "peak": round(made.clip.peak, 4), "level_db": round(made.clip.level_db, 1),
        "error": made.verdict.error if made.verdict else None, "heard": made.verdict.heard if made.verdict else "",
    } for side, made in row.sides.items()}
    return {"language": row.language, "text": row.text, "identical": row.identical, **sides}


def _result(rows: Sequence[Row], own_errors: dict[str, float | None], model: VoiceModel) -> Result:
    """Flat: errors by side and language, and whether base languages sound the same to the bit."""
    result: Result = {"texts": len(rows), "report": REPORT}
    by_language: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_language[row.language].append(row)
    for language, own in by_language.items():
        for side in (BASE, FINETUNED):
            verdicts = [made.verdict for row in own if (made := row.sides.get(side)) and made.verdict]
            result[f"error_{side}_{language}"] = evaluate.score(language, verdicts).error if verdicts else None
        result[f"error_originals_{language}"] = own_errors[language]
        if not model.front_end.is_new(language):
            result[f"identical_{language}"] = all(row.identical for row in own)
    result["seconds"] = round(sum(made.clip.seconds for row in rows for made in row.sides.values()), 3)
    return result
