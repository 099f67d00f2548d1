"""The facts of live and recently ended requests, kept for people who ask what a request did. Bounded; may be lost."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice

from octavo_scheduler.orders import Fact

MAX_REQUESTS = 1024
MAX_FACTS = 64
"""Of one request: what is preempted more often than that shows its beginning."""


class Journal:
    """Facts by request id as the gateway's stream names it, oldest request out first."""

    __slots__ = ("_ended", "_facts")

    def __init__(self) -> None:
        self._facts: OrderedDict[str, list[Fact]] = OrderedDict()
        self._ended: OrderedDict[str, Fact] = OrderedDict()

    def record(self, facts: Iterable[Fact]) -> None:
        """Keeps facts; a request of an id that ended before begins anew."""
        for fact in facts:
            name = str(fact.attributes["octavo.request_id"])
            if fact.name == "queue" and name in self._ended:
                self._facts.pop(name, None)
                self._ended.pop(name)
            kept = self._facts.setdefault(name, [])
            if len(kept) < MAX_FACTS:
                kept.append(fact)
            if fact.name == "request_end":
                self._ended.pop(name, None)
                self._ended[name] = fact
            while len(self._facts) > MAX_REQUESTS:
                oldest, _ = self._facts.popitem(last=False)
                self._ended.pop(oldest, None)

    def facts(self, request_id: str) -> list[Fact]:
        """What is known of a request, in order of the events; empty when nothing is."""
        return list(self._facts.get(request_id, ()))

    def end_of(self, request_id: str) -> Fact | None:
        """The `request_end` of a request that has ended."""
        return self._ended.get(request_id)

    def ended(self, most: int) -> Iterator[Fact]:
        """`request_end` facts, the latest first."""
        return islice(reversed(self._ended.values()), most)
