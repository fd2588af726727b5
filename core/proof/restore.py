"""Restore the base's rows and keep the new ones, as a new export: nothing that exists is changed.

Whatever is not a new row comes from the base. The front-end is the base's own, and the given tokenizer for the new
language alone, so old languages are read as before. IndexTTS2 has a row without a piece, where the tokenizer of a
finetune may have its first new one: there the new pieces and their rows move behind it. The export takes its name after
it was loaded again and compared with both of its sources.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from config.errors import UserError
from core.jobs.events import Result
from core.library import certificate, published, records, verification
from core.library.certificate import CERTIFICATE, Certificate, CertificateCheck
from core.library.records import EXPORT_RECORD, ExportRecord, Origin, write_record
from core.model.loading import TTSModel, assemble_export, write_sums
from core.model.prefix import base_tensors, hash_tensors, new_rows, rows_name
from core.proof.certification import (
    base_languages_check,
    base_probes,
    equal_logits,
    export_codec_check,
    probe_note,
)
from core.proof.tensor_comparison import TensorMatching
from core.speech import evaluation
from core.workspace import Workspace
from data import normalisers
from data.durable_files import atomic_directory
from data.front_end import FrontEnd, LanguageEntry, NewToken, Segmenter, read_segmenter
from data.segmenters import SentencePieceModel, highest_id
from models.base import WeightsFile

_TOKENIZER = "tokenizer-as-given"


@dataclass(frozen=True)
class RestoreRequest:
    """The name of the restored model, and what its new rows are for. `job` is the doctor's."""

    name: str
    language: str
    tokenizer: Path
    job: str


@dataclass(frozen=True)
class PlacedRows:
    """The new rows of a checkpoint by text table, as they stand behind all rows of the base, and their tokenizer."""

    tokenizer: Segmenter
    rows: Mapping[str, torch.Tensor]
    moved_by: int = 0  # ids, where the first new piece stood on a row of the base that no piece has

    def old_rows(self, base: FrontEnd) -> int:
        """How many of the checkpoint's first rows are those of the base."""
        return base.prefix_size - self.moved_by


def place_new_rows(base: TTSModel, other: WeightsFile, matching: TensorMatching, path: Path) -> PlacedRows:
    """The new rows of `other` for the tokenizer in `path`, moved behind the base's rows where they are not yet."""
    tokenizer = read_segmenter(path.read_bytes(), str(path))
    spare_row, first_row = base.front_end.base_ids, base.front_end.prefix_size
    moved = isinstance(tokenizer, SentencePieceModel) and any(spare_row <= tokenizer.ids[piece] < first_row
                                                              for piece in tokenizer.pieces)
    new_ids = slice(spare_row, highest_id(tokenizer.ids) + 1) if moved else slice(first_row, None)
    # The base has rows there that none of its texts leads to.
    if moved and isinstance(tokenizer, SentencePieceModel):
        tokenizer = SentencePieceModel(tokenizer.moved_behind(spare_row, first_row), str(path))
    rows = {table: other.tensor(matching.found[table])[new_ids].float() for table in base.lm.text_tables
            if table != base.lm.language_table}
    return PlacedRows(tokenizer, rows, first_row - spare_row if moved else 0)


