"""Child: a process that measures on request, one JSON object a line each way (octavo_gpuworker/bench, llamacpp_child.py, a peer of the user's)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Self

from octavo.errors import OctavoError


class Child:
    """A measuring process; as a context manager it ends with the block."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        """Raises OctavoError when the command cannot be started."""
        self.name = name
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        except OSError as error:
            raise OctavoError(f"{name} cannot be started: {error}") from error

    @classmethod
    def of_module(cls, name: str, module: str, arguments: Sequence[str]) -> Self:
        """A module of this Python."""
        return cls(name, [sys.executable, "-m", module, *arguments])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to one request. Raises OctavoError with the child's own words, or when it has died."""
        process = self._process
        if process.stdin is None or process.stdout is None:
            raise OctavoError(f"{self.name} has no pipes")
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError as error:
            raise OctavoError(f"{self.name} ended early ({error}); what it said stands above") from error
        if not line:
            raise OctavoError(f"{self.name} ended with exit code {process.wait()}; what it said stands above")
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise OctavoError(f"{self.name} answered {line.strip()[:80]!r}, which is no JSON object") from error
        if not isinstance(answer, dict):
            raise OctavoError(f"{self.name} answered {line.strip()[:80]!r}, which is no JSON object")
        if "error" in answer:
            raise OctavoError(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Ends the process; waits for it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
