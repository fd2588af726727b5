"""What every family must keep while it speaks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from core.model.loading import TTSModel
from core.speech.evaluation import SpeechEvaluator
from models.base import Sample, Sampling
from tests.contract.conftest import World
from tests.worlds import ENGLISH, CodesAsSound

pytestmark = pytest.mark.covering

GREEDY = Sampling(temperature=0.0, guidance=0.0)


@pytest.fixture(scope="module")
def trained(world: World) -> TTSModel:
    """A gated model after a few steps, so that its adapters act."""
    trainer = world.trainer(adapter_lr=2e-2, steps=10)
    for _ in range(10):
        trainer.train_step()
    return trainer.tts


@pytest.mark.parametrize("language", ["en", "am"])
def test_cached_decoding_equals_teacher_forcing(world: World, trained: TTSModel, language: str) -> None:
    texts = {"en": ENGLISH, "am": ("ሀለመ", "ሰረቀ ሀለ", "መሰ ተነከ ሀ")}[language]
    voices = list(world.voices(trained).values())
    for index, text in enumerate(texts):
        ids, voice = trained.front_end.encode(text, language), voices[index % len(voices)]
        with trained.adapters_for(language):
            codes = trained.lm.generate([ids], [voice], GREEDY)[0].codes
            logits = trained.lm.probe(Sample(ids, codes, voice.conditioning)).speech_logits
        assert len(codes) > 0
        assert np.array_equal(logits[:len(codes), :world.case.codes].argmax(-1).cpu().numpy(), codes)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.8, seed=3), Sampling(guidance=1.0)],
                         ids=["greedy", "sampled", "guided"])
def test_a_text_sounds_the_same_alone_and_in_company(world: World, trained: TTSModel, sampling: Sampling) -> None:
    voice = next(iter(world.voices(trained).values()))
    texts = [trained.front_end.encode(text, "en") for text in ENGLISH]
    together = trained.lm.generate(texts, [voice] * len(texts), sampling)
    for text, spoken in zip(texts, together, strict=True):
        alone = trained.lm.generate([text], [voice], sampling)[0]
        assert (alone.finish_reason, alone.codes.tolist()) == (spoken.finish_reason, spoken.codes.tolist())


def test_sentences_of_old_and_new_languages_spoken_together_sound_as_they_do_alone(
        world: World, trained: TTSModel) -> None:
    """The app speaks them so; sampled, and with the adapters in some rows of the batch."""
    second, texts = list(world.case.texts.items())[1]
    asked = [("en", "the cat"), ("am", "ሀለመ"), (second, texts[0]), ("am", "ሰረቀ ሀለ")]
    sampling = Sampling(temperature=0.8, seed=3)
    evaluator, acting = SpeechEvaluator(CodesAsSound(), world.voices(trained), None), []
    assert trained.adapters is not None
    hook = trained.lm.module.transformer.register_forward_pre_hook(lambda *_: acting.append(trained.adapters.on))
    together = evaluator.speak(trained, asked, sampling)
    hook.remove()
    assert set(acting) == {True, False}  # voices are prepared without them, for the old languages
    turns = {name: evaluator.voices[name] for name in sorted(evaluator.voices)}
    for (language, text), spoken in zip(asked, together, strict=True):
        assert (spoken.language, spoken.text) == (language, text)
        alone = SpeechEvaluator(evaluator.vocoder, {spoken.voice: turns[spoken.voice]}, evaluator.recogniser)
        assert torch.equal(alone.speak(trained, [(language, text)], sampling)[0].waveform, spoken.waveform)


def test_a_prepared_voice_speaks_the_same(world: World, trained: TTSModel) -> None:
    voice = next(iter(world.voices(trained).values()))
    text = [trained.front_end.encode(ENGLISH[0], "en")]
    direct, prepared = (trained.lm.generate(text, [given], GREEDY)[0].codes
                        for given in (voice, trained.lm.prepare(voice)))
    assert np.array_equal(direct, prepared)


def test_the_seed_decides(world: World, trained: TTSModel) -> None:
    voice = next(iter(world.voices(trained).values()))
    text = [trained.front_end.encode(ENGLISH[0], "en")]
    lively = [Sampling(temperature=1.0, min_p=0.0, seed=seed) for seed in (1, 1, 2)]
    first, again, other = (trained.lm.generate(text, [voice], sampling)[0].codes for sampling in lively)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_base_text_keeps_its_ids(world: World) -> None:
    base, extended = world.base().front_end, world.extension().front_end
    assert extended.size > base.size
    for language, texts in world.case.texts.items():
        for text in texts:
            ids = extended.encode(text, language)
            assert np.array_equal(ids, base.encode(text, language))
            assert ids.max() < base.size


def test_the_vocoder_makes_sound_of_the_codes(world: World, trained: TTSModel) -> None:
    voice = next(iter(world.voices(trained).values()))
    vocoder = trained.family.load_vocoder(trained.base_folder, torch.device("cpu"))
    codes = trained.lm.generate([trained.front_end.encode(ENGLISH[0], "en")], [voice], GREEDY)[0].codes
    waveform = vocoder.decode(codes, voice)
    assert waveform.ndim == 1
    assert torch.isfinite(waveform).all()
    assert torch.equal(waveform, vocoder.decode(codes, voice))
