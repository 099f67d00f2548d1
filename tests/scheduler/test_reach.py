"""Loads from other hosts: who is asked for what, when it pays, and what a wrong or dead peer costs."""

from __future__ import annotations

from random import Random

import pytest
from octavo_scheduler.admission import load_path
from octavo_scheduler.events import StoreCoded
from octavo_scheduler.orders import Load, LoadSource
from octavo_scheduler.policy import Policy
from octavo_scheduler.reach import Reach, note_missed
from octavo_scheduler.tiers import STUCK_PAUSE_US, Directory
from octavo_scheduler.wire import peer_address, write_order

from tests.scheduler.chaos import ChaosWorker
from tests.scheduler.chaos_store import ChaosStore
from tests.scheduler.harness import Simulation
from tests.scheduler.scenes import counters, done, run_until

KEYS = [bytes([number]) * 32 for number in range(8)]


def directory(name: str, held: str, **how: bool) -> Directory:
    """Held: one digit per key."""
    made = Directory(name, 1, **how)
    made.inventory(0, [KEYS[int(digit)] for digit in held], True)
    return made


@pytest.mark.parametrize(
    ("own", "peers", "run"),
    [
        ("012", [], (3, 3)),
        ("012", ["34"], (3, 5)),
        ("", ["0123"], (0, 4)),
        ("02", ["13"], (1, 4)),
        ("02", ["3"], (1, 1)),
        ("01", ["2", "3"], (2, 4)),
    ],
)
def test_a_run_goes_on_where_any_peer_holds_the_next_key(own: str, peers: list[str], run: tuple[int, int]) -> None:
    reach = Reach(directory("own", own), [directory(f"p{at}", held) for at, held in enumerate(peers)])
    assert reach.run(KEYS, 0) == run


def test_a_store_whose_inventory_is_still_on_its_way_gives_nothing() -> None:
    assert Reach(Directory("own", 1), [directory("p", "0")]).run(KEYS, 0) == (0, 0)


def test_sources_name_runs_and_leave_out_what_the_own_store_has() -> None:
    reach = Reach(directory("own", "01"), [directory("p", "0134"), directory("q", "2"), directory("r", "01")])
    assert reach.sources(KEYS[:5]) == [LoadSource("p", 3, 2), LoadSource("q", 2, 1)]
    assert Reach(directory("own", "")).sources(KEYS) == []


def test_a_miss_is_remembered_and_a_peer_that_gave_nothing_is_left_alone() -> None:
    own, peer, idle = directory("own", "0"), directory("p", "1234"), directory("q", "1")
    peers = {"own": own, "p": peer, "q": idle}
    sources = [LoadSource("p", 1, 4), LoadSource("gone", 1, 4)]
    note_missed(own, peers, sources, KEYS[:5], 3, 0)
    assert KEYS[3] not in peer and KEYS[4] in peer and peer.answers(0), "it gave two"
    note_missed(own, peers, sources, KEYS[:5], 1, 0)
    assert not peer.answers(STUCK_PAUSE_US - 1) and peer.answers(STUCK_PAUSE_US) and idle.answers(0)
    note_missed(own, peers, sources, KEYS[:5], 5, 0)
    assert KEYS[4] in peer


def hosts(policy: Policy | None = None) -> tuple[Simulation, int, list[ChaosStore], list[ChaosWorker]]:
    """Two hosts, each with a kvstore and a worker; the second worker comes later."""
    simulation = Simulation(Random(1), policy, delay_us=0)
    stores = [ChaosStore(Random(2), name) for name in ("one", "two")]
    stores[0].peers["two"], stores[1].peers["one"] = stores[1], stores[0]
    for store in stores:
        simulation.add_store(store)
    workers = [
        ChaosWorker(Random(3), f"w{at}", num_blocks=33, max_seqs=4, calm=True, store=store)
        for at, store in enumerate(stores)
    ]
    simulation.add_worker(workers[0])
    return simulation, simulation.add_gateway(), stores, workers


