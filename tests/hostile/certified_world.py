"""A workspace with a certified run and its export, and what an attacker does to a copy of it."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from config.schema import CertifyOptions
from core import certify, export
from core.jobs.checkpoint_names import set_choice
from core.library import certificate, verification
from core.library.certificate import CERTIFICATE, Certificate, CertifiedFile
from core.library.records import EXPORT_SUMS
from core.library.verification import Outcome, Subject
from core.workspace import Workspace
from data.durable_files import hash_tree
from tests.trained import RUN, trained_world
from tests.worlds import Listener, export_options

EXPORT = "mine"
Edit = Callable[[Certificate], Certificate]


@cache
def original() -> tuple[TemporaryDirectory[str], Workspace]:
    """Made once a process: a training of seconds, its certificate and its export."""
    folder = TemporaryDirectory(prefix="certified-")
    workspace = trained_world(Path(folder.name))
    set_choice(workspace.runs / RUN, "8")
    certify.run(CertifyOptions(run=f"run:{RUN}"), workspace, Listener(workspace.runs / "certify"))
    export.run(export_options(run=f"run:{RUN}", export=EXPORT), workspace, Listener(workspace.runs / "export"))
    return folder, workspace


def copied(path: Path) -> Workspace:
    """A copy of the workspace, with its key, for an attack."""
    return Workspace.open(shutil.copytree(original()[1].path, path, dirs_exist_ok=True))


def export_of(workspace: Workspace) -> Path:
    return workspace.exports / EXPORT


def run_of(workspace: Workspace) -> Path:
    return workspace.runs / RUN


def verify(workspace: Workspace, kind: str) -> verification.Verification:
    """What every consumer asks, each file read anew."""
    reference = f"run:{RUN}" if kind == "run" else f"export:{EXPORT}"
    return verification.verify(workspace, reference)


def outcome(workspace: Workspace, kind: str) -> Outcome:
    return verify(workspace, kind).outcome


def certified_path(workspace: Workspace, kind: str, file: CertifiedFile) -> Path:
    """Where a file that the certificate of the run or export lists lies."""
    if kind == "export":
        return export_of(workspace) / file.path
    return (workspace.models / "tiny" if file.of_base else run_of(workspace)) / file.path


def listed(kind: str) -> list[CertifiedFile]:
    """The files of the certificate of the run or export."""
    workspace = original()[1]
    folder = run_of(workspace) if kind == "run" else export_of(workspace)
    return list(certificate.read(folder / CERTIFICATE).files)


def flip_bit(path: Path, position: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[min(len(content) - 1, int(len(content) * position))] ^= 1
    path.write_bytes(bytes(content))


def seal(folder: Path) -> None:
    """Rewrite the list of hashes of an export, as anybody can."""
    (folder / EXPORT_SUMS).write_text(json.dumps(hash_tree(folder, (EXPORT_SUMS,))))


def relist(workspace: Workspace, kind: str) -> None:
    """Let the certificate list the files that are there now, keeping its signature, as anybody can."""
    def edit(proof: Certificate) -> Certificate:
        subject = (Subject.of_run(workspace, run_of(workspace), proof) if kind == "run"
                   else Subject.of_export(export_of(workspace)))
        return dataclasses.replace(proof, files=verification.certified_files(subject))

    rewrite(workspace, kind, edit)


def rewrite(workspace: Workspace, kind: str, edit: Edit) -> None:
    """Write an edited certificate, and the list of hashes of the export."""
    folder = run_of(workspace) if kind == "run" else export_of(workspace)
    certificate.write(folder / CERTIFICATE, edit(certificate.read(folder / CERTIFICATE)))
    if kind == "export":
        seal(folder)
