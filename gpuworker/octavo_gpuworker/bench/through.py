"""Through: blocks of the pool are replaced by what another program makes of them, as a lossy tier would."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

from octavo.errors import OctavoError

from octavo_gpuworker.backends.blocks import BlockPool

CLOSE_TIMEOUT_S = 20.0


class Through:
    """A process that answers each payload on its standard input with another one of the same length."""

    def __init__(self, command: Sequence[str], pool: BlockPool) -> None:
        """The command gets the pool's shape behind its own words. Raises OctavoError when the shape is not known, or it cannot be started."""
        if pool.block_shape is None:
            raise OctavoError("the backend does not tell what its blocks are: no codec can be tried on them")
        self._pool = pool
        words = [*command, *map(str, pool.block_shape)]
        try:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise OctavoError(f"{words[0]} cannot be started: {error}") from error

    def replace(self, blocks: Sequence[int]) -> None:
        """Raises OctavoError with the program's own words when it has ended."""
        stdin, stdout, size = self._process.stdin, self._process.stdout, self._pool.block_bytes
        assert stdin is not None and stdout is not None
        for block in blocks:
            try:
                stdin.write(self._pool.read_block(block))
                stdin.flush()
                payload = stdout.read(size)
            except OSError:
                payload = b""
            if len(payload) != size:
                raise OctavoError(f"the codec ended early: {self._said()}")
            self._pool.write_block(block, payload)

    def close(self) -> dict[str, Any]:
        """Ends the program; what it says of itself. Raises OctavoError when that is no JSON object."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        said = self._said()
        try:
            figures = json.loads(said)
        except ValueError as error:
            raise OctavoError(f"the codec ended with {said[-200:]!r}") from error
        return dict(figures)

    def _said(self) -> str:
        process = self._process
        assert process.stderr is not None and process.stdout is not None
        try:
            said = process.stderr.read().decode(errors="replace").strip()
            process.wait(CLOSE_TIMEOUT_S)
        finally:
            process.kill()
            process.stdout.close()
            process.stderr.close()
        return said.rpartition("\n")[2]
