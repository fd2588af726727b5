"""The verb `book` with a small random model: sentences, pauses, spellings, retries, resume, and what is refused."""

from __future__ import annotations

import csv
import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from config.errors import UserError
from config.schema import BookOptions, SamplingOptions
from core import book as verb
from core.jobs.events import Progress
from core.jobs.reporter import StopRequested
from core.library.learning import SentenceHealth
from core.speech import audiobook
from core.speech.audiobook import Cue
from core.submission.jobs import check_requirements
from core.text import manuscript
from core.verbs import book as book_verb
from core.workspace import Workspace
from data.books.reading import read_book
from models.registry import family
from tests.books import plain_book
from tests.trained import RUN, change_checkpoint, trained_world
from tests.unit.small_data import write_clip
from tests.worlds import Listener

HEALTHY = SentenceHealth(1.0, 1.0, 0.0, False, False, False)
SILENT = SentenceHealth(0.0, 0.01, -60.0, False, False, False, no_speech=True)
needs_ffmpeg = pytest.mark.skipif(not (shutil.which("ffmpeg") and shutil.which("ffprobe")), reason="needs ffmpeg")
BODIES = ("<h1>Rain</h1><p>the cat sees a dog. we go home now.</p><p>five green birds sing.</p>",
          "<h1>Sun</h1><p>she reads a book.</p><hr/><p>a boat comes home.</p>")
SPOKEN = ["Rain", "the cat sees a dog.", "we go home now.", "five green birds sing.", "Sun", "she reads a book.",
          "a boat comes home."]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return trained_world(tmp_path_factory.mktemp("world") / "workspace")


