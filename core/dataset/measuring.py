"""Measure the recordings of a dataset and index its clips, so that they can be reviewed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from config.errors import UserError
from core.dataset.clip_index import MeasureStore, build
from core.dataset.token_fit import NO_TOKENIZER, TokenFit
from core.job.journal import Plan, Progress, Warned
from core.job.reporter import Reporter, check_stop
from core.workspace import Workspace
from data import audio
from data.clip_findings import Spoken, badness
from data.manifest import Clip, Dataset
from data.measures import Measures, measure
from data.normalise import Reading

_KEPT_AT_ONCE = 64  # recordings
_NONE: Mapping[str, str] = {}


def measure_dataset(dataset: Dataset, workspace: Workspace, reporter: Reporter) -> dict[str, Measures]:
    """The measures of all recordings that can be read, by hash; what was taken is kept when it is stopped."""
    store = MeasureStore(workspace)
    found = store.load(clip.sha256 for clip in dataset.clips)
    waiting = [clip for clip in dataset.clips if clip.sha256 not in found]
    done, total = len(dataset.clips) - len(waiting), len(dataset.clips)
    for start in range(0, len(waiting), _KEPT_AT_ONCE):
        check_stop(reporter, f"Stopped after measuring {done} of {total} clips; they are kept.")
        part = waiting[start:start + _KEPT_AT_ONCE]
        made = {clip.sha256: one for clip in part if (one := _measured(clip, dataset, reporter)) is not None}
        store.save(made)
        found |= made
        done += len(part)
        reporter.emit(Progress(done, total, "clips", "measured"))
    return found


def _measured(clip: Clip, dataset: Dataset, reporter: Reporter) -> Measures | None:
    try:
        waveform, rate = audio.read(dataset.audio_path(clip))
        return measure(waveform.numpy(), rate)
    except UserError as error:
        reporter.emit(Warned(f"{clip.id} could not be measured: {error.message}"))
        return None


def index(dataset: Dataset, workspace: Workspace, reporter: Reporter, reading: Reading, rules: str = "",
          longest_text: int = 0, over: Mapping[str, str] = _NONE, fits: TokenFit = NO_TOKENIZER) -> int:
    """Measure and index `dataset`; how many of its clips have findings.

    `rules`: the name of those in `reading`. `longest_text`: characters that the model can hold, 0 where nobody knows.
    `over`: by id, in words, the clips whose speech is longer than the model can hold. `fits`: by a tokenizer.
    """
    found = measure_dataset(dataset, workspace, reporter)
    texts = [reading.normal(clip.text) for clip in dataset.clips]
    spoken = [Spoken(clip.id, text, clip.speaker, found.get(clip.sha256), fits.unknown.get(clip.id, ""),
                     "; ".join(filter(None, (over.get(clip.id), fits.too_long.get(clip.id)))))
              for clip, text in zip(dataset.clips, texts, strict=True)]
    about = {"dataset": dataset.card.name, "normaliser": reading.normaliser, "rules": rules,
             "longest_text": "0" if fits.tokenizer else str(longest_text),  # tokens say it better than characters
             "tokenizer": fits.tokenizer, "longest_tokens": str(longest_text)}
    return _tell(build(workspace, dataset, spoken, about), reporter)


def _tell(found: Sequence[Sequence], reporter: Reporter) -> int:
    faulty = sum(badness(each) > 0 for each in found)
    if faulty:
        reporter.emit(Plan((f"{faulty} of {len(found)} clips have findings: review them on the Data tab, the worst "
                            "first.",)))
    return faulty
