"""A decoder that a run trains on its recordings: what it changes, what it leaves, and where its file goes."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from config import resume_options
from config.errors import UserError
from config.loading import parse_options
from config.schema import TrainOptions
from core import export, train
from core.jobs.events import CheckpointSaved, Journal
from core.jobs.job import create_job
from core.library import records
from core.model import loading, tensor_files
from core.training import decoder_training
from core.workspace import Workspace
from data.acoustics import audio
from models.base import VocoderOptions, Voice
from models.tiny import decoder_adaptation
from models.tiny.family import MEL_SETTINGS, Tiny
from tests.worlds import Listener, export_options, train_options

CPU = torch.device("cpu")
PACK = Path(__file__).parents[4] / "models" / "tiny" / "pack"
STEPS = 12


def tones(count: int) -> list[torch.Tensor]:
    """Sounds (S,) of a second with harmonics, which no voice of the pack makes."""
    times = torch.arange(16_000) / 16_000
    return [sum(0.1 / harmonic * torch.sin(2 * math.pi * harmonic * (150 + 20 * number) * times)
                for harmonic in range(1, 9)) for number in range(count)]


@pytest.fixture(scope="module")
def adapted() -> dict[str, torch.Tensor]:
    """By a clock that goes on by a second at each step, so that any machine takes as many steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder_adaptation, "time", SimpleNamespace(monotonic=itertools.count().__next__))
        return Tiny().adapt_decoder(PACK, CPU, tones(3), float(STEPS + 1), 0, lambda share: None)


def test_the_adapted_decoder_comes_nearer_to_the_recordings(adapted: dict[str, torch.Tensor]) -> None:
    family = Tiny()
    decoder = family.load_adapted_decoder(PACK, CPU, adapted).module
    codec = family.load_extractor(PACK, CPU).codec
    errors = []
    for one in (codec, decoder):
        mels = [audio.log_mel(tone[None], MEL_SETTINGS) for tone in tones(3)]
        decoded = [one.decode(codec.encode(mel), codec.embed_speaker(mel)) for mel in mels]
        errors.append(np.mean([float((made[..., :mel.shape[2]] - mel).abs().mean())
                               for made, mel in zip(decoded, mels, strict=True)]))
    assert errors[1] < 0.9 * errors[0]


def test_only_the_decoder_changes_and_codes_keep_their_meaning(adapted: dict[str, torch.Tensor]) -> None:
    family = Tiny()
    codec, changed = family.load_extractor(PACK, CPU).codec, family.load_adapted_decoder(PACK, CPU, adapted).module
    mel = audio.log_mel(tones(1)[0][None], MEL_SETTINGS)
    assert torch.equal(codec.encode(mel), changed.encode(mel))
    assert torch.equal(codec.embed_speaker(mel), changed.embed_speaker(mel))
    unchanged = {name for name, value in codec.state_dict().items() if torch.equal(value, changed.state_dict()[name])}
    assert not unchanged & adapted.keys()
    assert unchanged | adapted.keys() == codec.state_dict().keys()


def test_a_decoder_of_other_shapes_is_refused(adapted: dict[str, torch.Tensor]) -> None:
    name = min(adapted)
    with pytest.raises(UserError, match="differ in name or shape"):
        Tiny().load_adapted_decoder(PACK, CPU, {**adapted, name: adapted[name][..., :1]})
    with pytest.raises(UserError, match="differ in name or shape"):
        Tiny().load_adapted_decoder(PACK, CPU, {**adapted, "encoder_in.weight": torch.zeros(1)})


