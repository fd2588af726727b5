"""What the page says of jobs: words, numbers, curves, clips. All of it pure, and all of it escaped."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from config.errors import UserError
from core.dataset.clip_index import Histogram
from core.jobs.events import AudioGenerated, Evaluated, Finished, Progress, SampleGenerated, Stage, Step
from core.jobs.job import Job
from core.jobs.reporter import duration_text
from core.jobs.state import JobState, Status
from core.jobs.verbs import SYNTHESIS_VERBS, VERBS
from core.library.catalog import find_entry
from core.library.certificate import Certificate, CertificateCheck, LanguageCER
from core.workspace import Workspace
from ui import (
    certificate,
    charts,
    comparison_views,
    job_views,
    jobs,
    listen,
    media,
    model,
    records,
    run_views,
    train,
    voice_settings,
)
from ui.live import View
from ui.markup import Html, element, join, table


def job(verb: str = "train", **settings: object) -> Job:
    return Job(Path("/w/runs/train-1"), verb, "cpu", (), 1.0, settings)


def steps(count: int) -> tuple[Step, ...]:
    return tuple(Step(number, 100, 4 / number, 2.0, {"rows": 1e-3}, 0.5, 900.0, number * 0.5, 10.0)
                 for number in range(1, count + 1))


def test_text_is_escaped_unless_it_is_html() -> None:
    assert element("p", "<b>", Html("<i>x</i>"), class_="a\"b") == '<p class="a&quot;b">&lt;b&gt;<i>x</i></p>'
    assert join(["<", Html("<br>")]) == "&lt;<br>"
    assert "&lt;script&gt;" in job_views.fault("<script>", "do not")


def test_what_is_marked_as_code_is_code_on_the_page() -> None:
    shown = "give <code>am</code>, or <code>&lt;b&gt;</code>"
    for view in (job_views.fault("No.", "give `am`, or `<b>`"), job_views.notice("give `am`, or `<b>`"),
                 job_views.warnings(["give `am`, or `<b>`"]), job_views.plan(["give `am`, or `<b>`"]),
                 job_views.failure(JobState(job(), "failed", message="No.", hint="give `am`, or `<b>`"))):
        assert shown in view
    assert "such as <code>checkpoints</code> of" in model.family_card(find_entry("indextts2"), ())


def test_cells_carry_the_name_of_their_column() -> None:
    assert '<td data-name="Size">9</td>' in table(("Size",), [(9,)])


@pytest.mark.parametrize(("seconds", "words"), [
    (0.4, "0 s"), (59.6, "1 min"), (200, "3 min 20 s"), (599.4, "9 min 59 s"), (599.6, "10 min"),
    (840, "14 min"), (45.61 * 60, "46 min"), (22.8 * 60, "23 min"), (59.6 * 60, "1 h"),
    (7500, "2 h 5 min"), (None, "unknown"), (math.inf, "unknown"),
])
def test_durations_in_words(seconds: float | None, words: str) -> None:
    assert duration_text(seconds) == words


def test_what_was_not_measured_is_a_dash() -> None:
    assert job_views.percent(None) == job_views.percent(math.nan) == "–"
    assert job_views.percent(0.184) == "18.4%"


def test_progress_is_never_invented() -> None:
    unknown = JobState(job(), "running", progress=Progress(12, None, "clips"))
    assert job_views.progress_share(unknown) is None
    assert "unknown" in job_views.bar(unknown)
    assert job_views.progress_text(Progress(3_200_000, 9_000_000, "bytes", "t3")) == "3.2 MB of 9.0 MB t3"


def test_a_certificate_in_the_making_is_not_shown_as_training() -> None:
    state = JobState(replace(job(), verb="certify", settings={"run": "run:quick"}), "running",
                     stages=(Stage("certificate"),), progress=Progress(18, 40, "English sentences", "spoken and heard"),
                     eta_s=12.0)
    assert job_views.status_line(state) == (
        "Computing certificate, 18 of 40 English sentences spoken and heard, about 12 s left")
    assert job_views.progress_share(state) == 18 / 40
    assert "Compute certificate" in job_views.chain_view([state])
    assert "Practise speaking" not in job_views.job_card(state)


def test_samples_between_steps_leave_the_bar_at_the_step() -> None:
    state = JobState(job(), "running", steps=steps(50), progress=Progress(3, 20, "Amharic sentences"))
    assert job_views.progress_share(state) == 0.5


def test_a_training_that_its_time_limit_ended_is_not_shown_as_whole() -> None:
    state = JobState(job(), "finished", steps=steps(50), started_at=0.0, ended_at=120.0)
    assert job_views.ended_by_time_limit(state) == (50, 100)
    for shown in (job_views.job_card(state), job_views.chain_view([state])):
        assert "Time limit reached at step 50 of 100. Took 2 min." in shown
        assert "width:50.0%" in shown
    assert job_views.progress_share(JobState(job(), "finished", steps=steps(100))) == 1.0


def test_a_failure_shows_message_hint_and_traceback() -> None:
    state = JobState(job(), "failed", message="The disk is full.", hint="Free some space.", traceback="line 7",
                     exit_code=1)
    shown = job_views.job_card(state)
    for part in ("The disk is full.", "Free some space.", "line 7", "failed"):
        assert part in shown
    assert "Exit code" not in shown


def test_what_a_failure_kept_from_beginning_is_grey_and_its_reason_is_told_once() -> None:
    first = JobState(job("tokenizer"), "failed", message="No text.", hint="Give some.", exit_code=1)
    later = [JobState(job(verb), "skipped", message="tokenizer-1 failed.") for verb in ("extend", "train")]
    shown = job_views.chain_view([first, *later])
    assert shown.count("tokenizer-1 failed.") == 1
    assert (shown.count("link bad"), shown.count("link wait"), shown.count("not started")) == (1, 2, 2)
    assert 'class="notice bad"' not in job_views.job_card(later[0])


def test_the_queue_names_its_devices_and_an_empty_one_says_so() -> None:
    assert "No job is running" in job_views.queue_view([])
    assert "On the CPU" in job_views.queue_view([JobState(job(), "running")])


def test_a_long_series_is_thinned_and_keeps_its_last_point() -> None:
    points = [(float(x), float(x)) for x in range(100_000)]
    thinned = charts.thin(points)
    assert len(thinned) <= 240
    assert thinned[-1] == points[-1]


def test_smoothing_starts_at_the_first_value() -> None:
    assert charts.smooth([(1, 5.0), (2, 5.0)]) == [(1, pytest.approx(5.0)), (2, pytest.approx(5.0))]


@pytest.mark.parametrize("percent", [False, True])
def test_labels_of_an_axis_differ_and_equal_its_ticks(percent: bool) -> None:
    random = Random(1)
    for _ in range(3000):
        low = random.choice((0.0, random.uniform(-1, 1) * 10.0 ** random.randint(-12, 9)))
        marks = charts.ticks(low, low + max(abs(low) * 1e-6, 10.0 ** random.uniform(-12, 9)))
        labels = charts.tick_labels(marks, percent)
        assert len(set(labels)) == len(marks)
        values = [float(label.rstrip("%")) / (100 if percent else 1) for label in labels]
        assert values == pytest.approx(marks, rel=1e-12, abs=0)


def test_a_histogram_prints_its_ticks_and_edges_with_the_digits_of_their_steps() -> None:
    drawn = charts.histogram(Histogram("Silence", "s", 0.0, 0.2, 0.067, (3,) * 24))
    assert re.findall(r'class="x-label"[^>]*>([^<]*)<', drawn) == ["0", "0.05", "0.1", "0.15", "0.2"]
    edges = re.findall(r"<title>(\S+) to (\S+) s", drawn)
    assert all(float(low) < float(high) for low, high in edges)


def test_ticks_are_round_and_inside() -> None:
    assert charts.ticks(0.0, 1.0) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert charts.ticks(3.0, 3.0) == [3.0]


def test_a_long_unbroken_text_is_cut_and_its_cost_is_said_before() -> None:
    text = "ሀ" * 20_000
    made = (AudioGenerated("base", 0, "a.wav", text, "am", 1.5, 0.4, 0.9, text, "a.png", "It reads " + "ha" * 20_000),)
    state = JobState(job("compare", texts=[["am", text]]), "finished", audio=made, started_at=0.0, ended_at=1.0)
    shown = comparison_views.comparison(state, {})
    assert "ሀ" * 240 + "..." in shown
    assert len(shown) < 5000
    notice = comparison_views.length_notice(text, [state])
    for part in ("20,000 characters: about 250 chunks", "both models take about 0 s", "One word has 20,000 characters"):
        assert part in notice
    assert comparison_views.length_notice("ሰላም", [state]) == ""
    assert "both models" not in comparison_views.length_notice("ሰላም " * 200, [])


def test_the_two_figures_before_training_are_told_apart() -> None:
    notes = ("The base model has no 'am': it reads the romanised spelling 'selam' as 'en'.", "")
    made = tuple(AudioGenerated(side, index, "a.wav", "ሰላም", "am", 1.5, 0.4, 0.2, "ሰላ", "a.png", note)
                 for index in (0, 1) for side, note in zip(("base", "finetuned"), notes, strict=True))
    state = JobState(job("compare", texts=[["am", "ሰላም"]] * 2), "finished", audio=made)
    shown = comparison_views.comparison(state, {})
    assert shown.count(comparison_views.ROMANISED_BASELINE) == 1  # said once, not under each of six sentences
    assert shown.count("it reads the romanised spelling") == 2
    check = CertificateCheck("character_error_rates", "measured", "", "am 15.5%", "What was heard.")
    proof = Certificate("run:a@1", "a", 1, "gated", "tiny", "tiny-am", "b", "f", 1.0, (check,),
                        (LanguageCER("am", True, 40, 0.739, 0.155, 0.0),))
    shown = certificate.certificate_view(proof)
    assert certificate.UNTRAINED_BASELINE in shown
    assert "before </span>" not in shown  # nothing stood there before


def test_a_failure_is_told_once() -> None:
    state = JobState(job(), "failed", message="The disk is full.", hint="Free some space.", exit_code=1)
    assert job_views.job_card(state).count("The disk is full.") == 1
    assert job_views.chain_view([state]).count("The disk is full.") == 1


@pytest.mark.parametrize(("name", "value", "told"), [
    ("error_am_recordings", 0.0, ("CER, Amharic, original recordings", "0.0%")),
    ("error_am_before", 0.739, ("CER, Amharic, before", "73.9%")),
    ("error_am_base", 0.5, ("CER, Amharic, base", "50.0%")),
    ("error_am_finetuned", 0.25, ("CER, Amharic, finetuned", "25.0%")),
    ("error_am", None, ("CER, Amharic", "not measured")),
    ("megabytes", 24.13, ("Size", "24.1 MB")), ("held_out", 40, ("Held-out clips", "40")),
    ("overridden", "", ("Overridden", "none")),
    ("old_rows_equal", True, ("Base rows unchanged", "yes")), ("tokens_added", 1081, ("Tokens added", "1,081")),
])
def test_results_have_names_and_units(name: str, value: object, told: tuple[str, str]) -> None:
    assert job_views.result_fact(name, value) == told


def test_the_queue_says_each_jobs_place() -> None:
    shown = job_views.queue_view([JobState(job(), "running"),
                                  JobState(job("compare"), "waiting", reason="Waiting for cpu.")])
    assert '<td data-name="Position">2</td>' in shown


def test_a_run_that_was_deleted_is_said_to_be_gone() -> None:
    other = JobState(job(), "finished")
    view = View("train", {"run": "train-0"}, (other,))
    assert train.selected_run(view) is None
    assert "Job train-0 was deleted" in train.status_view(view)
    assert train.selected_run(View("train", {"run": ""}, (other,))) is other


@pytest.mark.parametrize(("field", "shown", "choices"), [
    ("job", jobs.job_detail, jobs.job_choices), ("pair", listen.status_view, listen.pair_choices),
    ("run", train.status_view, train.run_choices)])
def test_no_other_job_is_shown_in_the_place_of_one_that_was_deleted(
        field: str, shown: Callable[[View], str], choices: Callable[[View], dict[str, object]]) -> None:
    view = View("any", {field: "gone-1"}, (JobState(job(), "finished"), JobState(job("compare"), "finished")))
    assert "Job gone-1 was deleted" in shown(view)
    offered = choices(view)
    assert offered["value"] == "gone-1"
    assert offered["choices"][0] == ("gone-1 (deleted)", "gone-1")  # type: ignore[index]


def test_a_chart_without_points_says_that_nothing_was_measured() -> None:
    assert "Nothing measured yet" in charts.chart("Loss", [charts.Series("speech", [])])


def test_a_chart_survives_values_that_are_not_numbers() -> None:
    drawn = charts.chart("Loss", [charts.Series("speech", [(1, math.nan), (2, 1.0), (3, 2.0)])])
    assert "nan" not in drawn


def test_a_run_is_shown_with_its_numbers_curves_and_samples() -> None:
    state = JobState(
        job(), "running", steps=steps(50), evaluations=(Evaluated(50, 1.2, {"am": 0.3}),),
        samples=(SampleGenerated(50, "am", "ሰላም", "samples/50.ogg", 0.3),),
    )
    assert "50 of 100" in run_views.run_numbers(state)
    assert "polyline" in run_views.run_curves(state)
    samples = train.samples_view(View("train", {"run": ""}, (state,)))
    assert 'data-sound="media/runs/train-1/samples/50.ogg"' in samples
    assert "CER 30%" in samples


def comparison() -> JobState:
    made = tuple(AudioGenerated(side, 0, f"audio/0-{side}.ogg", "ሰላም", "am", 1.5, 0.4, error, "ሰላ",
                                f"audio/0-{side}.png")
                 for side, error in (("base", 0.9), ("finetuned", 0.2)))
    asked = job("compare", texts=[["am", "ሰላም"]], base="base:tiny", finetuned="run:one")
    return JobState(asked, "finished", audio=made, result={"error_am_recordings": 0.02})


def test_a_comparison_shows_each_error_beside_the_one_on_recordings() -> None:
    state = comparison()
    shown = comparison_views.comparison(state, records.originals(state))
    assert "CER 90%" in shown
    assert "CER 20%" in shown
    assert shown.count("original recordings: CER 2.0%") == 2
    assert "Before" in shown
    assert "run one" in shown


def test_a_judge_that_is_gone_is_told_under_the_clip_and_above_them() -> None:
    asked, reason = job("synthesize", text="ሰላም", language="am", voice_model="run:one"), "the recogniser me/ear is gone"
    made = (AudioGenerated("speech", 0, "audio/speech.wav", "ሰላም", "am", 1.5, 0.4, None, "", "a.png", "", reason),)
    state = JobState(asked, "finished", audio=made, warnings=("Amharic is not measured: put it back.",))
    shown = comparison_views.comparison(state, {})
    assert f"Not measured: {reason}." in shown
    assert "No recogniser (ASR) for this language" not in shown
    chosen = {"pair": asked.id, "blind": "False"}
    assert "put it back" in listen.status_view(View("listen", chosen, (state,)))
    assert "put it back" not in listen.status_view(View("listen", {**chosen, "blind": "True"}, (state,)))


def test_one_voice_is_shown_alone_and_never_blind() -> None:
    asked = job("synthesize", text="A boat.", language="en", voice_model="base:tiny")
    coming = comparison_views.comparison(JobState(asked, "running"), {}, True)
    assert coming.count("In progress.") == 1
    assert "A boat." in coming
    made = (AudioGenerated("speech", 0, "audio/speech.wav", "A boat.", "en", 1.5, 0.4, 0.1, "a boat",
                           "audio/speech.png"),)
    state = JobState(asked, "finished", audio=made, started_at=0.0, ended_at=1.0, result={"recordings_cer": 0.025})
    shown = comparison_views.comparison(state, records.originals(state), True)
    for part in ("<strong>Speech</strong>", "Built-in tiny model", "CER 10%", "original recordings: CER 2.5%"):
        assert part in shown
    assert "one model takes" in comparison_views.length_notice("A boat. " * 60, [state])


def test_blind_mode_hides_names_and_scores_until_the_vote() -> None:
    state = comparison()
    hidden = comparison_views.comparison(state, {}, True)
    for telling in ("Before", "After", "run one", "CER", "Transcript"):
        assert telling not in hidden
    assert "Sample A" in hidden
    assert "CER" in comparison_views.comparison(state, {}, True, frozenset({0}))


def test_the_only_clip_of_a_stopped_comparison_is_played_and_named_in_blind_mode_too() -> None:
    state = comparison()
    running = replace(state, status="running", audio=state.audio[:1])
    assert "0-base.ogg" not in comparison_views.comparison(running, {}, True)
    shown = comparison_views.comparison(replace(running, status="stopped"), {}, True)
    for part in ("0-base.ogg", "Before", "Not available"):
        assert part in shown


def test_a_clip_that_is_still_to_come_is_shown_as_coming() -> None:
    state = JobState(job("compare", texts=[["am", "ሰላም"]], base="base:tiny", finetuned="run:one"), "running")
    assert comparison_views.comparison(state, {}).count("In progress.") == 2


def test_the_order_of_a_blind_pair_is_the_same_after_a_reload_and_not_always_the_same() -> None:
    assert comparison_views.blind_order("a", 0) == comparison_views.blind_order("a", 0)
    assert {comparison_views.blind_order("a", index) for index in range(20)} == {("base", "finetuned"),
                                                                                 ("finetuned", "base")}


def test_a_vote_before_the_dropdown_has_its_value_is_for_the_comparison_that_is_shown(tmp_path: Path) -> None:
    state = comparison()
    states = [state]
    page: Any = SimpleNamespace(workspace=SimpleNamespace(path=tmp_path),
                                live=SimpleNamespace(board=SimpleNamespace(states=lambda: states)))
    [notice] = listen._vote(page, "A", None)
    [vote] = comparison_views.read_votes(tmp_path / "votes.jsonl")
    assert (vote.job, vote.finetuned) == (state.id, "run:one")
    assert "You chose A; A was " in str(notice)
    states.clear()
    with pytest.raises(UserError, match="was deleted"):
        listen._vote(page, "A", None)


def test_votes_are_kept_and_a_broken_line_counts_for_nobody(tmp_path: Path) -> None:
    path = tmp_path / "votes.jsonl"
    comparison_views.save_vote(path, comparison_views.Vote("a", 0, "am", "ሰላም", "finetuned", "run:one"))
    with open(path, "a") as file:
        file.write('{"job": "a", "ind\n')
    comparison_views.save_vote(path, comparison_views.Vote("a", 1, "am", "ውሃ", "same", "run:one"))
    kept = comparison_views.read_votes(path)
    assert [vote.choice for vote in kept] == ["finetuned", "same"]
    assert comparison_views.count_votes(kept)["am", "finetuned"] == 1
    assert "Amharic" in comparison_views.votes_view(kept, "base:tiny", "run:one")


def test_votes_on_other_models_are_not_counted_together() -> None:
    votes = [comparison_views.Vote("a", 0, "am", "ሰላም", "finetuned", "run:one", base="base:tiny"),
             comparison_views.Vote("b", 0, "am", "ሰላም", "base", "run:two", base="base:tiny"),
             comparison_views.Vote("c", 0, "am", "ሰላም", "base", "run:one", base="run:two")]
    shown = comparison_views.votes_view(votes, "base:tiny", "run:one")
    assert "base:tiny and run:one" in shown
    assert re.findall("<td[^>]*>([0-9]+)</td>", shown) == ["1", "0", "0"]
    assert comparison_views.votes_view(votes[1:], "base:tiny", "run:one") == ""


def test_a_blind_comparison_ends_with_the_clip_to_vote_on() -> None:
    settings = {"base": "base:tiny", "finetuned": "run:one", "texts": [["am", str(index)] for index in range(30)]}
    audio = tuple(AudioGenerated(side, index, f"audio/{index}-{side}.ogg", str(index), "am", 1.0, 0.5)
                  for index in range(30) for side in ("base", "finetuned"))
    state = JobState(job("compare", **settings), "finished", audio=audio)
    for votes, last in ((0, 0), (2, 2), (28, 28), (30, 23)):
        voted = frozenset(range(votes))
        shown = [int(one) for one in re.findall('data-index="([0-9]+)"', comparison_views.comparison(
            state, {}, True, voted))]
        assert shown[-1] == last
        assert comparison_views.open_question(state, voted) in (last, None)
        assert len(shown) <= 24
    assert "Clip 3 of 30" in comparison_views.comparison(state, {}, True, frozenset((0, 1)))
    assert "Clip" not in comparison_views.comparison(state, {}, True, frozenset(range(29)))
    running = replace(state, status="running", audio=audio[:3])
    assert re.findall('data-index="([0-9]+)"', comparison_views.comparison(running, {}, True, frozenset((0,)))) == \
        ["0", "1"]


@pytest.mark.parametrize("asked", [
    "runs/one/config.yaml", "runs/one/output.log", "runs/one/checkpoints/rows.safetensors",
    "runs/one/audio/x.safetensors", "runs/one/audio/../config.yaml", "runs/../runs/one/audio/a.ogg",
    "runs/one/audio/.hidden.ogg", "runs//audio/a.ogg", "models/tiny/audio/a.ogg", "/etc/passwd",
    "runs/one/audio/away.ogg", "runs/one/audio/missing.ogg",
])
def test_the_page_serves_no_other_file(tmp_path: Path, asked: str) -> None:
    workspace = Workspace.open(tmp_path / "w")
    audio = workspace.runs / "one" / "audio"
    audio.mkdir(parents=True)
    (workspace.runs / "one" / "config.yaml").write_text("x")
    (workspace.runs / "one" / "output.log").write_text("x")
    (audio / "x.safetensors").write_text("x")
    (audio / ".hidden.ogg").write_text("x")
    (tmp_path / "secret.ogg").write_text("x")
    (audio / "away.ogg").symlink_to(tmp_path / "secret.ogg")
    assert media.resolve(workspace, asked) is None


def test_the_page_serves_sound_and_pictures_of_runs(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "w")
    (workspace.runs / "one" / "audio").mkdir(parents=True)
    path = workspace.runs / "one" / "audio" / "0 base.png"
    path.write_text("x")
    assert media.url("runs", "one", "audio/0 base.png") == "media/runs/one/audio/0%20base.png"
    assert media.resolve(workspace, "runs/one/audio/0 base.png") == path.resolve()


def test_while_it_is_heard_blind_no_address_says_which_side_it_is_of(workspace: Workspace) -> None:
    made = tuple(AudioGenerated(side, 0, f"audio/000-{side}.wav", "ሰላም", "am", 1.5, 0.4, 0.2, "",
                                f"audio/000-{side}.png")
                 for side in ("base", "finetuned"))
    state = JobState(job("compare", texts=[["am", "ሰላም"]]), "finished", audio=made)
    audio = workspace.runs / state.id / "audio"
    audio.mkdir(parents=True)
    for clip in made:
        (workspace.runs / state.id / clip.path).write_text(clip.side)
    shown = comparison_views.comparison(state, {}, True)
    assert "base" not in shown
    assert "finetuned" not in shown
    addresses = re.findall(r'<audio [^>]*src="media/([^"]+)"', shown)
    served = [path.read_text() for address in addresses if (path := media.resolve(workspace, address)) is not None]
    assert sorted(served) == ["base", "finetuned"]
    assert served == list(comparison_views.blind_order(state.id, 0))
    assert media.resolve(workspace, f"covered/{state.id}/0123456789abcdef.wav") is None
    assert "000-base.wav" in comparison_views.comparison(state, {}, True, frozenset({0}))


def test_an_export_tells_its_place_and_what_failed_and_counts_its_checks() -> None:
    result = {"export": "mine", "path": "exports/mine", "ref": "export:mine", "run": "first", "step": 800, "files": 12,
              "overridden": "prefix_rows", "error_am": 0.162, "prefix_rows": "failed", "base_logits": "passed"}
    shown = certificate.exported_view(result)
    for part in ("exports/mine", "export mine", "800", "CER, Amharic", "16.2%",
                 "1 passed, 1 failed, overridden (Embeddings of the old languages)"):
        assert part in shown
    assert shown.count("exports/mine") == 1
    passed = {**result, "prefix_rows": "passed"}
    assert ">2 passed, 1 measured<" in certificate.exported_view({**passed, "character_error_rates": "measured"})
    assert "2 passed, 1 not proven (Old languages compared)" in certificate.exported_view(
        {**passed, "base_languages": "not proven"})


def test_a_result_is_shown_as_it_was_reported() -> None:
    shown = job_views.result_facts(Finished({"new_rows": 81, "old_rows_equal": True, "error": None}).result)
    for part in ("New rows", "81", "yes", "not measured"):
        assert part in shown


def test_what_never_began_gives_way_to_older_results_and_what_runs_to_what_waits() -> None:
    older, failed, waits, runs = (JobState(job(), status) for status in (
        "finished", "skipped", "waiting", "running"))
    assert View("train", {}, (failed, older)).newest("train") == older
    assert View("train", {}, (failed,)).newest("train") == failed
    assert View("train", {}, (waits, runs, older)).newest("train") == runs
    assert View("train", {}, (waits, older)).newest("train") == waits


def test_a_training_stopped_before_its_first_step_is_not_the_one_to_show() -> None:
    older, empty, failed = (JobState(job(), status) for status in ("finished", "stopped", "failed"))
    stopped = JobState(job(), "stopped", steps=steps(1))
    assert View("train", {}, (empty, older)).newest("train") == older
    assert View("train", {}, (empty,)).newest("train") == empty
    for shown in (stopped, failed):
        assert View("train", {}, (empty, shown, older)).newest("train") == shown


@pytest.mark.parametrize("silent", ["stopped", "failed", "crashed", "skipped"])
def test_listen_opens_on_the_newest_comparison_that_can_be_heard(silent: Status) -> None:
    heard, stopped = comparison(), replace(comparison(), status="stopped")
    nothing = JobState(job("compare"), silent)
    assert View("listen", {}, (nothing, stopped, heard)).newest(*SYNTHESIS_VERBS) == stopped
    assert View("listen", {}, (nothing, heard)).newest(*SYNTHESIS_VERBS) == heard
    assert View("listen", {}, (nothing,)).newest(*SYNTHESIS_VERBS) == nothing


def test_what_was_stopped_while_it_waited_gives_way_to_what_began() -> None:
    waited, began = (JobState(job("export"), "stopped", started_at=at) for at in (None, 1.0))
    assert View("certificate", {}, (waited, began)).newest("export") == began


def test_what_was_spoken_is_known_by_when_what_and_who() -> None:
    run = JobState(job(extension="tiny-am", dataset="mine"), "finished")
    asked = {"base": "base:tiny", "finetuned": f"run:{run.id}@700"}
    own = JobState(replace(job("compare", **asked, texts=(("am", "ሰላም"), ("en", "Hello"))),
                           directory=Path("/w/runs/compare-20260101-101010-abcd")), "finished")
    chosen_by_itself = replace(own, job=replace(own.job, settings=asked))
    heard = replace(chosen_by_itself, audio=(AudioGenerated("base", 0, "a.wav", "ቡና", "am", 1.0, 1.0),))
    alone = JobState(job("synthesize", voice_model="base:tiny", language="en", text="Hello"), "finished")
    view = View("listen", {"pair": ""}, (own, run))
    for state, title in ((own, "ሰላም and 1 more, tiny-am on mine"), (heard, "ቡና, tiny-am on mine"),
                         (chosen_by_itself, "a sentence per language, tiny-am on mine"),
                         (alone, "Hello, Built-in tiny model")):
        told = voice_settings.pair_title(view, state)
        assert told.endswith(f"  {title}")
        assert "abcd" not in told


def test_what_is_heard_blind_is_so_until_somebody_uncovers_it(tmp_path: Path) -> None:
    path = tmp_path / "votes.jsonl"
    assert not comparison_views.is_blind(path, "a")
    comparison_views.set_blind(path, "a")
    comparison_views.save_vote(path, comparison_views.Vote("b", 0, "am", "ሰላም", "same", "run:one"))
    assert [comparison_views.is_blind(path, job) for job in "ab"] == [True, False]
    comparison_views.set_blind(path, "a", on=False)
    assert not comparison_views.is_blind(path, "a")
    assert [vote.job for vote in comparison_views.read_votes(path)] == ["b"]


def test_a_time_limit_is_told_with_the_step_that_it_leads_to() -> None:
    told = tuple(replace(step, total_steps=800) for step in steps(50))  # 25 s for 50 steps: a minute for 120
    short = JobState(job(max_minutes=1.0), "running", steps=told, stages=(Stage("train"),),
                     progress=Progress(50, 800, "steps"), eta_s=35.0)
    assert "about 35 s left until the time limit, at about step 120" in job_views.status_line(short)
    assert job_views.progress_share(short) == 50 / 120
    assert "time limit" not in job_views.status_line(replace(short, eta_s=20.0))  # all its steps take less than is left
    assert job_views.progress_share(replace(short, eta_s=20.0)) == 50 / 800
    assert "time limit" not in job_views.status_line(replace(short, job=job()))


@pytest.mark.parametrize(("given", "shown"), [
    ("or accept them as they are (--any-script).", "or accept them as they are (“Accept any script”)."),
    ("with --add-to mine it will hold both.", "with “Add to”: mine it will hold both."),
    ("Start a new run: python -m scripts train --init-from run:x@400. Nothing was changed.",
     "Start a new run: Train tab, “Initialise from run”: run:x@400. Nothing was changed."),
    ("Give one: --text TEXT.", "Give one: “Text”."),
    ("Leave --folder and --save-as out.", "Leave “Folder” and “Name in the workspace” out."),
    ("pip install --no-deps -r x", "pip install --no-deps -r x"),
    ("Read them, then accept them (--accept-licence A --accept-licence B-1.0; on the page: tick the box).",
     "Read them, then accept them (tick the box)."),
    ("Give --models base:tiny --models run:ID.", "Give “Models”: base:tiny, “Models”: run:ID."),
    ("Get it first: Model tab, or python -m scripts download.", "Get it first: Model tab."),
    ("It is there: Storage tab, or python -m scripts storage restore model:v2.1.",
     "It is there: Storage tab (under System)."),
    ("cut it: Long recordings on the Data tab, or python -m scripts segment and python -m scripts transcribe.",
     "cut it: Long recordings on the Data tab."),
    ("Evaluate again: python -m scripts evaluate. Or wait.", "Evaluate again: the Listen tab. Or wait."),
    ("with --max-clip-s 10 (python -m scripts segment or python -m scripts align; on the page: Long recordings), and "
     "prepare those.",
     "with “Maximum clip length (s)”: 10 (Long recordings), and prepare those."),
    ("Get it again: python -m scripts download --model tiny --save-as mine",
     "Get it again: Model tab, “Model”: tiny, “Name in the workspace”: mine"),
])
def test_hints_on_the_page_name_fields_not_flags(given: str, shown: str) -> None:
    assert job_views.on_page(given) == shown
    assert shown in str(job_views.fault("No.", given))


def hints() -> Iterator[tuple[str, str]]:
    """Place and text of every string of the packages below the page that names a flag of a field, or a command."""
    root = Path(job_views.__file__).parents[1]
    for path in sorted(path for package in ("config", "core", "data") for path in (root / package).rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        inner = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        inner |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr | ast.Constant) and node not in inner and path.name != "verbs.py":
                parts = node.values if isinstance(node, ast.JoinedStr) else [node]
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "mine" for part in parts)
                if re.search(r"--[a-z]{3}|\bscripts [a-z]", text):
                    yield f"{path.relative_to(root)}:{node.lineno}", text


def test_no_hint_of_the_source_shows_a_flag_or_command_of_a_field_on_the_page() -> None:
    found = list(hints())
    assert len(found) > 60
    for where, text in found:
        shown = job_views.on_page(text)
        assert not [flag for flag in re.findall(r"--[a-z][\w-]*", shown) if flag in job_views._titles_of_flags()], (
            where, shown)
        assert not [verb for verb in re.findall(r"-m scripts (\w+)", shown) if verb in VERBS], (where, shown)
        assert not re.search(r"tab, or (the|python)|” “|“[^”]*”: “|; on the page", shown), (where, shown)
