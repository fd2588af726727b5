"""Whether a certificate is complete, of exactly the files beside it, and computed by this workspace. Never loads torch.

This is the one answer that the page, Listen, compare, evaluate, push, pack, unpack and export use. The files of a
certificate are all files of the checkpoint or export that speech can depend on, and for a run those of its base model:
what is new beside them counts as well, because a loader might prefer it.

Files that lie beside each other cannot prove who made them: whoever can write the weights can write a certificate that
fits. So a certificate is believed only if this workspace's key signed it. That of another workspace is shown as its
sender's until it is computed again here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path, PurePosixPath

from config import foreign
from config.errors import UserError
from core.jobs.checkpoint_names import folder_of
from core.library import certificate, learning, lineage, records, workspace_key
from core.library.certificate import BASE_LANGUAGES, CERTIFICATE, CODEC, TEXTS, Certificate, CertifiedFile
from core.library.lineage import Model
from core.library.records import EXPORT_CARD, EXPORT_SUMS, MODEL_RECORD
from core.workspace import Workspace, resolve_inside
from data.durable_files import check_relative_path, hash_file

AGAIN_HINT = "Compute it again: python -m scripts certify --again --run {reference}; on the page: the Share tab."
IMPORTED = "imported.json"
"""In the folder of a run that came from another workspace: what its trainer reported cannot be checked here."""
NO_PROOF_OF_ORIGIN = ("Files that lie beside each other cannot prove who made them. A certificate of another workspace "
                      "says what its sender computed, or claims to have computed.")
HashFile = Callable[[Path], str]
"""Path to SHA-256."""

_PURPOSE = "certificate"
STATEMENT = "signed.sha256"
SIGNATURES = (f"{STATEMENT}.sig", f"{STATEMENT}.minisig")
"""In an export that its maker signed: the list of its files, and the signature (`core.library.maker_signature`)."""
_NOT_CERTIFIED = frozenset({CERTIFICATE, EXPORT_SUMS, EXPORT_CARD, STATEMENT, *SIGNATURES})
"""Files of an export that change after its certificate, or stand beside it."""
_OF_OTHER_PROGRAMS = frozenset({".git", ".gitattributes", ".gitignore", ".cache", ".DS_Store"})
"""Files and folders that other programs leave in copies, and that no loader reads."""
_TRAINER_STATE = frozenset({"training.safetensors", "training.json"})
"""Files of a checkpoint that only a resume reads."""
_NO_MODEL_SUFFIXES = frozenset({".txt", ".md", ".html", ".pdf", ".png", ".jpg", ".svg"})
"""A new file with one of these beside a model is not read by a loader, and does not count."""
_NEW_FILE_S = 2.0  # a file this young may change within the resolution of its times, so its hash is not kept
_MOST_NAMED = 3  # differing files that a sentence names
_EXPORT_CHECKS = {"export": ("export_reloads",), "recomputed": (), "restored": ()}
_RESTORED_CHECKS = ("prefix_rows", "frozen_tensors", "new_rows", "front_end", "base_logits", "base_tokens",
                    BASE_LANGUAGES, CODEC)


class Outcome(StrEnum):
    """What a certificate says of the files that it is read beside."""

    PASSED = "passed"
    FAILED = "failed"
    OTHER_FILES = "other files"
    INCOMPLETE = "incomplete"
    SENDER = "computed by the sender, not verified here"

    @property
    def bad(self) -> bool:
        """Whether it is shown in red."""
        return self in (Outcome.FAILED, Outcome.OTHER_FILES, Outcome.INCOMPLETE)

    @property
    def of_other_files(self) -> bool:
        """Whether nothing of the certificate is known to hold for these files."""
        return self in (Outcome.OTHER_FILES, Outcome.INCOMPLETE)


@dataclass(frozen=True)
class Verification:
    """The outcome for one certificate; `reason` is a sentence, empty if it passed."""

    reference: str
    outcome: Outcome
    proof: Certificate
    reason: str = ""
    # Whether no job of this workspace computed it, so that nothing in it is shown in green.
    claimed: bool = False
    # A sentence about card and evaluations that this workspace did not write.
    texts_note: str = ""

    def describe(self) -> str:
        """One sentence or two for a warning or a line of output."""
        return f"The certificate of {self.reference}: {self.outcome.value}. {self.reason}".rstrip()

    @property
    def hint(self) -> str:
        """What to do if it did not pass."""
        return AGAIN_HINT.format(reference=self.reference.partition("@")[0])


@dataclass(frozen=True)
class Subject:
    """The folders that a certificate belongs to: of a checkpoint, or of an export, and of the base of a checkpoint."""

    reference: str
    certificate: Path
    root: Path  # paths of its files are relative to it
    folder: Path  # folder that holds its files
    base: Path | None = None

    @classmethod
    def of_run(cls, workspace: Workspace, run_dir: Path, proof: Certificate) -> Subject:
        """The checkpoint of the run in `run_dir` that `proof` names."""
        return cls(f"run:{run_dir.name}@{proof.step}", run_dir / CERTIFICATE, run_dir, folder_of(run_dir, proof.step),
                   resolve_inside(workspace.models, proof.model))

    @classmethod
    def of_checkpoint(cls, workspace: Workspace, folder: Path, record: records.CheckpointRecord) -> Subject:
        """The checkpoint in `folder`, before it has a certificate."""
        run_dir = folder.parent.parent
        return cls(f"run:{run_dir.name}@{record.step}", run_dir / CERTIFICATE, run_dir, folder,
                   workspace.model(record.origin.model))

    @classmethod
    def of_export(cls, folder: Path) -> Subject:
        """The export in `folder`."""
        return cls(f"export:{folder.name}", folder / CERTIFICATE, folder, folder)


def list_files(subject: Subject) -> dict[tuple[str, bool], Path]:
    """The files that a certificate of `subject` belongs to: paths by (name, whether it is of the base)."""
    files = {(path.relative_to(subject.root).as_posix(), False): path
             for path in _plain_files(subject.folder, _is_certified)}
    if subject.base is not None and _has_base(subject):
        files |= {(path.relative_to(subject.base).as_posix(), True): path
                  for path in _plain_files(subject.base, _is_of_base, links=True)}
    return files


def is_trained_elsewhere(run_dir: Path) -> bool:
    """Whether what the trainer of a run reported is the word of others: it was imported, or its report was changed."""
    return (run_dir / IMPORTED).exists() or not learning.is_own(run_dir)


def hash_model(workspace: Workspace, reference: str, hash_one: HashFile = hash_file) -> str:
    """SHA-256 that names every file that a model is loaded from; of a run those of its base too."""
    model = Model.open(workspace, reference)
    match model.kind:
        case "export":
            files = list_files(Subject.of_export(model.folder))
        case "run":
            record = records.read_checkpoint(model.folder)
            files = list_files(Subject.of_checkpoint(workspace, model.folder, record))
        case _:
            files = {(path.relative_to(model.folder).as_posix(), True): path
                     for path in _plain_files(model.folder, _is_of_base, links=True)}
    return hashlib.sha256(json.dumps([(*key, hash_one(path)) for key, path in sorted(files.items())]).encode()
                          ).hexdigest()


def certified_files(subject: Subject, hash_one: HashFile = hash_file) -> tuple[CertifiedFile, ...]:
    """Size and SHA-256 of each file of `list_files`."""
    return tuple(CertifiedFile(name, path.stat().st_size, hash_one(path), of_base)
                 for (name, of_base), path in sorted(list_files(subject).items()))


def required_checks(proof: Certificate) -> tuple[str, ...]:
    """Names of the checks that a certificate of its kind, scope and files must have."""
    if proof.kind == "restored":
        return _RESTORED_CHECKS
    names = [name for name in certificate.CHECKS if name != "changed_tensors"]
    if proof.kind != "run":
        names += _EXPORT_CHECKS[proof.kind]
        names += ["merged_reloads"] if any("merged" in file.path for file in proof.files) else []
    elif any(PurePosixPath(file.path).name == records.CHANGED for file in proof.files):
        names.append("changed_tensors")
    return tuple(names)


def bind(workspace: Workspace, proof: Certificate, files: tuple[CertifiedFile, ...],
         texts: tuple[CertifiedFile, ...] = ()) -> Certificate:
    """`proof` with the files that it was computed from and the checks that it must have, signed by this workspace.

    `texts` are the card and the evaluations of an export that were written with it.
    """
    bound = dataclasses.replace(proof, files=files, texts=texts)
    return sign(workspace, dataclasses.replace(bound, required_checks=required_checks(bound)))


def check_unchanged(subject: Subject, files: tuple[CertifiedFile, ...], hash_one: HashFile = hash_file) -> None:
    """Raise `UserError` if the files of `subject` are no longer those that were listed before the computation."""
    if certified_files(subject, hash_one) != files:
        raise UserError(f"The files of {subject.reference} changed while its certificate was computed.",
                        "Wait until nothing writes to them, then compute it again.")


def sign(workspace: Workspace, proof: Certificate) -> Certificate:
    """`proof` with the signature of this workspace: only for what its own job has computed."""
    return dataclasses.replace(proof, signature=workspace_key.sign(workspace, _PURPOSE, _content(proof)))


def is_own(workspace: Workspace, proof: Certificate) -> bool:
    """Whether a job of this workspace computed exactly this certificate."""
    return bool(proof.signature) and workspace_key.is_signed(workspace, _PURPOSE, _content(proof), proof.signature)


def verify(workspace: Workspace, reference: str, hash_one: HashFile = hash_file) -> Verification:
    """Verify the certificate of `run:ID`, `run:ID@STEP` or `export:NAME`; `UserError` if it has none.

    `hash_one` gives the SHA-256 of a file: the default reads it, `HashCache` only if it changed.
    """
    model = Model.open(workspace, lineage.require_run_or_export(reference))
    if model.kind == "export":
        return verify_export(workspace, model.folder, hash_one)
    result = verify_run(workspace, workspace.run(model.name), hash_one)
    if result.proof.step != model.step:
        return dataclasses.replace(result, outcome=Outcome.OTHER_FILES, reason=(
            f"It is of step {result.proof.step}, and {reference} refers to step {model.step}."))
    return result


def spoken_note(workspace: Workspace, reference: str) -> str:
    """A sentence about the certificate of a model that speaks, for a warning; empty if it passed or has none yet."""
    if reference.partition(":")[0] not in ("run", "export"):
        return ""
    model = Model.open(workspace, reference)
    try:
        proof = certificate.read(model.certificate_path)
    except UserError as error:
        return "" if model.kind == "run" and not model.certificate_path.exists() else error.message
    if model.kind == "run" and proof.step != model.step:
        # This checkpoint is not certified yet. Who wanted silence would only have to write another step.
        return "" if is_own(workspace, proof) else (
            f"The certificate of {reference} names step {proof.step}, and no job of this workspace computed it.")
    result = verify(workspace, reference, hash_cache(workspace))
    return "" if result.outcome is Outcome.PASSED else result.describe()


def verify_export(workspace: Workspace, folder: Path, hash_one: HashFile = hash_file) -> Verification:
    """Verify the certificate of the export in `folder`; `UserError` if it has none."""
    subject = Subject.of_export(folder)
    return verify_proof(workspace, subject, certificate.read(subject.certificate), hash_one)


def verify_run(workspace: Workspace, run_dir: Path, hash_one: HashFile = hash_file) -> Verification:
    """Verify the certificate of the run in `run_dir` with the checkpoint that it names; `UserError` without one."""
    proof = certificate.read(run_dir / CERTIFICATE)
    return verify_proof(workspace, Subject.of_run(workspace, run_dir, proof), proof, hash_one)


def verify_proof(workspace: Workspace, subject: Subject, proof: Certificate,
                 hash_one: HashFile = hash_file) -> Verification:
    """Verify `proof` as the certificate of the files of `subject`."""
    def result(outcome: Outcome, reason: str = "") -> Verification:
        note, names = "", [name for name in TEXTS if (subject.folder / name).is_file()]
        if proof.kind != "run" and not proof.texts and names:
            note = f"Whether the figures in {', '.join(names)} are those of the certificate is not known."
        claimed = outcome is Outcome.SENDER or (outcome is Outcome.FAILED and not is_own(workspace, proof))
        return Verification(subject.reference, outcome, proof, reason, claimed, note)

    if not proof.files:
        return result(Outcome.INCOMPLETE, "It lists no files: it was computed by an older version, or its list was "
                                          "removed.")
    fault = _other_subject(subject, proof) or _differing_files(subject, proof, hash_one)
    if fault:
        return result(Outcome.OTHER_FILES, fault)
    failed = proof.failed()
    if failed:
        return result(Outcome.FAILED, f"Failed checks: {', '.join(failed)}.")
    fault = _incomplete(proof)
    if fault:
        return result(Outcome.INCOMPLETE, fault)
    fault_of_base = "" if _has_base(subject) else f"Its base model {proof.model!r} is not in this workspace."
    if not is_own(workspace, proof):
        return result(Outcome.SENDER, f"No job of this workspace computed it. {fault_of_base}".strip())
    return result(Outcome.OTHER_FILES, fault_of_base) if fault_of_base else result(Outcome.PASSED)


def _has_base(subject: Subject) -> bool:
    return subject.base is None or subject.base.is_dir()


def _other_subject(subject: Subject, proof: Certificate) -> str:
    """Whether the certificate names another run, step or model than the records among its files; a sentence."""
    is_run = subject.base is not None
    if is_run != (proof.kind == "run"):
        return f"It is of {'a run' if proof.kind == 'run' else 'an export'}, not of {subject.reference}."
    try:
        record: records.CheckpointRecord | records.ExportRecord = (
            records.read_checkpoint(subject.folder) if is_run
            else records.read_export_record(subject.folder))
    except UserError as error:
        return error.message

    # The certificate and the record beside the files must agree on everything that both state.
    stated = (proof.run, proof.step, proof.scope, proof.model, proof.base_hash, proof.fingerprint)
    origin = record.origin
    recorded = (record.run, record.step, record.scope, origin.model, origin.base_hash, origin.fingerprint)
    if stated != recorded or (is_run and proof.run != subject.root.name):
        return (f"It is of run {proof.run!r}, step {proof.step}, base {proof.base_hash[:12]}; these files are of run "
                f"{record.run!r}, step {record.step}, base {origin.base_hash[:12]}.")

    # The record of the base is no certified file, and says by which code its files are read.
    if subject.base is not None and _has_base(subject):
        try:
            base_record = records.read_model_record(subject.base)
        except UserError as error:
            return error.message
        family = base_record.family if base_record else subject.base.name
        if family != origin.family:
            return f"Its base model {proof.model!r} is of the family {origin.family!r}; there, it is of {family!r}."
    return ""


def _differing_files(subject: Subject, proof: Certificate, hash_one: HashFile) -> str:
    """A sentence about the files that are not those of the certificate; empty if all are."""
    certified: dict[tuple[str, bool], CertifiedFile] = {}
    for file in proof.files:
        try:
            check_relative_path(file.path, subject.certificate)
        except UserError as error:
            return error.message
        if certified.setdefault((file.path, file.of_base), file) is not file:
            return f"It lists {file.path} twice."

    try:
        present = list_files(subject)
    except UserError as error:
        return error.message

    if not _has_base(subject):
        certified = {key: file for key, file in certified.items() if not key[1]}
    faults = [f"{name} is missing" for name, of_base in certified if (name, of_base) not in present]
    faults += [f"{name} is new" for name, of_base in present if (name, of_base) not in certified
               and PurePosixPath(name).suffix.lower() not in _NO_MODEL_SUFFIXES]
    # Hashing takes seconds, so it is left out once a name is wrong.
    if not faults:
        faults = [f"{name} differs" for (name, _), file in certified.items()
                  if not _is_same(present[name, file.of_base], file, hash_one)]
    if not faults and proof.texts:
        faults = _differing_texts(subject.folder, proof, hash_one)

    if not faults:
        return ""
    further = f" and {len(faults) - _MOST_NAMED} more" if len(faults) > _MOST_NAMED else ""
    return f"These are not the files that it was computed from: {', '.join(faults[:_MOST_NAMED])}{further}."


def _differing_texts(folder: Path, proof: Certificate, hash_one: HashFile) -> list[str]:
    """The texts of an export that are not as they were written with its certificate; their figures may be forged."""
    written = {file.path: file for file in proof.texts}
    faults = []
    for name in dict.fromkeys((*TEXTS, *written)):
        exists = name in TEXTS and os.path.lexists(folder / name)
        if name not in written and exists:
            faults.append(f"{name} is new")
        elif name in written and not exists:
            faults.append(f"{name} is missing")
        elif name in written and ((folder / name).is_symlink() or not _is_same(folder / name, written[name], hash_one)):
            faults.append(f"{name} differs")
    return faults


def _is_same(path: Path, file: CertifiedFile, hash_one: HashFile) -> bool:
    try:
        return path.stat().st_size == file.size and hash_one(path) == file.sha256
    except OSError:
        return False


def _incomplete(proof: Certificate) -> str:
    """A sentence about the checks that are missing; empty if none is."""
    names = [check.name for check in proof.checks]
    required = dict.fromkeys((*required_checks(proof), *proof.required_checks))
    without_result = [name for name in required if name not in names]
    if without_result:
        return f"It has no result for {', '.join(without_result)}."
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        return f"It has several results for {', '.join(doubled)}."
    if proof.kind != "restored" and not proof.complete:
        return f"Its error rates are {certificate.NOT_PROVEN_YET}."
    if not any(check.result == "passed" for check in proof.checks):
        return "It has no check that passed."
    return ""


def _plain_files(folder: Path, is_wanted: Callable[[str], bool], *, links: bool = False) -> Iterator[Path]:
    """The wanted files below `folder`; `UserError` for a device, too many files, and a link unless `links` are read."""
    pending, visited, count = [folder], set[str](), 0
    while pending:
        place = pending.pop()
        # Links may lead in a circle.
        real = os.path.realpath(place)
        if real in visited:
            continue
        visited.add(real)

        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError as error:
            raise UserError(f"{place} cannot be listed: {error.strerror}.") from error

        for entry in entries:
            path = Path(entry.path)
            if entry.name in _OF_OTHER_PROGRAMS or not is_wanted(path.relative_to(folder).as_posix()):
                continue
            if entry.is_symlink() and not links:
                raise UserError(f"{path} is a link.")
            if entry.is_dir():
                pending.append(path)
                continue
            count += 1
            if not entry.is_file() or count > certificate.MOST_FILES:
                raise UserError(f"{folder} has more than {certificate.MOST_FILES} files." if entry.is_file()
                                else f"{path} is no plain file.")
            yield path


def stands_beside(name: str) -> bool:
    """Whether a file of an export, by its name there, is one that Lisan writes beside what it certifies."""
    return name in _NOT_CERTIFIED or name in TEXTS


def _is_certified(name: str) -> bool:
    """Whether a file of a checkpoint or an export, by its name there, belongs to the certificate."""
    return not (stands_beside(name) or name in _TRAINER_STATE)


def _is_of_base(name: str) -> bool:
    """Whether a file of a base model belongs to the certificate: its record changes when the model is probed."""
    return name not in (MODEL_RECORD, EXPORT_CARD)


class NotHashed(Exception):
    """A file must be read first, and that takes longer than the page can wait."""


class HashCache:
    """SHA-256 of files by their stamp: device, inode, size, and times of change. For the page, which asks each second.

    It outlives the process in a file that the workspace signs line by line. A file that is changed and gets its old
    time again has another time of status change, which no program can set.
    """

    _FILE, _PURPOSE, _MOST_BYTES = "hashes.jsonl", "file hash", 8 << 20

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._path = workspace.cache / certificate.FOLDER / self._FILE
        self._hashes: dict[str, str] | None = None
        self._lock = threading.Lock()

    def __call__(self, path: Path) -> str:
        """The SHA-256 of `path`, which is read if its stamp is new."""
        return self._known(path) or self._read(path)

    def at_most(self, size: int) -> HashFile:
        """The same function for one verification; it raises `NotHashed` instead of reading more than `size` bytes."""
        remaining = size

        def hash_one(path: Path) -> str:
            nonlocal remaining
            digest = self._known(path)
            if digest:
                return digest
            remaining -= path.stat().st_size
            if remaining < 0:
                raise NotHashed(path)
            return self._read(path)

        return hash_one

    def _known(self, path: Path) -> str:
        with self._lock:
            if self._hashes is None:
                self._hashes = self._load()
            return self._hashes.get(_stamp(os.stat(path)), "")

    def _read(self, path: Path) -> str:
        began = time.time()
        with open(path, "rb") as file:
            # Linux changes the times of a file when its mapped memory is written for the first time after a sync.
            with suppress(OSError):
                os.fsync(file.fileno())
            status_before = os.fstat(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            after = os.fstat(file.fileno())
        # A file that changed within the resolution of its times could change again under the same stamp.
        is_settled = began - max(after.st_mtime, after.st_ctime) > _NEW_FILE_S
        if is_settled and _stamp(status_before) == _stamp(after):
            self._store(_stamp(after), digest)
        return digest

    def _store(self, stamp: str, digest: str) -> None:
        mac = workspace_key.sign(self._workspace, self._PURPOSE, f"{stamp} {digest}".encode())
        with self._lock:
            if self._hashes is not None:
                self._hashes[stamp] = digest
            with suppress(OSError):  # a full disk: then it is read again next time
                self._path.parent.mkdir(parents=True, exist_ok=True)
                if self._path.is_file() and self._path.stat().st_size > self._MOST_BYTES:
                    self._path.unlink()
                with open(self._path, "a", encoding="utf-8") as file:
                    file.write(json.dumps([stamp, digest, mac]) + "\n")

    def _load(self) -> dict[str, str]:
        hashes: dict[str, str] = {}
        try:
            lines = foreign.read_bytes(self._path, 2 * self._MOST_BYTES).splitlines()
        except (OSError, ValueError):
            return hashes
        for line in lines:
            with suppress(ValueError, TypeError):
                stamp, digest, mac = map(str, json.loads(line))
                if workspace_key.is_signed(self._workspace, self._PURPOSE, f"{stamp} {digest}".encode(), mac):
                    hashes[stamp] = digest
        return hashes


def _stamp(status: os.stat_result) -> str:
    return (f"{status.st_dev}-{status.st_ino}-{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}")


@lru_cache(16)
def hash_cache(workspace: Workspace) -> HashCache:
    """The one cache of this process for `workspace`."""
    return HashCache(workspace)


def _content(proof: Certificate) -> bytes:
    """What is signed: every value of the certificate but the signature."""
    values = dataclasses.asdict(dataclasses.replace(proof, signature=""))
    if not proof.texts:
        # Older certificates were signed without this field.
        del values["texts"]
    return json.dumps(values, sort_keys=True).encode()
