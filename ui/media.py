"""The one door through which the page gets files: sound and pictures of the workspace, and the page's own font.

Gradio's `allowed_paths` takes whole folders, so it is left empty: a run's folder also holds
weights, journals and logs. This route serves by kind of file and by place, never by path.
While a comparison is heard blind its files have addresses that do not say which side they are of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from config.errors import UserError
from core.dataset.playable import DECODED, TYPES, playable
from core.workspace import Workspace

KINDS = {**TYPES, **dict.fromkeys(DECODED, TYPES[".wav"]), ".png": "image/png"}
PLACES = {"runs": ("audio", "samples"), "datasets": ("audio",), "exports": ("audio", "samples")}
"""Under each kind of artefact, the subfolders that may be heard and seen."""

COVERED = "covered"
_FONT = Path(__file__).parent / "fonts" / "noto-sans-ethiopic.woff2"


def url(kind: str, name: str, path: str) -> str:
    """Address of `path` in the artefact `name`, relative to the page so that it works behind a prefix."""
    return "media/" + quote(f"{kind}/{name}/{path}")


def covered_url(job: str, path: str) -> str:
    """As `url` of a run's file, but an address from which nobody reads the file's name."""
    return f"media/{COVERED}/{quote(job)}/{_cover(job, path)}"


def _cover(job: str, path: str) -> str:
    return hashlib.blake2b(f"{job} {path}".encode(), digest_size=8).hexdigest() + Path(path).suffix


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
    base = (workspace.path / kind / parts[1] / folder).resolve()
    path = workspace.path.joinpath(*parts).resolve()
    inside = path.is_relative_to(base) and base.is_relative_to(workspace.path.resolve())
    return path if inside and path.is_file() else None


def _uncovered(workspace: Workspace, job: str, name: str) -> Path | None:
    """The file of the run `job` whose covered name is `name`."""
    home = workspace.runs / job
    paths = (path for folder in PLACES["runs"] for path in (home / folder).glob("*"))
    found = next((path.relative_to(home).as_posix() for path in paths
                  if _cover(job, path.relative_to(home).as_posix()) == name), None)
    return resolve(workspace, f"runs/{job}/{found}") if found else None


def routes(workspace: Workspace) -> list[Route]:
    """Routes to hand to Gradio's application; they ask for the same sign-in as the page."""

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

    return [Route("/media/font.woff2", font), Route("/media/{path:path}", _for_signed_in(media))]


def _for_signed_in(
    endpoint: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """Refuse a request without Gradio's sign-in cookie, when there is a password at all."""

    async def checked(request: Request) -> Response:
        app = request.app
        names = (f"access-token-{app.cookie_id}", f"access-token-unsecure-{app.cookie_id}")
        if app.auth is not None and not any(request.cookies.get(name) in app.tokens for name in names):
            return PlainTextResponse("Sign in first.", status_code=401)
        return await endpoint(request)

    return checked
