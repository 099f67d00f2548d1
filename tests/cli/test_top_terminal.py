"""`octavo top` on a terminal: a pseudo-terminal of the test's own, a feed that goes on, Ctrl-C, and a window that shrinks."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.cli.test_top import a_moment, request

LIMIT_S = 30.0
ENTER_SCREEN, LEAVE_SCREEN, SHOW_CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"


class Feed(BaseHTTPRequestHandler):
    """Moments until the server stops: the request `grows` has one token more in each; `stop` says goodbye."""

    goodbye = threading.Event()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        tokens = 0
        while not self.goodbye.wait(0.05):
            tokens += 1
            moment = a_moment(running=[request("grows", "decode", output_tokens=tokens % 80)])
            try:
                self.wfile.write(b"data: " + json.dumps(moment).encode() + b"\n\n")
            except ConnectionError:
                return

    def log_message(self, *_: Any) -> None:
        """Silent."""


class Terminal:
    """The command with a terminal of `columns` by 40; what it draws is in `screen`."""

    def __init__(self, words: list[str], environ: dict[str, str], columns: int) -> None:
        self._master, slave = pty.openpty()
        self._slave = slave
        self.resize(columns)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "octavo_cli", *words],
            env=environ | {"TERM": "xterm-256color"},
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        self.screen = b""

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def until(self, seen: Callable[[bytes], bool]) -> bytes:
        """Reads until what came since the last call satisfies `seen`."""
        began_s, since = time.monotonic(), b""
        while not seen(since):
            assert time.monotonic() - began_s < LIMIT_S, since[-2000:]
            if select.select([self._master], [], [], 0.2)[0]:
                since += os.read(self._master, 65536)
        self.screen += since
        return since

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._slave)
        os.close(self._master)


@pytest.fixture
def feed() -> Iterator[str]:
    Feed.goodbye.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Feed)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    Feed.goodbye.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def terminal(octavo: Any, feed: str) -> Iterator[Terminal]:
    made = Terminal(["top", "--url", feed], octavo.environ, 150)
    yield made
    made.close()


def test_it_draws_on_a_screen_of_its_own_and_ctrl_c_gives_the_old_one_back(terminal: Terminal) -> None:
    drawn = terminal.until(lambda text: b"grows" in text and b"smollm2" in text)
    assert ENTER_SCREEN in drawn and LEAVE_SCREEN not in drawn
    frames = terminal.until(lambda text: text.count(b"grows") >= 3)  # it goes on by itself
    assert LEAVE_SCREEN not in frames
    terminal.type(b"\x03")
    terminal.until(lambda text: LEAVE_SCREEN in text and SHOW_CURSOR in text)
    assert terminal.process.wait(LIMIT_S) == 0
    assert b"Traceback" not in terminal.screen


def test_a_window_that_shrinks_gets_the_narrow_view(terminal: Terminal) -> None:
    terminal.until(lambda text: b"grows" in text)
    terminal.resize(80)
    terminal.process.send_signal(signal.SIGWINCH)
    terminal.until(lambda text: text.count(b"grows") >= 3)
    frame = terminal.until(lambda text: text.count(b"grows") >= 2).decode(errors="replace")
    lines = [line for line in frame.replace("\r", "").split("\n") if "grows" in line]
    assert lines and all(len(line) < 150 for line in lines)


def test_a_feed_that_ends_ends_the_view(terminal: Terminal) -> None:
    terminal.until(lambda text: b"grows" in text)
    Feed.goodbye.set()
    terminal.until(lambda text: LEAVE_SCREEN in text)
    assert terminal.process.wait(LIMIT_S) == 0