@pytest.fixture
def listener(world: Workspace, request: pytest.FixtureRequest) -> Listener:
    return Listener(world.runs / request.node.name.split("[")[0])


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise of the random model passes for speech."""
    monkeypatch.setattr(verb, "measure_sentence_health", lambda *_: HEALTHY)


def options(folder: Path, **changes: object) -> BookOptions:
    path = plain_book(folder / "boat.epub", *BODIES) if not (folder / "boat.epub").exists() else folder / "boat.epub"
    return BookOptions.model_validate({"book": str(path), "voice_model": "base:tiny", "voice": "low", "device": "cpu",
                                       "m4b": False, "mp3": False, **changes})


def sentences(world: Workspace, settings: BookOptions) -> manuscript.Manuscript:
    front_end = family("tiny").load_front_end(world.model("tiny"))
    return manuscript.write_manuscript(world, read_book(Path(settings.book)), settings, front_end, "en")


def records(listener: Listener) -> list[dict]:
    return [json.loads(line) for line in (listener.directory / "sentences.jsonl").read_text().splitlines()]


def test_sentences_and_their_pauses(world: Workspace, tmp_path: Path) -> None:
    written = sentences(world, options(tmp_path, sentence_pause_s=0.1, paragraph_pause_s=0.2, heading_pause_s=0.3,
                                       chapter_pause_s=0.4))
    assert [sentence.text for sentence in written.sentences] == SPOKEN
    assert [sentence.pause_s for sentence in written.sentences] == [0.3, 0.1, 0.2, 0.4, 0.3, 0.3, 0.4]
    assert [sentence.chapter for sentence in written.sentences] == [0, 0, 0, 0, 1, 1, 1]
    assert written.titles == ("Rain", "Sun")


def test_numbers_become_words_by_the_rules_of_the_language(world: Workspace, tmp_path: Path) -> None:
    plain_book(tmp_path / "boat.epub", "<p>in 1914 there were 3 boats.</p>")
    spoken = sentences(world, options(tmp_path)).sentences[0].spoken
    assert "three boats" in spoken
    assert not any(character.isdigit() for character in spoken)
    with pytest.raises(UserError, match="characters outside the vocabulary"):
        sentences(world, options(tmp_path, rules="none"))


@pytest.mark.parametrize(("entry", "text", "spoken"), [
    ("boat -> bote", "a Boat and boats", "a bote and boats"), ("US -> you ess", "US and us", "you ess and us"),
    ("mr reed → mister reed", "Mr Reed and reed", "mister reed and reed"), ("c++ -> see plus plus", "c++ or c",
                                                                           "see plus plus or c"),
    ("a -> b\nb -> c", "a b", "b c"), ("WHO -> who\nwho -> hoo", "WHO, who and Who", "who, hoo and hoo"),
    ("us -> uhs\nUS -> you ess\nUS aid -> help", "US, us, US aid", "you ess, uhs, help"), ("# none", "a b", "a b"),
    ("boat -> b\\1", "boat", "b\\1"), ("ab -> x\nabc -> y", "abc ab", "y x"),
])
def test_a_pronunciation_list_replaces_whole_words(tmp_path: Path, entry: str, text: str, spoken: str) -> None:
    path = tmp_path / "list.txt"
    path.write_text(f"# names\n\n{entry}\n")
    assert manuscript.respell(manuscript.read_pronunciations(str(path)))(text) == spoken


@pytest.mark.parametrize("line", ["boat", "boat ->", "-> boat", "a -> b -> c", "x" * 300 + " -> y"])
def test_a_line_that_is_no_spelling_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "list.txt"
    path.write_text(f"good -> fine\n{line}\n")
    with pytest.raises(UserError, match="Line 2 of list.txt"):
        manuscript.read_pronunciations(str(path))


def test_words_of_the_list_that_do_not_occur_are_named(world: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("dog -> cat\nship -> boat\n")
    written = sentences(world, options(tmp_path, pronunciations=str(path)))
    assert written.sentences[1].spoken == "the cat sees a cat."
    assert written.sentences[1].text == "the cat sees a dog."
    assert any("ship" in note and "dog" not in note for note in written.notes)


def test_unknown_characters_are_counted_before_hours_of_work(world: Workspace, tmp_path: Path) -> None:
    plain_book(tmp_path / "boat.epub", "<p>a ж boat. a ж cat. ж ж ж.</p>")
    with pytest.raises(UserError, match="ж in 3 sentences"):
        sentences(world, options(tmp_path))
    written = sentences(world, options(tmp_path, unknown="leave_out"))
    assert [sentence.text for sentence in written.sentences] == ["a ж boat.", "a ж cat."]
    assert any("left out" in note for note in written.notes)
    assert any("1 sentence without" in note for note in written.notes)


@needs_ffmpeg
def test_a_whole_book(world: Workspace, tmp_path: Path, listener: Listener, healthy: None) -> None:
    output = tmp_path / "out"
    result = verb.run(options(tmp_path, m4b=True, mp3=True, output=str(output)), world, listener)
    names = sorted(path.name for path in (listener.directory / verb.FOLDER).iterdir())
    assert names == ["1-Rain.mp3", "2-Sun.mp3", "The-Boat.m4b", "The-Boat.srt", "The-Boat.vtt", "resynthesized.csv"]
    assert sorted(path.name for path in output.iterdir()) == names
    assert (result["chapters"], result["sentences"], result["resynthesized"], result["faulty"]) == (2, 7, 0, 0)
    assert not (listener.directory / "sentences").exists()

    shown = json.loads(subprocess.run(
        ["ffprobe", "-v", "error", "-of", "json", "-show_chapters", "-show_format", str(output / "The-Boat.m4b")],
        capture_output=True, check=True).stdout)
    assert [chapter["tags"]["title"] for chapter in shown["chapters"]] == ["Rain", "Sun"]
    assert float(shown["chapters"][-1]["end_time"]) == pytest.approx(float(result["duration_s"] or 0), abs=0.002)
    assert shown["format"]["tags"]["artist"] == "Ada Reed"
    # The chapter begins with its first sentence.
    lines = (output / "The-Boat.srt").read_text().splitlines()
    minutes, seconds = lines[lines.index("Sun") - 1].split(" --> ")[0][3:].replace(",", ".").split(":")
    assert float(shown["chapters"][1]["start_time"]) == pytest.approx(60 * int(minutes) + float(seconds), abs=0.002)


def test_a_stop_loses_nothing_and_a_resume_goes_on_at_the_sentence(world: Workspace, tmp_path: Path, healthy: None,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "MAX_BATCH_SIZE", 2)
    stopped, whole = Listener(world.runs / "stopped"), Listener(world.runs / "whole")
    monkeypatch.setattr(stopped, "stop_requested",
                        lambda: any(event.done >= 4 for event in stopped.events if isinstance(event, Progress)))
    with pytest.raises(StopRequested, match="after 4 of 7 sentences"):
        verb.run(options(tmp_path), world, stopped)
    first = records(stopped)
    assert len(first) == 4
    times = {path.name: path.stat().st_mtime_ns for path in (stopped.directory / "sentences").iterdir()}

    # The last line was cut off by a kill, and a file of another sentence too.
    lines = (stopped.directory / "sentences.jsonl").read_text().splitlines()
    (stopped.directory / "sentences.jsonl").write_text("\n".join(lines[:3]) + "\n" + lines[3][:40])
    broken = stopped.directory / "sentences" / f"{first[2]['number']:06d}.flac"
    broken.write_bytes(broken.read_bytes()[:100])

    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    again = Listener(stopped.directory)
    verb.run(options(tmp_path), world, again)
    assert again.of("plan")[0].counts["present"] == 2
    kept = [stopped.directory / "sentences" / f"{record['number']:06d}.flac" for record in first[:2]]
    assert all(times[path.name] == path.stat().st_mtime_ns for path in kept)
    verb.run(options(tmp_path), world, whole)
    for number in range(7):
        paths = [folder.directory / "sentences" / f"{number:06d}.flac" for folder in (again, whole)]
        waveforms = [soundfile.read(path)[0] for path in paths]
        # A batch of another shape may round otherwise.
        np.testing.assert_allclose(waveforms[0], waveforms[1], rtol=0, atol=2 / 2 ** 15)
        assert np.abs(waveforms[0]).max() > 0.01


def test_a_changed_book_is_not_continued_with_old_sentences(world: Workspace, tmp_path: Path, listener: Listener,
                                                            healthy: None,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    verb.run(options(tmp_path), world, listener)
    plain_book(tmp_path / "boat.epub", BODIES[0].replace("green", "grey"), BODIES[1])
    again = Listener(listener.directory)
    (listener.directory / verb.FOLDER / "resynthesized.csv").unlink()
    for path in (listener.directory / verb.FOLDER).iterdir():
        path.unlink()
    (listener.directory / verb.FOLDER).rmdir()
    verb.run(options(tmp_path), world, again)
    assert again.of("plan")[0].counts["present"] == 6


def stopped_after(listener: Listener, count: int, monkeypatch: pytest.MonkeyPatch) -> Listener:
    """The listener with a stop request after so many sentences, in batches of one."""
    monkeypatch.setattr(verb, "MAX_BATCH_SIZE", 1)
    monkeypatch.setattr(listener, "stop_requested",
                        lambda: any(event.done >= count for event in listener.events if isinstance(event, Progress)))
    return listener


def present_after_resume(listener: Listener, world: Workspace, settings: BookOptions) -> int:
    """How many sentences the resume of a stopped job uses again."""
    resumed = Listener(listener.directory)
    verb.run(settings, world, resumed)
    return resumed.of("plan")[0].counts["present"]


@pytest.mark.parametrize("changed", [False, True])
def test_a_resume_with_another_checkpoint_uses_no_old_sentence(world: Workspace, tmp_path: Path, listener: Listener,
                                                               healthy: None, monkeypatch: pytest.MonkeyPatch,
                                                               changed: bool) -> None:
    path = tmp_path / "boat.txt"
    path.write_text("ሀለመ ሰረቀ። በተነከ።\n")
    settings = options(tmp_path, book=str(path), voice_model=f"run:{RUN}", language="am")
    listener = Listener(world.runs / f"checkpoint-{changed}")
    with pytest.raises(StopRequested):
        verb.run(settings, world, stopped_after(listener, 1, monkeypatch))
    if changed:
        change_checkpoint(world)
    assert present_after_resume(listener, world, settings) == (0 if changed else 1)


def test_a_resume_with_another_recording_of_the_voice_uses_no_old_sentence(
        world: Workspace, tmp_path: Path, listener: Listener, healthy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    voice = write_clip(tmp_path / "voice.wav", duration_s=4.0)
    settings = options(tmp_path, voice=str(voice))
    with pytest.raises(StopRequested):
        verb.run(settings, world, stopped_after(listener, 2, monkeypatch))
    write_clip(voice, duration_s=5.0)
    assert present_after_resume(listener, world, settings) == 0


def healths(*values: SentenceHealth) -> Callable[..., SentenceHealth]:
    """A measurement that gives these in order, and the last one from then on."""
    remaining = list(values)
    return lambda *_: remaining.pop(0) if len(remaining) > 1 else remaining[0]


def test_a_faulty_sentence_is_synthesized_again_with_another_seed(world: Workspace, tmp_path: Path, listener: Listener,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    plain_book(tmp_path / "boat.epub", "<p>=cmd() the cat sees a dog.</p>")
    monkeypatch.setattr(verb, "measure_sentence_health", healths(SILENT, HEALTHY))
    result = verb.run(options(tmp_path, unknown="leave_out"), world, listener)
    record = records(listener)[0]
    assert (record["best"], record["faults"]) == (1, ["silent, no speech", ""])
    assert (result["resynthesized"], result["faulty"]) == (1, 0)
    with open(listener.directory / verb.FOLDER / verb.RESYNTHESIZED, encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["attempts"], row["faults"], row["outcome"]) for row in rows] == [
        ("2", "silent, no speech; none", "attempt 2 kept: no fault")]
    assert not rows[0]["text"].startswith("=")


@pytest.mark.parametrize(("text", "health", "faults"), [
    ("yes.", SentenceHealth(0.3, 1.0, -45.0, False, False, False), "silent"),
    ("yes.", SentenceHealth(0.02, 0.1, 0.0, False, False, False), ""),
    ("yes.", SentenceHealth(2.0, 6.0, 0.0, False, False, False), ""),
    ("the cat sees a big dog.", SentenceHealth(0.1, 0.1, 0.0, False, False, False), "silent"),
    ("the cat sees a big dog.", SentenceHealth(9.0, 6.0, 0.0, False, False, False), "wrong duration"),
])
def test_only_the_duration_of_a_short_sentence_does_not_count(
        world: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, health: SentenceHealth,
        faults: str) -> None:
    plain_book(tmp_path / "boat.epub", f"<p>{text}</p>")
    listener = Listener(tmp_path / "job")
    monkeypatch.setattr(verb, "measure_sentence_health", lambda *_: health)
    verb.run(options(tmp_path, retries=0), world, listener)
    assert records(listener)[0]["faults"] == [faults]


def test_the_time_of_a_faulty_sentence_has_no_sixtieth_second(world: Workspace, tmp_path: Path, listener: Listener,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    plain_book(tmp_path / "boat.epub", "<p>the cat sees a big dog.</p>")
    monkeypatch.setattr(verb, "measure_sentence_health", lambda *_: SILENT)
    monkeypatch.setattr(audiobook, "sentence_cues", lambda *_: [Cue(3599.9996, 3601.0, "the cat sees a big dog.")])
    verb.run(options(tmp_path, subtitles="none", retries=0), world, listener)
    table = (listener.directory / verb.FOLDER / verb.RESYNTHESIZED).read_text(encoding="utf-8-sig")
    assert table.splitlines()[1].split(",")[1] == "01:00:00.000"


def test_the_best_of_faulty_attempts_stays_and_is_counted(world: Workspace, tmp_path: Path, listener: Listener,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    plain_book(tmp_path / "boat.epub", "<p>the cat sees a dog.</p>")
    long_pause = SentenceHealth(1.0, 1.0, 0.0, False, False, True)
    monkeypatch.setattr(verb, "measure_sentence_health", healths(SILENT, long_pause, SILENT))
    result = verb.run(options(tmp_path, retries=3), world, listener)
    record = records(listener)[0]
    assert (record["best"], len(record["faults"])) == (1, 4)
    assert (result["resynthesized"], result["faulty"]) == (1, 1)


def test_another_attempt_has_another_sound(world: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_book(tmp_path / "boat.epub", "<p>the cat sees a dog.</p>")
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    lively = SamplingOptions(temperature=1.0, min_p=0.0)
    sounds = []
    for name, values in (("first", [HEALTHY]), ("second", [SILENT, HEALTHY])):
        listener = Listener(world.runs / name)
        monkeypatch.setattr(verb, "measure_sentence_health", healths(*values))
        verb.run(options(tmp_path, sampling=lively), world, listener)
        sounds.append(soundfile.read(listener.directory / "sentences" / "000000.flac")[0].tobytes())
    assert sounds[0] != sounds[1]


def test_greedy_decoding_is_not_repeated(world: Workspace, tmp_path: Path, listener: Listener,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "measure_sentence_health", lambda *_: SILENT)
    verb.run(options(tmp_path, sampling=SamplingOptions(temperature=0.0)), world, listener)
    assert {len(record["faults"]) for record in records(listener)} == {1}


def test_word_times_lie_in_their_sentences(world: Workspace, tmp_path: Path, listener: Listener, healthy: None,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    verb.run(options(tmp_path, subtitles="words"), world, listener)
    for record in records(listener):
        for _, begin, end in record["words"]:
            assert 0 <= begin <= end <= record["samples"] / 16000 + 0.1
    assert (listener.directory / verb.FOLDER / "The-Boat.words.vtt").is_file()


@pytest.mark.parametrize(("changes", "message"), [
    ({"book": ""}, "No book was given"), ({"book": "/nowhere/book.epub"}, "no file /nowhere/book.epub"),
    ({"language": "sw"}, "does not speak 'sw'"), ({"subtitles": "none"}, "nothing would be written"),
    ({"voice_model": "export:gone"}, "gone"), ({"voice": "tenor"}, "neither a voice"),
    ({"pronunciations": "/nowhere/list.txt"}, "list.txt"),
])
def test_what_cannot_be_read_is_refused_before_it_is_queued(world: Workspace, tmp_path: Path, changes: dict,
                                                            message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_requirements(world, "book", options(tmp_path, **changes))


def test_without_ffmpeg_the_submission_is_refused(world: Workspace, tmp_path: Path,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_verb, "ffmpeg_path", lambda: None)
    with pytest.raises(UserError, match="ffmpeg, which is not on this machine") as refusal:
        check_requirements(world, "book", options(tmp_path, m4b=True))
    assert "apt install ffmpeg" in refusal.value.hint
    assert check_requirements(world, "book", options(tmp_path)) == ()


def test_the_language_is_that_of_the_book(world: Workspace, tmp_path: Path) -> None:
    book = read_book(Path(options(tmp_path).book))
    assert book.language == "en-GB"
    assert manuscript.language_of(book, options(tmp_path), ("fr", "en")) == "en"
    assert manuscript.language_of(book, options(tmp_path, language="fr"), ("fr", "en")) == "fr"
    with pytest.raises(UserError, match="language of the book"):
        manuscript.language_of(book, options(tmp_path), ("am",))


def test_a_trained_model_reads_too(world: Workspace, tmp_path: Path, listener: Listener, healthy: None) -> None:
    path = tmp_path / "boat.txt"
    path.write_text("ሀለመ ሰረቀ። በተነከ።\n")
    result = verb.run(options(tmp_path, book=str(path), voice_model=f"run:{RUN}", language="am"), world, listener)
    assert (result["language"], result["sentences"]) == ("am", 2)


def test_an_output_folder_with_another_file_of_that_name_is_not_overwritten(world: Workspace, tmp_path: Path,
                                                                            listener: Listener, healthy: None) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / "The-Boat.srt").write_text("mine")
    with pytest.raises(UserError, match="already is another file"):
        verb.run(options(tmp_path, output=str(output)), world, listener)
    assert (output / "The-Boat.srt").read_text() == "mine"


@needs_ffmpeg
def test_a_resume_goes_on_after_a_full_disk(world: Workspace, tmp_path: Path, listener: Listener, healthy: None,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were copied whole are the same after the resume, and none was copied in part."""
    output = tmp_path / "out"

    def copy_half(source: Path, target: Path) -> None:
        Path(target).write_bytes(source.read_bytes()[:source.stat().st_size // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def copy_until_full(source: Path, target: Path) -> None:
        (copy_half if source.suffix == ".srt" else copyfile)(source, target)

    copyfile = shutil.copyfile
    settings = options(tmp_path, m4b=True, mp3=True, output=str(output))
    monkeypatch.setattr(shutil, "copyfile", copy_until_full)
    with pytest.raises(UserError, match=r"The-Boat.srt could not be written: No space left"):
        verb.run(settings, world, listener)
    assert sorted(path.name for path in output.iterdir()) == ["1-Rain.mp3", "2-Sun.mp3", "The-Boat.m4b"]

    monkeypatch.setattr(shutil, "copyfile", copyfile)
    assert present_after_resume(listener, world, settings) == 7
    assert (output / "The-Boat.srt").read_bytes() == (listener.directory / verb.FOLDER / "The-Boat.srt").read_bytes()
