"""Sentences that a person reads into the microphone, and the recordings of them. Never loads torch.

`recordings/NAME` in the workspace is a source that `prepare` reads like any folder: `metadata.jsonl` is the table of
the recordings in `clips/`. `work/prompts.json` holds the language, all sentences and those that were skipped. A
recording is on the disk before the next sentence is shown, so a list goes on where it stopped.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import soundfile

from config import foreign
from config.errors import UserError
from core.jobs.locks import locked
from core.sources.dataset_source import demo_dataset
from core.sources.source_assessment import QUIET_DB, loud_level
from core.workspace import KINDS, Workspace, resolve_inside, restore_hint
from data.clip_findings import LIMITS, audio_findings
from data.durable_files import atomic_directory, atomic_path, check_no_link_out, write_json, write_text
from data.importers import SourceRow, import_source
from data.manifest import TRAIN
from data.measures import frame_powers, measure
from data.sound_files import read_sound
from data.text_chunking import split_text
from data.text_match import text_length
from data.validation import ClipCheckLimits

CLIPS, TABLE, PROMPTS = "clips", "metadata.jsonl", "work/prompts.json"
MOST_PROMPTS = 5000
LONGEST_PROMPT = 120
"""Characters; a longer text is divided. At 4 a second, as slow as Chinese is read, 120 take the 30 s of a clip.

