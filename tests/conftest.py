"""Triton's kernels are interpreted on a machine without a GPU; what counts is the moment when triton is imported."""

import gc
import os
import re
import shutil

import pytest

if shutil.which("nvidia-smi") is None:
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a `covering` test's product of parameters, mark what is off the diagonal as slow.

    With as many steps as the shortest of its parameters has values, every value of each stays in the default run; and
    all cases of a family that the nearest `covering(whole=...)` names. With LISAN_ALL_CASES in the environment nothing
    is marked; nor are the cases of IndexTTS 2.5 (`tests.contract.families`).
    """
    if "LISAN_ALL_CASES" in os.environ:
        return
    tests: dict[str, list[pytest.Function]] = {}
    for item in items:
        if (isinstance(item, pytest.Function) and hasattr(item, "callspec") and item.get_closest_marker("covering")
                and not item.get_closest_marker("slow")):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        columns = set()  # of each parameter, the number of its value in each case; those of one tuple are the same
        for name in cases[0].callspec.params:
            values = [repr(case.callspec.params[name]) for case in cases]
            numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
            if len(numbers) > 1:
                columns.add(tuple(numbers[value] for value in values))
        if len(columns) > 1:
            steps = min(max(column) + 1 for column in columns)
            for case, numbers_of_case in zip(cases, zip(*columns, strict=True), strict=True):
                marker = case.get_closest_marker("covering")
                whole = marker.kwargs.get("whole") if marker else None
                if sum(numbers_of_case) % steps and whole not in re.split(r"[\[\]-]", case.name):
                    case.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Modules and tests, 700,000 objects, stay to the end: no collection of garbage goes through them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def one_timing_round() -> None:
    """Of three rounds: passes that are timed take a sixth of a training of seconds."""
    from core.training import run_plan

    run_plan._MAX_TIMING_ROUNDS = 1
