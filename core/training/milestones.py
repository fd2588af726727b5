"""What happens at a checkpoint: save, measure, speak, judge, rank, and delete what is no longer needed.

The checkpoint is saved first, so that a kill during the rendering loses nothing; a resumed
run measures a checkpoint that was saved and not yet measured.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from config.errors import UserError
from config.schema import TrainOptions
from core.jobs.events import CheckpointSaved, Evaluated, Progress, SampleGenerated, WarningRaised
from core.jobs.reporter import ProgressCallback, Reporter, StopRequested, progress_callback
from core.library.records import CheckpointRecord
from core.model.loading import VoiceModel
from core.speech import evaluation
from core.speech.evaluation import EvaluatedSentence, HeldOutSentence, SpeechEvaluator
from core.speech.scoring import unmeasured_reason
from core.training import checkpoint, drift, ranking, validation
from core.training.patience import Patience
from core.training.trainer import Trainer
from core.training.validation import Measured
from data.acoustics import audio
from models.base import Sample

SAMPLES = "samples"
_BASE_LANGUAGES = 2  # that are heard in `full`, a sentence of each
_JUDGED, _LOSS = "judged error", "held-out speech loss"


@dataclass
class Milestones:
    """The checkpoints of one run."""

    trainer: Trainer
    evaluator: SpeechEvaluator
    record: CheckpointRecord
    reporter: Reporter
    patience: Patience = Patience()
    _samples: dict[str, list[Sample]] = field(default_factory=dict)

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.reporter.directory

    @property
    def options(self) -> TrainOptions:
        """The run's options."""
        return self.trainer.options

    @property
    def measure(self) -> str:
        """By what the best is chosen: what was asked for, or judged speech where it can be judged, else the loss."""
        language = self.trainer.data.language
        known = self.evaluator.can_score(language) or bool(unmeasured_reason(self.evaluator.recogniser,
                                                                       language))  # it chose before
        scored = self.options.evaluation_sentences > 0 and known
        return _JUDGED if scored and self.options.select_best_by != "speech_loss" else _LOSS

    def warn(self) -> None:
        """Say it when speech cannot be judged although that was asked for; refuse what can never be."""
        language = self.trainer.data.language
        if self.options.select_best_by == "cer" and self.measure != _JUDGED:
            raise UserError(
                "The best checkpoint cannot be chosen by judged speech: "
                + ("no sentence is to be judged." if self.evaluator.can_score(language) else f"no judge knows "
                                                                                          f"{language!r}."),
                "Choose it by speech_loss, or give a number of judged sentences and a judge that knows the language.")
        if unmeasured_reason(self.evaluator.recogniser, language):  # which was said when it was looked for
            return
        if self.options.evaluation_sentences > 0 and not self.evaluator.can_score(language):
            self.reporter.emit(WarningRaised(
                f"No judge knows {language!r}: samples are spoken but not judged, and the best checkpoint is chosen by "
                "the held-out speech loss, which can fall while the speech gets worse. Listen to the samples, or name "
                "a recogniser that knows the language as the judge."))

    def save(self) -> None:
        """Save the present step; older checkpoints that are neither best, nor last, nor have a name are deleted."""
        state = replace(self.trainer.state(), content=self.trainer.data.content, patience=self.patience)
        with self.trainer.averaged():
            checkpoint.save(self.run, self._record(), self.trainer.voice, self.trainer.options, state)
        ranking.prune(self.run, self.options.keep_last, ranking.read(self.run).best)

    def announce(self) -> None:
        """Tell of a checkpoint that is saved and not measured."""
        self.reporter.emit(CheckpointSaved(self.trainer.step, self._path(), best=False))

    def stop_here(self) -> None:
        """End the run if that was asked for; the present step is saved."""
        if self.reporter.stop_requested():
            self.announce()
            raise StopRequested(f"Stopped after step {self.trainer.step} of {self.options.steps}, which is saved; "
                                "the run can continue from there.")

    def exhausted(self) -> bool:
        """Whether the validations lately brought nothing, so that the training ends here."""
        return self.patience.exhausted(self.options.patience)

    def catch_up(self, due: bool) -> None:
        """After a resume: count what was measured after its checkpoint was saved, and measure what was not.

        `due`: the present step is one at which a checkpoint is measured.
        """
        step, known = self.trainer.step, ranking.read(self.run).values
        if step == 0 and self.options.scope == "full":  # what the base languages are held against later
            self.reporter.emit(_evaluated(step, self.trainer.data.language, self._measured(), None))
            with self._own_randomness(), self._before() as voice:
                self._speak_base(voice, progress_callback(self.reporter))
        elif step in known:
            self.patience = self.patience.after(step, known[step])
        elif step and due:
            self.evaluate()
        elif step and self.validation_due():
            if self.patience.step < step:
                self.validate()
            elif self.patience.best_step == step:  # it was saved for its value, and killed before it was ranked
                self._rank(self.patience.best)

    def validation_due(self) -> bool:
        """Whether the present step is measured without samples."""
        every = self.options.validate_every
        return every > 0 and self.trainer.step % every == 0

    def validate(self) -> None:
        """Measure the losses of the present step, which is not saved unless it is the best by loss, or the last."""
        with self.trainer.averaged():
            measured, step = self._measured(), self.trainer.step
        loss = measured[self.trainer.data.language].speech_loss
        self.reporter.emit(_evaluated(step, self.trainer.data.language, measured, None))
        if self.measure != _LOSS:
            return
        self.patience = self.patience.after(step, loss)
        if self.patience.best_step == step or self.exhausted():
            self.save()
            self._rank(loss)

    def evaluate(self) -> None:
        """Measure the present step, which is saved, and rank it.

        Training goes on with the random numbers it would have had: what speaking draws is its own.
        """
        with self._own_randomness(), self.trainer.averaged():
            self._measure_and_rank()

    def _own_randomness(self) -> AbstractContextManager[None]:
        """Context that leaves the random numbers of training as they are; even to load a model draws some."""
        device = self.trainer.voice.device
        return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])

    def _measure_and_rank(self) -> None:
        step, language = self.trainer.step, self.trainer.data.language
        measured = self._measured()
        error = self._speak(language)
        self._speak_base(self.trainer.voice, self._tell)
        self.reporter.emit(_evaluated(step, language, measured, error))
        value = error if error is not None and self.measure == _JUDGED else measured[language].speech_loss
        self.patience = self.patience.after(step, value)
        self._rank(value)

    def _measured(self) -> dict[str, Measured]:
        trainer = self.trainer
        with self._own_randomness():
            if not self._samples:
                self._samples = validation.samples(trainer.voice, trainer.data, trainer.probing)
            size = trainer.setting.size(self.options.batch_size)
            measured = validation.measure(trainer.voice, self._samples, size, trainer.precision)
        base = {language: one.speech_loss for language, one in measured.items()
                if not trainer.voice.front_end.is_new(language)}
        if trainer.step == 0:
            trainer.base_losses = self._of_the_base() if self.options.init_from else base
        elif said := drift.told(trainer.base_losses, base, self.options, trainer.step):
            self.reporter.emit(WarningRaised(said))
        return measured

    def _of_the_base(self) -> dict[str, float]:
        """Losses of the base languages before any training: what was adopted has drifted already."""
        trainer = self.trainer
        languages = {language: some for language, some in self._samples.items()
                     if not trainer.voice.front_end.is_new(language)}
        with self._own_randomness(), self._before() as base:
            size = trainer.setting.size(self.options.batch_size)
            found = validation.measure(base, languages, size, trainer.precision)
        return {language: one.speech_loss for language, one in found.items()}

    def _before(self) -> AbstractContextManager[VoiceModel]:
        """Context in which the model is what the base was before any training; its voice."""
        adopted = bool(self.options.init_from)
        return self.trainer.as_base() if adopted else nullcontext(self.trainer.voice)

    def _rank(self, value: float) -> None:
        """Put the present step, which is saved, among the others; those no longer needed are deleted."""
        step = self.trainer.step
        ranked = replace(ranking.read(self.run), measure=self.measure).with_value(step, value)
        ranking.write(self.run, ranked)
        self.reporter.emit(CheckpointSaved(step, self._path(), best=ranked.best == step))
        ranking.prune(self.run, self.options.keep_last, ranked.best)

    def _speak(self, language: str) -> float | None:
        """Render the sample sentences; their error, or None when no judge knows the language."""
        options = self.options
        if options.evaluation_sentences == 0:
            return None
        sampling = replace(self.trainer.voice.family.sampling, seed=options.seed)
        score, said = evaluation.evaluate_language(self.evaluator, self.trainer.voice, language, self._choosing(),
                                                   sampling,
                                                 self._tell)
        for index, item in enumerate(said):
            self._keep(index, item)
        if not self.evaluator.can_score(language):
            return None
        if score.sentences == 0:
            raise UserError("None of the held-out sentences can be read by the model.", "Prepare the dataset anew.")
        return score.error

    def _speak_base(self, voice: VoiceModel, tell: ProgressCallback) -> None:
        """In `full`, a held-out sentence of a few base languages, so that drift is heard; no measure of the run's.

        They are at most half as many as are judged, so none in a trial. In the other scopes base speech is equal to the
        bit: there is nothing to hear.
        """
        most = min(_BASE_LANGUAGES, self.options.evaluation_sentences // 2) if self.options.scope == "full" else 0
        chosen: dict[str, list[HeldOutSentence]] = {}
        for clip in self.trainer.probing:
            if len(chosen) < most:
                chosen.setdefault(clip.language, [HeldOutSentence(clip.text, None)])
        sampling = replace(voice.family.sampling, seed=self.options.seed)
        for _, said in evaluation.evaluate_languages(self.evaluator, voice, chosen, sampling, tell).values():
            for index, item in enumerate(said):
                self._keep(index, item)

    def _tell(self, progress: Progress) -> None:
        """Report a spoken sentence; a stop is heard here too, because the step is saved and is measured on resume."""
        self.reporter.emit(progress)
        self.stop_here()

    def _keep(self, index: int, item: EvaluatedSentence) -> None:
        step = self.trainer.step
        path = Path(SAMPLES) / f"step-{step:06d}" / f"{index + 1:02d}-{item.language}.wav"
        target = self.run / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            audio.save(target, item.waveform, item.sample_rate)
        except OSError as error:
            raise UserError(f"The sample {target} could not be written: {error.strerror}.",
                            "Free some space, then continue the run; the checkpoint is intact.") from error
        error_value = item.score.error if item.score else None
        self.reporter.emit(SampleGenerated(step, item.language, item.text, path.as_posix(), error_value))

    def _record(self) -> CheckpointRecord:
        scored = tuple(sentence.text for sentence in self._choosing())
        return replace(self.record, step=self.trainer.step, scored=scored, frozen_hash=self.trainer.frozen_hash)

    def _choosing(self) -> list[HeldOutSentence]:
        """The held-out sentences by which checkpoints are ranked."""
        return evaluation.spread_evenly(self.trainer.data.sentences, self.options.evaluation_sentences)

    def _path(self) -> str:
        return checkpoint.folder_of(Path(), self.trainer.step).as_posix()


def _evaluated(step: int, language: str, measured: dict[str, Measured], error: float | None) -> Evaluated:
    own = measured[language]
    return Evaluated(step, own.speech_loss, {} if error is None else {language: error}, own.text_loss, own.accuracy,
                     {code: one.numbers() for code, one in measured.items()})
