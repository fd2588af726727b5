"""`TrainingRun`: a trainer with its checkpoints. It saves, validates, evaluates, ranks and prunes, and stops early.

Each evaluation also measures what was learned since step 0, and warns if that is nothing.

A checkpoint is saved before it is evaluated, so a kill in between loses nothing: the resumed run evaluates it. Rank 0
evaluates, while the other ranks wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from config import confinement
from config.errors import UserError
from config.languages import language_name
from config.schema import TrainingEvaluationOptions, TrainOptions
from core.jobs import checkpoint_names
from core.jobs.events import CheckpointSaved, Evaluated, Progress, SampleGenerated, WarningRaised, read_events
from core.jobs.reporter import ProgressCallback, Reporter, check_stop, progress_callback
from core.library import checkpoints, learning
from core.library.checkpoints import RankingMetric
from core.library.evaluation_report import METRICS
from core.library.learning import LIMITS, ClipLosses, LearningRecord, LearningReport, LearningStart
from core.library.records import CheckpointRecord
from core.model.loading import TTSModel
from core.model.precision import Precision
from core.speech import evaluation, measures
from core.speech.evaluation import EvaluatedSentence, SpeechEvaluator
from core.speech.scoring import Recogniser, unmeasured_reason
from core.training import checkpoint, dataloader, learning_evaluation, replay
from core.training.checkpoint import EarlyStopping
from core.training.dataloader import TrainingData, Utterance
from core.training.learning_evaluation import SpeechReference
from core.training.trainer import Trainer
from data.acoustics import audio
from data.durable_files import write_text
from data.manifest import HeldOutSentence
from data.measures import clipped_share
from models.base import LossOptions, Sample

SAMPLES = "samples"
FROM_TRANSCRIPT = ("wer", "deletions", "repetition")
WITHOUT_TRANSCRIPT = ("similarity", "naturalness", "mcd", "missing_stop", "long_silence", "clipping")
_MAX_RECORDINGS = 40  # recordings over which a speaker's mean vector is computed
_CUSTOM_SENTENCES = "evaluation_texts.tsv"  # file in the run's folder
_NAMED_SENTENCES = 5  # sentences that an error names
_BASE_LANGUAGES = 2  # base languages of which `full` synthesizes a sentence at each checkpoint
_EARLY_CHECK = 0.25  # share of the steps after which a run without a checkpoint in its first half is checked
_MIN_CHECKED_STEPS = 20  # a shorter run has no early check
_MIN_SAMPLES = 4  # a run with fewer sentences at each checkpoint is a quick test: it is given no more of them
_DRIFT_HINT = ("Use an earlier checkpoint (run:ID@STEP), or train again with lower learning rates, more replay, "
               "distillation, or fewer changes to the base (full_trainable, or the scope `gated`, which cannot drift).")


@dataclass
class TrainingRun:
    """A trainer with its checkpoints, their evaluation and early stopping.

    All ranks call `save`, `validate_losses` and the methods that evaluate at the same steps.
    """

    trainer: Trainer
    speech_evaluator: SpeechEvaluator
    record: CheckpointRecord
    reporter: Reporter
    drift_clips: Sequence[Utterance] = ()  # clips of base languages, on which drift is measured
    early_stopping: EarlyStopping = EarlyStopping()
    base_losses: dict[str, float] = field(default_factory=dict)  # base languages at step 0, nats a code; rank 0 only
    custom_sentences: Mapping[str, tuple[HeldOutSentence, ...]] = field(default_factory=dict)  # the `evaluation_texts`
    learning_record: LearningRecord = LearningRecord()  # rank 0 only
    _checked_early: bool = False
    _references: dict[str, SpeechReference] = field(default_factory=dict)  # language to reference
    _validation_samples: dict[str, list[Sample]] = field(default_factory=dict)
    _mean_speakers: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        """The run's folder."""
        return self.reporter.directory

    @property
    def options(self) -> TrainOptions:
        """The run's options."""
        return self.trainer.options

    @property
    def evaluation_options(self) -> TrainingEvaluationOptions:
        """What the run measures, and by what it selects the best checkpoint."""
        return self.options.evaluation

    @property
    def metric(self) -> RankingMetric:
        """The metric that ranks the checkpoints: that of `select_best_by`; for `auto` the CER if it can be measured."""
        chosen = self.evaluation_options.select_best_by
        if chosen in (*FROM_TRANSCRIPT, *WITHOUT_TRANSCRIPT):
            return RankingMetric(chosen)
        scored = self.evaluation_options.evaluation_sentences > 0 and not self._unscored()
        return RankingMetric.CER if scored and chosen != "speech_loss" else RankingMetric.SPEECH_LOSS

    def _unscored(self) -> list[str]:
        """The new languages that no recogniser knows, except those whose recogniser is only unavailable now."""
        evaluator = self.speech_evaluator
        return [language for language in self.trainer.data.languages
                if not evaluator.can_score(language) and not unmeasured_reason(evaluator.recogniser, language)]

    def check_metric(self) -> None:
        """Warn if speech cannot be scored; `UserError` if checkpoints are to be ranked by such a score."""
        evaluator, unscored = self.speech_evaluator, ", ".join(map(repr, self._unscored()))
        unavailable = any(unmeasured_reason(evaluator.recogniser, language)
                          for language in self.trainer.data.languages)
        if self.evaluation_options.select_best_by == "cer" and self.metric is not RankingMetric.CER:
            raise UserError(
                "The best checkpoint cannot be selected by character error rate: "
                + (f"no recogniser for {unscored}." if unscored else "evaluation_sentences is 0."),
                "Select it by speech_loss, or set evaluation_sentences and a recogniser that knows the language.")

        # The other metrics need sentences, a recogniser or recordings.
        chosen = self.evaluation_options.select_best_by
        obstacle = ("evaluation_sentences is 0" if self.evaluation_options.evaluation_sentences == 0 else
                    f"no recogniser for {unscored}" if chosen in FROM_TRANSCRIPT and unscored else
                    "evaluation_texts have no recordings" if chosen == "mcd" and self.custom_sentences else "")
        if obstacle and chosen in (*FROM_TRANSCRIPT, *WITHOUT_TRANSCRIPT):
            raise UserError(f"The best checkpoint cannot be selected by {METRICS[chosen].title.lower()}: {obstacle}.",
                            "Select it by speech_loss, or set what is missing.")
        # If the recogniser is unavailable, setup has warned already.
        if unscored and self.evaluation_options.evaluation_sentences > 0 and not unavailable:
            self.reporter.emit(WarningRaised(
                f"No recogniser for {unscored}: samples are not scored, and the best checkpoint is selected by the "
                "validation speech loss, which can fall while the speech gets worse. Listen to the samples, or choose "
                "a recogniser that knows the language."))

    def save(self) -> None:
        """Save a checkpoint of this step, and delete checkpoints that are neither best, nor last, nor pinned."""
        state = replace(self.trainer.state_dict(), early_stopping=self.early_stopping, base_losses=self.base_losses)

        def write() -> None:
            by_loss = self.metric is RankingMetric.SPEECH_LOSS  # over every held-out clip
            scored = list[str]()
            for language in self.trainer.data.languages:
                sentences = self.trainer.data.sentences_in(language) if by_loss else self._sentences(language)
                scored += [sentence.text for sentence in sentences]
            record = replace(self.record, step=state.step, scored=tuple(scored),
                             frozen_hash=self.trainer.compute_frozen_hash())
            checkpoint.save(self.directory, record, self.trainer.tts, self.options, state)
            self.reporter.emit(CheckpointSaved(state.step, self._checkpoint_path()))
            # The new checkpoint is on the disk before an older one is deleted.
            best = checkpoints.read_ranking(self.directory).best
            checkpoint.prune_checkpoints(self.directory, self.options.checkpoints.keep_last, best)

        with self.trainer.evaluation_weights():
            self.trainer.group.run_on_rank0(write)

    @property
    def stop_message(self) -> str:
        """The message of `StopRequested`, after this step was saved."""
        return (f"Stopped after step {self.trainer.step} of {self.trainer.schedule.steps}, which is saved; the run can "
                "resume from there.")

    def early_stopped(self) -> bool:
        """Whether early stopping ends the training here."""
        return self.early_stopping.should_stop(self.evaluation_options.patience)

    def evaluate_base(self) -> None:
        """Before the first step: measure what later steps are compared with; in `full` also synthesize samples."""
        def measure() -> None:
            if self.options.scope == "full":
                self.reporter.emit(_evaluated_event(0, self.trainer.data.languages, self._validation_losses(), {}))
                with self._fork_rng(), self._base_weights() as tts:
                    self._synthesize_base(tts, progress_callback(self.reporter))
            with self._fork_rng():
                self._measure_start()

        self.trainer.group.run_on_rank0(measure)

    def _measure_start(self) -> None:
        """Measure the losses of step 0, and how intelligible the romanised base and the recordings are."""
        starts, sampling = {}, replace(self.trainer.tts.sampling, seed=self.options.seed)
        for language in self.trainer.data.languages:
            start = LearningStart(self._clip_losses(language))
            if self.evaluation_options.evaluation_sentences and self.speech_evaluator.can_score(language):
                sentences = self._sentences(language)
                with self._base_weights() as base:
                    errors = learning_evaluation.measure_romanised_base(
                        self.speech_evaluator, base, language, [sentence.text for sentence in sentences], sampling)
                cer = learning_evaluation.measure_recordings_cer(self.speech_evaluator, language, sentences)
                start = replace(start, base_errors=errors, recordings_cer=cer)
            starts[language] = start
            check_stop(self.reporter)
        self.learning_record = LearningRecord(starts)
        learning.write_learning(self.directory, self.learning_record)

    def _clip_losses(self, language: str) -> ClipLosses:
        trainer = self.trainer
        return learning_evaluation.measure_clip_losses(trainer.tts, language, self._samples()[language],
                                                       trainer.precision)

    def _measure_learning(self, sentences: Sequence[EvaluatedSentence]) -> None:
        """Measure what was learned up to this step, store it, and warn if that is nothing."""
        trainer, measured = self.trainer, []
        for language in trainer.data.languages:
            originals = {sentence.text: sentence.original for sentence in self._available_sentences(language)}
            if language not in self._references:
                self._references[language] = SpeechReference.from_recordings(trainer.data.sentences_in(language))
            of_language = [sentence for sentence in sentences if sentence.language == language]
            health = [learning_evaluation.measure_sentence_health(sentence, originals.get(sentence.text),
                                                                  self._references[language])
                      for sentence in of_language]
            measured.append(learning_evaluation.make_measurements(
                language, self._clip_losses(language), self.learning_record.start.get(language), of_language, health,
                warm_start=bool(self.options.checkpoints.init_from)))

        report = LearningReport.from_measurements(trainer.step, measured)
        self.learning_record = self.learning_record.with_report(report)
        learning.write_learning(self.directory, self.learning_record)
        if report.learning.bad:
            self.reporter.emit(WarningRaised(f"Step {trainer.step} of {trainer.schedule.steps}: "
                                             f"{learning.describe_report(report)}. {learning.advise(report)}"))

    def early_check_due(self) -> bool:
        """Whether this step is checked because the first checkpoint comes after half of the steps. True once."""
        steps = self.trainer.schedule.steps
        if (self._checked_early or steps < _MIN_CHECKED_STEPS or self.options.checkpoints.checkpoint_every <= steps / 2
                or self.trainer.step < _EARLY_CHECK * steps):
            return False
        self._checked_early = True
        return True

    def check_early(self) -> None:
        """Synthesize the sentences and measure what was learned so far. The step is not saved and not ranked."""
        def measure() -> None:
            losses = self._validation_losses()
            errors, metrics, sentences = self._synthesize()
            event = _evaluated_event(self.trainer.step, self.trainer.data.languages, losses, errors)
            self.reporter.emit(replace(event, metrics=metrics))
            self._measure_learning(sentences)

        with self._fork_rng(), self.trainer.evaluation_weights():
            self.trainer.group.run_on_rank0(measure)

    def finish_pending_evaluation(self, *, checkpoint_due: bool) -> None:
        """In a resumed run, evaluate or rank the step that it resumes from, if the run ended before it did so.

        `checkpoint_due`: a checkpoint is evaluated at this step.
        """
        step, group = self.trainer.step, self.trainer.group
        group.run_on_rank0(self._report_best)
        values: dict[int, float] = group.run_on_rank0(lambda: checkpoints.read_ranking(self.directory).values)
        if step in values:  # it was evaluated after it was saved
            self.early_stopping = self.early_stopping.after(step, values[step], self.evaluation_options.min_improvement)
        elif checkpoint_due:
            self.evaluate_checkpoint()
            group.run_on_rank0(self._report_saved)
        elif self.validation_due():
            if self.early_stopping.step < step:
                self.validate_losses()
            elif self.early_stopping.best_step == step:  # saved as the best, and killed before it was ranked
                group.run_on_rank0(lambda: self._rank(self.early_stopping.best))

    def _report_best(self) -> None:
        """Report the best checkpoint if the journal names another one, and delete those that are no longer needed.

        A run that is killed after it wrote the ranking has done neither.
        """
        best = checkpoints.read_ranking(self.directory).best
        if best is None or best not in checkpoint_names.checkpoint_steps(self.directory):
            return
        reported = [event.step for event in read_events(self.directory / "events.jsonl")[0]
                    if isinstance(event, CheckpointSaved) and event.best]
        if reported[-1:] != [best]:
            path = checkpoint_names.folder_of(self.directory, best).relative_to(self.directory).as_posix()
            self.reporter.emit(CheckpointSaved(best, path, best=True))
        checkpoint.prune_checkpoints(self.directory, self.options.checkpoints.keep_last, best)

    def _report_saved(self) -> None:
        """Report a checkpoint that is not the best: a run that was killed before its event has not reported it."""
        if checkpoints.read_ranking(self.directory).best != self.trainer.step:
            self.reporter.emit(CheckpointSaved(self.trainer.step, self._checkpoint_path()))

    def validation_due(self) -> bool:
        """Whether this step is validated by its losses alone."""
        every = self.evaluation_options.validate_every
        return every > 0 and self.trainer.step % every == 0

    def validate_losses(self) -> None:
        """Validate this step by its losses. It is saved only if it is the best by loss, or early stopping ends here."""
        group, step = self.trainer.group, self.trainer.step

        def measure() -> float | None:
            event = _evaluated_event(step, self.trainer.data.languages, self._validation_losses(), {})
            self.reporter.emit(event)
            return event.speech_loss if self.metric is RankingMetric.SPEECH_LOSS else None

        with self.trainer.evaluation_weights():
            value: float | None = group.run_on_rank0(measure)
        if value is None:
            return
        self.early_stopping = self.early_stopping.after(step, value, self.evaluation_options.min_improvement)
        if self.early_stopping.best_step == step or self.early_stopped():
            self.save()
            group.run_on_rank0(lambda: self._rank(value))

    def evaluate_checkpoint(self) -> None:
        """Validate this step, which is saved, synthesize its samples and rank it."""
        step, languages = self.trainer.step, self.trainer.data.languages

        def measure() -> float:
            losses = self._validation_losses()
            errors, metrics, sentences = self._synthesize()
            self._synthesize_base(self.trainer.tts, self._on_progress)
            event = replace(_evaluated_event(step, languages, losses, errors), metrics=metrics)
            self.reporter.emit(event)

            # The value by which the step is ranked; lower is better.
            value = _mean(errors.values()) if errors and self.metric is RankingMetric.CER else event.speech_loss
            chosen = self.evaluation_options.select_best_by
            if chosen in metrics:
                value = abs((self.metric.ideal or 0.0) - metrics[chosen])

            # A step that may be chosen is measured more closely.
            best_so_far = all(value < other for other in checkpoints.read_ranking(self.directory).values.values())
            self._measure_learning([*sentences, *(self._synthesize_more(sentences) if best_so_far else ())])
            self._rank(value)
            return value

        with self._fork_rng(), self.trainer.evaluation_weights():
            value: float = self.trainer.group.run_on_rank0(measure)
        self.early_stopping = self.early_stopping.after(step, value, self.evaluation_options.min_improvement)

    def _fork_rng(self) -> AbstractContextManager[None]:
        """Context that restores torch's random state: even loading a model would change it."""
        device = self.trainer.tts.device
        return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])

    def _validation_losses(self) -> dict[str, ValidationLosses]:
        """The losses of this step by language. If base languages drift, warn or raise, as `drift_action` says."""
        trainer = self.trainer
        with self._fork_rng():
            samples = self._samples()
            size = trainer.microbatch_plan.micro_batch_size(self.options.batches.batch_size)
            measured = measure_losses(trainer.tts, samples, size, trainer.precision)
            if trainer.step == 0:
                starting_losses = measured
                # The weights of an earlier run may have drifted already; drift is measured from the base.
                if self.options.checkpoints.init_from:
                    with self._base_weights() as base:
                        of_base = {language: clips for language, clips in samples.items()
                                   if not base.front_end.is_new(language)}
                        starting_losses = measure_losses(base, of_base, size, trainer.precision)
                self.base_losses = self._base_losses(starting_losses)

        # The losses of later steps are compared with those of step 0.
        message = ""
        if trainer.step:
            message = drift_warning(self.base_losses, self._base_losses(measured), self.options.full.drift_bound,
                                    trainer.step)
        if message:
            if self.options.full.drift_action == "stop":
                raise UserError(message, _DRIFT_HINT)
            self.reporter.emit(WarningRaised(f"{message} {_DRIFT_HINT}"))
        return measured

    def _samples(self) -> dict[str, list[Sample]]:
        """The validation samples by language, made once."""
        if not self._validation_samples:
            self._validation_samples = validation_samples(self.trainer.tts, self.trainer.data, self.drift_clips)
        return self._validation_samples

    def _base_losses(self, measured: Mapping[str, ValidationLosses]) -> dict[str, float]:
        return {language: losses.speech_loss for language, losses in measured.items()
                if not self.trainer.tts.front_end.is_new(language)}

    def _base_weights(self) -> AbstractContextManager[TTSModel]:
        """Context in which the model has the weights of the base, before any training; yields that model."""
        return self.trainer.base_weights() if self.options.checkpoints.init_from else nullcontext(self.trainer.tts)

    def _rank(self, value: float) -> None:
        """Rank this step, which is saved, and delete checkpoints that are no longer needed."""
        step = self.trainer.step
        ranking = replace(checkpoints.read_ranking(self.directory), metric=self.metric).with_value(step, value)
        ranking = ranking.with_best_of(checkpoint_names.checkpoint_steps(self.directory))  # a person may delete some
        checkpoints.write_ranking(self.directory, ranking)
        if ranking.best == step:
            self.reporter.emit(CheckpointSaved(step, self._checkpoint_path(), best=True))
        checkpoint.prune_checkpoints(self.directory, self.options.checkpoints.keep_last, ranking.best)

    def _synthesize(self) -> tuple[dict[str, float], dict[str, float], list[EvaluatedSentence]]:
        """Synthesize the sample sentences.

        Returns the CER by language, where it can be measured, other metrics, and the sentences.
        """
        options, errors, synthesized = self.options, dict[str, float](), list[EvaluatedSentence]()
        if options.evaluation.evaluation_sentences == 0:
            return {}, {}, []
        sampling = replace(self.trainer.tts.sampling, seed=options.seed)
        for language in self.trainer.data.languages:
            score, sentences = evaluation.evaluate_language(self.speech_evaluator, self.trainer.tts, language,
                                                            self._sentences(language), sampling, self._on_progress)
            for index, item in enumerate(sentences):
                self._save_sample(index, item)
            synthesized += sentences
            if self.speech_evaluator.can_score(language):
                if score.sentences == 0:
                    raise UserError(f"None of the held-out sentences in {language_name(language)} can be read by the "
                                    "model.", "Prepare the dataset again.")
                errors[language] = score.error
        return errors, self._measure_samples(synthesized), synthesized

    def _synthesize_more(self, sentences: Sequence[EvaluatedSentence]) -> list[EvaluatedSentence]:
        """Further sentences of each language, as many as an outcome needs; they are neither saved nor ranked."""
        if self.evaluation_options.evaluation_sentences < _MIN_SAMPLES:
            return []
        further_sentences = list[EvaluatedSentence]()
        sample_texts = {(sentence.language, sentence.text) for sentence in sentences}
        sampling = replace(self.trainer.tts.sampling, seed=self.options.seed)
        for language in self.trainer.data.languages:
            lacking = LIMITS.min_sentences - sum(sentence.language == language for sentence in sentences)
            available = [sentence for sentence in self._available_sentences(language)
                         if (language, sentence.text) not in sample_texts]
            if lacking > 0 and available:
                further_sentences += evaluation.evaluate_language(
                    self.speech_evaluator, self.trainer.tts, language, evaluation.spread_evenly(available, lacking),
                    sampling, self._on_progress)[1]
        return further_sentences

    def _measure_samples(self, sentences: Sequence[EvaluatedSentence]) -> dict[str, float]:
        """The metrics of an evaluation over the samples: all, or only the one that selects the best checkpoint."""
        metrics: tuple[str, ...] = (*FROM_TRANSCRIPT, *WITHOUT_TRANSCRIPT)
        if not self.evaluation_options.evaluation_metrics:
            metrics = tuple(name for name in metrics if name == self.evaluation_options.select_best_by)
        if not metrics or not sentences:
            return {}
        front_end = self.trainer.tts.front_end
        # Sentences were spoken with their numbers as words.
        originals = {}
        for language in self.trainer.data.languages:
            for sentence in self._sentences(language):
                originals[language, front_end.verbalize(sentence.text, language)] = sentence.original
        speakers = self._speakers() if "similarity" in metrics else {}

        # Metrics are ratios of sums over all sentences.
        sums: dict[str, list[float]] = {name: [0.0, 0.0] for name in metrics}
        for item in sentences:
            values = measure_sentence(item, self.speech_evaluator.recogniser,
                                      originals.get((item.language, item.text)),
                                      speakers.get(item.voice), metrics)
            for name, (numerator, denominator) in values.items():
                sums[name][0] += numerator
                sums[name][1] += denominator
            check_stop(self.reporter, self.stop_message)
        return {name: numerator / denominator for name, (numerator, denominator) in sums.items() if denominator}

    def _speakers(self) -> dict[str, np.ndarray]:
        """By voice the mean `similarity_embedding` (D,) of the held-out clips that are nearest to it.

        The nearest are found by the model's own speaker embeddings.
        """
        if not self._mean_speakers:
            lm, data = self.trainer.tts.lm, self.trainer.data
            of_voices = {name: lm.speaker_embedding(voice.conditioning)
                         for name, voice in self.speech_evaluator.voices.items()}

            # Each recording counts for the voice that is most similar to its speaker.
            recordings: dict[str, list[np.ndarray]] = {}
            pairs = evaluation.spread_evenly(list(zip(data.held_out, data.sentences, strict=True)), _MAX_RECORDINGS)
            for clip, sentence in pairs:
                embedding = lm.speaker_embedding(clip.conditioning)
                voice = max(sorted(of_voices), key=lambda name: measures.cosine(of_voices[name], embedding))
                with suppress(UserError):  # a silent or very short recording has no speaker embedding
                    if sentence.original is not None:
                        recorded = measures.similarity_embedding(*audio.read(sentence.original))
                        recordings.setdefault(voice, []).append(recorded / np.linalg.norm(recorded))

            # A voice without recordings of its own is compared with the mean of all.
            if not recordings:
                return {}
            overall = np.mean(list(chain.from_iterable(recordings.values())), axis=0)
            self._mean_speakers = {name: np.mean(recordings[name], axis=0) if name in recordings else overall
                                   for name in of_voices}
        return self._mean_speakers

    def _synthesize_base(self, tts: TTSModel, progress: ProgressCallback) -> None:
        """In `full`, synthesize a sentence of a few base languages, so that drift can be heard. They rank nothing.

        They are at most half as many as the scored sentences, so none in a preflight. In the other scopes base
        languages cannot change.
        """
        count = self.evaluation_options.evaluation_sentences if self.options.scope == "full" else 0
        limit = min(_BASE_LANGUAGES, count // 2)
        # One sentence each of the first languages.
        chosen: dict[str, list[HeldOutSentence]] = {}
        for clip in self.drift_clips:
            if len(chosen) < limit:
                chosen.setdefault(clip.language, [HeldOutSentence(clip.text, None)])
        sampling = replace(tts.sampling, seed=self.options.seed)
        by_language = evaluation.evaluate_languages(self.speech_evaluator, tts, chosen, sampling, progress)
        for _, sentences in by_language.values():
            for index, item in enumerate(sentences):
                self._save_sample(index, item)

    def _on_progress(self, progress: Progress) -> None:
        """Report progress. A stop request ends the run here: the step is saved, and is evaluated on resume."""
        self.reporter.emit(progress)
        check_stop(self.reporter, self.stop_message)

    def _save_sample(self, index: int, item: EvaluatedSentence) -> None:
        step = self.trainer.step
        path = Path(SAMPLES) / f"step-{step:06d}" / f"{index + 1:02d}-{item.language}.wav"
        target = self.directory / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            audio.save(target, item.waveform, item.sample_rate)
        except OSError as error:
            raise UserError(f"The sample {target} could not be written: {error.strerror}.",
                            "Free some space, then resume the run; the checkpoint is intact.") from error
        error_value = item.score.error if item.score else None
        self.reporter.emit(SampleGenerated(step, item.language, item.text, path.as_posix(), error_value))

    def _sentences(self, language: str) -> list[HeldOutSentence]:
        """The sentences of a language by which checkpoints are ranked: custom ones, else held-out ones."""
        count = self.evaluation_options.evaluation_sentences
        return evaluation.spread_evenly(self._available_sentences(language), count)

    def _available_sentences(self, language: str) -> Sequence[HeldOutSentence]:
        """Custom sentences of a language, else all held-out ones."""
        return self.custom_sentences.get(language) or self.trainer.data.sentences_in(language)

    def _checkpoint_path(self) -> str:
        return checkpoint_names.folder_of(Path(), self.trainer.step).as_posix()


def measure_sentence(item: EvaluatedSentence, recogniser: Recogniser | None, original: Path | None,
                     speaker: np.ndarray | None, metrics: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Numerator and denominator of these `metrics`, as in an evaluation; silent audio has similarity 0."""
    waveform, sample_rate = audio.to_numpy(item.waveform), item.sample_rate
    values: dict[str, tuple[float, float]] = {}
    if item.score is not None and recogniser is not None:
        values |= measures.transcript_values(item.text, item.score.reference, item.score.transcript,
                                             lambda part: recogniser.normalise(part, item.language),
                                             item.finish_reason)

    # Silent audio has no speaker.
    if speaker is not None:
        try:
            embedding = measures.similarity_embedding(item.waveform, sample_rate)
            values["similarity"] = (measures.cosine(embedding, speaker), 1.0)
        except UserError:
            values["similarity"] = (0.0, 1.0)
    if "naturalness" in metrics:
        values["naturalness"] = (measures.naturalness(item.waveform, sample_rate), 1.0)
    if "mcd" in metrics and original is not None:
        values["mcd"] = (measures.mel_cepstral_distance(measures.mel_cepstra(item.waveform, sample_rate),
                                                        measures.mel_cepstra(*audio.read(original))), 1.0)

    # These need neither transcript nor recording.
    values["missing_stop"] = (float(item.finish_reason != "stop"), 1.0)
    values |= measures.fault_values(measures.longest_pause(waveform, sample_rate), clipped_share(waveform))
    return {name: values[name] for name in metrics if name in values}


def load_custom_sentences(options: TrainingEvaluationOptions, tts: TTSModel, languages: Sequence[str],
                          run_dir: Path, warn: Callable[[str], None]) -> dict[str, tuple[HeldOutSentence, ...]]:
    """The sentences of `evaluation_texts` by language. The run stores a copy, so a resumed run uses the same.

    None is dropped in silence. With `evaluation_unknown` `leave_out`, letters that the tokenizer lacks are left out of
    a sentence, and one that still cannot be read is left out; both are named in a warning. With `refuse`, `UserError`
    names them.
    """
    if not options.evaluation_texts:
        return {}
    copy = run_dir / _CUSTOM_SENTENCES
    texts = copy if copy.is_file() else confinement.open_path(options.evaluation_texts)
    listed = [sentence for sentence in evaluation.read_sentences(texts) if sentence.language in languages]
    listed_languages = {sentence.language for sentence in listed}
    without_sentence = [language for language in languages if language not in listed_languages]
    if without_sentence:
        raise UserError(f"{options.evaluation_texts} has no sentence in {language_name(without_sentence[0])}.",
                        f"Write lines such as `{without_sentence[0]}`, a tab, and a sentence.")

    # Sort the sentences: readable as they are, readable without some letters, or not at all.
    sentences: dict[str, list[HeldOutSentence]] = {language: [] for language in languages}
    changed, refused = list[str](), list[str]()
    for sentence in listed:
        text, unknown = evaluation.without_unknown(
            tts.front_end, tts.front_end.verbalize(sentence.text, sentence.language), sentence.language)
        lacking = f"“{sentence.text}” (without {' '.join(unknown)})"
        if unknown and (options.evaluation_unknown == "refuse" or not text):
            refused.append(lacking)
        elif not tts.front_end.normalise(text, sentence.language):
            refused.append(f"“{sentence.text}” (nothing to speak)")
        else:
            length = len(tts.front_end.encode(text, sentence.language))
            if length > tts.lm.max_text_length:
                refused.append(f"“{sentence.text}” ({length} text ids, the model holds {tts.lm.max_text_length})")
                continue
            sentences[sentence.language].append(HeldOutSentence(text, None, category=sentence.category))
            changed += [lacking] if unknown else []

    # Say what happens to the others; a resumed run has said it already.
    message = f"{len(refused)} of {len(listed)} evaluation texts cannot be read by the model: {_first(refused)}."
    if refused and options.evaluation_unknown == "refuse":
        raise UserError(message, "Change or delete these sentences, or leave out what is unknown "
                                 "(--evaluation-unknown leave_out).")
    unreadable = [language for language, readable in sentences.items() if not readable]
    if unreadable:
        raise UserError(f"{message} None is left in {language_name(unreadable[0])}.", "Give sentences in its letters.")
    if refused and not copy.is_file():
        warn(f"{message} They are left out.")
    if changed and not copy.is_file():
        warn(f"{len(changed)} of {len(listed)} evaluation texts have letters that the tokenizer lacks; they are spoken "
             f"and scored without these: {_first(changed)}.")
    if not copy.is_file():
        write_text(copy, "".join("\t".join(filter(None, (line.language, line.text, line.category))) + "\n"
                                 for line in listed))
    return {language: tuple(readable) for language, readable in sentences.items()}


def _first(named: Sequence[str]) -> str:
    """The first few of them, and the number of the others."""
    surplus = len(named) - _NAMED_SENTENCES
    return "; ".join(named[:_NAMED_SENTENCES]) + (f"; and {surplus} more" if surplus > 0 else "")


def _mean(values: Iterable[float]) -> float:
    """The mean; for a single value exactly that value."""
    head, *tail = values
    return sum(tail, head) / (1 + len(tail))


def _evaluated_event(step: int, languages: Sequence[str], losses: Mapping[str, ValidationLosses],
                     errors: Mapping[str, float]) -> Evaluated:
    """What was measured at a step; over several new languages the mean."""
    targets = [losses[language] for language in languages]
    return Evaluated(step, _mean(target.speech_loss for target in targets), dict(errors),
                     _mean(target.text_loss for target in targets), _mean(target.accuracy for target in targets),
                     {language: asdict(measured) for language, measured in losses.items()})


@dataclass(frozen=True)
class ValidationLosses:
    """Means over the held-out clips of a language: losses in nats a token, and the top-1 accuracy of the codes."""

    clips: int
    speech_loss: float
    text_loss: float
    accuracy: float


def validation_samples(tts: TTSModel, data: TrainingData, drift_clips: Sequence[Utterance]
                       ) -> dict[str, list[Sample]]:
    """Validation samples by language: held-out clips of the new languages first, and in `full` the `drift_clips`.

    In the other scopes base languages cannot change.
    """
    samples = {}
    for language in data.languages:
        held_out = [item for item in data.held_out if item.language == language]
        samples[language] = dataloader.held_out_samples(held_out, data.train, tts.lm)
    if tts.scope == "full":
        for item in replay.probes(drift_clips, tts.lm):
            samples.setdefault(item.language, []).append(item.sample)
    return samples


@torch.no_grad()
def measure_losses(tts: TTSModel, samples: Mapping[str, Sequence[Sample]], batch_size: int,
                   precision: Precision) -> dict[str, ValidationLosses]:
    """The losses by language, each with the adapters of that language and without input dropout."""
    losses_by_language = {}
    for language, language_samples in samples.items():
        sums = torch.zeros(3, device=tts.device)
        # Clips of similar length waste the least padding.
        by_length = sorted(language_samples, key=lambda sample: len(sample.speech_codes))
        with tts.adapters_for(language):
            for start in range(0, len(by_length), batch_size):
                with precision.autocast():
                    losses = tts.lm.losses(by_length[start:start + batch_size], LossOptions(count_top1=True))
                assert losses.speech_top1 is not None
                sums = sums + torch.stack([losses.speech_sum, losses.text_sum, losses.speech_top1.float()])
        speech, text, hits = sums.tolist()
        codes = sum(item.speech_targets for item in language_samples)
        ids = sum(item.text_targets for item in language_samples)
        losses_by_language[language] = ValidationLosses(len(language_samples), speech / codes, text / ids, hits / codes)
    return losses_by_language


def drift_warning(base_losses: Mapping[str, float], step_losses: Mapping[str, float], drift_bound: float,
                  step: int) -> str:
    """A message that names the base languages whose loss rose by more than `drift_bound`; empty if none did.

    `base_losses` and `step_losses`: losses in nats a code by language, before the first step and at `step`.
    """
    rises = {language: step_losses[language] - base_losses[language]
             for language in base_losses if language in step_losses}
    # NaN counts as drift.
    drifted = {language: rise if rise > drift_bound else math.inf for language, rise in rises.items()
               if not rise <= drift_bound}
    if not drifted:
        return ""
    worst = ", ".join(f"{language} {base_losses[language]:.3f} to {step_losses[language]:.3f} ({rises[language]:+.3f})"
                      for language in sorted(drifted, key=lambda language: (-drifted[language], language)))
    return (f"At step {step} the loss of base languages is more than {drift_bound:g} nats a code above that "
            f"before the training: {worst}.")
