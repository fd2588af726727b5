"""What jobs are and do, in plain words: no stage's own name, no job's id, no unit's code. Text alone, without HTML."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping

from core.job.directory import NO_DEVICE
from core.job.journal import Progress
from core.job.state import JobState

VERB_TITLES: Mapping[str, str] = {
    "download": "Get the base model", "prepare": "Prepare the data", "tokenizer": "Learn the letters",
    "extend": "Make room for them", "train": "Practise speaking", "preflight": "Check first", "synthesize": "Speak",
    "compare": "Speak side by side", "export": "Export", "push": "Push to the hub",
    "doctor": "Examine a model", "lab": "Compare tokenizers",
    "revise": "Save the reviewed dataset", "segment": "Cut long recordings",
    "transcribe": "Write down what is said", "align": "Align a text",
}
STATUS_WORDS: Mapping[str, str] = {
    "created": "not started", "queued": "starting", "waiting": "waiting", "running": "running",
    "stopping": "stopping", "finished": "finished", "stopped": "stopped", "failed": "failed", "crashed": "crashed",
    "skipped": "not started",
}
STAGE_WORDS: Mapping[str, str] = {
    "align": "Finding the text in the recordings", "certificate": "Making the certificate", "check": "Checking",
    "check what is here": "Checking what is here already", "compare": "Comparing", "compile": "Compiling the model",
    "copied": "Copying the files",
    "copy": "Copying the files", "cut": "Cutting at the pauses", "download": "Downloading",
    "download the language": "Downloading the language", "features": "Turning sound into codes",
    "fit": "Fitting the new rows", "import": "Reading the recordings", "judge": "Listening to what was spoken",
    "judge originals": "Listening to the original recordings", "linked": "Linking the files",
    "load": "Loading the model", "look": "Looking at the recordings", "look up": "Looking up what there is",
    "map": "Counting the letters", "measure": "Measuring the recordings", "new rows": "Adding the new rows",
    "setup": "Opening the run", "prepare": "Turning sound into codes anew", "memory plan":
    "Measuring what fits, and how long it will take", "prove": "Proving that the old languages read as before",
    "read": "Reading the texts", "read back": "Reading back what was written", "recogniser": "Loading the recogniser",
    "reload": "Reading back what was saved", "restore": "Putting the rows back", "speak": "Speaking",
    "train": "Learning", "transcribe": "Writing down what is said", "two steps and save": "Taking two steps",
    "upload": "Uploading", "verify": "Checking the files", "version": "Writing the new dataset", "write": "Writing",
}
_ID = re.compile(rf"\b({'|'.join(VERB_TITLES)})-\d{{8}}-\d{{6}}-[0-9a-f]{{4}}\b")
_DEVICE = re.compile(r"(?<=^Waiting for )(cpu|cuda)(?=:)")
_DEVICES: Mapping[str, str] = {"cpu": "the processor", "cuda": "the GPU"}
_BEFORE_STEPS = ("load", "memory plan")  # parts of a training that end before it looks whether it is to stop


def duration(seconds: float | None) -> str:
    """Such as "8 s", "3 min 20 s" or "2 h 5 min"."""
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def percent(share: float | None) -> str:
    """An error or a share, such as "12.4%"; a dash when it was not measured."""
    return "–" if share is None or not math.isfinite(share) else f"{share:.1%}"


def size(count: float) -> str:
    """Bytes for people."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} bytes"


def clock(moment: float | None) -> str:
    """Local time of day, with the date when it is not today."""
    if moment is None:
        return "–"
    then = time.localtime(moment)
    today = time.strftime("%Y%m%d") == time.strftime("%Y%m%d", then)
    return time.strftime("%H:%M" if today else "%d %b %H:%M", then)


def named(text: str) -> str:
    """`text` with each job by what it does, for its id, and each device by what people call it.

    A run that a person named keeps that name.
    """
    known = _ID.sub(lambda found: f"“{VERB_TITLES[found[1]]}”", text)
    return _DEVICE.sub(lambda found: _DEVICES[found[1]], known)


def short_id(name: str) -> str:
    """A job's id where its verb and its time are told beside it: what tells it from others; a person's name whole."""
    return name.rpartition("-")[2] if _ID.fullmatch(name) else name


def run_name(state: JobState) -> str:
    """A training by the name that a person gave it, what learned from what, when, and else by four digits."""
    settings = state.job.settings
    what = f"{settings.get('extension', '')} on {settings.get('dataset', '')}, {clock(state.job.created)}"
    return f"{what} ({short_id(state.id)})" if _ID.fullmatch(state.id) else f"{state.id}: {what}"


