"""The signature of an export's maker, and the makers who are trusted in this workspace.

    python -m scripts signature sign export:my-voice --key ~/.ssh/id_ed25519     by ssh-keygen, or minisign
    python -m scripts signature statement export:my-voice > signed.sha256        what is signed, for another machine
    python -m scripts signature attach export:my-voice signed.sha256.sig         a signature that was made there
    python -m scripts signature trust me@example.org ~/.ssh/id_ed25519.pub       a maker's public key, by a name
    python -m scripts signature list                                             the makers who are trusted
    python -m scripts signature forget me@example.org

Verified by python -m scripts certify --check, python -m scripts unpack and the page. With other programs:

    ssh-keygen -Y verify -f allowed_signers -I me@example.org -n lisan-export -s signed.sha256.sig < signed.sha256
    sha256sum -c signed.sha256
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import scripts  # noqa: F401  so that this file can be run directly, see scripts/scripts.py
from config import foreign
from config.errors import UserError
from core.library import maker_signature
from core.library.lineage import Model
from core.workspace import Workspace
from scripts.command import actions_parser, exit_with, run_in_workspace


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the action of the command line; the exit code."""
    return run_in_workspace(build_parser(), arguments, _run)


def build_parser() -> argparse.ArgumentParser:
    parser, add_action = actions_parser("signature", __doc__, "end with the outcome as one line of JSON")
    signing = add_action("sign", help="sign an export with a private key")
    signing.add_argument("export", help="export:NAME")
    signing.add_argument("--key", required=True, type=Path,
                         help="file of an SSH key or a minisign key; a .pub file if the SSH agent has its other half")
    add_action("statement", help="print what is signed").add_argument("export", help="export:NAME")
    attaching = add_action("attach", help="add a signature that was made on another machine")
    attaching.add_argument("export", help="export:NAME")
    attaching.add_argument("signature", type=Path, help="the file that ssh-keygen or minisign wrote")
    trusting = add_action("trust", help="trust a maker's public key")
    trusting.add_argument("name", help="a name of your own for the maker")
    trusting.add_argument("key", nargs="+", help="the public key, or its file")
    add_action("list", help="the makers who are trusted")
    add_action("forget", help="trust a maker no longer").add_argument("name")
    return parser


def _run(workspace: Workspace, args: argparse.Namespace) -> Mapping[str, Any] | int:
    match args.do:
        case "sign":
            return _print(maker_signature.sign(workspace, _folder(workspace, args.export), args.key))
        case "attach":
            folder, signature = _folder(workspace, args.export), _read(args.signature)
            return _print(maker_signature.attach(workspace, folder, signature))
        case "statement":
            sys.stdout.write(maker_signature.statement(_folder(workspace, args.export)).decode())
            return 0
        case "trust":
            words = " ".join(args.key)
            is_file = len(args.key) == 1 and Path(words).expanduser().is_file()
            text = _read(Path(words).expanduser()).decode("utf-8", "replace") if is_file else words
            signer = maker_signature.trust(workspace, args.name, text)
            print(f"Trusted: {signer.name} ({signer.key.describe()}).")
        case "forget":
            signer = maker_signature.forget(workspace, args.name)
            print(f"No longer trusted: {signer.name} ({signer.key.describe()}).")
    signers = maker_signature.read_signers(workspace)
    if args.do == "list":
        print("\n".join(f"{signer.name} {signer.key.describe()}" for signer in signers) or "Nobody is trusted yet.")
    return {"signers": {signer.name: signer.key.describe() for signer in signers}}


def _folder(workspace: Workspace, reference: str) -> Path:
    if not reference.startswith("export:"):
        raise UserError(f"{reference[:100]!r} is no export, and only exports are signed.", "Write export:NAME.")
    return Model.open(workspace, reference).folder


def _read(path: Path) -> bytes:
    try:
        return foreign.read_bytes(path, maker_signature.MOST_BYTES)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.", "Give the path of a file.") from error


def _print(signature: maker_signature.MakerSignature) -> Mapping[str, Any]:
    print(signature.describe())
    return {"signature": signature.describe()}


if __name__ == "__main__":
    exit_with(main)
