"""The command line: flags from the schema and back, exit codes, the JSON line."""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from config import schema
from config.arguments import add_arguments, flags, given_values, to_arguments
from config.errors import ErrorKind, UserError
from config.loading import parse_options
from config.schema import Options, TrainOptions
from core.jobs import control, worker
from core.jobs.events import CheckpointSaved, Journal, Skipped, append_event
from core.jobs.job import create_job, load_job
from core.jobs.state import JobBoard
from core.jobs.verbs import VERBS
from core.submission import jobs
from core.workspace import Workspace
from data import manifest
from scripts import command, pin_checkpoint, review, rules
from scripts import jobs as scripts_jobs
from scripts.command import USAGE_ERROR
from tests.unit import fake_verbs
from tests.unit.live_jobs import PATIENCE_S, running, train, until
from ui import form

ROOT = Path(__file__).parents[3]
CHANGED = [
    parse_options(TrainOptions, {"steps": 5, "scope": "rows", "row_lr": 1e-4, "device": "cpu"}),
    schema.TokenizerOptions(part="merge", merges=40, algorithm="sentencepiece"),
    schema.SynthesizeOptions(text="it's 5% off", sampling=schema.SamplingOptions(temperature=0.0, seed=7)),
    schema.CompareOptions(texts=(("am", "ሰላም ዓለም"), ("en", "--hello"[2:])), finetuned="run:x@5"),
]


def parse(arguments: list[str], model: type[Options]) -> Options:
    parser = argparse.ArgumentParser()
    add_arguments(parser, model)
    return parse_options(model, given_values(parser.parse_args(arguments), model))


@pytest.mark.parametrize("verb", VERBS)
def test_every_field_of_every_verb_is_one_flag_with_help(verb: str):
    all_flags = list(flags(VERBS[verb].options))
    assert len({flag.name for flag in all_flags}) == len(all_flags)
    text = " ".join(command.build_parser(verb).format_help().split())
    for flag in all_flags:
        assert (flag.path[-1] if flag.positional else flag.name) in text
    required = ["--segments", "talks", "--language", "sw"] if verb in ("segment", "align") else []
    options = parse(required, VERBS[verb].options)
    if not required:
        assert options == VERBS[verb].options()
    demo = ["--dataset", "amharic-demo", "--language", "am"]  # any other source is given its own
    assert to_arguments(options) == (demo if verb == "prepare" else required)


@pytest.mark.parametrize("options", CHANGED, ids=lambda options: type(options).__name__)
def test_the_command_shown_gives_the_same_options(options: Options):
    assert parse(to_arguments(options), type(options)) == options


def test_the_arguments_are_those_that_differ_from_the_defaults():
    assert to_arguments(CHANGED[2]) == ["--text", "it's 5% off", "--temperature", "0.0", "--seed", "7"]


@pytest.mark.parametrize(("given", "value"), [("0,3", 0.3), (",25", 0.25), ("0,125", 0.125), ("0.3", 0.3)])
def test_a_decimal_comma_is_a_point(given: str, value: float):
    assert parse(["--held-out", given], schema.PrepareOptions).held_out == value  # type: ignore[attr-defined]
    assert form.parse(schema.PrepareOptions, {"held_out": given}).held_out == value
    sampling = parse(["--text", "one, two", "--temperature", given], schema.SynthesizeOptions)
    assert (sampling.sampling.temperature, sampling.text) == (value, "one, two")  # type: ignore[attr-defined]


def test_a_thousands_comma_is_no_point():
    with pytest.raises(UserError, match="'1,500'"):
        parse(["--max-minutes", "1,500"], TrainOptions)


@pytest.fixture
def fake_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """`train` runs the fake verb of `fake_verbs`, whose extensions are not on the disk; every certificate passes."""
    monkeypatch.setattr(worker, "import_work", lambda name: fake_verbs.train if name == "train" else (
        lambda *_given: {"certificate": "passed"}))
    monkeypatch.setattr(jobs, "check_requirements", lambda *_asked: ())


def invoke(workspace: Workspace, *arguments: str) -> int:
    return command.run_verb("train", ["--workspace", str(workspace.path), "--device", "cpu", "--dataset", "mine",
                                        *arguments])


