"""The one door through which the page gets files: sound and pictures of the workspace, a run's curves as a table,
archives that were packed, reports of evaluations, books, listening tests, whose answers come back here, and the page's
own font.

Gradio's `allowed_paths` takes whole folders, so it is left empty: a run's folder also holds
weights, journals and logs. This route serves by kind of file and by place, never by path.
While a comparison is heard blind its files have addresses that do not say which side they are of.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from config.errors import UserError
from core.dataset.playable import DECODED, TYPES, playable
from core.jobs.events import CLIPS_ARCHIVE
from core.jobs.job import load_job
from core.jobs.state import JobBoard, JobReader, JobState
from core.library import evaluation_report, listening, maker_signature
from core.library.verification import STATEMENT
from core.workspace import Workspace
from ui import terms, translations
from ui.live import workspace_mark

KINDS = {**TYPES, **dict.fromkeys(DECODED, TYPES[".wav"]), ".png": "image/png"}
PLACES = {"runs": ("audio", "samples"), "datasets": ("audio",), "exports": ("audio", "samples"),
          "segments": ("audio",), "recordings": ("clips",)}
"""Under each kind of artefact, the subfolders that may be heard and seen."""

COVERED, CURVES, LISTENING, PACKED, CLIPS, REPORT = "covered", "curves", "listening", "archive", "clips", "report"
SIGNED = "signed"
PLAYED, PLAYED_FOLDER = "played", Path("cache") / "played"
"""Clips of an upload that is not imported yet: the part of their address, and their folder in the workspace."""
EXAMPLE = "media/example"
"""Address of the example archive and of the template of a table."""
BOOK = "book"
"""The folder of a job that read a book, and the part of the address of its files."""
BOOK_TYPES = {".m4b": "audio/mp4", ".mp3": "audio/mpeg", ".srt": "application/x-subrip", ".vtt": "text/vtt",
              ".csv": "text/csv"}
_PLAYED_CLIP = re.compile(r"[0-9a-f]{16}/\d{1,2}\.wav")
_FONT = Path(__file__).parent / "fonts" / "noto-sans-ethiopic.woff2"


def url(kind: str, name: str, path: str) -> str:
    """Address of `path` in the artefact `name`, relative to the page so that it works behind a prefix."""
    return "media/" + quote(f"{kind}/{name}/{path}")


def covered_url(job: str, path: str) -> str:
    """As `url` of a run's file, but an address from which nobody reads the file's name."""
    return f"media/{COVERED}/{quote(job)}/{_cover(job, path)}"


def _cover(job: str, path: str) -> str:
    return hashlib.blake2b(f"{job} {path}".encode(), digest_size=8).hexdigest() + Path(path).suffix


def played_url(key: str, name: str) -> str:
    """Address of a clip of an upload that is not imported yet, relative to the page."""
    return f"media/{PLAYED}/{key}/{quote(name)}"


def curves_url(job: str) -> str:
    """Address of a training's curves, relative to the page."""
    return f"media/{CURVES}/{quote(job)}.csv"


def listening_url(job: str, download: bool = False) -> str:
    """Address of a listening test, relative to the page: to take it, or the file for listeners elsewhere."""
    return f"media/{LISTENING}/{quote(job)}.html" + ("?file=1" if download else "")


def archive_url(job: str) -> str:
    """Address of the archive that a job packed, relative to the page."""
    return f"media/{PACKED}/{quote(job)}.tar"


def statement_url(export: str) -> str:
    """Address of what the maker of an export signs, relative to the page."""
    return f"media/{SIGNED}/{quote(export)}/{STATEMENT}"


def clips_path(workspace: Workspace, job: str) -> Path | None:
    """All clips of a job in one file; None where there is none."""
    try:
        path = load_job(workspace, job).directory / CLIPS_ARCHIVE
    except UserError:
        return None
    return None if path.is_symlink() or not path.is_file() else path


