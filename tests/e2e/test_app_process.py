"""The web app from outside: what it never loads, what it serves, and whom it lets in."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

import app
from config.errors import UserError
from core.workspace import Workspace
from tests.processes import PATIENCE_S
from tests.serving import ROOT, App, served


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    folder = tmp_path_factory.mktemp("served")
    audio = Workspace.open(folder).runs / "one" / "audio"
    audio.mkdir(parents=True)
    (audio / "clip.ogg").write_bytes(b"OggS")
    (audio.parent / "config.yaml").write_text("verb: train\n")
    with served(folder) as found:
        yield found


def status(address: str) -> int:
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.slow
def test_the_benchmark_of_the_page_compares_it_with_a_bare_one() -> None:
    done = subprocess.run([sys.executable, "-m", "scripts.dev.benchmark.page", "--answers", "2", "--steps", "3"],
                          cwd=ROOT, capture_output=True, text=True, check=True)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines() if "ms" in line]
    assert {(load, kind) for load, kind, *_ in rows} >= {("a training", "tick"), ("a training", "refresh"),
                                                         ("no job", "tick")}
    assert all(float(ratio) > 0 for *_, ratio in rows)


def test_the_web_process_never_loads_torch(running: App) -> None:
    assert "libtorch" not in running.maps()
    assert "/torch/" not in running.maps()


def test_importing_the_whole_page_leads_to_no_heavy_module() -> None:
    code = ("import app; app.import_gradio(); from ui import layout;"
            "import sys, json;"
            "print(json.dumps([name for name in ('torch', 'torchaudio', 'peft', 'transformers', 'matplotlib')"
            " if name in sys.modules]))")
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(found.stdout.splitlines()[-1]) == []


def test_sound_is_served_and_nothing_else_of_a_run(running: App) -> None:
    assert status(running.url + "media/runs/one/audio/clip.ogg") == 200
    assert status(running.url + "media/font.woff2") == 200
    for path in ("config.yaml", "audio/%2e%2e/config.yaml", "audio/none.ogg"):
        assert status(f"{running.url}media/runs/one/{path}") == 404


def test_files_of_the_workspace_cannot_be_had_by_their_path(running: App) -> None:
    folder = running.process.args[running.process.args.index("--workspace") + 1]  # type: ignore[index, union-attr]
    for name in ("audio/clip.ogg", "config.yaml"):
        assert status(f"{running.url}gradio_api/file={Path(str(folder)) / 'runs' / 'one' / name}") in (403, 404)


def test_no_interface_documentation_history_or_monitoring_is_offered(running: App) -> None:
    with urllib.request.urlopen(running.url + "gradio_api/info", timeout=PATIENCE_S) as answer:
        assert json.load(answer)["named_endpoints"] == {}
    assert status(running.url + "docs") == 404
    assert status(running.url + "monitoring") != 200


def test_with_a_password_neither_page_nor_sound_is_given_to_a_stranger(tmp_path: Path) -> None:
    audio = Workspace.open(tmp_path).runs / "one" / "audio"
    audio.mkdir(parents=True)
    (audio / "clip.ogg").write_bytes(b"OggS")
    with served(tmp_path, ["--auth", "me:secret"]) as found:
        clip = found.url + "media/runs/one/audio/clip.ogg"
        assert status(clip) == 401
        assert status(found.url + "config") == 401
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        form = urllib.parse.urlencode({"username": "me", "password": "secret"}).encode()
        opener.open(found.url + "login", form, timeout=PATIENCE_S).close()
        with opener.open(clip, timeout=PATIENCE_S) as answer:
            assert answer.read() == b"OggS"


@pytest.mark.parametrize(("host", "share"), [("0.0.0.0", False), ("192.168.1.5", False), ("127.0.0.1", True)])
def test_an_open_address_or_a_share_link_needs_a_password(
    host: str, share: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(app.PASSWORD_VARIABLE, raising=False)
    with pytest.raises(UserError) as caught:
        app.sign_in(host, share, None, False)
    assert "--auth" in caught.value.hint
    assert app.sign_in(host, share, "me:secret", False) == ("me", "secret")
    monkeypatch.setenv(app.PASSWORD_VARIABLE, "you:other")
    assert app.sign_in(host, share, None, False) == ("you", "other")


def test_no_password_is_a_word_one_has_to_say_and_never_enough_for_a_share_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(app.PASSWORD_VARIABLE, raising=False)
    assert app.sign_in("0.0.0.0", False, None, True) is None
    assert app.sign_in("127.0.0.1", False, None, False) is None
    with pytest.raises(UserError):
        app.sign_in("0.0.0.0", True, None, True)


@pytest.mark.parametrize(("host", "port", "message"), [
    ("127.0.0.1", 99999, "There is no port 99999"), ("127.0.0.1", -1, "There is no port -1"),
    ("no.such.host.invalid", 7860, "'no.such.host.invalid' is not known"), ("a" * 80, 7860, "is not known"),
    ("192.0.2.1", 7860, "192.0.2.1 is not an address of this machine"),
])
def test_an_address_that_cannot_be_is_named(
    host: str, port: int, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    given = ["--host", host, "--port", str(port), "--no-password", "--workspace", str(tmp_path / "w")]
    assert app.main(given) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "--port" in said or "--host" in said
    assert not (tmp_path / "w").exists()


def test_a_taken_port_is_told_as_such() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        with pytest.raises(UserError, match="is taken by another program"):
            app.usable_port("127.0.0.1", other.getsockname()[1])
    assert app.usable_port("127.0.0.1", 0) > 0


@pytest.mark.parametrize("given", ["secret", ":secret", "me:"])
def test_half_a_sign_in_is_refused(given: str) -> None:
    with pytest.raises(UserError, match="USER:PASSWORD"):
        app.sign_in("127.0.0.1", False, given, False)


def test_a_workspace_that_cannot_be_written_is_told_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    found = subprocess.run([sys.executable, "app.py", "--port", "0", "--workspace", str(tmp_path / "file" / "w")],
                           cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "cannot be written" in found.stderr
    assert "Traceback" not in found.stderr
