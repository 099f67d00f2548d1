"""What a bench asks of a running kvstore, and the cold state it makes of its files."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import grpc
from octavo.errors import OctavoError
from octavo.v1 import kvstore_pb2, kvstore_pb2_grpc

from octavo_cli.state import ClusterState

START_TIMEOUT_S = 30.0
SETTLE_TIMEOUT_S = 60.0
POLL_S = 0.02
QUIET_S = 0.3
"""No block has come for so long: the worker has no more to hand down."""


class StoreProbe:
    """Counters of a kvstore. Raises OctavoError when it does not answer."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.insecure_channel(address)
        self._stub = kvstore_pb2_grpc.KvStoreServiceStub(self._channel)  # type: ignore[no-untyped-call]

    @classmethod
    def of_cluster(cls, state: ClusterState) -> Self:
        """The cluster's own."""
        return cls(next(service.address for service in state.services if service.kind == "kvstore"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._channel.close()

    def figures(self) -> dict[str, float]:
        """Its counters, and `dram_hits`, `nvme_hits`, `nvme_keys` of its tiers."""
        try:
            stats = self._stub.GetStats(kvstore_pb2.GetStatsRequest(), timeout=10.0)
        except grpc.RpcError as error:
            raise OctavoError(f"the kvstore at {self.address} does not answer: {error}") from error
        figures = dict(stats.counters)
        for tier in stats.tiers:
            figures |= {f"{tier.name}_hits": tier.hits, f"{tier.name}_keys": tier.keys}
        return figures

    def settle(self, least_keys: int = 0) -> None:
        """Waits until so many blocks have arrived, no more come, and all are written down. Raises OctavoError after a minute."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        keys, since = -1.0, time.monotonic()
        while time.monotonic() < deadline:
            figures = self.figures()
            if figures["held_keys"] != keys:
                keys, since = figures["held_keys"], time.monotonic()
            if keys >= least_keys and not figures["write_behind_bytes"] and time.monotonic() - since > QUIET_S:
                return
            time.sleep(POLL_S)
        raise OctavoError(f"the kvstore holds {keys:.0f} blocks after a minute, expected {least_keys}")


@contextlib.contextmanager
def lone_store(folder: Path, flags: Sequence[str]) -> Iterator[StoreProbe]:
    """A kvstore without a scheduler, on a socket in the folder. Raises OctavoError when it does not start."""
    address = f"unix:{folder}/kvstore.sock"
    own = ["--kvstore.listen", address, "--kvstore.scheduler", "", "--kvstore.metrics_listen", ""]
    command = [sys.executable, "-m", "octavo_kvstore", "--deployment.run_dir", str(folder), *own, *flags]
    with (folder / "kvstore.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        with StoreProbe(address) as probe:
            _wait(process, probe, folder / "kvstore.log")
            yield probe
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait(process: subprocess.Popen[bytes], probe: StoreProbe, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            probe.figures()
            return
        except OctavoError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise OctavoError(f"the kvstore did not start: {log.read_text(errors='replace')[-500:]}") from error
            time.sleep(POLL_S)


def drop_page_cache(folder: Path) -> None:
    """The files of an NVMe tier are on disk, and nothing of them is in the page cache afterwards."""
    for path in (*folder.rglob("slab-*.bin"), *folder.rglob("data.mdb")):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def cold_read_mb_per_s(path: Path, size: int) -> float:
    """A plain read of a file of `size` bytes whose pages are not cached; makes the file when it is not there. MB are 10^6."""
    if not path.exists():
        path.write_bytes(os.urandom(size))
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        buffer = bytearray(size)
        began_ns = time.perf_counter_ns()
        at = 0
        while at < size:
            at += os.preadv(fd, [memoryview(buffer)[at : at + 2**23]], at)
        return size * 1000 / (time.perf_counter_ns() - began_ns)
    finally:
        os.close(fd)
