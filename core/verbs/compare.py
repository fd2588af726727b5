"""What the verb `compare` refuses before its work, which is `core.compare`."""

from __future__ import annotations

from config.errors import UserError
from config.schema import CompareOptions
from core.library.reference_voices import SPEAKER
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
