"""The certificate of a finetuned model: named checks with expected and actual values, and error rates by language.

The checks say what was preserved. What was learned stands beside them, from the measurements of the training.

`core.proof.certification` computes it from the files on disk. This module never loads torch, because the page and the
command line read certificates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from config import loading
from config.errors import UserError
from config.languages import language_name
from core.library import learning as learning_outcome
from core.library.learning import LanguageOutcome, Learning, LearningReport
from core.library.records import EXPORT_CARD
from data.durable_files import hash_file, write_json

CERTIFICATE = "certificate.json"
FOLDER = "certificates"
"""In the workspace's cache: certificates and scores for later use."""
NOT_PROVEN_YET = "not proven yet"
"""Shown for a run whose certificate is not complete yet."""
ERROR_RATES = "character_error_rates"
"""The check that names the error rate of each language, or why it was not measured."""
BASE_LANGUAGES = "base_languages"
"""The check that every base language is among the samples of the others, or which ones are not, and why."""
CODEC = "codec_and_vocoder"
"""The check that codec, vocoder and all other weights beside the language model are those of the base."""
CHECKS = ("prefix_rows", "frozen_tensors", "changed_tensors", "frozen_in_training", "base_logits", BASE_LANGUAGES,
          "base_tokens", "front_end", CODEC, ERROR_RATES)
"""What `core.proof.certification` computes; `changed_tensors` in scope `full` alone."""
TEXTS = (EXPORT_CARD, "evaluation/evaluation.json", "evaluation/evaluation.md", "evaluation/evaluation.html")
"""Files of an export with figures for people: they belong to a certificate whose workspace wrote them."""
_RATE = "error rate of "
CheckOutcome = Literal["passed", "failed", "measured", "not proven"]
BaseIdentity = Literal["published", "unlisted", "unknown", "not compared"]
"""Whether the base's files are the published ones; `unlisted`: no published hash is known of some, and none differs."""
CertificateKind = Literal["run", "export", "restored", "recomputed"]
"""What was certified: a checkpoint, its export, an export of the doctor, or an export alone (`certify --again`)."""
_BROKEN_CER = 0.2  # rise of a base language's CER with which it no longer works


class Preservation(StrEnum):
    """What the checks say of the base languages."""

    UNCHANGED = "unchanged"
    # Only scope `full` may change them.
    CHANGED = "changed"
    BROKEN = "broken"
    FAILED = "failed"
    NOT_PROVEN = "not proven"

    @property
    def bad(self) -> bool:
        """Whether it is shown in red."""
        return self in (Preservation.BROKEN, Preservation.FAILED)


@dataclass(frozen=True)
class CertificateCheck:
    """One check. `measured`: neither passed nor failed; `not proven`: not computed, with the reason in `actual`."""

    name: str
    result: CheckOutcome
    expected: str
    actual: str
    what: str  # a sentence about the subject of the check


@dataclass(frozen=True)
class CertifiedFile:
    """A file that the certificate belongs to: of the run or export, or of its base model."""

    path: str  # path in the folder of the run, of the export or of the base model
    size: int  # bytes
    sha256: str
    of_base: bool = False


@dataclass(frozen=True)
class LanguageCER:
    """Character error rate of one language; `before` is of the base, or of the initial rows of a new language."""

    language: str
    new: bool
    sentences: int
    before: float | None
    after: float | None
    # The error rate of the original recordings, by the same recogniser.
    recordings_cer: float | None
    used_for_selection: bool = False  # the checkpoint was selected by these sentences, as there are no others
    # The recogniser of the dataset if it measured: it is not independent.
    measured_by: str = ""


