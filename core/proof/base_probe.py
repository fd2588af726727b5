"""The probe of a new base model: does it predict speech, follow its text, end its sentences and make sound?

Two parts, the cheap one first. The language model reads recordings that ship with Lisan, encoded by the model's own
extractor. A model that predicts codes and text no better than equal probabilities is noise, at whatever scale its
weights are: noise cannot know which code comes next. A model whose loss is the same with the text of another recording
does not read text. Only a model that passes speaks three sentences in each of two languages; their stops, durations and
level are checked.

Everything runs on the CPU, because a download does not wait for a GPU that another job holds.
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import torch

from config.errors import UserError
from core import machine
from core.jobs.events import Progress
from core.jobs.reporter import Reporter, check_stop, duration_text, size_text
from core.library import catalog
from core.library.lineage import Model
from core.library.records import BaseProbe
from core.model.loading import TTSModel, load_base
from core.training import replay
from core.training.dataloader import Utterance, make_utterance
from core.training.replay import ProbeSample
from core.workspace import Workspace
from data.acoustics import audio
from data.front_end import FrontEnd
from models.base import Family, Features, Generated, LossOptions, Sample, Vocoder, VocoderOptions, Voice
from models.registry import family as family_named

SENTENCES: Mapping[str, tuple[str, str, str]] = {
    "en": ("The old man opened the window.", "We will meet again next week.", "There is a small house by the river."),
    "fr": ("Le vieil homme ouvre la fenêtre.", "Nous partons demain matin.", "Il y a une petite maison près du lac."),
    "es": ("El hombre abre la ventana.", "Nos vemos la semana que viene.", "Hay una casa pequeña junto al río."),
    "pt": ("O homem abre a janela.", "Vamos embora amanhã cedo.", "Há uma casa pequena perto do rio."),
    "de": ("Der alte Mann öffnet das Fenster.", "Wir gehen morgen nach Hause.", "Am Fluss steht ein kleines Haus."),
    "zh": ("老人打开了窗户。", "我们下个星期再见。", "河边有一座小房子。"),
    "hi": ("बूढ़े आदमी ने खिड़की खोली।", "हम अगले हफ्ते फिर मिलेंगे।", "नदी के पास एक छोटा घर है।"),
}
"""Three short sentences in each language that can be probed; two languages are, in this order."""
_LANGUAGES = 2
_RECORDINGS = 5  # recordings of each language that ships with recordings
# Of the built-in model, whose chance is 8.05 nats a code: healthy 2.82, noise of five widths 8.05 to 5,452, rows in
# another order 7.40, rows of noise 4.52 and 6.24. The own text helps by 6.99 nats, beside rows of noise by 0.10.
_CHANCE = 0.95  # share of the loss of equal probabilities from which a loss is that of noise
_TEXT_CHANCE = 0.9  # the same of a text loss
_CONTRAST = 0.02  # nats a code by which the own text must help, at the upper end of its interval
_CONTRAST_WITHOUT_TEXT = 0.3  # its mean, where text is predicted no better than chance
# Seconds of speech a letter; a Chinese character takes as long as three letters.
_SECONDS_A_LETTER = (0.025, 0.25)
_QUIETEST_DBFS = -55.0
# Seconds of synthesis on this CPU; longer ones are not started.
_LONGEST_S = 600.0
_TIMED_CODES = 3
_FLOW_STEPS = 4  # enough for a level
_MEMORY = 1.3  # times the largest file


@dataclass(frozen=True)
class _LanguageModelCheck:
    """What the language model knows of recordings; nats a code or a text id."""

    speech_loss: float | None
    speech_chance: float
    text_loss: float
    text_chance: float
    contrast: float | None
    highest_contrast: float | None  # upper end of its 95% interval over the recordings


def probe_base(workspace: Workspace, name: str, reporter: Reporter) -> BaseProbe:
    """Probe the base model `name`; a model that cannot be loaded is broken, and one that does not fit not probed."""
    started = time.monotonic()
    try:
        probe = _probe(workspace, name, reporter)
    except UserError as error:
        probe = BaseProbe("broken", f"broken: it cannot be loaded or run. {error.message}")
    return replace(probe, seconds=round(time.monotonic() - started, 1), device="cpu")


def _probe(workspace: Workspace, name: str, reporter: Reporter) -> BaseProbe:
    model = Model.open(workspace, f"base:{name}")
    folder, family = model.folder, family_named(model.family_name)
    front_end = family.load_front_end(folder)

    # A model that does not fit into the memory is not probed, rather than ended by the system.
    largest = max(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    free = machine.free_memory()
    if free is not None and free < _MEMORY * largest:
        return _not_probed(f"{size_text(free)} of memory are free, and {size_text(_MEMORY * largest)} are needed")

    languages = [code for code in SENTENCES
                 if code in front_end.base_languages and not front_end.unready(code)][:_LANGUAGES]
    if not languages:
        return _not_probed("there is no sample sentence of its languages "
                           f"({', '.join(front_end.base_languages)}), or their text packages are missing")

    # The extractor is freed before the language model is loaded: of a large family either fills the memory of a laptop.
    _report(reporter, 0, "recordings encoded")
    recordings = _encode_recordings(family, folder, front_end)
    voice = _find_voice(family, folder)
    gc.collect()
    base = load_base(workspace, name, torch.device("cpu"))

    _report(reporter, 1, "language model")
    check = _check_language_model(base, recordings, languages, voice)
    measured = BaseProbe("not probed", "", tuple(languages), speech_loss=_rounded(check.speech_loss),
                         speech_chance=_rounded(check.speech_chance), text_loss=_rounded(check.text_loss),
                         text_chance=_rounded(check.text_chance), text_contrast=_rounded(check.contrast))
    fault = _language_model_fault(check)
    if fault:
        return replace(measured, outcome="broken", words=f"broken: {fault}")

    _report(reporter, 2, "sentences")
    return _speak(base, languages, voice, measured, reporter)


def _not_probed(reason: str) -> BaseProbe:
    return BaseProbe("not probed", f"not probed: {reason}")


def _report(reporter: Reporter, step: int, note: str) -> None:
    reporter.emit(Progress(step, 4, "probe steps", note))
    check_stop(reporter, "Stopped before the model was probed; its files are whole.")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _encode_recordings(family: Family, folder: Path, front_end: FrontEnd) -> list[Utterance]:
    """Recordings that ship with Lisan, in those languages of the model that there are any of."""
    pack, clips = catalog.pack_folder("tiny"), list[Utterance]()
    texts_and_paths = []
    for language in ("en", "fr"):
        if language in front_end.base_languages:
            recordings = family_named("tiny").held_out_recordings(pack, language)[:_RECORDINGS]
            texts_and_paths += [(language, text, path) for text, path in recordings]
    if not texts_and_paths:
        return []

    extractor = family.load_extractor(folder, torch.device("cpu"))
    for number, (language, text, path) in enumerate(texts_and_paths):
        waveform, sample_rate = audio.read(path)
        features = extractor.extract(audio.resample(waveform, sample_rate, extractor.sample_rate))
        clips.append(make_utterance(f"{language}-{number}", text, language, language, features, front_end))
    return clips


def _find_voice(family: Family, folder: Path) -> Voice:
    """The model's own voice, else that of a recording that ships with Lisan."""
    voices = family.load_voices(folder)
    if voices:
        return next(iter(voices.values()))
    recording = next(iter(sorted((catalog.pack_folder("tiny") / "voices").glob("*.ogg"))))
    waveform, sample_rate = audio.read(recording)
    return family.voice_from_recording(folder, torch.device("cpu"), waveform, sample_rate)


