"""The texts of an export: its model card, and a script that loads it. Never loads torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.library.catalog import family
from core.library.certificate import Certificate
from core.library.records import ExportRecord

_SCOPES = {
    "rows": "Only the new rows were trained; the base languages are computed exactly as before.",
    "gated": "New rows were trained, and adapters that act on texts of the new language alone; "
             "the base languages are computed exactly as before.",
    "full": "New rows were trained, and the base's own weights or adapters, which act on every language; the "
            "certificate says how far the base languages moved.",
}


@dataclass(frozen=True)
class CardFacts:
    """What the card says beyond record and certificate. `overridden` are failed checks that did not block."""

    dataset_source: str
    dataset_clips: str  # in words
    files: tuple[tuple[str, str], ...]  # path and purpose
    samples: tuple[tuple[str, str, str], ...]  # path, language and text
    overridden: tuple[str, ...]
    merged: str  # file with merged adapters; empty when there are none
    dataset_licence: str = ""  # as it was given when the dataset was prepared


def card(record: ExportRecord, certificate: Certificate, facts: CardFacts) -> str:
    """README.md of the export."""
    base = family(record.origin.family)
    languages = ", ".join(record.languages)
    parts = [
        f"# {record.name}",
        f"{base.title} taught {languages} with Lisan. Run `{record.run}`, step {record.step}.",
        _SCOPES[record.scope],
        *_failed(certificate, facts.overridden),
        "## Intelligibility", _errors(certificate),
        "## What was preserved", _checks(certificate),
        "The certificate was computed from these files when the export was made: `certificate.json`.",
        "## Data and licence",
        f"- Base model: {base.title}, licence {base.licence}.\n"
        f"- Dataset `{record.dataset}`: {facts.dataset_clips}, from {facts.dataset_source}"
        f"{_licence(facts.dataset_licence)}",
        "## How to load it",
        "With a checkout of Lisan and its requirements installed:\n\n"
        "    PYTHONPATH=path/to/lisan python load_example.py\n\n"
        "Copied into `exports/` of a workspace, it is `export:" + record.name + "` in the app and on the command line.",
        *_merged(record, facts.merged),
        "## Samples", "\n".join(f"- [{path}]({path}) ({language}): {text}" for path, language, text in facts.samples)
        or "None: there were no held-out sentences.",
        "## Files", "\n".join(f"- `{path}`: {purpose}" for path, purpose in facts.files),
    ]
    return "\n\n".join(parts) + "\n"


def _licence(licence: str) -> str:
    if licence:
        return f", licence {' '.join(licence.split())}."
    return ". Its licence is not recorded here: make sure that it allows what you do with this model."


def _failed(certificate: Certificate, overridden: Sequence[str]) -> list[str]:
    if not overridden:
        return []
    rows = "\n".join(f"- `{name}`: wanted {certificate.check(name).expected}; seen {certificate.check(name).seen}"
                     for name in overridden)
    return [f"**Exported in spite of failed checks:**\n\n{rows}"]


def _errors(certificate: Certificate) -> str:
    if not certificate.errors:
        seen = next((f" ({check.seen})" for check in certificate.checks
                     if check.name == "character_error_rates" and check.seen), "")
        return f"Not measured: there were no held-out sentences in a language that the recogniser knows{seen}."
    rows = [f"| {item.language}{' (new)' if item.new else ''} | {item.sentences} | {_percent(item.before)} | "
            f"{_percent(item.after)} | {_percent(item.original)} |" for item in certificate.errors]
    return ("Character error rate of held-out sentences, by the recogniser that comes with the model or, for a new "
            "language, by the one that `training.yaml` names as `recogniser`. Its own error on original recordings is "
            "the last column: no synthesized speech can be expected below it.\n\n"
            "| language | sentences | before | after | recordings |\n|---|---|---|---|---|\n" + "\n".join(rows)
            + _chose([item.language for item in certificate.errors if item.chose]))


def _chose(languages: Sequence[str]) -> str:
    """The bias of an error on the sentences that chose the checkpoint."""
    if not languages:
        return ""
    return (f"\n\nThe error of {', '.join(languages)} was measured on the sentences that chose the checkpoint, because "
            "no others were held out: on sentences that had no part in the training it can be higher.")


def _checks(certificate: Certificate) -> str:
    rows = [f"| `{check.name}` | {check.result} | {check.what} | {_short(check.seen)} |"
            for check in certificate.checks]
    return "| check | result | what | seen |\n|---|---|---|---|\n" + "\n".join(rows)


def _merged(record: ExportRecord, merged: str) -> list[str]:
    if not merged:
        return []
    return [f"`{merged}` has the adapters merged into the weights, for programs that know no adapters. It speaks "
            f"{', '.join(record.languages)} like the rest of this export, but it CHANGES the base languages: the "
            "certificate does not hold for it."]


def _percent(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.1%}"


def _short(text: str) -> str:
    return (text if len(text) <= 80 else text[:77] + "...").replace("|", "/")


def load_example(language: str, text: str) -> str:
    """A script that stands in the export, loads it and speaks."""
    return f'''"""Load this export with Lisan and speak.

PYTHONPATH=path/to/lisan python load_example.py [LANGUAGE TEXT]
"""

import sys
from pathlib import Path

import torch

from config.schema import SamplingOptions
from core.model.loading import export_record, load_export
from core.speech.synthesis import Synthesizer, join_segments
from data import audio

folder = Path(__file__).resolve().parent
language, text = sys.argv[1:3] if len(sys.argv) > 2 else ({language!r}, {text!r})

model = load_export(folder, torch.device("cpu"))
synthesizer = Synthesizer(model, longest=export_record(model).longest_texts)
segments = list(synthesizer.synthesize(text, language, SamplingOptions()))
audio.save("speech.wav", join_segments(segments), synthesizer.sample_rate)
print(f"speech.wav: {{sum(len(s.waveform) for s in segments) / synthesizer.sample_rate:.2f}} s")
'''
