"""A Host for tests: same frame, no process, no signals, defaults plus what the test sets."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from octavo.rpc.host import Host
from octavo.rpc.settings import load_settings, to_flags


@contextlib.asynccontextmanager
async def running_host(name: str, run_dir: Path, settings: Mapping[str, Any] | None = None) -> AsyncIterator[Host]:
    """A Host inside the running loop; drained at the end."""
    given = {"deployment.run_dir": str(run_dir), "deployment.drain_timeout_s": 2.0, **(settings or {})}
    host = Host(name, load_settings(to_flags(given), {}))
    try:
        yield host
    finally:
        await host.drain()
