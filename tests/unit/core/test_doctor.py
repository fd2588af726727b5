"""The doctor for models from elsewhere tells each known damage apart from a healthy finetune, and mends rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from config.errors import UserError
from config.schema import DoctorOptions
from core import doctor as examine
from core.library import certificate, diagnosis
from core.library.diagnosis import Diagnosis, TensorFinding
from core.model.loading import load, load_base
from core.model.prefix import new_rows
from core.workspace import Workspace
from models.base import SampleLogits
from scripts import doctor as scripts_doctor
from tests import damaged
from tests.damaged import PROJECTION, TABLES, Tensors
from tests.worlds import Listener

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return damaged.base_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def healthy(world: Workspace) -> Tensors:
    return damaged.extended(damaged.base_tensors(world))


@pytest.fixture(scope="module")
def pieces(world: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return damaged.tokenizer(world, tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


Doctor = Callable[..., Diagnosis]


@pytest.fixture
def doctor(world: Workspace, tmp_path: Path) -> Doctor:
    def examined(held: Tensors | Path, name: str = "it.safetensors", base: str = "tiny",
                 measure: bool = False, **options: object) -> Diagnosis:
        path = held if isinstance(held, Path) else damaged.save(tmp_path / name, held)
        listener = Listener(tmp_path / "job")
        given = DoctorOptions(part="model", base=base, checkpoint=str(path), measure=measure, **options)  # type: ignore[arg-type]
        examine.run(given, world, listener)
        return diagnosis.read(tmp_path / "job")

    return examined


def finding(found: Diagnosis, name: str, part: str = "") -> TensorFinding:
    [one] = [one for one in found.findings if one.name == name and part in ("", one.part)]
    return one


def states(found: Diagnosis, part: str) -> set[str]:
    return {one.state for one in found.findings if one.part == part}


def test_a_healthy_finetune_is_whole(doctor: Doctor, healthy: Tensors, pieces: Path) -> None:
    found = doctor(healthy, tokenizer=str(pieces))
    assert found.assessment.level == "good"
    assert found.assessment.base_languages == "kept"
    assert not found.assessment.restorable
    assert {one.state for one in found.findings} == {"equal", "new"}
    assert found.tokenizer is not None
    assert found.tokenizer.fits
    assert found.tokenizer.added == len(damaged.NEW)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_a_saving_in_half_precision_is_rounding_and_no_training(
    doctor: Doctor, healthy: Tensors, kind: torch.dtype,
) -> None:
    found = doctor({name: value.to(kind) for name, value in healthy.items()})
    assert found.assessment.level == "good"
    assert not any(one.touched for one in found.findings)
    wanted = "kept" if kind == torch.float16 else "rounded"  # the base file is in float16 itself
    assert found.assessment.base_languages == wanted


def test_rounding_is_seen_where_it_was_widened_again(doctor: Doctor, healthy: Tensors) -> None:
    found = doctor({name: value.bfloat16().float() for name, value in healthy.items()})
    assert found.assessment.base_languages == "rounded"
    assert "bfloat16" in finding(found, PROJECTION).words


def test_weight_decay_behind_a_gradient_hook_is_called_so(doctor: Doctor, healthy: Tensors, pieces: Path) -> None:
    found = doctor(damaged.decayed(healthy), tokenizer=str(pieces))
    old = [one for one in found.findings if one.part == "old rows"]
    assert [one.state for one in old] == ["shrunk", "shrunk"]
    assert all(one.rows_moved == one.rows for one in old)
    assert old[0].median == pytest.approx(0.01, rel=0.05)  # 1000 steps of 1e-3 x 0.01
    assert found.assessment.base_languages == "changed"
    assert found.assessment.restorable


def test_an_optimizer_over_everything_is_no_case_for_the_rows_alone(doctor: Doctor, healthy: Tensors) -> None:
    found = doctor(damaged.trained_everywhere(healthy))
    assert states(found, "layers") == {"trained"}
    assert states(found, "old rows") == {"trained"}
    assert finding(found, PROJECTION).change == pytest.approx(0.05, rel=0.2)
    assert found.assessment.base_languages == "changed"
    assert not found.assessment.restorable
    assert "other tensors changed" in found.assessment.advice


def test_an_overwritten_half_of_the_prefix_is_named_by_its_rows(
    doctor: Doctor, healthy: Tensors, pieces: Path,
) -> None:
    old = len(healthy[TABLES[0]]) - len(damaged.NEW)
    found = doctor(damaged.half_overwritten(healthy), tokenizer=str(pieces))
    one = finding(found, TABLES[0], "old rows")
    assert one.state == "replaced"
    assert f"rows {old // 2}-{old - 1}" in one.words
    assert one.rows_moved == old - old // 2
    assert found.assessment.base_languages == "lost"
    assert found.assessment.restorable
    assert found.findings[0].state == "replaced"  # the worst first


def test_a_vocabulary_sorted_anew_is_recognised(
    doctor: Doctor, world: Workspace, healthy: Tensors, tmp_path: Path,
) -> None:
    before = damaged.pieces(world)
    after = damaged.resorted({**before, **dict.fromkeys(damaged.NEW, 0)})
    order = [after[piece] for piece in sorted(before, key=before.__getitem__)]
    order += [after[piece] for piece in damaged.NEW]
    held = damaged.permuted(healthy, order)
    alone = doctor(held)
    assert finding(alone, TABLES[0], "old rows").state == "permuted"
    assert alone.assessment.base_languages == "lost"
    assert not alone.assessment.restorable
    own = damaged.tokenizer(world, tmp_path / "sorted.json", damaged.resorted)
    together = doctor(held, tokenizer=str(own), measure=True)
    assert together.tokenizer is not None
    assert together.tokenizer.rows_follow
    assert together.assessment.base_languages == "kept"
    assert "With its own tokenizer alone" in together.assessment.headline
    assert together.drift is not None
    assert together.drift.equal == together.drift.samples  # each piece finds its row, so the logits are the same


def test_a_sorted_tokenizer_over_rows_in_the_old_order_is_refused(
    doctor: Doctor, world: Workspace, healthy: Tensors, tmp_path: Path,
) -> None:
    own = damaged.tokenizer(world, tmp_path / "sorted.json", damaged.resorted)
    found = doctor(healthy, tokenizer=str(own), measure=True)
    assert states(found, "old rows") == {"equal"}
    assert found.assessment.base_languages == "lost"
    assert "tokenizer" in found.assessment.headline
    assert found.tokenizer is not None
    assert found.tokenizer.moved_count > 10
    assert found.tokenizer.following == 0
    assert found.drift is not None
    assert found.drift.equal == 0


def test_a_wrong_tokenizer_of_equal_size_is_refused(
    doctor: Doctor, world: Workspace, healthy: Tensors, tmp_path: Path,
) -> None:
    def other(ids: dict[str, int]) -> dict[str, int]:
        return {{"a": "ж", "b": "щ"}.get(piece, piece): row for piece, row in ids.items()}

    found = doctor(healthy, tokenizer=str(damaged.tokenizer(world, tmp_path / "other.json", other)))
    assert found.tokenizer is not None
    assert found.tokenizer.size == found.tokenizer.rows
    assert found.tokenizer.lost == ("a", "b")
    assert found.tokenizer.trespassing_count == 2
    assert found.assessment.base_languages == "lost"
    assert "the tokenizer lacks 2 of their pieces" in found.assessment.headline
    assert "Give the one that it was trained with" in found.assessment.advice
    assert doctor(healthy, tokenizer=found.tokenizer.path, measure=True).drift is None  # it reads other pieces


def test_a_spare_row_is_no_mismatch_and_an_id_without_a_row_is(
    doctor: Doctor, world: Workspace, healthy: Tensors, tmp_path: Path,
) -> None:
    last = damaged.NEW[-1]
    fewer = damaged.tokenizer(world, tmp_path / "fewer.json",
                              lambda ids: {piece: row for piece, row in ids.items() if piece != last})
    spare = doctor(healthy, tokenizer=str(fewer))
    assert spare.tokenizer is not None
    assert spare.tokenizer.fits
    assert spare.tokenizer.spare == 1
    assert spare.assessment.level == "good"
    more = damaged.tokenizer(world, tmp_path / "more.json", lambda ids: {**ids, "ж": len(ids)})
    beyond = doctor(healthy, tokenizer=str(more))
    assert beyond.tokenizer is not None
    assert beyond.tokenizer.beyond == 1
    assert beyond.assessment.level == "bad"
    assert "have no row" in " ".join(beyond.assessment.sentences)


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_a_merged_lora_is_known_by_its_rank(doctor: Doctor, healthy: Tensors, rank: int) -> None:
    found = doctor(damaged.merged_lora(healthy, rank))
    matrices = [one for one in found.findings if one.part == "layers" and len(one.shape) == 2]
    assert {one.state for one in matrices} == {"low rank"}
    assert {one.rank for one in matrices} == {rank}
    assert f"rank {rank}" in " ".join(found.assessment.sentences)
    assert "gated" in found.assessment.advice


def test_values_that_are_no_numbers_are_found(doctor: Doctor, healthy: Tensors) -> None:
    found = doctor(damaged.with_nan(healthy), measure=True)
    assert found.findings[0].name == PROJECTION
    assert found.findings[0].state == "broken"
    assert found.assessment.base_languages == "lost"
    assert found.drift is None


def test_no_number_hides_no_other_damage(doctor: Doctor, healthy: Tensors) -> None:
    held = damaged.with_nan(damaged.decayed(healthy))
    held[TABLES[0]] = held[TABLES[0]].clone()
    held[TABLES[0]][0, 0] = torch.nan
    found = doctor(held)
    old = finding(found, TABLES[0], "old rows")
    assert old.words.startswith("1 of ")
    assert "values are no numbers (rows 0); beside these: shrunk to " in old.words
    assert old.words.endswith("weight decay")
    merged = doctor(damaged.with_nan(damaged.merged_lora(healthy, 3)))
    assert "beside these: the difference has rank 3, as a merged LoRA leaves it" in finding(merged, PROJECTION).words
    alone = doctor(damaged.with_nan(healthy))
    assert "; all others are bit-identical" in finding(alone, PROJECTION).words
    assert "Beside that" not in alone.assessment.headline


def test_a_bad_verdict_is_an_exit_code(world: Workspace, healthy: Tensors, tmp_path: Path) -> None:
    for tensors, code in ((healthy, 0), (damaged.with_nan(healthy), 1)):
        path = damaged.save(tmp_path / f"{code}.safetensors", tensors)
        words = ["model", "tiny", str(path), "--workspace", str(world.path), "--no-measure"]
        assert scripts_doctor.main(words) == code


def test_the_help_says_what_the_exit_code_means(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        scripts_doctor.main(["model", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "Exit code: 0 finished, 1 failed or a bad finding with nothing restored" in said
    assert "2 wrong usage (nothing was started), 3 already running, 130 stopped" in said


def test_broken_new_rows_are_not_kept(doctor: Doctor, healthy: Tensors) -> None:
    held = damaged.decayed(healthy)
    held[TABLES[1]] = held[TABLES[1]].clone()
    held[TABLES[1]][-1] = torch.inf
    found = doctor(held)
    assert finding(found, TABLES[1], "new rows").state == "broken"
    assert not found.assessment.restorable
    assert found.assessment.level == "bad"


def test_a_head_that_was_not_extended_is_told(doctor: Doctor, healthy: Tensors, world: Workspace) -> None:
    held = {**damaged.decayed(healthy), TABLES[1]: damaged.base_tensors(world)[TABLES[1]]}
    found = doctor(held)
    assert not found.assessment.restorable
    assert TABLES[1] in found.assessment.advice


@pytest.mark.parametrize("short", TABLES)
def test_tables_of_different_length_cannot_be_loaded(
    doctor: Doctor, healthy: Tensors, world: Workspace, short: str,
) -> None:
    found = doctor({**healthy, short: damaged.base_tensors(world)[short]})
    assert found.assessment.base_languages == "kept"
    assert found.assessment.level == "bad"
    assert f"{short} has 0" in found.assessment.headline
    assert "Nothing needs to be restored" not in found.assessment.advice


def untrained(healthy: Tensors, how: str, tables: tuple[str, ...] = TABLES) -> Tensors:
    """New rows that no training reached, as public programs leave them."""
    held, count = {name: value.clone() for name, value in healthy.items()}, len(damaged.NEW)
    for table in tables:
        old = held[table][:-count]
        held[table][-count:] = {
            "zero": torch.zeros_like(held[table][-count:]), "mean": old.mean(0),
            "mean resizing": old.mean(0) + 3e-5 * old.std() * damaged.noise((count, old.shape[1])),
        }[how]
    return held


@pytest.mark.parametrize("how", ["zero", "mean", "mean resizing"])
def test_new_rows_that_were_never_trained_are_bad(
    doctor: Doctor, world: Workspace, healthy: Tensors, pieces: Path, tmp_path: Path, how: str,
) -> None:
    held = untrained(healthy, how)
    for options in ({}, {"tokenizer": str(pieces)}):
        found = doctor(held, **options)
        assert found.assessment.level == "bad"
        assert found.assessment.base_languages == "kept"
        assert found.assessment.headline.endswith("Its new rows are all alike: the new language cannot work.")
        assert "Nothing needs to be restored" not in found.assessment.advice
        assert states(found, "new rows") == {"untrained"}
        assert "all of them are alike" in finding(found, TABLES[0], "new rows").words
    words = ["model", "tiny", str(tmp_path / "it.safetensors"), "--workspace", str(world.path), "--no-measure"]
    assert scripts_doctor.main(words) == 1


@pytest.mark.parametrize(("table", "level"), [(TABLES[0], "bad"), (TABLES[1], "changed")])
def test_a_table_whose_new_rows_alone_were_trained_is_not_enough(
    doctor: Doctor, healthy: Tensors, table: str, level: str,
) -> None:
    """Speech reads the embedding; the head predicts text in training alone."""
    found = doctor(untrained(healthy, "mean", (table,)))
    assert finding(found, table, "new rows").state == "untrained"
    assert found.assessment.level == level
    assert table in found.assessment.headline
    assert found.assessment.base_languages == "kept"


def test_untrained_rows_behind_damaged_ones_are_nothing_to_keep(
    doctor: Doctor, healthy: Tensors, pieces: Path,
) -> None:
    found = doctor(untrained(damaged.decayed(healthy), "mean"), tokenizer=str(pieces))
    assert found.assessment.level == "bad"
    assert not found.assessment.restorable
    assert "all alike" in found.assessment.advice


def test_rows_that_only_fill_up_the_table_are_no_new_language(
    doctor: Doctor, healthy: Tensors, pieces: Path,
) -> None:
    """A vocabulary is often rounded up to a multiple of 64 by rows that no piece has."""
    held = {name: torch.cat([value, torch.zeros(64, value.shape[1])]) if name in TABLES else value
            for name, value in healthy.items()}
    found = doctor(held, tokenizer=str(pieces))
    assert states(found, "new rows") == {"new"}
    assert found.assessment.level == "good"


def test_a_few_new_rows_that_are_alike_are_told_and_no_verdict(doctor: Doctor, healthy: Tensors) -> None:
    held = {name: value.clone() for name, value in healthy.items()}
    held[TABLES[0]][-2:] = held[TABLES[0]][-1]
    found = doctor(held)
    assert f"only {len(damaged.NEW) - 1} of them differ" in finding(found, TABLES[0], "new rows").words
    assert found.assessment.level == "good"


@pytest.mark.parametrize("prefix", ["t3.", "module._orig_mod."])
def test_names_behind_a_prefix_are_read(doctor: Doctor, healthy: Tensors, prefix: str) -> None:
    found = doctor({prefix + name: value for name, value in healthy.items()})
    assert found.assessment.base_languages == "kept"
    assert found.prefix == prefix.replace("_orig_mod.", "")


def test_a_training_s_checkpoint_is_read_where_its_model_lies(doctor: Doctor, healthy: Tensors) -> None:
    held = {"model": [healthy], "optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}}, "step": 7}
    found = doctor(held, "checkpoint.pt")  # type: ignore[arg-type]
    assert found.assessment.base_languages == "kept"
    assert found.prefix == "model.0."
    assert not [one.name for one in found.findings if one.state == "extra"]
    assert "Left out: 1 tensor of an optimizer, a schedule or a random generator." in found.assessment.sentences


def test_renamed_tensors_are_known_by_their_values(doctor: Doctor, healthy: Tensors) -> None:
    other = "decoder.blocks.1.attention.value.weight"
    held = {other if name == PROJECTION else name: value for name, value in healthy.items()}
    found = doctor(held)
    assert finding(found, PROJECTION).state == "equal"
    assert other in finding(found, PROJECTION).words
    assert other in " ".join(found.assessment.sentences)


def test_a_missing_and_an_extra_tensor_are_named(doctor: Doctor, healthy: Tensors) -> None:
    held = {name: value for name, value in healthy.items() if name != PROJECTION}
    found = doctor({**held, "surplus.weight": torch.zeros(2, 5)})
    assert finding(found, PROJECTION).state == "missing"
    assert finding(found, "surplus.weight").state == "extra"
    assert found.assessment.base_languages == "lost"


@pytest.mark.parametrize("name", [PROJECTION, "tfmr.layers.0.mlp.up_proj.weight"])
def test_a_transposed_matrix_is_called_so(doctor: Doctor, healthy: Tensors, name: str) -> None:
    found = doctor({**healthy, name: healthy[name].T.contiguous()})
    assert finding(found, name).state == "transposed"
    assert found.assessment.base_languages == "lost"


def test_another_model_s_rows_are_misshapen(doctor: Doctor, healthy: Tensors) -> None:
    found = doctor({**healthy, TABLES[0]: healthy[TABLES[0]][:7]})
    assert finding(found, TABLES[0]).state == "misshapen"
    assert "(7, 32)" in finding(found, TABLES[0]).words
    assert "fewer rows than the base" in found.assessment.headline
    assert "Give the base it was made from" in found.assessment.advice
    assert not any("vocabulary size of the base" in one for one in found.assessment.sentences)


@pytest.mark.parametrize("name", ["it.safetensors", "it.pt"])
def test_a_file_that_was_cut_off_is_refused_with_its_size(
    doctor: Doctor, healthy: Tensors, tmp_path: Path, name: str,
) -> None:
    path = damaged.save(tmp_path / name, healthy)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=f"{path.stat().st_size} bytes") as caught:
        doctor(path)
    assert "Copy it again" in caught.value.hint  # it is a person's own, and never to be deleted


def test_adapters_alone_are_refused_as_what_they_are(doctor: Doctor) -> None:
    with pytest.raises(UserError, match="adapters that were not merged"):
        doctor({"base_model.model.tfmr.layers.0.q_proj.lora_A.weight": torch.zeros(2, 32)})


def test_objects_in_a_pickle_are_refused(doctor: Doctor, tmp_path: Path) -> None:
    torch.save({"model": Path("/")}, tmp_path / "it.pt")
    with pytest.raises(UserError, match="could run code"):
        doctor(tmp_path / "it.pt")


def test_a_base_may_be_a_file_or_a_folder(doctor: Doctor, world: Workspace, healthy: Tensors) -> None:
    folder = world.models / "tiny"
    assert doctor(healthy, base=str(folder)).assessment.base_languages == "kept"
    assert doctor(healthy, base=str(folder / "t3.safetensors")).assessment.base_languages == "kept"


def test_what_a_checkpoint_says_is_measured(doctor: Doctor, healthy: Tensors) -> None:
    whole = {name: value.bfloat16().float() for name, value in healthy.items()}
    near, far = doctor(whole, measure=True).drift, doctor(damaged.half_overwritten(healthy), measure=True).drift
    assert near is not None
    assert far is not None
    assert near.samples == far.samples > 0
    assert near.languages == ("en", "fr")
    assert near.divergence < far.divergence


PROBED = ["en"] * 3 + ["fr"] * 3


def drift(*noise_of: float) -> diagnosis.ProbeDrift:
    """The drift of predictions to which noise was added, of a width for each sample."""
    base = [6.0 * damaged.noise((50, 40), seed) for seed in range(len(PROBED))]
    after = [logits + width * damaged.noise((50, 40), 99 + seed)
             for seed, (logits, width) in enumerate(zip(base, noise_of, strict=True))]
    before, changed = ([SampleLogits(torch.zeros(1, 1), logits) for logits in some] for some in (base, after))
    return examine.compare_probes(PROBED, before, changed)


CHANGED = (TensorFinding(PROJECTION, "layers", "trained", "trained: moved by 80% of its length", (4, 4), change=0.8),)


def test_languages_whose_predictions_are_gone_are_called_broken() -> None:
    found = examine.assess(CHANGED, None, drift(*[60.0] * 6))
    assert found.level == "bad"
    assert found.base_languages == "lost"
    assert re.fullmatch(r"Broken: languages en and fr no longer work \(\d% equal top-1 predictions, "
                        r"\d\d\d nats a code apart\)\.", found.headline)
    assert "isten" not in found.headline + found.advice


def test_only_the_language_that_no_longer_works_is_named() -> None:
    found = examine.assess(CHANGED, None, drift(0.1, 0.1, 0.1, 60.0, 60.0, 60.0))
    assert found.headline.startswith("Broken: language fr no longer works (")
    assert found.base_languages == "lost"


def test_a_measured_change_is_told_with_its_numbers() -> None:
    found = examine.assess(CHANGED, None, drift(*[0.3] * 6))
    assert (found.level, found.base_languages) == ("changed", "changed")
    assert re.search(r"en 9\d%, 0\.0\d+ nats; fr 9\d%, 0\.0\d+ nats", found.headline)
    far = examine.assess(CHANGED, None, drift(*[4.0] * 6))
    assert (far.level, far.base_languages) == ("bad", "changed")
    assert "The base model was damaged" in far.headline
    assert "were not measured" in examine.assess(CHANGED, None, None).headline


@pytest.mark.parametrize("width", [0.02, 0.5, 3.0])
def test_rows_of_noise_are_called_noise(doctor: Doctor, healthy: Tensors, width: float) -> None:
    held = {**healthy, **{name: width * damaged.noise(tuple(healthy[name].shape), seed + 40)
                          for seed, name in enumerate(TABLES)}}
    found = doctor(held, measure=True)
    assert states(found, "old rows") == {"noise"}
    assert found.assessment.headline.startswith(f"Broken: noise. All rows of {TABLES[0]} and {TABLES[1]} are noise.")
    assert "now row" not in " ".join([found.assessment.headline, *found.assessment.sentences])
    assert found.assessment.base_languages == "lost"


def test_a_model_of_noise_is_called_noise(doctor: Doctor, healthy: Tensors) -> None:
    held = {name: damaged.noise(tuple(value.shape), seed) for seed, (name, value) in enumerate(healthy.items())}
    found = doctor(held, measure=True)
    assert found.assessment.headline.startswith("Broken: noise. ")
    assert "other tensors resemble the base's no more" in found.assessment.headline


@pytest.mark.parametrize("damage", [damaged.decayed, damaged.half_overwritten])
def test_restored_rows_are_the_base_s_and_the_new_ones_are_kept(
    world: Workspace, healthy: Tensors, pieces: Path, tmp_path: Path, damage: Callable[[Tensors], Tensors],
) -> None:
    held = damage(healthy)
    path = damaged.save(tmp_path / "it.safetensors", held)
    name = damage.__name__.replace("_", "-")
    options = DoctorOptions(part="model", base="tiny", checkpoint=str(path), tokenizer=str(pieces), measure=False,
                            restore=name, language="am")
    before = {file: file.read_bytes() for file in (path, pieces, world.models / "tiny" / "t3.safetensors")}
    assert examine.run(options, world, Listener(tmp_path / "job"))["ref"] == f"export:{name}"
    assert {file: file.read_bytes() for file in before} == before
    base, restored = load_base(world, "tiny", CPU), load(world, f"export:{name}", CPU)
    written = load_file(world.exports / name / "t3.safetensors")
    for table in TABLES:
        old = base.front_end.prefix_size
        assert torch.equal(written[table][:old].float(), damaged.base_tensors(world)[table])
        assert torch.equal(written[table][old:].float(), held[table][old:])
    rows = new_rows(restored.lm.module, restored.lm.text_tables)
    assert torch.equal(rows["text_emb"], held[TABLES[0]][-len(damaged.NEW):])
    proof = certificate.read(world.exports / name / certificate.CERTIFICATE)
    assert {check.result for check in proof.checks} == {"passed"}
    same_speech(base, restored)
    ids = restored.front_end.encode("ሀለ", "am")
    assert ids.tolist()[2:4] == [base.front_end.prefix_size, base.front_end.prefix_size + 1]
    with pytest.raises(UserError, match="already an export"):
        examine.run(options, world, Listener(tmp_path / "job"))


def swapped(held: Tensors, one: int, other: int) -> Tensors:
    """Two rows in each other's place."""
    order = list(range(len(held[TABLES[0]])))
    order[one], order[other] = other, one
    return damaged.permuted(held, order)


