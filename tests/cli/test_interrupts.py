"""A command that is told to end stops what it has started."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest
from octavo_cli.interrupts import ends_as_interrupted

PROGRAM = """
import asyncio, sys
from octavo_cli.interrupts import ends_as_interrupted
try:
    with ends_as_interrupted():
        try:
            print("runs", flush=True)
            asyncio.run(asyncio.sleep(60))
        finally:
            print("stopped", flush=True)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_however_it_is_told_to_end_what_it_started_is_stopped(number: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "runs\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert (out, process.returncode) == ("stopped\n", 130)


def test_afterwards_signals_do_what_they_did_and_other_threads_change_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with ends_as_interrupted():
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is before
    seen = []

    def elsewhere() -> None:
        with ends_as_interrupted():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [before]