def device_title(device: str) -> str:
    """The head of a device's queue."""
    if device == NO_DEVICE:
        return "No device needed"
    return f"On {_DEVICES.get(device, device)}"


def progress_words(progress: Progress | None) -> str:
    """Such as "120 of 300 clips"."""
    if progress is None:
        return ""
    in_bytes = progress.unit == "bytes"
    done = size(progress.done) if in_bytes else f"{progress.done:g}"
    if progress.total is None:
        return f"{done} {'' if in_bytes else progress.unit} {progress.note}".strip()
    total = size(progress.total) if in_bytes else f"{progress.total:g} {progress.unit}"
    return f"{done} of {total} {progress.note}".strip()


def open_stage(state: JobState) -> str:
    """The part of the work that is being done; empty when none was named."""
    return state.stages[-1].name if state.alive and state.stages and state.stages[-1].seconds is None else ""


def title_of(state: JobState) -> str:
    """What the job does; a training that is certified says so."""
    if state.verb == "train" and open_stage(state) == "certificate":
        return "Prove what it can say"
    return VERB_TITLES[state.verb]


def cut_short(state: JobState) -> tuple[int, int] | None:
    """The last step and the steps that were asked for, of a training that its time limit ended."""
    if state.verb != "train" or state.status != "finished" or not state.steps:
        return None
    done, wanted = state.steps[-1].step, state.steps[-1].total_steps
    return (done, wanted) if done < wanted else None


def limited_to(state: JobState) -> int | None:
    """The step that a training comes to by its time limit, at its pace so far; None where it can take all its steps."""
    minutes = state.job.settings.get("max_minutes")
    if not (state.verb == "train" and state.steps and state.eta_s is not None and isinstance(minutes, int | float)):
        return None
    last = state.steps[-1]
    by_limit = minutes and last.seconds and abs(last.seconds + state.eta_s - 60 * minutes) < 1
    return round(last.step * (1 + state.eta_s / last.seconds)) if by_limit else None


def now_line(state: JobState) -> str:
    """What the job does at this moment, in one line."""
    if state.status == "waiting":
        return named(state.reason)
    if state.status in ("failed", "crashed", "stopped", "skipped"):
        return named(state.message)
    if state.status == "finished":
        took = f"Took {duration(state.seconds)}."
        cut = cut_short(state)
        return f"Ended by the time limit at step {cut[0]} of {cut[1]}. {took}" if cut else took
    if not state.alive:
        return ""
    if state.status == "stopping":
        return _stopping_line(state)
    left = f"about {duration(state.eta_s)} left" if state.eta_s is not None else ""
    if (last := limited_to(state)) is not None:
        left += f" until the time limit ends it, at about step {last}"
    parts = (_stage_words(state), progress_words(state.progress), _rate_words(state), left)
    return ", ".join(part for part in parts if part) or "Starting."


def _stage_words(state: JobState) -> str:
    stage = open_stage(state)
    return STAGE_WORDS.get(stage, stage)


def _stopping_line(state: JobState) -> str:
    stage = open_stage(state)
    if state.verb == "train" and stage in _BEFORE_STEPS:
        part = STAGE_WORDS[stage]
        return f"Stopping as soon as this part is done: {part[0].lower()}{part[1:]}."
    done = progress_words(state.progress)
    if state.verb == "train" and not stage:
        return "Stopping: it finishes its step and saves" + (f" ({done})." if done else ".")
    return f"Stopping, {done}." if done else "Stopping."


def stop_words(state: JobState) -> str:
    """What a stop will do to the job as it stands."""
    if state.status in ("created", "queued", "waiting"):
        return "It leaves the queue; it had not begun."
    if state.verb != "train":
        return "It stops as soon as it can."
    stage = open_stage(state)
    if stage in _BEFORE_STEPS:
        lost = "no step is lost" if state.steps else "nothing was trained yet"
        return f"It stops as soon as the model is loaded and measured; {lost}."
    if stage == "certificate":
        return "It stops. All steps are done and saved; Continue makes the certificate."
    return "It finishes its step, saves, and stops."


def _rate_words(state: JobState) -> str:
    """How fast bytes come; other work is told by the time that is left."""
    if state.rate is None or state.progress is None or state.progress.unit != "bytes":
        return ""
    return f"{size(state.rate)}/s"
