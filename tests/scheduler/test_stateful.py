"""The property test (over 5,000 events): hypothesis chooses the events, the chaos worker and the clients check every rule, all ends free."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from octavo_scheduler.beams.rule import BeamRule
from octavo_scheduler.policy import Policy
from octavo_scheduler.preloads import build
from octavo_scheduler.preloads.cache_events import (
    CacheEvicted,
    NamespaceRotated,
    PreloadPinned,
    PreloadPut,
    PreloadRemoved,
)

from tests.scheduler.chaos import ChaosWorker, sampling_of, tokens_of
from tests.scheduler.chaos_store import ChaosStore
from tests.scheduler.harness import Client, Simulation

BLOCK_TOKENS = 2
NUM_BLOCKS = 15


class CellMachine(RuleBasedStateMachine):
    """One small cell: two workers, a kvstore, two gateways, pools that are always short."""

    @initialize(
        seed=st.integers(0, 2**16),
        delay_us=st.sampled_from((0, 3000)),
        merge=st.sampled_from((1, 3)),
        order=st.sampled_from(("slo-fair", "fcfs", "priority", "sjf", "slo", "fair")),
        batching=st.sampled_from(("continuous", "static", "dynamic")),
        roles=st.sampled_from((("both", "both"), ("prefill", "decode"), ("prefill", "both"))),
    )
    def start(self, seed: int, delay_us: int, merge: int, order: str, batching: str, roles: tuple[str, str]) -> None:
        rng = Random(seed)
        policy = Policy(
            order=order,
            batching=batching,
            slo_classes={"default": {"ttft_ms": 20.0, "itl_p99_ms": 6.0}},
            max_num_seqs=3,
            max_num_batched_tokens=4,
            default_output_tokens=1,
            orphan_grace_us=100_000,
            registry_ttl_us=1_000_000,
            max_offload_blocks=2,
            max_losses=1000,
            load_path=("auto", "overlap", "load")[seed % 3],
            counterfactual_share=0.1 * (seed % 2),
            preload_reserve_tokens=1,
        )
        self.simulation = Simulation(rng, policy, delay_us)
        self.simulation.checked = True
        self.store = ChaosStore(rng)
        for number in range(2):
            worker = ChaosWorker(
                rng,
                f"w{number}",
                NUM_BLOCKS,
                BLOCK_TOKENS,
                max_seqs=3,
                store=self.store,
                max_merge=merge,
                role=roles[number],
            )
            self.simulation.add_worker(worker)
        for _ in range(2):
            self.simulation.add_gateway()
        self.simulation.add_store(self.store)

    def _gateway(self, number: int) -> int:
        return sorted(self.simulation.gateways)[number]

    def _live(self, number: int) -> list[Client]:
        live = [client for client in self.simulation.clients if not client.gone and not client.outcome]
        return [live[number % len(live)]] if live else []

    @rule(
        gateway=st.integers(0, 1),
        prefix=st.sampled_from(((), (1, 2, 3, 4), (1, 2, 3, 4, 5, 6))),
        tail=st.lists(st.integers(0, 9), min_size=1, max_size=4),
        max_tokens=st.integers(1, 18),
        n=st.sampled_from((1, 1, 2, 3)),
        stops=st.sampled_from(((), (7,))),
        deadline_us=st.sampled_from((0, 0, 50_000)),
        priority=st.sampled_from((0, 0, 2)),
        tenant=st.sampled_from(("default", "default", "other")),
        search=st.sampled_from((False, False, True)),
    )
    def submit(self, gateway: int, prefix: tuple[int, ...], tail: list[int], **options: Any) -> None:
        stops = list(options.pop("stops"))
        if options.pop("search"):
            options["beams"] = BeamRule(1 + len(tail) % options["n"], 1.0, bool(stops), tuple(stops))
        self.simulation.submit(
            self._gateway(gateway), [*prefix, *tail], options.pop("max_tokens"), stop_ids=stops, **options
        )

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.simulation.advance(2500)
            for link in self.simulation.links:
                self.simulation.run_link(link)

    @rule(number=st.integers(0, 9), reason=st.sampled_from(("client_cancel", "client_disconnect")))
    def cancel(self, number: int, reason: str) -> None:
        for client in self._live(number):
            self.simulation.cancel(client, reason)

    @rule(number=st.integers(0, 9))
    def stop_string(self, number: int) -> None:
        for client in self._live(number):
            if client.beams is None and client.got[0] and 0 not in client.ended and 0 not in client.cuts:
                self.simulation.stop_choice(client, 0, max(1, len(client.got[0]) - 1))

    @rule(gateway=st.integers(0, 1))
    def deliver(self, gateway: int) -> None:
        self.simulation.deliver(self._gateway(gateway))

    @rule(number=st.integers(0, 9), back=st.booleans(), expected_us=st.sampled_from((0, 5000)))
    def pause(self, number: int, back: bool, expected_us: int) -> None:
        ended = [client for client in self.simulation.clients if client.outcome == "finished" and not client.gone]
        ended = [client for client in ended if client.gateway in self.simulation.gateways]
        for client in ended[number : number + 1]:
            prompt = client.prompt + client.got[0] + [3]
            if not back:
                self.simulation.pause(client, "tool", expected_us)
            elif len(prompt) + 2 <= (NUM_BLOCKS - 1) * BLOCK_TOKENS:
                self.simulation.submit(client.gateway, prompt, 2, resumes=client.request_id)

    @rule(worker=st.integers(0, 1), dead=st.booleans())
    def cut_worker(self, worker: int, dead: bool) -> None:
        link = self.simulation.links[worker]
        if link.epoch:
            self.simulation.disconnect(link, dead)

    @rule(worker=st.integers(0, 1), backed=st.sampled_from((0, 1, 8, NUM_BLOCKS)))
    def back_pool(self, worker: int, backed: int) -> None:
        """So much of its pool has memory, as its next live list says."""
        self.simulation.links[worker].worker.backed_blocks = backed

    @rule(worker=st.integers(0, 1), deadline_us=st.sampled_from((-1, 0, 20_000)))
    def drain_worker(self, worker: int, deadline_us: int) -> None:
        """By its own signal (-1), or by an operator."""
        link = self.simulation.links[worker]
        if link.epoch and deadline_us < 0:
            link.worker.drain()
        elif link.epoch:
            self.simulation.drain(link, deadline_us)

    @rule(gateway=st.integers(0, 1), resubmit=st.booleans())
    def cut_gateway(self, gateway: int, resubmit: bool) -> None:
        lost = self.simulation.lose_gateway(self._gateway(gateway))
        new = self.simulation.add_gateway()
        for client in lost if resubmit else []:
            if not client.cuts:
                self.simulation.resubmit(client, new)

    @rule(lose=st.booleans())
    def store_events(self, lose: bool) -> None:
        if "host" in self.simulation.stores:
            self.store.evict_some()
            self.simulation.flush_store("host", lose)
        else:
            self.simulation.add_store(self.store)

    @rule()
    def kill_store(self) -> None:
        if "host" in self.simulation.stores:
            self.simulation.kill_store("host")

    @rule(prefix=st.sampled_from(((1, 2, 3, 4), (1, 2, 3, 4, 5, 6), (8, 9))), restored=st.booleans())
    def preload(self, prefix: tuple[int, ...], restored: bool) -> None:
        simulation = self.simulation
        cell, now = simulation.core.cell, simulation.now_us
        if not build.refusal(cell, "default", "p", len(prefix)):
            version = cell.caching.book.next_version("default", "p")
            put = PreloadPut(now, "default", "p", version, "raw", tokens_of([*prefix]), b"m", sampling_of([]))
            put.generation, put.restored = simulation.generation, restored
            simulation.feed(put)

    @rule(pinned=st.booleans())
    def pin_preload(self, pinned: bool) -> None:
        self.simulation.feed(PreloadPinned(self.simulation.now_us, "default", "p", pinned))

    @rule(whole=st.booleans())
    def evict(self, whole: bool) -> None:
        name = "" if whole else "p"
        self.simulation.feed(CacheEvicted(self.simulation.now_us, "default", name=name, tag=b"t"))

    @rule()
    def rotate(self) -> None:
        simulation = self.simulation
        simulation.generation += 1
        simulation.root = bytes([simulation.generation % 256]) * 32
        simulation.feed(NamespaceRotated(simulation.now_us, "default", simulation.generation, b"m", b"t"))

    @invariant()
    def nothing_leaks(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.check_integrity()

    def teardown(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.feed(PreloadRemoved(self.simulation.now_us, "default", "p"))
            self.simulation.settle()
            self.simulation.check_clean()


TestCellMachine = CellMachine.TestCase
TestCellMachine.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
