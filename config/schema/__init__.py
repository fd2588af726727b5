"""The options of each verb as a frozen model with units and ranges, read by command line, form and worker.

The options of a job are in its `config.yaml` and never change. Titles are the labels of the page, descriptions the
help texts.
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
