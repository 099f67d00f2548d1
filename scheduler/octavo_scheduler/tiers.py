"""Below the pool: the directory of what each kvstore holds (a hint), and transfers between pool and store.

The kvstore decides what it holds. Its numbered changes feed the directory; a gap means the directory is dropped and a
full inventory asked for. A wrong hint costs a short load or a missed one, never a wrong token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from octavo_scheduler.orders import LoadSource
from octavo_scheduler.policy import SECOND_US
from octavo_scheduler.request import Handoff, Request
from octavo_scheduler.request import Sequence as RunningSequence

Purpose = Literal["write-behind", "admission", "swap", "handoff", "pause", "chunk"]
"""Why a copy was ordered."""

STUCK_PAUSE_US = 5 * SECOND_US
"""Else a stopped kvstore would cost every request with a known prefix the whole load limit."""


class Directory:
    """Keys that one kvstore is believed to hold."""

    __slots__ = (
        "_keys",
        "_parts",
        "_quiet_until_us",
        "connection",
        "fetches",
        "next_number",
        "reachable",
        "store_id",
        "synced",
    )

    def __init__(self, store_id: str, connection: int, *, reachable: bool = False, fetches: bool = False) -> None:
        self.store_id = store_id
        self.connection = connection
        self.reachable = reachable  # by kvstores of other hosts
        self.fetches = fetches  # from them
        self._keys: set[bytes] = set()
        self._parts: set[bytes] = set()
        self.synced = False
        self.next_number = 0
        self._quiet_until_us = 0

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    def run(self, keys: Sequence[bytes], start: int, limit: int) -> int:
        """How many keys from `start` on are held without a gap, up to index `limit`."""
        end = start
        while end < limit and keys[end] in self._keys:
            end += 1
        return end - start

    def change(self, first_number: int, changes: Sequence[tuple[bytes, bool]]) -> bool:
        """Applies numbered changes. False on a gap: the directory is unsynced until an inventory comes."""
        if not self.synced:
            return True  # the inventory on its way covers them, or a gap behind it is seen then
        end = first_number + len(changes)
        if first_number > self.next_number:
            self.synced = False
            self._keys.clear()
            self._parts.clear()
            return False
        for key, removed in changes[max(0, self.next_number - first_number) :]:
            if removed:
                self._keys.discard(key)
            else:
                self._keys.add(key)
        self.next_number = max(self.next_number, end)
        return True

    def inventory(self, number: int, keys: Sequence[bytes], last: bool) -> None:
        """One part of the full list; the last part makes the directory synced as of change `number`."""
        self._parts.update(keys)
        if last:
            self._keys, self._parts = self._parts, set()
            self.next_number = number + 1
            self.synced = True

    def stored(self, keys: Sequence[bytes]) -> None:
        """An offload said that these were taken."""
        self._keys.update(keys)

    def stuck(self, now_us: int) -> None:
        """A transfer ran into its limit without a block: nothing is asked of this store for a while."""
        self._quiet_until_us = now_us + STUCK_PAUSE_US

    def answers(self, now_us: int) -> bool:
        """Whether it is worth asking."""
        return now_us >= self._quiet_until_us

    def missed(self, keys: Sequence[bytes]) -> None:
        """A load said that these were not there."""
        self._keys.difference_update(keys)


@dataclass(slots=True, eq=False)
class Transfer:
    """A copy in flight; its hold on `blocks` ends only at transfer_done or with its worker."""

    xfer_id: int
    kind: Literal["load", "offload"]
    blocks: list[int]
    keys: list[bytes]
    started_us: int
    sequence: RunningSequence | None = None
    base_blocks: int = 0  # load: full blocks that were cached before it
    sources: list[LoadSource] = field(default_factory=list)
    order_number: int = 0  # of its order among the worker's
    purpose: Purpose = "write-behind"
    request: Request | None = None  # it holds on until this ends
    handoff: Handoff | None = None
    preload: str = ""  # chunk: the name of the preload whose blocks these are
    abandoned: bool = False  # its worker was told to end it: how far it came tells nothing of store and link

    @property
    def owner(self) -> Request | None:
        """Whose hold this is; write-behind belongs to nobody."""
        return self.sequence.choice.request if self.sequence is not None else self.request
