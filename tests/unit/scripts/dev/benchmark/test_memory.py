"""The benchmarks of memory and of the review fit the code that they measure; their figures are not asked here."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.dev.benchmark import memory, review


@pytest.mark.parametrize("name", memory.STAGES)
def test_each_stage_of_the_memory_benchmark_runs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    memory.STAGES[name](60, tmp_path)()
    memory.stage(name, 60)
    assert float(capsys.readouterr().out) >= 0


def test_the_benchmark_of_the_review_runs(capsys: pytest.CaptureFixture[str]) -> None:
    review.main(100, 50)
    assert "one more decision" in capsys.readouterr().out
