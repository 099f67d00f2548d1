"""Prometheus metrics of the store, read from its own counters when they are scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from octavo_kvstore.store import Store
from octavo_kvstore.tier import TierStats

_GAUGES: dict[str, tuple[str, Callable[[TierStats], int]]] = {
    "octavo_kvstore_tier_capacity_bytes": ("Bytes a tier may hold.", lambda tier: tier.capacity_bytes),
    "octavo_kvstore_tier_used_bytes": ("Bytes a tier holds.", lambda tier: tier.used_bytes),
    "octavo_kvstore_tier_keys": ("Blocks a tier holds.", lambda tier: tier.keys),
}
_COUNTERS: dict[str, tuple[str, Callable[[TierStats], int]]] = {
    "octavo_kvstore_tier_hits": ("Blocks found and intact.", lambda tier: tier.hits),
    "octavo_kvstore_tier_misses": ("Blocks not found, or not intact.", lambda tier: tier.misses),
    "octavo_kvstore_tier_corrupt": ("Records that failed their check and were forgotten.", lambda tier: tier.corrupt),
    "octavo_kvstore_tier_evicted": ("Blocks evicted for others.", lambda tier: tier.evicted),
    "octavo_kvstore_tier_refused": ("Blocks for which no room could be made.", lambda tier: tier.refused),
}
_STORE_GAUGES = {
    "held_keys": "Blocks held in any tier.",
    "leases": "Transfers that pin blocks.",
    "write_behind_bytes": "Payload bytes waiting for the NVMe tier.",
}


class StoreCollector(Collector):
    """Registers one store with a `prometheus_client` registry; a scrape takes one snapshot per tier."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterable[Metric]:
        tiers = self._store.tier_stats()
        for name, (text, read) in _GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=["tier"])
            for tier in tiers:
                gauge.add_metric([tier.name], read(tier))
            yield gauge
        for name, (text, read) in _COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=["tier"])
            for tier in tiers:
                counter.add_metric([tier.name], read(tier))
            yield counter
        for name, value in self._store.counters().items():
            if name in _STORE_GAUGES:
                yield GaugeMetricFamily(f"octavo_kvstore_{name}", _STORE_GAUGES[name], value=value)
            else:
                yield CounterMetricFamily(f"octavo_kvstore_{name}", f"Store counter {name}.", value=value)
