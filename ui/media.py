"""The one door through which the page gets files: sound and pictures of the workspace, a run's curves as a table, and
the page's own font.

Gradio's `allowed_paths` takes whole folders, so it is left empty: a run's folder also holds
weights, journals and logs. This route serves by kind of file and by place, never by path.
While a comparison is heard blind its files have addresses that do not say which side they are of.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from config.errors import UserError
from core.dataset.playable import DECODED, TYPES, playable
from core.jobs.directory import load_job
from core.jobs.state import JobReader, JobState
from core.workspace import Workspace

KINDS = {**TYPES, **dict.fromkeys(DECODED, TYPES[".wav"]), ".png": "image/png"}
PLACES = {"runs": ("audio", "samples"), "datasets": ("audio",), "exports": ("audio", "samples")}
"""Under each kind of artefact, the subfolders that may be heard and seen."""

COVERED, CURVES = "covered", "curves"
_FONT = Path(__file__).parent / "fonts" / "noto-sans-ethiopic.woff2"


def url(kind: str, name: str, path: str) -> str:
    """Address of `path` in the artefact `name`, relative to the page so that it works behind a prefix."""
    return "media/" + quote(f"{kind}/{name}/{path}")


def covered_url(job: str, path: str) -> str:
    """As `url` of a run's file, but an address from which nobody reads the file's name."""
    return f"media/{COVERED}/{quote(job)}/{_cover(job, path)}"


def _cover(job: str, path: str) -> str:
    return hashlib.blake2b(f"{job} {path}".encode(), digest_size=8).hexdigest() + Path(path).suffix


def curves_url(job: str) -> str:
    """Address of a training's curves, relative to the page."""
    return f"media/{CURVES}/{quote(job)}.csv"


def curves_csv(state: JobState) -> str:
    """Everything that a training measured, one row a step; a value that was not measured there is empty."""
    rows: dict[int, dict[str, object]] = {}
    for step in state.steps:
        values = {name: value for name, value in dataclasses.asdict(step).items() if isinstance(value, int | float)}
        del values["time"]
        rows[step.step] = {**values, **{f"learning_rate.{group}": rate for group, rate in step.rates.items()}}
    for one in state.evaluations:
        row = rows.setdefault(one.step, {"step": one.step})
        row |= {f"held_out.{code}.{name}": value for code, measured in one.languages.items()
                for name, value in measured.items()}
        row |= {f"cer.{code}": error for code, error in one.errors.items()}
    columns = list(dict.fromkeys(["step", *(name for row in rows.values() for name in row)]))
    text = io.StringIO()
    table = csv.DictWriter(text, columns, restval="")
    table.writeheader()
    table.writerows(rows[step] for step in sorted(rows))
    return text.getvalue()


def resolve(workspace: Workspace, asked: str) -> Path | None:
    """The file behind `asked` (as in `url`, without "media/"); None for whatever may not be served."""
    parts = asked.split("/")
    if any(part in ("", ".", "..") or part.startswith(".") for part in parts):
        return None
    if parts[0] == COVERED:
        return _uncovered(workspace, *parts[1:]) if len(parts) == 3 else None
    if len(parts) < 4:
        return None
    kind, _, folder = parts[:3]
    if folder not in PLACES.get(kind, ()) or Path(parts[-1]).suffix.lower() not in KINDS:
        return None
    with suppress(OSError, ValueError, RuntimeError):  # a name that no file can have; links in a circle
        base = (workspace.path / kind / parts[1] / folder).resolve()
        path = workspace.path.joinpath(*parts).resolve()
        inside = path.is_relative_to(base) and base.is_relative_to(workspace.path.resolve())
        return path if inside and path.is_file() else None
    return None


def _uncovered(workspace: Workspace, job: str, name: str) -> Path | None:
    """The file of the run `job` whose covered name is `name`."""
    home = workspace.runs / job
    with suppress(OSError, ValueError):
        paths = (path for folder in PLACES["runs"] for path in (home / folder).glob("*"))
        found = next((path.relative_to(home).as_posix() for path in paths
                      if _cover(job, path.relative_to(home).as_posix()) == name), None)
        return resolve(workspace, f"runs/{job}/{found}") if found else None
    return None


def routes(workspace: Workspace) -> list[Route]:
    """Routes to hand to the application, which asks for the sign-in (`ui/web_surface.py`)."""

    async def media(request: Request) -> Response:
        path = resolve(workspace, request.path_params["path"])
        if path is None:
            return PlainTextResponse("Not here.", status_code=404)
        kind = KINDS[path.suffix.lower()]
        try:
            path = await run_in_threadpool(playable, workspace, path)
        except UserError as error:
            return PlainTextResponse(error.message, status_code=415)
        return FileResponse(path, media_type=kind, headers={"Cache-Control": "private, max-age=60"})

    async def font(request: Request) -> Response:
        return FileResponse(_FONT, media_type="font/woff2", headers={"Cache-Control": "public, max-age=31536000"})

    async def curves(request: Request) -> Response:
        try:
            state = await run_in_threadpool(lambda: JobReader(load_job(workspace, request.path_params["job"])).state())
        except UserError:
            return PlainTextResponse("Not here.", status_code=404)
        name = {"Content-Disposition": f'attachment; filename="{state.id}.csv"'}
        return Response(curves_csv(state), media_type="text/csv", headers=name)

    return [Route("/media/font.woff2", font), Route(f"/media/{CURVES}/{{job}}.csv", curves),
            Route("/media/{path:path}", media)]
