"""The idempotency registry: (tenant, request id or key) -> the live request or its stored result.

Finished requests stay for a time and within bounded bytes, oldest out first. It outlives gateways, so a retry that
lands on another gateway finds the generation that already runs.
"""

from __future__ import annotations

from collections import OrderedDict

from octavo_scheduler.request import Request

Name = tuple[str, str, str]  # tenant, "id" or "key", value


class Registry:
    """Names of live and stored requests."""

    __slots__ = ("_by_name", "_max_bytes", "_stored", "_ttl_us", "stored_bytes")

    def __init__(self, ttl_us: int, max_bytes: int) -> None:
        self._ttl_us = ttl_us
        self._max_bytes = max_bytes
        self._by_name: dict[Name, Request] = {}
        self._stored: OrderedDict[Request, tuple[int, int]] = OrderedDict()  # -> (ended_us, bytes)
        self.stored_bytes = 0

    def find(self, tenant: str, request_id: str, idempotency_key: str = "") -> Request | None:
        """The request of this id, or of this idempotency key."""
        if request_id and (found := self._by_name.get((tenant, "id", request_id))):
            return found
        return self._by_name.get((tenant, "key", idempotency_key)) if idempotency_key else None

    def add(self, request: Request) -> None:
        """Names a live request; one that held its names before is forgotten."""
        if not request.idempotency_key and (request.tenant, "id", request.request_id) not in self._by_name:
            self._by_name[request.tenant, "id", request.request_id] = request
            request.registered = True
            return
        for name in _names(request):
            old = self._by_name.get(name)
            if old is not None and old is not request:
                self.drop(old)
            self._by_name[name] = request
        request.registered = True

    def store(self, request: Request, now_us: int) -> None:
        """Keeps an ended request for replay, and lets the oldest go when there are too many bytes."""
        size = request.size_bytes()
        self._stored[request] = (now_us, size)
        self.stored_bytes += size
        while self.stored_bytes > self._max_bytes and self._stored:
            self.drop(next(iter(self._stored)))

    def drop(self, request: Request) -> None:
        """Forgets a request's names and result; a live request runs on, unnamed."""
        for name in _names(request):
            if self._by_name.get(name) is request:
                del self._by_name[name]
        stored = self._stored.pop(request, None)
        if stored is not None:
            self.stored_bytes -= stored[1]
        request.registered = False
        request.retire_if_done()

    def expire(self, now_us: int) -> int:
        """Drops results older than the limit; returns when the next one is due, or 0."""
        while self._stored:
            request, (ended_us, _size) = next(iter(self._stored.items()))
            if ended_us + self._ttl_us > now_us:
                return ended_us + self._ttl_us
            self.drop(request)
        return 0

    def of_tenant(self, tenant: str) -> list[Request]:
        """Every named request of a tenant, each once, in the order of their submission."""
        named = (request for (owner, _kind, _value), request in self._by_name.items() if owner == tenant)
        return sorted({id(request): request for request in named}.values(), key=lambda request: request.submitted_us)

    def live(self) -> list[Request]:
        """Named requests without an outcome, each once."""
        return list({id(request): request for request in self._by_name.values() if request.live}.values())

    def __len__(self) -> int:
        return len(self._by_name)


def _names(request: Request) -> list[Name]:
    names = [(request.tenant, "id", request.request_id)]
    if request.idempotency_key:
        names.append((request.tenant, "key", request.idempotency_key))
    return names
