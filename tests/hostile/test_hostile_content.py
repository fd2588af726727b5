"""Runs, datasets, exports and models that others made: every tab answers, and the damaged file is named."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from config.errors import UserError
from config.schema import (
    CertifyOptions,
    EvaluateOptions,
    ExportOptions,
    ListeningTestOptions,
    Options,
    PackOptions,
    PrepareOptions,
    UnpackOptions,
)
from core import listening_test as listening_job
from core import pack, unpack
from core.jobs.events import CheckpointSaved, Finished, append_event
from core.jobs.job import create_job
from core.jobs.state import JobBoard
from core.jobs.verbs import import_work
from core.library import evaluation_report, lineage, listening, records
from core.library.evaluation_report import EvaluatedClip, EvaluatedModel, EvaluationReport
from core.submission import storage
from core.submission.jobs import check_requirements, select_named_checkpoint
from core.workspace import Workspace
from data import manifest
from data.durable_files import check_no_link_out, hash_file
from tests.hostile import foreign_workspace
from tests.hostile.foreign_workspace import DAMAGE, SECRET
from tests.hostile.served_page import ServedPage, serve
from tests.unit.hub_model import Recorder
from ui import storage as storage_page
from ui.evaluation import listening_view
from ui.live import Live, View
from ui.page import PLACES

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
            for name, _label in PLACES:
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
                 "Incomplete certificate", f"segments:{foreign_workspace.SEGMENTS}", "unsure"):
        assert text in shown
    assert "damaged" not in shown
    assert "that cannot be read" not in shown


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
    ("segments", "talks/segments.yaml"), ("segments", "talks/metadata.jsonl"), ("segments", "talks/work/pieces.jsonl"),
    ("recognisers", "some--one/model.json"), ("recognisers", "some--one/config.json"),
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
          "extensions/rows/extension.json": "Extensions that cannot",
          "segments/talks/segments.yaml": "Segments that cannot",
          "segments/talks/metadata.jsonl": "Segments that cannot",
          "segments/talks/work/pieces.jsonl": "Segments that cannot",
          "recognisers/some--one/model.json": "Recognisers that cannot",
          "recognisers/some--one/config.json": "Recognisers that cannot"}


@pytest.mark.parametrize("file", LISTED)
def test_what_cannot_be_read_is_listed_as_damaged_in_its_place(file: str, workspace: Workspace,
                                                               shown_page: ServedPage) -> None:
    DAMAGE["deep JSON" if file.endswith(("json", "jsonl")) else "deep YAML"](workspace.path / file)
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
    for text in (foreign_workspace.RUN, foreign_workspace.DATASET, foreign_workspace.EXPORT, "Incomplete certificate",
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
                                  "checkpoints", "checkpoints/a/b", "checkpoints/step-000003/../../..",
                                  "checkpoints/step-000003", "checkpoints/other"])
def test_a_checkpoint_of_a_journal_lies_within_its_run(path: str, workspace: Workspace) -> None:
    append_event(workspace.runs / "exported" / "events.jsonl", CheckpointSaved(9, path, True))
    run = workspace.runs / foreign_workspace.RUN
    append_event(run / "events.jsonl", CheckpointSaved(9, path, True))
    found = lineage.list_models(workspace, JobBoard(workspace).states())
    assert [one.folder for one in found if one.kind == "run"] == [run / "checkpoints" / "step-000003"]


TEST = {"id": "t", "evaluation": "exported", "kind": "preference", "language": "am", "about": "about",
        "models": ["one", "two"], "clips": [{"id": "a", "model": "one", "sentence": 0},
                                            {"id": "b", "model": "two", "sentence": 0}],
        "trials": [{"id": "x", "sentence": 0, "clips": ["a", "b"]}], "rows": [["x"]]}
ANSWER = {"session": "0" * 32, "listener": "A", "row": 0, "trial": "x", "place": 0, "seconds": 1.0, "preference": "A"}
FOREIGN_TESTS: dict[str, tuple[dict[str, object], str]] = {  # what others wrote, and what the page shows of it
    "as it is made": ({}, "preference"), "a clip that is not there": (
        {"trials": [{"id": "x", "sentence": 0, "clips": ["a", "z"]}]}, "other clips"),
    "one clip to prefer": ({"trials": [{"id": "x", "sentence": 0, "clips": ["a"]}]}, "other clips"),
    "no clip": ({"trials": [{"id": "x", "sentence": 0, "clips": []}]}, "other clips"),
    "three of two": ({"trials": [{"id": "x", "sentence": 0, "clips": ["a", "b", "a"]}]}, "other clips"),
    "a trial that is not there": ({"rows": [["y"]]}, "other trials"),
    "rows of two lengths": ({"rows": [["x"], ["x", "x"]]}, "other trials"), "no rows": ({"rows": []}, "no rows"),
    "an empty row": ({"rows": [[]]}, "no rows"), "rows of texts": ({"rows": ["x"]}, "could not be read"),
    "another kind": ({"kind": "shell"}, "could not be read"), "rated in pairs": ({"kind": "rating"}, "other clips"),
    "ABX of pairs": ({"kind": "abx"}, "other clips"),
    "markup": ({"about": "<script>alert(1)</script>", "models": ["<img src=x onerror=alert(1)>", "two"]}, "preference"),
    "a path": ({"evaluation": "../../etc"}, "preference"), "a long name": ({"language": "x" * 5000}, "preference"),
    "a sentence of 10^400": ({"trials": [{"id": "x", "sentence": 10**400, "clips": ["a", "b"]}]}, "preference"),
    "no models": ({"models": []}, "preference"), "null": ({"clips": None}, "could not be read"),
}
ANSWERS = {
    "not JSON": "{", "a list": "[]", "deep": "[" * 100_000, "another trial": json.dumps({**ANSWER, "trial": "z"}),
    "a row of 10^400": json.dumps({**ANSWER, "row": 10**400}), "a listener of markup": json.dumps(
        {**ANSWER, "listener": "<script>alert(1)</script>"}), "a listener that is a list": json.dumps(
        {**ANSWER, "listener": ["A"]}), "a session that is a path": json.dumps({**ANSWER, "session": "../" * 11}),
    "C of A and B": json.dumps({**ANSWER, "preference": "C"}), "true": json.dumps({**ANSWER, "preference": True}),
    "NaN": json.dumps({**ANSWER, "seconds": float("nan")}), "half a character": json.dumps(
        {**ANSWER, "listener": "\ud800"}), "not UTF-8": "\udcff", "many": (json.dumps(ANSWER) + "\n") * 3000,
    "line ends": json.dumps({**ANSWER, "listener": "a\nb"}), "nothing": "",
}


@pytest.fixture(scope="module")
def listened(template: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with an evaluation and a listening test of it, both as jobs of others."""
    workspace = Workspace(tmp_path_factory.mktemp("listened") / "workspace")
    foreign_workspace.refresh(template, workspace)
    create_job(workspace, "evaluate", EvaluateOptions(models=("base:tiny",)), job_id="evaluated")
    create_job(workspace, "listening_test", ListeningTestOptions(evaluation="evaluated"), job_id="heard")
    return workspace


