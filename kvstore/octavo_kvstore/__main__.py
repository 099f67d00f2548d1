"""`python -m octavo_kvstore`: opens the tiers, serves KvStoreService, announces itself to the scheduler."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import uuid
from pathlib import Path

from octavo.errors import OctavoError
from octavo.manifest import Manifest
from octavo.rpc.channels import open_channel
from octavo.rpc.host import Host, run_service
from octavo.v1 import kvstore_pb2, kvstore_pb2_grpc

from octavo_kvstore.announce import Announcer, Identity
from octavo_kvstore.arena_desk import ArenaDesk
from octavo_kvstore.arena_file import ArenaFolder
from octavo_kvstore.coding import Coding
from octavo_kvstore.fetch_link import PeerChannels
from octavo_kvstore.limits import limits_of
from octavo_kvstore.metrics import StoreCollector
from octavo_kvstore.peers.book import PeerBook
from octavo_kvstore.pins import PinTable
from octavo_kvstore.prefetcher import Prefetcher
from octavo_kvstore.serve_link import PeerServicer
from octavo_kvstore.service import KvStoreServicer
from octavo_kvstore.store import Store
from octavo_kvstore.tier import Tier
from octavo_kvstore.tiers.arena import ArenaTier
from octavo_kvstore.tiers.heap import HeapTier
from octavo_kvstore.tiers.lmdb_values import LmdbTier
from octavo_kvstore.tiers.remote import RemoteTier
from octavo_kvstore.tiers.slab import SlabTier

PIN_EXPIRY_S = 0.5
SWEEP_S = 5.0
PIN_FILE = "pins.bin"


def open_store(
    manifest: Manifest, run_dir: Path, folder_of_arena: ArenaFolder | None = None, coding: Coding | None = None
) -> Store:
    """The store that the manifest describes; a tier of 0 bytes is left out. Blocks while NVMe files are looked at.

    Raises OctavoError when the NVMe folder or the keyring cannot be used.
    """
    cache = manifest.cache
    secret = manifest.deployment.secret.encode()
    coding = coding or Coding(cache, secret)
    folder = Path(cache.nvme_path) if cache.nvme_path else run_dir / "nvme"
    has_nvme = "nvme" in cache.tiers and cache.nvme_bytes > 0
    pins = PinTable(folder / PIN_FILE if has_nvme else None)
    dram: Tier | None = None
    if "dram" in cache.tiers and cache.dram_bytes:
        limits = limits_of(cache, secret, "dram")
        if folder_of_arena is not None:
            dram = ArenaTier(folder_of_arena, cache.dram_bytes, pins.is_pinned, limits)
        else:
            dram = HeapTier(cache.dram_bytes, pins.is_pinned, limits)
    nvme: Tier | None = None
    if has_nvme:
        backend = SlabTier if cache.nvme_backend == "slab" else LmdbTier
        nvme = backend(folder, cache.nvme_bytes, pins.is_pinned, limits=limits_of(cache, secret, "nvme"))
        nvme = coding.wrap(nvme, folder)
    shared = open_shared(manifest, pins, coding) if "valkey" in cache.tiers and cache.valkey_bytes else None
    store = Store(dram, nvme, pins, manifest.kvstore.write_behind_bytes, shared=shared)
    store.more_counters.append(coding.counters)
    return store


def open_shared(manifest: Manifest, pins: PinTable, coding: Coding) -> Tier:
    """The valkey tier. Raises OctavoError when its client is not installed or the URL is none; an absent server is looked for again."""
    try:
        from octavo_kvstore.tiers.valkey import ValkeyKeyring, ValkeyTier, connect
    except ModuleNotFoundError as error:
        raise OctavoError(
            f"cache.tiers: valkey needs its client ({error}): pip install 'octavo-kvstore[valkey]'", field="cache.tiers"
        ) from error
    cache = manifest.cache
    client = connect(cache.valkey_url, cache.valkey_timeout_s)
    limits = limits_of(cache, manifest.deployment.secret.encode(), "valkey")
    return coding.wrap(ValkeyTier(client, cache.valkey_bytes, pins.is_pinned, limits), ValkeyKeyring(client))


def open_arena(manifest: Manifest, log: logging.Logger) -> ArenaFolder | None:
    """The folder of the arena; None when the manifest names none or this host has no such folder with room for the tier: payload
    then travels in messages, and one warning says how to change that."""
    path = manifest.kvstore.arena_path
    if not path or "dram" not in manifest.cache.tiers or not manifest.cache.dram_bytes:
        return None
    if not Path(path).is_dir():
        log.warning("kvstore.arena_path %s: no such folder; blocks travel in messages", path)
        return None
    try:
        return ArenaFolder(Path(path), manifest.cache.dram_bytes)
    except OctavoError as error:
        log.warning("%s; until then blocks travel in messages", error)
        return None


async def setup(host: Host) -> None:
    """Registers the service and starts it; ready once the tiers are open."""
    settings = host.manifest.kvstore
    folder = open_arena(host.manifest, host.log)
    coding = Coding(host.manifest.cache, host.manifest.deployment.secret.encode())
    store = await asyncio.to_thread(open_store, host.manifest, host.run_dir, folder, coding)
    desk = ArenaDesk(store, store.arena, folder) if store.arena is not None and folder is not None else None
    if desk is not None:
        store.more_counters.append(desk.ways.figures)
    identity = Identity(settings.store_id or socket.gethostname(), uuid.uuid4().hex, "")
    channels = PeerChannels(open_channel)
    book = PeerBook(identity.store_id, settings.peers)
    remote = RemoteTier(book, channels.dial, coding.chooser) if "remote" in host.manifest.cache.tiers else None
    servicer = KvStoreServicer(store, identity.store_id, identity.boot_id, desk, shapes=coding.shapes, remote=remote)
    kvstore_pb2_grpc.add_KvStoreServiceServicer_to_server(servicer, host.server)  # type: ignore[no-untyped-call]
    host.announce(kvstore_pb2.DESCRIPTOR)
    host.metrics.register(StoreCollector(store))
    host.serve_metrics(settings.metrics_listen)

    prefetcher = Prefetcher(store)

    async def close() -> None:
        await channels.close()
        await asyncio.to_thread(prefetcher.close)
        await asyncio.to_thread(store.close)  # calls that still come miss, or are refused, until the server stops

    host.on_drain(close)
    address = await host.listen(settings.listen)
    peer_address = await listen_for_peers(host, store, coding) if settings.peer_listen else ""
    if remote is not None:
        store.more_counters.append(remote.figures)
    if settings.scheduler:
        identity = Identity(identity.store_id, identity.boot_id, address, peer_address)
        announcer = Announcer(
            store,
            identity,
            settings.scheduler,
            open_channel,
            book=book if remote is not None else None,
            codec=coding.chooser.figures,
            on_hint=prefetcher.hint,
        )
        host.spawn(announcer.run(), "announce")
    host.spawn(_expire_pins(store, desk, host.log), "pins")
    host.spawn(_sweep(store), "sweep")
    host.log.info("listening on %s", address)
    host.set_state("serving")


async def listen_for_peers(host: Host, store: Store, coding: Coding) -> str:
    """Serves other hosts on an address of their own, which offers Fetch alone; what they are to be told of it."""
    servicer = PeerServicer(store, coding.shapes, coding.chooser)
    store.more_counters.append(servicer.figures)
    bound = await host.listen_beside(host.manifest.kvstore.peer_listen, servicer.add_to)
    host.urls["peers"] = bound
    name, _, port = bound.rpartition(":")
    # who listens on all its addresses does not know which one others see: the scheduler does
    return f":{port}" if name in ("0.0.0.0", "[::]") else bound


async def _expire_pins(store: Store, desk: ArenaDesk | None, log: logging.Logger) -> None:
    while True:
        await asyncio.sleep(PIN_EXPIRY_S)
        store.expire_pins()
        if desk is not None and (slots := desk.reap()):
            log.warning("%d arena slots came back from workers that died", slots)


async def _sweep(store: Store) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        await asyncio.to_thread(store.sweep)


def main() -> int:
    """Runs the service; returns the exit code of the process."""
    return run_service("kvstore", setup, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
