"""Runs, datasets, exports and models that others made: every tab answers, and the damaged file is named."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.errors import UserError
from config.schema import PrepareOptions
from core.jobs.directory import create_job
from core.jobs.events import CheckpointSaved, Finished, append_event
from core.jobs.state import JobBoard
from core.library import catalog, records
from core.workspace import Workspace
from data import manifest
from data.durable_files import check_no_link_out, hash_file
from tests.hostile import foreign_workspace
from tests.hostile.foreign_workspace import DAMAGE, SECRET
from tests.hostile.served_page import ServedPage, serve
from ui.live import Live
from ui.page import TABS

PATIENCE_S = 60.0
QUICK = ("deep YAML", "deep lists of YAML", "deep JSON", "aliases", "a pipe", "a folder", "a link out", "not UTF-8",
         "every value null", "every value 10^400", "every value a text", "every value a NUL", "a list", "missing")
"""One of each kind in the default suite; the others are slow together."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return foreign_workspace.build(tmp_path_factory.mktemp("template") / "workspace")


@pytest.fixture(scope="module")
def shown_page(template: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPage]:
    """One app for all cases: it lives on whatever happens to its workspace."""
    workspace = Workspace(tmp_path_factory.mktemp("shown") / "workspace")
    foreign_workspace.refresh(template, workspace)
    with serve(workspace) as page:
        yield page


@pytest.fixture
def workspace(template: Workspace, shown_page: ServedPage) -> Workspace:
    foreign_workspace.refresh(template, shown_page.workspace)
    _live(shown_page).board.__init__(shown_page.workspace)  # type: ignore[misc]  # as after a start of the app
    return shown_page.workspace


def answers(page: ServedPage, job: str = foreign_workspace.RUN) -> str:
    """What every tab shows, as one text; an answer that does not come fails instead of standing still."""
    found: list[str] = []
    faults: list[BaseException] = []
    live = _live(page)

    def ask() -> None:
        chosen = {"run": foreign_workspace.RUN, "job": job}
        values = [chosen.get(name, getattr(widget, "value", None)) for name, widget in live.watched.items()]
        try:
            for name, _label in TABS:
                refreshed = live.refresh(name, {}, {}, *values)
                found.append(repr(refreshed))
                assert not [html for html in refreshed if isinstance(html, str) and "<script>alert" in html]
                found.append(repr(live.update_inputs(name, {}, *values)))
            tick = next(number for number, one in page.blocks.fns.items() if one.fn == live.check)
            widgets = page.blocks.fns[tick].inputs
            answer = page.event(tick, [None if type(one).__name__ == "State" else one.value for one in widgets])
            assert answer.status_code == 200
        except BaseException as error:  # noqa: BLE001  handed to the test
            faults.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    assert not asking.is_alive(), "no answer"
    if faults:
        raise faults[0]
    return "".join(found)


def _live(page: ServedPage) -> Live:
    return next(owner for function in page.blocks.fns.values()
                if isinstance(owner := getattr(function.fn, "__self__", None), Live))


def harmless(shown: str, workspace: Workspace) -> None:
    assert "could not be shown" not in shown, shown[shown.index("could not be shown") - 200:][:900]
    assert SECRET not in shown
    assert "root:x:0" not in shown
    assert not list(workspace.path.parent.rglob("canary"))
    assert not Path("canary").exists()


def test_the_workspace_of_these_cases_is_shown(workspace: Workspace, shown_page: ServedPage) -> None:
    shown = answers(shown_page)
    harmless(shown, workspace)
    for text in (foreign_workspace.RUN, foreign_workspace.DATASET, foreign_workspace.EXPORT, "a line of the log",
                 "Rows are equal"):
        assert text in shown
    assert "damaged" not in shown


@pytest.mark.parametrize("damage", [
    damage if damage in QUICK else pytest.param(damage, marks=pytest.mark.slow) for damage in DAMAGE])
