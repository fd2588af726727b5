"""The base's rows put back and the new ones kept, as an export beside: nothing that is there is changed.

Whatever is not a new row comes from the base. The front-end is the base's own, and the
given tokenizer for the new language alone, so that old languages are read as before. The
export takes its name after it was loaded again and held against both of its sources.
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
from core.job.journal import Result
from core.library import exports, records
from core.library.aside import written_aside
from core.library.exports_record import CERTIFICATE, ExportRecord, write_record
from core.library.records import Origin
from core.proof import certificate
from core.proof.certificate import Certificate, Check
from core.proof.tensor_names import Matching
from core.proof.tokenizer_fit import read as read_pieces
from core.speech import originals
from core.training import replay
from core.voice_model.loading import VoiceModel
from core.voice_model.prefix import base_tensors, hash_tensors, new_rows
from core.workspace import Workspace
from data import normalise
from data.bpe import vocabulary
from data.entries import BASE_FILE, Language, NewToken
from data.front_end import FrontEnd
from models.base import WeightsFile

_TOKENIZER = "tokenizer-as-given.json"


@dataclass(frozen=True)
class Asked:
    """What the restored model is called, and what its new rows are for. `job` is who restores."""

    name: str
    language: str
    tokenizer: Path
    job: str


def restore(workspace: Workspace, base: VoiceModel, other: WeightsFile, matching: Matching, asked: Asked) -> Result:
    """Write `exports/NAME` with the rows of `base` and the new ones of `other`."""
    target = workspace.new_export(asked.name)
    rows = kept_rows(base, other, matching)
    front_end = extended_by(base.front_end, asked, base.front_end.prefix_size + len(next(iter(rows.values()))))
    tensors = dict(base.model.module.state_dict())
    for table, new in rows.items():
        tensors[f"{table}.weight"] = torch.cat([tensors[f"{table}.weight"], new.to(tensors[f"{table}.weight"].dtype)])
    origin = Origin(base.family.name, base.name, base.base_hash, front_end.prefix_size, front_end.size,
                    front_end.fingerprint)
    record = ExportRecord(asked.name, asked.job, 0, "rows", "", (asked.language,), origin,
                          originals.longest_texts(workspace, base), {})
    with written_aside(target) as aside:
        files = base.family.export(base.base_folder, aside, tensors, None)
        front_end.save(aside / records.FRONT_END)
        shutil.copy2(asked.tokenizer, aside / _TOKENIZER)
        write_record(aside, record)
        certificate.write(aside / CERTIFICATE, prove(base, exports.assemble(aside, torch.device("cpu")), rows, record))
        (aside / "README.md").write_text(_card(record, [(file.path, file.purpose) for file in files]), "utf-8")
        exports.write_sums(aside)
        exports.check(aside)
    return {"export": asked.name, "path": f"exports/{asked.name}", "ref": f"export:{asked.name}",
            "new_rows": front_end.size - front_end.prefix_size, "old_rows": front_end.prefix_size,
            "old_rows_equal": True}


def kept_rows(base: VoiceModel, other: WeightsFile, matching: Matching) -> dict[str, torch.Tensor]:
    """The rows (M, width) after those of the base, by table."""
    rows = {table: other.tensor(matching.found[f"{table}.weight"])[base.front_end.prefix_size:].float()
            for table in base.model.text_tables}
    counts = {table: len(new) for table, new in rows.items()}
    if len(set(counts.values())) != 1 or not all(counts.values()):
        raise UserError(f"The tables have {counts} new rows; the same number in each is wanted.",
                        "Take a checkpoint whose tables were extended alike.")
    return rows


def extended_by(base: FrontEnd, asked: Asked, size: int) -> FrontEnd:
    """`base` with the tokenizer of a new language as it was given, of `size` ids in all."""
    language = asked.language
    if language in base.languages:
        raise UserError(f"The base speaks {language!r} already, and keeps its own tokenizer for it.",
                        "Give the new language another code, such as one with a region.")
    ids = read_pieces(asked.tokenizer)
    own = read_base(base)
    wrong = [piece for piece, row in ids.items() if own.get(piece, row) != row]
    wrong += [piece for piece, row in ids.items() if piece not in own and not base.prefix_size <= row < size]
    if wrong:
        raise UserError(f"{asked.tokenizer} gives {len(wrong)} pieces an id that cannot be kept ({wrong[0]!r}).",
                        "Give the tokenizer that extends the base's and leaves its ids as they are.")
    by_row = {row: piece for piece, row in ids.items()}
    added = tuple(_token(row, by_row.get(row), language) for row in range(base.prefix_size, size))
    tag, file = f"[{language}]", f"language-{language}.json"
    entry = Language(language, tag if tag in ids else "", normalise.for_language(language, base.style), file, added)
    return replace(base, by_code={**base.by_code, language: entry},
                   files={**base.files, file: asked.tokenizer.read_bytes()})


def read_base(front_end: FrontEnd) -> Mapping[str, int]:
    """Pieces and ids of the base's tokenizer."""
    return vocabulary(front_end.files[BASE_FILE], BASE_FILE)