def archive_path(workspace: Workspace, job: str) -> Path | None:
    """The archive of a packing that has finished; None for every other job."""
    try:
        state = JobReader(load_job(workspace, job)).state()
    except UserError:
        return None
    name = str((state.result or {}).get("archive", ""))
    path = state.job.directory / name
    plain = state.verb == "pack" and name.endswith(".tar") and path.parent == state.job.directory
    return path if plain and not path.is_symlink() and path.is_file() else None


def report_url(job: str, download: bool = False) -> str:
    """Address of the report of an evaluation, relative to the page: to read it, or as a file."""
    return f"media/{REPORT}/{quote(job)}.html" + ("?file=1" if download else "")


def report_path(workspace: Workspace, job: str) -> Path | None:
    """The report of an evaluation; None for every other job."""
    try:
        run = load_job(workspace, job)
    except UserError:
        return None
    path = run.directory / evaluation_report.HTML
    return path if run.verb == "evaluate" and not path.is_symlink() and path.is_file() else None


def book_url(job: str, name: str) -> str:
    """Address of a finished file of a book, relative to the page."""
    return f"media/{BOOK}/{quote(job)}/{quote(name)}"


def book_path(workspace: Workspace, job: str, name: str) -> Path | None:
    """A finished file of a book; None for whatever is no such file."""
    try:
        folder = load_job(workspace, job).directory / BOOK
    except UserError:
        return None
    path = folder / name
    plain = path.parent == folder and not name.startswith(".") and path.suffix in BOOK_TYPES
    with suppress(OSError, ValueError):  # a name that no file can have
        return path if plain and not folder.is_symlink() and not path.is_symlink() and path.is_file() else None
    return None


def clips_url(job: str) -> str:
    """Address of all clips of a job in one file, relative to the page."""
    return f"media/{CLIPS}/{quote(job)}.zip"


def curves_csv(state: JobState) -> str:
    """Everything that a training measured, one row a step; a value that was not measured there is empty."""
    rows: dict[int, dict[str, object]] = {}
    for step in state.steps:
        values = {name: value for name, value in dataclasses.asdict(step).items() if isinstance(value, int | float)}
        # The time of the journal's entry is no measurement.
        del values["time"]
        rows[step.step] = {**values, **{f"learning_rate.{group}": rate for group, rate in step.learning_rates.items()}}

    # A validation has a step of its own, or shares the row of a training step.
    for evaluation in state.evaluations:
        row = rows.setdefault(evaluation.step, {"step": evaluation.step})
        for code, measurements in evaluation.languages.items():
            row |= {f"held_out.{code}.{name}": value for name, value in measurements.items()}
        row |= {f"cer.{code}": error for code, error in evaluation.errors.items()}
        row |= {f"metric.{name}": value for name, value in evaluation.metrics.items()}

    # The columns are all names in the order of their first appearance.
    columns = list(dict.fromkeys(["step", *chain.from_iterable(rows.values())]))
    text = io.StringIO()
    table = csv.DictWriter(text, columns, restval="")
    table.writeheader()
    table.writerows(rows[step] for step in sorted(rows))
    return text.getvalue()


def resolve(workspace: Workspace, address: str) -> Path | None:
    """The file behind `address` (as in `url`, without "media/"); None for whatever may not be served."""
    parts = address.split("/")

    # Names that begin with a dot are hidden files, or lead out of the folder.
    if any(part in ("", ".", "..") or part.startswith(".") for part in parts):
        return None
    if parts[0] == COVERED:
        return _uncovered(workspace, *parts[1:]) if len(parts) == 3 else None
    if parts[0] == PLAYED:
        # Samples of uploads are stored outside the folders of jobs.
        home = workspace.path / PLAYED_FOLDER
        path = home.joinpath(*parts[1:])
        plain = len(parts) == 3 and _PLAYED_CLIP.fullmatch("/".join(parts[1:])) and not home.is_symlink()
        return path if plain and path.is_file() and not path.is_symlink() and not path.parent.is_symlink() else None

    # All other files are in a known folder of a job, and of a kind that a page shows.
    if len(parts) < 4:
        return None
    # Only known folders of a job are served, and only files that a page plays or shows.
    kind, _, folder = parts[:3]
    if folder not in PLACES.get(kind, ()) or Path(parts[-1]).suffix.lower() not in KINDS:
        return None
    with suppress(OSError, ValueError, RuntimeError):  # a name that no file can have; links in a circle
        # A link must not lead out of the folder.
        base = (workspace.path / kind / parts[1] / folder).resolve()
        path = workspace.path.joinpath(*parts).resolve()
        inside = path.is_relative_to(base) and base.is_relative_to(workspace.path.resolve())
        return path if inside and path.is_file() else None
    return None