The slowest of the demo's 1,230 Amharic clips has 6.5 a second.
"""
_LONGEST_WORD = 400
_LONGEST_TAKE_S = 60.0
_LOCK_TIMEOUT_S = 10.0
_PROBE_SENTENCES = Path(__file__).resolve().parents[2] / "data" / "probe_sentences.jsonl"
_CLIP_LIMITS = ClipCheckLimits()
# Letters a second between the silent ends. The fastest of 900 clips of people in seven languages has 20.6 (a test reads
# them, if LISAN_HUMAN names their folder).
_FASTEST = 22.0
_COMPARED, _TIMES_USUAL = (5, 50), 2.0  # recordings that say what is usual in a list; a faster one is cut off


@dataclass(frozen=True)
class PromptList:
    """The sentences of a list by number, from 0, and which of them are recorded or were skipped."""

    folder: Path
    language: str
    prompts: tuple[str, ...]
    recorded: frozenset[int] = frozenset()
    skipped: frozenset[int] = frozenset()

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def included(self) -> Sequence[int]:
        """The numbers of the recordings that are in the table: what is skipped is left out."""
        return sorted(self.recorded - self.skipped)

    def clip(self, number: int) -> Path:
        """Where the recording of a sentence is, or will be."""
        return self.folder / CLIPS / f"{number + 1:04d}.wav"

    def next_open(self) -> int | None:
        """The first sentence that is neither recorded nor skipped."""
        done = self.recorded | self.skipped
        return next((number for number in range(len(self.prompts)) if number not in done), None)


@dataclass(frozen=True)
class Take:
    """The recording of a sentence: its duration, and what is wrong with it, a sentence each, the gravest first."""

    duration_s: float
    faults: tuple[str, ...]


def list_names(workspace: Workspace) -> list[str]:
    """The names of all lists, the one that changed last first."""
    home = workspace.path / KINDS["recording"]
    folders = [path.parent.parent for path in home.glob(f"[!.]*/{PROMPTS}")]
    changed = {folder.name: max(path.stat().st_mtime_ns for path in (folder / PROMPTS, folder / TABLE)
                                if path.exists()) for folder in folders}
    return sorted(changed, key=lambda name: (-changed[name], name))


def folder_of(workspace: Workspace, name: str) -> Path:
    """The folder of the list `name`; `UserError` for what is no plain name."""
    return resolve_inside(workspace.path / KINDS["recording"], name)


def parse_prompts(text: str, language: str = "") -> tuple[str, ...]:
    """The sentences of a text, one a line; a line that is too long for one clip is divided. Each sentence counts once.

    `UserError` if there are none or too many.
    """
    prompts = dict[str, None]()
    for line in text.splitlines():
        sentence = " ".join("".join(letter if letter.isprintable() else " " for letter in line).split())
        if len(sentence) <= LONGEST_PROMPT:
            parts = [sentence]
        else:
            parts = [chunk.text for chunk in split_text(sentence, LONGEST_PROMPT, len, _LONGEST_WORD,
                                                        language=language)]
        prompts.update(dict.fromkeys(part for part in parts if text_length(part)))

    if not prompts:
        raise UserError("There are no sentences to record.", "Write one a line, upload a text file, or take the "
                        "included ones.")
    if len(prompts) > MOST_PROMPTS:
        raise UserError(f"The list has {len(prompts):,} sentences; it may have {MOST_PROMPTS:,}.",
                        "Divide it into several lists.")
    return tuple(prompts)


def included_prompts(language: str) -> tuple[str, ...]:
    """Sentences of a language that come with the app; none for most languages.

    Amharic has the training texts of the demo, not the evaluation texts, by which a model is measured.
    """
    if language == "am":
        rows = import_source(demo_dataset("am"), "am")
        texts = [row.text for row in rows if isinstance(row, SourceRow) and row.split == TRAIN]
    else:
        lines = _PROBE_SENTENCES.read_text(encoding="utf-8").splitlines()
        texts = [entry["text"] for entry in map(json.loads, lines) if entry["language"] == language]
    return tuple(dict.fromkeys(texts))


def create(workspace: Workspace, name: str, language: str, prompts: Sequence[str]) -> PromptList:
    """A new list; `UserError` if the name is taken."""
    folder = folder_of(workspace, name)
    if folder.exists():
        raise UserError(f"There already is a prompt list named {name!r}.",
                        "Choose it, or another name for the new one.")
    created = PromptList(folder, language, tuple(prompts))
    folder.parent.mkdir(exist_ok=True)
    with atomic_directory(folder) as writing:
        (writing / CLIPS).mkdir()
        (writing / PROMPTS).parent.mkdir()
        _write_prompts(writing, created)
    return created


def load(folder: Path) -> PromptList:
    """The list in `folder`; `UserError` if it was deleted, cannot be read or has no sentence."""
    _require_folder(folder)
    path = folder / PROMPTS
    try:
        values = foreign.read_json(path, 1 << 26)
        prompts = tuple(map(str, values["prompts"]))
        skipped = frozenset(int(number) for number in values["skipped"])
        language = str(values["language"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"The prompt list {path} could not be read: {foreign.reason_of(error)}.",
                        "Make a new one; its recordings are in the folder clips.") from error
    if not prompts:
        raise UserError(f"The prompt list {path} has no sentences; it must have at least one.",
                        "Make a new one; its recordings are in the folder clips.")
    loaded = PromptList(folder, language, prompts, skipped=skipped)
    # Links are no recordings: what they lead to is not even looked up.
    clips = check_no_link_out(folder, CLIPS)
    files = {entry.name: entry for entry in os.scandir(clips)} if clips.is_dir() else {}
    names = {number: loaded.clip(number).name for number in range(len(prompts))}
    recorded = frozenset(number for number, name in names.items()
                         if name in files and files[name].is_file(follow_symlinks=False))
    return replace(loaded, recorded=recorded)


def save_take(folder: Path, number: int, sound: Path) -> PromptList:
    """Store the recording of a sentence, in place of an earlier one, and write the table.

    `UserError` for what is no sound, is empty or much too long; then the earlier recording stays.
    """
    recording = read_sound(sound)
    waveform, rate = recording.waveform, recording.facts.sample_rate
    duration_s = len(waveform) / rate
    if not len(waveform) or duration_s > _LONGEST_TAKE_S:
        raise UserError(f"The recording has {duration_s:.1f} s; a sentence takes up to {_LONGEST_TAKE_S:g} s.",
                        "Record it again.")

    try:
        with _locked(folder):
            prompts = load(folder)
            require_number(prompts, number)
            prompts.clip(number).parent.mkdir(exist_ok=True)
            with atomic_path(prompts.clip(number)) as writing:
                soundfile.write(writing, np.clip(waveform, -1.0, 1.0), rate, subtype="PCM_16", format="WAV")
            changed = replace(prompts, recorded=prompts.recorded | {number}, skipped=prompts.skipped - {number})
            if number in prompts.skipped:
                _write_prompts(folder, changed)
            _write_table(changed)
    except (soundfile.SoundFileError, OSError) as error:
        raise UserError(f"The recording of sentence {number + 1:,} could not be written to {folder}: {error}.",
                        "Free some disk space.") from error
    return changed


def skip(folder: Path, number: int) -> PromptList:
    """Leave a sentence out, with its recording if it has one; recording it again takes it back."""
    with _locked(folder):
        prompts = load(folder)
        require_number(prompts, number)
        changed = replace(prompts, skipped=prompts.skipped | {number})
        _write_prompts(folder, changed)
        _write_table(changed)
    return changed


def source_of(folder: Path) -> str:
    """The path that `prepare` reads, with a table of all that is recorded; `UserError` if nothing is."""
    with _locked(folder):
        prompts = load(folder)
        if not prompts.included:
            raise UserError(f"No sentence of {prompts.name!r} is recorded yet.", "Record some first.")
        _write_table(prompts)  # A process that was killed may have stored a recording only.
    return str(folder)


def look_at_take(prompts: PromptList, number: int) -> Take:
    """Measure the recording of a sentence."""
    sound = read_sound(prompts.clip(number))
    faults = find_faults(sound.waveform, sound.facts.sample_rate, prompts.prompts[number],
                         _usual_rate(prompts, number))
    return Take(len(sound.waveform) / sound.facts.sample_rate, faults)


def _usual_rate(prompts: PromptList, excluded_number: int) -> float | None:
    """Letters a second of the recordings but one, with their silent ends; None for a few."""
    fewest, most = _COMPARED
    numbers = [number for number in prompts.included if number != excluded_number][-most:]
    rates = list[float]()
    for number in numbers:
        with suppress(OSError, soundfile.SoundFileError, ZeroDivisionError):
            rates.append(text_length(prompts.prompts[number]) / soundfile.info(prompts.clip(number)).duration)
    return statistics.median(rates) if len(rates) >= fewest else None


def find_faults(waveform: np.ndarray, sample_rate: int, text: str, usual: float | None = None) -> tuple[str, ...]:
    """What is wrong with the recording (S,) of `text`: too long or too short, too quiet, clipped, noisy.

    By the measures and limits of the import and of the assessment of an upload. Silence at the ends is not mentioned,
    as the import trims it, but only after it has refused clips that are too long. `usual` is the letters a second of
    the reader's other recordings.
    """
    measures = measure(waveform, sample_rate)
    speech_s = measures.duration_s - measures.silence_start_s - measures.silence_end_s
    level = loud_level(frame_powers(waveform, sample_rate))
    if measures.peak == 0 or speech_s < _CLIP_LIMITS.min_duration_s:
        return (f"There is hardly any sound: {max(0.0, speech_s):.1f} s. Is it the right microphone, and is it on?",)

    faults = list[str]()
    if measures.duration_s > _CLIP_LIMITS.max_duration_s:
        faults.append(f"Too long for a clip: {measures.duration_s:.1f} s; the import takes up to "
                      f"{_CLIP_LIMITS.max_duration_s:g} s. Read it without long pauses, or divide the sentence in a "
                      "new list.")
    length = text_length(text)
    rate = length / measures.duration_s
    if length > _FASTEST * speech_s:
        faults.append(f"Too short for the text: {length / speech_s:.0f} letters a second. Was all of it recorded?")
    elif usual is not None and rate > _TIMES_USUAL * usual:
        faults.append(f"Too short for the text: {rate:.0f} letters a second, {usual:.0f} in your other recordings. Was "
                      "all of it recorded?")
    elif length < _CLIP_LIMITS.min_characters_per_s * speech_s:
        faults.append(f"Long for the text: {speech_s:.1f} s for {length} letters. Was only the sentence recorded?")
    if level < QUIET_DB:
        faults.append(f"Very quiet: {level:.0f} dB of full scale; it must be at least {QUIET_DB:g}. Go closer to the "
                      "microphone, or raise its level.")
    if measures.snr_db is None:
        faults.append("Noisy: the recording is as loud between the words as in them. Choose a quieter place.")
    for finding in audio_findings(measures, LIMITS):
        if finding.kind == "clipping":
            faults.append(f"Clipped: {measures.clipped_share:.1%} of the samples. Lower the microphone's level, or go "
                          "farther away.")
        elif finding.kind == "noise":
            faults.append(f"Noisy: the voice is {measures.snr_db:.0f} dB over the noise; it must be at least "
                          f"{LIMITS.snr_db:g}. Choose a quieter place.")
        elif finding.kind == "silence":
            faults.append(f"A pause of {measures.pause_s:.1f} s within the sentence.")
    return tuple(faults)


def require_number(prompts: PromptList, number: int) -> None:
    """`UserError` if the list has no sentence with this number: its file was shortened by hand."""
    if not 0 <= number < len(prompts.prompts):
        raise UserError(f"The prompt list {prompts.name!r} has {len(prompts.prompts)} sentences, and none with the "
                        f"number {number + 1}.", "Choose the list again.")


def _write_prompts(folder: Path, prompts: PromptList) -> None:
    write_json(folder / PROMPTS, {"language": prompts.language, "prompts": prompts.prompts,
                                  "skipped": sorted(prompts.skipped)})


def _write_table(prompts: PromptList) -> None:
    rows = [{"audio": f"{CLIPS}/{prompts.clip(number).name}", "text": prompts.prompts[number]}
            for number in prompts.included]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    write_text(prompts.folder / TABLE, "".join(f"{line}\n" for line in lines))


def _require_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"The prompt list {folder.name!r} was deleted.",
                        restore_hint(folder.parent, folder.name) or "Choose another list, or make a new one.")


def _locked(folder: Path) -> AbstractContextManager[None]:
    _require_folder(folder)
    return locked(folder / "work" / "recording.lock", _LOCK_TIMEOUT_S, "Another recording of this list has been stored "
                  f"for {_LOCK_TIMEOUT_S:g} s.", "Try again.")