def shown_test(workspace: Workspace, about: object, answers: str) -> str:
    """The listening tests on the page, with this test and these answers."""
    folder = workspace.runs / "heard"
    (folder / listening.TEST).write_text(json.dumps(about))
    (folder / listening.ANSWERS).write_text(answers, "utf-8", "surrogateescape")
    shown = str(listening_view(View("listen", {}, tuple(JobBoard(workspace).states()))))
    assert "<script>alert" not in shown
    assert "<img" not in shown
    return shown


@pytest.mark.parametrize("case", FOREIGN_TESTS)
def test_a_listening_test_of_others_is_shown_or_said_to_be_damaged(case: str, listened: Workspace) -> None:
    change, expected = FOREIGN_TESTS[case]
    shown = shown_test(listened, {**TEST, **change}, json.dumps(ANSWER) + "\n")
    assert (expected in shown) or (expected == "preference" and "Preference" in shown)
    with suppress(UserError):
        listening.update_report(listened, str({**TEST, **change}["evaluation"]))


@pytest.mark.parametrize("case", ANSWERS)
def test_answers_of_others_are_counted_or_left_out(case: str, listened: Workspace) -> None:
    shown = shown_test(listened, TEST, json.dumps({**ANSWER, "session": "1" * 32}) + "\n" + ANSWERS[case])
    assert "listener" in shown
    with pytest.raises(UserError) if case != "many" else suppress(UserError):
        listening.add_answers(listened, ANSWERS[case].encode("utf-8", "surrogateescape"), "answers.json")


