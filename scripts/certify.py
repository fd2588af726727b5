"""Compute the certificate of a run or an export (`--run`), or compare it with its files (`--check`).

`--run run:ID@STEP` chooses that checkpoint, and certifies it. `--check run:ID` or `--check export:NAME` reads files
only: it starts no job and loads no model. `--signer` beside it asks who signed the export.
"""

import argparse
import json
import sys
from collections.abc import Sequence

import scripts  # noqa: F401  so that this file can be run directly, see scripts/scripts.py
from core.library import maker_signature, verification
from core.library.maker_signature import MakerOutcome
from core.library.verification import Outcome
from core.workspace import Workspace
from scripts.command import exit_with, run_in_workspace, run_verb, script_parser

_CHECK = "--check"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, or compute; the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if any(argument.partition("=")[0] == _CHECK for argument in words):
        # The comparison with the files is no job, so it has a parser of its own.
        parser = script_parser("certify", "Compare the certificate of a run or an export with its files.",
                               "print the outcome as one line of JSON")
        parser.add_argument(_CHECK, required=True, metavar="REFERENCE", help="run:ID, run:ID@STEP or export:NAME")
        parser.add_argument("--signer", metavar="NAME_OR_KEY", default="", help=(
            "exit code 0 only if this maker signed the export: a name of python -m scripts signature list, or a public "
            "key. Then a certificate that the maker computed and signed is enough"))
        return run_in_workspace(parser, words, check)
    return run_verb("certify", words)


def check(workspace: Workspace, args: argparse.Namespace) -> int:
    """Print what the certificate says of the files that are there now; every file is read."""
    signer = maker_signature.find_signer(workspace, args.signer) if args.signer else None
    result = verification.verify(workspace, args.check)
    proof = result.proof
    is_good = result.outcome is Outcome.PASSED

    # A signature of the maker covers an export, which leaves the workspace; a run stays in it.
    signature = None
    if result.reference.startswith("export:"):
        signature = maker_signature.check(workspace, workspace.export(args.check.removeprefix("export:")),
                                          signer=signer)
    if signer is not None:
        # The person named whose word is enough, and it covers the certificate only if it is as it was signed.
        is_signed = signature is not None and signature.outcome is MakerOutcome.TRUSTED
        of_maker = result.outcome is Outcome.SENDER and signature is not None and signature.of_certificate
        is_good = is_signed and (is_good or of_maker)

    # A program gets one line of JSON, a person sentences.
    if args.json:
        print(json.dumps({
            "status": "ok" if is_good else "failed", "item": result.reference,
            "certificate": result.outcome.value, "reason": result.reason, "files": len(proof.files),
            "texts": result.texts_note, "signature": signature.describe() if signature else "",
            "checks": {item.name: item.result for item in proof.checks}}, ensure_ascii=False))
    else:
        print(result.describe())
        if result.texts_note:
            print(result.texts_note)
        if signature is not None:
            print(signature.describe())
        elif signer is not None:
            print("Only exports are signed by their makers.")
        if result.outcome is Outcome.PASSED:
            names = ", ".join(item.name for item in proof.checks if item.result == "not proven")
            unproven = f"; not proven: {names}" if names else ""
            print(f"{len(proof.files)} files have the sizes and hashes that it lists; {len(proof.checks)} checks, "
                  f"none failed{unproven}. {proof.describe()}")
            if proof.base_note:
                print(f"{proof.base_note[0].upper()}{proof.base_note[1:]}.")
            if proof.trained_elsewhere:
                print("It was trained elsewhere, or its trainer's report was changed or is of an older version: what "
                      "it reported is its sender's word.")
        elif is_good:
            print(f"{signer.name if signer else ''} signed these files with this certificate: what it says is the word "
                  "of that maker.")
        else:
            print(result.hint)
    return 0 if is_good else 1


if __name__ == "__main__":
    exit_with(main)
