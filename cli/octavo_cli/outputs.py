"""Files that a command will write at its end: refused at its beginning when they cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

from octavo.errors import OctavoError

from octavo_cli.exits import USAGE

STDOUT = "-"


class BadOutput(OctavoError, ValueError):
    """A file that cannot be written; the message names the option and the fix."""

    exit_code = USAGE
    default_reason = "bad-output"


def check_output(option: str, name: str) -> None:
    """Refuses, before any work is done for it, a file that could not be written. Raises BadOutput.

    Empty and `-` are no files. A missing folder is refused, not made: a typing error would make it anywhere.
    """
    if name in ("", STDOUT):
        return
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
