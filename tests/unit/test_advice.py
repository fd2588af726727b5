"""What is said before a training starts, of made-up trainings: how often clips are heard, rates, and the disk."""

from __future__ import annotations

from types import SimpleNamespace

from core.training import advice
from core.training.training_data import TrainingData
from tests.worlds import train_options


def planned(processes: int = 1, clips: int = 10) -> SimpleNamespace:
    """As much of a trainer as the advice looks at."""
    train = tuple(SimpleNamespace(speaker=f"s{index % 2}") for index in range(clips))
    data = TrainingData("am", "", train, train, (), (), train_s=3600.0)  # type: ignore[arg-type]
    return SimpleNamespace(data=data, company=SimpleNamespace(size=processes) if processes > 1 else None)


def test_clips_are_counted_as_all_processes_hear_them() -> None:
    options = train_options(batch_size=5, steps=150)
    assert list(advice._data(planned(), options)) == []
    (said,) = advice._data(planned(processes=2), options)
    assert "Each of the 10 clips is heard 150 times in 150 steps" in said
    assert list(advice._data(planned(), train_options(batch_size=5, steps=150, processes=2))) == [said]  # of a trial
