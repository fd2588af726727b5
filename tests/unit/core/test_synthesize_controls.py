"""Emotion, duration, positions and flow options, from command line and form to the speech of a small IndexTTS2."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from config.arguments import add_arguments, given_values, to_arguments
from config.errors import UserError
from config.loading import parse_options
from config.schema import EMOTIONS, CompareOptions, EmotionOptions, SamplingOptions, SoundOptions, SynthesizeOptions
from core import synthesize
from core.library.catalog import find_entry
from core.speech.model_cache import ModelCache
from core.speech.synthesis import Synthesizer, unused_controls
from core.workspace import Workspace
from models.chatterbox.family import Chatterbox
from models.indextts2 import vocoder
from models.indextts2.family import IndexTTS2
from tests.indextts2_world import write_model
from tests.reference.clips import voiced
from tests.worlds import Listener
from ui import form, voice_settings
from ui.live import View

CPU = torch.device("cpu")
RATE = 16000
TEXT = "we go home"
GREEDY = SamplingOptions(temperature=0.0, repetition_penalty=1.0)
FAST = SoundOptions(flow_steps=1)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = Workspace.open(tmp_path_factory.mktemp("world") / "workspace")
    write_model(workspace.models / "indextts2")
    for name, pitch_hz in (("me", 140.0), ("other", 260.0)):
        soundfile.write(workspace.path / f"{name}.wav", voiced(RATE, RATE, pitch_hz), RATE)
    return workspace


@pytest.fixture(scope="module")
def take(world: Workspace) -> Callable[..., Synthesizer]:
    """A synthesizer with other options of the sound, all of one cached model that speaks up to 24 codes."""
    cache = ModelCache()

    def taken(**changes: object) -> Synthesizer:
        sound = FAST.model_copy(update=changes)
        made = cache.synthesizer("base:indextts2", world, CPU, "float32", str(world.path / "me.wav"), sound).synthesizer
        made.model.lm.base_code_limit, made.model.lm.codes_per_token = 24, 0  # type: ignore[attr-defined]
        return made

    return taken


def emotion(**values: object) -> EmotionOptions:
    return EmotionOptions.model_validate(values)


def speech(synthesizer: Synthesizer, text: str = TEXT) -> torch.Tensor:
    """The waveform of a text, without its pauses."""
    return torch.cat([chunk.waveform for chunk in synthesizer.synthesize(text, "en", GREEDY)])


def vector(synthesizer: Synthesizer) -> np.ndarray:
    return synthesizer.voice.conditioning["emotion_vector"]


def test_an_emotion_clip_changes_the_speech_by_its_strength(world: Workspace,
                                                            take: Callable[..., Synthesizer]) -> None:
    plain, clip = take(), str(world.path / "other.wav")
    none, half, whole = (take(emotion=emotion(emotion_clip=clip, emotion_strength=share)) for share in (0, 0.5, 1))
    assert np.abs(vector(whole) - vector(none)).max() > 0.1
    np.testing.assert_allclose(vector(half), (vector(none) + vector(whole)) / 2, rtol=1e-4, atol=1e-5)
    for name in ("codes", "mel", "style"):
        assert np.array_equal(whole.voice.timbre[name], plain.voice.timbre[name])
    assert not torch.equal(speech(whole), speech(plain))
    soundfile.write(world.path / "other.wav", voiced(RATE, RATE, 200.0), RATE)
    assert not np.array_equal(vector(take(emotion=emotion(emotion_clip=clip))), vector(whole))


def test_weights_of_emotions_change_the_speech(take: Callable[..., Synthesizer]) -> None:
    plain, happy, sad = take(), take(emotion=emotion(happy=0.8)), take(emotion=emotion(sad=0.8))
    assert len({vector(made).tobytes() for made in (plain, happy, sad)}) == 3
    assert not torch.equal(speech(sad), speech(plain))
    half = vector(take(emotion=emotion(sad=0.8, emotion_strength=0.5)))
    np.testing.assert_allclose(half, (vector(plain) + vector(sad)) / 2, rtol=1e-4, atol=1e-5)
    balanced = vector(take(emotion=emotion(happy=0.8, emotion_balanced=True)))
    bank = (vector(happy) - 0.2 * vector(plain)) / 0.8
    np.testing.assert_allclose(balanced, 0.25 * vector(plain) + 0.75 * bank, rtol=1e-4, atol=1e-5)


def test_a_wanted_duration_and_rate_reach_the_language_model(take: Callable[..., Synthesizer]) -> None:
    plain = speech(take())
    lasting = take(duration_s=2.0)
    prepared = lasting._prepared_voice(TEXT, "en")
    assert prepared.voice.duration_s == 2.0
    assert not torch.equal(prepared.keys_and_values, take()._prepared_voice(TEXT, "en").keys_and_values)
    assert take(speaking_rate=5.0)._prepared_voice("we go home", "en").voice.duration_s == 2.0
    assert not torch.equal(speech(lasting), plain)
    assert torch.equal(speech(take(speaking_rate=len(TEXT) / 2)), speech(lasting))
    with pytest.raises(UserError, match=r"500 codes is wanted \(10 s\); the model speaks up to 150 \(3 s\)"):
        speech(take(speaking_rate=1.0))


def test_published_positions_decode_other_codes(take: Callable[..., Synthesizer]) -> None:
    aligned, published = speech(take()), speech(take(position_scheme="published"))
    assert not torch.equal(aligned, published)
    assert torch.equal(speech(take()), aligned)  # the model itself is unchanged


def test_an_empty_field_of_the_flow_is_the_default_of_the_family(take: Callable[..., Synthesizer],
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    assert (vocoder.FLOW_STEPS, vocoder.FLOW_PROMPT_S) == (25, 15.0)
    monkeypatch.setattr(vocoder, "FLOW_STEPS", 2)
    assert torch.equal(speech(take(flow_steps=None)), speech(take(flow_steps=2)))
    assert not torch.equal(speech(take(flow_steps=3)), speech(take(flow_steps=2)))
    monkeypatch.setattr(vocoder, "FLOW_PROMPT_S", 0.5)
    assert torch.equal(speech(take()), speech(take(flow_prompt_s=0.5)))
    assert not torch.equal(speech(take()), speech(take(flow_prompt_s=1.0)))


@pytest.mark.parametrize(("values", "message"), [
    ({"sound.emotion.happy": 1.2}, "Happy: should be less than or equal to 1"),
    ({"sound.emotion.calm": -0.1}, "Calm: should be greater than or equal to 0"),
    ({"sound.emotion.emotion_strength": 2}, "Emotion strength: should be less than or equal to 1"),
    ({"sound.emotion.sad": 0.6, "sound.emotion.afraid": 0.6}, "sum to 1.2, and at most 1 is wanted"),
    ({"sound.emotion.sad": 0.6, "sound.emotion.emotion_clip": "a.wav"}, "a clip or from weights, not both, and sad"),
    ({"sound.duration_s": "90"}, r"Duration \(s\): should be less than or equal to 36"),
    ({"sound.duration_s": "2", "sound.speaking_rate": "15"}, "one of them is wanted"),
    ({"sound.flow_steps": "0"}, "Flow steps: should be greater than or equal to 1"),
    ({"sound.flow_prompt_s": "16"}, r"Timbre prompt \(s\): should be less than or equal to 15"),
    ({"sound.position_scheme": "other"}, "Code positions: should be 'aligned' or 'published'"),
])
def test_a_control_out_of_range_is_refused_by_its_label(values: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        form.parse(CompareOptions, values)


def test_weights_above_one_are_accepted_where_they_are_balanced() -> None:
    given = {"sound.emotion.sad": 0.6, "sound.emotion.afraid": 0.6, "sound.emotion.emotion_balanced": True}
    assert form.parse(CompareOptions, given).sound.emotion.weights == (0, 0, 0.6, 0.6, 0, 0, 0, 0)
    assert EmotionOptions().weights is None
    assert tuple(EmotionOptions.model_fields)[:8] == EMOTIONS


def test_the_command_line_takes_every_control() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, SynthesizeOptions)
    words = ["--flow-steps", "4", "--speaking-rate", "12.0", "--position-scheme", "published", "--happy", "0.5",
             "--emotion-balanced", "--emotion-strength", "0.7"]
    options = parse_options(SynthesizeOptions, given_values(parser.parse_args(words), SynthesizeOptions))
    assert options.sound == SoundOptions(flow_steps=4, speaking_rate=12.0, position_scheme="published", emotion=emotion(
        happy=0.5, emotion_balanced=True, emotion_strength=0.7))
    assert sorted(to_arguments(options)) == sorted(words)


def test_the_page_hands_on_only_the_controls_of_the_family() -> None:
    names = ("sampling.seed", "sound.watermark", "sound.flow_steps", "sound.duration_s", "sound.emotion.happy",
             "sound.emotion.emotion_clip")
    values = (1, True, "4", "2", 0.5, "")
    assert list(voice_settings.settings(find_entry("chatterbox"), names, values)) == [
        "sampling.seed", "sound.watermark", "sound.flow_steps"]
    assert list(voice_settings.settings(find_entry("indextts2"), names, values)) == [
        name for name in names if name != "sound.watermark"]


def test_a_control_that_a_family_does_not_have_is_named(world: Workspace, take: Callable[..., Synthesizer]) -> None:
    sound = SoundOptions(duration_s=2.0, position_scheme="published", emotion=emotion(sad=0.3))
    assert unused_controls(sound, Chatterbox()) == ["duration_s", "position_scheme", "emotion"]
    assert unused_controls(sound, IndexTTS2()) == []
    assert unused_controls(SoundOptions(exaggeration=1.0), IndexTTS2()) == ["exaggeration"]


def test_a_job_speaks_with_the_controls(world: Workspace) -> None:
    listener = Listener(world.runs / "speech")
    sound = SoundOptions(flow_steps=1, duration_s=1.0, emotion=emotion(angry=0.4), exaggeration=1.0)
    result = synthesize.run(SynthesizeOptions(voice_model="base:indextts2", text="we", sampling=GREEDY, sound=sound,
                                              voice=str(world.path / "me.wav"), device="cpu"), world, listener)
    assert result["duration_s"]
    assert [event.message for event in listener.of("warning") if "no such control" in event.message] == [
        "exaggeration: no effect, because indextts2 has no such control."]


def test_an_emotion_clip_that_is_no_sound_is_named(take: Callable[..., Synthesizer], tmp_path: Path) -> None:
    (tmp_path / "text.wav").write_text("no sound", encoding="utf-8")
    with pytest.raises(UserError, match=r"text\.wav could not be read as audio"):
        take(emotion=emotion(emotion_clip=str(tmp_path / "text.wav")))


def test_a_new_emotion_clip_does_not_become_the_voice(tmp_path: Path) -> None:
    """Of a base without voices, where the page preselected the only recording: a tick may come before the answer to
    its upload."""
    workspace = Workspace.open(tmp_path)
    write_model(workspace.models / "indextts2")

    def record(name: str, at_s: int) -> str:
        workspace.voices.mkdir(exist_ok=True)
        path = workspace.voices / f"{name}.wav"
        soundfile.write(path, np.zeros(RATE), RATE)
        os.utime(path, (at_s, at_s))
        return str(path)

    def chosen(voice: str, preselected: str) -> tuple[str, str]:
        view = View("listen", {"finetuned": voice_settings.BASE_ONLY, "base": "base:indextts2", "voice": voice,
                               "voice.preselected": preselected, "language": "en"}, ())
        update = voice_settings._voice_choices(workspace, view)
        assert isinstance(update, dict)
        return update["value"], voice_settings._preselected_voice(workspace, view)

    mine = record("mine", 1000)
    assert chosen("", "") == (mine, mine)
    record("angry", 2000)
    assert chosen(mine, mine) == (mine, mine)