def test_whatever_the_files_hold_every_tab_answers(damage: str, workspace: Workspace, shown_page: ServedPage) -> None:
    for path in list(foreign_workspace.records(workspace)):
        DAMAGE[damage](path)
    harmless(answers(shown_page), workspace)


FILES = sorted(f"{kind}/{name}" for kind, name in (
    ("runs", "trained/config.yaml"), ("runs", "trained/events.jsonl"), ("runs", "trained/output.log"),
    ("runs", "trained/certificate.json"), ("runs", "trained/checkpoints/names.json"),
    ("runs", "trained/checkpoints/step-000003/checkpoint.json"),
    ("runs", "trained/checkpoints/step-000003/front_end/front_end.json"), ("datasets", "clips/dataset.yaml"),
    ("datasets", "clips/manifest.jsonl"), ("datasets", "clips/report.json"), ("tokenizers", "pieces/report.json"),
    ("extensions", "rows/extension.json"), ("exports", "made/export.json"), ("exports", "made/certificate.json"),
    ("models", "tiny/model.json"), ("models", "tiny/front_end.json"), ("rules", "mine.yaml"),
))


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_one_damaged_file_leaves_the_rest_as_it_is(damage: str, file: str, workspace: Workspace,
                                                   shown_page: ServedPage) -> None:
    DAMAGE[damage](workspace.path / file)
    shown = answers(shown_page)
    harmless(shown, workspace)
    kept = {"runs": foreign_workspace.DATASET, "datasets": "exported"}.get(file.partition("/")[0], "exported")
    assert kept in shown


@pytest.mark.parametrize("name", ["000004.bak", "step-000004.bak", "step-", "step-x", "step-²", "step-" + "9" * 40,
                                  "step--1", ".step-000004", "step-000003 (copy)", "STEP-000005", "step-000006.tmp"])
def test_other_folders_beside_checkpoints_are_left_out(name: str, workspace: Workspace, shown_page: ServedPage) -> None:
    (workspace.runs / "trained" / "checkpoints" / name).mkdir()
    harmless(answers(shown_page), workspace)


LISTED = {"runs/trained/config.yaml": "Runs that cannot be read", "datasets/clips/dataset.yaml": "clips",
          "models/tiny/model.json": "Models that cannot", "models/tiny/front_end.json": "Models that cannot",
          "tokenizers/pieces/report.json": "Tokenizers that cannot", "exports/made/export.json": "Exports that cannot",
          "tokenizers/pieces/front_end.json": "Tokenizers that cannot",
          "extensions/rows/extension.json": "Extensions that cannot"}


@pytest.mark.parametrize("file", LISTED)
def test_what_cannot_be_read_is_listed_as_damaged_in_its_place(file: str, workspace: Workspace,
                                                               shown_page: ServedPage) -> None:
    DAMAGE["deep JSON" if file.endswith("json") else "deep YAML"](workspace.path / file)
    shown = answers(shown_page)
    harmless(shown, workspace)
    assert LISTED[file] in shown
    assert re.search(r"(damaged|could not be read|of a job): [^<]*(more than 64 levels|recursion limit)", shown)
    assert not re.search(r": :|damaged: [^<]* is damaged: |DamagedFile\(", shown)
    for title in set(LISTED.values()) - {LISTED[file], "clips"}:
        assert title not in shown
    assert "exported" in shown  # the other job


@pytest.mark.parametrize("kind", ["models", "datasets", "tokenizers", "extensions", "exports", "runs"])
def test_a_folder_with_a_name_that_lisan_does_not_give_hides_no_other(kind: str, workspace: Workspace,
                                                                      shown_page: ServedPage) -> None:
    for name in ("my model", "\u1208\u1233\u1295", "a" * 200, "-rf"):
        (workspace.path / kind / name).mkdir()
    shown = answers(shown_page)
    harmless(shown, workspace)
    for text in (foreign_workspace.RUN, foreign_workspace.DATASET, foreign_workspace.EXPORT, "Rows are equal",
                 f"export:{foreign_workspace.EXPORT}", f"base:{foreign_workspace.MODEL}"):
        assert text in shown


