"""What a scrape of the store says."""

from __future__ import annotations

import prometheus_client
from octavo_kvstore.metrics import StoreCollector
from octavo_kvstore.pins import PinTable
from octavo_kvstore.store import Store
from octavo_kvstore.testing import LAYOUT, key_of, make_block
from octavo_kvstore.tiers.heap import HeapTier


def test_a_scrape_shows_tiers_and_store() -> None:
    registry = prometheus_client.CollectorRegistry()
    store = Store(HeapTier(100_000), None, PinTable())
    registry.register(StoreCollector(store))
    store.put(make_block(1))
    store.get(key_of(1), LAYOUT)
    store.get(key_of(2), LAYOUT)
    text = prometheus_client.generate_latest(registry).decode()
    for line in (
        'octavo_kvstore_tier_keys{tier="dram"} 1.0',
        'octavo_kvstore_tier_hits_total{tier="dram"} 1.0',
        'octavo_kvstore_tier_misses_total{tier="dram"} 1.0',
        'octavo_kvstore_tier_capacity_bytes{tier="dram"} 100000.0',
        "octavo_kvstore_held_keys 1.0",
        "octavo_kvstore_events_total 1.0",
    ):
        assert line in text.splitlines(), text
