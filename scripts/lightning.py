"""Start the app with a Lightning studio: add it to the studio's start-up script, or take it out again.

`install` writes a block into ~/.lightning_studio/on_start.sh, which Lightning runs at each start of the studio; the
rest of that file stays as it is. `remove` takes the block out. `show` prints it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.command import exit_with

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "# >>> Lisan >>>", "# <<< Lisan <<<"
SCRIPT = ".lightning_studio/on_start.sh"
FIRST_LINE = "#!/bin/bash\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the action of the command line; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts lightning", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("install", "remove", "show"))
    parser.add_argument("--workspace", default="workspace", help="folder of all artefacts (default: %(default)s)")
    parser.add_argument("--args", default="--host 0.0.0.0", metavar="ARGS",
                        help="options of the app, in quotes (default: %(default)s)")
    parser.add_argument("--home", type=Path, default=Path.home(), help="the studio's home (default: %(default)s)")
    args = parser.parse_args(arguments)

    path, block = args.home / SCRIPT, start_block(Path(args.workspace), args.args)
    if args.do == "show":
        print(block, end="")
        return 0

    # Only the block of Lisan is replaced; the other lines of the start script stay.
    old_script = path.read_text(encoding="utf-8") if path.exists() else ""
    new_script = without_block(old_script)
    if args.do == "install":
        new_script = (new_script or FIRST_LINE) + ("" if not new_script or new_script.endswith("\n") else "\n") + block

    # A start script that does nothing else is deleted.
    path.parent.mkdir(parents=True, exist_ok=True)
    if new_script.strip() in ("", FIRST_LINE.strip()):
        path.unlink(missing_ok=True)
    else:
        path.write_text(new_script, encoding="utf-8")
        path.chmod(path.stat().st_mode | 0o111)

    if args.do == "remove":
        print(f"{path} does not start Lisan any more." if old_script != new_script else f"{path} did not start Lisan.")
        return 0

    print(f"{path} starts Lisan with the studio. Its output: {Path(args.workspace).absolute() / 'app.log'}")

    # The app refuses to listen beyond this machine without a sign-in.
    if "LISAN_PASSWORD" not in os.environ and "--auth" not in args.args and "--no-password" not in args.args:
        sys.stderr.write("LISAN_PASSWORD is not set here. Make it a secret of the studio, USER:PASSWORD, or the app "
                         "will refuse to listen beyond this machine.\n")
    return 0


def start_block(workspace: Path, arguments: str) -> str:
    """The lines of the start-up script: the app in the background, so that the studio's start does not wait."""
    folder, log = workspace.absolute(), workspace.absolute() / "app.log"
    make = shlex.join(["make", "run", f"WORKSPACE={folder}", f"ARGS={arguments}"])
    return (f"{BEGIN}\n"
            f"mkdir -p {shlex.quote(str(folder))}\n"
            f"(cd {shlex.quote(str(ROOT))} && exec nohup setsid {make} >> {shlex.quote(str(log))} 2>&1 < /dev/null) &\n"
            f"{END}\n")


def without_block(text: str) -> str:
    """`text` without the lines from `BEGIN` to `END`."""
    lines, inside = [], False
    for line in text.splitlines(keepends=True):
        inside = inside or line.strip() == BEGIN
        if not inside:
            lines.append(line)
        if line.strip() == END:
            inside = False
    return "".join(lines)


if __name__ == "__main__":
    exit_with(main)