def test_rows_swapped_under_a_tokenizer_that_kept_its_ids_are_put_back(
    world: Workspace, doctor: Doctor, healthy: Tensors, pieces: Path, tmp_path: Path,
) -> None:
    held = swapped(healthy, 9, 12)
    alone = doctor(held)
    assert not alone.assessment.restorable
    assert "give its tokenizer" in alone.assessment.advice
    found = doctor(held, tokenizer=str(pieces), restore="unswapped", language="am")
    assert finding(found, TABLES[0], "old rows").state == "permuted"
    assert found.assessment.base_languages == "lost"
    assert found.assessment.restorable
    written = load_file(world.exports / "unswapped" / "t3.safetensors")
    for table in TABLES:
        assert torch.equal(written[table].float(), healthy[table])


def test_an_old_row_behind_the_prefix_is_not_taken_for_a_new_one(
    doctor: Doctor, healthy: Tensors, pieces: Path,
) -> None:
    last = len(healthy[TABLES[0]]) - 1
    found = doctor(swapped(swapped(healthy, 9, 12), 3, last), tokenizer=str(pieces))
    assert finding(found, TABLES[0], "old rows").rows_behind == 1
    assert not found.assessment.restorable
    assert "stand among the new ones" in found.assessment.advice


def same_speech(base: object, restored: object) -> None:
    """Codes and logits of the base languages are bit-identical to the base's."""
    from core.training import replay
    from models.base import Sampling

    clips = replay.load(base, base.family.load_voices(base.base_folder)).drift_clips  # type: ignore[attr-defined,arg-type]
    samples = replay.probes(clips, base.lm)  # type: ignore[attr-defined]
    assert samples
    for item in samples:
        one, other = base.lm.probe(item.sample), restored.lm.probe(item.sample)  # type: ignore[attr-defined]
        assert torch.equal(one.speech_logits, other.speech_logits)
        assert torch.equal(one.text_logits, other.text_logits[:, :one.text_logits.shape[1]])
    voice = next(iter(base.family.load_voices(base.base_folder).values()))  # type: ignore[attr-defined]
    text = base.front_end.encode("the cat sees a dog", "en")  # type: ignore[attr-defined]
    spoken = [model.lm.generate([text], [voice], Sampling(seed=4))[0].codes  # type: ignore[attr-defined]
              for model in (base, restored)]
    assert np.array_equal(*spoken)


