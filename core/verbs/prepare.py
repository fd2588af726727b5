"""What the verb `prepare` refuses before its work, which is `core.prepare`."""

from __future__ import annotations

from config.errors import UserError
from config.schema import AS_IS, PrepareOptions
from core.dataset.languages import describe_language
from core.jobs.reporter import pluralize
from core.jobs.state import JobBoard
from core.sources.downloader import public_name
from core.submission.requirements import check_rules, makes
from core.workspace import Workspace
from data import manifest


def check(workspace: Workspace, options: PrepareOptions) -> None:
    check_new_dataset(workspace, options)
    check_rules(workspace, options.rules, "")


def check_new_dataset(workspace: Workspace, options: PrepareOptions) -> None:
    """The name must be free, or that of a dataset of the same source; no living job may be about to take it."""
    name, source = options.dataset, public_name(options.source)
    if name in workspace.list_datasets() and options.source != AS_IS:
        card = manifest.load_card(workspace.dataset(name))
        earlier_source, codes = "", options.language.split(",")
        if options.add_to and options.add_to in workspace.list_datasets():
            added_to = manifest.load_card(workspace.dataset(options.add_to))
            earlier_source, codes = f"{added_to.source} + ", [*added_to.languages, *codes]
        if (card.source, card.languages) != (earlier_source + source, tuple(dict.fromkeys(codes))):
            raise UserError(f"There already is a dataset named {name!r}: {pluralize(card.clips, 'clip')} in "
                            f"{describe_language(card.language)} from {card.source}.",
                            "Choose another dataset name.")

    for state in JobBoard(workspace).queue():
        if makes(state.job, "dataset", name) and state.job.settings.get("source") not in (options.source, AS_IS):
            raise UserError(f"{state.id} is preparing a dataset named {name!r} from another source.",
                            "Choose another dataset name, or wait for that job.")
