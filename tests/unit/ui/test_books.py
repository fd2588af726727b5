"""The Books section of the page: what an upload says, what the newest job shows, and which files are served."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from config.errors import UserError
from config.schema import BookOptions
from core.jobs import worker
from core.jobs.events import Event, Failed, Finished, Progress, Queued, Started, append_event
from core.jobs.job import Job, create_job
from core.jobs.state import JobReader
from core.sources import source_preview
from core.submission.jobs import check_requirements
from core.workspace import Workspace
from tests.books import plain_book
from ui import books, media, web_surface
from ui.live import View


def read_job(workspace: Workspace, tmp_path: Path, *events: Event) -> Job:
    job = create_job(workspace, "book", BookOptions(book=str(tmp_path / "boat.epub")), job_id="reading")
    for event in (Queued(device="cpu"), Started(1, 1), *events):
        append_event(job.journal, event)
    return job


def shown(job: Job) -> str:
    return str(books.book_view(View("listen", {}, (JobReader(job).state(),))))


def test_an_uploaded_book_is_described_with_what_is_left_out(workspace: Workspace, tmp_path: Path) -> None:
    path = plain_book(tmp_path / "boat.epub", "<h1>Rain</h1><p>It rained.<sup>1</sup></p>",
                      "<h1>Sun</h1><p>It shone.</p>")
    notice, value = books._uploaded_book(workspace, str(path))
    assert Path(str(value)).is_relative_to(workspace.uploads)
    assert Path(str(value)).read_bytes() == path.read_bytes()
    assert "The Boat, by Ada Reed: 2 chapters, 6 words, English." in str(notice)
    assert "not read" in str(notice)
    assert books._uploaded_book(workspace, None)[1] == ""


def test_an_upload_outlasts_its_day_while_a_job_can_be_resumed(workspace: Workspace, tmp_path: Path) -> None:
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    page_copies = [plain_book(incoming / "boat.epub", "<p>It rained.</p>"), incoming / "list.txt",
                   plain_book(incoming / "other.epub", "<p>It shone.</p>")]
    page_copies[1].write_text("boat -> bote\n")
    book = Path(str(books._uploaded_book(workspace, str(page_copies[0]))[1]))
    spellings = Path(str(books._uploaded_list(workspace, str(page_copies[1]))[1]))
    other = Path(str(books._uploaded_book(workspace, str(page_copies[2]))[1]))
    create_job(workspace, "book", BookOptions(book=str(book), pronunciations=str(spellings)), job_id="reading")

    two_days_ago = time.time() - 2 * web_surface.UPLOAD_AGE_S
    for path in (*page_copies, book.parent, spellings.parent, other.parent):
        os.utime(path, (two_days_ago, two_days_ago))
    web_surface.remove_old_uploads(incoming)
    source_preview.store_upload(workspace, [plain_book(tmp_path / "new.epub", "<p>It froze.</p>")])

    assert not any(path.exists() for path in page_copies)
    assert (book.is_file(), spellings.is_file(), other.exists()) == (True, True, False)
    with pytest.raises(UserError, match="upload is no longer here"):
        check_requirements(workspace, "book", BookOptions(book=str(other), m4b=False, mp3=False))


def test_an_upload_is_removed_when_its_book_is_finished(workspace: Workspace, tmp_path: Path) -> None:
    path = plain_book(tmp_path / "boat.epub", "<p>It rained.</p>")
    book = Path(str(books._uploaded_book(workspace, str(path))[1]))
    job = create_job(workspace, "book", BookOptions(book=str(book)), job_id="reading")
    worker.remove_imported_uploads(job)
    assert not book.exists()


def test_an_upload_that_is_no_book_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "boat.epub"
    path.write_bytes(b"%PDF-1.7")
    with pytest.raises(UserError, match="boat.epub cannot be read"):
        books._uploaded_book(workspace, str(path))


def test_an_uploaded_list_is_counted(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("boat -> bote\n")
    notice, value = books._uploaded_list(workspace, str(path))
    assert "1 word." in str(notice)
    assert Path(str(value)).is_relative_to(workspace.uploads)


def test_a_running_job_shows_its_progress(workspace: Workspace, tmp_path: Path) -> None:
    job = read_job(workspace, tmp_path, Progress(3, 7, "sentences", "Rain"))
    assert "boat.epub" in shown(job)
    assert media.BOOK + "/" not in shown(job)


def test_a_failed_job_shows_its_sentence(workspace: Workspace, tmp_path: Path) -> None:
    job = read_job(workspace, tmp_path, Failed("ffmpeg is not here.", "Install it."))
    assert "ffmpeg is not here." in shown(job)


def test_a_finished_job_offers_its_files(workspace: Workspace, tmp_path: Path) -> None:
    job = read_job(workspace, tmp_path, Finished({"sentences": 7, "chapters": 2}))
    folder = job.directory / media.BOOK
    assert "The files were deleted." in shown(job)
    folder.mkdir()
    for name in ("The-Boat.m4b", "1-Rain.mp3", "resynthesized.csv", "config.yaml"):
        (folder / name).write_bytes(b"x" * 2000)
    html = shown(job)
    assert 'href="media/book/reading/The-Boat.m4b"' in html
    assert "2.0 kB" in html
    assert "config.yaml" not in html
    assert media.book_path(workspace, "reading", "1-Rain.mp3") == folder / "1-Rain.mp3"
