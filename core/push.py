"""Upload an export to a repository of the hub, as one commit. Never loads torch.

Only an export whose certificate was computed by this workspace from exactly these files, has no failed check, and whose
card says what the licences of its base ask for leaves the machine. Large files go
first, one after the other, and the commit comes last: an upload that breaks off changes nothing in the repository, and
what the hub has is not sent again. `huggingface_hub` uploads in a thread, so that a stop is seen while it hangs.
"""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from config.errors import UserError
from config.schema import PushOptions
from core.jobs.events import Plan, Result, WarningRaised
from core.jobs.reporter import Reporter, size_text, stage
from core.library import certificate, records, verification
from core.library.catalog import find_entry
from core.library.records import EXPORT_AGAIN_HINT, EXPORT_CARD, EXPORT_SUMS
from core.library.verification import Outcome, Verification
from core.sources.downloader import DownloadProgress
from core.sources.hub import NOT_AN_ANSWER, Hub, bound_answers, check_repository_name
from core.workspace import Workspace
from data.durable_files import check_no_link_out, hash_file

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi

_STALL_S = 300.0  # without a byte taken or an answer
_POLL_S = 0.1
_STOPPED = "Stopped; it was not committed, so the repository shows nothing of it."
_AGAIN = "Push again: what the hub has already is not sent again."


