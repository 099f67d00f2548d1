"""The KV pool's memory is taken beside other work."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import pytest
from octavo_gpuworker import pool_pages as module
from octavo_gpuworker.pool_pages import SLICE_BYTES, PoolPages


class Touched:
    """A backend that notes what it is asked for."""

    def __init__(self, num_blocks: int, block_bytes: int = SLICE_BYTES // 4) -> None:
        self.pool = SimpleNamespace(num_blocks=num_blocks, block_bytes=block_bytes)
        self.asked: list[tuple[int, int]] = []
        self.first = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def touch(self, first: int, count: int) -> bool:
        self.asked.append((first, count))
        self.first.set()
        self.go_on.wait(10)
        return True


def plenty() -> int:
    return 1 << 60


def nobody(_blocks: int) -> None:
    raise AssertionError("there is nothing to tell")


def finished(pages: PoolPages) -> PoolPages:
    pages.start()
    pages._thread.join(10)
    assert not pages._thread.is_alive()
    return pages


def test_every_block_is_taken_once_in_order() -> None:
    backend = Touched(10)
    assert finished(PoolPages(backend, nobody, plenty)).taken == 10
    assert backend.asked == [(0, 4), (4, 4), (8, 2)]


def test_a_block_larger_than_a_slice_is_taken_alone() -> None:
    backend = Touched(2, 3 * SLICE_BYTES)
    finished(PoolPages(backend, nobody, plenty))
    assert backend.asked == [(0, 1), (1, 1)]


def test_where_memory_runs_short_the_rest_is_held_back_until_there_is_more(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.001)
    backend, told = Touched(12), list[int]()
    spare = [SLICE_BYTES, SLICE_BYTES, SLICE_BYTES - 1, -5, SLICE_BYTES]
    with caplog.at_level("INFO"):
        pages = finished(PoolPages(backend, told.append, lambda: spare.pop(0)))
    assert pages.taken == 12 and told == [8, 8, 0]
    assert [item for item in backend.asked if item != (0, 1)] == [(0, 4), (4, 4), (8, 4)]
    short, enough = [record.getMessage() for record in caplog.records]
    assert short.startswith("memory is short: 4 of 12 MiB of the KV pool are held back")
    assert enough == "the whole KV pool has memory now"


def test_without_memory_for_a_single_block_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.001)
    told, spare = list[int](), [0, 1 << 60]
    finished(PoolPages(Touched(2), told.append, lambda: spare.pop(0)))
    assert told == [1, 0]  # 0 would mean all


@pytest.mark.parametrize("spare", [0, 1 << 60])
def test_a_backend_whose_memory_is_not_known_holds_nothing_back(spare: int) -> None:
    class Silent(Touched):
        def touch(self, first: int, count: int) -> bool:
            super().touch(first, count)
            return False

    backend = Silent(12)
    finished(PoolPages(backend, nobody, lambda: spare))
    assert len(backend.asked) == 1


def test_a_stop_ends_one_that_waits_for_memory() -> None:
    told = threading.Event()
    pages = PoolPages(Touched(4), lambda _blocks: told.set(), lambda: 0)
    pages.start()
    assert told.wait(10)
    pages.stop()
    assert not pages._thread.is_alive()


def test_who_holds_the_interpreter_is_an_ordinary_thread() -> None:
    """An idle one that holds it while others want all cores would hold up the steps."""

    class Noting(Touched):
        def touch(self, first: int, count: int) -> bool:
            return super().touch(os.sched_getscheduler(0), count)

    backend = Noting(8)
    finished(PoolPages(backend, nobody, plenty))
    assert backend.asked == [(os.sched_getscheduler(0), 4)] * 2


def test_a_stop_ends_it_after_the_running_slice() -> None:
    backend = Touched(100)
    backend.go_on.clear()
    pages = PoolPages(backend, nobody, plenty)
    pages.start()
    assert backend.first.wait(10)
    threading.Timer(0.05, backend.go_on.set).start()
    pages.stop()
    assert pages.taken < 100
    assert not pages._thread.is_alive()


def test_a_stop_before_the_start_is_harmless() -> None:
    PoolPages(Touched(1), nobody).stop()
