"""Load, compute, or both: worked cases, the split, what is ahead on the link and on the worker."""

from __future__ import annotations

import pytest
from octavo_scheduler.books.path import Path
from octavo_scheduler.books.paths import Work, choose_path, link_wait_us, work_of
from octavo_scheduler.costs import LinkCosts
from octavo_scheduler.events import Calibration, WorkerJoined
from octavo_scheduler.fleet import Worker
from octavo_scheduler.policy import Policy
from octavo_scheduler.tiers import Transfer

GIB = 2**30
SIZE = 16


def a_worker(prefill_token_us: float = 100.0, fixed_us: float = 1.0, block_bytes: int = 1_000_000) -> Worker:
    calibration = Calibration(fixed_us, prefill_token_us, 10.0, 0.0001)
    hello = WorkerJoined(0, 1, "w", 4096, SIZE, 8, 65_536, block_bytes=block_bytes, calibration=calibration)
    return Worker(hello, Policy(max_num_batched_tokens_alone=65_536))


def work(worker: Worker, backlog: int = 0, decoding: int = 0) -> Work:
    return Work(worker, 0.0, backlog, decoding, 0, 65_536)


def loads_at(bytes_per_us: float, fixed_us: float = 0.0, block_bytes: int = 1_000_000):  # type: ignore[no-untyped-def]
    link = LinkCosts(bytes_per_us, fixed_us)
    return lambda first, count: link.predict_us(count * block_bytes) if count else 0.0


@pytest.mark.parametrize(("prefill_ms", "way"), [(180, "recompute"), (2000, "load")])
def test_four_gib_at_sixteen_a_second_take_250_ms(prefill_ms: int, way: str) -> None:
    blocks = 256
    worker = a_worker(prefill_ms * 1000 / (blocks * SIZE), block_bytes=4 * GIB // blocks)
    load_us = loads_at(16 * GIB / 1e6, block_bytes=4 * GIB // blocks)
    path = choose_path(work(worker), blocks * SIZE + 1, 0, blocks, load_us, overlap=False)
    assert load_us(0, blocks) == pytest.approx(250_000)
    assert path.way == way
    assert path.recompute_us == pytest.approx(prefill_ms * 1000, rel=0.01)
    assert (path.run, path.load_us) == ((0, 0.0) if way == "recompute" else (blocks, pytest.approx(250_000)))


def test_both_at_once_beat_either_where_they_are_of_one_speed() -> None:
    worker = a_worker(prefill_token_us=62.5)  # a block a millisecond
    path = choose_path(work(worker), 100 * SIZE + 1, 0, 100, loads_at(1000.0))
    assert path.way == "overlap" and path.run == 100
    assert path.head in (49, 50, 51)
    assert path.overlap_us == pytest.approx(50_000, rel=0.05)
    assert path.load_us == pytest.approx((100 - path.head) * 1000)
    assert path.first_token_us == path.overlap_us


def test_the_split_is_where_both_end_together() -> None:
    worker = a_worker(prefill_token_us=62.5)
    for speed in (250.0, 500.0, 2000.0, 4000.0):
        path = choose_path(work(worker), 200 * SIZE + 1, 0, 200, loads_at(speed), forced="overlap")
        computed_us, loaded_us = path.head * 1000, (200 - path.head) * 1e6 / speed
        assert abs(computed_us - loaded_us) <= 1000 + 1e6 / speed, speed


def test_a_short_gain_is_not_worth_two_things() -> None:
    worker = a_worker(prefill_token_us=62.5)
    fast = choose_path(work(worker), 100 * SIZE + 1, 0, 100, loads_at(100_000.0))
    assert fast.way == "load" and fast.head == 0
    slow = choose_path(work(worker), 100 * SIZE + 1, 0, 100, loads_at(1.0, fixed_us=1e6))
    assert slow.way == "recompute" and slow.run == 0


def test_a_prefill_ahead_speaks_for_a_load_which_need_not_wait_for_it() -> None:
    worker = a_worker(prefill_token_us=62.5)
    load = loads_at(500.0, fixed_us=1000.0)  # half as fast as computing
    alone = choose_path(work(worker), 100 * SIZE + 1, 0, 100, load, overlap=False)
    behind = choose_path(work(worker, backlog=10_000), 100 * SIZE + 1, 0, 100, load, overlap=False)
    assert alone.way == "recompute" and behind.way == "load"
    assert behind.whole_us < behind.recompute_us


def test_decodes_beside_it_make_computing_dearer() -> None:
    worker = a_worker(prefill_token_us=62.5)
    quiet = Work(worker, 0.0, 0, 0, 0, 512).prefill_us(0, 4096)
    busy = Work(worker, 0.0, 0, 8, 8000, 512).prefill_us(0, 4096)
    assert busy > quiet


def test_a_forced_way_is_taken_where_it_is_possible() -> None:
    worker = a_worker()
    for way in ("load", "recompute", "overlap"):
        assert choose_path(work(worker), 65, 0, 4, loads_at(10.0), forced=way).way == way  # type: ignore[arg-type]
    single = choose_path(work(worker), 17, 0, 1, loads_at(10.0), forced="overlap")
    assert single == Path("load", 1, 0, single.load_us, single.recompute_us, single.whole_us, 0.0, single.rest_us)
    assert choose_path(work(worker), 65, 0, 0, loads_at(10.0), forced="load").way == "recompute"


def test_the_link_is_taken_until_what_is_under_way_has_passed() -> None:
    worker = a_worker()
    worker.link.bytes_per_us = 1000.0
    assert link_wait_us(worker, 0) == 0
    worker.transfers[1] = Transfer(1, "load", [1, 2, 3], [b""] * 3, 0)
    worker.transfers[2] = Transfer(2, "offload", [4], [b""], 500)
    assert link_wait_us(worker, 0) == 4000
    assert link_wait_us(worker, 3000) == 1000
    assert link_wait_us(worker, 9000) == 5000, "overdue: as long again"


def test_an_idle_worker_has_nothing_ahead() -> None:
    worker = a_worker()
    idle = work_of(worker, Policy())
    assert (idle.backlog, idle.decoding, idle.left_us, idle.budget) == (0, 0, 0.0, Policy().budget_alone)
