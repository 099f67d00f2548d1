"""Files that a command will write at its end: refused at its beginning when they cannot be written."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from octavo.errors import OctavoError

from octavo_cli.exits import USAGE

STDOUT = "-"


class BadOutput(OctavoError, ValueError):
    """A file that cannot be written; the message names the option and the fix."""

    exit_code = USAGE
    default_reason = "bad-output"


def check_outputs(**given: str) -> None:
    """As `check_output` for several options, no two of which may name the same. Raises BadOutput."""
    for option, name in given.items():
        check_output(option, name)
        twin = next((other for other in given if other != option and name and given[other] == name), "")
        if twin:
            raise BadOutput(f"--{option}: --{twin} names {name} too; give each a file of its own", field=option)


def write_output(name: str, text: str) -> None:
    """Writes a file and says so on standard error, or to standard output for `-`. Raises OctavoError."""
    if name == STDOUT:
        sys.stdout.write(text)
        return
    try:
        Path(name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OctavoError(f"cannot write {name}: {error.strerror}; choose another file") from error
    print(f"wrote {name}", file=sys.stderr)


def check_output(option: str, name: str, *, stdout: bool = True) -> None:
    """Refuses, before any work is done for it, a file that could not be written. Raises BadOutput.

    Empty is no file, nor is `-` where standard output can take it. A missing folder is refused, not made: a typing error would
    make it anywhere.
    """
    if not name or (stdout and name == STDOUT):
        return
    if name == STDOUT:
        raise BadOutput(f"--{option}: - is no file; give it a name", field=option)
    path = Path(name)
    why = ""
    if path.is_dir():
        why = "it is a folder"
    elif not path.parent.is_dir():
        why = f"there is no folder {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        why = "no permission"
    if why:
        raise BadOutput(
            f"--{option}: {name} cannot be written: {why}; name a file in a folder that exists", field=option
        )
