"""Listening tests: balance, loudness, the anchor, foreign answers, and statistics against published values."""

from __future__ import annotations

import base64
import io
import json
import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pyloudnorm
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from scipy import signal, stats
from starlette.applications import Starlette
from starlette.testclient import TestClient

from config.errors import UserError
from config.schema import EvaluateOptions, ListeningTestOptions
from core.jobs.job import create_job
from core.jobs.state import JobBoard
from core.library import evaluation_report, listening
from core.library.evaluation_report import ANCHOR, REFERENCE, ListeningScore
from core.library.listening import ListeningTest
from core.listening_test import anchor_of
from core.workspace import Workspace
from scripts import listening_test as script
from tests.listening_world import EVALUATION, LEVELS, MODELS, evaluated_world, make_test
from ui import media
from ui.evaluation import listening_view
from ui.live import View, workspace_mark

BASE, RUN = MODELS[:2]
Answer = Callable[[tuple[str, ...]], dict[str, object]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return evaluated_world(tmp_path_factory.mktemp("heard"))


def page_data(folder: Path) -> dict[str, Any]:
    html = (folder / listening.PAGE).read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found
    return dict(json.loads(found[1]))


def sessions(test: ListeningTest, answer: Answer, listener: str = "Abeba", row: int = 0, count: int = 1000,
             name: str = "") -> dict[str, Any]:
    """The file of a listener who answers by the models of each page."""
    models = {clip.id: clip.model for clip in test.clips}
    trials = {trial.id: trial for trial in test.trials}
    answers = [{"trial": one, "place": place, "seconds": 3.5,
                **answer(tuple(models[clip] for clip in trials[one].clips))}
               for place, one in enumerate(test.rows[row][:count])]
    return {"format": listening.FORMAT, "test": test.id, "sessions": [
        {"session": name or f"{abs(hash((listener, row))):032x}"[-32:], "listener": listener, "row": row,
         "answers": answers}]}


def add(workspace: Workspace, value: object, folder: Path | None = None) -> listening.AddedAnswers:
    return listening.add_answers(workspace, json.dumps(value).encode(), "answers.json", folder)


def rate(values: dict[str, tuple[int, int]]) -> Answer:
    return lambda models: dict(zip(("naturalness", "intelligibility"), values[models[0]], strict=True))


@given(st.integers(1, 12), st.sampled_from([1, 2, 4]), st.integers(1, 6))
def test_rows_are_balanced(conditions: int, turns: int, blocks: int) -> None:
    sentences = conditions * blocks
    rows = listening.design(conditions, turns, sentences)
    for row in rows:
        assert [sentence for sentence, _, _ in row] == list(range(sentences))  # each once
        assert set(Counter(condition for _, condition, _ in row).values()) == {blocks}
        if blocks % turns == 0:
            assert set(Counter((condition, turn) for _, condition, turn in row).values()) == {blocks // turns}
    assert Counter(trial for row in rows for trial in row) == Counter(
        dict.fromkeys(product(range(sentences), range(conditions), range(turns)), 1))


@pytest.mark.parametrize(("kind", "conditions", "rows"), [("rating", 4, 4), ("preference", 2, 4), ("abx", 2, 8)])
def test_a_test_is_balanced_over_models_and_sides(world: Workspace, kind: str, conditions: int, rows: int) -> None:
    test = make_test(world, f"balance-{kind}", kind=kind)[1]
    models = {clip.id: clip.model for clip in test.clips}
    trials = {trial.id: trial for trial in test.trials}
    assert (test.models, len(test.rows)) == ((BASE, RUN, REFERENCE, ANCHOR), rows)
    for row in test.rows:
        heard = Counter(frozenset(models[clip] for clip in trials[one].clips) for one in row)
        assert set(heard.values()) == {8 // conditions}
    over_all = Counter(tuple(models[clip] for clip in trials[one].clips) for row in test.rows for one in row)
    assert set(over_all.values()) == {8}
    assert len(over_all) == {"rating": 4, "preference": 4, "abx": 8}[kind]
    if kind == "abx":  # X is another clip than A and B, of one of their models
        for trial in test.trials:
            first, second, third = trial.clips
            assert third not in (first, second)
            assert models[third] in (models[first], models[second])


def test_the_page_does_not_tell_which_model_is_which(world: Workspace) -> None:
    folder, test = make_test(world, "hidden", kind="abx")
    html, data = (folder / listening.PAGE).read_text(encoding="utf-8"), page_data(folder)
    rest = re.sub(r'"sounds": \{.*?\}', "", html, flags=re.DOTALL)
    for word in (*MODELS, "first</b>", ANCHOR, EVALUATION, "audio/0-am", "base:", "run:"):
        assert word not in rest, word
    assert "</script><img" not in html
    assert not re.search(r"(src|href)=[\"']|@import|url\(|https?:", rest)  # it needs no other file
    assert list(data["sounds"]) == sorted(data["sounds"])
    assert [list(row) == sorted(row) for row in data["rows"]] == [True] * len(test.rows)
    contents = list(data["sounds"].values())
    assert len(set(contents)) == len(contents)  # X has bytes of its own
    again = make_test(world, "hidden-2", kind="abx")[1]
    assert not {one.id for one in test.clips} & {one.id for one in again.clips}


def test_no_script_of_a_foreign_test_is_served(world: Workspace) -> None:
    folder, _ = make_test(world, "served", kind="rating")
    page, own = folder / listening.PAGE, (folder / listening.PAGE).read_text(encoding="utf-8")
    client, address = TestClient(Starlette(routes=media.routes(world))), media.listening_url("served", True)
    page.write_text(own.replace("<main", "<script>alert(1)</script><main", 1), encoding="utf-8")
    assert client.get(f"/{address}").text == own
    for content in ('<script type="application/json" id="data">{</script>', "<script>alert(1)</script>"):
        page.write_text(content, encoding="utf-8")
        assert client.get(f"/{address}").status_code == 404
    page.unlink()
    assert client.get(f"/{address}").status_code == 404


def test_a_damaged_test_is_shown_and_ends_no_other(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path)
    evaluation = create_job(workspace, "evaluate", EvaluateOptions(models=("base:tiny",)), job_id=EVALUATION)
    folder = create_job(workspace, "listening_test", ListeningTestOptions(evaluation=EVALUATION)).directory
    (folder / listening.TEST).write_text("{", encoding="utf-8")
    assert listening.results(workspace, evaluation.id) == ()
    view = View("listen", {}, tuple(JobBoard(workspace).states()))
    assert f"{listening.TEST} could not be read" in listening_view(view)


def test_answers_stand_where_the_report_cannot_be_written(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_workspace: Workspace, _evaluation: str) -> None:
        raise UserError("The report is damaged.")

    monkeypatch.setattr(listening, "update_report", refuse)
    _, test = make_test(world, "stands", kind="rating")
    client = TestClient(Starlette(routes=media.routes(world)))
    given = json.dumps(sessions(test, lambda _models: {"naturalness": 3, "intelligibility": 3}))
    answer = client.post(f"/{media.listening_url('stands')}", content=given)
    assert (answer.status_code, answer.json()) == (200, {"rows": [0]})


def test_all_clips_are_equally_loud_at_one_rate(world: Workspace) -> None:
    folder, test = make_test(world, "loud", kind="rating")
    models = {clip.id: clip.model for clip in test.clips}
    measured = dict[str, list[float]]()
    for name, content in page_data(folder)["sounds"].items():
        samples, rate_hz = soundfile.read(io.BytesIO(base64.b64decode(content)))
        assert rate_hz == 24_000
        assert np.abs(samples).max() < 1.0
        block = pyloudnorm.Meter(rate_hz, filter_class="DeMan").integrated_loudness(samples)
        measured.setdefault(models[name], []).append(block)
    assert set(measured) == {*LEVELS, ANCHOR}
    every = [value for some in measured.values() for value in some]
    assert max(every) - min(every) < 0.2  # LU; the clips differ by 33 dB before
    assert every == pytest.approx([-23.0] * len(every), abs=0.3)


def test_the_anchor_is_the_recording_with_modulated_noise_below_3500_hz() -> None:
    rate_hz = 24_000
    time = np.arange(rate_hz * 4) / rate_hz
    tone = (0.3 * np.sin(2 * np.pi * 1000 * time)).astype(np.float32)
    tone[:rate_hz] = 0
    made = anchor_of(tone, rate_hz, 1)
    assert not made[:rate_hz - 200].any()  # MNRU: no noise where there is no speech
    frequencies, power = signal.welch(made[rate_hz:], rate_hz, nperseg=4096)
    inside, above = power[(frequencies > 2000) & (frequencies < 3400)].mean(), power[frequencies > 4500].mean()
    assert 10 * np.log10(inside / above) > 50  # BS.1534-3: 50 dB from 4.5 kHz, 25 dB at 4 kHz
    assert 10 * np.log10(inside / power[np.argmin(abs(frequencies - 4000))]) > 25
    sounding = slice(rate_hz, None)
    noise = signal.sosfiltfilt(signal.butter(6, [800, 1200], "bandstop", fs=rate_hz, output="sos"), made[sounding])
    # white noise at -10 dB of the tone, of which 3.5 of 12 kHz are left, less the stopped 400 Hz
    wanted = 10 * np.log10(0.045 * 10 ** -1 * (3600 - 400) / 12_000)
    assert 10 * np.log10(noise.var()) == pytest.approx(wanted, abs=0.7)
    untouched = anchor_of(np.zeros(100, np.float32), 8000, 1)
    assert not untouched.any()


def test_two_people_of_one_name_are_two_listeners(world: Workspace) -> None:
    test = make_test(world, "namesakes", kind="rating")[1]
    good = {BASE: (2, 1), RUN: (4, 4), REFERENCE: (5, 5), ANCHOR: (1, 3)}
    deaf = {**good, REFERENCE: (3, 5), ANCHOR: (3, 3)}
    for row, (name, values) in enumerate((("Abeba", good), ("Abeba", deaf), ("Abeba (2)", good))):
        add(world, sessions(test, rate(values), name, row))
    found = listening.result_of(world.runs / "namesakes")
    assert [(one.name, one.flagged) for one in found.listeners] == [
        ("Abeba", False), ("Abeba (2)", True), ("Abeba (2) (2)", False)]
    assert "Sessions under one name count as different listeners" in found.about


def test_mean_opinion_scores_and_flags(world: Workspace) -> None:
    test = make_test(world, "ratings", kind="rating")[1]
    good = {BASE: (2, 1), RUN: (4, 4), REFERENCE: (5, 5), ANCHOR: (1, 3)}
    deaf = {**good, REFERENCE: (3, 5), ANCHOR: (3, 3)}
    for row, (name, values) in enumerate((("Abeba", good), ("Bekele", {**good, RUN: (3, 4)}), ("Chala", deaf))):
        assert add(world, sessions(test, rate(values), name, row)).complete
    found = listening.result_of(world.runs / "ratings")
    scores = {(one.question, one.first): one for one in found.scores}
    assert scores["naturalness", RUN].value == pytest.approx((4 + 3 + 4) / 3)
    assert scores["intelligibility", BASE].value == 1.0
    assert scores["naturalness", RUN].answers == 6
    assert scores["naturalness", RUN].low < scores["naturalness", RUN].value < scores["naturalness", RUN].high
    assert [(one.name, one.flagged, one.checks, one.missed) for one in found.listeners] == [
        ("Abeba", False, 4, 0), ("Bekele", False, 4, 0), ("Chala", True, 4, 4)]
    assert "under one name" not in found.about
    reliable = {(one.question, one.first): one.value for one in found.reliable}
    assert reliable["naturalness", ANCHOR] == 1.0
    assert reliable["naturalness", RUN] == 3.5


@pytest.mark.parametrize("kind", ["preference", "abx"])
def test_shares_are_tested_by_the_exact_binomial(world: Workspace, kind: str) -> None:
    folder, test = make_test(world, f"shares-{kind}", kind=kind)

    def prefer(models: tuple[str, ...]) -> dict[str, object]:
        if kind == "abx":
            return {"abx": "A" if models[2] == models[0] else "B"}
        return {"preference": "AB"[models.index(RUN if RUN in models else REFERENCE)]}

    for row in range(4):
        add(world, sessions(test, prefer, f"listener {row}", row), folder)
    guess = sessions(test, lambda _: {kind: "A"}, "guesses", 1)
    add(world, guess, folder)
    found = listening.result_of(folder)
    between = next(one for one in found.scores if {one.first, one.second} == {BASE, RUN})
    hits = round(between.value * between.answers)
    assert between.answers == 20
    assert 16 < hits < 20
    at_least = sum(comb(20, some) for some in range(hits, 21)) / 2 ** 20
    assert between.p_value == pytest.approx(at_least if kind == "abx" else 2 * at_least)
    assert [one.name for one in found.listeners if one.flagged] == ["guesses"]
    best = next(one for one in found.reliable if {one.first, one.second} == {BASE, RUN})
    assert (best.value, best.exact) == (1.0, pytest.approx((1 - (1 - 0.025 ** (1 / 16)), 1.0)))


def test_no_preference_is_left_out_and_counted(world: Workspace) -> None:
    folder, test = make_test(world, "ties", kind="preference")
    add(world, sessions(test, lambda _: {"preference": "same"}), folder)
    found = listening.result_of(folder)
    assert [(one.ties, one.answers, one.exact, one.p_value) for one in found.scores] == [(4, 4, (0.0, 1.0), 1.0)] * 2
    assert evaluation_report.show_score(found.scores[0]) == "no preference"


@pytest.mark.parametrize(("hits", "of", "one_sided"), [(12, 16, 0.0384), (9, 10, 0.0107), (14, 20, 0.0577)])
def test_binomial_p_values_are_those_of_the_tables_of_abx(hits: int, of: int, one_sided: float) -> None:
    assert evaluation_report.exact_binomial(hits, of, "greater")[2] == pytest.approx(one_sided, abs=5e-5)


@pytest.mark.parametrize(("hits", "of"), [(0, 10), (4, 20), (81, 263)])
def test_the_exact_interval_holds_the_tails_at_its_ends(hits: int, of: int) -> None:
    """Clopper and Pearson's definition, by sums of binomial terms."""
    low, high, _ = evaluation_report.exact_binomial(hits, of)

    def tail(share: float, some: range) -> float:
        return sum(comb(of, one) * share ** one * (1 - share) ** (of - one) for one in some)

    assert tail(high, range(hits + 1)) == pytest.approx(0.025)
    assert low == 0.0 if hits == 0 else tail(low, range(hits, of + 1)) == pytest.approx(0.025)
    if (hits, of) == (81, 263):  # published: Newcombe 1998, table I
        assert (round(low, 4), round(high, 4)) == (0.2527, 0.3676)


def test_the_bootstrap_of_one_listener_is_that_of_scipy() -> None:
    values = np.random.default_rng(3).integers(1, 6, 40).astype(float)
    low, high = evaluation_report.crossed_interval(values, np.ones(40), ["one"] * 40, list(range(40)))
    wanted = stats.bootstrap((values,), np.mean, method="percentile", rng=np.random.default_rng(1)).confidence_interval
    assert (low, high) == pytest.approx((wanted.low, wanted.high), abs=0.06)


def test_the_interval_holds_listeners_who_differ() -> None:
    """Twenty listeners by mean 3 and standard deviation 1, each the same over 20 sentences: 3 +- 1.96 / sqrt(20)."""
    means = 3 + stats.zscore(np.random.default_rng(2).normal(size=20))
    values, listeners = np.repeat(means, 20), np.repeat(np.arange(20), 20)
    low, high = evaluation_report.crossed_interval(
        values, np.ones(400), listeners.tolist(), np.tile(range(20), 20).tolist())
    assert high - low == pytest.approx(2 * 1.96 / np.sqrt(20), rel=0.1)


def test_the_page_sees_each_answer_that_is_appended(world: Workspace) -> None:
    folder, test = make_test(world, "marked", kind="rating", count=4)
    board, marks = JobBoard(world), list[object]()
    whole = sessions(test, rate(dict.fromkeys(test.models, (3, 3))), "Almaz")
    for count in range(4):
        cut = {**whole, "sessions": [{**whole["sessions"][0], "answers": whole["sessions"][0]["answers"][:count]}]}
        add(world, cut, folder)
        marks.append(workspace_mark(board)["mark"])
        assert workspace_mark(board)["mark"] == marks[-1]
    assert len(set(marks)) == 4


def test_answers_are_added_once_and_stand(world: Workspace) -> None:
    folder, test = make_test(world, "twice", kind="preference")
    whole = sessions(test, lambda _: {"preference": "A"})
    part = sessions(test, lambda _: {"preference": "A"}, count=3)
    assert [add(world, one).answers for one in (part, part, whole, whole)] == [3, 0, 5, 0]
    before = (folder / listening.ANSWERS).read_bytes()
    changed = sessions(test, lambda _: {"preference": "B"})
    with pytest.raises(UserError, match="has another answer to trial"):
        add(world, changed)
    assert (folder / listening.ANSWERS).read_bytes() == before
    (folder / listening.ANSWERS).write_bytes(before[:-20])  # a power cut within the last line
    assert listening.read_sessions(folder, test)[1] == 1
    assert add(world, whole).answers == 1
    kept, damaged = listening.read_sessions(folder, test)
    assert (damaged, len(next(iter(kept.values())).answers)) == (1, 8)
    assert "1 line of answers.jsonl could not be read" in listening.result_of(folder).about


def test_listeners_at_once_get_other_rows_and_lose_nothing(world: Workspace) -> None:
    folder, test = make_test(world, "together", kind="rating")
    names = [f"listener {number}" for number in range(8)]

    def take(place: int) -> int:
        """Ask for a row, then send every answer with those before it."""
        start = sessions(test, rate(dict.fromkeys(test.models, (3, 3))), names[place], 0, 0, f"{place:032x}")
        start["sessions"][0]["row"] = None
        row = add(world, start, folder).rows[0]
        for count in range(1, 9):
            add(world, sessions(test, rate(dict.fromkeys(test.models, (3, 3))), names[place], row, count,
                                f"{place:032x}"), folder)
        return row

    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(take, range(8)))
    assert Counter(rows) == dict.fromkeys(range(4), 2)
    assert Counter(json.loads(line)["session"] for line in (folder / listening.ANSWERS).read_text().splitlines()) == \
        {f"{place:032x}": 9 for place in range(8)}
    assert [len(one.answers) for one in listening.read_sessions(folder, test)[0].values()] == [8] * 8


def changed(**values: object) -> Callable[[dict[str, Any]], None]:
    return lambda file: file["sessions"][0].update(values)


def changed_answer(**values: object) -> Callable[[dict[str, Any]], None]:
    return lambda file: file["sessions"][0]["answers"][0].update(values)


@pytest.mark.parametrize(("change", "message"), [
    (lambda file: file.update(format="other"), "holds no answers"),
    (lambda file: file.update(sessions={}), "holds no answers"),
    (lambda file: file.update(test="0" * 16), "which is not in this workspace"),
    (lambda file: file.update(test={"a": "b" * 1000}), "which is not in this workspace"),
    (lambda file: file.update(sessions=[7]), "not an object"),
    (changed(session="../../etc/passwd"), "32 hexadecimal digits"), (changed(session=None), "32 hexadecimal digits"),
    (changed(listener=""), "1 to 60 printable"), (changed(listener="a" * 61), "1 to 60 printable"),
    (changed(listener="a\nb"), "1 to 60 printable"), (changed(listener="\u202eevil"), "1 to 60 printable"),
    (changed(listener=["x"]), "1 to 60 printable"), (changed(row=4), "not one of 0 to 3"),
    (changed(row=True), "not one of 0 to 3"), (changed(row=-1), "not one of 0 to 3"),
    (changed(row=1), "is not one of row 1"), (changed(answers=[{}] * 9), "at most 8 answers"),
    (changed(answers="all"), "at most 8 answers"), (changed_answer(trial="nope"), "has no trial"),
    (changed_answer(trial=3), "names no trial"), (changed_answer(preference="C"), "is no answer to preference"),
    (changed_answer(preference=[1]), "is no answer to preference"), (changed_answer(preference=True), "is no answer"),
    (changed_answer(place=8), "the place 8"), (changed_answer(place=0.5), "the place 0.5"),
    (changed_answer(seconds=float("nan")), "the time nan"), (changed_answer(seconds=-1), "the time -1"),
    (lambda file: file["sessions"][0]["answers"].append(file["sessions"][0]["answers"][0]), "at most 8 answers"),
    (lambda file: file["sessions"][0]["answers"].__setitem__(1, file["sessions"][0]["answers"][0]), "answered twice"),
])
def test_what_no_test_page_writes_is_refused_in_a_sentence(world: Workspace, change: Callable[[dict[str, Any]], None],
                                                           message: str) -> None:
    folder = world.runs / "foreign"
    test = listening.read_test(folder) if folder.exists() else make_test(world, "foreign", kind="preference")[1]
    file = sessions(test, lambda _: {"preference": "A"})
    change(file)
    with pytest.raises(UserError, match=message) as caught:
        add(world, file)
    assert caught.value.hint
    assert len(caught.value.message) < 250
    assert "\n" not in caught.value.message
    assert not (folder / listening.ANSWERS).exists()


@pytest.mark.parametrize("content", [
    b"", b"[" * 100_000, b"\xff\xfe", b'{"format": 1e999}', b"x" * (listening.FILE_BYTES + 1)])
def test_bytes_that_are_no_answers_are_refused(world: Workspace, content: bytes) -> None:
    with pytest.raises(UserError):
        listening.add_answers(world, content, "answers.json")


@pytest.mark.parametrize(("options", "message"), [
    ({"evaluation": "none"}, "none"), ({"language": "fr"}, "no clips in French"),
    ({"models": ("base:other",)}, "no clips of base:other"), ({"kind": "abx", "models": (BASE,)}, "compares 1 models"),
    ({"models": ("recordings",)}, "compares 0 models"), ({"count": 3}, "4 conditions"),
])
def test_a_test_that_cannot_be_made_is_refused(world: Workspace, options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_test(world, f"refused-{abs(hash(message))}", **options)


def test_the_command_line_imports_and_the_reports_have_the_results(tmp_path: Path,
                                                                   capsys: pytest.CaptureFixture[str]) -> None:
    workspace = evaluated_world(tmp_path / "w", 4, 0.2)
    where = ["--workspace", str(workspace.path)]
    assert script.main(["--evaluation", EVALUATION, "--kind", "rating", *where, "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out.splitlines()[-1])
    test = listening.read_test(Path(outcome["directory"]))
    name = "<script>alert(1)</script>|`x`"
    values = {BASE: (2, 2), RUN: (4, 4), REFERENCE: (5, 5), ANCHOR: (1, 2)}
    file = tmp_path / "answers.json"
    file.write_text(json.dumps(sessions(test, rate(values), name)), encoding="utf-8")
    assert script.main(["import", str(file), str(file), *where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["added"] == 4
    folder = workspace.runs / EVALUATION
    result = evaluation_report.read(folder).listening[0]
    assert {(one.question, one.first): one.value for one in result.scores}["naturalness", RUN] == 4.0
    assert result.listeners[0].name == name
    html, text = ((folder / file).read_text(encoding="utf-8") for file in evaluation_report.FILES[::-1][:2])
    for shown in (html, text):
        assert "Listening test, Amharic" in shown
        assert "<script>" not in shown
        assert "run:&lt;b&gt;first&lt;/b&gt;" in shown
        assert "4.00 (4.00 to 4.00)" in shown
    assert r"\|\`x\`" in text
    assert html.count("<h2>Listening test") == 1
    assert script.main(["results", EVALUATION, *where]) == 0  # written again, in its place
    assert (folder / evaluation_report.HTML).read_text(encoding="utf-8") == html
    assert "4.00 (4.00 to 4.00)" in capsys.readouterr().out
    assert listening.results(workspace, EVALUATION) == evaluation_report.read(folder).listening
    file.write_text("{}", encoding="utf-8")
    assert script.main(["import", str(file), *where]) == 2
    assert "holds no answers of a listening test" in capsys.readouterr().err


def test_a_share_is_shown_with_both_intervals() -> None:
    score = ListeningScore("preference", BASE, RUN, 0.75, 0.5, 0.9, 16, 0, (0.4762, 0.9273), 0.0768)
    assert evaluation_report.show_score(score) == "75.0% (50.0% to 90.0%), exact 47.6% to 92.7%, p = 0.077"