@pytest.mark.usefixtures("fake_train")
def test_a_run_is_a_job_of_the_workspace_and_ends_with_a_json_line(workspace: Workspace,
                                                                   capsys: pytest.CaptureFixture[str]):
    assert invoke(workspace, "--extension", "quick", "--steps", "3", "--name", "mine", "--json") == 0
    said = capsys.readouterr().out.splitlines()
    assert "step 3/3  speech loss 1.0000  text loss 2.0000  100 tokens/s" in said
    outcome = json.loads(said[-1])
    assert (outcome["job"], outcome["status"], outcome["result"]) == (
        "mine", "finished", {"steps": 3, "certificate": "passed"})
    assert control.read_state(load_job(workspace, "mine")).status == "finished"
    assert "step 3/3" in control.log_tail(load_job(workspace, "mine"))
    assert invoke(workspace, "--extension", "quick", "--name", "unproven", "--no-certificate") == 0
    assert [(state.job.settings["run"], state.job.after) for state in JobBoard(workspace).states()
            if state.verb == "certify"] == [("run:mine", ("mine",))]


@pytest.mark.usefixtures("fake_train")
def test_a_run_without_certificate_stays_so_when_it_is_resumed(workspace: Workspace, monkeypatch: pytest.MonkeyPatch):
    assert invoke(workspace, "--extension", "wrong", "--name", "one", "--no-certificate") == 1
    assert invoke(workspace, "--extension", "wrong", "--name", "two") == 1
    certified = list[str]()
    monkeypatch.setattr(command, "run_job", lambda job, **options: 0)
    monkeypatch.setattr(command, "_train_and_certify", lambda job, **options: certified.append(job.id) or 0)
    for name in ("one", "two"):
        assert command.run_verb("train", ["--workspace", str(workspace.path), "--resume", name]) == 0
    assert certified == ["two"]


@pytest.mark.usefixtures("fake_train")
def test_a_failure_prints_what_to_do_and_no_traceback(workspace: Workspace, capsys: pytest.CaptureFixture[str]):
    for behaviour, said in (("wrong", "The clip a.wav is missing.\nPut it back."), ("buggy", "ZeroDivisionError")):
        assert invoke(workspace, "--extension", behaviour) == 1
        printed = capsys.readouterr()
        assert said in printed.err
        assert "Traceback" not in printed.err + printed.out
    [buggy] = [state for state in JobBoard(workspace).states() if state.traceback]
    assert "Traceback" in control.log_tail(buggy.job)


@pytest.mark.parametrize(("arguments", "said"), [
    (["--steps", "0", "--batch-size", "many"], ["steps", "given: 0", "batch_size", "'many'"]),
    (["--extension", "../../x"], ["extension", "'../../x' cannot be a name"]),
    (["--config", "/nonexistent.yaml"], ["/nonexistent.yaml could not be read"]),
])
def test_options_that_cannot_be_used_are_all_named(workspace: Workspace, capsys: pytest.CaptureFixture[str],
                                                   arguments: list[str], said: list[str]):
    assert invoke(workspace, *arguments) == USAGE_ERROR
    printed = capsys.readouterr().err
    assert all(part in printed for part in said)
    assert workspace.list_runs() == []


def test_a_terminal_shows_no_marks_of_code(workspace: Workspace, capsys: pytest.CaptureFixture[str]):
    assert invoke(workspace, "--extension", "") == USAGE_ERROR
    assert "such as my-voice" in capsys.readouterr().err


def test_what_is_not_there_is_refused_before_a_run_is_made(workspace: Workspace, capsys: pytest.CaptureFixture[str]):
    assert invoke(workspace, "--extension", "nosuch") == USAGE_ERROR
    assert "There is no extension named 'nosuch'" in capsys.readouterr().err
    assert workspace.list_runs() == []


