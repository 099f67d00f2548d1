"""A real Valkey or Redis server for tests: started on a free port, killed, stopped and resumed at will."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("valkey-server", "redis-server")
START_TIMEOUT_S = 20.0


def find_program() -> str:
    """The first program of PROGRAMS that is installed; empty: none."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), "")


class ValkeyServer:
    """One server that keeps nothing on disk."""

    def __init__(self, folder: Path, *options: str) -> None:
        """Starts it and waits until it takes connections. Raises RuntimeError when it does not."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._folder = folder
        self._options = options
        self.url = f"valkey://127.0.0.1:{self.port}/0"
        self.start()

    def start(self) -> None:
        """Starts it, or starts it again, empty."""
        command = [find_program(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            [*command, "--dir", str(self._folder), *self._options], stdout=subprocess.DEVNULL
        )
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                break
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", self.port)):
                    return
            time.sleep(0.02)
        raise RuntimeError(f"{command[0]} did not start: {self._process.poll()}")

    def kill(self) -> None:
        """kill -9; idempotent."""
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """It keeps its connections and answers nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on."""
        self._process.send_signal(signal.SIGCONT)