@torch.inference_mode()
def _check_language_model(base: TTSModel, recordings: Sequence[Utterance], languages: Sequence[str],
                          voice: Voice) -> _LanguageModelCheck:
    samples = replay.probes(recordings, base.lm) or _spoken_samples(base, languages, voice)
    logits = base.lm.probe(samples[0].sample)
    matched = [base.lm.losses([item.sample], LossOptions()) for item in samples]
    text_loss = _mean_loss([(float(loss.text_sum), loss.text_count) for loss in matched])
    speech = contrasts = None

    # The text contrast is the loss with the text of another recording, minus that with its own.
    if recordings:
        speech = [float(loss.speech_sum) / loss.speech_count for loss in matched]
        mismatched = [base.lm.losses([replace(item.sample, text_ids=_other_text(item, samples))], LossOptions())
                      for item in samples]
        contrasts = [float(other.speech_sum) / other.speech_count - loss
                     for loss, other in zip(speech, mismatched, strict=True)]
    return _LanguageModelCheck(
        fmean(speech) if speech else None, math.log(logits.speech_logits.shape[1]), text_loss,
        math.log(logits.text_logits.shape[1]), fmean(contrasts) if contrasts else None,
        fmean(contrasts) + 1.96 * stdev(contrasts) / len(contrasts)**0.5 if contrasts else None)


