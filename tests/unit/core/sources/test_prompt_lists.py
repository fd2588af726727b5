"""Sentences that are recorded with the microphone: the list, its recordings on disk, and what is wrong with one."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile

from config.errors import UserError
from config.schema import PrepareOptions
from core import prepare
from core.sources import prompt_lists, source_preview
from core.sources.prompt_lists import find_faults
from core.submission import storage
from core.workspace import Workspace
from data import manifest
from data.importers import SourceRow, import_source
from data.measures import frame_powers
from data.normalisers import TextNormaliser
from data.validation import RowChecker
from tests.unit.small_data import Recorder

ROOT = Path(__file__).resolve().parents[4]
DEMO = ROOT / "data" / "demo" / "am"
HUMAN = os.environ.get("LISAN_HUMAN", "")
CORPORA = ("asterisk-ru", "griko", "hausa-f", "hausa-m", "ibibio", "kiswahili", "mboshi-abiayi", "mboshi-kouarata",
           "twi-cv")
ROWS = [json.loads(line) for line in (DEMO / "manifest.jsonl").read_text("utf-8").splitlines()[:12]]
TEXTS = tuple(row["text"] for row in ROWS)


def clip(number: int) -> Path:
    """The demo's recording of a sentence."""
    return DEMO / str(ROWS[number]["audio"])


def voice(number: int = 0) -> tuple[np.ndarray, int]:
    return soundfile.read(clip(number), dtype="float32")


def test_a_list_is_one_sentence_a_line_each_once() -> None:
    text = "One.\r\n\r\n  Two\tthree. \n...\nOne.\n"
    assert prompt_lists.parse_prompts(text) == ("One.", "Two three.")


def test_a_long_line_is_divided_into_sentences_that_fit_a_clip() -> None:
    sentences = [f"This is the sentence number {number} of a long paragraph." for number in range(12)]
    assert prompt_lists.parse_prompts(" ".join(sentences), "en") == tuple(sentences)
    endless = prompt_lists.parse_prompts("words without any mark at all " * 30, "en")
    assert max(map(len, endless)) <= prompt_lists.LONGEST_PROMPT


@pytest.mark.parametrize(("text", "message"), [
    (" \n—\n", "There are no sentences to record."),
    ("\n".join(f"Sentence {number}" for number in range(prompt_lists.MOST_PROMPTS + 1)), "has 5,001 sentences")])
def test_no_sentences_and_too_many_are_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        prompt_lists.parse_prompts(text)


def test_included_sentences_are_of_the_language_and_none_that_measure_a_model() -> None:
    measuring = (ROOT / "data/evaluation/categories.tsv").read_text("utf-8")
    amharic = prompt_lists.included_prompts("am")
    assert TEXTS[0] in amharic
    assert not [text for text in amharic if f"\t{text}\t" in measuring]
    held_out = [json.loads(line) for line in (DEMO / "manifest.jsonl").read_text("utf-8").splitlines()]
    assert not set(amharic) & {row["text"] for row in held_out if row["split"] != "train"}
    assert len(prompt_lists.included_prompts("en")) == 20
    assert prompt_lists.included_prompts("ha") == ()


def test_each_recording_is_on_the_disk_and_the_list_goes_on_where_it_stopped(workspace: Workspace) -> None:
    folder = prompt_lists.create(workspace, "mine", "am", TEXTS[:4]).folder
    assert prompt_lists.load(folder).next_open() == 0
    prompt_lists.save_take(folder, 0, clip(0))
    prompt_lists.skip(folder, 1)

    opened = prompt_lists.load(folder)  # as another process does
    assert (opened.recorded, opened.skipped, opened.next_open()) == ({0}, {1}, 2)
    stored, rate = soundfile.read(opened.clip(0), dtype="float32")
    spoken, spoken_rate = voice(0)
    assert rate == spoken_rate
    np.testing.assert_allclose(stored, spoken, atol=2.0**-15)
    assert soundfile.info(opened.clip(0)).subtype == "PCM_16"


def test_recording_again_replaces_and_skipping_leaves_out(workspace: Workspace) -> None:
    folder = prompt_lists.create(workspace, "mine", "am", TEXTS[:3]).folder
    for number in (0, 2):
        prompt_lists.save_take(folder, number, clip(number))
    first = prompt_lists.load(folder).clip(0).read_bytes()
    prompt_lists.save_take(folder, 0, clip(5))
    assert prompt_lists.load(folder).clip(0).read_bytes() != first

    assert prompt_lists.skip(folder, 2).included == [0]
    table = [json.loads(line) for line in (folder / prompt_lists.TABLE).read_text("utf-8").splitlines()]
    assert table == [{"audio": "clips/0001.wav", "text": TEXTS[0]}]
    assert prompt_lists.save_take(folder, 2, clip(2)).included == [0, 2]


