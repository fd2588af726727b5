"""Long recordings end to end, in the built-in model's own voices: cut, written down, aligned, and made a dataset."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile

from config.errors import UserError
from config.schema import AlignOptions, PrepareOptions, SegmentOptions, TranscribeOptions
from core import align, prepare, segment, transcribe
from core.dataset import cutting, reference_text
from core.dataset.cutting import LongRecording, RecordingCutter
from core.dataset.reference_text import read_reference, spell_sentences, split_words
from core.jobs.engines import HERE, Engine
from core.jobs.reporter import StopRequested
from core.library.segments import TABLE, SegmentClip, Segments
from core.workspace import Workspace
from data import manifest
from data.acoustics import audio
from data.measures import integrated_loudness
from data.segmentation import SegmentLimits
from tests.unit.cutting_work import load_failing_finder
from tests.unit.small_data import Recorder, write_clip

ROOT = Path(__file__).resolve().parents[4]
RATE = 16000
AT_MOST_S = 0.2  # by which a sentence may begin or end elsewhere than it does
Truth = list[tuple[float, float, str]]  # when each sentence begins and ends, and its text


@pytest.fixture
def ready(workspace: Workspace) -> Workspace:
    (workspace.models / "tiny").symlink_to(ROOT / "models/tiny/pack")
    return workspace


def write_long(path: Path, first: int, sentences: int, seed: int = 0) -> Truth:
    """Sentences of the Amharic demo in one voice, with pauses of 0.3 to 1.5 s and a little noise."""
    random = np.random.default_rng(seed)
    rows = [json.loads(line) for line in (ROOT / "data/demo/am/manifest.jsonl").read_text("utf-8").splitlines()]
    mine = [row for row in rows if row["speaker"] == "low"][first:first + sentences]
    parts, truth, at = list[np.ndarray](), Truth(), 0
    for row in mine:
        pause = 3e-4 * random.standard_normal(int(RATE * random.uniform(0.3, 1.5)))
        clip = soundfile.read(ROOT / "data/demo/am" / row["audio"], dtype="float32")[0]
        truth.append(((at + len(pause)) / RATE, (at + len(pause) + len(clip)) / RATE, row["text"]))
        parts += [pause, clip]
        at += len(pause) + len(clip)
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.concatenate([*parts, np.zeros(RATE)]), RATE)
    return truth


def srt(rows: Sequence[tuple[float, float, str]]) -> str:
    return "\n".join(f"{number}\n{reference_text.srt_time(begin)} --> {reference_text.srt_time(end)}\n{text}\n"
                     for number, (begin, end, text) in enumerate(rows, 1))


def times(path: Path) -> list[tuple[float, float]]:
    def seconds(clock: str) -> float:
        hours, minutes, rest = clock.split(":")
        return int(hours) * 3600 + int(minutes) * 60 + float(rest.replace(",", "."))

    found = re.findall(r"(\S+) --> (\S+)", path.read_text("utf-8"))
    return [(seconds(begin), seconds(end)) for begin, end in found]


def cut(workspace: Workspace, source: Path, recorder: Recorder | None = None, **more: object) -> Segments:
    options = SegmentOptions.model_validate({"source": str(source), "segments": "talks", "language": "am", **more})
    segment.run(options, workspace, recorder or Recorder())
    return Segments.load(workspace.segments / "talks")


def aligned(workspace: Workspace, source: Path, recorder: Recorder | None = None, **more: object) -> Segments:
    options = AlignOptions.model_validate({"source": str(source), "segments": "talks", "language": "am",
                                           "recogniser": "built-in", **more})
    align.run(options, workspace, recorder or Recorder())
    return Segments.load(workspace.segments / "talks")


def sound_of(segments: Segments, piece: SegmentClip) -> np.ndarray:
    samples, rate = soundfile.read(segments.folder / piece.audio, dtype="float32")
    return samples[round(piece.begin_s * rate):round(piece.end_s * rate)]


def test_a_recording_without_text_becomes_a_dataset(tmp_path: Path, ready: Workspace) -> None:
    truths = {name: write_long(tmp_path / "in" / f"{name}.wav", first, 12, first)
              for name, first in (("one", 0), ("two", 20))}
    segments = cut(ready, tmp_path / "in", lufs=0)
    pieces = segments.pieces()
    assert {piece.recording for piece in pieces} == {"one.wav", "two.wav"}
    for piece in pieces:
        assert 2.0 - 0.01 <= piece.duration_s <= 15.0 + 0.01
        whole = soundfile.read(tmp_path / "in" / piece.recording, dtype="float32")[0]
        begin = round(piece.from_s * RATE)
        assert np.allclose(sound_of(segments, piece), whole[begin:begin + round(piece.duration_s * RATE)], atol=1e-4)
    for name, truth in truths.items():  # every sentence is whole, in exactly one clip
        mine = [piece for piece in pieces if piece.recording == f"{name}.wav"]
        for begin, end, _ in truth:
            assert sum(piece.from_s < begin + 0.15 and piece.to_s > end - 0.15 for piece in mine) == 1
    with pytest.raises(UserError, match="'talks' have no texts yet"):
        prepare.run(PrepareOptions(source="segments:talks", dataset="d", language="am"), ready, Recorder())

    result = transcribe.run(TranscribeOptions(segments="talks", recogniser="built-in"), ready, Recorder())
    assert result["with_text"] == len(pieces)
    texts = {piece.id: piece.text for piece in Segments.load(ready.segments / "talks").pieces()}
    recogniser = prepare.family("tiny").load_recogniser(ready.model("tiny"))
    assert recogniser is not None
    wrong = letters = 0
    for piece in pieces:
        said = [text for begin, _, text in truths[piece.recording[:3]] if piece.from_s < begin + 0.15 < piece.to_s]
        result = recogniser.score(audio.read(tmp_path / "in" / piece.recording)[0][
            round(piece.from_s * RATE):round(piece.to_s * RATE)], RATE, " ".join(said), "am")
        wrong, letters = wrong + result.edits, letters + len(result.reference)
        assert texts[piece.id] == result.transcript
    assert wrong / letters < 0.05

    prepare.run(PrepareOptions(source="segments:talks", dataset="d", language="am", held_out=0.3,
                                        any_script=True), ready, Recorder())
    dataset = manifest.load(ready.dataset("d"))
    assert sorted(clip.text for clip in dataset.clips) == sorted(texts.values())
    assert {clip.source.split("/")[-1][:3] for clip in dataset.clips} == {"one", "two"}  # they are held out together
    assert len({clip.split for clip in dataset.clips if "/one" in clip.source}) == 1


def test_subtitles_that_drift_are_put_back(tmp_path: Path, ready: Workspace) -> None:
    truth = write_long(tmp_path / "in/film.wav", 0, 16)
    drifted = [(begin * 1.04 + 3, end * 1.04 + 3, text) for begin, end, text in truth]
    (tmp_path / "in/film.srt").write_text(srt(drifted), encoding="utf-8")
    segments = aligned(ready, tmp_path / "in")
    found = times(next((segments.folder / "aligned").glob("film-*.srt")))
    assert len(found) == len(truth)
    assert max(abs(begin - wanted) for (begin, _), (wanted, _, _) in zip(found, truth, strict=True)) < AT_MOST_S
    assert max(abs(end - wanted) for (_, end), (_, wanted, _) in zip(found, truth, strict=True)) < AT_MOST_S
    pieces = segments.pieces()
    assert " ".join(piece.text for piece in pieces) == " ".join(text for _, _, text in truth)
    for piece in pieces:
        assert piece.score is not None
        assert piece.score > 0.8
        assert not piece.doubt


def test_a_pause_after_a_sentence_is_no_part_of_its_last_word(tmp_path: Path, ready: Workspace) -> None:
    """Of these the fourth ends in an ejective that is heard again, more surely, before the next one begins."""
    truth = write_long(tmp_path / "in/talk.wav", 60, 5, 60)
    (tmp_path / "in/talk.txt").write_text("\n".join(text for _, _, text in truth), encoding="utf-8")
    segments = aligned(ready, tmp_path / "in")
    found = times(next((segments.folder / "aligned").glob("talk-*.srt")))
    assert max(abs(end - wanted) for (_, end), (_, wanted, _) in zip(found, truth, strict=True)) < AT_MOST_S


def test_a_resumed_alignment_counts_what_all_tries_found(tmp_path: Path, ready: Workspace,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        truth = write_long(tmp_path / "in" / f"{number}.wav", 10 * number, 3, number)
        lines = [*(text for _, _, text in truth), "ፖሊስ ጣቢያ ፈልገው ፎቶ ጻፉ"]  # the last one is not said
        (tmp_path / "in" / f"{number}.txt").write_text("\n".join(lines), encoding="utf-8")
    heard: list[str] = []
    true = align.aligned

    def once(sentences, listener, path, progress):
        heard.append(path.name)
        if len(heard) == 2:
            raise StopRequested("Stopped.")
        return true(sentences, listener, path, progress)

    monkeypatch.setattr(align, "aligned", once)
    options = AlignOptions(source=str(tmp_path / "in"), segments="talks", language="am", recogniser="built-in")
    with pytest.raises(StopRequested):
        align.run(options, ready, Recorder())
    result = align.run(options, ready, Recorder())
    assert heard == ["0.wav", "1.wav", "1.wav"]
    assert (result["sentences"], result["not_found"], result["state"]) == (8, 2, "written")
    again = align.run(options, ready, Recorder())
    assert again == {**result, "state": "already there"}


DICKENS = ("It was the best of times, it was the worst of times. It was the age of wisdom, it was the age of "
           "foolishness; it was the epoch of belief, it was the epoch of incredulity.")


@pytest.mark.parametrize(("content", "wanted"), [
    ("Roses are red\nViolets are blue\n\nSugar is sweet", ["Roses are red", "Violets are blue", "Sugar is sweet"]),
    ("THE HOUSE\r\nIt was old. It was cold.\r\n", ["THE HOUSE", "It was old.", "It was cold."]),
    ("one\u2028two\rthree", ["one", "two", "three"]),
    (textwrap.fill(DICKENS, 50) + "\n\n" + "Darkness",
     ["It was the best of times, it was the worst of times.",
      "It was the age of wisdom, it was the age of foolishness; it was the epoch of belief, it was the epoch of "
      "incredulity.", "Darkness"]),
])
def test_a_line_ends_a_sentence_unless_an_editor_broke_it(tmp_path: Path, content: str, wanted: list[str]) -> None:
    (tmp_path / "a.txt").write_text(content, encoding="utf-8", newline="")
    assert read_reference(tmp_path / "a.txt", "a.wav") == wanted


def test_a_recording_given_for_its_text_is_refused_at_once(tmp_path: Path, ready: Workspace) -> None:
    write_long(tmp_path / "talk.wav", 0, 1)
    (tmp_path / "words.txt").write_bytes((tmp_path / "talk.wav").read_bytes())
    for name, message in (("talk.wav", r"talk\.wav is a recording; the text that is spoken in it is wanted"),
                          ("words.txt", r"words\.txt is a recording; the text"),
                          ("none.txt", r"none\.txt could not be read: No such file")):
        with pytest.raises(UserError, match=message):
            aligned(ready, tmp_path / "talk.wav", text=str(tmp_path / name))


def test_a_long_text_is_found_in_its_recording_and_what_does_not_belong_is_left_out(tmp_path: Path,
                                                                                   ready: Workspace) -> None:
    truth = write_long(tmp_path / "talk.wav", 0, 20)
    others = write_long(tmp_path / "other.wav", 40, 4)
    said = [text for _, _, text in truth]
    written = [*said[:6], *(text for _, _, text in others), *said[6:10], *said[13:]]  # 4 not said, 3 not written
    (tmp_path / "talk.txt").write_text("። ".join(written) + "።", encoding="utf-8")
    recorder = Recorder()
    segments = aligned(ready, tmp_path / "talk.wav", recorder, text=str(tmp_path / "talk.txt"))
    told = " ".join(piece.text for piece in segments.pieces())
    assert "4 of 21 sentences were not found" in recorder.warnings
    assert all(text in told for text in [*said[:5], *said[7:9], *said[14:]])
    assert not any(text in told for _, _, text in others)
    for piece in segments.pieces():
        begin = next(begin for begin, _, text in truth if piece.text.startswith(text))
        assert abs(piece.from_s - begin) < AT_MOST_S + 0.2  # its padding
        assert not any(piece.from_s < begin + 0.3 < piece.to_s for begin, _, _ in truth[10:13])


def test_a_noisy_recording_is_aligned_by_a_denoised_copy_which_is_said(tmp_path: Path, ready: Workspace) -> None:
    truth = write_long(tmp_path / "in/talk.wav", 0, 8)
    clean = soundfile.read(tmp_path / "in/talk.wav", dtype="float32")[0]
    voiced = np.concatenate([clean[int(begin * RATE):int(end * RATE)] for begin, end, _ in truth])
    noise = np.random.default_rng(1).standard_normal(len(clean)) * np.sqrt(np.square(voiced).mean() / 10)  # 10 dB
    soundfile.write(tmp_path / "in/talk.wav", clean + noise, RATE, subtype="FLOAT")
    (tmp_path / "in/talk.txt").write_text("\n".join(text for _, _, text in truth), encoding="utf-8")
    recorder = Recorder()
    segments = aligned(ready, tmp_path / "in", recorder, lufs=0)
    found = times(next((segments.folder / "aligned").glob("talk-*.srt")))
    assert max(abs(begin - wanted) for (begin, _), (wanted, _, _) in zip(found, truth, strict=True)) < AT_MOST_S
    assert "Noise is the likely reason: the voice is only 10 dB above it" in recorder.warnings
    assert not list((segments.folder / "work").glob("*.wav"))
    piece = segments.pieces()[0]  # its sound is the recording's, with the noise
    assert np.allclose(sound_of(segments, piece)[:RATE],
                       (clean + noise)[round(piece.from_s * RATE):][:RATE].clip(-1, 1), atol=2**-14)


@pytest.mark.parametrize(("kind", "noise_db"), [("white", 10), ("white", 5), ("babble", 10), ("hum", 0), ("", 0)])
def test_noise_is_named_where_an_alignment_fails_and_only_there(tmp_path: Path, ready: Workspace, kind: str,
                                                                noise_db: int) -> None:
    truth = write_long(tmp_path / "in/talk.wav", 0, 6)
    clean = soundfile.read(tmp_path / "in/talk.wav", dtype="float32")[0]
    spoken = np.concatenate([clean[int(begin * RATE):int(end * RATE)] for begin, end, _ in truth])
    times_s = np.arange(len(clean)) / RATE
    noise = {"white": np.random.default_rng(1).standard_normal(len(clean)),
             "hum": sum(np.sin(2 * np.pi * 50 * harmonic * times_s + harmonic) / harmonic for harmonic in range(1, 12)),
             "babble": sum(np.roll(np.resize(spoken, len(clean)), 33333 * voice) for voice in range(1, 7)),
             "": None}[kind]
    sound = spoken  # without a pause, and with another text
    if noise is not None:
        sound = clean + noise * np.sqrt(np.square(spoken).mean() / np.square(noise).mean() / 10 ** (noise_db / 10))
    else:
        truth = write_long(tmp_path / "other.wav", 60, 6)
    soundfile.write(tmp_path / "in/talk.wav", sound, RATE, subtype="FLOAT")
    (tmp_path / "in/talk.txt").write_text("\n".join(text for _, _, text in truth), encoding="utf-8")
    recorder = Recorder()
    with suppress(UserError):  # that nothing was found
        aligned(ready, tmp_path / "in", recorder)
    assert ("Noise is the likely reason" in recorder.warnings) == bool(kind)
    assert ("it has no pause" in recorder.warnings) == (kind == "babble")


def test_samples_above_full_scale_are_counted_and_those_that_are_no_numbers_refused(tmp_path: Path,
                                                                                    ready: Workspace) -> None:
    write_long(tmp_path / "in/loud.wav", 0, 4)
    loud = 3 * soundfile.read(tmp_path / "in/loud.wav", dtype="float32")[0]
    soundfile.write(tmp_path / "in/loud.wav", loud, RATE, subtype="FLOAT")
    broken = loud.copy()
    broken[RATE + 8] = np.nan
    soundfile.write(tmp_path / "in/broken.wav", broken, RATE, subtype="FLOAT")
    recorder = Recorder()
    segments = cut(ready, tmp_path / "in", recorder, lufs=0)
    inside = [np.abs(loud[round(piece.from_s * RATE):round(piece.to_s * RATE)]) for piece in segments.pieces()]
    above = sum(int((part > 1).sum()) for part in inside)
    assert above > 100
    assert f"loud.wav: {above:,} samples above full scale were cut to it" in recorder.warnings
    assert "broken.wav is skipped" in recorder.warnings
    assert "not finite numbers, the first at 1.00 s" in recorder.warnings


def test_a_text_of_another_recording_is_no_dataset(tmp_path: Path, ready: Workspace) -> None:
    truth = write_long(tmp_path / "talk.wav", 0, 6)
    others = write_long(tmp_path / "other.wav", 100, 6)
    (tmp_path / "talk.txt").write_text("። ".join(text for _, _, text in others), encoding="utf-8")
    recorder = Recorder()
    with pytest.raises(UserError, match="None of the text was found"):
        aligned(ready, tmp_path / "talk.wav", recorder, text=str(tmp_path / "talk.txt"))
    assert not (ready.segments / "talks").exists()
    (tmp_path / "talk.txt").write_text("። ".join(text for _, _, text in truth), encoding="utf-8")
    found = aligned(ready, tmp_path / "talk.wav", text=str(tmp_path / "talk.txt"))  # the text was mended in its place
    assert truth[0][2] in found.pieces()[0].text
    (tmp_path / "talk.txt").write_text("። ".join(text for _, _, text in truth[:3]), encoding="utf-8")
    with pytest.raises(UserError, match="already"):
        aligned(ready, tmp_path / "talk.wav", text=str(tmp_path / "talk.txt"))


def test_a_stopped_cutting_goes_on_with_the_next_recording(tmp_path: Path, ready: Workspace,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        write_long(tmp_path / "in" / f"{number}.wav", 10 * number, 3, number)
    heard: list[str] = []
    true = segment.detect_voice

    def hear(path: Path, progress: object) -> object:
        heard.append(path.name)
        if len(heard) == 2:
            raise StopRequested("Stopped.")
        return true(path, progress)  # type: ignore[arg-type]

    monkeypatch.setattr(segment, "detect_voice", hear)
    with pytest.raises(StopRequested):
        cut(ready, tmp_path / "in")
    assert not (ready.segments / "talks").exists()
    whole = cut(ready, tmp_path / "in")
    assert heard == ["0.wav", "1.wav", "1.wav", "2.wav"]
    assert whole.card.recordings == 3
    assert sorted(path.name for path in whole.folder.iterdir()) == ["audio", "segments.yaml", "work"]
    cut(ready, tmp_path / "in")
    assert len(heard) == 4  # it was there already
    with pytest.raises(UserError, match="already are other segments named 'talks'"):
        cut(ready, tmp_path / "in", max_clip_s=10)


@pytest.mark.parametrize(("engine", "is_killed", "reason"), [
    (HERE, False, "The disk is full"), (Engine("processes", 1), True, "killed by signal 9")])
def test_files_of_a_recording_that_could_not_be_cut_are_deleted(tmp_path: Path, workspace: Workspace, engine: Engine,
                                                                is_killed: bool, reason: str) -> None:
    recordings = []
    for name in ("good", "bad"):
        path = write_clip(tmp_path / f"{name}.wav", 2.0)
        recordings.append(LongRecording(path.name, path, name, "", 2.0))
    recorder = Recorder()
    cutter = RecordingCutter(workspace, recorder, "talks", "am", "in", "cut", {}, cutting.ClipFormat(0, None, False),
                             engine=engine)
    segments = cutter.make(recordings, partial(load_failing_finder, is_killed))
    assert segments.card.clips == 1
    assert [path.name for path in (segments.folder / "audio").iterdir()] == ["good.flac"]
    assert not list((segments.folder / "work").glob("*.wav"))
    assert "bad.wav is skipped" in recorder.warnings
    assert reason in recorder.warnings


def test_transcripts_are_kept_clip_by_clip(tmp_path: Path, ready: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    write_long(tmp_path / "talk.wav", 0, 14)
    segments = cut(ready, tmp_path / "talk.wav", max_clip_s=6)
    monkeypatch.setattr(transcribe, "_BATCH_CLIPS", 2)
    options = TranscribeOptions(segments="talks", recogniser="built-in")
    with pytest.raises(StopRequested, match=r"Stopped after 2 of \d+ clips"):
        transcribe.run(options, ready, Recorder(stop_after=1))
    assert not (segments.folder / TABLE).exists()
    kept = next((segments.folder / "work/transcripts").iterdir())
    with open(kept, "a", encoding="utf-8") as file:
        file.write('{"id": "cut o')  # the power went
    result = transcribe.run(options, ready, Recorder())
    assert result["transcribed_before"] == 2
    assert result["with_text"] == len(segments.pieces())
    again = transcribe.run(options, ready, Recorder())
    assert again["transcribed_before"] == len(segments.pieces())
    strict = transcribe.run(options.model_copy(update={"flag_below": 1.0, "drop_below": 0.97}), ready,
                            Recorder())
    assert strict["doubtful"] == strict["with_text"]
    assert 0 < int(strict["with_text"] or 0) < len(segments.pieces())
    assert len(Segments.load(segments.folder).pieces()) == len(segments.pieces())  # none is lost


@pytest.mark.parametrize(("text", "seconds", "doubt"), [
    ("", 3.0, "nothing was understood"), ("thank you " * 30, 15.0, "repeats itself"),
    ("abcdefghijklmnopqrstuvwxyz0123456789" * 3, 2.0, "54 characters a second"), ("a fine text", 3.0, ""),
])
def test_texts_that_recognisers_make_up_are_doubted(text: str, seconds: float, doubt: str) -> None:
    found = transcribe._doubt(transcribe.Transcript(text, 0.9), seconds, 0.5)
    assert doubt in found
    assert bool(found) == bool(doubt)


def test_loudness_rate_and_speakers_are_as_asked(tmp_path: Path, ready: Workspace) -> None:
    write_long(tmp_path / "in/anna/a.wav", 0, 4)
    segments = cut(ready, tmp_path / "in", lufs=-30, sample_rate=24000, speakers="folder")
    piece = segments.pieces()[0]
    assert soundfile.info(segments.folder / piece.audio).samplerate == 24000
    assert cutting.sound_files.duration_and_rate(segments.folder / piece.audio)[1] == 24000
    assert integrated_loudness(sound_of(segments, piece), 24000) == pytest.approx(-30, abs=0.2)
    assert piece.speaker == "anna"


def test_what_cannot_be_cut_is_named(tmp_path: Path, ready: Workspace) -> None:
    (tmp_path / "in").mkdir()
    soundfile.write(tmp_path / "in/silent.wav", np.zeros(5 * RATE), RATE)
    (tmp_path / "in/broken.wav").write_bytes(b"RIFF nothing")
    recorder = Recorder()
    with pytest.raises(UserError, match="No voice was detected"):
        cut(ready, tmp_path / "in", recorder)
    assert "broken.wav is skipped" in recorder.warnings
    assert "silent.wav: no voice was detected in it" in recorder.warnings
    with pytest.raises(UserError, match="There is no recording"):
        cut(ready, write_text(tmp_path / "a.txt"))


def write_text(path: Path) -> Path:
    path.write_text("no sound", encoding="utf-8")
    return path


def test_marks_stay_with_their_words() -> None:
    assert split_words("ab — cd, ef") == [("ab", " "), ("—", " "), ("cd,", " "), ("ef", "")]
    assert split_words("日本 go") == [("日", ""), ("本", " "), ("go", "")]
    sentences = spell_sentences(["«ab cd.» …"], lambda word: [ord(letter) for letter in word if letter.isalpha()])
    found = [reference_text.AlignedWord(0, 0, 1.0, 1.5, 0.9), reference_text.AlignedWord(0, 1, 1.6, 3.2, 0.9)]
    spans, left_out = reference_text.choose_clips(reference_text.AlignedText(sentences, found, [0, 0]), 9.0,
                                                  SegmentLimits(), 0.3, 0.1)
    assert [span.text for span in spans] == ["«ab cd.» …"]
    assert left_out == []
