"""One small world a family, made once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from config.schema import TrainOptions
from core.model.loading import TTSModel, load_base, load_extension
from core.model.precision import Precision
from core.training import dataloader, replay, setup
from core.training.trainer import Trainer
from core.workspace import Workspace
from models.base import SpeechModel
from tests.contract.families import FAMILIES, Case
from tests.worlds import train_options

CPU = torch.device("cpu")


def single_start(voice: TTSModel) -> TTSModel:
    """Speech that begins with one start, as in training, whatever the family does when it speaks.

    What it does then is compared with its reference: `scripts.dev.conformance`.
    """
    module: Any = voice.model.module
    module.config = replace(module.config, doubled_start=False)
    return voice


@dataclass(frozen=True)
class World:
    """A family's case with its workspace."""

    case: Case
    workspace: Workspace

    def base(self) -> TTSModel:
        return single_start(load_base(self.workspace, self.case.model, CPU))

    def extension(self) -> TTSModel:
        return single_start(load_extension(self.workspace, "tiny-am", CPU))

    def trainer(self, dtype: torch.dtype = torch.float32, wrap: Callable[[SpeechModel], SpeechModel] | None = None,
                warn: Callable[[str], None] = lambda message: None, **changes: object) -> Trainer:
        """A trainer that has not taken a step; `wrap` may put something around its model."""
        options: TrainOptions = train_options(**changes)
        voice = single_start(setup.new_voice(options, self.workspace, CPU))
        if wrap is not None:
            voice = replace(voice, model=wrap(voice.model))
        data = dataloader.load_training_data(self.workspace, options.dataset, voice)
        voices = voice.family.load_voices(voice.base_folder)
        replayed = replay.load(voice, voices).replayed if options.scope == "full" else ()
        return Trainer(options, voice, data, replayed, Precision("cpu", dtype, "for the test"), warn)

    def few_sentences(self) -> str:
        """A file with what the base is to speak for rehearsal, where it has no clips; the app's own are many."""
        path = self.workspace.path / "few-sentences.txt"
        path.write_text("".join(f"{code}\tthe cat\n{code}\ta red cat\n" for code in ("en", "fr")), encoding="utf-8")
        return str(path)

    def probes(self) -> list[replay.ProbeSample]:
        base = self.base()
        clips = replay.load(base, base.family.load_voices(base.base_folder)).drift_clips
        return replay.probes(clips, base.model.max_prompt_length)


@pytest.fixture(scope="session", params=FAMILIES, ids=lambda case: case.name)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    case: Case = request.param
    path: Path = tmp_path_factory.mktemp(case.name)
    return World(case, case.extended_world(path))
