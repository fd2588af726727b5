"""One small world a family, made once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from config.schema import TrainOptions
from core.model.loading import TTSModel, load_base, load_extension
from core.model.precision import Precision
from core.speech.evaluation import training_recording
from core.speech.synthesis import find_voice
from core.training import dataloader, replay, setup
from core.training.trainer import Trainer
from core.workspace import Workspace
from data import manifest
from models.base import LanguageModel, Voice
from tests.contract.families import FAMILIES, Case
from tests.worlds import DEVICE, train_options

CPU = torch.device("cpu")


def load_voices(tts: TTSModel, workspace: Workspace) -> dict[str, Voice]:
    """The voices that come with the model, or that of a training recording of its dataset."""
    recording = training_recording(manifest.load(workspace.dataset("demo-am")))
    return tts.family.load_voices(tts.base_folder) or {"recording": find_voice(tts, recording)}


def single_start(tts: TTSModel) -> TTSModel:
    """Speech that begins with one start, as in training, whatever the family does when it speaks.

    What it does then is compared with its reference: `scripts.dev.conformance`.
    """
    module: Any = tts.lm.module
    if hasattr(module.config, "doubled_start"):
        module.config = replace(module.config, doubled_start=False)
    return tts


@dataclass(frozen=True)
class World:
    """A family's case with its workspace."""

    case: Case
    workspace: Workspace
    found: dict[str, dict[str, Voice]] = field(default_factory=dict)  # voices by the type of a device

    def base(self) -> TTSModel:
        return single_start(load_base(self.workspace, self.case.model, DEVICE))

    def extension(self) -> TTSModel:
        return single_start(load_extension(self.workspace, "tiny-am", DEVICE))

    def trainer(self, dtype: torch.dtype = torch.float32, wrap: Callable[[LanguageModel], LanguageModel] | None = None,
                warn: Callable[[str], None] = lambda message: None, **changes: object) -> Trainer:
        """A trainer that has not taken a step; `wrap` may put something around its model."""
        options: TrainOptions = train_options(**changes)
        tts = single_start(setup.new_model(options, self.workspace, DEVICE))
        if wrap is not None:
            tts = replace(tts, lm=wrap(tts.lm))
        data = dataloader.load_training_data(self.workspace, options.dataset, tts)
        replayed = replay.load(tts, self.voices(tts)).replayed if options.scope == "full" else ()
        return Trainer(options, tts, data, replayed, Precision(DEVICE.type, dtype, "for the test"), warn)

    def few_sentences(self) -> str:
        """A file with what the base is to speak for rehearsal, where it has no clips; the app's own are many."""
        path = self.workspace.path / "few-sentences.txt"
        path.write_text("".join(f"{code}\t{text}\n" for code, texts in self.case.texts.items() for text in texts[:2]),
                        encoding="utf-8")
        return str(path)

    def voices(self, tts: TTSModel) -> dict[str, Voice]:
        """The voices that come with the model, or that of a training recording, which is extracted once a device."""
        if tts.device.type not in self.found:
            self.found[tts.device.type] = load_voices(tts, self.workspace)
        return self.found[tts.device.type]

    def probes(self) -> list[replay.ProbeSample]:
        base = self.base()
        clips = replay.load(base, self.voices(base)).drift_clips
        return replay.probes(clips, base.lm)


@pytest.fixture(scope="session", params=FAMILIES, ids=lambda case: getattr(case, "name", None))
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    case: Case = request.param
    path: Path = tmp_path_factory.mktemp(case.name)
    return World(case, case.extended_world(path))
