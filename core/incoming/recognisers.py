"""A speech recogniser of a person's choice: from the hub into `recognisers/NAME`, or a folder that they have.

The files come by `core.incoming.fetch`, resumed, checked and stoppable, so that no library asks the network by itself.
Of the weights safetensors are taken; PyTorch's own only where there are no others. Never loads torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from config.errors import UserError
from core.incoming.fetch import Order, check_disk, from_hub, partial_folder
from core.incoming.hub import Hub, Listing, RemoteFile
from core.incoming.transfer import Fetcher, Meter, Patience, ask
from core.job.reporter import Reporter, stage
from core.library.catalog import Family, Part, Variant
from core.library.model_record import RECORD, hash_file, read_record
from core.workspace import Workspace

BUILT_IN = "built-in"
_SETTINGS = (".json", ".txt", ".model", ".jinja")
_LARGEST_SETTING = 64 << 20  # bytes; vocabularies are the largest
_SHARD = re.compile(r"(model|pytorch_model)-\d{5}-of-\d{5}\.(safetensors|bin)")
_ADAPTER = "adapter.{}.safetensors"
_NEWEST = "main"  # what is asked for where no revision is named
_CHOOSE = "Choose one that transformers loads, such as openai/whisper-small or facebook/mms-1b-all."


@dataclass(frozen=True)
class Asked:
    """By which option a verb takes a recogniser, and what the page calls that."""

    option: str
    field: str

    @property
    def language_option(self) -> str:
        """That which says what the recogniser calls the language."""
        return f"{self.option}-language"

    @property
    def by_hand(self) -> str:
        return f"{self.option} FOLDER; on the page: {self.field}"

    @property
    def by_name(self) -> str:
        return f"{self.language_option}; on the page: The {self.field.lower()}'s name of the language"


AS_RECOGNISER = Asked("--recogniser", "Recogniser")


def bring(name: str, revision: str, adapters: Sequence[str], workspace: Workspace, reporter: Reporter,
          hub: Hub | None = None, patience: Patience = Patience(),  # noqa: B008  a frozen value
          asked: Asked = AS_RECOGNISER) -> Path:
    """The folder of the recogniser; `adapters` are names for the language, of which the first that it has is taken."""
    if Path(name).is_absolute():
        return on_this_machine(Path(name))
    target = folder_of(workspace, name, revision)
    check(target, asked)
    if _has_all(target, adapters):
        return target
    hub = replace(hub or Hub.from_environment(), otherwise=asked.by_hand)
    workspace.recognisers.mkdir(exist_ok=True)
    record = read_record(target) if target.is_dir() else None
    pinned = record.revision if record and record.revision else revision  # a language must fit what is there
    listing = ask(lambda: hub.list(name, pinned, patience.stall_s), reporter, patience, name)
    if not target.is_dir():
        names = list(chosen(listing))
        variant = Variant(name, name, "", (Part(name, tuple((one,) for one in names)),), ())
        family = Family("recogniser", name, "", "", "licence on its page", "", True, "", (variant,))
        from_hub(Order(family, variant, target.name, revision, workspace.recognisers), hub, workspace, reporter,
                 patience)
    for code in adapters:
        if (file := _ADAPTER.format(code)) in listing.files:
            with partial_folder(target):  # two jobs would write into one file
                if not (target / file).is_file():
                    _fetch_adapter(RemoteFile(name, listing.commit, file, listing.files[file]), target, hub, reporter,
                                   patience)
            break
    return target


def folder_of(workspace: Workspace, name: str, revision: str) -> Path:
    """Where a revision of OWNER/NAME lies, or would lie: each in a folder of its own, the first plainly named."""
    plain = workspace.recognisers / folder_name(name)
    record = read_record(plain) if plain.is_dir() else None
    if revision in ((record.asked, record.revision) if record else (_NEWEST,)):
        return plain
    digest = hashlib.sha256(revision.encode()).hexdigest()[:8]
    return plain.with_name(f"{plain.name[:40]}-at-{re.sub(r'[^A-Za-z0-9.]+', '-', revision)[:12]}-{digest}")


def folder_name(name: str) -> str:
    """OWNER/NAME as the name of a folder."""
    plain = name.replace("/", "--")
    return plain if len(plain) <= 64 else f"{plain[:55]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def chosen(listing: Listing) -> Iterator[str]:
    """The files of a repository that loading it needs: settings, and the weights in one form."""
    names = [name for name in listing.files if "/" not in name and not name.startswith(".")]
    weights = _weights(names)
    if "config.json" not in names or not weights:
        raise UserError(f"{listing.repository} holds no recogniser that can be loaded: it lacks "
                        f"{'config.json' if 'config.json' not in names else 'weights of PyTorch'}.", _CHOOSE)
    yield from weights
    for name in names:
        if name.endswith(_SETTINGS) and listing.files[name].size <= _LARGEST_SETTING and name not in weights:
            yield name


def _weights(names: Sequence[str]) -> list[str]:
    for kind in ("safetensors", "bin"):
        whole = "model.safetensors" if kind == "safetensors" else "pytorch_model.bin"
        if whole in names:
            return [whole]
        if shards := [name for name in names if (match := _SHARD.fullmatch(name)) and match[2] == kind]:
            return sorted(shards)
    return []


def _has_all(target: Path, adapters: Sequence[str]) -> bool:
    """Whether nothing need be asked for: it is there, and so is the language, where it keeps languages apart."""
    if not target.is_dir():
        return False
    try:
        config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{target / 'config.json'} could not be read: {error}.", remedy(target)) from error
    by_language = any(target.glob(_ADAPTER.format("*"))) or config.get("adapter_attn_dim") is not None
    return not by_language or not adapters or any((target / _ADAPTER.format(code)).is_file() for code in adapters)


def check(folder: Path, asked: Asked = AS_RECOGNISER) -> None:
    """Raise `UserError` where a file of a recogniser that was fetched is gone, or has not the size it came with."""
    record = read_record(folder) if folder.is_dir() else None
    for name, expected in record.files.items() if record else ():
        path = folder / name
        if not path.is_file():
            raise UserError(f"The recogniser in {folder} lacks {name}.", remedy(folder, asked))
        if (size := path.stat().st_size) != expected.size:
            raise UserError(f"The recogniser in {folder} is damaged: {name} has {size} bytes, and came with "
                            f"{expected.size}.", remedy(folder, asked))


def remedy(folder: Path, asked: Asked = AS_RECOGNISER) -> str:
    """What to do about a recogniser that cannot be loaded; what a person put there is theirs to mend."""
    if (folder / RECORD).is_file():
        return f"Delete {folder}, and it is fetched anew; or choose another recogniser ({asked.option})."
    return f"Put whole files into {folder}, or choose another recogniser ({asked.option})."


def _fetch_adapter(file: RemoteFile, target: Path, hub: Hub, reporter: Reporter, patience: Patience) -> None:
    """The weights of one language, beside the others; what came of them before is gone on with."""
    aside = target / f".{file.name}"
    check_disk(target, file.expected.size, file.name)
    begun = hash_file(aside, file.expected) if aside.is_file() else None
    with stage(reporter, "download the language"):
        meter = Meter(reporter, file.expected.size, begun.size if begun else 0)
        Fetcher(hub, meter, patience).fetch(file, aside, begun)
    os.replace(aside, target / file.name)


def on_this_machine(folder: Path) -> Path:
    """The folder of a person's own, when a recogniser is in it; else `UserError`."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if "config.json" not in names or not _weights(names):
        raise UserError(f"{folder} holds no recogniser: it needs config.json and weights (model.safetensors).",
                        f"Give the folder in which these files lie. {_CHOOSE}")
    return folder
