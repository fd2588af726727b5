"""Load a model from its reference: base, new rows, adapters and front-end.

Everything that is loaded is checked: the base must be the one that the rows were made for, tensor by tensor, and the
files of a checkpoint or an export must be those that were saved. An export needs neither its base nor its run.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import nn

from config import foreign
from config.errors import UserError
from config.schema import Scope
from core import compute
from core.library import records
from core.library.lineage import Model
from core.library.records import (
    EXPORT_AGAIN_HINT,
    EXPORT_RECORD,
    EXPORT_SUMS,
    CheckpointRecord,
    EarlierTrainingRecord,
    ExportRecord,
    Origin,
    check_export_files,
    read_export_record,
)
from core.model import tensor_files
from core.model.adapters import SETTINGS, Adapters
from core.model.prefix import (
    EARLIER_PREFIX,
    base_tensors,
    extend_tables,
    hash_tensors,
    is_of_earlier_training,
    rows_name,
    tokens_of_table,
    whole_table,
)
from core.workspace import Workspace, resolve_inside
from data.durable_files import hash_tree
from data.front_end import FrontEnd
from models.base import AdaptedDecoder, Family, Generated, LanguageModel, PreparedVoice, Sampling, Vocoder, Voice
from models.registry import family as family_named

_CACHE_SHARE = 0.5  # share of free memory for the caches of texts that are generated together
# Bytes of a batch's caches on a GPU, which other jobs may share. A certificate wants 8 GiB at most: with 6, eight of
# its texts of 90 ids are generated together (5.6 GiB in float32).
_MAX_GPU_CACHE = 6 * 2**30


@dataclass(frozen=True)
class EarlierTraining:
    """The result of an earlier training, after which the model was extended again: record, files and adapters.

    `files` are the contents of its folder, by path. They are kept as bytes, because the loaded tensors may
    be cast to half precision.
    """

    record: EarlierTrainingRecord
    files: Mapping[str, bytes]
    adapters: Adapters | None
    decoder: AdaptedDecoder | None = None


@dataclass(frozen=True)
class TTSModel:
    """A complete text-to-speech model: language model, front-end and adapters; its `family` loads the vocoder.

    `scope` is that of the training; `rows` for an untrained extension, None for a base model. If a trained model is
    extended again, its `earlier_trainings` count as a part of the base; `adapters` are the new ones.
    """

    ref: str
    family: Family
    name: str  # name of the base model in the workspace
    base_folder: Path
    base_hash: str
    lm: LanguageModel
    front_end: FrontEnd
    device: torch.device
    adapters: Adapters | None = None
    decoder: AdaptedDecoder | None = None  # The decoder of the new languages.
    scope: Scope | None = None
    changed: tuple[str, ...] = ()  # tensors of the base that were trained
    base_values: Mapping[str, torch.Tensor] = field(default_factory=dict)  # values of `changed`, with `keep_base`
    earlier_trainings: tuple[EarlierTraining, ...] = ()
    record: CheckpointRecord | ExportRecord | None = None  # None unless it was loaded from a checkpoint or an export
    text_library: str = ""  # package that wrote out numbers of base languages in the training; empty: none, or unknown

    def text_library_note(self) -> str:
        """A sentence if numbers of base languages may be read differently than in the training; else empty."""
        installed = self.front_end.text_library
        if self.text_library in ("", installed):
            return ""
        return (f"Numbers and signs of {', '.join(self.front_end.base_languages)} may be read differently than in the "
                f"training: they were written out by {self.text_library} when {self.ref} was trained; here "
                f"{installed or 'no such package'} is installed.")

    @contextmanager
    def adapters_for_batch(self, languages: Sequence[str]) -> Iterator[None]:
        """Context in which each row of a batch has the adapters of its language, and all others are disabled.

        The rows may need the adapters of one training or none (see `Adapters.enabled_for_rows`), but not of two.
        """
        of_rows = [self.adapters_of(language) for language in languages]
        active = next((adapters for adapters in of_rows if adapters), None)
        enabled = [adapters is not None for adapters in of_rows]
        if any(adapters not in (None, active) for adapters in of_rows):
            raise ValueError(f"the adapters of several trainings in one batch: {', '.join(dict.fromkeys(languages))}")
        with ExitStack() as stack:
            for adapters in (self.adapters, *(training.adapters for training in self.earlier_trainings)):
                if adapters is not None and adapters is not active and adapters.on:
                    stack.enter_context(adapters.enabled(False))
            if active is not None:
                stack.enter_context(active.enabled(True) if all(enabled) else active.enabled_for_rows(enabled))
            yield

    def adapters_for(self, language: str) -> AbstractContextManager[None]:
        """Context with the adapters of `language` enabled, if it has some, and all others disabled."""
        return self.adapters_for_batch([language])

    @property
    def sampling(self) -> Sampling:
        """The recommended sampling of this model."""
        return self.family.sampling_for(self.front_end.base_languages)

    def generate(self, texts: Sequence[np.ndarray], languages: Sequence[str],
                 voices: Sequence[Voice | PreparedVoice], sampling: Sampling,
                 vocoder: Vocoder | None = None) -> list[Generated]:
        """`LanguageModel.generate`, each text with the adapters of its language, in batches that fit into memory.

        On a GPU a batch is padded to a power of two with copies of its last text, because each size needs a CUDA graph.
        The last batch is padded to the size of those before it, whose graph and caches exist. Texts that need different
        adapters do not share a batch. If adapters are merged into the weights, neither do texts with and without them.
        """
        adapters_by_text = list(map(self.adapters_of, languages))
        first_adapters = next(filter(None, adapters_by_text), None)
        if first_adapters is not None and not self.lm.merges_adapters:
            adapters_by_text = [adapters or first_adapters for adapters in adapters_by_text]

        # Each group of texts with the same adapters is generated by itself.
        groups = list(dict.fromkeys(adapters_by_text))
        if len(groups) > 1:
            by_index: dict[int, Generated] = {}
            for group in groups:
                members = [index for index, adapters in enumerate(adapters_by_text) if adapters is group]
                results = self.generate([texts[index] for index in members], [languages[index] for index in members],
                                        [voices[index] for index in members], sampling, vocoder)
                by_index |= dict(zip(members, results, strict=True))
            return [by_index[index] for index in range(len(texts))]

        # Choose the largest batch whose caches fit into the free memory.
        longest, generated = max(map(len, texts)), list[Generated]()
        batch_size, needed = self._batch_size(len(texts)), self.lm.decode_bytes(longest, sampling)
        if self.device.type == "cuda":
            batch_size = min(batch_size, 1 << max(1, _MAX_GPU_CACHE // needed).bit_length() - 1)
        with self.adapters_for_batch(languages[:1]):
            if not self._fits(batch_size, longest, sampling):
                self.lm.free_buffers()  # buffers of other batches
                batch_size = self._fitting(needed, batch_size)

        freed = False  # whether one text ran out of memory, and gets another try
        while len(generated) < len(texts):
            count = min(batch_size, len(texts) - len(generated))
            padded = batch_size if generated and self.device.type == "cuda" else self._batch_size(count)
            chosen = [len(generated) + min(index, count - 1) for index in range(padded)]
            out_of_memory = False
            try:
                with self.adapters_for_batch([languages[index] for index in chosen]):
                    results = self.lm.generate([texts[index] for index in chosen], [voices[index] for index in chosen],
                                               sampling, vocoder)
                generated += results[:count]
            except torch.OutOfMemoryError:
                if freed:
                    raise
                out_of_memory = True

            # This is not done inside `except`, because the traceback keeps the buffers alive.
            if out_of_memory:
                self.lm.free_buffers()
                # Otherwise a small tensor can keep a large block reserved.
                torch.cuda.empty_cache()
                freed = count == 1
                batch_size = 1 << max(0, (count - 1).bit_length() - 1)
            else:
                freed = False
        return generated

    def stream(self, text: np.ndarray, voice: Voice | PreparedVoice, sampling: Sampling,
               vocoder: Vocoder | None = None) -> Iterator[np.ndarray | Generated]:
        """`LanguageModel.stream`; if memory is short, the buffers of batches are freed.

        The caller turns on the adapters of the text's language.
        """
        if not self._fits(1, len(text), sampling):
            self.lm.free_buffers()
        first_chunk = None
        with suppress(torch.OutOfMemoryError):
            chunks = self.lm.stream(text, voice, sampling, vocoder)
            first_chunk = next(chunks)

        # This is not done inside `except`, because the traceback keeps the buffers alive.
        if first_chunk is None:
            self.lm.free_buffers()
            torch.cuda.empty_cache()
            chunks = self.lm.stream(text, voice, sampling, vocoder)
            first_chunk = next(chunks)
        yield first_chunk
        yield from chunks

    def _batch_size(self, count: int) -> int:
        return 1 << (count - 1).bit_length() if self.device.type == "cuda" else count

    def _fitting(self, needed: int, count: int) -> int:
        """How many of `count` texts to generate at once if each needs `needed` bytes; on a GPU a power of two."""
        free = compute.free_bytes(self.device)
        if free is None:
            return count
        fitting = max(1, min(count, (int(_CACHE_SHARE * free) - self.lm.bytes_to_merge()) // needed))
        return fitting if fitting == count else 1 << fitting.bit_length() - 1

    def _fits(self, count: int, longest: int, sampling: Sampling) -> bool:
        """Whether memory is free for what a batch of so many texts takes beyond the existing buffers."""
        needed = self.lm.bytes_to_merge()
        if not self.lm.has_buffers(count, longest, sampling):
            needed += count * self.lm.decode_bytes(longest, sampling)
        free = compute.free_bytes(self.device) if needed else None
        return free is None or needed <= _CACHE_SHARE * free

    def adapters_of(self, language: str) -> Adapters | None:
        """The adapters of `language`, or None."""
        for training in self.earlier_trainings:
            if language in training.record.languages:
                return training.adapters
        return self.adapters if self.scope == "full" or self.front_end.is_new(language) else None

    def decoder_of(self, language: str) -> AdaptedDecoder | None:
        """The adapted decoder of `language`; None where codes are decoded as in the base."""
        for training in self.earlier_trainings:
            if language in training.record.languages:
                return training.decoder
        return self.decoder if self.front_end.is_new(language) else None

    @property
    def new_languages(self) -> tuple[str, ...]:
        """The languages of the last extension: not those of the base or of earlier trainings."""
        return tuple(code for code in self.front_end.languages
                     if self.front_end.is_new(code) and code not in self.origin.earlier_languages)

    @property
    def frozen_hash(self) -> str:
        """The hash of every tensor that existed before the last extension."""
        return self.earlier_trainings[-1].record.frozen_hash if self.earlier_trainings else self.base_hash

    @property
    def origin(self) -> Origin:
        """The identity of base, vocabulary and earlier trainings, to which rows and adapters belong."""
        return Origin(self.family.name, self.name, self.base_hash, self.front_end.prefix_size, self.front_end.size,
                      self.front_end.fingerprint, tuple(training.record for training in self.earlier_trainings))


def load(workspace: Workspace, ref: str, device: torch.device) -> TTSModel:
    """The model behind `base:NAME`, `extension:NAME` (untrained), `run:ID`, `run:ID@STEP` or `export:NAME`."""
    kind, _, name = ref.partition(":")
    if kind == "extension":
        return load_extension(workspace, name, device)
    reference = Model.open(workspace, ref)
    if reference.kind == "base":
        return load_base(workspace, reference.name, device)
    if reference.kind == "export":
        return load_export(reference.folder, device)
    return replace(load_checkpoint(workspace, reference.folder, device), ref=ref)


def load_base(workspace: Workspace, name: str, device: torch.device) -> TTSModel:
    """The base model `name` as it was downloaded."""
    base = Model.open(workspace, f"base:{name}")
    folder, family = base.folder, family_named(base.family_name)
    front_end = family.load_front_end(folder)
    lm = family.load_language_model(folder, device)
    if front_end.prefix_size != lm.prefix_size:
        raise UserError(
            f"The tokenizer in {folder} has {front_end.prefix_size} ids and the model {lm.prefix_size} text rows.",
            "They do not belong together; download the model again.",
        )
    lm.module.requires_grad_(False).eval()
    base_hash = hash_tensors(lm.module.state_dict())
    return TTSModel(f"base:{name}", family, name, folder, base_hash, lm, front_end, device)


def load_front_end(workspace: Workspace, name: str) -> FrontEnd:
    """The front-end of the base model `name`, or of a run or an export; see `Model.find`."""
    model = Model.find(workspace, name)
    if model.kind == "base":
        return family_named(model.family_name).load_front_end(model.folder)
    return FrontEnd.load(model.folder / records.FRONT_END)


def load_model_to_extend(workspace: Workspace, name: str, device: torch.device) -> TTSModel:
    """The base model `name`, or a run or an export with all its languages frozen; see `Model.find`."""
    reference = Model.find(workspace, name)
    if reference.kind == "base":
        return load_base(workspace, reference.name, device)
    if reference.kind == "export":
        check_export_files(reference.folder)
    else:
        check_checkpoint(reference.folder)
    record = reference.record
    # An extension needs an unchanged base, which scope `full` does not keep.
    if record.scope == "full":
        raise UserError(f"{name} was trained in scope 'full', which changed its base: it cannot be extended again.",
                        "Extend a model that was trained in scope `gated` or `rows`.")

    front_end = FrontEnd.load(reference.folder / records.FRONT_END)
    languages = [code for code in front_end.languages
                 if front_end.is_new(code) and code not in record.origin.earlier_languages]
    if reference.kind == "export":
        # The rows of the last training become an earlier training, which is frozen from now on.
        split = _split_export(reference.folder, record.origin, device)
        rows, source = split.rows, f"export:{reference.name}"
        del split
    else:
        rows = tensor_files.read(reference.folder / records.ROWS, "Take another checkpoint.")
        source = f"run:{reference.name}@{reference.step}"

    # The base as it was before that training, with the training's rows and adapters added.
    base = model_before(workspace, record.origin, reference.folder, device)
    training = EarlierTrainingRecord(",".join(languages), source, record.scope, record.dataset, front_end.size,
                          front_end.fingerprint, "")
    model = _add_earlier_training(base, front_end, training, rows, reference.folder)
    *earlier, last = model.earlier_trainings
    last = replace(last, record=replace(training, frozen_hash=hash_tensors(base_tensors(model.lm.module))))
    return replace(model, ref=source, earlier_trainings=(*earlier, last))


def load_extension(workspace: Workspace, name: str, device: torch.device, *, base: TTSModel | None = None) -> TTSModel:
    """The extended model `name` with its rows as they were initialised; `base` as in `load_checkpoint`."""
    folder = workspace.extension(name)
    record = records.read_extension(folder)
    before = model_before(workspace, record.origin, folder, device, base=base)
    model = _with_rows(before, record.origin, folder, record.rows_hash)
    return replace(model, ref=f"extension:{name}", scope="rows")


def check_checkpoint(folder: Path) -> None:
    """`UserError` for a damaged checkpoint, with one that can be used instead."""
    fault = records.find_damage(folder)
    if fault is not None:
        raise UserError(fault, _other_checkpoint(folder))


def load_checkpoint(workspace: Workspace, folder: Path, device: torch.device, *, keep_base: bool = False,
                    base: TTSModel | None = None) -> TTSModel:
    """The model saved in a checkpoint's folder; `keep_base` keeps the base's values of its trained tensors.

    If `base` is what `model_before` returns for this checkpoint, its tensors are shared, not loaded again.
    """
    check_checkpoint(folder)
    record = records.read_checkpoint(folder)
    model = _with_rows(model_before(workspace, record.origin, folder, device, base=base), record.origin, folder)
    model = _with_adapters(model, folder, record.scope, folder / records.CHECKPOINT)
    model = with_decoder(model, folder / records.DECODER)
    model = replace(model, ref=f"run:{record.run}@{record.step}", record=record, text_library=record.text_library)
    return load_changed_tensors(model, folder, keep_base=keep_base) if (folder / records.CHANGED).is_file() else model


def export_record(model: TTSModel) -> ExportRecord:
    """The record of the export that `model` was loaded from; the example in each export calls this."""
    assert isinstance(model.record, ExportRecord)
    return model.record


def write_sums(folder: Path) -> None:
    """Write `SHA256SUMS.json` over every other file of an export."""
    sums = hash_tree(folder, leave_out=(EXPORT_SUMS,))
    (folder / EXPORT_SUMS).write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")


def plain_tensors(model: TTSModel) -> dict[str, torch.Tensor]:
    """The language model under the base's names without adapters; each text table is one table again."""
    tensors = {name: value for name, value in base_tensors(model.lm.module).items() if not is_of_earlier_training(name)}
    return {**tensors, **{table: whole_table(model.lm.module, table) for table in model.lm.text_tables}}


