"""Several new languages in one run: one dataset, tokenizer, extension and set of adapters; each has its own proof."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from config.schema import ExtendOptions, TokenizerOptions
from core import export, extend, tokenizer
from core.export import same_logits
from core.jobs import checkpoint_names
from core.library import records
from core.model.precision import Precision
from core.model.prefix import base_tensors, hash_tensors
from core.proof import certification
from core.training import checkpoint_evaluation, dataloader, setup
from core.training.trainer import Trainer
from core.workspace import Workspace
from data import manifest
from data.manifest import HELD_OUT, ManifestClip
from models.base import Sampling
from tests.contract.conftest import World, load_voices
from tests.contract.test_second_language import CPU, NEW, TIGRINYA, MultilingualWorld, add_language, differing, probes
from tests.trained import write_checkpoint
from tests.worlds import GREEK, Listener, export_options, train_options, write_dataset

RUN, BOTH, THIRD, CYRILLIC = "run-both", "both", "qab", "жзийкл"


def write_both(workspace: Workspace, model: str) -> None:
    """A dataset of Greek letters and of Ethiopic ones, as adding one to the other leaves it."""
    clips: list[ManifestClip] = []
    (workspace.datasets / BOTH / "audio").mkdir(parents=True)
    for code, letters in ((NEW, GREEK), ("ti", TIGRINYA)):
        write_dataset(workspace, f"only-{code}", model=model, language=code, letters=letters)
        one = manifest.load(workspace.dataset(f"only-{code}"))
        for clip in one.clips:
            shutil.copy(one.audio_path(clip), workspace.datasets / BOTH / "audio" / f"{code}-{clip.id}.wav")
            clips.append(replace(clip, id=f"{code}-{clip.id}", audio=f"audio/{code}-{clip.id}.wav"))
    manifest.save(workspace.datasets / BOTH, manifest.make_card(BOTH, f"{NEW},ti", "tones", clips), clips)


@pytest.fixture(scope="module")
def multilingual(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MultilingualWorld]:
    """The base trained on two languages in one run."""
    folder = tmp_path_factory.mktemp("several") / world.case.name
    shutil.copytree(world.workspace.path, folder, symlinks=True)
    workspace, model = Workspace.open(folder), world.case.model
    write_both(workspace, model)
    tokenizer.run(TokenizerOptions(model=model, dataset=BOTH, tokenizer=BOTH), workspace,
                  Listener(workspace.runs / "tokenizer-both"))
    extend.run(ExtendOptions(model=model, tokenizer=BOTH, extension=BOTH), workspace,
               Listener(workspace.runs / "extend-both"))
    write_checkpoint(workspace, "gated", name=RUN, extension=BOTH, dataset=BOTH)
    yield MultilingualWorld(workspace, model)
    shutil.rmtree(folder)


def test_each_language_is_trained_and_validated_and_the_base_stays(multilingual: MultilingualWorld) -> None:
    options = train_options(extension=BOTH, dataset=BOTH, batch_size=4, row_lr=0.1)
    tts = setup.new_model(options, multilingual.workspace, CPU)
    data = dataloader.load_training_data(multilingual.workspace, BOTH, tts)
    assert data.languages == tts.new_languages == (NEW, "ti")
    assert {item.language for item in data.train} == {item.language for item in data.held_out} == {NEW, "ti"}
    trainer = Trainer(options, tts, data, (), Precision("cpu", torch.float32, "for the test"))
    rows = {name: value.detach().clone() for name, value in trainer.trainables.rows.items()}
    for _ in range(8):  # an epoch has six batches
        trainer.train_step()
    assert hash_tensors(base_tensors(tts.lm.module)) == tts.base_hash
    added = tts.front_end.added_tokens()
    for table, before in rows.items():
        if len(before) == len(added):
            changed = (trainer.trainables.rows[table] != before).reshape(len(before), -1).any(1)
            assert {token.language for token, one in zip(added, changed, strict=True) if one} == {NEW, "ti"}
    samples = checkpoint_evaluation.validation_samples(tts, data, ())
    losses = checkpoint_evaluation.measure_losses(tts, samples, 4, trainer.precision)
    assert list(losses) == [NEW, "ti"]
    event = checkpoint_evaluation._evaluated_event(8, data.languages, losses, {NEW: 0.5, "ti": 0.25})
    assert event.speech_loss == pytest.approx((losses[NEW].speech_loss + losses["ti"].speech_loss) / 2)
    assert event.errors == {NEW: 0.5, "ti": 0.25}


def test_both_are_spoken_in_one_batch_beside_a_base_language(multilingual: MultilingualWorld) -> None:
    after, base = multilingual.load(f"run:{RUN}"), multilingual.load(f"base:{multilingual.model}")
    assert differing(base, after, certification.base_probes(base)) == []
    voice = next(iter(load_voices(after, multilingual.workspace).values()))
    texts = [after.front_end.encode("αβγ", NEW), np.array([1, 2, 3, 4]), after.front_end.encode("ጀገጠ", "ti")]
    languages, sampling = [NEW, "en", "ti"], Sampling(temperature=1.0, guidance=0.0, seed=3)
    voices = []
    for language in languages:
        with after.adapters_for(language):
            voices.append(after.lm.prepare(voice))
    together = after.generate(texts, languages, voices, sampling)
    for text, language, found in zip(texts, languages, together, strict=True):
        assert np.array_equal(after.generate([text], [language], [voice], sampling)[0].codes, found.codes)


def test_the_certificate_names_each_language(multilingual: MultilingualWorld) -> None:
    folder = checkpoint_names.folder_of(multilingual.workspace.run(RUN), 8)
    inputs = certification.load_certificate_inputs(multilingual.workspace, folder, CPU, sentences=1)
    proof = certification.compute_certificate(replace(inputs, sentences={}))
    assert not proof.failed()
    assert proof.new_languages == (NEW, "ti")
    for code in (NEW, "ti"):
        sentences = certification._held_out_sentences(multilingual.workspace, inputs.base, inputs.finetuned,
                                                        inputs.record, code)
        clips = manifest.load(multilingual.workspace.dataset(BOTH)).split(HELD_OUT, code)
        assert len(sentences) == len(clips) == 4


@pytest.mark.slow
def test_the_export_has_both_and_is_a_base_again(multilingual: MultilingualWorld) -> None:
    workspace = multilingual.workspace
    export.run(export_options(run=f"run:{RUN}", export=BOTH), workspace, Listener(workspace.runs / "export-both"))
    trained, exported = multilingual.load(f"run:{RUN}"), multilingual.load(f"export:{BOTH}")
    assert exported.new_languages == (NEW, "ti")
    assert all(same_logits(trained, exported, item) for item in probes(multilingual, trained))
    third_on_top(multilingual, f"export:{BOTH}")


def test_the_run_is_a_base_again(multilingual: MultilingualWorld) -> None:
    third_on_top(multilingual, f"run:{RUN}")


def third_on_top(multilingual: MultilingualWorld, base: str) -> None:
    """A next language upon `base` leaves both of its languages bit-identical."""
    workspace, before = multilingual.workspace, multilingual.load(base)
    code = f"{THIRD}-{base.partition(':')[0]}"
    add_language(workspace, base, code, CYRILLIC, multilingual.model)
    record = records.read_extension(workspace.extension(f"tiny-{code}"))
    assert [one.languages for one in record.origin.earlier_trainings] == [(NEW, "ti")]
    third = multilingual.load(f"extension:tiny-{code}")
    assert third.new_languages == (code,)
    assert third.adapters_of(NEW) is third.adapters_of("ti") is not None
    samples = probes(multilingual, before)
    assert {"en", NEW, "ti"} <= {item.language for item in samples}
    assert differing(before, third, samples) == []