@dataclass(frozen=True)
class Certificate:
    """The checks and error rates of one checkpoint."""

    ref: str
    run: str
    step: int
    scope: str
    model: str
    extension: str
    base_hash: str
    fingerprint: str
    created: float  # seconds since 1970
    checks: tuple[CertificateCheck, ...]
    errors: tuple[LanguageCER, ...]
    input_hash: str = ""  # hash of all inputs, see `core.proof.certification`
    new_languages: tuple[str, ...] = ()  # languages that the training added
    base_files: BaseIdentity = "not compared"  # beside the published files of the model
    # The files that are unknown or not listed; "" if there are none.
    base_note: str = ""
    learning: Learning = Learning.NOT_MEASURED
    learning_languages: tuple[LanguageOutcome, ...] = ()  # measurements that the outcome was decided from
    kind: CertificateKind = "run"
    files: tuple[CertifiedFile, ...] = ()  # every file that it belongs to, see `core.library.verification`
    required_checks: tuple[str, ...] = ()  # names of all checks that a certificate of this kind and scope has
    # Card and evaluations of an export as Lisan wrote them; none: they are of a sender, or of an older version.
    texts: tuple[CertifiedFile, ...] = ()
    # The trainer's report (frozen tensors in memory, learning) is then the sender's.
    trained_elsewhere: bool = False
    signature: str = ""  # signature by the key of the workspace that computed it

    @property
    def learning_report(self) -> LearningReport:
        """What the training of this checkpoint taught."""
        return LearningReport(self.step, self.learning, self.learning_languages)

    def with_learning(self, run_dir: Path) -> Certificate:
        """The certificate with what the training in `run_dir` measured of its step."""
        report = learning_outcome.read_report(run_dir, self.step)
        return dataclasses.replace(self, learning=report.learning, learning_languages=report.languages)

    @property
    def preservation(self) -> Preservation:
        """What is known of the base languages."""
        if self.failed():
            return Preservation.FAILED
        logits = next((check.result for check in self.checks if check.name == "base_logits"), "not proven")
        if logits == "measured":
            return Preservation.BROKEN if self._broken_languages() else Preservation.CHANGED
        if logits == "not proven" or self.unproven_languages():
            return Preservation.NOT_PROVEN
        return Preservation.UNCHANGED

    def _broken_languages(self) -> list[LanguageCER]:
        return [error for error in self.errors if not error.new and error.before is not None and error.after is not None
                and error.after - error.before > _BROKEN_CER]

    def describe_preservation(self) -> str:
        """What is known of the base languages, in words."""
        match self.preservation:
            case Preservation.FAILED:
                return f"failed checks: {', '.join(self.failed())}"
            case Preservation.BROKEN:
                return "broken, " + ", ".join(f"{language_name(error.language)}: CER {error.before:.0%} before, "
                                              f"{error.after:.0%} after" for error in self._broken_languages())
            case Preservation.CHANGED:
                return "changed (scope full), see the drift"
            case Preservation.NOT_PROVEN:
                return "not proven"
            case Preservation.UNCHANGED:
                return "unchanged (logits bit-identical)"

    def describe(self) -> str:
        """What was preserved and what was learned, which never stand alone."""
        return (f"Old languages: {self.describe_preservation()}. New language: "
                f"{learning_outcome.describe_report(self.learning_report)}.")

    @property
    def complete(self) -> bool:
        """Whether the error rates were computed; an export made before that has only the checks of its files."""
        return not any(check.name == ERROR_RATES and check.actual.endswith(NOT_PROVEN_YET) for check in self.checks)

    def has_same_subject(self, other: Certificate) -> bool:
        """Whether both certify the same checkpoint against the same base."""
        return all(getattr(self, name) == getattr(other, name) for name in (
            "ref", "run", "step", "scope", "model", "extension", "base_hash", "fingerprint"))

    def proven(self) -> frozenset[str]:
        """What was computed, passed or failed: the names of checks, and of error rates by language."""
        return frozenset([*(check.name for check in self.checks if check.result != "not proven"),
                          *(_RATE + error.language for error in self.errors if error.after is not None)])

    def proves_more(self, other: Certificate) -> bool:
        """Whether it has all that `other` has and more; or more of the error rates, which cost the most."""
        names, other_names = self.proven(), other.proven()
        rates = {name for name in names if name.startswith(_RATE)}
        other_rates = {name for name in other_names if name.startswith(_RATE)}
        return names > other_names or rates > other_rates

    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(check.name for check in self.checks if check.result == "failed")

    def blocking(self, override: Collection[str] = ()) -> tuple[str, ...]:
        """Names of failed checks that are not in `override`."""
        return tuple(name for name in self.failed() if name not in override)

    def unproven_languages(self) -> str:
        """The base languages of which nothing was compared, with the reasons; empty if there are none."""
        return next((check.actual for check in self.checks
                     if check.name == BASE_LANGUAGES and check.result == "not proven"), "")

    def check(self, name: str) -> CertificateCheck:
        """The check called `name`."""
        return next(check for check in self.checks if check.name == name)


def list_texts(folder: Path, hash_one: Callable[[Path], str] = hash_file) -> tuple[CertifiedFile, ...]:
    """Size and SHA-256 of card and evaluations of the export in `folder`, whose figures people read."""
    paths = [folder / name for name in TEXTS if (folder / name).is_file()]
    return tuple(CertifiedFile(path.relative_to(folder).as_posix(), path.stat().st_size, hash_one(path))
                 for path in paths)


_MOST_BYTES, _MOST_ROWS = 16 << 20, 2000  # an error rate for each language; a panel shows every row
MOST_FILES = 20_000  # a base model may come with thousands of recordings


def write(path: Path, certificate: Certificate) -> None:
    """Write the certificate as JSON, in the place of an older one."""
    write_json(path, dataclasses.asdict(certificate))


def read(path: Path) -> Certificate:
    """The certificate in `path`; `UserError` if there is none or it is damaged."""
    if not path.is_file():
        raise UserError(f"There is no certificate at {path}.",
                        "Compute it: python -m scripts certify; on the page: the Share tab.")
    # The file may be foreign, so its size is limited before it is read.
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise UserError(f"{path} has {size} bytes; a certificate has at most {_MOST_BYTES}.",
                        "It was not written by Lisan. Compute it again.")
    certificate = loading.read_record(path, Certificate, "It is damaged. Export the run again.")
    count = max(len(certificate.checks), len(certificate.errors))
    if count > _MOST_ROWS:
        raise UserError(f"{path} has {count} checks or error rates; a certificate has at most {_MOST_ROWS}.",
                        "It was not written by Lisan. Compute it again.")
    if len(certificate.files) > MOST_FILES:
        raise UserError(f"{path} lists {len(certificate.files)} files; a certificate lists at most {MOST_FILES}.",
                        "It was not written by Lisan. Compute it again.")
    return certificate
