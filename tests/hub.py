"""A small hub on the loopback address, with what `huggingface_hub` asks of one, and with faults on demand.

Large files (by their ending) are kept as on the true hub: the list gives their SHA-256, and
`resolve` leads to a storage of another origin, whose addresses are signed. Small ones have
git's SHA-1 and come from the hub itself. It can be served by hand, for looking at the page:
`python -m tests.hub FOLDER REPOSITORY [BYTES_A_SECOND]`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import ThreadingHTTPServer
from pathlib import Path

from tests.hub_servers import HubHandler, StorageHandler
from tests.hub_state import HubState


class LoopbackHub(HubState):
    """A hub and its storage, each a server on a separate port."""

    def __init__(self) -> None:
        super().__init__()
        self._servers = [self._server(HubHandler), self._server(StorageHandler)]
        self.url, self.storage = (f"http://127.0.0.1:{server.server_address[1]}" for server in self._servers)

    def close(self) -> None:
        self.closing.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def _server(self, kind: type[HubHandler] | type[StorageHandler]) -> ThreadingHTTPServer:
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (kind,), {"hub": self}))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), name=kind.which, daemon=True).start()
        return server


@contextmanager
def serving() -> Iterator[LoopbackHub]:
    """A hub that is gone at the end."""
    hub = LoopbackHub()
    try:
        yield hub
    finally:
        hub.close()


def main(arguments: list[str]) -> None:
    """Serve the files of a folder until Ctrl-C."""
    folder, name, *speed = arguments
    with serving() as hub:
        files = {path.name: path for path in Path(folder).iterdir() if path.is_file()}
        hub.add(name, files)
        for path in files:
            hub.fault(path, bytes_per_s=float(speed[0]) if speed else None)
        print(f"HF_ENDPOINT={hub.url}", flush=True)
        with suppress(KeyboardInterrupt):
            while True:
                time.sleep(3600)


if __name__ == "__main__":
    main(sys.argv[1:])
