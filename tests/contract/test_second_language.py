"""A model that was trained on one language is a base for the next: what it had before stays bit-identical."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from config.schema import ExtendOptions
from core import export, extend
from core.export import same_logits
from core.jobs import checkpoint_names
from core.library import records
from core.model.loading import TTSModel, load, load_checkpoint, load_front_end
from core.model.precision import Precision
from core.model.prefix import base_tensors, hash_tensors
from core.proof import certification
from core.training import checkpoint, dataloader, setup
from core.training.trainer import Trainer
from core.workspace import Workspace
from data import normalisers
from models.base import Sampling
from tests.contract.conftest import World, load_voices
from tests.trained import RUN, write_checkpoint
from tests.worlds import GREEK, Listener, export_options, train_options, write_dataset

CPU = torch.device("cpu")
NEW, TIGRINYA = "qaa", "ጀገጠጨጰጸ"  # a code that no family knows, for Greek letters


@dataclass(frozen=True)
class MultilingualWorld:
    """A workspace whose base was trained on Amharic (`RUN`), then Greek (`run-el`)."""

    workspace: Workspace
    model: str

    def load(self, ref: str) -> TTSModel:
        return load(self.workspace, ref, CPU)


def add_language(workspace: Workspace, base: str, code: str, letters: str, model: str) -> None:
    """A dataset, a tokenizer and an extension of the language for the model `base`, all called after it."""
    write_dataset(workspace, f"demo-{code}", model=model, language=code, letters=letters)
    front_end = load_front_end(workspace, base)
    normaliser = normalisers.for_language(code, front_end.style)
    written = front_end.extended(code, normaliser, [], []).normalise(letters, code)
    front_end.extended(code, normaliser, sorted(written), []).save(workspace.tokenizers / f"tiny-{code}")
    extend.run(ExtendOptions(model=base, tokenizer=f"tiny-{code}", extension=f"tiny-{code}"), workspace,
               Listener(workspace.runs / f"extend-{code}"))


def teach_greek(workspace: Workspace, model: str, base: str = f"run:{RUN}", **changes: object) -> MultilingualWorld:
    add_language(workspace, base, NEW, GREEK, model)
    write_checkpoint(workspace, str(changes.pop("scope", "gated")), name="run-el", extension=f"tiny-{NEW}",
                     dataset=f"demo-{NEW}", **changes)
    return MultilingualWorld(workspace, model)


@pytest.fixture(scope="module")
def multilingual(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MultilingualWorld]:
    folder = tmp_path_factory.mktemp("multilingual") / world.case.name
    shutil.copytree(world.workspace.path, folder, symlinks=True)
    workspace = Workspace.open(folder)
    write_checkpoint(workspace, "gated")
    yield teach_greek(workspace, world.case.model)
    shutil.rmtree(folder)


def probes(world: MultilingualWorld, model: TTSModel) -> list[certification.ProbeSample]:
    """Samples of every language of `model`."""
    return [*certification.base_probes(model), *certification.earlier_language_probes(world.workspace, model),
            *certification.row_probes(model, model.new_languages)]


def differing(before: TTSModel, after: TTSModel, samples: list[certification.ProbeSample]) -> list[str]:
    """Languages of the samples whose logits `after` does not give as `before` did; rows behind are not compared."""
    found = []
    with torch.inference_mode():
        for item in samples:
            with before.adapters_for(item.language), after.adapters_for(item.language):
                if not certification.equal_logits(before.lm.probe(item.sample), after.lm.probe(item.sample)):
                    found.append(item.language)
    return found


def test_what_was_there_before_is_equal_to_the_bit(multilingual: MultilingualWorld) -> None:
    before, after = multilingual.load(f"run:{RUN}"), multilingual.load("run:run-el")
    samples = probes(multilingual, before)
    assert {"en", "am"} <= {item.language for item in samples}
    assert after.new_languages == (NEW,)
    assert after.front_end.size > before.front_end.size
    assert differing(before, after, samples) == []
    for text, language in (("ሀለመ ሰረቀ", "am"), ("the cat", "en")):
        if not after.front_end.unready(language):
            assert np.array_equal(before.front_end.encode(text, language), after.front_end.encode(text, language))
    with torch.inference_mode():  # and the adapters of Greek do act on Greek
        item = certification.row_probes(after, [NEW])[0]
        with after.adapters_for(NEW):
            own = after.lm.probe(item.sample).speech_logits
        assert not torch.equal(own, after.lm.probe(item.sample).speech_logits)


def test_a_batch_of_all_languages_gives_each_the_codes_that_it_has_alone(multilingual: MultilingualWorld) -> None:
    after = multilingual.load("run:run-el")
    voice = next(iter(load_voices(after, multilingual.workspace).values()))
    texts = [after.front_end.encode("ሀለመ", "am"), after.front_end.encode("αβγ", NEW), np.array([1, 2, 3, 4]),
             after.front_end.encode("ሰረቀ", "am")]
    languages, sampling = ["am", NEW, "en", "am"], Sampling(temperature=1.0, guidance=0.0, seed=3)
    voices = []
    for language in languages:
        with after.adapters_for(language):
            voices.append(after.lm.prepare(voice))
    together = after.generate(texts, languages, voices, sampling)
    assert len({tuple(one.codes) for one in together}) >= 3  # one for each language
    for text, language, found in zip(texts[:2], languages[:2], together[:2], strict=True):
        assert np.array_equal(after.generate([text], [language], [voice], sampling)[0].codes, found.codes)
    before = multilingual.load(f"run:{RUN}")
    assert np.array_equal(before.generate(texts[:1], ["am"], [voice], sampling)[0].codes, together[0].codes)


def test_no_step_of_the_second_training_moves_what_was_there(multilingual: MultilingualWorld, tmp_path: Path) -> None:
    workspace = multilingual.workspace
    options = train_options(extension=f"tiny-{NEW}", dataset=f"demo-{NEW}", steps=4, batch_size=2, weight_decay=0.5,
                            gradient_accumulation=2, adapter_lr=0.1, row_lr=0.1)
    tts = setup.new_model(options, workspace, CPU)
    trainer = Trainer(options, tts, dataloader.load_training_data(workspace, f"demo-{NEW}", tts), (),
                      Precision("cpu", torch.float32, "for the test"))
    frozen = hash_tensors(base_tensors(tts.lm.module))
    assert frozen == tts.frozen_hash != tts.base_hash
    rows = {name: value.detach().clone() for name, value in trainer.trainables.named.items()}
    for _ in range(2):
        trainer.train_step()
    assert hash_tensors(base_tensors(tts.lm.module)) == frozen == trainer.compute_frozen_hash()
    assert all(not torch.equal(rows[name], value) for name, value in trainer.trainables.rows.items())
    record = records.read_checkpoint(checkpoint_names.folder_of(workspace.run("run-el"), 8))
    folder = checkpoint.save(tmp_path, record, tts, options, trainer.state_dict())
    again, before = load_checkpoint(workspace, folder, CPU), multilingual.load(f"run:{RUN}")
    assert differing(before, again, probes(multilingual, before)) == []


def test_the_certificate_covers_the_language_of_an_earlier_training(multilingual: MultilingualWorld) -> None:
    folder = checkpoint_names.folder_of(multilingual.workspace.run("run-el"), 8)
    inputs = certification.load_certificate_inputs(multilingual.workspace, folder, CPU, sentences=1)
    proof = certification.compute_certificate(replace(inputs, sentences={}))
    assert not proof.failed()
    assert "am" in proof.check("base_logits").actual
    assert "added earlier (am)" in proof.check("frozen_tensors").what
    with torch.no_grad():  # a changed row of Amharic is seen
        table = inputs.finetuned.lm.module.get_submodule(inputs.finetuned.lm.text_tables[0].rpartition(".")[0])
        rows = table.earlier_0.clone()
        rows[0] += 1
        table.earlier_0 = rows
    changed = certification.compute_certificate(replace(inputs, sentences={}))
    assert {"prefix_rows", "frozen_tensors", "base_logits"} <= set(changed.failed())


def test_models_of_a_certificate_share_memory_and_a_write_into_it_is_seen(multilingual: MultilingualWorld) -> None:
    """Adapters and rows of the earlier training too; those of the last are of the finetuned model alone."""
    folder = checkpoint_names.folder_of(multilingual.workspace.run("run-el"), 8)
    inputs = certification.load_certificate_inputs(multilingual.workspace, folder, CPU, sentences=1)
    base, finetuned = inputs.base, inputs.finetuned
    shared = base_tensors(finetuned.lm.module)
    for name, value in base_tensors(base.lm.module).items():
        assert value.data_ptr() == shared[name].data_ptr(), name
    assert finetuned.adapters is not None
    assert not any(value.data_ptr() in {tensor.data_ptr() for tensor in shared.values()}
                   for value in finetuned.adapters.parameters().values())
    assert base.adapters_of("am") is not finetuned.adapters_of("am")

    # What no file has is in no hash, so a write into it must change one model alone.
    hashed = {value.data_ptr() for value in finetuned.lm.module.state_dict().values()}
    own = [value for value in finetuned.lm.module.buffers() if value.numel() and value.data_ptr() not in hashed]
    assert own
    assert {value.data_ptr() for value in own}.isdisjoint(value.data_ptr() for value in base.lm.module.buffers())
    alone = load_checkpoint(multilingual.workspace, folder, CPU)
    assert differing(alone, finetuned, probes(multilingual, finetuned)) == []

    name = next(name for name in shared if "layers" in name)
    with torch.no_grad():
        shared[name].view(-1)[0] += 1
    failed = set(certification.compute_certificate(replace(inputs, sentences={})).failed())
    assert {"prefix_rows", "frozen_tensors"} <= failed


@pytest.mark.slow
def test_an_export_speaks_all_languages_and_is_a_base_again(multilingual: MultilingualWorld) -> None:
    workspace = multilingual.workspace
    export.run(export_options(run="run:run-el", export="both"), workspace, Listener(workspace.runs / "export-el"))
    trained, exported = multilingual.load("run:run-el"), multilingual.load("export:both")
    assert {"am", NEW, "en"} <= set(exported.front_end.languages)
    assert all(same_logits(trained, exported, item) for item in probes(multilingual, trained))
    add_language(workspace, "both", "ti", TIGRINYA, multilingual.model)
    record = records.read_extension(workspace.extension("tiny-ti"))
    assert [one.language for one in record.origin.earlier_trainings] == ["am", NEW]
    third = multilingual.load("extension:tiny-ti")
    assert third.new_languages == ("ti",)
    assert differing(trained, third, probes(multilingual, trained)) == []