def test_a_forged_list_of_ended_jobs_shows_no_job_that_is_not_there(workspace: Workspace,
                                                                    shown_page: ServedPage) -> None:
    remembered = workspace.cache / "jobs.jsonl"
    answers(shown_page)
    line = remembered.read_text().splitlines()[0]
    name = json.loads(line)["name"]
    remembered.write_text(line.replace(name, "forged") + "\n" + line.replace('"created": ', '"created": 9'))
    _live(shown_page).board.__init__(workspace)  # type: ignore[misc]
    shown = answers(shown_page)
    harmless(shown, workspace)
    assert "forged" not in shown
    assert foreign_workspace.RUN in shown


LINKS = {"out": "/etc/passwd", "out by steps": "../../../../../../../../etc/passwd", "in a circle": "a.wav"}


@pytest.mark.parametrize("link", LINKS)
def test_audio_that_is_a_link_out_of_its_dataset_is_not_read(link: str, tmp_path: Path) -> None:
    folder = tmp_path / "dataset"
    (folder / "audio").mkdir(parents=True)
    (folder / "audio" / "a.wav").symlink_to(LINKS[link])
    clip = manifest.ManifestClip("a", "audio/a.wav", "text", "am", "train", 1.0, "one", "0" * 64)
    dataset = manifest.PreparedDataset(folder, None, [clip])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="leads out"):
        dataset.audio_path(clip)


def test_audio_that_is_a_file_of_its_dataset_or_a_link_within_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    (tmp_path / "b.wav").symlink_to("a.wav")
    for name in ("a.wav", "b.wav"):
        assert check_no_link_out(tmp_path, name) == tmp_path / name


@pytest.mark.parametrize("link", LINKS)
def test_a_link_in_an_export_is_not_pushed(link: str, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / "a.wav").symlink_to(LINKS[link])
    content = Path(LINKS[link])
    digest = hash_file(content) if content.is_file() else "0" * 64  # a list that fits the file that is led to
    (folder / records.EXPORT_SUMS).write_text(json.dumps({"a.wav": digest}))
    with pytest.raises(UserError, match="leads out"):
        records.check_export_files(folder)


@pytest.mark.parametrize("name", ["../outside.txt", "/etc/passwd", "a/../../outside.txt", "a\\b", "a\0b", ""])
def test_a_list_of_files_that_leads_out_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("x")
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / records.EXPORT_SUMS).write_text(json.dumps({name: "0" * 64}))
    with pytest.raises(UserError):
        records.check_export_files(folder)


def test_the_address_of_a_source_is_shown_without_its_password(workspace: Workspace, shown_page: ServedPage) -> None:
    options = PrepareOptions(source="https://me:hunter2@example.org/a.zip?token=hunter3", dataset="other",
                             language="am")
    job = create_job(workspace, "prepare", options)
    append_event(job.journal, Finished({}))
    shown = answers(shown_page, job.id)
    assert "https://example.org/a.zip" in shown
    assert "hunter2" not in shown
    assert "hunter3" not in shown


@pytest.mark.parametrize("path", ["/etc", "../../models/tiny", "checkpoints/../../../models/tiny", "checkpoints/..", "",
                                  "checkpoints", "checkpoints/a/b", "checkpoints/step-000003/../../.."])
def test_a_checkpoint_of_a_journal_lies_within_its_run(path: str, workspace: Workspace) -> None:
    append_event(workspace.runs / "exported" / "events.jsonl", CheckpointSaved(9, path, True))
    run = workspace.runs / foreign_workspace.RUN
    append_event(run / "events.jsonl", CheckpointSaved(9, path, True))
    found = catalog.list_references(workspace, JobBoard(workspace).states())
    assert [one.folder for one in found if one.kind == "run"] == [run / "checkpoints" / "step-000003"]
