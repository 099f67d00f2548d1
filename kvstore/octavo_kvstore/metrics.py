"""Prometheus metrics of the store, read from its own counters when they are scraped; names stand in instruments.py."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.rpc.instruments import family
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from octavo_kvstore.instruments import CODING, PREFIX, READS, REMOTE, STORE, TIERS
from octavo_kvstore.store import Store


class StoreCollector(Collector):
    """Registers one store with a `prometheus_client` registry; a scrape takes one snapshot per tier."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterable[Metric]:
        tiers = self._store.tier_stats()
        for item in TIERS:
            shown = family(item)
            for tier in tiers:
                shown.add_metric([tier.name], getattr(tier, item.name.removeprefix(f"{PREFIX}tier_")))
            yield shown
        figures = self._store.counters()
        for item in STORE + READS + CODING + REMOTE:
            shown = family(item)
            name = item.name.removeprefix(PREFIX)
            if item in STORE or name in figures:  # a store without arena, codec or peers has no such figures
                shown.add_metric([], figures[name])
                yield shown
