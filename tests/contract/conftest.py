"""One small world a family, made once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from config.schema import TrainOptions
from core import replay, train, training_data
from core.loading import VoiceModel, load_base, load_extension
from core.precision import Precision
from core.trainer import Trainer
from core.workspace import Workspace
from tests.contract.families import FAMILIES, Case
from tests.worlds import train_options

CPU = torch.device("cpu")


@dataclass(frozen=True)
class World:
    """A family's case with its workspace."""

    case: Case
    workspace: Workspace

    def base(self) -> VoiceModel:
        return load_base(self.workspace, self.case.model, CPU)

    def extension(self) -> VoiceModel:
        return load_extension(self.workspace, "tiny-am", CPU)

    def trainer(self, bfloat16: bool = False, **changes: object) -> Trainer:
        """A trainer that has not taken a step."""
        options: TrainOptions = train_options(**changes)
        voice = train.new_voice(options, self.workspace, CPU)
        data = training_data.load(self.workspace, options.dataset, voice)
        voices = voice.family.voices(voice.base_folder)
        rehearsed = replay.load(voice, voices).rehearsed if options.scope == "full" else ()
        return Trainer(options, voice, data, rehearsed, Precision("cpu", bfloat16, "for the test"))

    def probes(self) -> list[replay.ProbeSample]:
        base = self.base()
        clips = replay.load(base, base.family.voices(base.base_folder)).probing
        return replay.probes(clips, base.model.prompt_length)


@pytest.fixture(scope="session", params=FAMILIES, ids=lambda case: case.name)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    case: Case = request.param
    path: Path = tmp_path_factory.mktemp(case.name)
    return World(case, case.extended_world(path))
