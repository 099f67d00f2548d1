"""A seeded random walk over everything that can happen, in any order; every rule of the protocol is an assertion on the way.

The chaos worker asserts what it reads and writes, the clients assert what they are told, the cell's integrity is
checked as it goes, and at the end everything must be free.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from random import Random

import pytest
from octavo_scheduler import seating
from octavo_scheduler.admission import Plan, can_ever_hold, next_group, size_of
from octavo_scheduler.beams.rule import BeamRule
from octavo_scheduler.cell import Cell
from octavo_scheduler.core import Core
from octavo_scheduler.event_log import EventLog, replay
from octavo_scheduler.events import Event
from octavo_scheduler.limits.jam import Jam
from octavo_scheduler.orders import Effects
from octavo_scheduler.outbox import Update
from octavo_scheduler.policy import Policy
from octavo_scheduler.preloads import build
from octavo_scheduler.preloads.cache_events import (
    CacheEvicted,
    NamespaceRotated,
    PreloadPinned,
    PreloadPut,
    PreloadRemoved,
)
from octavo_scheduler.preloads.rule import CacheRule, PromptChunk
from octavo_scheduler.request import Request
from octavo_scheduler.token_runs import TokenRuns

from tests.scheduler.chaos import ChaosWorker, sampling_of, tokens_of
from tests.scheduler.chaos_store import ChaosStore
from tests.scheduler.harness import Simulation

WALK_EVENTS = 200_000
"""Events fed to the core by `make test`, over all seeds; every invariant is checked after each."""
ORDERS = ("fcfs", "priority", "sjf", "slo", "fair", "slo-fair")
SEEDS = 18
SOAK_EVENTS = 2_000_000
TENANT, TENANTS = "a", ("a", "b")


class Walk:
    """One random cell and the moves on it. The first worker's pool is `smaller` by so many blocks."""

    def __init__(self, seed: int, smaller: int = 0) -> None:
        rng = self.rng = Random(seed)
        policy = Policy(
            order=ORDERS[seed % len(ORDERS)],  # all policies take turns
            batching=rng.choice(("continuous", "continuous", "continuous", "static", "dynamic")),
            tenant_weights={"b": 3.0},
            max_num_seqs=rng.choice((2, 4, 6)),
            max_num_batched_tokens=rng.choice((4, 16, 64)),
            max_waiting_requests=12,
            orphan_grace_us=200_000,
            recovery_grace_us=300_000,
            worker_silence_us=1_500_000,
            progress_timeout_us=3_000_000,
            no_worker_timeout_us=2_000_000,
            registry_ttl_us=1_000_000,
            registry_bytes=20_000,
            default_output_tokens=rng.choice((1, 8, 30)),
            max_offload_blocks=3,
            max_losses=1_000,
            preload_reserve_tokens=1,
            tenant_limits=rng.choice(
                (
                    {},
                    {"b": {"kv_share": 0.4, "concurrency": 3.0}},
                    {"*": {"rate_tokens_per_s": 400.0, "burst_tokens": 300.0}},
                )
            ),
            max_overcommit=rng.choice((1.0, 2.0, 4.0)),
            slo_classes={
                "default": {"ttft_ms": 100.0, "itl_p99_ms": rng.choice((0.0, 8.0, 50.0))},
                "less": {"ttft_ms": 30.0, "on_overload": "degrade", "degrade_pool": "spare", "degrade_max_tokens": 2.0},
                "own": {"policy": rng.choice(ORDERS), "weight": 2.0} if rng.random() < 0.5 else {"itl_p99_ms": 5.0},
            },
            load_path=("auto", "overlap", "load")[seed // 2 % 3],
            counterfactual_share=0.1 * (seed % 2),
            blending=seed % 4 != 3,
            blending_share=rng.choice((0.0, 0.3)),
        )
        self.simulation = Simulation(rng, policy, delay_us=rng.choice((0, 2000, 30_000)))
        self.stores = [ChaosStore(rng)]
        if seed % 3 == 1:  # two hosts, whose kvstores fetch from each other
            self.stores.append(ChaosStore(rng, "host2"))
            for store, other in zip(self.stores, reversed(self.stores), strict=True):
                store.peers[other.store_id] = other
        block_tokens = rng.choice((2, 4))
        self.num_blocks = rng.choice((17, 30))
        roles = rng.choice((("both",), ("both", "both"), ("prefill", "decode"), ("prefill", "both", "decode")))
        if len(self.stores) == 2 and len(roles) == 1:
            roles = ("both", "both")
        for number, role in enumerate(roles):
            worker = ChaosWorker(
                rng,
                f"w{number}",
                role=role,
                num_blocks=self.num_blocks - (0 if number else smaller),
                block_tokens=block_tokens,
                max_seqs=6,
                store=self.stores[number % len(self.stores)],
                max_merge=rng.choice((1, 4)),
            )
            worker.fail_every = rng.choice((0, 0, 50))
            worker.pool_labels = ["spare"] if number else []
            self.simulation.add_worker(worker)
        for _ in range(2):
            self.simulation.add_gateway()
        self.prefixes = [[rng.randrange(60) for _ in range(rng.choice((3, 8, 13)))] for _ in range(3)]
        self.longest = (self.num_blocks - 1) * block_tokens

    def gateway(self) -> int:
        return self.rng.choice(list(self.simulation.gateways))

    def submit(self) -> None:
        rng, simulation = self.rng, self.simulation
        prompt = rng.choice(self.prefixes) + [rng.randrange(60) for _ in range(rng.randint(1, 6))]
        most = self.longest - len(prompt) + 2
        client = simulation.submit(
            self.gateway(),
            prompt,
            rng.choice((1, 3, 12, min(25, most), most)),
            **self.kind(),
            stop_ids=rng.choice(([], [5], [5, 17])),
            priority=rng.choice((0, 0, 3)),
            deadline_us=rng.choice((0, 0, 0, 0, rng.randint(1, 400_000))),
            cache_off=rng.random() < 0.1,
            pause=rng.choice((("", 0), ("", 0), ("a", 5000), ("b", 100_000))),
            tenant=rng.choice("aab"),
            slo_class=rng.choice(("", "", "own", "less")),
            cache=CacheRule(
                rng.choice((0, 0, 0, 50_000, 400_000)),
                rng.random() < 0.1,
                rng.choice((0, 0, 3, -3)),
                rng.choice(((), (), ("hbm",), ("hbm", "nvme"))),
                simulation.generation,
            ),
        )
        if rng.random() < 0.05:
            simulation.cancel(client)

    def kind(self) -> dict[str, object]:
        """One choice, several, or the beams of a search."""
        rng = self.rng
        if rng.random() < 0.85:
            return {"n": rng.choice((1, 1, 1, 2, 3))}
        width = rng.choice((1, 2, 3, 4))
        ends = rng.choice(((), (5, 17), tuple(range(9))))
        return {
            "n": width,
            "beams": BeamRule(rng.randint(1, width), rng.choice((0.0, 1.0, 1.0)), rng.random() < 0.3, ends),
        }

    def submit_chunks(self) -> None:
        """A prompt of preloads in any order: where two are there, what is behind the first is blended."""
        rng, simulation = self.rng, self.simulation
        book = simulation.core.cell.caching.book
        found = [book.active[TENANT, name] for name in rng.sample(("a", "b", "a"), 3) if (TENANT, name) in book.active]
        prompt, chunks = [], []
        for preload in found:
            skip = rng.choice((0, 0, 1)) if prompt else 0
            own = list(preload.prompt)[skip:]
            chunks.append(PromptChunk(preload.name, len(prompt), len(own), skip))
            prompt += own
        prompt += [rng.randrange(60) for _ in range(rng.randint(1, 6))]
        if len(prompt) + 2 > self.longest:
            return
        client = simulation.submit(
            self.gateway(), prompt, rng.choice((1, 3, min(12, self.longest - len(prompt)))), n=rng.choice((1, 1, 2)),
            tenant=TENANT, cache=CacheRule(generation=simulation.generation, chunks=tuple(chunks)),
        )  # fmt: skip
        if rng.random() < 0.1:
            simulation.cancel(client)

    def pause(self) -> None:
        """A turn is over and its client pauses; or one that paused comes back with a longer prompt."""
        rng, simulation = self.rng, self.simulation
        ended = [client for client in simulation.clients[-20:] if client.outcome == "finished" and not client.gone]
        if not ended:
            return
        client = rng.choice(ended)
        if client.gateway not in simulation.gateways:
            return
        prompt = client.prompt + client.got[0] + [rng.randrange(60)]
        if rng.random() < 0.5 or len(prompt) + 3 > self.longest:
            simulation.pause(client, rng.choice(("a", "b")), rng.choice((0, 1000, 20_000)))
        else:
            simulation.submit(self.gateway(), prompt, 3, resumes=client.request_id, tenant=client.tenant)

    def live(self) -> list[object]:
        return [client for client in self.simulation.clients if not client.gone and not client.outcome]

    def cancel(self) -> None:
        for client in self.rng.sample(self.live(), min(1, len(self.live()))):
            self.simulation.cancel(client, self.rng.choice(("client_cancel", "client_disconnect")))  # type: ignore[arg-type]

    def stop_choice(self) -> None:
        live = [client for client in self.live() if client.beams is None]  # type: ignore[attr-defined]
        for client in self.rng.sample(live, min(1, len(live))):
            index = self.rng.randrange(len(client.seeds))  # type: ignore[attr-defined]
            got = client.got[index]  # type: ignore[attr-defined]
            if got and index not in client.ended and index not in client.cuts:  # type: ignore[attr-defined]
                self.simulation.stop_choice(client, index, self.rng.randint(1, len(got)))  # type: ignore[arg-type]

    def deliver(self) -> None:
        self.simulation.deliver(self.gateway())

    def lose_gateway(self) -> None:
        rng, simulation = self.rng, self.simulation
        if rng.random() < 0.7:
            return
        lost = simulation.lose_gateway(self.gateway())
        new = simulation.add_gateway()
        for client in lost:
            # a stop string that the scheduler may not have heard of is told again by a real gateway; here it is not cut
            if not client.cuts and rng.random() < 0.8:
                simulation.resubmit(client, new)

    def cut_worker(self) -> None:
        if self.rng.random() < 0.3:
            link = self.rng.choice(self.simulation.links)
            if link.epoch:
                self.simulation.disconnect(link, dead=self.rng.random() < 0.5, tell=self.rng.random() < 0.8)

    def drain_worker(self) -> None:
        link = self.rng.choice(self.simulation.links)
        if link.epoch and self.rng.random() < 0.4:
            self.simulation.drain(link, self.rng.choice((0, 5_000, 100_000)))

    def store_moves(self) -> None:
        rng, simulation = self.rng, self.simulation
        for store in self.stores:
            if store.store_id not in simulation.stores:
                if rng.random() < 0.5:
                    simulation.add_store(store)
                continue
            store.evict_some()
            simulation.flush_store(store.store_id, lose=rng.random() < 0.2)
            if rng.random() < 0.05:
                simulation.kill_store(store.store_id)

    def cut_pool(self) -> None:
        """A worker finds no memory, several times one after another."""
        link = self.rng.choice(self.simulation.links)
        self.memory_moves(link.worker)
        for _ in range(self.rng.randint(1, 6)):
            link.worker.fail()
            self.simulation.run_link(link)
            self.simulation.advance(1000)

    def memory_moves(self, worker: ChaosWorker) -> None:
        """It cannot have the memory of its whole pool, or can again; draws of its own, so that what else a seed does stays."""
        rng = Random(self.simulation.now_us)
        if rng.random() < 0.3:
            worker.backed_blocks = rng.choice((0, 1, self.num_blocks // 2, self.num_blocks))

    def cache_moves(self) -> None:
        """Preloads that come, change and go, evictions and rotations, whatever runs on the blocks meanwhile."""
        rng, simulation = self.rng, self.simulation
        now, name = simulation.now_us, rng.choice(("a", "b"))
        move = rng.random()
        if move < 0.45:
            prompt = rng.choice(self.prefixes) + [rng.randrange(60) for _ in range(rng.randint(1, 9))]
            cell = simulation.core.cell
            if not build.refusal(cell, TENANT, name, len(prompt)):
                version = cell.caching.book.next_version(TENANT, name)
                put = PreloadPut(now, TENANT, name, version, "raw", tokens_of(prompt), b"m", sampling_of([]))
                put.generation, put.restored = simulation.generation, rng.random() < 0.3
                simulation.feed(put)
        elif move < 0.6:
            simulation.feed(PreloadRemoved(now, TENANT, name))
        elif move < 0.75:
            simulation.feed(PreloadPinned(now, TENANT, name, rng.random() < 0.5))
        elif move < 0.9:
            keys = [key for worker in simulation.core.cell.fleet.workers.values() for key in worker.index.block_of]
            key = rng.choice(keys) if keys and rng.random() < 0.7 else b""
            simulation.feed(CacheEvicted(now, TENANT, key, name if not key and rng.random() < 0.5 else "", b"t"))
        else:
            simulation.generation += 1
            simulation.root = bytes([simulation.generation % 256]) * 32
            for tenant in TENANTS:
                simulation.feed(NamespaceRotated(now, tenant, simulation.generation, b"m", b"t"))

    def end_preloads(self) -> None:
        for name in ("a", "b"):
            self.simulation.feed(PreloadRemoved(self.simulation.now_us, TENANT, name))
        for tenant in TENANTS:
            self.simulation.feed(CacheEvicted(self.simulation.now_us, tenant, tag=b"t"))

    def jump(self) -> None:
        self.simulation.advance(self.rng.choice((50_000, 200_000)))

    def run(self, events: int) -> Simulation:
        simulation = self.simulation
        simulation.checked = True
        moves: list[tuple[Callable[[], None], float]] = [
            (self.submit, 5),
            (self.submit_chunks, 1.5),
            (self.cancel, 1),
            (self.stop_choice, 1),
            (self.deliver, 10),
            (self.lose_gateway, 0.4),
            (self.cut_worker, 0.5),
            (self.drain_worker, 0.4),
            (self.store_moves, 2),
            (self.cache_moves, 1.5),
            (self.jump, 0.3),
            (self.pause, 2),
            (self.cut_pool, 0.2),
        ]
        names, weights = [move for move, _ in moves], [weight for _, weight in moves]
        turn = 0
        while simulation.events < events:
            turn += 1
            simulation.advance(self.rng.randint(500, 5000))
            for link in simulation.links:
                simulation.run_link(link)
            if self.rng.random() < 0.3:
                self.rng.choices(names, weights)[0]()
            if turn % 50 == 0:
                simulation.check_integrity()
        self.end_preloads()
        simulation.settle()
        simulation.check_clean()
        assert all(worker.pool.pinned_blocks == 0 for worker in simulation.core.cell.fleet.workers.values())
        return simulation


@pytest.mark.parametrize("seed", range(SEEDS))
def test_walk(seed: int) -> None:
    simulation = Walk(seed).run(WALK_EVENTS // SEEDS)
    counters = simulation.core.cell.counters
    assert counters["requests_finished"] > 20


@pytest.mark.parametrize("seed", [302, 308])
def test_where_pools_differ_nobody_stands_still(seed: int) -> None:
    """A worker is lost for "no progress" when what runs there alone can never have the block that it needs."""
    simulation = Walk(seed, smaller=9).run(3000)
    assert not [why for why in simulation.closed if "progress" in why]


@pytest.mark.parametrize("seed", [302, 308, 311])
def test_nobody_passes_onto_a_worker_that_somebody_before_it_could_use(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where pools differ: asked of each worker anew, whatever the jam believes."""
    before: list[Request] = []
    passed = 0

    class Watched(Jam):
        def __init__(self, cell: Cell) -> None:
            super().__init__(cell)
            before.clear()

        def hold(self, request: Request) -> None:
            before.append(request)
            super().hold(request)

    def admit(cell: Cell, plan: Plan) -> None:
        nonlocal passed
        newcomer = plan.choices[0].request
        for request in before if newcomer.queued and newcomer not in cell.arriving else ():
            size = size_of(request, len(next_group(request.waiting_choices())))
            of_pool = not request.pool or request.pool in plan.worker.labels
            assert not (of_pool and can_ever_hold(plan.worker.shape(), *size)), (
                f"{newcomer.request_id} takes what {request.request_id} waits for"
            )
            passed += 1
        seat(cell, plan)

    seat = seating.admit
    monkeypatch.setattr("octavo_scheduler.core.Jam", Watched)
    monkeypatch.setattr(seating, "admit", admit)
    simulation = Walk(seed, smaller=9).run(2500)
    assert (passed > 0) == (simulation.core.cell.counters["passing_starts"] > 0)


def test_walks_reach_every_corner() -> None:
    """A walk that never preempts, loads or loses a worker would prove nothing."""
    total: dict[str, float] = {}
    for seed in range(6, 16):
        for name, value in Walk(seed).run(1500).core.cell.counters.items():
            total[name] = total.get(name, 0) + value
    for name in (
        "preemptions",
        "priority_preemptions",
        "budget_changes",
        "offloaded_blocks",
        "loaded_blocks",
        "prefix_hit_tokens",
        "mixed_steps",
        "beam_steps",
        "beam_forks",
        "requests_attached",
        "requests_finished",
        "requests_cancelled",
        "requests_rejected",
        "requests_deadline",
        "worker_losses",
        "preloads_built",
        "preloads_swapped",
        "blended_tokens",
        "chunks_loaded",
        "thrown_out_blocks",
        "expired_blocks",
        "pinned_requests",
        "swaps",
        "swapped_blocks",
        "handoffs_done",
        "handoffs_failed",
        "handoff_early_blocks",
        "handoff_preloaded_blocks",
        "handoff_credit_waits",
        "pauses_keep",
        "pauses_offload",
        "pauses_drop",
        "pauses_demoted",
        "pauses_resumed",
        "pauses_without_return",
        "pause_spared_tokens",
        "failed_allocations",
        "requests_degraded",
        "workers_drained",
        "handed_over",
        "abandoned_copies",
        "passing_starts",
    ):
        assert total[name] > 0, name


class LoggedCore(Core):
    """A core whose every input and order is written down, as the driver does it."""

    def __init__(self, policy: Policy, now_us: int = 0) -> None:
        super().__init__(policy, now_us)
        self.out = io.StringIO()
        self._log = EventLog(self.out, policy, now_us)

    def handle(self, event: Event) -> Effects:
        text = self._log.before(event)
        effects = super().handle(event)
        self._log.after(text, effects)
        return effects

    def collect(self, gateway: int, runs: TokenRuns | None = None) -> list[Update]:
        self._log.collected(gateway)
        return super().collect(gateway, runs)


@pytest.mark.parametrize("seed", range(len(ORDERS)))
def test_a_walk_replays_to_the_same_orders(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under every policy what the core does follows from what it was given, byte for byte."""
    monkeypatch.setattr("tests.scheduler.harness.Core", LoggedCore)
    core = Walk(seed).run(1200).core
    assert isinstance(core, LoggedCore)
    played = replay(core.out.getvalue().splitlines())
    assert played.difference == "" and played.events >= 1200 and played.orders > 100


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 120))
def test_long_walk(seed: int) -> None:
    Walk(seed).run(SOAK_EVENTS // 20)