def test_what_the_report_raises_ends_the_training() -> None:
    def stop(share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Tiny().adapt_decoder(PACK, CPU, tones(2), 60.0, 0, stop)


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step of a small batch instead of minutes."""
    monkeypatch.setattr(decoder_adaptation, "BATCH", 2)
    real = decoder_adaptation.adapt_decoder
    monkeypatch.setattr(decoder_adaptation, "adapt_decoder",
                        lambda codec, mels, seconds, *rest: real(codec, mels, 0.01, *rest))


def trained(world: Workspace, **changes: object) -> Path:
    """The folder of the last checkpoint of a run with its own decoder."""
    options = train_options(decoder_minutes=1.0, steps=2, checkpoint_every=2, evaluation_sentences=0, **changes)
    if not (world.runs / "one").exists():
        create_job(world, "train", options, job_id="one")
    listener = Listener(world.runs / "one")
    train.run(options, world, listener)
    journal = Journal(listener.directory / "events.jsonl")
    journal.append(CheckpointSaved(2, "checkpoints/step-000002", best=True))
    journal.close()
    return listener.directory / "checkpoints" / "step-000002"


def test_run_checkpoint_and_export_hold_the_decoder_and_only_the_new_language_uses_it(
        world: Workspace, quickly: None) -> None:
    folder = trained(world)
    model = loading.load(world, "run:one@2", CPU)
    assert model.decoder is not None
    assert model.decoder_of("am") is model.decoder
    assert model.decoder_of("en") is None
    stored = tensor_files.read(world.runs / "one" / records.DECODER, "")
    assert all(torch.equal(value, model.decoder.tensors[name]) for name, value in stored.items())
    assert (folder / records.DECODER).is_file()

    vocoder = model.family.load_vocoder(model.base_folder, CPU)
    voice = next(iter(model.family.load_voices(model.base_folder).values()))
    codes = np.arange(0, 400, 10)
    plain, own = (vocoder.decode(codes, voice, VocoderOptions(decoder=model.decoder_of(language)))
                  for language in ("en", "am"))
    assert torch.equal(plain, vocoder.decode(codes, voice))
    assert not torch.equal(plain, own)

    export.run(export_options(run="run:one@2", accept_learning=True), world, Listener(world.runs / "export"))
    exported = loading.load(world, f"export:{export_options().export}", CPU)
    assert exported.decoder is not None
    assert all(torch.equal(value, exported.decoder.tensors[name]) for name, value in stored.items())
    again = vocoder.decode(codes, voice, VocoderOptions(decoder=exported.decoder_of("am")))
    assert torch.equal(own, again)


def test_a_resumed_run_keeps_its_decoder(world: Workspace, quickly: None, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(world)
    before = (world.runs / "one" / records.DECODER).read_bytes()
    monkeypatch.setattr(decoder_adaptation, "adapt_decoder", lambda *given: pytest.fail("trained again"))
    trained(world)
    assert (world.runs / "one" / records.DECODER).read_bytes() == before


@pytest.mark.parametrize("minutes", [3.0, 1.0])
def test_a_time_limit_that_the_decoder_takes_whole_is_refused(minutes: float) -> None:
    with pytest.raises(UserError, match=rf"decoder_minutes is 3 of a time limit of {minutes:g} minutes"):
        parse_options(TrainOptions, {"decoder_minutes": 3.0, "max_minutes": minutes})


def test_a_resume_cannot_lose_the_time_limit_to_the_decoder() -> None:
    """Else the rest, 0 minutes, would mean a training without a limit."""
    with pytest.raises(UserError, match="leaves no time for steps"):
        resume_options.with_changes("one", train_options(decoder_minutes=3.0, max_minutes=10.0), {"max_minutes": 2.0})


def test_the_decoder_is_trained_within_the_time_limit() -> None:
    assert train_options(decoder_minutes=3.0, max_minutes=10.0).length.minutes_of_steps == 7.0
    assert train_options(decoder_minutes=3.0).length.minutes_of_steps == 0.0


def test_a_family_without_adaptation_says_so(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tiny, "adapts_decoder", False)
    with pytest.raises(UserError, match="is used as it was published"):
        decoder_training.train_decoder(train_options(decoder_minutes=1.0), world, Listener(world.runs / "one"), CPU)


def test_any_voice_may_be_chosen_for_an_adapted_decoder(adapted: dict[str, torch.Tensor]) -> None:
    family = Tiny()
    vocoder, decoder = family.load_vocoder(PACK, CPU), family.load_adapted_decoder(PACK, CPU, adapted)
    codes = family.load_extractor(PACK, CPU).extract(tones(1)[0]).speech_codes
    for voice in family.load_voices(PACK).values():
        assert isinstance(voice, Voice)
        assert vocoder.decode(codes, voice, VocoderOptions(decoder=decoder)).abs().mean() > 1e-3