def load_export(folder: Path, device: torch.device) -> TTSModel:
    """The model of an export, from the export's own files alone."""
    check_export_files(folder)
    return assemble_export(folder, device)


def assemble_export(folder: Path, device: torch.device) -> TTSModel:
    """`load_export` without the check of every file, for an export that is still being written."""
    record = read_export_record(folder)
    split = _split_export(folder, record.origin, device)
    lm, front_end, rows = split.lm, split.front_end, split.rows

    # Base and front-end must be those of the record.
    base_hash = hash_tensors(lm.module.state_dict())
    expected_hash = record.weights_hash or record.origin.base_hash
    if base_hash != expected_hash or front_end.fingerprint != record.origin.fingerprint:
        raise UserError(
            f"{folder} does not hold the model that {EXPORT_RECORD} names: base {base_hash[:12]} there, "
            f"{expected_hash[:12]} wanted; front-end {front_end.fingerprint[:12]} there, "
            f"{record.origin.fingerprint[:12]} wanted.", EXPORT_AGAIN_HINT,
        )

    base = TTSModel(f"export:{record.name}", family_named(record.origin.family), record.origin.model, folder,
                    record.origin.base_hash, lm, _base_front_end(front_end), device, record=record,
                    text_library=record.text_library)

    base = _with_earlier_trainings(base, record.origin, folder)

    # The rows of earlier trainings are stored twice, and must agree.
    for table in lm.text_tables:
        if not torch.equal(whole_table(lm.module, table), split.earlier[table]):
            raise UserError(f"The rows in {folder / records.EARLIER_TRAININGS} differ from those in the weights of the "
                            "export.", EXPORT_AGAIN_HINT)
    model = _with_adapters(extend_model(base, front_end, rows), folder, record.scope, folder / EXPORT_RECORD)
    return with_decoder(model, folder / records.DECODER)


