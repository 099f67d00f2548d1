"""What the headers of an HTTP request say: who asks, under which name, how urgent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeVar

from octavo.errors import InvalidRequest
from starlette.datastructures import Headers

from octavo_gateway.requests import EdgeContext, RequestParams

Said = TypeVar("Said", int, str)

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+=@-]{0,127}")


@dataclass(frozen=True, slots=True)
class CallHeaders:
    """The headers that Octavo reads, checked."""

    edge: EdgeContext
    request_id: str
    idempotency_key: str
    priority: int
    slo_class: str
    deadline_ms: int
    cache_off: bool

    def apply(self, params: RequestParams, number: int = 0, of: int = 1) -> RequestParams:
        """Fills in what headers decide; prompt `number` of several gets an id and a key of its own.

        Raises InvalidRequest when a header and a field of the body say different things.
        """
        suffix = f"-{number}" if of > 1 else ""
        params.request_id = self.request_id + suffix if self.request_id else ""
        params.idempotency_key = self.idempotency_key + suffix if self.idempotency_key else ""
        params.priority = _one_of("priority", params.priority, "X-Octavo-Priority", self.priority)
        params.slo_class = _one_of("slo_class", params.slo_class, "X-Octavo-Slo-Class", self.slo_class)
        params.deadline_ms = _one_of("deadline_ms", params.deadline_ms, "X-Octavo-Deadline-Ms", self.deadline_ms)
        params.cache_off |= self.cache_off
        return params


def _one_of(field: str, said: Said, header: str, headed: Said) -> Said:
    if said and headed and said != headed:
        raise InvalidRequest(f"{field}: {said!r} differs from {headed!r} of {header}; send one of them", field=field)
    return headed or said


def bearer(headers: Headers) -> str:
    """The API key of `Authorization: Bearer ...`; empty without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def read_headers(headers: Headers) -> CallHeaders:
    """Raises InvalidRequest naming the header at fault."""
    return CallHeaders(
        edge=EdgeContext("http", api_key=bearer(headers), traceparent=headers.get("traceparent", "")),
        request_id=_identifier(headers, "X-Request-Id"),
        idempotency_key=_identifier(headers, "Idempotency-Key"),
        priority=_integer(headers, "X-Octavo-Priority", -(2**31), 2**31 - 1),
        slo_class=_identifier(headers, "X-Octavo-Slo-Class"),
        deadline_ms=_integer(headers, "X-Octavo-Deadline-Ms", 1, 2**32 - 1),
        cache_off=_is_off(headers, "X-Octavo-Cache"),
    )


def _identifier(headers: Headers, name: str) -> str:
    value = headers.get(name, "").strip()
    if value and not _ID.fullmatch(value):
        raise InvalidRequest(f"{name}: use 1 to 128 letters, digits and ._:+=@-", field=name)
    return value


def _integer(headers: Headers, name: str, least: int, most: int) -> int:
    value = headers.get(name, "").strip()
    if not value:
        return 0
    if re.fullmatch(r"-?[0-9]{1,10}", value) and least <= int(value) <= most:
        return int(value)
    raise InvalidRequest(f"{name}: expected an integer from {least} to {most}", field=name)


def _is_off(headers: Headers, name: str) -> bool:
    value = headers.get(name, "").strip().lower()
    if value not in ("", "on", "off"):
        raise InvalidRequest(f"{name}: expected on or off", field=name)
    return value == "off"