@pytest.mark.parametrize("audio", ["/etc/passwd", "../../../../../../etc/passwd", "audio/link.wav", "audio/\0.wav",
                                   "audio/" + "a" * 300 + ".wav"])
def test_a_listening_test_takes_no_sound_from_outside_of_its_evaluation(audio: str, listened: Workspace) -> None:
    folder = listened.runs / "evaluated"
    (folder / "audio").mkdir(exist_ok=True)
    link = folder / "audio" / "link.wav"
    link.unlink(missing_ok=True)
    link.symlink_to("/etc/passwd")
    clips = tuple(EvaluatedClip("one", "am", number, "text", "", "", 0, audio, "", 1.0, "", "", "stop", {})
                  for number in range(4))
    evaluation_report.write(folder, EvaluationReport(1.0, 1.0, {}, {}, {}, (EvaluatedModel("one", "one"),), {}, (),
                                                     clips))
    before = set(listened.path.rglob("*"))
    with pytest.raises((UserError, OSError)) as refused:
        listening_job.run(ListeningTestOptions(evaluation="evaluated", kind="rating"), listened,
                          Recorder(listened.runs / "heard"))
    assert isinstance(refused.value, UserError)
    assert set(listened.path.rglob("*")) == before


NAMES_OF_OTHERS = ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\0b", "a" * 300, "-rf", "<b>x</b>", "x\ny", "\u202ex",
                   "~root", "=1+1", "nul", "x@1", "\ud800"]
REFERENCES_TO = {
    "certify": lambda name: CertifyOptions(run=f"run:{name}"),
    "a checkpoint": lambda name: CertifyOptions(run=f"run:{foreign_workspace.RUN}@{name or 'x'}"),
    "export": lambda name: ExportOptions(run=f"run:{name}", export="other"),
    "evaluate": lambda name: EvaluateOptions(models=(f"run:{name}", "recordings")),
    "pack": lambda name: PackOptions(item=f"export:{name}"),
    "unpack": lambda name: UnpackOptions(archive=name),
}
VERB_OF = {CertifyOptions: "certify", ExportOptions: "export", EvaluateOptions: "evaluate", PackOptions: "pack",
           UnpackOptions: "unpack"}


def submit(run: Callable[..., object], workspace: Workspace, verb: str, options: Options) -> None:
    """What the page and the command line do with options, up to the work itself."""
    check_requirements(workspace, verb, options)
    if isinstance(options, CertifyOptions):
        select_named_checkpoint(workspace, options)
    run(options, workspace, Recorder(workspace.runs / "heard"))


@pytest.mark.parametrize("verb", REFERENCES_TO)
def test_names_that_were_never_given_are_refused_in_a_sentence(verb: str, listened: Workspace) -> None:
    for name in NAMES_OF_OTHERS:
        try:
            options = REFERENCES_TO[verb](name)
        except ValueError:  # pydantic's: no such name
            continue
        kind = VERB_OF[type(options)]
        run = import_work(kind)
        with pytest.raises(UserError) as refused:
            submit(run, listened, kind, options)
        assert 0 < len(refused.value.message) < 3000, (verb, name)


@pytest.mark.parametrize("reference", [
    "run:..", "run:.", "run:../x", "run:/etc", "run:", ":x", "x", "", "run:.bin", "shell:x", "cache:incoming/x",
    "cache:uploads", "run:a\0b", "run:" + "a" * 300, "run:\ud800", "run:x@../y", "base:../tiny", "RUN:trained",
    "upload:../x", "voice:.",
])
def test_no_reference_deletes_or_restores_anything_else(reference: str, listened: Workspace) -> None:
    before = sorted(listened.path.rglob("*"))
    for act in (lambda: storage.delete(listened, storage.parse(reference)),
                lambda: storage.restore(listened, reference),
                lambda: storage.empty_bin(listened, reference or "run:x")):
        with pytest.raises(UserError):
            act()
    assert [path for path in sorted(listened.path.rglob("*")) if path.name != ".storage.lock"] == [
        path for path in before if path.name != ".storage.lock"]


