"""The certificate of a finetuned model: named checks with expected and actual values.

Everything in it was computed by `core.proof.certification` from the files on disk. Never loads torch:
the page and the command line read it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from config import loading
from config.errors import UserError
from data.durable_files import write_json

CERTIFICATE = "certificate.json"
NOT_PROVEN_YET = "not proven yet"
"""What is said of a run that can be used before its certificate is complete."""
ERROR_RATES = "character_error_rates"
"""The check that names the error rate of each language, or why it was not measured."""
CheckOutcome = Literal["passed", "failed", "measured", "not proven"]


@dataclass(frozen=True)
class CertificateCheck:
    """One fact. `measured` has no right or wrong; `not proven` could not be computed, and `actual` says why."""

    name: str
    result: CheckOutcome
    expected: str
    actual: str
    what: str  # as a sentence


@dataclass(frozen=True)
class LanguageCER:
    """Character error rate of one language; `before` is of the base, or of the initial rows of a new language."""

    language: str
    new: bool
    sentences: int
    before: float | None
    after: float | None
    recordings_cer: float | None  # of the original recordings, by the same recogniser
    used_for_selection: bool = False  # these sentences selected the checkpoint: no others are held out


@dataclass(frozen=True)
class Certificate:
    """Checks and errors of one checkpoint."""

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
    input_hash: str = ""  # of all it was computed from, see `core.proof.certification`
    new_languages: tuple[str, ...] = ()  # that the training taught

    @property
    def complete(self) -> bool:
        """Whether the sentences were spoken; an export that was made before has the checks of its files alone."""
        return not any(check.name == ERROR_RATES and check.actual.endswith(NOT_PROVEN_YET) for check in self.checks)

    def of_the_same(self, other: Certificate) -> bool:
        """Whether both are of the same checkpoint, beside the same base."""
        return all(getattr(self, name) == getattr(other, name) for name in (
            "ref", "run", "step", "scope", "model", "extension", "base_hash", "fingerprint"))

    def proven(self) -> frozenset[str]:
        """What it says, passed or failed: names of checks, and of error rates by language."""
        return frozenset([*(check.name for check in self.checks if check.result != "not proven"),
                          *(f"error rate of {one.language}" for one in self.errors if one.after is not None)])

    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(check.name for check in self.checks if check.result == "failed")

    def blocking(self, override: Collection[str] = ()) -> tuple[str, ...]:
        """Names of failed checks that no override names."""
        return tuple(name for name in self.failed() if name not in override)

    def check(self, name: str) -> CertificateCheck:
        """The check called `name`."""
        return next(check for check in self.checks if check.name == name)


def write(path: Path, certificate: Certificate) -> None:
    """Write the certificate as JSON; an older one is replaced."""
    write_json(path, dataclasses.asdict(certificate))


def read(path: Path) -> Certificate:
    """The certificate in `path`; `UserError` when there is none or it is damaged."""
    if not path.is_file():
        raise UserError(f"There is no certificate at {path}.",
                        "Compute it: python -m scripts.certify; on the page: Certificate.")
    return loading.read_record(path, Certificate, "It is damaged. Export the run again.")
