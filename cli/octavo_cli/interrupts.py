"""Commands that have started a cluster of their own stop it however they are asked to end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def ends_as_interrupted() -> Iterator[None]:
    """Within, SIGTERM and SIGHUP raise KeyboardInterrupt as SIGINT does, so that `finally` runs: `timeout`, a job that is cancelled and a
    terminal that closes send them. Nothing outside of the main thread, where Python hears no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
