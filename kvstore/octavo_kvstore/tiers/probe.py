"""Looks at an LMDB folder from a process of its own: a truncated map raises SIGBUS, a wild page number SIGSEGV, and both
must cost a child, not the service.

The file runs alone (it imports nothing of Octavo), so that the child needs no more than the interpreter and lmdb.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROBE_TIMEOUT_S = 300.0
SOUND, UNSOUND = 0, 1


def problem_in(folder: Path, timeout_s: float = PROBE_TIMEOUT_S) -> str:
    """Why the LMDB files in `folder` must not be opened; empty when they are sound. Blocks until the child has looked."""
    command = [sys.executable, "-P", __file__, str(folder)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return f"the probe gave no answer in {timeout_s:.0f} s"
    if result.returncode == SOUND:
        return ""
    if result.returncode < 0:
        return f"the probe died of signal {-result.returncode}"
    said = result.stdout.strip() or result.stderr.strip().rpartition("\n")[2] or f"probe exit code {result.returncode}"
    return said[:200]


def look(folder: str) -> str:
    """In the child: the structural check reads the file and not the map, then LMDB itself walks every key."""
    import lmdb
    import lmdb.verify

    problems = lmdb.verify.verify(folder)  # type: ignore[no-untyped-call]
    if problems:
        return f"{len(problems)} broken pages, first: {problems[0]}"
    environment = lmdb.open(folder, readonly=True, lock=False, max_dbs=2, readahead=False)
    with environment.begin(buffers=True) as transaction:
        for _key, value in transaction.cursor():
            if len(value):
                bytes(value[:1]), bytes(value[-1:])
    environment.close()
    return ""


def main() -> int:
    problem = look(sys.argv[1])  # what it raises is a finding too: exit code 1, and the reason in the last line
    if problem:
        print(" ".join(problem.split()))
    return UNSOUND if problem else SOUND


if __name__ == "__main__":
    sys.exit(main())
