"""What `octavo up --json` shows: one JSON object per event and line, for programs that supervise the supervisor."""

from __future__ import annotations

import json
from typing import Any, TextIO

from octavo_cli.service_log import Record
from octavo_cli.state import ServiceState


class JsonWatcher:
    """Writes the cluster's events; `event` is moved, service, log, died, trouble, ready, gate or draining."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def moved(self, key: str, taken: str, address: str) -> None:
        """Another address than the default."""
        self._write("moved", key=key, taken=taken, address=address)

    def record(self, service: str, record: Record) -> None:
        """A line of a service that is starting."""
        self._write("log", service=service, level=record.level, message=record.message)

    def changed(self, before: ServiceState, after: ServiceState, seconds: float) -> None:
        """A service's state or its reason changed."""
        self._write(
            "service", service=after.name, state=after.state, why=after.why, address=after.address,
            pid=after.process.pid, seconds=round(seconds, 3),
        )  # fmt: skip

    def died(self, service: str, reason: str, restart_in_s: float) -> None:
        """A service died and comes back."""
        self._write("died", service=service, why=reason, restart_in_s=restart_in_s)

    def trouble(self, service: str, why: str) -> None:
        """A service could not be followed just now."""
        self._write("trouble", service=service, why=why)

    def ready(self, urls: dict[str, str], seconds: float) -> None:
        """Everything serves."""
        self._write("ready", ready=True, urls=urls, seconds=round(seconds, 3))

    def draining(self) -> None:
        """The cluster was asked to stop."""
        self._write("draining")

    def gate(self, state: str, said: str) -> None:
        """The release gate runs, passed or failed."""
        self._write("gate", state=state, message=said)

    def _write(self, event: str, **said: Any) -> None:
        self._out.write(json.dumps({"event": event, **said}) + "\n")
        self._out.flush()
