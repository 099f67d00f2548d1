"""gRPC's older polling, in which whoever waits for a message reads the socket itself: half the CPU of each message.

By default gRPC for Python hands sockets to a pool of threads (its EventEngine): a message then passes the pool, the
completion queue's thread and the event loop's. Without the pool the queue's thread reads the socket: one hop less at either
end (`bench/polling.py`).
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib import metadata
from typing import Final

EXPERIMENTS_ENV: Final = "GRPC_EXPERIMENTS"
DIRECT: Final = "-event_engine_client,-event_engine_listener,-event_engine_for_all_other_endpoints"
TESTED: Final = ("1.85.",)
"""Versions of grpcio that know these names; another one would complain about them, and keeps its own way."""


def poll_directly() -> bool:
    """Imports gRPC with it asked for, and leaves the environment as it was; whether it did.

    gRPC reads the variable once, while it is imported: what a program starts afterwards must not inherit a word that is meant for
    this process. So this stands in `octavo/__init__.py`, before all that imports gRPC. Nothing is done where the operator has set
    the variable, where this grpcio does not know the names, or in a program that imported gRPC before octavo.
    """
    try:
        version = metadata.version("grpcio")
    except metadata.PackageNotFoundError:  # bundled without its metadata
        return False
    if not version.startswith(TESTED) or EXPERIMENTS_ENV in os.environ or "grpc" in sys.modules:
        return False
    os.environ[EXPERIMENTS_ENV] = DIRECT
    try:
        importlib.import_module("grpc")
    finally:
        del os.environ[EXPERIMENTS_ENV]
    return True
