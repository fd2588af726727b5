"""What the verb `tokenizer` refuses before its work, which is `core.tokenizer`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from config.errors import UserError
from config.schema import TokenizerOptions
from core.jobs.state import JobBoard, JobState
from core.library import artefacts
from core.library.lineage import Model
from core.submission.requirements import check_named, check_not_being_made, makes
from core.verbs import compare_tokenizers
from core.workspace import Workspace, free_name

_OF_A_TOKENIZER = ("model", "dataset", "variant_of", "algorithm", "merges", "rules", "tokenizer_file", "byte_fallback")
"""The options that decide what a tokenizer holds."""


def check(workspace: Workspace, options: TokenizerOptions) -> None:
    compare_tokenizers.check(workspace, options)
    if options.part == "all":
        _check_new_tokenizer(workspace, options)
    check_named(options, "tokenizer", "dataset")


def suggest_name(workspace: Workspace, settings: Mapping[str, str]) -> str:
    """A free name made of model and languages, or that of the tokenizer with these settings."""
    stem = Model.find(workspace, settings["model"]).stem
    dataset, states = settings["dataset"], JobBoard(workspace).states()
    # A dataset that is still being prepared has no language yet; its job has one.
    making = [str(state.job.settings["language"]).split(",") for state in states
              if state.alive and state.verb == "prepare" and state.job.settings.get("dataset") == dataset]
    if not making:
        workspace.dataset(dataset)
    codes = making[-1] if making else artefacts.languages_of_dataset(workspace, dataset)
    return free_name("-".join((stem, *codes)), lambda name: is_other_tokenizer(workspace, name, settings, states))


def is_other_tokenizer(workspace: Workspace, name: str, options: Mapping[str, object],
                       states: Iterable[JobState]) -> bool:
    """Whether there is a tokenizer `name` that none of the finished jobs made with these `options`.

    What `options` lacks has its default; values may be those of the schema or their text.
    """
    fields = TokenizerOptions.model_fields

    def content(values: Mapping[str, object]) -> list[str]:
        return [str(values.get(field, fields[field].default)) for field in _OF_A_TOKENIZER]

    return name in workspace.list_tokenizers() and not any(
        state.verb == "tokenizer" and state.status == "finished"
        and state.job.settings.get("tokenizer", fields["tokenizer"].default) == name
        and content(state.job.settings) == content(options) for state in states)


def _check_new_tokenizer(workspace: Workspace, options: TokenizerOptions) -> None:
    """The name must be free, or that of a tokenizer with the same options; no living job may be about to take it.

    Of a tokenizer that no known job made, such as an unpacked one, the job finds out whether it is the same.
    """
    name, values, states = options.tokenizer, options.model_dump(), JobBoard(workspace).states()
    made_here = any(state.status == "finished" and makes(state.job, "tokenizer", name) for state in states)
    if made_here and is_other_tokenizer(workspace, name, values, states):
        raise UserError(f"There already is a tokenizer named {name!r}, which was not made with these options.",
                        "Choose another tokenizer name.")
    check_not_being_made(states, "tokenizer", name, {**values, "part": "all"})