def restore_base_rows(workspace: Workspace, base: TTSModel, other: WeightsFile, matching: TensorMatching,
                      request: RestoreRequest) -> Result:
    """Write `exports/NAME` with the rows of `base` and the new ones of `other`."""
    target = workspace.new_export(request.name)
    if base.lm.language_table:
        raise UserError(f"A model with a table of languages ({base.name}) cannot be restored yet.",
                        "Train the language again: Train tab.")

    placed = place_new_rows(base, other, matching, request.tokenizer)
    tokenizer, first_row, moved_by = placed.tokenizer, base.front_end.prefix_size, placed.moved_by

    # The base's tensors stay, and the new rows are appended to each text table.
    rows = {rows_name(table): new for table, new in placed.rows.items()}
    tensors = dict(base.lm.module.state_dict())
    for table, new in placed.rows.items():
        tensors[table] = torch.cat([tensors[table], new.to(tensors[table].dtype)])
    counts = {table: len(new) for table, new in rows.items()}
    if len(set(counts.values())) != 1 or not all(counts.values()):
        raise UserError(f"The tables have {counts} new rows; the same number in each is wanted.",
                        "Take a checkpoint whose tables were extended alike.")

    front_end = extend_front_end(base.front_end, request.language, request.tokenizer, tokenizer,
                                 first_row + next(iter(counts.values())))
    origin = Origin(base.family.name, base.name, base.base_hash, front_end.prefix_size, front_end.size,
                    front_end.fingerprint)
    record = ExportRecord(request.name, request.job, 0, "rows", "", (request.language,), origin,
                          evaluation.longest_texts(workspace, base), {})

    # Everything is written and checked aside, so a failed check leaves no export.
    with atomic_directory(target) as folder:
        files = base.family.export(base.base_folder, folder, tensors, None, front_end)
        front_end.save(folder / records.FRONT_END)
        shutil.copy2(request.tokenizer, folder / (_TOKENIZER + request.tokenizer.suffix))
        write_record(folder / EXPORT_RECORD, record)
        proof = _certify(workspace, base, assemble_export(folder, torch.device("cpu")), rows, record)

        proof = replace(proof, kind="restored", checks=(*proof.checks, export_codec_check(base.base_folder, folder,
                                                                                        base.family)))
        failed = proof.failed()
        if failed:
            raise UserError(f"The restored model failed its own checks: {', '.join(failed)}. It was not kept.",
                            "The disk may be failing, or the base model was changed; download it again.")
        certificate.write(folder / CERTIFICATE, proof)

        note = (f" Its new pieces stand {moved_by} ids further than in the tokenizer as given, behind all rows of "
                "the base." if moved_by else "")
        listed = "\n".join(f"- `{file.path}`: {file.purpose}" for file in files)
        (folder / "README.md").write_text(
            f"# {record.name}\n\nThe base model `{origin.model}` with all its values, and the new rows for "
            f"{request.language} of a finetune whose old rows were damaged. Restored by the doctor of Lisan "
            f"({record.run}).\n\n`{CERTIFICATE}` says what was compared with the base for its own "
            f"languages, and what could not be. How well {request.language} sounds was not measured: its rows learned "
            f"beside the damaged ones, and the text is normalised as Lisan does it.{note} In the app it is "
            f"`export:{record.name}`.\n\n"
            f"## Files\n\n{listed}\n", encoding="utf-8")

        # The certificate is bound to the files last, because it lists their hashes.
        subject = verification.Subject.of_export(folder)
        certificate.write(subject.certificate, verification.bind(
            workspace, proof, verification.certified_files(subject), certificate.list_texts(folder)))
        write_sums(folder)
        records.check_export_files(folder)

    return {"export": request.name, "path": f"exports/{request.name}", "ref": f"export:{request.name}",
            "new_rows": front_end.size - front_end.prefix_size, "old_rows": front_end.prefix_size,
            "old_rows_equal": True}


