"""The verb `compare`; its work is `core.compare`."""

from __future__ import annotations

from config.errors import UserError
from config.schema import CompareOptions
from core.jobs.events import Result
from core.jobs.reporter import Reporter
from core.library.reference_voices import SPEAKER
from core.submission.job_subjects import Names
from core.submission.requirements import check_speaks
from core.workspace import Workspace


def check(workspace: Workspace, options: CompareOptions) -> None:
    if not options.finetuned:
        raise UserError("There is no finetuned model to compare with.", "Choose run:ID or export:NAME.")
    if any(not text.strip() for _, text in options.texts):
        raise UserError("One of the texts to compare is empty.", "Write at least one word, or leave it out.")

    # The speaker belongs to the data of the finetuned model; the base borrows the voice.
    data_speaker = options.voice.startswith(SPEAKER)
    check_speaks(workspace, options.base, (), "" if data_speaker else options.voice)
    check_speaks(workspace, options.finetuned, (language for language, _ in options.texts), options.voice)


def subject(names: Names) -> str:
    return f"{names['base']} and {names['finetuned']}"


def run(options: CompareOptions, workspace: Workspace, reporter: Reporter) -> Result:
    from core import compare as work

    return work.run(options, workspace, reporter)