@pytest.mark.parametrize("entry", [
    "20260101-000000-000000001...", "20260101-000000-000000001..", "20260101-000000-000000001..bin",
    "20260101-000000-000000001", "99999999-999999-999999999.x", "x-y-z.name", "--.x", "20260101-000000-1.\n",
    "20260101-000000-1.<b>x", "20260101-000000-1." + "a" * 200, ".emptying-x",
])
def test_what_others_put_into_the_bin_is_restored_in_its_place_or_left(entry: str, listened: Workspace) -> None:
    home = listened.runs / ".bin"
    shutil.rmtree(home, ignore_errors=True)
    (home / entry).mkdir(parents=True)
    outside = listened.path.parent / "kept"
    outside.mkdir(exist_ok=True)
    (home / entry / "link").symlink_to(outside)
    str(storage_page.bin_view(storage.list_deleted(listened), None))
    for one in storage.list_deleted(listened):
        with suppress(UserError):
            item = storage.restore(listened, one.reference)
            assert item.path(listened).parent == listened.runs
            storage.delete(listened, item)
    storage.empty_bin(listened)
    assert outside.is_dir()
    shutil.rmtree(home, ignore_errors=True)


def archive(values: object, *members: tuple[tarfile.TarInfo, bytes], first: str = "lisan.json") -> bytes:
    """An archive as `core.pack` writes it, of anything."""
    text = values if isinstance(values, bytes) else json.dumps(values).encode()
    made = b""
    for about, content in ((tarfile.TarInfo(first), text), *members):
        about.size = about.size or len(content)
        made += about.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape") + content + bytes(-len(content) % 512)
    return made + bytes(1024)


def listed(*paths: str, **changes: object) -> dict[str, object]:
    """The list of an archive with these files, each of which holds one byte."""
    files = [{"path": path, "size": 1, "sha256": hashlib.sha256(b"x").hexdigest()} for path in paths]
    return {"format": 1, "items": ["export:new"], "missing": {}, "files": files, **changes}


