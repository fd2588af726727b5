"""What the verb `book` refuses before its work, which is `core.book`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from config.errors import UserError
from config.schema import BookOptions
from core.library.lineage import Model
from core.submission.requirements import check_speaks, check_upload
from core.text.manuscript import language_of, open_book, read_pronunciations
from core.workspace import Workspace
from data.ffmpeg_audio import INSTALL, ffmpeg_path


def check(workspace: Workspace, options: BookOptions) -> None:
    """The book can be read, what writes its files is installed, and the model speaks its language."""
    if not options.book:
        raise UserError("No book was given.", "Give the path of an EPUB, HTML, Markdown or text file.")
    if not (options.m4b or options.mp3 or options.subtitles != "none"):
        raise UserError("M4B, MP3 and subtitles are all turned off, so nothing would be written.", "Turn one on.")
    if (options.m4b or options.mp3) and ffmpeg_path() is None:
        raise UserError("An audiobook is written by ffmpeg, which is not on this machine.", INSTALL)
    if options.output and Path(options.output).exists() and not Path(options.output).is_dir():
        raise UserError(f"The output folder {options.output} is a file.", "Give the path of a folder.")
    for path in filter(None, (options.book, options.pronunciations)):
        check_upload(workspace, path)
    read_pronunciations(options.pronunciations)
    book = open_book(options.book)
    # A missing model is reported with the other needs.
    known_codes: tuple[str, ...] = ()
    with suppress(UserError):
        known_codes = Model.open(workspace, options.voice_model).languages
    codes = [language_of(book, options, known_codes)] if known_codes else []
    check_speaks(workspace, options.voice_model, codes, options.voice)