def load_merged(folder: Path, merged: str, device: torch.device) -> TTSModel:
    """The model in the file `merged` of an export: without adapters, all rows as new ones.

    It is loaded from a folder of links in which it has the name of the plain one, as in a program that does not know
    adapters.
    """
    record = read_export_record(folder)
    family = family_named(record.origin.family)
    plain = family.language_model_file(folder)
    with tempfile.TemporaryDirectory(prefix="lisan-merged-") as name:
        links = Path(name)
        for path in folder.iterdir():
            if path.name not in (plain.name, merged):
                (links / path.name).symlink_to(path.absolute())
        (links / plain.name).symlink_to((folder / merged).absolute())
        split = _split_export(links, record.origin, device)
    base = TTSModel(f"export:{record.name}", family, record.origin.model, folder, record.origin.base_hash, split.lm,
                    _base_front_end(split.front_end), device, record=record, text_library=record.text_library)

    # Behind the base's rows come those of earlier trainings, then the new ones.
    rows = {rows_name(table): torch.cat([split.earlier[table][len(split.lm.module.get_parameter(table)):],
                                         split.rows[rows_name(table)]]) for table in split.lm.text_tables}
    # Cached results of the base's conditioner lack what its adapters, now merged, would change.
    names = foreign.read_json(folder / records.ADAPTER / SETTINGS)["target_modules"] if (
        folder / records.ADAPTER).is_dir() else []
    if set(names) & set(split.lm.adapter_targets.get("conditioner", ())):
        setattr(split.lm.module, "recomputes_conditioning", True)  # noqa: B010  an attribute of IndexTTS2's network
    return extend_model(base, split.front_end, rows)


