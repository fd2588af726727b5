"""What the verb `train` refuses before its work, which is `core.train`."""

from __future__ import annotations

import importlib.util

from config import schema
from config.errors import UserError
from config.schema import PreflightOptions, TrainOptions
from core.dataset import languages, review
from core.library import catalog, lineage, records
from core.library.artefacts import languages_of_dataset
from core.workspace import Workspace
from data import manifest
from data.splits import why_untrainable


def check(workspace: Workspace, options: TrainOptions) -> None:
    """What is there must be in a language that it can be used for; what is not there yet is checked by the worker."""
    # A tracker is named as its package.
    if options.job.tracker != "none" and importlib.util.find_spec(options.job.tracker) is None:
        raise UserError(f"The tracker {options.job.tracker!r} was chosen, and its package is not installed.",
                        f"Install it (pip install {options.job.tracker}), or choose no tracker.")

    schema.check_sharding(options, schema.get_world_size(options.hardware.processes))
    if options.dataset in workspace.list_datasets() and not isinstance(options, PreflightOptions):
        review.check_texts_match(workspace, options.dataset, options.data.mismatch_action)

    try:
        record = records.read_extension(workspace.extension(options.extension))
        base = lineage.languages_of(workspace, f"base:{record.origin.model}")
    except UserError:
        return
    if options.adapters.adapter_rank_conditioner and not catalog.find_entry(record.origin.family).conditioner_adapters:
        raise catalog.no_conditioner_layers(options.adapters.adapter_rank_conditioner)
    codes = languages_of_dataset(workspace, options.dataset)
    if codes:
        languages.check_targets(options.dataset, codes, record.languages, base,
                                record.origin.earlier_languages)
        try:
            clips = manifest.load(workspace.dataset(options.dataset)).clips
        except UserError:
            # A damaged dataset is reported by the worker.
            return
        fault = why_untrainable(clips)
        if fault:
            raise UserError(f"The dataset {options.dataset!r} cannot be trained on: {fault}.",
                            "Add recordings of the same speakers, or prepare it with another held-out share "
                            "(--held-out); clips without a speaker share one.")

    for name in languages.split_names(options.full.replay_datasets) if options.scope == "full" else ():
        for language in languages_of_dataset(workspace, name):
            languages.check_replayed(name, language, base)