def served_on_the_first(simulation: Simulation, gateway: int, stores: list[ChaosStore], prompt: list[int]) -> None:
    """A request runs on host one and its blocks land in that host's kvstore."""
    first = simulation.submit(gateway, prompt, 2)
    run_until(simulation, lambda: first.outcome and len(stores[0].held) >= len(prompt) // 4)
    simulation.flush_store("one")


def slow_prefill(simulation: Simulation) -> None:
    """Computing is slow enough here for any load to pay."""
    for worker in simulation.core.cell.fleet.workers.values():
        worker.costs.prefill_token_us = 100_000.0


def test_a_worker_of_another_host_loads_what_only_the_first_host_has() -> None:
    simulation, gateway, stores, workers = hosts()
    prompt = list(range(40))
    served_on_the_first(simulation, gateway, stores, prompt)
    link = simulation.add_worker(workers[1])
    run_until(simulation, lambda: link.epoch and len(simulation.core.cell.fleet.workers) == 2)
    simulation.disconnect(simulation.links[0], dead=True)
    run_until(simulation, lambda: len(simulation.core.cell.fleet.workers) == 1)
    slow_prefill(simulation)
    before = counters(simulation)["loaded_blocks"]
    second = simulation.submit(gateway, prompt, 2)
    run_until(simulation, lambda: second.outcome)
    assert counters(simulation)["loaded_blocks"] - before == 9 and stores[1].fetched == 9
    assert second.cached_tokens == 36
    (worker,) = simulation.core.cell.fleet.workers.values()
    assert worker.peer_link.bytes_per_us != 100.0 and worker.link.bytes_per_us == 500.0, "each link learns its own"
    load = next(fact for fact in simulation.facts if fact.name == "kv.load")
    assert dict(load.attributes)["tier"] == "remote"
    simulation.flush_store("two")
    assert len(simulation.core.cell.fleet.stores["two"]) == 9, "now this host has them too"
    done(simulation, second)


def test_a_dead_host_costs_a_miss_and_is_left_alone() -> None:
    simulation, gateway, stores, workers = hosts()
    prompt = list(range(40))
    served_on_the_first(simulation, gateway, stores, prompt)
    simulation.add_worker(workers[1])
    run_until(simulation, lambda: len(simulation.core.cell.fleet.workers) == 2)
    simulation.disconnect(simulation.links[0], dead=True)
    run_until(simulation, lambda: len(simulation.core.cell.fleet.workers) == 1)
    slow_prefill(simulation)
    stores[0].alive = False  # its stream still stands: the scheduler does not know yet
    second = simulation.submit(gateway, prompt, 2)
    run_until(simulation, lambda: second.outcome == "finished")
    assert stores[1].fetched == 0 and not simulation.core.cell.fleet.stores["one"].answers(simulation.now_us)
    loads = counters(simulation)["loads_started"]
    third = simulation.submit(gateway, [*prompt[:30], 99], 2)
    run_until(simulation, lambda: third.outcome == "finished")
    assert counters(simulation)["loads_started"] == loads
    done(simulation, second, third)


def test_a_slow_network_is_not_used_where_computing_is_faster() -> None:
    simulation, _, _stores, _workers = hosts()
    run_until(simulation, lambda: simulation.core.cell.fleet.workers)
    (worker,) = simulation.core.cell.fleet.workers.values()
    keys = KEYS[:6]
    reach = Reach(directory("own", "01"), [directory("p", "2345")])
    worker.block_bytes, worker.costs.fixed_us, worker.costs.prefill_token_us = 1_000_000, 1.0, 1000.0
    worker.link.bytes_per_us, worker.link.fixed_us = 1000.0, 0.0
    worker.peer_link.bytes_per_us, worker.peer_link.fixed_us = 1000.0, 0.0
    policy = Policy()
    path = load_path(worker, keys, 0, policy, reach)
    assert (path.way, path.run, path.load_us) == ("load", 6, 6000.0)
    worker.peer_link.bytes_per_us = 100.0
    path = load_path(worker, keys, 0, policy, reach)
    assert (path.way, path.run, path.load_us) == ("load", 2, 2000.0), "what is near still pays"
    worker.link.bytes_per_us = 10.0
    assert load_path(worker, keys, 0, policy, reach).run == 0
    assert load_path(worker, keys, 0, policy, None).run == 0
    told = load_path(worker, keys, 0, Policy(load_path="load"), reach)
    assert (told.way, told.run) == ("load", 6), "who says load gets it, however slow the network is believed to be"


def test_a_host_that_does_not_fetch_is_given_no_sources() -> None:
    simulation, _, _stores, _ = hosts()
    run_until(simulation, lambda: simulation.core.cell.fleet.workers)
    fleet = simulation.core.cell.fleet
    (worker,) = fleet.workers.values()
    reach = fleet.reach_of(worker, simulation.now_us)
    assert reach is not None and [peer.store_id for peer in reach.peers] == ["two"]
    fleet.stores["two"].reachable = False
    reach = fleet.reach_of(worker, simulation.now_us)
    assert reach is not None and list(reach.peers) == []
    fleet.stores["two"].reachable, fleet.stores["one"].fetches = True, False
    reach = fleet.reach_of(worker, simulation.now_us)
    assert reach is not None and list(reach.peers) == []
    simulation.kill_store("one")
    assert fleet.reach_of(worker, simulation.now_us) is None


def test_compression_is_booked() -> None:
    simulation, _, _, _ = hosts()
    simulation.feed(StoreCoded(simulation.now_us, "one", 5, 3000.0, 1000.0, 777))
    book = simulation.core.cell.ledger.books["compression"]
    assert (book.entries, book.saved_ms, book.cost_ms, book.saved_bytes, book.net_ms) == (5, 3.0, 1.0, 777, 2.0)


def test_sources_travel_with_the_order() -> None:
    load = write_order(Load(1, KEYS[:3], [1, 2, 3], 9, [LoadSource("far", 1, 2)])).load
    assert [(item.store_id, item.first, item.count) for item in load.sources] == [("far", 1, 2)]


@pytest.mark.parametrize(
    ("told", "caller", "address"),
    [
        ("", "ipv4:10.0.0.5:4242", ""),
        ("host:50055", "ipv4:10.0.0.5:4242", "host:50055"),
        (":50055", "ipv4:10.0.0.5:4242", "10.0.0.5:50055"),
        (":50055", "ipv6:%5B2001:db8::1%5D:4242", "[2001:db8::1]:50055"),
        (":50055", "unix:", "127.0.0.1:50055"),
        ("unix:/run/peer.sock", "unix:", "unix:/run/peer.sock"),
    ],
)
def test_where_a_peer_is_reached(told: str, caller: str, address: str) -> None:
    assert peer_address(told, caller) == address
