"""The real application over a workspace, called in this process as a server would call it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from starlette.testclient import TestClient

import app
from core.workspace import Workspace

app.import_gradio()

import gradio as gr  # noqa: E402
from gradio.routes import App  # noqa: E402

from ui import layout, media, web_surface  # noqa: E402

HOST = "127.0.0.1:7860"
OWN = {"Origin": f"http://{HOST}", "Sec-Fetch-Site": "same-origin"}
SESSION = "hostile0session"


@dataclass
class ServedPage:
    """`client` sends requests as a browser on this machine would."""

    workspace: Workspace
    blocks: gr.Blocks
    application: web_surface.GuardedApp
    client: TestClient

    def event(self, number: int, values: list[object], **more: object) -> Any:
        """The answer to an event of the page."""
        body = {"fn_index": number, "data": values, "session_hash": SESSION, "event_data": None, **more}
        return self.client.post("/gradio_api/run/predict", json=body, headers=OWN)


@contextmanager
def serve(workspace: Workspace, auth: dict[str, str] | None = None,
          access: web_surface.Access | None = None) -> Iterator[ServedPage]:
    """The page over `workspace`; `auth` are users with their passwords. Jobs are queued and none is started."""
    uploads = workspace.cache / "incoming"
    blocks = layout.build(workspace)
    blocks.GRADIO_CACHE = str(uploads)
    blocks.auth = list(auth.items()) if auth else None
    blocks.show_error, blocks.max_file_size, blocks.auth_message, blocks.share = True, None, None, False
    blocks.theme = layout.build_theme()
    blocks.css, blocks.css_paths, blocks.js, blocks.head, blocks.head_paths = None, [], None, layout.head(), []
    blocks._set_html_css_theme_variables()
    blocks.state_session_capacity = web_surface.SESSIONS
    blocks.config = blocks.get_config_file()
    application = web_surface.GuardedApp(access or web_surface.access("127.0.0.1", 7860), media.routes(workspace),
                                         uploads)
    application.uploaded_file_dir = str(uploads)
    App.create_app(blocks, app=application)
    with (mock.patch("core.jobs.control.start"),
          TestClient(application, base_url=f"http://{HOST}", raise_server_exceptions=False) as client):
        yield ServedPage(workspace, blocks, application, client)
