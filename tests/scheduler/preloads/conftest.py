"""One calm worker, one gateway, and what tests of preloads ask of them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from octavo.keys import namespace_mac, root_of
from octavo_scheduler.policy import Policy
from octavo_scheduler.preloads import build
from octavo_scheduler.preloads.book import Preload
from octavo_scheduler.preloads.cache_events import CacheResult, PreloadPut
from octavo_scheduler.preloads.rule import CacheRule

from tests.scheduler.chaos import ChaosWorker, sampling_of, tokens_of
from tests.scheduler.chaos_store import ChaosStore
from tests.scheduler.harness import Client, Simulation

BLOCK = 4
ROOT_KEY = b"r" * 32


class Shop:
    """A cell with chaos workers that behave; prompts are in the namespace of tenant `default`."""

    def __init__(self, workers: int = 1, store: bool = False, num_blocks: int = 65, **policy: Any) -> None:
        rng = Random(7)
        given: dict[str, Any] = {"preload_reserve_tokens": 8, "default_output_tokens": 4, "registry_ttl_us": 10**9}
        self.cell_policy = Policy(**(given | policy))
        self.simulation = Simulation(rng, self.cell_policy, delay_us=0)
        self.store = ChaosStore(rng) if store else None
        self.links = [
            self.simulation.add_worker(
                ChaosWorker(rng, f"w{n}", num_blocks, BLOCK, store=self.store, calm=True, max_model_len=120)
            )
            for n in range(workers)
        ]
        if self.store is not None:
            self.simulation.add_store(self.store)
        self.gateway = self.simulation.add_gateway()
        self.simulation.root = self.root(0)

    def root(self, generation: int, salt: str = "") -> bytes:
        return root_of(ROOT_KEY, namespace_mac(b"secret", "default", generation), salt)

    @property
    def cell(self) -> Any:
        return self.simulation.core.cell

    @property
    def worker(self) -> Any:
        return next(iter(self.cell.fleet.workers.values()))

    @property
    def result(self) -> CacheResult:
        result: CacheResult = self.cell.caching.result
        return result

    def put(self, name: str, prompt: list[int], run: bool = True, **given: Any) -> Preload:
        book, now = self.cell.caching.book, self.simulation.now_us
        version = book.next_version("default", name)
        mac = namespace_mac(b"secret", "default", self.simulation.generation)
        event = PreloadPut(now, "default", name, version, "raw", tokens_of(prompt), mac, sampling_of([]))
        event.generation = self.simulation.generation
        for field, value in given.items():
            setattr(event, field, value)
        self.feed(event)
        if run:
            self.run()
        found = book.pending.get(("default", name)) or book.active.get(("default", name))
        assert found is not None
        return found  # type: ignore[no-any-return]

    def feed(self, event: Any) -> Any:
        return self.simulation.feed(event)

    def ask(self, prompt: list[int], max_tokens: int = 2, run: bool = True, **given: Any) -> Client:
        client = self.simulation.submit(self.gateway, prompt, max_tokens, **given)
        if run:
            self.run()
        return client

    def rule(self, **given: Any) -> CacheRule:
        return CacheRule(generation=self.simulation.generation, **given)

    def run(self) -> None:
        self.simulation.settle()
        self.simulation.check_integrity()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.simulation.advance(2000)
            for link in self.simulation.links:
                self.simulation.run_link(link)
            self.simulation.deliver(self.gateway)

    def wait_us(self, microseconds: int) -> None:
        """Time passes in small steps, so that no worker counts as silent."""
        for _ in range(max(1, microseconds // 50_000)):
            self.simulation.advance(50_000)
            for link in self.simulation.links:
                self.simulation.run_link(link)

    def refusal(self, name: str, tokens: int) -> str:
        return build.refusal(self.cell, "default", name, tokens)


@pytest.fixture
def make_shop() -> type[Shop]:
    return Shop
