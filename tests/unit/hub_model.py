"""A model of the hub in miniature: files named as published, a reporter, and a quick patience."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from core.jobs.events import Event, Progress, Result, WarningRaised
from core.library.catalog import CatalogEntry, ModelVariant, find_entry, model_name, variant
from core.sources.base_models import DownloadRequest, download_model
from core.sources.downloader import RetryPolicy
from core.sources.hub import Hub
from core.workspace import Workspace
from tests.hub import LoopbackHub

MAIN, PACK = "ResembleAI/chatterbox", "ResembleAI/Chatterbox-Multilingual-hi"
T3, S3GEN = "t3_mtl23ls_v3.safetensors", "s3gen.safetensors"
GRAPHEMES, CANGJIE = "grapheme_mtl_merged_expanded_v1.json", "Cangjie5_TC.json"
QUICK = RetryPolicy(max_attempts=4, listing_attempts=2, first_wait_s=0.01, longest_wait_s=0.05)
STALLED = replace(QUICK, stall_s=0.5)  # for a hub that is made to fall silent; a busy machine is silent for as long
TOKEN = "hf_" + "Zt7" * 11
CHATTERBOX: CatalogEntry = find_entry("chatterbox")


def made_up(name: str, size: int) -> bytes:
    """Bytes that differ by name and place, so that a part put in the wrong place is seen."""
    return hashlib.shake_256(name.encode()).digest(size)


def safetensors(name: str, size: int) -> bytes:
    """A whole safetensors file of one tensor of `size` bytes."""
    header = json.dumps({"weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + made_up(name, size)


FILES = {
    T3: safetensors(T3, 3_000_000), S3GEN: safetensors(S3GEN, 1_500_000), "ve.safetensors": safetensors("ve", 50_000),
    "conds.pt": made_up("conds.pt", 10_000), GRAPHEMES: b'{"model": {}}', CANGJIE: b"[]",
}
OTHERS = {"README.md": b"# read me", "t3_cfg.safetensors": made_up("other", 100), "s3gen.pt": made_up("pickle", 100)}
TOTAL = sum(len(content) for content in FILES.values())


class Recorder:
    """A reporter that keeps what it hears, and asks for a stop once `stop_when` says so."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.events: list[Event] = []
        self.stop_when = lambda: False

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def stop_requested(self) -> bool:
        return self.stop_when()

    @property
    def warnings(self) -> list[str]:
        return [event.message for event in self.events if isinstance(event, WarningRaised)]

    @property
    def progress(self) -> list[Progress]:
        return [event for event in self.events if isinstance(event, Progress)]


def order(name: str = "", **changes: str) -> DownloadRequest:
    """The order of a variant, the recommended one for no name."""
    chosen: ModelVariant = variant(CHATTERBOX, name)
    return DownloadRequest(CHATTERBOX, chosen, changes.pop("save_as", model_name(CHATTERBOX, chosen)),
                           accept_unknown=variant_paths(chosen), **changes)


def variant_paths(chosen: ModelVariant) -> tuple[str, ...]:
    """The paths of all files of a variant: the made-up ones are not the published ones."""
    return tuple(part.path(name) for part in chosen.parts for names in part.files for name in names)


def get(served: LoopbackHub, workspace: Workspace, recorder: Recorder | None = None, token: str | None = None,
        wanted: DownloadRequest | None = None, retry: RetryPolicy = QUICK) -> Result:
    """Download from the loopback hub in this process."""
    recorder = recorder or Recorder(workspace.runs)
    return download_model(wanted or order(), Hub(served.url, token), workspace, recorder, retry)


def partial(workspace: Workspace, name: str = "chatterbox") -> Path:
    return workspace.models / f".{name}.partial"


def contents(folder: Path) -> dict[str, bytes]:
    """All files but the record."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "model.json"}
