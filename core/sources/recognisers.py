"""A speech recogniser of a person's choice: from the hub into `recognisers/NAME`, or a folder that they have.

The files come by `core.sources.base_models`: resumed, checked, stoppable. No other library connects to the network.
Safetensors weights are preferred; PyTorch's own format is taken if there are none.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from config import confinement, foreign
from config.errors import UserError
from core.jobs.reporter import Reporter, stage
from core.library import artefacts, dataset_recognisers, verification
from core.library.catalog import CatalogEntry, ModelVariant, RepositoryPart
from core.library.records import MODEL_RECORD, read_model_record
from core.sources.base_models import DownloadRequest, download_model
from core.sources.downloader import Downloader, DownloadProgress, RetryPolicy, list_repository
from core.sources.hub import Hub, RemoteFile, RepositoryFiles
from core.sources.partial_downloads import check_disk, partial_folder
from core.workspace import Workspace, resolve_inside
from data.durable_files import find_faults, hash_with_progress

BUILT_IN, _BUILT_IN_MODEL = "built-in", "tiny"
LANGUAGE_OPTION = "--recogniser-language; on the page: Recogniser language"
_LOCAL_OPTION = "--recogniser FOLDER; on the page: Recogniser"
_SETTINGS = (".json", ".txt", ".model", ".jinja")
_LARGEST_SETTING = 64 << 20  # bytes; vocabularies are the largest
_SHARD = re.compile(r"(model|pytorch_model)-\d{5}-of-\d{5}\.(safetensors|bin)")
_ADAPTER = "adapter.{}.safetensors"
_NEWEST = "main"  # revision if none is named
_CHOOSE = "Choose one that transformers loads, such as openai/whisper-small or facebook/mms-1b-all."


def ensure_recogniser(name: str, revision: str, adapters: Sequence[str], workspace: Workspace, reporter: Reporter,
                      hub: Hub | None = None, retry: RetryPolicy = RetryPolicy()) -> Path:  # noqa: B008  a frozen value
    """The folder of the recogniser; `adapters` are names of the language, and the first that it has is fetched."""
    if Path(name).is_absolute():
        return local_recogniser(confinement.open_path(name))

    target = folder_of(workspace, name, revision)
    check(target)
    if _has_all(target, adapters):
        return target

    hub = replace(hub or Hub.from_environment(), local_option=_LOCAL_OPTION)
    workspace.recognisers.mkdir(exist_ok=True)
    record = read_model_record(target) if target.is_dir() else None
    # An adapter for another language must fit the stored weights.
    pinned = record.revision if record and record.revision else revision
    repository_files = list_repository(hub, name, pinned, reporter, retry)

    # The recogniser itself is a download like that of a base model.
    if not target.is_dir():
        names = list(select_files(repository_files))
        parts = (RepositoryPart(name, tuple((file_name,) for file_name in names)),)
        variant = ModelVariant(name, name, "", parts, ())
        family = CatalogEntry("recogniser", name, "", "", "licence on its page", "", "", (variant,))
        request = DownloadRequest(family, variant, target.name, revision, workspace.recognisers)
        download_model(request, hub, workspace, reporter, retry)

    # Its adapter for the language is a file of its own.
    for code in adapters:
        file = _ADAPTER.format(code)
        if file in repository_files.files:
            # Two jobs would write into one file.
            with partial_folder(target):
                if not (target / file).is_file():
                    _fetch_adapter(repository_files.file(file), target, hub, reporter, retry)
            break
    return target


def locate(workspace: Workspace, name: str) -> Path | None:
    """The folder of a recogniser, whether it exists or not; None for the built-in one, and for no name.

    `UserError` if the record of a downloaded one is damaged.
    """
    if name in ("", BUILT_IN):
        return None
    dataset = dataset_recognisers.dataset_of(name)
    if dataset:
        return dataset_recognisers.folder_of(workspace, dataset)
    return confinement.open_path(name) if Path(name).is_absolute() else folder_of(workspace, name, _NEWEST)


def folder_of(workspace: Workspace, name: str, revision: str) -> Path:
    """The folder of a revision of OWNER/NAME: the first has the plain name, any other a name with its revision."""
    plain = workspace.recognisers / folder_name(name)
    record = read_model_record(plain) if plain.is_dir() else None
    if revision in ((record.requested_revision, record.revision) if record else (_NEWEST,)):
        return plain
    digest = hashlib.sha256(revision.encode()).hexdigest()[:8]
    return plain.with_name(f"{plain.name[:40]}-at-{re.sub(r'[^A-Za-z0-9.]+', '-', revision)[:12]}-{digest}")


def folder_name(name: str) -> str:
    """OWNER/NAME as the name of a folder."""
    plain = name.replace("/", "--")
    return plain if len(plain) <= 64 else f"{plain[:55]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def select_files(repository_files: RepositoryFiles) -> Iterator[str]:
    """The files of a repository that are needed to load it: settings, and the weights in one format."""
    names = [name for name in repository_files.files if "/" not in name and not name.startswith(".")]
    weights = _weights(names)
    if "config.json" not in names or not weights:
        raise UserError(f"{repository_files.repository} holds no recogniser that can be loaded: it lacks "
                        f"{'config.json' if 'config.json' not in names else 'weights of PyTorch'}.", _CHOOSE)
    yield from weights
    for name in names:
        if name.endswith(_SETTINGS) and repository_files.files[name].size <= _LARGEST_SETTING and name not in weights:
            yield name


def _weights(names: Sequence[str]) -> list[str]:
    for kind in ("safetensors", "bin"):
        single_file = "model.safetensors" if kind == "safetensors" else "pytorch_model.bin"
        if single_file in names:
            return [single_file]
        shards = [name for name in names if _shard_kind(name) == kind]
        if shards:
            return sorted(shards)
    return []


def _shard_kind(name: str) -> str:
    match = _SHARD.fullmatch(name)
    return match[2] if match else ""


def _has_all(target: Path, adapters: Sequence[str]) -> bool:
    """Whether nothing must be downloaded: the model is complete, with the weights of the language if it has any."""
    if not target.is_dir():
        return False
    try:
        config = foreign.read_json(target / "config.json")
        if not isinstance(config, dict):
            raise ValueError("it holds no names with values")
    except (OSError, ValueError) as error:
        raise UserError(f"{target / 'config.json'} could not be read: {foreign.reason_of(error)}.",
                        repair_hint(target)) from error
    by_language = any(target.glob(_ADAPTER.format("*"))) or config.get("adapter_attn_dim") is not None
    return not by_language or not adapters or any((target / _ADAPTER.format(code)).is_file() for code in adapters)


def check(folder: Path) -> None:
    """Raise `UserError` if a file of a downloaded recogniser is missing, or its size has changed."""
    record = read_model_record(folder) if folder.is_dir() else None
    for name, expected in record.files.items() if record else ():
        path = folder / name
        if not path.is_file():
            raise UserError(f"The recogniser in {folder} lacks {name}.", repair_hint(folder))
        size = path.stat().st_size
        if size != expected.size:
            raise UserError(f"The recogniser in {folder} is damaged: {name} has {size} bytes, and came with "
                            f"{expected.size}.", repair_hint(folder))


def check_content(workspace: Workspace, folder: Path) -> None:
    """`check`, and `UserError` if a file is not the one that was downloaded: its scores would be those of another."""
    check(folder)
    record = read_model_record(folder) if folder.is_dir() else None
    if record is None:
        return
    hash_one = verification.hash_cache(workspace)
    for name, expected in record.files.items():
        if expected.sha256:
            fault = "" if hash_one(folder / name) == expected.sha256 else f"{folder / name} is damaged"
        else:
            fault = next((fault for _, fault in find_faults(folder, {name: expected})), "").rstrip(".")
        if fault:
            raise UserError(f"The recogniser in {folder} is not as it was downloaded: {fault}.", repair_hint(folder))


def identify(workspace: Workspace, name: str) -> object:
    """What tells a recogniser from another: names and hashes of its files; "" for the one that comes with the model."""
    if not name:
        return ""
    hash_one = verification.hash_cache(workspace)
    if name == BUILT_IN:
        # It is a file of another base model than the one that is measured.
        paths = sorted(resolve_inside(workspace.models, _BUILT_IN_MODEL).glob("*recogniser*"))
        return [name, *((path.name, hash_one(path)) for path in paths)]
    try:
        folder = locate(workspace, name)
    except UserError as error:  # its record is damaged: it cannot score
        return error.message
    assert folder is not None
    paths = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    return [(path.relative_to(folder).as_posix(), hash_one(path)) for path in paths]


def damaged_recognisers(workspace: Workspace) -> dict[str, str]:
    """As `artefacts.damaged`, of recognisers."""
    def read(name: str) -> None:
        folder = workspace.recognisers / name
        _has_all(folder, ())
        check(folder)
        local_recogniser(folder)

    return artefacts.find_damaged(workspace.list_recognisers(), read)


def repair_hint(folder: Path) -> str:
    """What to do about a recogniser that cannot be loaded; a folder of a person's own is theirs to repair."""
    if (folder / MODEL_RECORD).is_file():
        return f"Delete {folder}, and it is downloaded again; or choose another recogniser (--recogniser)."
    return f"Put whole files into {folder}, or choose another recogniser (--recogniser)."