def _token(row: int, piece: str | None, language: str) -> NewToken:
    if piece is None:
        return NewToken(row, f"[ROW{row}]", language, "spare")  # it keeps its row; no text leads to it
    kind = "tag" if piece == f"[{language}]" else "character" if len(piece) == 1 else "merge"
    return NewToken(row, piece, language, kind)


def prove(base: VoiceModel, restored: VoiceModel, rows: Mapping[str, torch.Tensor],
          record: ExportRecord) -> Certificate:
    """The certificate of `restored`, as it was loaded from its files; a check that fails raises `UserError`."""
    before, after = base.model.module.state_dict(), base_tensors(restored.model.module)
    tables = [f"{table}.weight" for table in base.model.text_tables]
    wanted, seen = (hash_tensors({name: side[name] for name in tables}) for side in (before, after))
    kept = {name: value.detach() for name, value in new_rows(restored.model.module, base.model.text_tables).items()}
    pairs = [("prefix_rows", wanted, seen, "The old rows of every text table are those of the base."),
             ("frozen_tensors", hash_tensors(before), hash_tensors(after), "Every tensor of the base is what it was."),
             ("new_rows", hash_tensors(dict(rows)), hash_tensors(kept), "The new rows are those of the checkpoint."),
             ("front_end", record.origin.fingerprint, restored.front_end.fingerprint,
              "The tokenizer is the one that was given.")]
    checks = [Check(name, "passed" if one == other else "failed", one, other, what) for name, one, other, what in pairs]
    checks += _speech(base, restored)
    proof = Certificate(f"export:{record.name}", record.run, record.step, record.scope, record.origin.model, "",
                        base.base_hash, restored.front_end.fingerprint, time.time(), tuple(checks), ())
    if failed := proof.failed():
        raise UserError(f"The restored model failed its own checks: {', '.join(failed)}. It was not kept.",
                        "The disk may be failing; try again.")
    return proof


@torch.inference_mode()
def _speech(base: VoiceModel, restored: VoiceModel) -> list[Check]:
    """Base-language samples: their ids and their logits, to the bit."""
    clips = replay.load(base, base.family.voices(base.base_folder)).probe_clips
    samples = replay.probes(clips, base.model.prompt_length)
    ids = equal = 0
    for item in samples:
        one, other = base.model.probe(item.sample), restored.model.probe(item.sample)
        equal += torch.equal(one.text_logits, other.text_logits[:, :one.text_logits.shape[1]]) and torch.equal(
            one.speech_logits, other.speech_logits)
        ids += np.array_equal(base.front_end.encode(item.text, item.language),
                              restored.front_end.encode(item.text, item.language))
    languages = ", ".join(sorted({item.language for item in samples}))

    def check(name: str, good: int, what: str) -> Check:
        verdict: certificate.Result = "skipped" if not samples else "passed" if good == len(samples) else "failed"
        return Check(name, verdict, f"{len(samples)} samples", f"{good} of {len(samples)} samples ({languages})", what)

    return [check("base_logits", equal, "Logits of base-language samples are those of the base, to the bit."),
            check("base_tokens", ids, "Sentences of the base languages are encoded as before.")]


def _card(record: ExportRecord, files: list[tuple[str, str]]) -> str:
    """README.md of the export."""
    language = ", ".join(record.languages)
    listed = "\n".join(f"- `{path}`: {purpose}" for path, purpose in files)
    return (
        f"# {record.name}\n\nThe base model `{record.origin.model}` with all of its own values, and the new rows for "
        f"{language} of a finetune whose old rows were damaged. Restored by the doctor of Lisan ({record.run}).\n\n"
        f"The base languages work exactly as in the base: `{CERTIFICATE}` says how that was checked. How well "
        f"{language} sounds was not measured: its rows learned beside the damaged ones, and the text is normalised as "
        f"Lisan does it. In the app it is `export:{record.name}`.\n\n## Files\n\n{listed}\n"
    )