def test_runs_are_known_by_short_ids_and_others_are_refused_with_the_trainings(
    workspace: Workspace, capsys: pytest.CaptureFixture[str],
):
    job = train(workspace, "quick", name="train-20261126-181503-de16")
    (job.directory / "checkpoints" / "step-000005").mkdir(parents=True)
    append_event(job.journal, CheckpointSaved(5, "checkpoints/step-000005", best=True))
    prepared = create_job(workspace, "prepare", schema.PrepareOptions())
    where = ("--workspace", str(workspace.path))
    assert pin_checkpoint.main([*where, "de16", "5", "good"]) == command.DONE
    assert f"run:{job.id}@good" in capsys.readouterr().out
    assert scripts_jobs.main([*where, "rename", "de16", "first"]) == command.DONE
    for refused in (lambda: pin_checkpoint.main([*where, "nope"]),
                    lambda: command.run_verb("export", [*where, "--run", "run:nope"])):
        assert refused() == USAGE_ERROR
        printed = capsys.readouterr().err
        assert f"There is no run named 'nope' (there: {job.id})." in printed
        assert prepared.id not in printed


@pytest.mark.parametrize("script", [*VERBS, "review", "rules"])
def test_a_value_may_begin_with_a_minus(script: str):
    """Every option that takes words, in its own number of them."""
    parser = {"review": review.build_parser, "rules": rules.build_parser}.get(
        script, partial(command.build_parser, script))()
    tried = 0
    for action in parser._actions:
        if action.option_strings and action.nargs != 0 and not action.choices and not action.type:
            words = ["-3°C", "-አምስት"][:action.nargs if isinstance(action.nargs, int) else 1]
            given = getattr(parser.parse_args([*required(parser), action.option_strings[0], *words]), action.dest)
            assert given in (words[0], words, [words]), action.option_strings
            tried += 1
    assert tried
    with pytest.raises(SystemExit):
        parser.parse_args([*required(parser), "--no-such-flag"])


def required(parser: argparse.ArgumentParser) -> list[str]:
    """Words for positional arguments that may not be left out."""
    return ["x" for action in parser._actions if not action.option_strings and action.nargs != "?"]


def test_an_unknown_flag_is_a_usage_error(workspace: Workspace):
    for arguments in (["--stepz", "3"], ["--scope", "all"], ["--step", "3"]):
        with pytest.raises(SystemExit, match="2"):
            invoke(workspace, *arguments)


def test_a_workspace_that_cannot_be_written_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").touch()
    assert command.run_verb("download", ["--workspace", str(tmp_path / "file")]) == USAGE_ERROR
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.usefixtures("fake_train")
def test_a_preset_gives_options_and_flags_win_over_it(workspace: Workspace, tmp_path: Path):
    preset = tmp_path / "preset.yaml"
    preset.write_text("extension: quick\nsteps: 4\nseed: 9\n")
    assert invoke(workspace, "--config", str(preset), "--steps", "2", "--name", "a") == 0
    made = load_job(workspace, "a")
    assert made.options() == parse_options(
        TrainOptions, {"extension": "quick", "dataset": "mine", "steps": 2, "seed": 9, "device": "cpu"})
    again = str(made.directory / "config.yaml")
    assert invoke(workspace, "--config", again, "--name", "b") == 0  # which names the dataset too
    assert load_job(workspace, "b").settings == made.settings


