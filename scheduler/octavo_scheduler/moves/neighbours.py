"""How much workers of one host slow each other down: they may share its cores, its memory, its links.

A decode step is held against its prediction, apart for steps beside which another worker of the host had work, and for those beside
which none had. The cost model learns from both, so that only their ratio tells. Workers that share a kvstore are of one host.
"""

from __future__ import annotations

from octavo_scheduler.fleet import Worker

_EMA = 0.05
ENOUGH = 16
MOST = 0.9
MOST_HOSTS = 1024
"""Hosts come and go: of more, the longest known is forgotten."""


class _Pace:
    """Running means of observed over predicted time of decode steps."""

    __slots__ = ("alone", "alone_seen", "beside", "beside_seen")

    def __init__(self) -> None:
        self.alone = self.beside = 1.0
        self.alone_seen = self.beside_seen = 0


class Neighbours:
    """By host."""

    __slots__ = ("_of_host",)

    def __init__(self) -> None:
        self._of_host: dict[str, _Pace] = {}

    def observe(self, worker: Worker, host: list[Worker], ratio: float) -> None:
        """A step of decodes alone took `ratio` times what was predicted; `host`: the workers there, itself included."""
        busy = any(other.backlog and other is not worker for other in host)
        pace = self._of_host.get(worker.store_id)
        if pace is None:
            if len(self._of_host) >= MOST_HOSTS:
                del self._of_host[next(iter(self._of_host))]
            pace = self._of_host[worker.store_id] = _Pace()
        ratio = max(0.25, min(4.0, ratio))
        if busy:
            pace.beside_seen += 1
            pace.beside += max(_EMA, 1 / pace.beside_seen) * (ratio - pace.beside)
        else:
            pace.alone_seen += 1
            pace.alone += max(_EMA, 1 / pace.alone_seen) * (ratio - pace.alone)

    def taken_share(self, one: Worker, other: Worker) -> float:
        """Part of its time that `other` loses while `one` prefills; 0 when they share nothing, or too little is known."""
        pace = self._of_host.get(one.store_id)
        if one.store_id != other.store_id or pace is None or min(pace.beside_seen, pace.alone_seen) < ENOUGH:
            return 0.0
        return max(0.0, min(MOST, 1 - pace.alone / pace.beside))
