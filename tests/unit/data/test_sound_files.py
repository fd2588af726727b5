"""Recordings as people have them: the length is what decodes, each channel is measured, and nothing is lost in silence.

The inputs are built here from the demo; the real entry points are the commands `prepare` and `segment`.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from config.errors import UserError
from config.schema import PrepareOptions
from core import prepare
from core.library.segments import Segments
from core.workspace import Workspace
from data import ffmpeg_audio
from data.channels import ChannelStatistics
from data.measures import measure
from data.sound_files import cut_to_flac, examine, read_blocks, read_samples, read_sound
from tests.unit.outside import RATE, by_command, encoded, joined, needs_ffmpeg, prepared, speech, text
from tests.unit.small_data import SmallFamily, base

PROPERTY = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def ready(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    family = SmallFamily()
    monkeypatch.setattr(prepare, "family", lambda name: family)
    base().save(workspace.models / "tiny")
    return workspace


def table(folder: Path, names: list[str], texts: list[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{name}|{words}\n" for name, words in zip(names, texts, strict=True))
    (folder / "metadata.csv").write_text(lines, encoding="utf-8")
    return folder


def stereo(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.stack([left, right], axis=1)


def likeness(one: np.ndarray, other: np.ndarray) -> float:
    size = min(len(one), len(other))
    return float(np.corrcoef(one[:size], other[:size])[0, 1])


# --- lengths ---


@needs_ffmpeg
@pytest.mark.parametrize("suffix", ["mp3", "ogg", "opus"])
def test_files_joined_one_behind_another_are_read_to_the_end(tmp_path: Path, suffix: str) -> None:
    options = ("-c:a", "libopus") if suffix == "opus" else ()
    parts = [encoded(tmp_path / f"{number}.{suffix}", speech(number), *options) for number in range(3)]
    path = joined(tmp_path / f"talk.{suffix}", parts)
    whole_s = sum(len(speech(number)) for number in range(3)) / RATE
    assert examine(path).duration_s == pytest.approx(whole_s, abs=0.15 + 0.01 * whole_s)
    waveform, rate = read_samples(path)
    assert len(waveform) / rate == pytest.approx(examine(path).duration_s)
    assert sum(map(len, read_blocks(path, 0.7))) == len(waveform)


@needs_ffmpeg
def test_without_ffmpeg_joined_files_are_refused_with_both_lengths(tmp_path: Path,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    path = joined(tmp_path / "talk.mp3", [encoded(tmp_path / f"{number}.mp3", speech(number)) for number in range(3)])
    monkeypatch.setattr(ffmpeg_audio, "ffmpeg_path", lambda: None)
    first_s, whole_s = len(speech(0)) / RATE, sum(len(speech(number)) for number in range(3)) / RATE
    with pytest.raises(UserError, match=r"talk\.mp3 holds (.+) s of sound, and only (.+) s of it decode") as caught:
        read_sound(path)
    words = caught.value.message.split()
    assert float(words[words.index("holds") + 1]) == pytest.approx(whole_s, abs=0.3)
    assert float(words[words.index("only") + 1]) == pytest.approx(first_s, abs=0.1)
    assert "Install ffmpeg" in caught.value.hint


def test_a_header_that_is_followed_by_more_sound_is_not_believed(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", speech(0), RATE)
    content = bytearray((tmp_path / "a.wav").read_bytes())
    at = content.find(b"data") + 4
    content[at:at + 4] = (8000).to_bytes(4, "little")  # as written before the recording went on
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(UserError, match=rf"holds {len(speech(0)) / RATE:.1f} s of sound, and only 0\.2 s of it decode"):
        read_sound(tmp_path / "a.wav")


@needs_ffmpeg
@pytest.mark.parametrize(("suffix", "size"), [("flac", None), ("wav", None), ("wav", 0), ("wav", 0xFFFFFFFF)])
def test_a_file_without_a_length_in_its_header_is_read_to_its_end(tmp_path: Path, suffix: str,
                                                                  size: int | None) -> None:
    path = encoded(tmp_path / f"a.{suffix}", speech(0), pipe=True)
    if size is not None:
        content = bytearray(path.read_bytes())
        at = content.find(b"data") + 4
        content[at:at + 4] = size.to_bytes(4, "little")
        path.write_bytes(content)
    sound = read_sound(path)
    assert len(sound.waveform) == len(speech(0))
    assert not sound.facts.findings()


@PROPERTY
@needs_ffmpeg
@given(suffix=st.sampled_from(["mp3", "ogg", "opus", "flac", "wav"]), share=st.floats(0.3, 0.97),
       numbers=st.lists(st.integers(0, 7), min_size=1, max_size=3))
def test_a_file_cut_at_any_byte_is_said_to_be_cut_off_or_refused(tmp_path: Path, suffix: str, share: float,
                                                                 numbers: list[int]) -> None:
    """What decodes has the length that is stated, is the start of the recording, and never more than was there."""
    waveform = np.concatenate([speech(number) for number in numbers])
    path = encoded(tmp_path / f"a.{suffix}", waveform)
    content = path.read_bytes()
    path.write_bytes(content[:int(share * len(content))])
    try:
        sound = read_sound(path)
    except UserError as error:
        reason = error.message
    else:
        reason = ""
    assert not reason or any(word in reason for word in ("decode", "could not be read", "holds no samples"))
    if reason:
        return
    assert len(sound.waveform) / sound.facts.sample_rate == pytest.approx(sound.facts.duration_s)
    assert sound.facts.duration_s <= len(waveform) / RATE + 0.1
    assert [finding.kind for finding in sound.facts.findings()] == ["cut off"]


@needs_ffmpeg
def test_the_content_counts_and_not_the_suffix(ready: Workspace, tmp_path: Path) -> None:
    for number, suffix in enumerate(["m4a", "flac", "mp3"]):
        made = encoded(tmp_path / f"x.{suffix}", speech(number))
        made.rename((tmp_path / "in").joinpath(f"{number}.wav") if (tmp_path / "in").is_dir() else
                    table(tmp_path / "in", ["0", "1", "2"], [text(at) for at in range(3)]) / f"{number}.wav")
    dataset, _ = prepared(ready, tmp_path / "in", "am", "--held-out", "0")
    lengths = {clip.id: clip.duration_s for clip in dataset.clips}
    assert lengths == pytest.approx({str(number): len(speech(number)) / RATE for number in range(3)}, abs=0.1)
    assert {clip.id: dataset.audio_path(clip).suffix for clip in dataset.clips} == {
        "0": ".flac", "1": ".flac", "2": ".mp3"}


@needs_ffmpeg
@pytest.mark.parametrize("kept", [40, 150])
def test_an_mp3_without_a_whole_frame_is_said_to_be_cut_off(tmp_path: Path, kept: int,
                                                            capfd: pytest.CaptureFixture[str]) -> None:
    path = encoded(tmp_path / "a.mp3", speech(0), "-write_xing", "0", "-id3v2_version", "0", "-b:a", "64k")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match="a.mp3 could not be read as audio: it ends before its first frame of MP3 does"):
        read_sound(path)
    assert "mpg123" not in capfd.readouterr().err


@needs_ffmpeg
@pytest.mark.parametrize("suffix", ["flac", "aac"])
def test_sound_behind_a_large_tag_of_an_mp3_is_decoded(tmp_path: Path, suffix: str) -> None:
    """Players put a cover of 300 kB into an ID3 tag, and some write that before other formats."""
    content = encoded(tmp_path / f"a.{suffix}", speech(0)).read_bytes()
    size = 300_000
    tag = b"ID3\x04\x00\x00" + bytes(size >> shift & 127 for shift in (21, 14, 7, 0)) + bytes(size)
    (tmp_path / "b.mp3").write_bytes(tag + content)
    assert read_sound(tmp_path / "b.mp3").facts.duration_s == pytest.approx(len(speech(0)) / RATE, abs=0.2)


def test_what_is_no_sound_is_named_by_what_it_is(tmp_path: Path) -> None:
    contents = {"Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
                "web page": b"\n<!DOCTYPE html><html></html>", "ZIP archive": b"PK\x03\x04rest", "empty": b""}
    for words, content in contents.items():
        (tmp_path / "a.wav").write_bytes(content)
        with pytest.raises(UserError, match=words):
            read_sound(tmp_path / "a.wav")


@needs_ffmpeg
def test_a_concatenated_audiobook_part_keeps_every_row(ready: Workspace, tmp_path: Path,
                                                       capfd: pytest.CaptureFixture[str]) -> None:
    parts = [encoded(tmp_path / f"{number}.mp3", speech(number)) for number in range(4)]
    (tmp_path / "in").mkdir()
    starts = np.cumsum([0.0] + [examine(part).duration_s for part in parts])
    path = joined(tmp_path / "in" / "talk.mp3", parts)
    rows = "".join(f"talk.mp3,{starts[at]:.3f},{starts[at] + len(speech(at)) / RATE:.3f},{text(at)}\n"
                   for at in range(4))
    (tmp_path / "in" / "metadata.csv").write_text(f"audio,start,end,text\n{rows}", encoding="utf-8")
    dataset, warnings = prepared(ready, tmp_path / "in", "am", "--held-out", "0")
    assert len(dataset.clips) == 4
    assert f"its header states {len(speech(0)) / RATE:.1f} s, and {examine(path).duration_s:.1f} s decode" in warnings
    for at, clip in enumerate(sorted(dataset.clips, key=lambda one: one.id)):
        waveform, _ = read_samples(dataset.audio_path(clip))
        assert waveform.std() > 0.3 * speech(at).std()
    assert "Xing" not in capfd.readouterr().err


@needs_ffmpeg
def test_clips_of_wrong_headers_are_kept_in_their_true_length(ready: Workspace, tmp_path: Path) -> None:
    """VBR without a Xing header is estimated at minutes; two files in one at half of its length."""
    for number in range(2):
        long = np.concatenate([np.zeros(RATE // 2, np.float32), *map(speech, range(number, number + 4))])
        encoded(tmp_path / f"in/vbr{number}.mp3", long, "-q:a", "4", "-write_xing", "0", "-id3v2_version", "0")
        parts = [encoded(tmp_path / f"{at}.mp3", speech(number + at)) for at in range(2)]
        joined(tmp_path / f"in/joined{number}.mp3", parts)
    texts = [" ".join(map(text, range(number, number + 4))) for number in range(2)]
    texts += [f"{text(number)} {text(number + 1)}" for number in range(2)]
    table(tmp_path / "in", ["vbr0", "vbr1", "joined0", "joined1"], texts)
    dataset, warnings = prepared(ready, tmp_path / "in", "am", "--held-out", "0", "--keep-edges")
    expected = {f"vbr{number}": 0.5 + sum(len(speech(number + at)) for at in range(4)) / RATE for number in range(2)}
    expected |= {f"joined{number}": sum(len(speech(number + at)) for at in range(2)) / RATE for number in range(2)}
    assert {clip.id: clip.duration_s for clip in dataset.clips} == pytest.approx(expected, abs=0.2)
    assert "too long" not in warnings
    clips = {clip.id: dataset.audio_path(clip) for clip in dataset.clips}
    assert soundfile.info(clips["joined0"]).duration == pytest.approx(expected["joined0"], abs=0.2)  # for any program


@needs_ffmpeg
def test_segment_cuts_all_of_a_joined_recording(ready: Workspace, tmp_path: Path) -> None:
    pause = np.zeros(RATE, np.float32)
    parts = [encoded(tmp_path / f"{number}.mp3", np.concatenate([speech(number), pause, speech(number + 1), pause]))
             for number in (0, 2, 4)]
    (tmp_path / "in").mkdir()
    path = joined(tmp_path / "in" / "book.mp3", parts)
    code, warnings = by_command(ready, "segment", "--source", str(tmp_path / "in"), "--segments", "s", "--language",
                                "am")
    assert code == 0, warnings
    assert "book.mp3: its header states" in warnings
    sounds = [soundfile.info(made) for made in (ready.segments / "s" / "audio").glob("*.flac")]
    assert sum(sound.duration for sound in sounds) > 0.7 * sum(len(speech(number)) for number in range(6)) / RATE
    assert examine(path).by_ffmpeg


# --- channels and offset ---


@PROPERTY
@given(number=st.integers(0, 7), gain=st.floats(0.3, 1.0), polarity=st.sampled_from([1, -1]),
       delay=st.integers(0, 40), layout=st.sampled_from(["one silent", "other", "both"]),
       offset=st.sampled_from([0.0, 0.05, -0.2]), noise=st.floats(0.0, 1e-3))
def test_one_voice_in_two_channels_is_kept_however_they_are_made(
        tmp_path: Path, number: int, gain: float, polarity: int, delay: int, layout: str, offset: float,
        noise: float) -> None:
    """Silent, inverted or delayed: the waveform is the voice, at the level of a channel, without an offset."""
    voice = 0.5 * speech(number) / np.abs(speech(number)).max()
    hiss = noise * np.random.default_rng(number).standard_normal(len(voice)).astype(np.float32)
    second = {"one silent": hiss, "other": hiss, "both": polarity * gain * np.roll(voice, delay) + hiss}[layout]
    channels = stereo(voice, second) if layout != "other" else stereo(second, voice)
    soundfile.write(tmp_path / "a.wav", channels + offset, RATE, subtype="FLOAT")
    sound = read_sound(tmp_path / "a.wav")
    heard = [voice] if layout != "both" else [voice, second]  # of two inverted or delayed channels, either is the voice
    assert max(abs(likeness(sound.waveform, channel)) for channel in heard) > 0.9
    assert sound.waveform.std() > 0.5 * voice.std()
    assert abs(sound.waveform.mean()) < 1e-3
    kinds = [finding.kind for finding in sound.facts.findings()]
    assert ("offset" in kinds) == (offset != 0)
    if layout == "both" and polarity == -1 and delay == 0:
        assert "channels" in kinds


@settings(max_examples=60, deadline=None)
@given(gains=st.lists(st.sampled_from([0.0, 1.0, -1.0, 0.5, -0.5, 0.3, -0.3, 0.05]), min_size=1, max_size=8)
       .filter(lambda gains: max(map(abs, gains)) >= 0.3), data=st.data())
def test_one_voice_in_any_channels_is_never_cancelled(gains: list[float], data: st.DataObject) -> None:
    """At any gain, polarity and constant offset of each channel; some are silent."""
    offsets = data.draw(st.lists(st.sampled_from([0.0, 0.2, -0.1]), min_size=len(gains), max_size=len(gains)))
    voice = speech(0)[:RATE]
    noise = 1e-4 * np.random.default_rng(0).standard_normal((len(voice), len(gains)))
    samples = (voice[:, None] * np.array(gains) + np.array(offsets) + noise).astype(np.float32)
    statistics = ChannelStatistics(len(gains), RATE)
    statistics.add(samples)
    waveform = statistics.downmix().apply(samples)
    assert abs(np.corrcoef(waveform, voice)[0, 1]) > 0.95
    assert waveform.std() > 0.3 * max(map(abs, gains)) * voice.std()
    assert abs(waveform.mean()) < 2e-3


def test_two_speakers_are_named_and_one_voice_in_two_microphones_is_not(tmp_path: Path) -> None:
    size = min(len(speech(0)), len(speech(1)))
    pause = np.zeros(size, np.float32)
    one, other = speech(0)[:size], speech(1)[:size]
    by_turns = stereo(np.concatenate([one, pause]), np.concatenate([pause, other]))
    at_once = stereo(one, other)
    crosstalk = by_turns + 0.15 * by_turns[:, ::-1]
    for channels in (by_turns, at_once, crosstalk):
        soundfile.write(tmp_path / "a.wav", channels, RATE)
        sound = read_sound(tmp_path / "a.wav")
        assert "hold different sound" in sound.facts.findings()[0].message
        assert likeness(sound.waveform, channels.mean(axis=1)) > 0.99
    soundfile.write(tmp_path / "a.wav", stereo(one, 0.8 * one), RATE)
    assert not read_sound(tmp_path / "a.wav").facts.findings()


@pytest.mark.parametrize(("voices", "level"), [
    ({2: 1.0}, 1.0), ({2: 1.0, 0: 0.1, 1: 0.1}, 1.0), ({0: 1.0, 1: 1.0}, 1.0), ({4: 1.0}, 1.0),
    ({0: 1.0, 1: -1.0}, 1.0)])
def test_six_channels_keep_the_level_of_the_voice(tmp_path: Path, voices: dict[int, float], level: float) -> None:
    channels = np.zeros((len(speech(0)), 6), np.float32)
    for channel, gain in voices.items():
        channels[:, channel] = gain * speech(0)
    soundfile.write(tmp_path / "a.wav", channels, RATE)
    waveform, _ = read_samples(tmp_path / "a.wav")
    assert waveform.std() == pytest.approx(level * speech(0).std(), rel=0.1)
    assert abs(likeness(waveform, speech(0))) > 0.99


def test_an_offset_is_no_sound_in_any_measure(tmp_path: Path) -> None:
    quiet = np.zeros(RATE // 2, np.float32)
    clip = np.concatenate([quiet, speech(0), quiet])
    plain, moved = measure(clip, RATE), measure(clip + np.float32(0.2), RATE)
    assert moved.silence_start_s == pytest.approx(plain.silence_start_s, abs=0.02)
    assert moved.peak == pytest.approx(plain.peak, abs=0.01)
    assert moved.level_lufs == pytest.approx(plain.level_lufs, abs=0.2)


def test_odd_channels_and_offsets_are_reported_by_prepare(ready: Workspace, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    clips = {"inverted": stereo(speech(0), -speech(0)), "nearly": stereo(speech(1), -0.97 * speech(1)),
             "two": stereo(np.concatenate([speech(2), 0 * speech(3)]), np.concatenate([0 * speech(2), speech(3)])),
             "offset": speech(4) * 0.3 + 0.2, "left": stereo(speech(5), 0 * speech(5)), "silent": 0 * speech(6) + 0.2}
    for name, samples in clips.items():
        soundfile.write(tmp_path / "in" / f"{name}.wav", samples, RATE)
    table(tmp_path / "in", list(clips), [f"{text(0)} {text(1)}" if name == "two" else text(at)
                                         for at, name in enumerate(clips)])
    dataset, warnings = prepared(ready, tmp_path / "in", "am", "--held-out", "0")
    kept = {clip.id: read_samples(dataset.audio_path(clip))[0] for clip in dataset.clips}
    assert set(kept) == set(clips) - {"silent"}
    assert "silent is silent: its peak is 0.0000 of full scale" in warnings
    assert likeness(kept["inverted"], speech(0)) > 0.99
    assert likeness(kept["nearly"], speech(1)) > 0.99
    assert kept["left"].std() == pytest.approx(speech(5).std(), rel=0.01)
    assert abs(kept["offset"].mean()) < 1e-3
    for words in ("inverted: channels 1 and 2 cancel each other", "nearly: channels 1 and 2 cancel each other",
                  "two: channels 1 and 2 hold different sound", "offset: it has a constant offset (DC) of 20.0%"):
        assert words in warnings


def two_speakers() -> np.ndarray:
    size = min(len(speech(0)), len(speech(1)))
    return stereo(0.5 * speech(0)[:size], 0.5 * speech(1)[:size])


@pytest.mark.parametrize(("channel", "weights"), [("1", (1.0, 0.0)), ("2", (0.0, 1.0)), ("mix", (0.5, 0.5))])
def test_a_chosen_channel_is_read_by_every_reader(tmp_path: Path, channel: str, weights: tuple[float, float]) -> None:
    samples = two_speakers() + np.array([0.0, 0.1], np.float32)
    soundfile.write(tmp_path / "a.wav", samples, RATE, subtype="FLOAT")
    expected = (two_speakers() * weights).sum(axis=1)
    expected -= expected.mean()
    sound = read_sound(tmp_path / "a.wav", channel=channel)
    blocks = np.concatenate(list(read_blocks(tmp_path / "a.wav", 0.3, channel)))
    part, _ = cut_to_flac(tmp_path / "a.wav", 0.2, 0.9, channel)
    cut = read_samples(io.BytesIO(part))[0]
    for waveform, wanted in ((sound.waveform, expected), (blocks, expected),
                             (cut, expected[round(0.2 * RATE):round(0.9 * RATE)])):
        assert len(waveform) == len(wanted)
        assert np.abs(waveform - wanted).max() < 0.01
    assert not sound.facts.is_plain
    assert not [finding for finding in sound.facts.findings() if finding.kind == "channels"]


def test_what_was_chosen_for_one_reading_is_not_of_the_next(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", two_speakers(), RATE)
    measured = examine(tmp_path / "a.wav")
    assert examine(tmp_path / "a.wav", "2").downmix.weights == (0.0, 1.0)
    assert examine(tmp_path / "a.wav") == measured


@pytest.mark.parametrize("channel", ["auto", "mix", "1", "2"])
def test_a_recording_with_one_channel_is_read_as_it_is(tmp_path: Path, channel: str) -> None:
    soundfile.write(tmp_path / "a.wav", speech(0), RATE)
    assert examine(tmp_path / "a.wav", channel) == examine(tmp_path / "a.wav")


@pytest.mark.parametrize(("written", "value"), [("Left", "1"), ("right", "2"), (" 3 ", "3"), ("AUTO", "auto"),
                                                ("mix", "mix"), ("01", "1")])
def test_spellings_of_a_channel(written: str, value: str) -> None:
    assert PrepareOptions(channel=written).channel == value


@pytest.mark.parametrize("written", ["", "0", "-1", "65", "1.5", "centre", "\u0661", "left,right"])
def test_what_is_no_channel_is_refused(written: str) -> None:
    with pytest.raises(ValidationError, match="write auto, mix, left, right or a number"):
        PrepareOptions(channel=written)


@pytest.mark.parametrize(("words", "number"), [("left", 0), ("right", 1), ("2", 1)])
def test_prepare_takes_the_channel_that_a_person_chose(ready: Workspace, tmp_path: Path, words: str,
                                                       number: int) -> None:
    (tmp_path / "in").mkdir()
    soundfile.write(tmp_path / "in" / "two.wav", two_speakers(), RATE)
    soundfile.write(tmp_path / "in" / "one.wav", speech(2), RATE)
    table(tmp_path / "in", ["two", "one"], [text(0), text(2)])
    dataset, warnings = prepared(ready, tmp_path / "in", "am", "--held-out", "0", "--channel", words, "--keep-edges")
    kept = {clip.id: read_samples(dataset.audio_path(clip))[0] for clip in dataset.clips}
    assert likeness(kept["two"], two_speakers()[:, number]) > 0.999
    assert abs(likeness(kept["two"], two_speakers()[:, 1 - number])) < 0.5
    assert likeness(kept["one"], speech(2)) > 0.999
    assert "different sound" not in warnings


def test_a_channel_that_a_recording_lacks_leaves_it_out(ready: Workspace, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    soundfile.write(tmp_path / "in" / "two.wav", two_speakers(), RATE)
    soundfile.write(tmp_path / "in" / "one.wav", speech(2), RATE)
    table(tmp_path / "in", ["two", "one"], [text(0), text(2)])
    dataset, warnings = prepared(ready, tmp_path / "in", "am", "--held-out", "0", "--channel", "3")
    assert [clip.id for clip in dataset.clips] == ["one"]
    assert "it has 2 channels, and channel 3 was chosen" in warnings


@pytest.mark.parametrize(("channel", "number"), [("left", 0), ("right", 1)])
def test_segment_cuts_the_channel_that_a_person_chose(ready: Workspace, tmp_path: Path, channel: str,
                                                      number: int) -> None:
    """One speaker after the other, each in a channel: what is cut of a channel lies where its speaker speaks."""
    first, second = (np.concatenate([0.5 * speech(place) for place in places]) for places in ((0, 1), (2, 3)))
    talk = stereo(np.concatenate([first, 0 * second]), np.concatenate([0 * first, second]))
    soundfile.write(tmp_path / "talk.wav", talk, RATE)
    name = f"talk-{channel}"
    code, warnings = by_command(ready, "segment", "--source", str(tmp_path / "talk.wav"), "--segments", name,
                                "--language", "am", "--channel", channel)
    assert code == 0, warnings
    pieces = Segments.load(ready.segments / name).pieces()
    border = len(first) / RATE
    assert pieces
    assert all((piece.from_s < border - 0.5) == (number == 0) for piece in pieces)


# --- joined files that libsndfile and ffmpeg read to the end of the first ---


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24"])
@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_joined_wav_and_flac_files_are_read_whole_without_ffmpeg(
    tmp_path: Path, suffix: str, subtype: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ffmpeg_audio, "ffmpeg_path", lambda: None)
    for number in range(3):
        soundfile.write(tmp_path / f"{number}.{suffix}", speech(number), RATE, subtype)
    alone = [read_samples(tmp_path / f"{number}.{suffix}")[0] for number in range(3)]
    path = joined(tmp_path / f"talk.{suffix}", [tmp_path / f"{number}.{suffix}" for number in range(3)])
    waveform, rate = read_samples(path)
    assert rate == RATE
    assert np.array_equal(waveform, np.concatenate(alone))
    assert examine(path).duration_s == pytest.approx(len(waveform) / RATE)
    assert np.array_equal(np.concatenate(list(read_blocks(path, 0.7))), waveform)


def test_joined_files_of_two_rates_are_refused_with_both(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "one.wav", speech(0), RATE)
    soundfile.write(tmp_path / "two.wav", speech(1), 22050)
    path = joined(tmp_path / "talk.wav", [tmp_path / "one.wav", tmp_path / "two.wav"])
    with pytest.raises(UserError, match=r"number 2 has 22050 Hz and 1 channels where the first has 16000 Hz"):
        read_sound(path)


def test_a_plain_file_is_not_taken_for_joined_ones(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "one.wav", speech(0), RATE)
    soundfile.write(tmp_path / "one.flac", speech(0), RATE)
    for suffix in ("wav", "flac"):
        assert examine(tmp_path / f"one.{suffix}").is_plain
