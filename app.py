"""Serve the page: `python app.py`. Jobs run in other processes."""

from __future__ import annotations

import argparse
import errno
import gc
import inspect
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from config import confinement
from config.errors import CODE, UserError
from core.jobs import locks
from core.jobs.state import JobBoard
from core.jobs.unattended import IdleCommand, RestartOffer
from core.machine import MachineCheck, Platform, detect_platform
from core.workspace import Workspace

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LAST_PORT = 65535
_CHECK_DELAY_S = 5.0  # the first page has the processor to itself
PASSWORD_VARIABLE = "LISAN_PASSWORD"
IDLE_VARIABLE = "LISAN_WHEN_IDLE"
IDLE_COUNTDOWN_S = 60.0


def import_gradio() -> None:
    """Import Gradio in half the time, with its telemetry off and without what its variables would open.

    `GRADIO_ALLOWED_PATHS`, `GRADIO_SHARE` and others change what is served and to whom; that is for our own flags.

    At each import Gradio parses its own source and rewrites its `.pyi` stubs: 1.2 of 2.2 seconds of processor time
    where this was measured. It leaves out classes whose source file is not found, so during the import none is. Pandas,
    which it imports, takes Arrow along where that is there; no table is shown here that would need it.
    """
    for name in [name for name in os.environ if name.startswith("GRADIO_")]:
        del os.environ[name]
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    find_source, without_arrow = inspect.getfile, "pyarrow" not in sys.modules

    def without_components(thing: object) -> str:
        if type(thing).__name__ == "ComponentMeta":
            raise OSError("no stubs")
        return find_source(thing)  # type: ignore[arg-type]

    inspect.getfile = without_components  # type: ignore[assignment]
    if without_arrow:
        sys.modules["pyarrow"] = None  # type: ignore[assignment]
    try:
        with direct_connections():
            import gradio  # noqa: F401
    finally:
        inspect.getfile = find_source
        if without_arrow:
            del sys.modules["pyarrow"]


