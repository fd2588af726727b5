"""What a download refuses or is refused, in plain words: tokens, gates, disks, names, portals; and that it stops."""

import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from config.errors import UserError
from core.jobs.reporter import StopRequested
from core.library.records import read_model_record
from core.sources import partial_downloads
from core.sources.hub import Hub
from core.workspace import Workspace
from data.durable_files import ExpectedFile
from tests.hub import LoopbackHub, serving
from tests.unit.hub_model import (
    FILES,
    MAIN,
    OTHERS,
    S3GEN,
    STALLED,
    T3,
    TOKEN,
    Recorder,
    contents,
    get,
    order,
    partial,
)


@pytest.fixture
def served() -> Iterator[LoopbackHub]:
    with serving() as hub:
        hub.add(MAIN, {**FILES, **OTHERS})
        yield hub


@pytest.fixture
def recorder(workspace: Workspace) -> Recorder:
    return Recorder(workspace.runs)


def failing(served: LoopbackHub, workspace: Workspace, recorder: Recorder, **how: object) -> UserError:
    with pytest.raises(UserError) as caught:
        get(served, workspace, recorder, **how)  # type: ignore[arg-type]
    assert workspace.list_models() == []
    return caught.value


def test_a_missing_repository_and_file_are_named(served, workspace, recorder):
    with pytest.raises(UserError, match=r"Multilingual-hi is private, or there is no such repository") as caught:
        get(served, workspace, wanted=order("hi"))
    assert "HF_TOKEN" in caught.value.hint
    with pytest.raises(UserError, match=r"chatterbox has no t3_23lang.safetensors at"):
        get(served, workspace, wanted=order("multilingual-v1"))
    assert workspace.list_models() == []


def test_a_private_repository_opens_to_its_token(served, workspace, recorder):
    served.repositories[MAIN].private = True
    assert "HF_TOKEN" in failing(served, workspace, recorder).hint
    served.tokens[TOKEN] = "read"
    get(served, workspace, recorder, token=TOKEN)
    assert contents(workspace.model("chatterbox")) == FILES


def test_a_gated_repository_says_where_to_accept(served, workspace, recorder):
    served.repositories[MAIN].gated = True
    served.tokens = {TOKEN: "gated", TOKEN + "yes": "read"}
    without = failing(served, workspace, recorder)
    assert "is gated" in without.message
    assert "make a token" in without.hint
    refused = failing(served, workspace, recorder, token=TOKEN)
    assert "as the owner of the token" in refused.hint
    get(served, workspace, recorder, token=TOKEN + "yes")
    assert contents(workspace.model("chatterbox")) == FILES


def test_a_wrong_token_is_told_without_showing_it(served, workspace, recorder):
    error = failing(served, workspace, recorder, token=TOKEN)
    assert "does not accept the token in HF_TOKEN" in error.message
    assert error.hint.endswith("Then continue.")
    assert TOKEN not in f"{error.message} {error.hint} {recorder.events} {Hub(served.url, TOKEN)!r}"


def test_the_token_goes_to_the_hub_and_not_to_its_storage(served, workspace):
    served.tokens[TOKEN] = "read"
    get(served, workspace, token=TOKEN)
    assert {asked.authorization for asked in served.asked if asked.server == "hub"} == {f"Bearer {TOKEN}"}
    stored = [asked for asked in served.asked if asked.server == "storage"]
    assert len(stored) == 4
    assert {asked.authorization for asked in stored} == {None}


def test_no_token_of_the_machine_is_sent_unasked(served, workspace, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    get(served, workspace, token=None)
    assert {asked.authorization for asked in served.asked} == {None}


def test_the_environment_names_hub_and_token(served, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", served.url + "/")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub = Hub.from_environment()
    assert (hub.endpoint, hub.token) == (served.url, TOKEN)
    monkeypatch.setenv("HF_ENDPOINT", "huggingface.co")
    with pytest.raises(UserError, match="HF_ENDPOINT is not the address of a hub"):
        Hub.from_environment()


def test_a_full_disk_is_told_with_the_numbers_before_anything_comes(served, workspace, recorder, monkeypatch):
    usage = type("usage", (), {"free": 103_000_000})
    monkeypatch.setattr(partial_downloads.shutil, "disk_usage", lambda folder: usage)
    error = failing(served, workspace, recorder)
    assert "needs 4.6 MB more, and 103.0 MB are free" in error.message
    assert "Free 1.6 MB" in error.hint
    assert not served.sent


def test_a_disk_that_fills_up_on_the_way_keeps_what_came(served, workspace, recorder, monkeypatch):
    real = open

    def filling(path, mode="r", *rest, **named):
        if mode == "ab" and str(path).endswith(T3):
            raise OSError(28, "No space left on device", str(path))
        return real(path, mode, *rest, **named)

    monkeypatch.setattr("builtins.open", filling)
    error = failing(served, workspace, recorder)
    assert "No space left on device" in error.message
    assert "are free on that disk" in error.message
    assert (partial(workspace) / S3GEN).stat().st_size == len(FILES[S3GEN])


def test_a_stop_is_heard_while_bytes_come_and_while_none_come(served, workspace, recorder):
    served.fault(T3, bytes_per_s=200_000)
    recorder.stop_when = lambda: served.sent[T3] > 0
    with pytest.raises(StopRequested, match="kept"):
        get(served, workspace, recorder)
    served.fault(T3, stall_after=0)
    asked = threading.Event()
    stalled = Recorder(workspace.runs)
    stalled.stop_when = lambda: len([one for one in served.asked if T3 in one.path]) > 3 or asked.is_set()
    with pytest.raises(StopRequested):
        get(served, workspace, stalled, retry=STALLED)
    assert workspace.list_models() == []


@pytest.mark.parametrize(("wanted", "said"), [
    (order("english", save_as="chatterbox"), "holds chatterbox multilingual-v3, not chatterbox english"),
    (order(revision="v2"), "not 'v2'"),
])
def test_a_name_that_another_model_has_is_refused(served, workspace, wanted, said):
    get(served, workspace)
    with pytest.raises(UserError) as caught:
        get(served, workspace, wanted=wanted)
    assert said in caught.value.message
    assert "--save-as" in caught.value.hint


def test_a_folder_that_is_no_model_is_not_touched(served, workspace):
    (workspace.models / "chatterbox").mkdir()
    (workspace.models / "chatterbox" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match=r"it has no model.json"):
        get(served, workspace)
    assert os.listdir(workspace.models / "chatterbox") == ["mine.txt"]


def test_a_page_in_the_place_of_the_list_is_told(served, workspace, recorder):
    served.fault("list", content=b"<html>Welcome to the airport</html>")
    error = failing(served, workspace, recorder)
    assert "no list of files" in error.message
    assert "login in the browser" in error.hint


def test_offline_mode_is_told(served, workspace, recorder, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    error = failing(served, workspace, recorder)
    assert "HF_HUB_OFFLINE is set" in error.message
    assert "--folder" in error.hint
    assert served.asked == []


def test_a_hub_without_hashes_is_told(served, workspace, recorder, monkeypatch):
    real = Hub.list

    def bare(self, *rest):
        listing = real(self, *rest)
        return replace(listing, files={name: ExpectedFile(file.size) for name, file in listing.files.items()})

    monkeypatch.setattr(Hub, "list", bare)
    get(served, workspace, recorder)
    assert sum("gives no hash" in warning for warning in recorder.warnings) == len(FILES)
    assert read_model_record(workspace.model("chatterbox")).files[T3].sha256 == hashlib.sha256(FILES[T3]).hexdigest()