def test_what_is_no_recording_leaves_the_earlier_one(workspace: Workspace, tmp_path: Path) -> None:
    folder = prompt_lists.create(workspace, "mine", "am", TEXTS[:2]).folder
    kept = prompt_lists.save_take(folder, 0, clip(0)).clip(0).read_bytes()
    (tmp_path / "noise.wav").write_bytes(b"no sound")
    soundfile.write(tmp_path / "hour.wav", np.zeros(16000 * 61, np.float32), 16000)
    soundfile.write(tmp_path / "empty.wav", np.zeros(0, np.float32), 16000)
    for name in ("noise.wav", "hour.wav", "empty.wav"):
        with pytest.raises(UserError):
            prompt_lists.save_take(folder, 0, tmp_path / name)
    assert prompt_lists.load(folder).clip(0).read_bytes() == kept
    with pytest.raises(UserError, match="has 2 sentences"):
        prompt_lists.save_take(folder, 2, clip(0))


@pytest.mark.parametrize(("duration_s", "is_too_long"), [(29, False), (31, True)])
def test_what_the_import_refuses_as_too_long_is_a_fault(duration_s: int, is_too_long: bool, workspace: Workspace,
                                                        tmp_path: Path) -> None:
    folder = prompt_lists.create(workspace, "mine", "am", TEXTS[:1]).folder
    spoken, rate = voice(0)
    soundfile.write(tmp_path / "long.wav", np.pad(spoken, (0, duration_s * rate - len(spoken))), rate)
    prompts = prompt_lists.save_take(folder, 0, tmp_path / "long.wav")
    row, = import_source(Path(prompt_lists.source_of(folder)), "am")
    assert isinstance(row, SourceRow)
    errors = RowChecker(TextNormaliser("chatterbox-new-ethiopic"), keep_edges=False).check(row).errors
    assert [error.kind for error in errors] == ["too long"] * is_too_long
    faults = prompt_lists.look_at_take(prompts, 0).faults
    assert [fault.startswith("Too long for a clip: 31.0 s") for fault in faults] == [True] * is_too_long


def test_a_link_is_no_recording_whether_its_target_exists_or_not(workspace: Workspace, tmp_path: Path) -> None:
    created = prompt_lists.create(workspace, "voice", "sw", ("moja", "mbili"))
    (tmp_path / "there.wav").write_bytes(b"x")
    created.clip(0).symlink_to(tmp_path / "there.wav")
    created.clip(1).symlink_to(tmp_path / "missing.wav")
    assert prompt_lists.load(created.folder).recorded == frozenset()


def test_a_list_is_read_by_the_import_like_any_folder(workspace: Workspace) -> None:
    (workspace.models / "tiny").symlink_to(ROOT / "models/tiny/pack")
    folder = prompt_lists.create(workspace, "mine", "am", TEXTS).folder
    with pytest.raises(UserError, match="No sentence of 'mine' is recorded yet"):
        prompt_lists.source_of(folder)
    for number in range(len(TEXTS)):
        prompt_lists.save_take(folder, number, clip(number))
    (folder / prompt_lists.TABLE).unlink()  # as if the process had been killed before the table was written

    source = prompt_lists.source_of(folder)
    rows = [row for row in import_source(Path(source), "am") if isinstance(row, SourceRow)]
    assert [(row.audio.name, row.text) for row in rows] == [
        (f"{number + 1:04d}.wav", text) for number, text in enumerate(TEXTS)]
    assert "metadata.jsonl" in " ".join(source_preview.preview(source, "am"))
    prepare.run(PrepareOptions(source=source, dataset="mine", language="am", device="cpu"), workspace, Recorder())
    assert len(manifest.load(workspace.dataset("mine")).clips) == len(TEXTS)


def test_names_are_listed_last_changed_first_and_taken_once(workspace: Workspace) -> None:
    assert prompt_lists.list_names(workspace) == []
    for name in ("older", "newer"):
        prompt_lists.create(workspace, name, "am", TEXTS[:2])
    prompt_lists.skip(prompt_lists.folder_of(workspace, "older"), 0)
    assert prompt_lists.list_names(workspace) == ["older", "newer"]
    with pytest.raises(UserError, match="There already is a prompt list named 'newer'"):
        prompt_lists.create(workspace, "newer", "am", TEXTS[:2])
    with pytest.raises(UserError):
        prompt_lists.folder_of(workspace, "../models")


def test_a_list_is_deleted_into_the_bin_with_its_recordings(workspace: Workspace) -> None:
    folder = prompt_lists.create(workspace, "mine", "am", TEXTS[:2]).folder
    prompt_lists.save_take(folder, 0, clip(0))
    storage.delete(workspace, storage.parse("recording:mine"))
    assert prompt_lists.list_names(workspace) == []
    storage.restore(workspace, "recording:mine")
    assert prompt_lists.load(folder).recorded == {0}


def test_a_recording_for_a_list_that_was_deleted_says_how_to_restore_it(workspace: Workspace) -> None:
    folder = prompt_lists.create(workspace, "mine", "am", TEXTS[:2]).folder
    storage.delete(workspace, storage.parse("recording:mine"))
    for action in (lambda: prompt_lists.save_take(folder, 0, clip(0)), lambda: prompt_lists.load(folder)):
        with pytest.raises(UserError, match="The prompt list 'mine' was deleted") as caught:
            action()
        assert "restore recording:mine" in caught.value.hint