def _mean_loss(sums: Sequence[tuple[float, int]]) -> float:
    return sum(loss for loss, _ in sums) / sum(count for _, count in sums)


def _spoken_samples(base: TTSModel, languages: Sequence[str], voice: Voice) -> list[ProbeSample]:
    """Texts over any codes, for a model in whose languages there are no recordings: of these the text loss counts."""
    features = base.lm.probe_features(voice)
    samples = []
    for language in languages:
        for text in SENTENCES[language]:
            sample = _sample(base, base.front_end.encode(text, language), features)
            samples.append(ProbeSample(language, text, sample))
    return samples


def _sample(base: TTSModel, text_ids: np.ndarray, features: Features) -> Sample:
    conditioning = base.lm.sample_conditioning(features.conditioning, features.conditioning, random.Random(0))
    return Sample(text_ids, features.speech_codes.astype(np.int64), conditioning)


def _other_text(item: ProbeSample, samples: Sequence[ProbeSample]) -> np.ndarray:
    """The text of another recording of the language, the one whose length is nearest."""
    other_texts = [other.sample.text_ids for other in samples
                   if other.language == item.language and other.text != item.text]
    return min(other_texts, key=lambda ids: abs(len(ids) - len(item.sample.text_ids)))


def _language_model_fault(check: _LanguageModelCheck) -> str:
    """What the losses say against the model, with their values; empty if they say nothing."""
    text = f"{check.text_loss:.2f} nats a text id, chance {check.text_chance:.2f}"
    if not math.isfinite(check.text_loss) or (check.speech_loss is not None and not math.isfinite(check.speech_loss)):
        return f"noise. Its predictions are no numbers ({text})."

    text_at_chance = check.text_loss >= _TEXT_CHANCE * check.text_chance
    if check.speech_loss is None:
        return f"noise. It predicts text no better than chance ({text})." if text_at_chance else ""

    # With recordings, the loss of their codes decides first.
    speech = f"{check.speech_loss:.2f} nats a code, chance {check.speech_chance:.2f}"
    if check.speech_loss >= _CHANCE * check.speech_chance:
        also = f", nor text ({text})" if text_at_chance else ""
        return f"noise. It predicts the codes of recorded speech no better than chance ({speech}){also}."

    assert check.contrast is not None
    assert check.highest_contrast is not None
    if check.highest_contrast < _CONTRAST or (text_at_chance and check.contrast < _CONTRAST_WITHOUT_TEXT):
        return ("it does not follow its text. With the text of another recording it predicts speech almost as well as "
                f"with the right one ({check.contrast:+.2f} nats a code; {speech}; {text}).")
    return ""


@torch.inference_mode()
def _speak(base: TTSModel, languages: Sequence[str], voice: Voice, measured: BaseProbe,
           reporter: Reporter) -> BaseProbe:
    """Synthesize the sentences, and check codes, stops, durations and level."""
    texts: list[tuple[str, str]] = []
    for language in languages:
        texts += [(language, text) for text in SENTENCES[language]]
    text_ids = [base.front_end.encode(text, language) for language, text in texts]
    prepared, sampling = base.lm.prepare(voice), replace(base.sampling, seed=0)
    losses = _loss_words(measured)

    # Sentences that would take too long on this CPU are not synthesized.
    expected_s = _seconds_to_speak(base, text_ids, [text for _, text in texts], voice, measured)
    if expected_s > _LONGEST_S:
        return replace(measured, words=f"not probed: the language model predicts speech ({losses}), but no sentence "
                                       f"was synthesized, which would take {duration_text(expected_s)} on this CPU")

    # All sentences share one batch, which is faster than one after the other.
    generated = base.generate(text_ids, [language for language, _ in texts], [prepared] * len(texts), sampling)
    base.lm.free_buffers()
    entropy = _entropy(base, text_ids, generated, voice)

    _report(reporter, 3, "sound")
    vocoder = base.family.load_vocoder(base.base_folder, torch.device("cpu"))
    chosen = [number for number in range(0, len(texts), len(SENTENCES["en"])) if len(generated[number].codes)]
    # One sentence of each language tells whether the sound is silence.
    levels, code_s = _levels(base.family, vocoder, [generated[number] for number in chosen], voice)
    durations = [_is_speech_duration(text, len(sound.codes) * code_s, language)
                 for (language, text), sound in zip(texts, generated, strict=True)]
    probe = replace(measured, entropy=_rounded(entropy), sentences=len(texts),
                    stops=sum(sound.finish_reason == "stop" for sound in generated), durations=sum(durations),
                    decoded=len(chosen), levels=sum(level > _QUIETEST_DBFS for level in levels))

    # The facts are named in each outcome, so that a person can judge the thresholds.
    facts = (f"{losses}; {probe.stops} of {probe.sentences} sentences ({', '.join(languages)}) end, {probe.durations} "
             f"have the duration of speech, {probe.levels} of {probe.decoded} decoded ones its level; entropy of the "
             f"codes {entropy:.2f} nats")

    counted = (("its sentences do not end", probe.stops, probe.sentences),
               ("its sentences are too short or too long", probe.durations, probe.sentences),
               ("its sound is silence", probe.levels, probe.decoded))
    faults = [words for words, good, count in counted if good * 2 <= count]
    if faults:
        return replace(probe, outcome="broken", words=f"broken: {', '.join(faults)} ({facts})")
    return replace(probe, outcome="speaks", words=f"speaks ({facts})")


