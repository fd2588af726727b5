"""What a checkpoint from elsewhere says of base-language samples, beside the base: measured, teacher-forced.

The base is loaded once. Its logits are kept, its values are then replaced by those of the
checkpoint, and the same samples go through again: never two models in memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from core.job.journal import Progress
from core.job.reporter import Reporter, check_stop
from core.proof.diagnosis import Heard
from core.proof.tensor_names import Matching
from core.training import replay
from core.voice_model.loading import VoiceModel, load_base
from core.workspace import Workspace
from models.base import Probe, WeightsFile


def measure(workspace: Workspace, name: str, other: WeightsFile, matching: Matching, ids: Mapping[int, int],
            reporter: Reporter) -> Heard | None:
    """Run the samples of the base `name` through it, then with the values of `other`; None when it has no samples.

    `ids` gives the checkpoint's id of each base id that its tokenizer moved.
    """
    base = load_base(workspace, name, torch.device("cpu"))
    clips = replay.load(base, base.family.voices(base.base_folder)).probe_clips
    samples = replay.probes(clips, base.model.prompt_length)
    if not samples:
        return None
    before = _probes(base, samples, reporter, "by the base")
    put(base, other, matching, ids)
    after = _probes(base, samples, reporter, "by the checkpoint")
    equal, same, codes, divergence = 0, 0, 0, 0.0
    for first, second in zip(before, after, strict=True):
        equal += torch.equal(first.text_logits, second.text_logits) and torch.equal(
            first.speech_logits, second.speech_logits)
        same += int((first.speech_logits.argmax(-1) == second.speech_logits.argmax(-1)).sum())
        codes += len(first.speech_logits)
        divergence += F.kl_div(second.speech_logits.float().log_softmax(-1),
                               first.speech_logits.float().log_softmax(-1), log_target=True, reduction="sum").item()
    languages = tuple(sorted({item.language for item in samples}))
    return Heard(len(samples), equal, same / codes, divergence / codes, languages)


@torch.no_grad()
def put(base: VoiceModel, other: WeightsFile, matching: Matching, ids: Mapping[int, int]) -> None:
    """Replace the values of the base by those of the checkpoint, old rows alone in the text tables."""
    values = base.model.module.state_dict()
    tables = {f"{table}.weight" for table in base.model.text_tables}
    for name, there in matching.found.items():
        if name in values:
            given = other.tensor(there)
            rows = [ids.get(row, row) for row in range(len(values[name]))] if name in tables else slice(None)
            values[name].copy_(given[rows])


@torch.inference_mode()
def _probes(voice: VoiceModel, samples: list[replay.ProbeSample], reporter: Reporter, by: str) -> list[Probe]:
    made = []
    for done, item in enumerate(samples):
        with voice.speaking(item.language):
            made.append(voice.model.probe(item.sample))
        reporter.emit(Progress(done + 1, len(samples), "samples", by))
        check_stop(reporter)
    return made
