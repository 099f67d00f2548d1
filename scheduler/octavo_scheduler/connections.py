"""One object per open stream: what is to be written next, and whether the stream must close. Writers empty it."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from dataclasses import dataclass

from octavo.rpc.flag import Flag

from octavo_scheduler.orders import Admit, Forget, Keep, Order


def fold_epoch(scheduler_boot_id: str, worker_boot_id: str, connection: int) -> int:
    """(scheduler boot, worker boot, connection number) folded into a non-zero u64."""
    text = f"{scheduler_boot_id}\0{worker_boot_id}\0{connection}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") | 1


class Connection:
    """A stream's two signals: something is to be written, and it must close."""

    def __init__(self) -> None:
        self.wake = Flag()
        self.closed = asyncio.Event()
        self.why = ""

    def close(self, why: str) -> None:
        """Asks the stream's handler to end it; the first reason wins."""
        if not self.closed.is_set():
            self.why = why
            self.closed.set()
            self.wake.set()


class WorkerConnection(Connection):
    """A worker's stream in one epoch."""

    def __init__(self, epoch: int, worker_id: str) -> None:
        super().__init__()
        self.epoch = epoch
        self.worker_id = worker_id
        self.orders: list[Order] = []
        self.admitted_us: dict[int, int] = {}  # sequence whose Admit is not written yet -> when it was decided

    def send(self, orders: list[Order], now_us: int) -> None:
        """Adds orders, decided at `now_us`, to what the writer takes next."""
        self.orders.extend(orders)
        for order in orders:
            if isinstance(order, Admit):
                self.admitted_us[order.seq] = now_us
        self.wake.set()


class GatewayConnection(Connection):
    """A gateway's stream; its backlog lives in the core's cursors."""

    def __init__(self, number: int, gateway_id: str) -> None:
        super().__init__()
        self.number = number
        self.gateway_id = gateway_id
        self.welcome_due = True
        self.load_due = False


@dataclass(frozen=True, slots=True)
class TierFill:
    """How full a tier of a kvstore is, and how it answers."""

    name: str
    capacity_bytes: int
    used_bytes: int
    keys: int
    hits: int
    misses: int


MAX_HINTS = 64
"""Hints that wait for a store's stream; older ones are of no use any more."""


class StoreConnection(Connection):
    """A kvstore's stream."""

    def __init__(self, number: int, store_id: str) -> None:
        super().__init__()
        self.number = number
        self.store_id = store_id
        self.inventory_due = False
        self.orders: list[Forget | Keep] = []
        self.peer_address = ""
        self.peers_due = True
        self.tiers: list[TierFill] = []
        self.prefetch: deque[list[bytes]] = deque(maxlen=MAX_HINTS)