def _fetch_adapter(file: RemoteFile, target: Path, hub: Hub, reporter: Reporter, retry: RetryPolicy) -> None:
    """Download the weights of one language beside the others; an earlier download is resumed."""
    partial_path = target / f".{file.name}"
    check_disk(target, file.expected.size, file.name)
    partial = hash_with_progress(partial_path, file.expected) if partial_path.is_file() else None
    with stage(reporter, "download the language"):
        progress = DownloadProgress(reporter, file.expected.size, partial.size if partial else 0)
        Downloader(hub, progress, retry).download(file, partial_path, partial)
    os.replace(partial_path, target / file.name)


_CONTENTS = ("vocab", "merges")  # arguments of a tokenizer
_FILES = ("vocab_file", "merges_file", "spm_file", "normalizer_file")
_TOKEN_NAME = re.compile(r"_tokens?$")  # such as `pad_token` and `additional_special_tokens`


def check_named_files(folder: Path) -> None:
    """Raise `UserError` if a file of a recogniser names another file that lies outside of its folder.

    transformers joins the folder with the names of shards and of tokenizer files as they are. It takes each value of
    `special_tokens_map.json`, and some of `tokenizer_config.json`, as an argument of the tokenizer, also the path of a
    vocabulary.
    """
    for path in sorted(folder.glob("*.index.json")) + sorted(folder.glob("tokenizer_config.json")):
        with foreign.reading(path, _CHOOSE):
            # Not by `foreign.read_json`: tokenizers without a longest text state one of 31 digits.
            values = json.loads(foreign.read_bytes(path))
            named = values.get("fast_tokenizer_files", ()) if path.name == "tokenizer_config.json" else (
                values["weight_map"].values())
            # Of some tokenizers, transformers opens these files where the settings say.
            named = [*named, *(values[name] for name in _FILES if values.get(name) is not None)]
            outside = [name for name in named if name in ("", "..") or PurePosixPath(str(name)).name != name]
            # As text, an argument with the content of a vocabulary is the path of its file.
            outside += [values[name] for name in _CONTENTS if isinstance(values.get(name), str)]
            outside += values.get("init_inputs") or ()
        if outside:
            raise UserError(f"{path} names {str(outside[0])[:200]!r}, which lies outside of its folder.",
                            "Do not use this recogniser.")

    path = folder / "special_tokens_map.json"
    if not path.is_file():
        return
    with foreign.reading(path, _CHOOSE):
        others = [name for name, value in foreign.read_json(path).items()
                  if not _TOKEN_NAME.search(name) and not isinstance(value, bool | int | float | None)]
    if others:
        raise UserError(f"{path} sets {others[0][:60]!r}, which is no special token; it could name a file.",
                        "Do not use this recogniser.")


def local_recogniser(folder: Path) -> Path:
    """`folder`, if it has a recogniser that can be loaded; `UserError` otherwise."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if "config.json" not in names or not _weights(names):
        raise UserError(f"{folder} holds no recogniser: it needs config.json and weights (model.safetensors).",
                        f"Give the folder in which these files lie. {_CHOOSE}")
    return folder