@contextmanager
def direct_connections(proxied: bool = False) -> Iterator[None]:
    """Hide the proxies of the environment: Gradio asks this process for its own page, which no proxy can reach.

    At its import it makes a client that fails at a SOCKS proxy. With `proxied`, only this machine is asked directly.
    """
    names = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ftp_proxy")
    hidden = {name: value for name, value in os.environ.items()
              if name.lower() in (names if not proxied else ("no_proxy",))}
    for name in hidden:
        del os.environ[name]
    if proxied:
        os.environ["no_proxy"] = ",".join(LOOPBACK[:2])
    try:
        yield
    finally:
        os.environ.pop("no_proxy", None)
        os.environ.update(hidden)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the page until interrupted; the exit code."""
    options = build_parser().parse_args(arguments)
    try:
        auth = sign_in(options.host, options.share, options.auth, options.no_password)
        port = usable_port(options.host, options.port)
        workspace = Workspace.open(options.workspace)
        board = JobBoard(workspace)
        idle = None
        if options.when_idle:
            idle = IdleCommand(options.when_idle, IDLE_COUNTDOWN_S, lambda: bool(board.queue()), _say)
        confinement.limit(workspace.path, options.sources)
    except UserError as error:
        sys.stderr.write(CODE.sub(r"\1", f"{error.message}\n{error.hint}\n"))
        return 2
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    return serve(board, options, port, auth, idle)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Lisan: train text-to-speech models on new languages.")
    parser.add_argument("--workspace", default="workspace",
                        help="folder of models, datasets and runs (default: %(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=7860, help="0 chooses a free port (default: %(default)s)")
    parser.add_argument("--auth", metavar="USER:PASSWORD",
                        help=f"require this sign-in (or set {PASSWORD_VARIABLE}, which the process list does not show)")
    parser.add_argument("--no-password", action="store_true", help="allow anyone who can reach the address")
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME",
                        help="another name under which the page is reached, such as that of a proxy; may be repeated")
    parser.add_argument("--max-upload", type=float, metavar="GB",
                        help="largest upload (default: the free disk space less 1 GB)")
    parser.add_argument("--sources", action="append", default=[], metavar="FOLDER",
                        help="let people at the page read this folder and the workspace alone, and no address of this "
                             "machine or its network; may be repeated")
    parser.add_argument("--share", action="store_true", help="create a public link on Gradio's servers; needs --auth")
    parser.add_argument("--keep-models", type=float, default=5.0, metavar="MINUTES",
                        help="how long models stay loaded after a synthesis while no other job needs the device; 0 "
                             "loads them each time (default: %(default)s)")
    parser.add_argument("--resume-after", type=float, default=30.0, metavar="SECONDS",
                        help="jobs that were alive when the machine went down are resumed after this countdown, which "
                             "the page can end; below 0 they are not (default: %(default)s)")
    parser.add_argument("--when-idle", metavar="COMMAND", default=os.environ.get(IDLE_VARIABLE, ""),
                        help="run this command when the queue becomes empty, after a countdown of a minute that the "
                             f"page can end; no shell reads it (or set {IDLE_VARIABLE})")
    parser.add_argument("--root-path", metavar="PREFIX", default=os.environ.get("GRADIO_ROOT_PATH", ""),
                        help="where a proxy serves the page: a path such as /lisan, or the whole address where the "
                             "proxy does not send X-Forwarded-Host and X-Forwarded-Proto; its name is then allowed")
    parser.add_argument("--no-check", action="store_true", help="do not check the machine at the start")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    return parser


def sign_in(host: str, share: bool, auth: str | None, no_password: bool) -> tuple[str, str] | None:
    """The required user and password, None for no sign-in; `UserError` when the page would be open by mistake."""
    spelled = auth or os.environ.get(PASSWORD_VARIABLE)
    if spelled:
        user, colon, password = spelled.partition(":")
        if not (colon and user and password):
            raise UserError("The sign-in must be USER:PASSWORD, and neither may be empty.",
                            f"Such as --auth me:a-long-password, or the same in {PASSWORD_VARIABLE}.")
        return user, password
    if share:
        raise UserError("A public link needs a sign-in: anyone with the link could start jobs on this machine.",
                        f"Give --auth USER:PASSWORD or set {PASSWORD_VARIABLE}.")
    if host not in LOOPBACK and not no_password:
        raise UserError(f"Listening on {host} lets others on the network start jobs on this machine.",
                        f"Give --auth USER:PASSWORD (or set {PASSWORD_VARIABLE}), or --no-password.")
    return None


def serve(board: JobBoard, options: argparse.Namespace, port: int, auth: tuple[str, str] | None,
          idle: IdleCommand | None) -> int:
    """Build the page and serve it until interrupted."""
    gc.disable()  # a start keeps nearly all that it builds, and looking through it took 0.4 of 2.8 s on two cores
    import_gradio()
    from ui import layout, media, web_surface
    from ui.uploads import EXAMPLES

    workspace = board.workspace

    uploads = workspace.cache / "incoming"
    os.environ["GRADIO_TEMP_DIR"] = str(uploads)
    web_surface.remove_old_uploads(uploads)
    try:
        access = web_surface.access(options.host, port, options.allow_host, options.share, os.environ,
                                    options.root_path)
    except UserError as error:
        sys.stderr.write(CODE.sub(r"\1", f"{error.message}\n{error.hint}\n"))
        return 2

    # The list is filled later, by a check in a separate process.
    findings: list[MachineCheck] = []
    restart = RestartOffer(workspace, board.states()) if options.resume_after >= 0 else None
    blocks = layout.build(workspace, restart, idle, findings, board)

    def announced() -> tuple[object, ...]:
        countdowns = [offer.seconds_left() for offer in (restart, idle) if offer]
        return (len(findings), *(None if seconds is None else int(seconds) for seconds in countdowns))

    guarded = web_surface.GuardedApp(access, media.routes(workspace, announced, board, EXAMPLES), uploads,
                                     None if options.max_upload is None else int(options.max_upload * 1e9))
    try:
        with direct_connections(proxied=options.share):
            blocks.launch(
                _app=guarded, server_name=options.host, server_port=port, auth=auth, share=options.share,
                inbrowser=options.open, prevent_thread_lock=True, quiet=True, ssr_mode=False, mcp_server=False,
                footer_links=[], run_history=False, enable_monitoring=False, show_error=True,
                allowed_paths=[], state_session_capacity=web_surface.SESSIONS,
                theme=layout.build_theme(), head=layout.head(), root_path=options.root_path,
                _frontend=False,  # else it asks for its own page, and ends if a busy machine takes three seconds
            )
    except OSError as error:
        sys.stderr.write(f"The page could not be served on {options.host}:{port}: {error}\n")
        sys.stderr.write("Choose another --port; 0 chooses a free one.\n")
        return 1
    finally:
        gc.freeze()  # Later collections skip the page, which lives as long as the process.
        gc.enable()
    # No listener uses Gradio's queue, which it looks into every millisecond: 4% of a core (6.31).
    blocks._queue.sleep_when_free = blocks._queue.progress_update_sleep_when_free = 1.0

    # From here on the page answers; the terminal tells where, and what happens without a person.
    other_apps = locks.running_apps(workspace)
    presence = locks.register_app(workspace, max(0.0, 60 * options.keep_models), blocks.local_url)
    sys.stdout.write(f"Lisan is ready: {blocks.local_url}\nWorkspace: {workspace.path}\n")
    if other_apps:
        addresses = ", ".join(locks.app_addresses(other_apps))
        sys.stdout.write(f"This workspace is also open in {len(other_apps)} other apps: {addresses}. All show the same "
                         "jobs.\n")
    platform = detect_platform(port)
    if platform:
        _say(address_line(platform, options.host))
    if restart and restart.interrupted.jobs:
        names = ", ".join(state.id for state in restart.interrupted.jobs)
        _say(f"Alive when the machine went down: {names}. Resumed in {options.resume_after:.0f} s, unless the page "
             "ends the countdown.")
        restart.begin(options.resume_after)
    for state, reason in restart.interrupted.withheld if restart else ():
        _say(f"{state.id} is not resumed automatically: {reason}")

    # The check of the machine takes seconds, so it begins after the page is up.
    if not options.no_check:
        check = threading.Timer(_CHECK_DELAY_S, check_machine, (workspace, findings))
        check.daemon = True
        check.start()
    if idle:
        _say(f"When the queue is empty this command runs: {idle.text}")
        idle.watch()
    sys.stdout.flush()
    code = _until_interrupted(blocks)
    presence.release()
    return code


def check_machine(workspace: Workspace, findings: list[MachineCheck]) -> None:
    """Fill `findings` with what `python -m scripts doctor --start` does not like, and say it.

    It runs in a process of its own: it may load torch, which this one must not.
    """
    command = [sys.executable, "-m", "scripts", "doctor", "--start", "--json", "--workspace", str(workspace.path)]
    process = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    try:
        rows = json.loads(process.stdout.splitlines()[-1])["checks"]
    except (IndexError, ValueError, KeyError):
        lines = process.stderr.strip().splitlines() or [f"exit code {process.returncode}"]
        rows = [{"name": "Check of the machine", "result": "warn", "found": lines[-1], "hint": "Run make doctor."}]
    checks = [MachineCheck(**row) for row in rows if row["result"] != "ok"]
    for check in checks:
        _say(f"{check.name}: {check.found}\n  {check.hint}")
    findings.extend(checks)


def address_line(platform: Platform, host: str) -> str:
    """Where a browser finds the page on a rented machine, and what differs there."""
    line = f"{platform.name}: open {platform.address}" if platform.address else f"{platform.name}."
    closed = (f"\nIts proxy cannot reach {host}: start the app with --host 0.0.0.0 and a sign-in ({PASSWORD_VARIABLE})."
              if platform.listens_on_all and host in LOOPBACK else "")
    return f"{line}\n{platform.note}{closed}"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def usable_port(host: str, port: int) -> int:
    """`port`, or a free one for 0; `UserError` when it cannot be used, before Gradio is loaded."""
    import socket

    if not 0 <= port <= _LAST_PORT:
        raise UserError(f"There is no port {port}.", f"Give --port from 1 to {_LAST_PORT}; 0 chooses a free one.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        hint = "Give --host an address of this machine: 127.0.0.1 for itself alone, 0.0.0.0 for all."
        raise UserError(f"The address {host!r} is not known: {error}.", hint) from error
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was closed a moment ago is free
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            raise _port_error(host, port, error) from error
        return int(probe.getsockname()[1])


def _port_error(host: str, port: int, error: OSError) -> UserError:
    if error.errno == errno.EADDRINUSE:
        return UserError(f"Port {port} of {host} is taken by another program.",
                         "Choose another --port; 0 chooses a free one. Is Lisan running already?")
    if error.errno == errno.EADDRNOTAVAIL:
        return UserError(f"{host} is not an address of this machine.", "Give --host 127.0.0.1, or 0.0.0.0 for all.")
    return UserError(f"The page cannot be served on {host}:{port}: {error.strerror}.",
                     "Choose another --port, from 1024 up; 0 chooses a free one.")


def _until_interrupted(blocks: object) -> int:
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        sys.stdout.write("The app has stopped. Jobs continue.\n")
        return 0


if __name__ == "__main__":
    sys.exit(main())