def run(options: PushOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Upload `exports/NAME`; returns its address and the commit."""
    return push(options, workspace, reporter, Hub.from_environment())


def push(options: PushOptions, workspace: Workspace, reporter: Reporter, hub: Hub) -> Result:
    """`run` with the hub that is given. Its token must be that of `HF_TOKEN`."""
    check_repository_name(options.repository)
    if not os.environ.get("HF_TOKEN") or not hub.token:
        raise UserError("HF_TOKEN is not set: the hub must know who pushes.", _token_hint(hub))
    folder = workspace.export(options.export)
    with stage(reporter, "verify"):
        hashes = {**records.read_export_sums(folder), EXPORT_SUMS: hash_file(folder / EXPORT_SUMS)}
        names = list(hashes)
        records.check_export_files(folder)
        check_notices(folder)
        result = check_certificate(workspace, folder)
        hashes |= {file.path: file.sha256 for file in result.proof.files}
        check_no_link_out(folder, EXPORT_SUMS)
        if result.texts_note:
            reporter.emit(WarningRaised(f"{result.texts_note} They are uploaded as they are."))
    total = sum((folder / name).stat().st_size for name in names)
    seen_by = "everyone can see" if options.public else "only its owner can see"
    line = f"{len(names)} files, {size_text(total)}, to {hub.host}/{options.repository}, which {seen_by}."

    reporter.emit(Plan((line,), {"files": len(names), "bytes": total}))
    with ExitStack() as stack, stage(reporter, "upload"):
        files = {name: stack.enter_context(_ProgressFile(folder / name, digest)) for name, digest in hashes.items()}
        upload = _Upload(hub, options, files)
        _watch(upload, DownloadProgress(reporter, total, stopped=_STOPPED))

    for warning in upload.warnings:
        reporter.emit(WarningRaised(warning))
    return {"export": options.export, "url": f"{hub.address}/{options.repository}", "commit": upload.commit,
            "files": len(names), "bytes": total, "public": upload.public}


def check_certificate(workspace: Workspace, folder: Path) -> Verification:
    """Verify the certificate; `UserError` unless it is complete, of exactly these files, and of this workspace."""
    result = verification.verify_export(workspace, folder)
    failed = result.proof.failed()
    if failed:
        raise UserError(
            f"The certificate of {folder.name} has failed checks: {', '.join(failed)}. It is not pushed.",
            "Train again, and push a voice whose certificate has no failed check.",
        )
    if not result.proof.complete:
        raise UserError(f"The error rates of {folder.name} are {certificate.NOT_PROVEN_YET}: it was exported before "
                        "its certificate was complete. It is not pushed.",
                        "Compute the certificate of its run, then export it again: python -m scripts export.")
    if result.outcome is not Outcome.PASSED:
        raise UserError(f"{result.describe()} It is not pushed.", f"{EXPORT_AGAIN_HINT} {result.hint}")
    sums, certified = records.read_export_sums(folder), {file.path for file in result.proof.files}
    unlisted = sorted(certified - sums.keys())
    if unlisted:
        raise UserError(f"{folder / EXPORT_SUMS} does not list {', '.join(unlisted[:3])}, which the certificate is of.",
                        EXPORT_AGAIN_HINT)
    # A push sends what the list names, and nobody certified a file that was added to it.
    added = sorted(name for name in sums if name not in certified and not verification.stands_beside(name))
    if added:
        raise UserError(f"{folder / EXPORT_SUMS} lists {', '.join(added[:3])}, which the certificate does not know. It "
                        "is not pushed.", EXPORT_AGAIN_HINT)
    return result


def check_notices(folder: Path) -> None:
    """Raise `UserError` when the card lacks a notice that a licence of the base wants word for word, or its text."""
    family = find_entry(records.read_export_record(folder).origin.family)
    card = (folder / EXPORT_CARD).read_text(encoding="utf-8") if (folder / EXPORT_CARD).is_file() else ""
    for licence in family.licences:
        absent = [name for name in licence.files if name not in records.read_export_sums(folder)]
        if licence.notice not in card:
            absent.append(f"this notice in {EXPORT_CARD}: “{licence.notice}”")
        if absent:
            raise UserError(f"{folder.name} lacks {', '.join(absent)}. The {licence.title} wants that of every model "
                            "made from its own, so it is not pushed.", EXPORT_AGAIN_HINT)


class _ProgressFile(io.BufferedReader):
    """A file that counts how far it was read for the upload; its first reading is for its hash."""

    def __init__(self, path: Path, sha256: str) -> None:
        super().__init__(io.FileIO(path))
        self.sha256 = sha256
        self.size = path.stat().st_size
        self.counting = False
        self.sent = 0

    def read(self, size: int | None = -1, /) -> bytes:
        block = super().read(size)
        if self.counting:
            self.sent = max(self.sent, self.tell())
        return block


class _Upload:
    """The upload, in a thread. It ends before its next step when `abandoned` is set."""

    def __init__(self, hub: Hub, options: PushOptions, files: dict[str, _ProgressFile]) -> None:
        self.hub, self.options, self.files = hub, options, files
        self.abandoned = threading.Event()
        self.error: BaseException | None = None
        self.commit = ""
        self.public = options.public
        self.warnings: list[str] = []
        self.thread = threading.Thread(target=self._run, name="push", daemon=True)

    @property
    def sent(self) -> int:
        return sum(file.sent for file in self.files.values())

    def _run(self) -> None:
        try:
            with _explained(self.hub, self.options.repository):
                self._steps()
        except BaseException as error:  # noqa: BLE001  handed over to the thread that waits
            self.error = error

    def _steps(self) -> None:
        from huggingface_hub import CommitOperationAdd, HfApi

        name = self.options.repository
        bound_answers()
        api = HfApi(endpoint=self.hub.endpoint, token=self.hub.token)
        self._make_repository(api, name)
        additions: list[CommitOperationAdd] = []
        for path, file in self.files.items():
            if self.abandoned.is_set():
                return
            # The operation reads the file for its hash.
            additions.append(CommitOperationAdd(path, file))
            # Another file may have taken its name since it was checked.
            if additions[-1].upload_info.sha256.hex() != file.sha256:
                raise UserError(f"{path} changed while it was pushed. {_STOPPED}",
                                "Wait until nothing writes to the export, then push again.")
            file.counting = True
            api.preupload_lfs_files(name, additions=additions[-1:], num_threads=1)

        # The commit comes last, so that a stop changes no file of the repository.
        if not self.abandoned.is_set():
            message = f"Push the export {self.options.export}"
            self.commit = api.create_commit(name, additions, commit_message=message, num_threads=1).oid
            if not isinstance(self.commit, str):
                raise TypeError("a commit of a wrong type")
            for file in self.files.values():
                file.sent = file.size

    def _make_repository(self, api: HfApi, name: str) -> None:
        """Create the repository where it is missing; refuse one that more people can see than requested."""
        api.create_repo(name, private=not self.options.public, exist_ok=True)
        private = bool(api.model_info(name).private)
        if not private and not self.options.public:
            raise UserError(f"{name} exists already, and everyone can see it.",
                            "Add --public to push to it all the same, or name another repository.")
        if private and self.options.public:
            self.warnings.append(f"{name} exists already and is private; it stays private.")
        self.public = not private


def _watch(upload: _Upload, progress: DownloadProgress) -> None:
    """Report the upload's progress; after a stop no commit is made."""
    upload.thread.start()
    last, moved = -1, time.monotonic()
    try:
        while upload.thread.is_alive():
            sent = upload.sent
            # A connection that moves no byte for long is given up.
            if sent != last:
                last, moved = sent, time.monotonic()
            if time.monotonic() - moved > _STALL_S:
                raise UserError(f"{upload.hub.host} took no byte and gave no answer for {_STALL_S:g} s.", _AGAIN)
            progress.add(sent - progress.done, "")
            upload.thread.join(_POLL_S)
    finally:
        upload.abandoned.set()
    if upload.error is not None:
        raise upload.error
    progress.add(upload.sent - progress.done, "")


@contextmanager
def _explained(hub: Hub, repository: str) -> Iterator[None]:
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except errors.OfflineModeIsEnabled:
        raise UserError("Nothing can be pushed: HF_HUB_OFFLINE is set.", "Unset it.") from None
    except (errors.HfHubHTTPError, httpx2.HTTPError, httpx2.InvalidURL, RuntimeError, *NOT_AN_ANSWER) as raised:
        error = raised.__cause__ if type(raised) is RuntimeError and raised.__cause__ else raised
        status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
        if status in (401, 403):
            message = f"{hub.host} does not let the owner of the token in HF_TOKEN write to {repository} ({status})."
            raise UserError(message, _token_hint(hub)) from None
        reason = f"answered {status}" if status else (
            "sent something that is no answer of a hub" if isinstance(error, NOT_AN_ANSWER)
            else f"could not be reached or broke off ({type(error).__name__})")
        raise UserError(f"{hub.host} {reason} while {repository} was pushed.", _AGAIN) from None


def _token_hint(hub: Hub) -> str:
    return (f"Make a token that may write to that repository at {hub.address}/settings/tokens, set HF_TOKEN to it "
            "in the environment, and start Lisan again. Lisan stores it nowhere.")