@dataclass(frozen=True)
class _SplitExport:
    """The language model of an export with only the base's rows, and its other rows by table."""

    lm: LanguageModel
    front_end: FrontEnd
    earlier: Mapping[str, torch.Tensor]  # rows of the base and of earlier trainings
    rows: Mapping[str, torch.Tensor]  # new ones, named as by `rows_name`


def _split_export(folder: Path, origin: Origin, device: torch.device) -> _SplitExport:
    front_end = FrontEnd.load(folder / records.FRONT_END)
    lm = family_named(origin.family).load_language_model(folder, device)
    if lm.prefix_size != front_end.size:
        raise UserError(f"{folder} has {front_end.size} ids in its front-end and {lm.prefix_size} text rows.",
                        EXPORT_AGAIN_HINT)
    rows, earlier = {}, {}
    # Old and new rows are separate, as in training.
    for table in lm.text_tables:
        owner, _, leaf = table.rpartition(".")
        values, tokens = lm.module.get_parameter(table).detach(), front_end.added_tokens()
        added = len(tokens_of_table(lm, table, tokens))
        new = len(tokens_of_table(lm, table, [token for token in tokens if token.id >= origin.first_new_row]))
        base, old = len(values) - added, len(values) - new
        rows[rows_name(table)], earlier[table] = values[old:].clone(), values[:old].clone()
        setattr(lm.module.get_submodule(owner), leaf, nn.Parameter(values[:base].clone(), requires_grad=False))
    lm.prefix_size = front_end.prefix_size
    return _SplitExport(lm, front_end, earlier, rows)