def test_a_preset_of_another_verb_is_refused(workspace: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    preset = tmp_path / "preset.yaml"
    preset.write_text("verb: prepare\noptions: {}\n")
    assert invoke(workspace, "--config", str(preset)) == USAGE_ERROR
    assert "is for 'prepare', not for 'train'" in capsys.readouterr().err
    preset.write_text("stepz: 3\n")
    assert invoke(workspace, "--config", str(preset)) == USAGE_ERROR
    assert "stepz" in capsys.readouterr().err


@pytest.mark.usefixtures("fake_train")
def test_resume_goes_on_with_a_run_as_it_was_configured(workspace: Workspace, capsys: pytest.CaptureFixture[str]):
    assert invoke(workspace, "--extension", "wrong", "--name", "mine") == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"To resume: python -m scripts train --workspace {workspace.path} --resume mine"
    with pytest.raises(SystemExit, match="2"):
        invoke(workspace, "--resume", "mine", "--name", "other")
    where = ["--workspace", str(workspace.path), "--resume"]
    assert command.run_verb("train", [*where, "mine"]) == 1
    assert control.read_state(load_job(workspace, "mine")).attempt == 2
    assert command.run_verb("train", [*where, "nobody"]) == USAGE_ERROR
    assert "no run named 'nobody'" in capsys.readouterr().err
    create_job(workspace, "prepare", schema.PrepareOptions(), job_id="other")
    assert command.run_verb("train", [*where, "other", "--json"]) == USAGE_ERROR
    refusal = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert refusal["message"] == "other is a run of 'prepare', not of 'train'."


def test_a_verb_without_resume_is_resumed_by_the_command_for_jobs(workspace: Workspace):
    job = create_job(workspace, "extend", schema.ExtendOptions(), job_id="other")
    said = command.resume_command(job).split()
    assert said[:4] == ["python", "-m", "scripts", "jobs"]
    given = scripts_jobs.build_parser().parse_args(said[4:])
    assert (given.do, given.job, given.workspace) == ("resume", "other", str(workspace.path))


@pytest.mark.parametrize("verb", ["compare", "transcribe"])  # the second takes --resume
@pytest.mark.parametrize(("fault", "offered"), [
    (UserError("There already is another dataset named 'mine'.", "Choose another dataset name."), False),
    (UserError("The network is gone.", "Try later.", ErrorKind.ENVIRONMENT), True),
    (UserError("The hub has discontinued this model.", "Resume with another one."), False),
    (UserError("It needs 2 processes.", "Start it by torchrun.", ErrorKind.OTHER_COMMAND), False),
    (ZeroDivisionError("division by zero"), True),
])
def test_what_can_never_succeed_as_it_was_asked_for_is_not_offered_to_be_continued(
        workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str,
        fault: Exception, offered: bool):
    def refuse(*_asked: object) -> dict[str, str]:
        raise fault

    monkeypatch.setattr(worker, "import_work", lambda name: refuse)
    monkeypatch.setattr(jobs, "check_requirements", lambda *_asked: ())
    where = ["--workspace", str(workspace.path), "--device", "cpu"]
    assert command.run_verb(verb, [*where, *(["--segments", "talks"] if verb == "transcribe" else [])]) == 1
    assert ("To resume: " in capsys.readouterr().out) is offered


def test_a_run_that_is_running_cannot_be_resumed_beside_itself(workspace: Workspace,
                                                              capsys: pytest.CaptureFixture[str]):
    job = train(workspace, "patient")
    control.start(job, command=fake_verbs.COMMAND)
    running(job)
    code = command.run_verb("train", ["--workspace", str(workspace.path), "--resume", job.id])
    assert code == worker.ALREADY_RUNNING
    assert "already running" in capsys.readouterr().err


def test_an_interrupt_lets_the_run_save_and_exits_with_130(workspace: Workspace):
    script = (
        "import sys; from core.jobs import worker\n"
        "from scripts import command; from tests.unit import fake_verbs\n"
        "worker.import_work = lambda name: fake_verbs.train\n"
        "from core.submission import jobs; jobs.check_requirements = lambda *given: ()\n"
        "sys.exit(command.run_verb('train', sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, "--workspace", str(workspace.path), "--device", "cpu", "--extension", "patient",
         "--dataset", "mine", "--name", "mine"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("mine in")
    job = load_job(workspace, "mine")
    running(job)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == worker.STOPPED
    assert "Saved at step 7.\nTo resume: python -m scripts train " in said
    assert said.endswith("--resume mine\n")
    assert control.read_state(job).status == "stopped"


def test_what_is_left_out_was_made_last_and_nothing_is_the_demos(workspace: Workspace,
                                                                 capsys: pytest.CaptureFixture[str]):
    def options(verb: str, *arguments: str) -> Options:
        return command.options_of(verb, command.build_parser(verb).parse_args(arguments), workspace)

    (workspace.models / "tiny").symlink_to(ROOT / "models" / "tiny" / "pack")
    for verb, missing in (("train", "extension"), ("preflight", "extension"), ("extend", "tokenizer"),
                          ("tokenizer", "dataset"), ("revise", "dataset"), ("transcribe", "segments")):
        with pytest.raises(UserError, match=f"No {missing} was named, and there is none in"):
            options(verb)
    for verb in ("segment", "align"):
        with pytest.raises(UserError, match="segments.*it is empty"):
            options(verb, "--source", "talks", "--language", "sw")
        with pytest.raises(UserError, match="language.*it is empty; give the code of the language"):
            options(verb, "--source", "talks", "--segments", "talks")
    for age, (name, codes) in enumerate((("newer", "sw,el"), ("older", "ti"))):
        folder = workspace.datasets / name
        folder.mkdir()
        manifest.save(folder, manifest.make_card(name, codes, "talks", ()), ())
        os.utime(folder / manifest.CARD_FILE, (1e9 - age, 1e9 - age))
    (workspace.datasets / "older" / "draft.jsonl").touch()  # a review writes into its folder
    made = options("tokenizer")
    assert (made.dataset, made.tokenizer) == ("newer", "tiny-sw-el")  # type: ignore[attr-defined]
    assert "Dataset: newer\nTokenizer name: tiny-sw-el\n" in capsys.readouterr().err
    assert options("tokenizer", "--dataset", "older").tokenizer == "tiny-ti"  # type: ignore[attr-defined]
    (workspace.tokenizers / "tiny-sw-el").mkdir()
    assert options("tokenizer").tokenizer == "tiny-sw-el-2"  # type: ignore[attr-defined]
    capsys.readouterr()
    with pytest.raises(UserError, match="There is no dataset named 'nope'"):
        options("tokenizer", "--dataset", "nope")
    assert not capsys.readouterr().err
    (workspace.tokenizers / "tiny-sw-el").rmdir()
    assert options("revise").save_as == "newer-2"  # type: ignore[attr-defined]
    assert options("extend", "--tokenizer", "mine").extension == "mine"  # type: ignore[attr-defined]


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_ends_with_an_example_that_works(verb: str):
    parser = command.build_parser(verb)
    [line] = [line for line in parser.format_help().splitlines() if line.startswith("Example: ")]
    words = shlex.split(line.removeprefix(f"Example: python -m scripts {verb} "))
    parse_options(VERBS[verb].options, given_values(parser.parse_args(words), VERBS[verb].options))


def test_options_are_in_the_groups_of_the_form():
    text = command.build_parser("train").format_help()
    places = [text.index(f"\n{group.lower()}:\n") for group in schema.GROUPS[1:]]  # the first is of `prepare`
    assert places == sorted(places)
    assert text.index("--adapter-rank", places[2]) < places[3]


def test_a_job_that_was_skipped_is_listed_in_the_words_of_the_page(workspace: Workspace,
                                                                   capsys: pytest.CaptureFixture[str]):
    Journal(train(workspace, "patient").journal).append(Skipped("What it needs failed."))
    assert scripts_jobs.main(["--workspace", str(workspace.path), "list"]) == 0
    assert capsys.readouterr().out.startswith("not started ")


def test_jobs_are_listed_moved_stopped_and_resumed_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    workspace = Workspace.open(tmp_path / "workspace")

    def do(*words: str) -> list[str]:
        assert scripts_jobs.main(["--workspace", str(workspace.path), *words]) == 0
        return capsys.readouterr().out.splitlines()

    assert do("list") == ["There are no jobs in this workspace."]
    first, second, third = (train(workspace, "patient") for _ in range(3))
    for job in (first, second, third):
        control.start(job, command=fake_verbs.COMMAND)
        until(job, lambda state: state.status in ("running", "waiting"))
    running(first)
    assert [line.split()[2] for line in do("last", second.id)] == [first.id, third.id, second.id]
    assert do("stop", second.id) == [f"{second.id} leaves the queue."]
    control.wait(second, PATIENCE_S)
    rows, same = ([json.loads(line) for line in do(*words)] for words in (("list", "--json"), ("--json", "list")))
    for row in (*rows, *same):
        del row["reason"]  # what a job waits for may have become another meanwhile
    assert rows == same
    assert [(row["job"], row["status"]) for row in rows] == [
        (first.id, "running"), (third.id, "waiting"), (second.id, "stopped")]
    for job in (first, third):
        assert job.id in do("force-stop", job.id)[0]
    assert scripts_jobs.main(["--workspace", str(workspace.path), "resume", "no-such-job"]) == USAGE_ERROR
    assert "no-such-job" in capsys.readouterr().err


def test_a_script_that_refuses_its_input_says_so_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> int:
        raise UserError("The folder holds 0 recordings; at least 1 is needed.", "Name another folder.")

    with pytest.raises(SystemExit, match=str(USAGE_ERROR)):
        command.exit_with(refuse)
    assert capsys.readouterr().err == "The folder holds 0 recordings; at least 1 is needed.\nName another folder.\n"
