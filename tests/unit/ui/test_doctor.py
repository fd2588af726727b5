"""The Doctor tab shows a diagnosis as it was written: the verdict, the worst first, an offer only where it holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from config.errors import UserError
from core.doctor import assess, base_languages, can_restore, worst_first
from core.jobs.job import NO_DEVICE, Job
from core.jobs.state import JobState
from core.library import diagnosis
from core.library.diagnosis import Diagnosis, ProbeDrift, TensorFinding, TokenizerFit
from ui import doctor

DAMAGED = (
    TensorFinding("text_emb.weight", "old rows", "shrunk", "shrunk to 0.99", (57, 32), "float32", 0.01, 46, 46, 0.01,
                  0.01),
    TensorFinding("text_emb.weight", "new rows", "new", "their length is 1.00 times", (11, 32), "float32", rows=11),
    *(TensorFinding(f"tfmr.layers.{place}.self_attn.q_proj.weight", "layers", "equal", "bit-identical", (32, 32))
      for place in range(4)),
)
FIT = TokenizerFit("/x/tokenizer.json", 57, 57, 46, 0, (), 0, (), 0, 0, (), 0, 11, 0)


def made(findings: tuple[TensorFinding, ...], fit: TokenizerFit | None = None,
         heard: ProbeDrift | None = None) -> Diagnosis:
    return Diagnosis("tiny", "/there/<it>.safetensors", "tiny", "", ("float32",), worst_first(findings), fit, heard,
                     assess(findings, fit, heard))


@pytest.mark.parametrize("heard", [None, ProbeDrift(4, 0, 0.25, 1.5, ("en", "fr"))])
def test_a_diagnosis_comes_back_as_it_was_written(tmp_path: Path, heard: ProbeDrift | None) -> None:
    found = made(DAMAGED, replace(FIT, moved=(("a", 3, 5),), moved_count=1), heard)
    diagnosis.write(tmp_path, found)
    assert diagnosis.read(tmp_path) == found


def test_a_damaged_diagnosis_is_told(tmp_path: Path) -> None:
    (tmp_path / diagnosis.DIAGNOSIS).write_text('{"findings": 3}', encoding="utf-8")
    with pytest.raises(UserError, match="could not be read"):
        diagnosis.read(tmp_path)


def test_the_page_says_the_verdict_and_the_worst_first() -> None:
    found = made(DAMAGED, FIT)
    shown = doctor.assessment_view(found) + doctor.details_view(found)
    assert found.assessment.headline in shown
    assert "&lt;it&gt;" in shown
    assert shown.index("shrunk") < shown.index("4 bit-identical")
    assert "Relative change by layer" not in shown


def test_what_was_rounded_is_not_called_changed() -> None:
    shown = doctor.details_view(made(tuple(replace(one, state="rounded") for one in DAMAGED if one.state == "equal")))
    assert "4 equal except rounding" in shown
    assert "No tensor changed." in shown


def test_layers_that_moved_are_drawn() -> None:
    moved = tuple(replace(one, state="trained", change=0.01 * place) for place, one in enumerate(DAMAGED, 1))
    shown = doctor.details_view(made(moved))
    assert "Relative change by layer" in shown
    assert shown.count('class="dot"') == 4


def test_only_rows_alone_are_offered_to_be_restored() -> None:
    assert can_restore(DAMAGED, FIT) == (True, "")
    trained = replace(DAMAGED[-1], state="trained")
    assert not can_restore((*DAMAGED, trained), FIT)[0]
    assert not can_restore(DAMAGED[:1], FIT)[0]  # nothing to keep
    assert not can_restore(DAMAGED, replace(FIT, moved_count=2))[0]
    assert can_restore(DAMAGED[1:], FIT) == (False, "")  # nothing is damaged


def test_a_restoring_that_failed_at_once_leaves_the_verdict_to_be_seen(tmp_path: Path) -> None:
    def examined(name: str, checkpoint: str, created: float, **more: str) -> JobState:
        (tmp_path / name).mkdir()
        job = Job(tmp_path / name, "doctor", NO_DEVICE, (), created, {"checkpoint": checkpoint, **more})
        return JobState(job, "failed" if more else "finished")

    first, other = examined("first", "/a.pt", 1.0), examined("other", "/b.pt", 2.0)
    failed = examined("failed", "/a.pt", 3.0, restore="mended")
    for one in (first, other):
        diagnosis.write(one.job.directory, made(DAMAGED, FIT))
    assert doctor.examined(failed, [first, other, failed]) is first
    assert doctor.examined(other, [first, other, failed]) is other
    assert doctor.examined(None, []) is None
    assert doctor.examined(failed, [failed]) is failed
    alone = examined("alone", "/a.pt", 4.0)
    assert doctor.examined(alone, [first, alone]) is alone  # another file may lie there by now


def test_a_tensor_that_nobody_reads_decides_nothing() -> None:
    gone = TensorFinding("tfmr.embed_tokens.weight", "unused", "missing", "the checkpoint has none")
    assert base_languages((*DAMAGED[1:], gone), None) == "kept"
    assert base_languages((*DAMAGED[1:], replace(gone, part="layers")), None) == "lost"


def test_few_codes_that_stayed_are_called_few() -> None:
    said = made(DAMAGED, None, ProbeDrift(4, 0, 0.25, 1.5, ("en",))).assessment.sentences
    assert any("25% of codes (few)" in one for one in said)