def plain(*names: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> list[tuple[tarfile.TarInfo, bytes]]:
    found = []
    for name in names:
        about = tarfile.TarInfo(name)
        about.type, about.linkname = kind, link
        found.append((about, b"x"))
    return found


INSIDE = "exports/new/a"
UNPACKED = {
    "nothing": b"", "zeros": bytes(10_240), "not first": archive(listed(), first="other.json"), "a list": archive([]),
    "deep": archive(b"[" * 100_000), "not JSON": archive(b"{"), "another format": archive(listed(format=99)),
    "format true": archive(listed(format=True)), "no items": archive(listed(items=[])),
    "a model alone": archive(listed(items=["model:new"])), "a recogniser": archive(
        listed(items=["export:new", "recogniser:x"])), "an item twice": archive(listed(items=["export:new"] * 2)),
    "an item out": archive(listed(items=["export:../x"])), "items of numbers": archive(listed(items=[5])),
    "sizes of 10^400": archive(json.dumps(listed(INSIDE)).replace('"size": 1', '"size": 1e400').encode()),
    "sizes NaN": archive(json.dumps(listed(INSIDE)).replace('"size": 1', '"size": NaN').encode()),
    "sizes below zero": archive(json.dumps(listed(INSIDE)).replace('"size": 1', '"size": -1').encode()),
    "sizes huge": archive(json.dumps(listed(INSIDE)).replace('"size": 1', '"size": 1000000000000').encode()),
    "out": archive(listed("exports/new/../../../canary"), *plain("exports/new/../../../canary")),
    "a root": archive(listed("/tmp/canary"), *plain("/tmp/canary")),
    "another kind's folder": archive(listed("devices/new/a"), *plain("devices/new/a")),
    "another item's folder": archive(listed("exports/other/a"), *plain("exports/other/a")),
    "a lock": archive(listed("runs/new/lock", items=["run:new"]), *plain("runs/new/lock")),
    "a link": archive(listed(INSIDE), *plain(INSIDE, kind=tarfile.SYMTYPE, link="/etc/passwd")),
    "a hard link": archive(listed(INSIDE), *plain(INSIDE, kind=tarfile.LNKTYPE, link="/etc/passwd")),
    "a pipe": archive(listed(INSIDE), *plain(INSIDE, kind=tarfile.FIFOTYPE)),
    "sparse": archive(listed(INSIDE), *plain(INSIDE, kind=tarfile.GNUTYPE_SPARSE)),
    "an extended header": archive(listed(INSIDE), *plain(INSIDE, kind=tarfile.XHDTYPE)),
    "a name that is too long": archive(listed(INSIDE), *plain("x" * 5000, kind=tarfile.GNUTYPE_LONGNAME)),
    "a file and a folder": archive(listed(INSIDE, f"{INSIDE}/b"), *plain(INSIDE, f"{INSIDE}/b")),
    "a folder and a file": archive(listed(f"{INSIDE}/b", INSIDE), *plain(f"{INSIDE}/b", INSIDE)),
    "one file twice": archive(listed(INSIDE, INSIDE), *plain(INSIDE, INSIDE)),
    "two cases": archive(listed("exports/new/a", "exports/new/A"), *plain("exports/new/a", "exports/new/A")),
    "a name of 300 letters": archive(listed(f"exports/new/{'a' * 300}"), *plain(f"exports/new/{'a' * 300}")),
    "a deep folder": archive(listed(f"exports/new/{'a/' * 2000}b"), *plain(f"exports/new/{'a/' * 2000}b")),
    "a NUL": archive(listed("exports/new/a\0b"), *plain("exports/new/a")),
    "half a character": archive(listed("exports/new/\ud800"), *plain("exports/new/a")),
    "strokes back": archive(listed("exports/new/..\\..\\canary"), *plain("exports/new/..\\..\\canary")),
    "other bytes": archive(listed(INSIDE), *[(one, b"y") for one, _ in plain(INSIDE)]),
    "cut off": archive(listed(INSIDE), *plain(INSIDE))[:-1600], "more behind": archive(
        listed(INSIDE), *plain(INSIDE, "exports/new/b")), "no file": archive(listed()),
    "many missing": archive(listed(missing={f"model:m{number}": "x" for number in range(5000)})),
    "missing that is out": archive(listed(missing={"model:../x": "y"})), "missing a list": archive(listed(missing=[1])),
    "a foreign run": archive(listed("runs/new/config.yaml", items=["run:new"]), *plain("runs/new/config.yaml")),
    "compressed": gzip.compress(archive(listed(INSIDE), *plain(INSIDE))),
}


@pytest.mark.parametrize("case", UNPACKED)
def test_an_archive_of_others_writes_nothing_but_what_it_brings(case: str, listened: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(UNPACKED[case])
    before = sorted(one for one in listened.path.rglob("*"))
    with pytest.raises(UserError) as refused:
        unpack.run(UnpackOptions(archive=str(path)), listened, Recorder(listened.runs / "heard"))
    assert len(refused.value.message) < 1000
    assert sorted(one for one in listened.path.rglob("*")) == before
    assert sorted(tmp_path.iterdir()) == [path]
    assert not Path("/tmp/canary").exists()


def _with_holes(path: Path, size: int) -> None:
    path.touch()
    os.truncate(path, size)


PACKED = {
    "a link out": lambda folder: (folder / "x").symlink_to("/etc/passwd"),
    "a link to a folder": lambda folder: (folder / "x").symlink_to("/etc"),
    "a link in a circle": lambda folder: (folder / "x").symlink_to("x"),
    "a pipe": lambda folder: os.mkfifo(folder / "x"),
    "a hidden file": lambda folder: (folder / ".env").write_text(SECRET),
    "a name that is not UTF-8": lambda folder: Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).write_text("x"),
    "a name with a line end": lambda folder: (folder / "a\nb").write_text("x"),
    "ten terabytes with holes": lambda folder: _with_holes(folder / "x", 10 << 40),
}


@pytest.mark.parametrize("case", PACKED)
def test_only_plain_files_of_the_export_are_packed(case: str, template: Workspace, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    foreign_workspace.refresh(template, workspace)
    PACKED[case](workspace.exports / foreign_workspace.EXPORT)
    job = tmp_path / "job"
    job.mkdir()
    made: dict[str, object] = {}
    with suppress(UserError):
        made = pack.run(PackOptions(item=f"export:{foreign_workspace.EXPORT}"), workspace, Recorder(job))
    if not made:
        assert not list(job.iterdir())
        return
    with tarfile.open(job / str(made["archive"])) as packed:
        assert all(one.isfile() for one in packed.getmembers())
        assert not [one for one in packed.getnames() if one.endswith(("/x", ".env"))]
    content = (job / str(made["archive"])).read_bytes()
    assert b"root:x:0" not in content
    assert SECRET.encode() not in content