def _loss_words(measured: BaseProbe) -> str:
    """The losses beside chance, in words."""
    text = f"text {measured.text_loss:.2f} nats, chance {measured.text_chance:.2f}"
    if measured.speech_loss is None:
        return text
    return (f"speech {measured.speech_loss:.2f} nats a code, chance {measured.speech_chance:.2f}; {text}; the own text "
            f"helps by {measured.text_contrast:.2f}")


def _seconds_to_speak(base: TTSModel, text_ids: Sequence[np.ndarray], texts: Sequence[str], voice: Voice,
                      measured: BaseProbe) -> float:
    """About how long this CPU takes for the codes of all sentences together, from a few codes of one."""
    codes, start = 0, time.monotonic()
    first_code = start
    for chunk in base.lm.stream(text_ids[0], voice, replace(base.sampling, seed=0)):
        if isinstance(chunk, Generated):
            break
        codes += len(chunk)
        if first_code == start:
            # The text itself was read until now.
            first_code, codes = time.monotonic(), 0
        elif codes >= _TIMED_CODES:
            break
    base.lm.free_buffers()
    code_s = (time.monotonic() - first_code) / max(1, codes)
    longest_s = max(len(text) for text in texts) * sum(_SECONDS_A_LETTER) / 2
    return code_s * longest_s * catalog.find_entry(base.family.name).codes_per_second * 2  # a batch costs more


def _entropy(base: TTSModel, text_ids: Sequence[np.ndarray], generated: Sequence[Generated], voice: Voice) -> float:
    """Mean entropy of the predictions at the generated codes, nats; 0 without codes."""
    values = []
    for ids, speech in zip(text_ids, generated, strict=True):
        if len(speech.codes):
            sample = _sample(base, ids, Features(speech.codes, voice.conditioning))
            predictions = base.lm.probe(sample).speech_logits.float().log_softmax(-1)
            values.append(float(-(predictions.exp() * predictions.clamp(min=-100)).sum(-1).mean()))
    return fmean(values) if values else 0.0


def _levels(family: Family, vocoder: Vocoder, generated: Sequence[Generated],
            voice: Voice) -> tuple[list[float], float]:
    """RMS levels in dBFS of the sound of some codes, and the seconds of a code."""
    steps = _FLOW_STEPS if "flow_steps" in family.sound_options else None
    levels, seconds, codes = [], 0.0, 0
    for item in generated:
        waveform = vocoder.decode(item.codes, voice, VocoderOptions(steps, watermark=False), item.hidden_states).float()
        power = float(waveform.double().square().mean()) if len(waveform) else 0.0
        levels.append(10 * math.log10(max(power, 1e-12)) if math.isfinite(power) else -math.inf)
        seconds, codes = seconds + len(waveform) / vocoder.sample_rate, codes + len(item.codes)
    return levels, seconds / max(1, codes)


def _is_speech_duration(text: str, seconds: float, language: str) -> bool:
    letters = sum(character.isalnum() for character in text) * (3 if language == "zh" else 1)
    return _SECONDS_A_LETTER[0] <= seconds / letters <= _SECONDS_A_LETTER[1]
