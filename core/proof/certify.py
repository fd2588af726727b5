"""Compute a certificate: the checkpoint is loaded afresh from its files and held against the base's.

Nothing is taken from the run's memory but one hash that the trainer wrote down when it
saved. Probes are teacher-forced samples of every base language, never trained on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from config.errors import UserError
from core import compute
from core.job.counting import OneCount
from core.job.journal import Progress
from core.job.reporter import Tell, to_nobody
from core.library import records
from core.library.records import CheckpointRecord, ExtensionRecord
from core.proof import rests_on
from core.proof.certificate import Certificate, Check, LanguageError, Result
from core.speech import evaluate
from core.speech.evaluate import HeldOutSentence, Studio
from core.speech.judges import judge_of, unmeasured
from core.training import replay
from core.training.replay import ProbeSample
from core.voice_model.loading import VoiceModel, load_base, load_checkpoint, load_extension
from core.voice_model.prefix import base_tensors, hash_tensors
from core.workspace import Workspace
from data import manifest
from data.manifest import HELD_OUT

SENTENCES = 40  # spoken and judged in each language
COUNTED = "sentences"
CHOSE = " on the sentences that chose the checkpoint"


def _to_nobody(message: str) -> None:
    """Where a warning goes that nobody asked for."""


Material = Mapping[str, tuple[VoiceModel, list[HeldOutSentence]]]
"""By language: the model to compare with, and what both speak."""


@dataclass(frozen=True)
class Work:
    """All that a certificate needs, loaded and counted: the two models side by side, and what is asked of them."""

    base: VoiceModel
    finetuned: VoiceModel
    record: CheckpointRecord
    probes: list[ProbeSample]
    studio: Studio
    material: Material
    missing: Mapping[str, list[str]]  # languages that cannot be judged, by reason
    content: str = ""

    @property
    def size(self) -> int:
        """Sentences to speak, twice, recordings to judge and probes to compare."""
        return 2 * self.spoken + self.recorded + len(self.probes)

    @property
    def spoken(self) -> int:
        return sum(len(sentences) for _, sentences in self.material.values())

    @property
    def recorded(self) -> int:
        return sum(one.original is not None for _, sentences in self.material.values() for one in sentences)

    def make(self, tell: Tell = to_nobody) -> Certificate:
        """The certificate; `tell` hears one count over every sentence and probe, and may end it."""
        count = OneCount(tell, self.size, COUNTED)
        errors, judged = _errors(self, count)
        checks = (*_tensor_checks(self), _logits(self, count.part(len(self.probes))), _tokens(self), _front_end(self),
                  judged)
        record, base = self.record, self.base
        return Certificate(f"run:{record.run}@{record.step}", record.run, record.step, record.scope,
                           record.origin.model, record.extension, base.base_hash,
                           self.finetuned.front_end.fingerprint, time.time(), checks, tuple(errors), self.content)


def prepare(workspace: Workspace, folder: Path, device: torch.device, sentences: int = SENTENCES,
            content: str = "", warn: Callable[[str], None] = _to_nobody) -> Work:
    """The work of a certificate of the checkpoint in `folder`, loaded from its files; `content` where it is known.

    `warn` hears why the recogniser of the training does not judge, where it cannot be had. Such a certificate rests on
    nothing that would be found again: it is made anew when the recogniser is there.
    """
    record = records.read(folder / records.CHECKPOINT, CheckpointRecord)
    finetuned = load_checkpoint(workspace, folder, device)
    base = load_base(workspace, record.origin.model, device)
    content = content or rests_on.content(workspace, folder, device.type, sentences)
    work = _work(workspace, base, finetuned, record, sentences, warn)
    whole = not any(unmeasured(work.studio.judge, language) for language in finetuned.front_end.languages)
    return replace(work, content=content if whole else "")


def certify_folder(workspace: Workspace, folder: Path, device: torch.device, sentences: int = SENTENCES,
                   tell: Tell = to_nobody, warn: Callable[[str], None] = _to_nobody) -> Certificate:
    """The certificate of the checkpoint in `folder`, computed now."""
    return prepare(workspace, folder, device, sentences, warn=warn).make(tell)


def certify_model(workspace: Workspace, base: VoiceModel, finetuned: VoiceModel, record: CheckpointRecord,
                  sentences: int = SENTENCES, tell: Tell = to_nobody) -> Certificate:
    """The certificate of `finetuned`, of which `record` says what it is and what was trained of it."""
    return _work(workspace, base, finetuned, record, sentences, _to_nobody).make(tell)


def _work(workspace: Workspace, base: VoiceModel, finetuned: VoiceModel, record: CheckpointRecord, sentences: int,
          warn: Callable[[str], None]) -> Work:
    studio = Studio.of(base, judge_of(workspace, finetuned, warn, record), remember=True)
    clips = replay.load(base, studio.voices).probe_clips
    work = Work(base, finetuned, record, replay.probes(clips, base.model.prompt_length), studio, {}, {})
    material: dict[str, tuple[VoiceModel, list[HeldOutSentence]]] = {}
    missing: dict[str, list[str]] = {}
    for language in finetuned.front_end.languages:
        try:
            before, found = _material(workspace, work, language)
            if not studio.judges(language):
                reason = unmeasured(studio.judge, language)
                raise UserError(f"not measured, because {reason}" if reason else "no judge knows it")
        except UserError as error:
            missing.setdefault(error.message, []).append(language)
            continue
        material[language] = before, evaluate.chosen(found, sentences)
    return replace(work, material=material, missing=missing)


def _verdict(good: bool) -> Result:
    return "passed" if good else "failed"


def _tensor_checks(case: Work) -> list[Check]:
    before, after = case.base.model.module.state_dict(), base_tensors(case.finetuned.model.module)
    tables = [f"{name}.weight" for name in case.base.model.text_tables]
    wanted = hash_tensors({name: before[name] for name in tables})
    seen = hash_tensors({name: after[name] for name in tables if name in after})
    rows = case.base.front_end.prefix_size
    equal = sum(name in after and torch.equal(before[name], after[name]) for name in before)
    changed = set(case.finetuned.changed) & set(before)
    whole, whole_after = (hash_tensors({name: value for name, value in tensors.items() if name not in changed})
                          for tensors in (before, after))
    return [
        Check("prefix_rows", _verdict(wanted == seen), wanted, seen,
              f"The {rows} old rows of {' and '.join(case.base.model.text_tables)} are those of the base file."),
        Check("frozen_tensors", _verdict(whole == whole_after), f"{len(before) - len(changed)} tensors, {whole}",
              f"{equal} equal, {whole_after}",
              "Every tensor of the base model is what it was." if not changed else
              "Every tensor of the base model that was not to be trained is what it was."),
        *([_changes(before, after, changed)] if changed else []),
        Check("frozen_in_training", _verdict(case.record.frozen_hash == case.base.base_hash), case.base.base_hash,
              case.record.frozen_hash, "The same, in the trainer's memory when it saved this checkpoint."),
    ]


def _changes(before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor], changed: set[str]) -> Check:
    """How far a run in `full` took the base."""
    moved = {name: (after[name].float() - before[name].float()) for name in changed}
    size = sum(value.numel() for value in moved.values())
    values = sum(int((value != 0).sum()) for value in moved.values())
    norms = [sum(part.float().square().sum().item() for part in parts) ** 0.5
             for parts in (moved.values(), [before[name] for name in changed])]
    return Check("changed_tensors", "measured", "", f"{len(changed)} of {len(before)} tensors; {values:,} of "
                 f"{size:,} numbers; by {norms[0] / max(norms[1], 1e-30):.3%} of their norm",
                 "What the training changed of the base model itself.")


@torch.inference_mode()
def _logits(case: Work, tell: Tell) -> Check:
    """Bit equality of every base-language logit, or the drift."""
    if not case.probes:
        return Check("base_logits", "skipped", "equal to the bit", "the model comes with no samples of its languages",
                     "Logits of base-language samples before and after.")
    equal, largest, divergence = 0, 0.0, 0.0
    for done, item in enumerate(case.probes):
        tell(Progress(done, len(case.probes), "probes", "compared"))
        with case.base.speaking(item.language):
            before = case.base.model.probe(item.sample)
        with case.finetuned.speaking(item.language):
            after = case.finetuned.model.probe(item.sample)
        old_text = after.text_logits[:, :before.text_logits.shape[1]]
        pairs = ((before.text_logits, old_text), (before.speech_logits, after.speech_logits))
        equal += all(torch.equal(one, other) for one, other in pairs)
        largest = max(largest, *((one - other).abs().max().item() for one, other in pairs))
        divergence += _divergence(before.speech_logits, after.speech_logits)
    count = len(case.probes)
    tell(Progress(count, count, "probes", "compared"))
    languages = ", ".join(sorted({item.language for item in case.probes}))
    seen = f"{equal} of {count} samples ({languages}) equal to the bit"
    if unprobed := set(case.base.front_end.base_languages) - {item.language for item in case.probes}:
        seen += f"; not probed: {', '.join(sorted(unprobed))}"
    if equal < count:
        seen += f"; largest difference {largest:.3g}, mean divergence {divergence / count:.3g} nats a code"
    verdict: Result = "measured" if case.finetuned.scope == "full" else _verdict(equal == count)
    return Check("base_logits", verdict, "equal to the bit", seen,
                 f"Logits of base-language samples before and after, computed one after the other on "
                 f"{compute.conditions(case.base.device)}.")


def _divergence(before: torch.Tensor, after: torch.Tensor) -> float:
    """Mean Kullback-Leibler divergence in nats of two (U, K) logits."""
    return F.kl_div(after.float().log_softmax(-1), before.float().log_softmax(-1), log_target=True,
                    reduction="batchmean").item()


def _tokens(case: Work) -> Check:
    """Base sentences have the ids they had."""
    texts = [(language, sentence.text) for language in case.base.front_end.base_languages
             for sentence in evaluate.held_out(case.base, language)]
    texts += [(item.language, item.text) for item in case.probes]
    first, second = case.base.front_end, case.finetuned.front_end
    same = sum(np.array_equal(first.encode(text, language), second.encode(text, language)) for language, text in texts)
    return Check("base_tokens", _verdict(same == len(texts)) if texts else "skipped",
                 f"{len(texts)} sentences with the ids they had", f"{same} sentences",
                 "Sentences of the base languages are encoded as before.")


def _front_end(case: Work) -> Check:
    wanted, seen = case.record.origin.fingerprint, case.finetuned.front_end.fingerprint
    return Check("front_end", _verdict(wanted == seen), wanted, seen, "The tokenizer is the one of the new rows.")


def _errors(case: Work, count: OneCount) -> tuple[list[LanguageError], Check]:
    """The judged error of every language, and which of them could not be measured, and why."""
    found = [one for before, languages in _together(case)
             for one in _measured(before, case, {code: case.material[code][1] for code in languages}, count)]
    found.sort(key=lambda one: list(case.material).index(one.language))
    shown = "; ".join([*(f"{item.language} {item.after:.1%}{CHOSE if item.chose else ''}"
                         for item in found if item.after is not None),
                       *(f"{', '.join(codes)}: {reason}" for reason, codes in case.missing.items())])
    check = Check("judged_errors", "measured" if found else "skipped", "", shown,
                  "The judge's error on held-out sentences spoken by the finetuned model.")
    return found, check


def _together(case: Work) -> list[tuple[VoiceModel, list[str]]]:
    """Languages whose sentences are spoken in the same batches, with the model that they are compared with.

    Those of the base share theirs and a new one stands alone, because the base cannot read it: before and after are
    computed in batches of the same shape, so that what did not change is equal to the bit, and heard but once.
    """
    own = [code for code in case.material if not case.finetuned.front_end.is_new(code)]
    return [*([(case.base, own)] if own else []),
            *((case.material[code][0], [code]) for code in case.material if code not in own)]


def _material(workspace: Workspace, case: Work, language: str) -> tuple[VoiceModel, list[HeldOutSentence]]:
    """What to compare with, and held-out sentences; `UserError` when one of them is not there any more.

    Sentences that chose the checkpoint are left out, unless no other is held out; `LanguageError.chose` then tells.
    """
    if not case.finetuned.front_end.is_new(language):
        return case.base, _some(evaluate.held_out(case.base, language))
    dataset = manifest.load(workspace.dataset(case.record.dataset))
    extension = records.read(workspace.extension(case.record.extension) / records.EXTENSION, ExtensionRecord)
    if extension.rows_hash != case.record.rows_hash:
        raise UserError("the extension was made anew since")
    clips = [clip for clip in dataset.split(HELD_OUT) if clip.language == language]
    untrained = load_extension(workspace, case.record.extension, case.base.device)
    said = untrained.front_end.written_out
    sentences = [HeldOutSentence(said(clip.text, language), dataset.audio_path(clip)) for clip in clips]
    return untrained, _some([one for one in sentences if one.text not in case.record.judged] or sentences)


def _some(sentences: list[HeldOutSentence]) -> list[HeldOutSentence]:
    if not sentences:
        raise UserError("there are no held-out sentences")
    return sentences


def _measured(before: VoiceModel, case: Work, sentences: Mapping[str, Sequence[HeldOutSentence]],
              count: OneCount) -> list[LanguageError]:
    """The errors of some languages, spoken together: before, after, and on the original recordings."""
    after, size = case.finetuned, sum(map(len, sentences.values()))
    spoken = [evaluate.judged_each(case.studio, model, sentences, after.family.sampling, count.part(size))
              for model in (before, after)]
    found = []
    for language, some in sentences.items():
        recorded = count.part(sum(one.original is not None for one in some))
        scores = [*(each[language][0] for each in spoken),
                  evaluate.judged_originals(case.studio, language, some, recorded)]
        was, now, original = (score.error if score.sentences else None for score in scores)
        new = after.front_end.is_new(language)
        chose = new and any(one.text in case.record.judged for one in some)
        found.append(LanguageError(language, new, scores[1].sentences, was, now, original, chose))
    return found
