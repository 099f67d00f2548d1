"""The peers of this store: those that the settings name, and those that the scheduler tells of."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from octavo_kvstore.codecs.choice import LinkSpeed
from octavo_kvstore.peers.pieces import Ask, PeerStream

FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 30.0
"""After a failure a peer is not asked for a while, twice as long after each: a dead host must not cost every load."""

Dial = Callable[[str, Ask], PeerStream]
"""(address, what is asked) -> a stream that has been opened."""


class Peer:
    """One other kvstore."""

    def __init__(self, store_id: str, address: str) -> None:
        self.store_id = store_id
        self.address = address
        self.link = LinkSpeed()
        self.failures = 0
        self._quiet_until_s = 0.0

    def failed(self, now_s: float) -> None:
        """It did not answer, or wrongly."""
        self._quiet_until_s = now_s + min(MAX_PAUSE_S, FIRST_PAUSE_S * 2**self.failures)
        self.failures += 1

    def answered(self) -> None:
        """A block of it came whole."""
        self.failures = 0
        self._quiet_until_s = 0.0

    def answers(self, now_s: float) -> bool:
        """Whether it is worth asking."""
        return now_s >= self._quiet_until_s


class PeerBook:
    """Peers by store id. Used on the event loop alone."""

    def __init__(self, own_id: str, fixed: Mapping[str, str]) -> None:
        """`fixed`: store id -> address; they stay whatever the scheduler says, and their address wins."""
        self._own_id = own_id
        self._fixed = dict(fixed)
        self._peers: dict[str, Peer] = {}
        self.tell({})

    def tell(self, addresses: Mapping[str, str]) -> None:
        """The scheduler's whole list. A peer whose address stays keeps what was learnt of it."""
        wanted = {**addresses, **self._fixed}
        wanted.pop(self._own_id, None)
        for store_id in self._peers.keys() - wanted.keys():
            del self._peers[store_id]
        for store_id, address in wanted.items():
            known = self._peers.get(store_id)
            if known is None or known.address != address:
                self._peers[store_id] = Peer(store_id, address)

    def find(self, store_id: str) -> Peer | None:
        """The peer of this name."""
        return self._peers.get(store_id)

    def __len__(self) -> int:
        return len(self._peers)

    def all(self) -> list[Peer]:
        """Every peer."""
        return list(self._peers.values())
