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
from octavo_kvstore.metrics import StoreCollector
from octavo_kvstore.pins import PinTable
from octavo_kvstore.service import KvStoreServicer
from octavo_kvstore.store import Store
from octavo_kvstore.tiers.dram import DramTier
from octavo_kvstore.tiers.nvme import NvmeTier

PIN_EXPIRY_S = 0.5


def open_store(manifest: Manifest, run_dir: Path) -> Store:
    """The store that the manifest describes; a tier of 0 bytes is left out. Blocks while NVMe files are looked at.

    Raises OctavoError when the NVMe folder cannot be used.
    """
    cache, pins = manifest.cache, PinTable()
    dram = DramTier(cache.dram_bytes, pins.is_pinned) if "dram" in cache.tiers and cache.dram_bytes else None
    nvme = None
    if "nvme" in cache.tiers and cache.nvme_bytes:
        folder = Path(cache.nvme_path) if cache.nvme_path else run_dir / "nvme"
        nvme = NvmeTier(folder, cache.nvme_bytes, pins.is_pinned)
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
    host.log.info("listening on %s", address)
    host.set_state("serving")


async def _expire_pins(store: Store) -> None:
    while True:
        await asyncio.sleep(PIN_EXPIRY_S)
        store.expire_pins()


def main() -> int:
    """Runs the service; returns the exit code of the process."""
    return run_service("kvstore", setup, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