def test_a_recording_that_cannot_be_written_names_its_file_and_leaves_the_earlier_one(
        workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = prompt_lists.create(workspace, "mine", "am", TEXTS[:2]).folder
    clip_file = prompt_lists.save_take(folder, 0, clip(0)).clip(0)
    kept = clip_file.read_bytes()

    def write(*values: object, **settings: object) -> None:
        raise soundfile.LibsndfileError(2, "Error opening: ")  # what libsndfile raises on a full disk

    monkeypatch.setattr(soundfile, "write", write)
    with pytest.raises(UserError, match=r"The recording of sentence 1 could not be written to .*mine: ") as caught:
        prompt_lists.save_take(folder, 0, clip(1))
    assert caught.value.hint == "Free some disk space."
    assert clip_file.read_bytes() == kept


@pytest.mark.parametrize(("content", "message"), [
    ('{"language": "am", "prompts": 3}', r"work/prompts.json could not be read"),
    ('{"language": "am", "prompts": [], "skipped": []}', r"work/prompts.json has no sentences")])
def test_a_damaged_list_is_named(content: str, message: str, workspace: Workspace) -> None:
    folder = prompt_lists.create(workspace, "mine", "am", TEXTS[:2]).folder
    (folder / prompt_lists.PROMPTS).write_text(content)
    with pytest.raises(UserError, match=message):
        prompt_lists.load(folder)


def test_good_recordings_have_no_fault() -> None:
    faults = {number: find_faults(*voice(number), TEXTS[number]) for number in range(len(TEXTS))}
    assert not any(faults.values()), faults


@pytest.mark.skipif(not HUMAN, reason="LISAN_HUMAN names no folder of human recordings")
@pytest.mark.parametrize("corpus", CORPORA)
def test_people_who_read_all_of_a_text_are_not_called_too_short_or_too_quiet(corpus: str, tmp_path: Path) -> None:
    """Of 100 clips of a corpus. Those of Griko are noisy, and a few others have a pause."""
    with tarfile.open(Path(HUMAN) / f"{corpus}.tar") as archive:
        archive.extractall(tmp_path, filter="data")
    lines = (tmp_path / "metadata.csv").read_text(encoding="utf-8").splitlines()
    rows = [line.partition("|")[::2] for line in lines if "|" in line]
    faults = []
    for name, text in rows[::max(1, len(rows) // 100)][:100]:
        waveform, rate = soundfile.read(tmp_path / name, dtype="float32")
        faults += find_faults(waveform, rate, text)
    assert not [fault for fault in faults if fault.startswith(("Too short for the text", "Very quiet", "Clipped"))]


def test_each_fault_of_a_recording_is_named() -> None:
    spoken, rate = voice(0)
    level = 10 * np.log10(np.percentile(frame_powers(spoken, rate), 95))
    quiet = spoken * 10 ** ((prompt_lists.QUIET_DB - 6 - level) / 20)
    loud = np.clip(spoken / np.abs(spoken).max() * 8, -1.0, 1.0)
    noise = np.random.default_rng(0).standard_normal(len(spoken)) * 10 ** (level / 20)
    middle = len(spoken) // 2
    gap = np.concatenate((spoken[:middle], np.zeros(2 * rate, np.float32), spoken[middle:]))

    def fault(waveform: np.ndarray, text: str = TEXTS[0]) -> str:
        return " ".join(find_faults(waveform.astype(np.float32), rate, text))

    assert fault(quiet).startswith("Very quiet: ")
    assert "Clipped: " in fault(loud)
    assert fault(spoken, " ".join(TEXTS)).startswith("Too short for the text: ")
    assert fault(np.tile(spoken, 8)).startswith("Long for the text: ")
    assert "Noisy: the voice is " in fault(0.5 * spoken + 0.2 * noise)
    assert "Noisy: the recording is as loud between the words" in fault(0.05 * spoken + noise)
    assert "A pause of " in fault(gap)
    assert fault(np.zeros(2 * rate, np.float32)).startswith("There is hardly any sound: ")


def test_a_recording_that_is_cut_off_is_told_by_the_others(workspace: Workspace, tmp_path: Path) -> None:
    folder = prompt_lists.create(workspace, "mine", "am", TEXTS).folder
    for number in range(1, 7):
        prompt_lists.save_take(folder, number, clip(number))
    spoken, rate = voice(0)
    soundfile.write(tmp_path / "half.wav", spoken[:int(0.4 * len(spoken))], rate)
    taken = prompt_lists.save_take(folder, 0, tmp_path / "half.wav")
    assert find_faults(*soundfile.read(taken.clip(0), dtype="float32"), TEXTS[0]) == ()
    assert " in your other recordings" in prompt_lists.look_at_take(taken, 0).faults[0]
    assert prompt_lists.look_at_take(prompt_lists.save_take(folder, 0, clip(0)), 0).faults == ()


def test_silence_around_a_sentence_is_no_fault() -> None:
    spoken, rate = voice(0)
    padded = np.pad(spoken, (2 * rate, 3 * rate))
    assert find_faults(padded, rate, TEXTS[0]) == ()
