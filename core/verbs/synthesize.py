"""What the verb `synthesize` refuses before its work, which is `core.synthesize`."""

from __future__ import annotations

from config.errors import UserError
from config.schema import SynthesizeOptions
from core.submission.requirements import check_new_archive, check_speaks
from core.workspace import Workspace


def check(workspace: Workspace, options: SynthesizeOptions) -> None:
    if not options.text.strip() and not options.file:
        raise UserError("There is no text to synthesize.", "Give one: --text TEXT, or --file FILE.")
    if options.text.strip() and options.file:
        raise UserError("Give a text or a text file, not both.", "Leave one out.")
    check_new_archive(options.archive)
    check_speaks(workspace, options.voice_model, (options.language,), options.voice)