def _uncovered(workspace: Workspace, job: str, name: str) -> Path | None:
    """The file of the run `job` whose covered name is `name`."""
    home = workspace.runs / job
    with suppress(OSError, ValueError):
        for path in chain.from_iterable((home / folder).glob("*") for folder in PLACES["runs"]):
            plain_path = path.relative_to(home).as_posix()
            if _cover(job, plain_path) == name:
                return resolve(workspace, f"runs/{job}/{plain_path}")
    return None


def _listening_page(workspace: Workspace, job: str) -> str:
    listening.read_test(workspace.run(job))
    return listening.read_page(workspace.run(job))


def _add_answers(workspace: Workspace, job: str, content: bytes) -> listening.AddedAnswers:
    """Add what a listener answered on the page; the evaluation's report has the results of those who are done."""
    added = listening.add_answers(workspace, content, "The page", workspace.run(job))
    if added.complete and added.answers:
        with suppress(UserError, OSError):  # the answers are stored, which is what the listener has to know
            listening.update_report(workspace, added.test.evaluation)
    return added


def routes(workspace: Workspace, announced: Callable[[], object] = lambda: None,
           board: JobBoard | None = None, examples: Mapping[str, Callable[[], bytes]] | None = None) -> list[Route]:
    """Routes to hand to the application, which asks for the sign-in (`ui/web_surface.py`).

    `announced`: what the page shows and the workspace does not tell, such as a countdown. `board`: the page's own.
    `examples`: by name the files under `EXAMPLE`.
    """
    jobs = board or JobBoard(workspace)

    async def mark(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(lambda: workspace_mark(jobs, announced())),
                            headers={"Cache-Control": "no-store"})

    async def media(request: Request) -> Response:
        path = resolve(workspace, request.path_params["path"])
        if path is None:
            return PlainTextResponse("Not here.", status_code=404)
        kind = KINDS[path.suffix.lower()]
        try:
            # A browser cannot play every format, so some formats are converted first.
            path = await run_in_threadpool(playable, workspace, path)
        except UserError as error:
            return PlainTextResponse(error.message, status_code=415)
        return FileResponse(path, media_type=kind, headers={"Cache-Control": "private, max-age=60"})

    async def font(request: Request) -> Response:
        return FileResponse(_FONT, media_type="font/woff2", headers={"Cache-Control": "public, max-age=31536000"})

    async def guide(request: Request) -> Response:
        return HTMLResponse(await run_in_threadpool(terms.guide_page))

    async def texts(request: Request) -> Response:
        content = translations.contents().get(request.path_params["language"])
        if content is None:
            return PlainTextResponse("Not here.", status_code=404)
        return Response(content, media_type="application/json",
                        headers={"Cache-Control": "public, max-age=31536000, immutable"})

    # The next ones are downloads, so their headers name a file.
    async def curves(request: Request) -> Response:
        try:
            state = await run_in_threadpool(lambda: JobReader(load_job(workspace, request.path_params["job"])).state())
        except UserError:
            return PlainTextResponse("Not here.", status_code=404)
        name = {"Content-Disposition": f'attachment; filename="{state.id}.csv"'}
        return Response(curves_csv(state), media_type="text/csv", headers=name)

    async def archive(request: Request) -> Response:
        job, packed = request.path_params["job"], request.url.path.endswith(".tar")
        path = await run_in_threadpool(archive_path if packed else clips_path, workspace, job)
        if path is None:
            return PlainTextResponse("Not here.", status_code=404)
        return FileResponse(path, media_type="application/x-tar" if packed else "application/zip",
                            filename=path.name if packed else f"{job}.zip")

    async def book_file(request: Request) -> Response:
        path = await run_in_threadpool(book_path, workspace, request.path_params["job"], request.path_params["name"])
        if path is None:
            return PlainTextResponse("Not here.", status_code=404)
        return FileResponse(path, media_type=BOOK_TYPES[path.suffix], filename=path.name)

    async def statement(request: Request) -> Response:
        try:
            folder = workspace.export(request.path_params["export"])
            content = await run_in_threadpool(maker_signature.statement, folder)
        except UserError as error:
            return PlainTextResponse(error.message, status_code=404)
        name = {"Content-Disposition": f'attachment; filename="{STATEMENT}"', "Cache-Control": "no-store"}
        return Response(content, media_type="text/plain", headers=name)

    async def example(request: Request) -> Response:
        make = (examples or {}).get(request.path_params["name"])
        if make is None:
            return PlainTextResponse("Not here.", status_code=404)
        name = {"Content-Disposition": f'attachment; filename="{request.path_params["name"]}"'}
        return Response(await run_in_threadpool(make), media_type="application/octet-stream", headers=name)

    async def report(request: Request) -> Response:
        job = request.path_params["job"]
        path = await run_in_threadpool(report_path, workspace, job)
        if path is None:
            return PlainTextResponse("Not here.", status_code=404)
        # It runs no script and has no access to the page, whoever wrote it.
        return FileResponse(path, media_type="text/html", filename=f"evaluation-{job}.html",
                            content_disposition_type="attachment" if "file" in request.query_params else "inline",
                            headers={"Content-Security-Policy": "sandbox"})

    # A downloaded page stores its answers in a file; the one that is served here sends them.
    async def listening_page(request: Request) -> Response:
        job = request.path_params["job"]
        try:
            page = await run_in_threadpool(lambda: _listening_page(workspace, job))
        except UserError:
            return PlainTextResponse("Not here.", status_code=404)
        if "file" in request.query_params:
            name = {"Content-Disposition": f'attachment; filename="{listening.PAGE}"'}
            return HTMLResponse(page, headers=name)
        return HTMLResponse(page.replace('<html lang="en">', '<html lang="en" data-send>', 1),
                            headers={"Cache-Control": "no-store"})

    async def listening_answers(request: Request) -> Response:
        content = await request.body()
        job = request.path_params["job"]
        try:
            added = await run_in_threadpool(lambda: _add_answers(workspace, job, content))
        except UserError as error:
            return JSONResponse({"error": error.message}, 422)
        return JSONResponse({"rows": added.rows})

    # The first route that matches answers, so the general one is last.
    place = f"/media/{LISTENING}/{{job}}.html"
    return [Route(place, listening_page), Route(place, listening_answers, methods=["POST"]),
            Route("/media/font.woff2", font), Route(f"/{translations.ADDRESS}/{{language}}.json", texts),
            Route(f"/{terms.GUIDE}", guide), Route(f"/media/{CURVES}/{{job}}.csv", curves),
            Route(f"/media/{PACKED}/{{job}}.tar", archive), Route(f"/media/{REPORT}/{{job}}.html", report),
            Route(f"/media/{SIGNED}/{{export}}/{STATEMENT}", statement),
            Route(f"/{EXAMPLE}/{{name}}", example), Route("/media/mark", mark),
            Route(f"/media/{CLIPS}/{{job}}.zip", archive),
            Route(f"/media/{BOOK}/{{job}}/{{name}}", book_file),
            Route("/media/{path:path}", media)]
