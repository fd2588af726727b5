"""A variant of a language has its tokens and preparation, a separate tag, and is trained beside the untouched one."""

from __future__ import annotations

import torch

from config.schema import ExtendOptions, TokenizerOptions
from core import extend, tokenizer
from core.model.loading import load
from core.model.precision import Precision
from core.model.prefix import new_rows, whole_table
from core.proof import certification
from core.training import dataloader, setup
from core.training.trainer import Trainer
from data import manifest
from data.front_end import FrontEnd
from tests.contract.conftest import World
from tests.worlds import DEVICE, Listener, train_options, write_dataset


def test_a_variant_is_read_as_its_language_and_trained_beside_it(world: World) -> None:
    workspace, base = world.workspace, world.base()
    of = next(code for code in world.case.texts if not base.front_end.unready(code))
    code = f"{of}-studio"
    write_dataset(workspace, f"demo-{code}", model=world.case.model, language=code, letters="aeinost")
    result = tokenizer.run(TokenizerOptions(model=world.case.model, dataset=f"demo-{code}", tokenizer=code,
                                            variant_of=of), workspace, Listener(workspace.runs / "variant"))
    assert (result["tokens_added"], result["base_unchanged"]) == (1, True)
    front_end = FrontEnd.load(workspace.tokenizer(code))
    for text in (*world.case.texts[of], *(clip.text for clip in manifest.load(
            workspace.dataset(f"demo-{code}")).clips)):
        assert front_end.body(text, code) == base.front_end.body(text, of)
        assert front_end.encode(text, code)[1] == base.front_end.size

    extend.run(ExtendOptions(model=world.case.model, tokenizer=code, extension=code), workspace,
               Listener(workspace.runs / "extend-variant"))
    made, table = load(workspace, f"extension:{code}", DEVICE), base.lm.text_tables[0]
    row = next(iter(new_rows(made.lm.module, made.lm.text_tables).values()))
    assert len(row) == 1
    if (tag := base.front_end.tag_id(of)) is not None:  # it starts next to the language's own tag
        own, rows = whole_table(base.lm.module, table)[tag], whole_table(base.lm.module, table)
        assert (row[0] - own).norm() < 0.2 * (rows - own).norm(dim=1)[rows.ne(own).any(1)].mean()

    options = train_options(extension=code, dataset=f"demo-{code}", steps=2, batch_size=2, weight_decay=0.5)
    trained = setup.new_model(options, workspace, DEVICE)
    trainer = Trainer(options, trained, dataloader.load_training_data(workspace, f"demo-{code}", trained), (),
                      Precision(DEVICE.type, torch.float32, "for the test"))
    trainer.train_step()
    for item in certification.base_probes(base)[:4]:
        with torch.inference_mode(), trained.adapters_for(item.language):
            assert certification.equal_logits(base.lm.probe(item.sample), trained.lm.probe(item.sample))
