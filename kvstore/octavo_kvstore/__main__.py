"""`python -m octavo_kvstore`: opens the tiers, serves KvStoreService, announces itself to the scheduler."""

from __future__ import annotations

import asyncio
import socket
import sys
import uuid
from pathlib import Path

from octavo.manifest import Manifest
from octavo.rpc.channels import open_channel
from octavo.rpc.host import Host, run_service
from octavo.v1 import kvstore_pb2, kvstore_pb2_grpc

from octavo_kvstore.announce import Announcer, Identity
from octavo_kvstore.limits import limits_of
from octavo_kvstore.metrics import StoreCollector
from octavo_kvstore.pins import PinTable
from octavo_kvstore.service import KvStoreServicer
from octavo_kvstore.store import Store
from octavo_kvstore.tiers.heap import HeapTier
from octavo_kvstore.tiers.lmdb_values import LmdbTier
from octavo_kvstore.tiers.slab import SlabTier

PIN_EXPIRY_S = 0.5
SWEEP_S = 5.0
PIN_FILE = "pins.bin"


def open_store(manifest: Manifest, run_dir: Path) -> Store:
    """The store that the manifest describes; a tier of 0 bytes is left out. Blocks while NVMe files are looked at.

    Raises OctavoError when the NVMe folder cannot be used.
    """
    cache = manifest.cache
    secret = manifest.deployment.secret.encode()
    folder = Path(cache.nvme_path) if cache.nvme_path else run_dir / "nvme"
    has_nvme = "nvme" in cache.tiers and cache.nvme_bytes > 0
    pins = PinTable(folder / PIN_FILE if has_nvme else None)
    dram = None
    if "dram" in cache.tiers and cache.dram_bytes:
        dram = HeapTier(cache.dram_bytes, pins.is_pinned, limits_of(cache, secret, "dram"))
    nvme = None
    if has_nvme:
        backend = SlabTier if cache.nvme_backend == "slab" else LmdbTier
        nvme = backend(folder, cache.nvme_bytes, pins.is_pinned, limits=limits_of(cache, secret, "nvme"))
    return Store(dram, nvme, pins, manifest.kvstore.write_behind_bytes)


async def setup(host: Host) -> None:
    """Registers the service and starts it; ready once the tiers are open."""
    settings = host.manifest.kvstore
    store = await asyncio.to_thread(open_store, host.manifest, host.run_dir)
    identity = Identity(settings.store_id or socket.gethostname(), uuid.uuid4().hex, "")
    servicer = KvStoreServicer(store, identity.store_id, identity.boot_id)
    kvstore_pb2_grpc.add_KvStoreServiceServicer_to_server(servicer, host.server)  # type: ignore[no-untyped-call]
    host.announce(kvstore_pb2.DESCRIPTOR)
    host.metrics.register(StoreCollector(store))
    host.serve_metrics(settings.metrics_listen)

    async def close() -> None:
        await asyncio.to_thread(store.close)  # calls that still come miss, or are refused, until the server stops

    host.on_drain(close)
    address = await host.listen(settings.listen)
    if settings.scheduler:
        identity = Identity(identity.store_id, identity.boot_id, address)
        host.spawn(Announcer(store, identity, settings.scheduler, open_channel).run(), "announce")
    host.spawn(_expire_pins(store), "pins")
    host.spawn(_sweep(store), "sweep")
    host.log.info("listening on %s", address)
    host.set_state("serving")


async def _expire_pins(store: Store) -> None:
    while True:
        await asyncio.sleep(PIN_EXPIRY_S)
        store.expire_pins()


async def _sweep(store: Store) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        await asyncio.to_thread(store.sweep)


def main() -> int:
    """Runs the service; returns the exit code of the process."""
    return run_service("kvstore", setup, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