def extend_front_end(base: FrontEnd, language: str, path: Path, tokenizer: Segmenter, size: int) -> FrontEnd:
    """`base` with the `tokenizer` of a new language, which was read from `path`, of `size` ids in all."""
    if language in base.languages:
        raise UserError(f"The base speaks {language!r} already, and keeps its own tokenizer for it.",
                        "Give the new language another code, such as one with a region.")
    ids, base_pieces, file = tokenizer.ids, base.base_vocabulary, base.language_file(language)
    if Path(file).suffix != path.suffix:
        raise UserError(f"{path} is of another kind than the base's tokenizer; a file like {file} is "
                        "wanted.", "Give the tokenizer that extends the base's.")

    # A piece keeps the base's id, or stands on a row that no text of the base reads.
    wrong = [piece for piece, row in ids.items() if base_pieces.get(piece, row) != row]
    # Rows of the base without a piece.
    unused, text = range(base.base_ids, base.prefix_size), set(tokenizer.pieces)
    wrong += [piece for piece, row in ids.items() if piece not in base_pieces and not base.prefix_size <= row < size
              and (row not in unused or piece in text)]

    if wrong:
        raise UserError(f"{path} gives {len(wrong)} pieces an id that cannot be kept ({wrong[0]!r}).",
                        "Give the tokenizer that extends the base's and leaves its ids as they are.")

    # Each new row becomes a token; a row without a piece is spare.
    by_row, tag, tokens = {row: piece for piece, row in ids.items()}, f"[{language}]", []
    for row in range(base.prefix_size, size):
        piece = by_row.get(row)
        # No text leads to this row.
        if piece is None:
            tokens.append(NewToken(row, f"[ROW{row}]", language, "spare"))
        else:
            kind = "tag" if piece == tag else "character" if len(piece) == 1 else "merge"
            tokens.append(NewToken(row, piece, language, kind))

    entry = LanguageEntry(language, tag if tag in ids else "", normalisers.for_language(language, base.style), file,
                          tuple(tokens))
    return replace(base, by_code={**base.by_code, language: entry},
                   files={**base.files, file: tokenizer.content})


@torch.inference_mode()
def _certify(workspace: Workspace, base: TTSModel, restored: TTSModel, rows: Mapping[str, torch.Tensor],
             record: ExportRecord) -> Certificate:
    """The certificate of `restored`, as loaded from its files."""
    base_values, values = base.lm.module.state_dict(), base_tensors(restored.lm.module)
    tables = base.lm.text_tables
    expected = hash_tensors({name: base_values[name] for name in tables})
    actual_hash = hash_tensors({name: values[name] for name in tables})
    kept_rows = {name: value.detach() for name, value in new_rows(restored.lm.module, base.lm.text_tables).items()}

    # The model was loaded from its files again, so the checks cover what was written.
    pairs = [("prefix_rows", expected, actual_hash, "The old rows of every text table are those of the base."),
             ("frozen_tensors", hash_tensors(base_values), hash_tensors(values),
              "Every tensor of the base is what it was."),
             ("new_rows", hash_tensors(dict(rows)), hash_tensors(kept_rows),
              "The new rows are those of the checkpoint."),
             ("front_end", record.origin.fingerprint, restored.front_end.fingerprint,
              "The tokenizer is the one that was given, its new pieces behind the rows of the base.")]
    checks = [CertificateCheck(name, "passed" if value == actual else "failed", value, actual, meaning)
              for name, value, actual, meaning in pairs]

    # The probes show that base languages are predicted and read as before.
    samples = base_probes(base)
    equal = sum(equal_logits(base.lm.probe(item.sample), restored.lm.probe(item.sample)) for item in samples)
    same_ids = sum(np.array_equal(base.front_end.encode(item.text, item.language),
                                  restored.front_end.encode(item.text, item.language)) for item in samples)
    languages = ", ".join(sorted({item.language for item in samples}))
    for name, good, meaning in (
        ("base_logits", equal, "Logits of base-language samples are bit-identical to those of the base."),
        ("base_tokens", same_ids, "Sentences of the base languages are encoded as before."),
    ):
        result: certificate.CheckOutcome = "passed" if good == len(samples) else "failed"
        result = result if samples else "not proven"
        checks.append(CertificateCheck(name, result, f"{len(samples)} samples",
                                       f"{good} of {len(samples)} samples ({languages}){probe_note(base)}",
                                       meaning))

    checks.append(base_languages_check(base, samples))
    identity, note = published.identify_base(workspace, base.name)
    return Certificate(f"export:{record.name}", record.run, record.step, record.scope, record.origin.model, "",
                       base.base_hash, restored.front_end.fingerprint, time.time(), tuple(checks), (),
                       base_files=identity, base_note=note)
