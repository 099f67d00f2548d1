"""gRPC's older polling, in which whoever waits for a message reads the socket itself: half the CPU of each message.

By default gRPC for Python hands sockets to a pool of threads (its EventEngine): a message then passes the pool, the
completion queue's thread and the event loop's. Without the pool the queue's thread reads the socket: one hop less at either
end (`bench/polling.py`).
"""

from __future__ import annotations

import os
from importlib import metadata
from typing import Final

EXPERIMENTS_ENV: Final = "GRPC_EXPERIMENTS"
DIRECT: Final = "-event_engine_client,-event_engine_listener,-event_engine_for_all_other_endpoints"
TESTED: Final = ("1.85.",)
"""Versions of grpcio that know these names; another one would complain about them, and keeps its own way."""


def poll_directly() -> bool:
    """Asks for it, unless the operator has set the variable; whether this grpcio knows it.

    gRPC reads the variable while it is imported, so this stands in `octavo/__init__.py`, before all that imports it. In a
    program that imported grpc before octavo nothing changes.
    """
    try:
        version = metadata.version("grpcio")
    except metadata.PackageNotFoundError:  # bundled without its metadata
        return False
    if not version.startswith(TESTED):
        return False
    os.environ.setdefault(EXPERIMENTS_ENV, DIRECT)
    return True
