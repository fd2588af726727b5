"""Every option once: one frozen model a verb, with units and ranges, read by command line, form and worker.

A verb's options are written to its job's `config.yaml` when the job is queued and never
change after that. Field titles are the labels people see; descriptions are the help texts.
"""

from __future__ import annotations

from typing import get_args

from config.schema.recordings import (
    AlignOptions,
    ClipOptions,
    PrepareOptions,
    ReviseOptions,
    SegmentOptions,
    TranscribeOptions,
)
from config.schema.speaking import (
    CompareOptions,
    ExportOptions,
    PushOptions,
    SamplingOptions,
    SoundOptions,
    SynthesizeOptions,
)
from config.schema.training import GROUPS, PreflightOptions, TrainOptions
from config.schema.values import (
    AS_IS,
    NO_RULES,
    AdapterKind,
    Initialisation,
    LanguageCode,
    Name,
    NameOrNothing,
    Options,
    Scope,
    SpeakingPrecision,
)
from config.schema.vocabulary import (
    CompareTokenizersOptions,
    DoctorOptions,
    DownloadOptions,
    ExtendOptions,
    TokenizerOptions,
)

__all__ = [
    "AS_IS", "AdapterKind", "AlignOptions", "ClipOptions", "CompareOptions", "CompareTokenizersOptions",
    "DoctorOptions", "DownloadOptions",
    "ExportOptions", "ExtendOptions", "GROUPS", "Initialisation", "LanguageCode", "Name", "NO_RULES",
    "NameOrNothing", "Options", "PreflightOptions", "PrepareOptions", "PushOptions", "ReviseOptions", "SCOPES",
    "SamplingOptions", "Scope", "SegmentOptions", "SoundOptions", "SpeakingPrecision", "SynthesizeOptions",
    "TokenizerOptions", "TrainOptions", "TranscribeOptions",
]

SCOPES: tuple[str, ...] = get_args(Scope)
