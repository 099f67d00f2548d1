"""The KV pool's memory is taken beside other work."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import pytest
from octavo_gpuworker.pool_pages import LEAST_FREE, SLICE_BYTES, PoolPages


class Touched:
    """A backend that notes what it is asked for."""

    def __init__(self, num_blocks: int, block_bytes: int = SLICE_BYTES // 4) -> None:
        self.pool = SimpleNamespace(num_blocks=num_blocks, block_bytes=block_bytes)
        self.asked: list[tuple[int, int]] = []
        self.first = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def touch(self, first: int, count: int) -> None:
        self.asked.append((first, count))
        self.first.set()
        self.go_on.wait(10)


def finished(pages: PoolPages) -> PoolPages:
    pages.start()
    pages._thread.join(10)
    assert not pages._thread.is_alive()
    return pages


def test_every_block_is_taken_once_in_order() -> None:
    backend = Touched(10)
    assert finished(PoolPages(backend, lambda: 1.0)).taken == 10
    assert backend.asked == [(0, 4), (4, 4), (8, 2)]


def test_a_block_larger_than_a_slice_is_taken_alone() -> None:
    backend = Touched(2, 3 * SLICE_BYTES)
    finished(PoolPages(backend, lambda: 1.0))
    assert backend.asked == [(0, 1), (1, 1)]


def test_it_ends_where_memory_runs_short(caplog: pytest.LogCaptureFixture) -> None:
    backend, left = Touched(12), [0.5, LEAST_FREE, LEAST_FREE / 2]
    with caplog.at_level("INFO"):
        pages = finished(PoolPages(backend, lambda: left.pop(0)))
    assert pages.taken == 8
    assert "4 MiB of the KV pool are taken as they are written" in caplog.text


def test_who_holds_the_interpreter_is_an_ordinary_thread() -> None:
    """An idle one that holds it while others want all cores would hold up the steps."""

    class Noting(Touched):
        def touch(self, first: int, count: int) -> None:
            super().touch(os.sched_getscheduler(0), count)

    backend = Noting(8)
    finished(PoolPages(backend, lambda: 1.0))
    assert backend.asked == [(os.sched_getscheduler(0), 4)] * 2


def test_a_stop_ends_it_after_the_running_slice() -> None:
    backend = Touched(100)
    backend.go_on.clear()
    pages = PoolPages(backend, lambda: 1.0)
    pages.start()
    assert backend.first.wait(10)
    threading.Timer(0.05, backend.go_on.set).start()
    pages.stop()
    assert pages.taken < 100
    assert not pages._thread.is_alive()


def test_a_stop_before_the_start_is_harmless() -> None:
    PoolPages(Touched(1)).stop()