@pytest.mark.parametrize("given", [{"language": "am"}, {"tokenizer": "tokenizer.json"}])
def test_what_restoring_needs_is_asked_for_before_anything_is_compared(
    world: Workspace, healthy: Tensors, pieces: Path, tmp_path: Path, given: dict[str, str],
) -> None:
    path = damaged.save(tmp_path / "it.safetensors", damaged.decayed(healthy))
    tokenizer = str(pieces) if "tokenizer" in given else ""
    options = DoctorOptions(part="model", base="tiny", checkpoint=str(path), measure=False, restore="mended",
                            language=given.get("language", ""), tokenizer=tokenizer)
    listener = Listener(tmp_path / "job")
    with pytest.raises(UserError, match="tokenizer and the language"):
        examine.run(options, world, listener)
    assert listener.of("progress") == []


def test_a_tokenizer_without_a_piece_for_the_new_rows_restores_nothing(
    world: Workspace, healthy: Tensors, tmp_path: Path,
) -> None:
    """Such as the base's own: no text of the new language could be spoken."""
    path = damaged.save(tmp_path / "it.safetensors", damaged.decayed(healthy))
    options = DoctorOptions(part="model", base="tiny", checkpoint=str(path), measure=False, restore="mended",
                            language="am", tokenizer=str(world.models / "tiny" / "tokenizer.json"))
    listener = Listener(tmp_path / "job")
    with pytest.raises(UserError, match=r"no piece for the \d+ new rows") as caught:
        examine.run(options, world, listener)
    assert "language-CODE.json" in caught.value.hint
    assert listener.of("progress") == []
    examine.run(options.model_copy(update={"restore": ""}), world, listener)
    [plan] = listener.of("plan")
    assert not any("no fault" in line for line in plan.lines)
    assert any("rows have no piece" in line for line in plan.lines)


def test_how_to_restore_is_said_where_it_was_not_asked_for(world: Workspace, healthy: Tensors, tmp_path: Path) -> None:
    path = damaged.save(tmp_path / "it.safetensors", damaged.decayed(healthy))
    listener = Listener(tmp_path / "job")
    examine.run(DoctorOptions(part="model", base="tiny", checkpoint=str(path), measure=False), world, listener)
    [plan] = listener.of("plan")
    assert plan.lines[-1].endswith("--restore NAME --language CODE --tokenizer FILE")
    assert any("Whether its tokenizer fits was not examined" in line for line in plan.lines)


def test_what_is_not_damaged_in_rows_alone_is_not_restored(
    world: Workspace, healthy: Tensors, pieces: Path, tmp_path: Path,
) -> None:
    path = damaged.save(tmp_path / "it.safetensors", damaged.trained_everywhere(healthy))
    options = DoctorOptions(part="model", base="tiny", checkpoint=str(path), tokenizer=str(pieces), measure=False,
                            restore="all-of-it", language="am")
    with pytest.raises(UserError, match="other tensors changed"):
        examine.run(options, world, Listener(tmp_path / "job"))
    assert not (world.exports / "all-of-it").exists()
