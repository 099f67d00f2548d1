"""A simulated worker by hand: orders at boundaries, merged reports, groups, stops, starvation, transfers."""

from __future__ import annotations

import itertools

from octavo.packing import pack_u32
from octavo_scheduler.events import Reported
from octavo_scheduler.orders import Admit, Grant, Offload, Order, SiblingAdmit, Stop, Update
from octavo_scheduler.simulate.hardware import Hardware
from octavo_scheduler.simulate.store import SimulatedStore
from octavo_scheduler.simulate.worker import SimulatedWorker

from tests.scheduler.simulate.scenes import ROUND

QUICK = Hardware("quick", 900.0, 10.0, 50.0, 0.0, num_blocks=100, block_bytes=1000)


def admit(seq: int = 1, prompt: int = 8, output: int = 20, blocks: int = 4, **options: object) -> Admit:
    return Admit(
        seq, seq, pack_u32(range(prompt)), prompt, 0, list(range(1, blocks + 1)), pack_u32([output]), 0, 0, seq,
        prompt + 100, f"r{seq}", "", **options,  # type: ignore[arg-type]
    )  # fmt: skip


class Bench:
    """One worker, stepped from wake-up to wake-up."""

    def __init__(self, hardware: Hardware = ROUND, store: SimulatedStore | None = None) -> None:
        self.worker = SimulatedWorker("w", 7, hardware, store)
        self.worker.hello(0)
        self.now_us = 0
        self.owners: list[list[str]] = []

    def give(self, *orders: Order) -> None:
        self.worker.inbox.append((self.now_us, list(orders)))

    def turn(self) -> list[Reported]:
        """The boundary that is due now; time moves on to the next one."""
        reports = self.worker.boundary(self.now_us)
        self.owners += [owners for _report, owners in reports]
        self.now_us = self.worker.wake_us
        return [report for report, _owners in reports]

    def until_idle(self) -> list[Reported]:
        reports: list[Reported] = []
        for _ in range(200):
            reports += self.turn()
            if not self.worker.stepping:
                return reports
        raise AssertionError("never idle")


def test_a_finish_and_its_release_are_in_the_report_of_the_last_token() -> None:
    bench = Bench()
    bench.give(admit(output=3))
    reports = bench.until_idle()
    assert [report.counts for report in reports] == [[1], [1], [1]]
    assert [report.computed_len for report in reports] == [[8], [9], [10]]
    last = reports[-1]
    assert (last.finishes[0].reason, last.released[0].seq, last.released[0].length) == ("stop", 1, 11)
    assert reports[0].first_tokens[0].prefill_us == 10_000 + 8 * 100
    assert [report.step for report in reports] == [1, 2, 3]


def test_short_steps_of_equal_composition_share_a_report() -> None:
    bench = Bench(QUICK)
    bench.give(admit(output=20))
    reports = bench.until_idle()
    assert reports[0].counts == [1] and reports[0].prefill_tokens == 8  # a first token leaves at once
    assert max(report.steps for report in reports) >= 5
    assert sum(sum(report.counts) for report in reports) == 20
    assert sum(report.wall_us for report in reports) == 980 + 19 * 950
    for before, after in itertools.pairwise(reports):
        assert after.computed_len[0] - before.computed_len[0] == after.counts[0] == after.steps


def test_without_a_block_it_starves_keeps_its_place_and_goes_on() -> None:
    bench = Bench()
    bench.give(admit(output=20, blocks=1))
    reports = bench.until_idle()
    assert reports[-1].starved == [1] and reports[-1].slots == []
    assert sum(sum(report.counts) for report in reports) == 9
    quiet = bench.now_us
    assert [report.starved for report in bench.turn()] == [[1]]  # says so again every 100 ms
    assert quiet - 100_000 <= bench.now_us
    bench.give(Grant(1, [9]))
    assert sum(sum(report.counts) for report in bench.until_idle()) == 11


def test_orders_for_what_is_gone_do_nothing_and_a_stop_releases() -> None:
    bench = Bench()
    bench.give(Stop(5, "cancel"), Grant(5, [3]), Update(5, 1), admit(output=50))
    bench.turn()
    bench.give(Stop(1, "cancel"))
    reports = bench.until_idle()
    assert reports[-1].released[0].seq == 1 and reports[-1].finishes == []
    # the step that ran when the stop came counts
    assert reports[-1].released[0].length == 8 + sum(sum(report.counts) for report in reports)


def test_a_paused_sequence_waits_for_its_update() -> None:
    bench = Bench()
    bench.give(admit(output=4), Update(1, 1, paused=True))
    assert bench.turn() == [] and not bench.worker.stepping
    bench.give(Update(1, 1))
    assert sum(sum(report.counts) for report in bench.until_idle()) == 4


def test_a_group_prefills_once_and_each_member_speaks() -> None:
    bench = Bench()
    bench.give(admit(output=3, siblings=[SiblingAdmit(2, 2, 5, [5, 6]), SiblingAdmit(3, 3, 6, [7, 8])]))
    reports = bench.until_idle()
    assert reports[0].slots == [1, 2, 3] and reports[0].counts == [1, 1, 1] and reports[0].computed_len == [8, 8, 8]
    assert sum(report.prefill_tokens for report in reports) == 8
    assert len(reports[0].first_tokens) == 3 and bench.owners[0] == ["r1", "r1", "r1"]
    assert {released.seq for report in reports for released in report.released} == {1, 2, 3}


def test_a_leader_that_is_stopped_leaves_its_group_to_the_next() -> None:
    bench = Bench()
    bench.give(admit(prompt=700, output=2, blocks=60, siblings=[SiblingAdmit(2, 2, 5, list(range(1, 60)))]))
    bench.worker.budget = type(bench.worker.budget)(256, 256, 8)
    bench.turn()
    bench.give(Stop(1, "cancel"))
    reports = bench.until_idle()
    assert {released.seq for report in reports for released in report.released} == {1, 2}
    assert sum(report.prefill_tokens for report in reports) <= 700  # goes on where the leader was


def test_an_idle_worker_reports_once_a_second_what_it_holds() -> None:
    bench = Bench()
    assert bench.turn() == []
    (report,) = bench.turn()
    assert report.live_seqs == [] and report.live_transfers == [] and report.steps == 0


def test_a_transfer_ends_after_its_time_and_nothing_is_held_without_a_store() -> None:
    bench = Bench()
    bench.give(Offload(3, [1], [b"k"], [b"p"]))
    bench.turn()
    assert bench.now_us == 1000
    (report,) = bench.turn()
    assert [(done.xfer_id, done.ok_blocks) for done in report.transfers_done] == [(3, 0)]


def test_a_store_forgets_the_least_used_and_numbers_its_changes() -> None:
    store = SimulatedStore("s", 1, 2)
    store.put([b"a", b"b"])
    assert store.held_run([b"a", b"x"]) == 1
    store.put([b"c"])
    assert store.held_run([b"b"]) == 0 and len(store) == 2
    assert store.take_changes() == (1, [(b"a", False), (b"b", False), (b"c", False), (b"b", True)])
    assert store.take_changes() == (5, [])
