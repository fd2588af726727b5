"""Measure the recordings of a dataset and index its clips, so that they can be reviewed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from config.errors import UserError
from core.dataset.clip_index import MeasureStore, build
from core.dataset.token_fit import NO_TOKENIZER, TokenFit
from core.jobs.events import Plan, Progress, WarningRaised
from core.jobs.reporter import Reporter, check_stop
from core.workspace import Workspace
from data import audio
from data.clip_findings import Spoken
from data.kept import in_parts
from data.manifest import Clip, Dataset
from data.measures import Measures, measure
from data.normalise import Reading

_KEPT_AT_ONCE = 64  # recordings
_NONE: Mapping[str, str] = {}


def measure_dataset(dataset: Dataset, workspace: Workspace, reporter: Reporter) -> None:
    """Measure the recordings that were not yet; what was taken is kept when it is stopped."""
    store = MeasureStore(workspace)
    done, total = 0, len(dataset.clips)
    for part in in_parts(dataset.clips, _KEPT_AT_ONCE):
        there = store.load(clip.sha256 for clip in part)
        waiting = [clip for clip in part if clip.sha256 not in there]
        if waiting:
            check_stop(reporter, f"Stopped after measuring {done} of {total} clips; they are kept.")
            made = ((clip.sha256, _measured(clip, dataset, reporter)) for clip in waiting)
            store.save({sha256: one for sha256, one in made if one is not None})
        done += len(part)
        if waiting:
            reporter.emit(Progress(done, total, "clips", "measured"))


def _measured(clip: Clip, dataset: Dataset, reporter: Reporter) -> Measures | None:
    try:
        waveform, rate = audio.read(dataset.audio_path(clip))
        return measure(waveform.numpy(), rate)
    except UserError as error:
        reporter.emit(WarningRaised(f"{clip.id} could not be measured: {error.message}"))
        return None


def index(dataset: Dataset, workspace: Workspace, reporter: Reporter, reading: Reading, rules: str = "",
          longest_text: int = 0, over: Mapping[str, str] = _NONE, fits: TokenFit = NO_TOKENIZER) -> int:
    """Measure and index `dataset`; how many of its clips have findings.

    `rules`: the name of those in `reading`. `longest_text`: characters that the model can hold, 0 where nobody knows.
    `over`: by id, in words, the clips whose speech is longer than the model can hold. `fits`: by a tokenizer.
    """
    measure_dataset(dataset, workspace, reporter)
    in_tokens = fits.own or fits.tokenizer  # which say better than characters what is too long
    about = {"dataset": dataset.card.name, "normaliser": reading.normaliser, "rules": rules,
             "longest_text": "0" if in_tokens else str(longest_text),
             "tokenizer": fits.tokenizer, "longest_tokens": str(longest_text)}
    faulty = build(workspace, dataset, _spoken(dataset, workspace, reading, over, fits), about)
    if faulty:
        reporter.emit(Plan((f"{faulty} of {len(dataset.clips)} clips have findings: review them on the Data tab, the "
                            "worst first.",)))
    return faulty


def _spoken(dataset: Dataset, workspace: Workspace, reading: Reading, over: Mapping[str, str],
            fits: TokenFit) -> Iterator[Spoken]:
    """The clips as they are judged, in their order."""
    store = MeasureStore(workspace)
    for part in in_parts(dataset.clips, _KEPT_AT_ONCE):
        found = store.load(clip.sha256 for clip in part)
        for clip in part:
            yield Spoken(clip.id, reading.normal(clip.text), clip.speaker, found.get(clip.sha256),
                         fits.unknown.get(clip.id, ""),
                         "; ".join(filter(None, (over.get(clip.id), fits.too_long.get(clip.id)))))