def extend_model(base: TTSModel, front_end: FrontEnd, rows: Mapping[str, torch.Tensor], *,
                 frozen: bool = False) -> TTSModel:
    """`base` with the `rows` of each text table appended (see `extend_tables`); changes `base.lm` in place."""
    tokens = front_end.added_to(base.front_end)
    expected = {rows_name(table): len(tokens_of_table(base.lm, table, tokens)) for table in base.lm.text_tables}
    actual = {name: len(value) for name, value in rows.items()}
    if actual != expected:
        raise UserError(f"The new rows do not fit: {actual} there, {expected} wanted.",
                        "Make the extension again: python -m scripts extend.")
    extend_tables(base.lm.module, base.lm.text_tables, {name: rows[name].float().to(base.device) for name in expected},
                  frozen=frozen)
    base.lm.assign_languages([token.id for token in front_end.added_tokens() if token.kind == "tag"])
    base.lm.module.eval()
    return replace(base, front_end=front_end)


def write_earlier_trainings(folder: Path, model: TTSModel) -> None:
    """Write the earlier trainings of `model` into `folder`, each into a subfolder of `EARLIER_TRAININGS`."""
    for training in model.earlier_trainings:
        for name, content in training.files.items():
            path = resolve_inside(folder / records.EARLIER_TRAININGS, training.record.folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def _add_earlier_training(base: TTSModel, front_end: FrontEnd, record: EarlierTrainingRecord,
                          rows: Mapping[str, torch.Tensor], folder: Path) -> TTSModel:
    """`base` with the result of one more training, frozen; `folder` holds its adapters and decoder, if it has some.

    `UserError` if its record names other languages than its front-end adds: its adapters would then act on those of the
    base, and a certificate would compare the model with a base that has the same adapters.
    """
    added = {code for code in front_end.languages if code not in base.front_end.languages}
    if set(record.languages) != added:
        raise UserError(f"An earlier training of the model names the languages {', '.join(record.languages)}; its "
                        f"tokenizer adds {', '.join(sorted(added)) or 'none'}.",
                        "Do not use it: it was tampered with.")
    model, adapters = extend_model(base, front_end, rows, frozen=True), None
    files = {records.ROWS: tensor_files.serialize(rows)}
    adapter, decoder = folder / records.ADAPTER, folder / records.DECODER
    if decoder.is_file():
        files[records.DECODER] = decoder.read_bytes()
    if adapter.is_dir():
        adapters = Adapters.load(model.lm.module, adapter, f"{EARLIER_PREFIX.strip('.')}{record.folder}")
        for value in adapters.parameters().values():
            value.requires_grad_(False)
        files |= {f"{records.ADAPTER}/{path.name}": path.read_bytes() for path in sorted(adapter.iterdir())}
        model.lm.module.to(model.device).eval()
    training = EarlierTraining(record, files, adapters, with_decoder(model, decoder).decoder)
    return replace(model, earlier_trainings=(*base.earlier_trainings, training))


def _with_earlier_trainings(base: TTSModel, origin: Origin, folder: Path) -> TTSModel:
    """`base` with the earlier trainings that `origin` names, from `folder`."""
    model = base
    if origin.earlier_trainings:
        front_end = FrontEnd.load(folder / records.FRONT_END)
    for record in origin.earlier_trainings:
        training_folder = resolve_inside(folder / records.EARLIER_TRAININGS, record.folder)
        rows = tensor_files.read(training_folder / records.ROWS,
                                 "Make the extension again, or take another checkpoint.")
        model = _add_earlier_training(model, front_end.up_to(record.languages[-1]), record, rows, training_folder)
    if not origin.earlier_trainings:
        return model

    # The frozen tensors must be those that the training started from.
    frozen_hash = hash_tensors(base_tensors(model.lm.module))
    if frozen_hash != model.frozen_hash:
        languages = ", ".join(origin.earlier_languages)
        raise UserError(f"{folder / records.EARLIER_TRAININGS} does not hold the earlier trainings of the model "
                        f"({languages}): {frozen_hash[:12]} there, {model.frozen_hash[:12]} wanted.",
                        "Make the extension again, or take another checkpoint.")
    return model


def _base_front_end(front_end: FrontEnd) -> FrontEnd:
    """`front_end` without the languages that were added to its base."""
    return front_end.up_to(front_end.base_languages[-1])


def model_before(workspace: Workspace, origin: Origin, folder: Path, device: torch.device, *,
                 base: TTSModel | None = None) -> TTSModel:
    """The model that was extended last: the base of `origin` with its earlier trainings.

    `folder` is of the extension, the checkpoint or the export, which holds those trainings. If `base` is that model,
    loaded before, the result shares its tensors.
    """
    if base is not None:
        loaded = base.origin
        if (loaded.model, loaded.base_hash, loaded.prefix_size, loaded.earlier_trainings) == (
                origin.model, origin.base_hash, origin.prefix_size, origin.earlier_trainings):
            return sharing_weights(base)
    base = load_base(workspace, origin.model, device)
    if base.base_hash != origin.base_hash or base.front_end.prefix_size != origin.prefix_size:
        raise UserError(
            f"{folder} was made for a base model of {origin.prefix_size} text rows ({origin.base_hash[:12]}); "
            f"{base.base_folder} has {base.front_end.prefix_size} ({base.base_hash[:12]}).",
            "Put that base model back, or extend this one: python -m scripts extend.",
        )
    return _with_earlier_trainings(base, origin, folder)


def sharing_weights(model: TTSModel) -> TTSModel:
    """A copy of `model` that can be extended and adapted by itself, whose tensors are in the same memory.

    A tensor is exchanged for another one in the copy alone; who writes into it changes both.
    """
    shared: dict[int, Any] = {id(training.decoder): training.decoder for training in model.earlier_trainings}
    for parameter in model.lm.module.parameters():
        shared[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
    # A buffer that no file has, such as a table of frequencies, is in no hash either: each model keeps its own.
    saved = {id(tensor) for tensor in model.lm.module.state_dict(keep_vars=True).values()}
    for buffer in model.lm.module.buffers():
        if id(buffer) in saved:
            shared[id(buffer)] = buffer.detach()
    lm, earlier_trainings = deepcopy((model.lm, model.earlier_trainings), shared)
    return replace(model, lm=lm, earlier_trainings=earlier_trainings)


def _with_rows(base: TTSModel, origin: Origin, folder: Path, rows_hash: str = "") -> TTSModel:
    front_end = FrontEnd.load(folder / records.FRONT_END)
    front_end.check_extends(base.front_end)
    if front_end.fingerprint != origin.fingerprint:
        raise UserError(
            f"The front-end in {folder} does not belong to its rows: fingerprint {front_end.fingerprint[:12]} there, "
            f"{origin.fingerprint[:12]} wanted.",
            "Make the extension again, or take another checkpoint.",
        )
    rows = tensor_files.read(folder / records.ROWS, "Make the extension again, or take another checkpoint.")
    model = extend_model(base, front_end, rows)

    # The hash finds damage that the sizes do not show.
    actual = hash_tensors(rows) if rows_hash else ""
    if actual != rows_hash:
        raise UserError(f"{folder / records.ROWS} was changed or damaged: hash {actual[:12]} there, "
                        f"{rows_hash[:12]} wanted.",
                        "Delete the extension and make it again: Embeddings tab, or python -m scripts extend.")
    return model


def with_decoder(model: TTSModel, path: Path) -> TTSModel:
    """`model` with the adapted decoder in the file `path`, if there is one."""
    if not path.is_file():
        return model
    tensors = tensor_files.read(path, "Take another checkpoint.")
    return replace(model, decoder=model.family.load_adapted_decoder(model.base_folder, model.device, tensors))


def _with_adapters(model: TTSModel, folder: Path, scope: str, record: Path) -> TTSModel:
    if scope not in get_args(Scope):
        raise UserError(f"{record} has the unknown scope {scope!r}.", "Update Lisan.")
    adapters = None
    if (folder / records.ADAPTER).is_dir():
        adapters = Adapters.load(model.lm.module, folder / records.ADAPTER)
        model.lm.module.to(model.device).eval()
    return replace(model, adapters=adapters, scope=scope)  # type: ignore[arg-type]


@torch.no_grad()
def load_changed_tensors(model: TTSModel, folder: Path, *, keep_base: bool) -> TTSModel:
    """Replace the base's tensors that a run in the scope `full`, or a finetune from elsewhere, changed."""
    changed = tensor_files.read(folder / records.CHANGED, "Take another checkpoint.")
    return set_changed_tensors(model, changed, str(folder / records.CHANGED), keep_base=keep_base)


@torch.no_grad()
def set_changed_tensors(model: TTSModel, changed: Mapping[str, torch.Tensor], source: str, *,
                        keep_base: bool = False) -> TTSModel:
    """`model` with other values for tensors of its base, which come from `source`; in place.

    Text tables (the base's rows) change in an imported finetune alone: no training moves them.
    """
    tensors: dict[str, torch.Tensor] = dict(model.lm.module.named_parameters())
    buffers = dict(model.lm.module.named_buffers())
    tensors |= {table: buffers[table] for table in model.lm.text_tables if table in buffers}
    wrong = [name for name, value in changed.items() if name not in tensors or tensors[name].shape != value.shape]
    if wrong:
        raise UserError(f"{source} does not fit the model: {len(wrong)} of {len(changed)} tensors, "
                        f"such as {wrong[0]}.", "Take another checkpoint.")
    base_values = {name: tensors[name].detach().clone() for name in changed} if keep_base else {}
    for name, value in changed.items():

        # Each tensor gets memory of its own: the speed and the rounding of products depend on its alignment.
        # The memory that it had may be shared with other models.
        tensors[name].data = torch.empty_like(tensors[name], dtype=torch.float32).copy_(value)
    return replace(model, changed=tuple(changed), base_values=base_values)


def _other_checkpoint(folder: Path) -> str:
    """The hint for a damaged checkpoint: the latest intact one beside it."""
    intact = [checkpoint for checkpoint in sorted(folder.parent.glob("step-*"), reverse=True)
              if checkpoint != folder and records.find_damage(checkpoint) is None]
    if not intact:
        return f"There is no other intact checkpoint in {folder.parent}; start a new training."
    step = records.read_checkpoint(intact[0]).step
    run = folder.parent.parent.name
    return (f"The checkpoint of step {step} is intact: use run:{run}@{step}, or delete {folder} and resume the run "
            f"from step {step}.")
