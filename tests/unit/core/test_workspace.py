import os
import subprocess
import sys
from pathlib import Path

import pytest

from config.errors import UserError
from core.workspace import Workspace, resolve_inside

ROOT = Path(__file__).parents[3]
BAD_NAMES = ["../../x", "..", ".", "", "/etc/passwd", "a/b",
             "a\\b", ".hidden", "a..b", "x" * 65, "naïve", "a b", "a\n", "-x"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_could_leave_its_folder_is_refused_and_quoted(tmp_path: Path, name: str):
    with pytest.raises(UserError) as caught:
        resolve_inside(tmp_path, name)
    assert repr(name) in caught.value.message
    assert "letters, digits" in caught.value.hint


@pytest.mark.parametrize("kind", ["model", "dataset", "tokenizer", "extension", "run", "export"])
def test_something_that_is_not_there_is_named_with_what_is(tmp_path: Path, kind: str):
    workspace = Workspace.open(tmp_path)
    (tmp_path / f"{kind}s" / "present").mkdir()
    with pytest.raises(UserError, match=r"'absent'.*there: present"):
        getattr(workspace, kind)("absent")
    with pytest.raises(UserError, match="cannot be a name"):
        getattr(workspace, kind)("../../x")
    assert getattr(workspace, kind)("present") == tmp_path / f"{kind}s" / "present"


def test_of_many_the_newest_are_named_first_and_the_others_counted(tmp_path: Path):
    workspace = Workspace.open(tmp_path)
    for age in range(15):
        folder = workspace.runs / f"run{(age * 7) % 15:02}"
        folder.mkdir()
        os.utime(folder, (1_000_000 - age, 1_000_000 - age))
    newest = ", ".join(f"run{(age * 7) % 15:02}" for age in range(12))
    with pytest.raises(UserError) as caught:
        workspace.run("absent")
    assert f"(there: {newest} and 3 more)" in caught.value.message


def test_a_short_id_is_enough_where_it_is_that_of_one_job(tmp_path: Path):
    workspace = Workspace.open(tmp_path)
    first, other, comparison = ("train-20261126-181503-de16", "train-20261126-190000-fdad",
                                "compare-20261126-183000-fdad")
    for name in (first, other, comparison, "mine-de16"):
        (workspace.runs / name).mkdir()
    assert workspace.run("de16") == workspace.runs / first
    assert workspace.run(first).name == first
    for written in ("@29", "+romanised", ""):
        assert workspace.whole_reference(f"run:de16{written}") == f"run:{first}{written}"
    for plain in ("run:mine-de16", "run:de16x", "base:de16", "run:0000", "run:", ""):
        assert workspace.whole_reference(plain) == plain
    assert workspace.whole_reference("run:fdad") == f"run:{other}"  # a comparison is no model
    with pytest.raises(UserError, match=f"'fdad' is that of {comparison}, {other}") as caught:
        workspace.run("fdad")
    assert "whole id" in caught.value.hint
    (workspace.runs / "de16").mkdir()
    assert workspace.run("de16").name == "de16"


def test_folders_being_written_are_not_listed(tmp_path: Path):
    workspace = Workspace.open(tmp_path / "new" / "workspace")
    for name in ("b", "a", ".a-1234"):
        (workspace.datasets / name).mkdir()
    (workspace.datasets / "file").touch()
    assert workspace.list_datasets() == ["a", "b"]


def test_a_path_under_a_file_cannot_be_a_workspace(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/ws cannot be written: Not a directory") as caught:
        Workspace.open(tmp_path / "file" / "ws")
    assert "--workspace" in caught.value.hint


def test_a_path_without_permission_cannot_be_a_workspace():
    with pytest.raises(UserError, match=r"The workspace /proc/lisan cannot be written"):
        Workspace.open("/proc/lisan")


def test_opening_leaves_nothing_behind_and_keeps_what_is_there(tmp_path: Path):
    Workspace.open(tmp_path)
    (tmp_path / "models" / "tiny").mkdir()
    workspace = Workspace.open(tmp_path)
    assert workspace.list_models() == ["tiny"]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_web_safe_modules_load_no_torch():
    script = (
        "import sys\n"
        "import core.library.catalog, core.download, core.jobs.control, core.jobs.queue\n"
        "import core.jobs.worker, config.arguments\n"
        "heavy = {name for name in sys.modules if name.startswith('data.')} - {'data.durable_files'}\n"
        "import core.submission.job_chains\n"  # its checks read datasets
        "heavy |= {'torch', 'torchaudio', 'peft', 'transformers', 'models'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
