"""What no setting may be, whatever it is for: numbers that no clock, counter or message can hold, addresses that are none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

MOST_COUNT: Final = 2**31 - 1
"""Counts travel as 32-bit numbers."""
MOST_BYTES: Final = 2**60
MOST_S: Final = 1e9
"""Thirty years, in seconds: in microseconds it still fits into 64 bits, and a float still tells them apart."""
MOST: Final[Mapping[str, float]] = {
    "scheduler.max_num_seqs": 65_536,  # a slot of the worker each
    "scheduler.max_overcommit": 1e6,
    "engine.threads": 4096,
    "deployment.compute_nice": 19,  # nice(2)'s largest
    "gpuworker.merge_reports_ms": 100,  # a worker that runs sequences reports so often at least
}
"""Of single keys; the others go by the unit that ends their name."""
MOST_CHARS: Final = 4096
"""Of a text; no path or address is longer."""
LISTEN: Final = ("scheduler.listen", "gpuworker.listen", "kvstore.listen", "gateway.grpc_listen")
LISTEN_LOCAL: Final = ("scheduler.local_listen",)
LISTEN_TCP: Final = ("gateway.http_listen",)
LISTEN_IF_GIVEN: Final = (
    "scheduler.metrics_listen",
    "gpuworker.metrics_listen",
    "kvstore.metrics_listen",
    "kvstore.peer_listen",
)
DIAL: Final = ("gpuworker.scheduler", "gateway.scheduler")
DIAL_IF_GIVEN: Final = ("kvstore.scheduler", "gpuworker.kvstore")
_HOST_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})")
_RESOLVED: Final = re.compile(r"(?:dns|ipv4|ipv6|unix-abstract|vsock|xds):\S+")
"""A target with a scheme, which gRPC resolves by itself."""


def number_problem(key: str, value: Any) -> str:
    """What is wrong with a number that is too large for anything; empty when nothing is, or it is no number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    unit = next((most for end, most in _MOST_BY_UNIT.items() if key.endswith(end)), MOST_COUNT)
    most = MOST.get(key, unit)
    return f"{value!r} is too large; give at most {most:.15g}" if value > most else ""


_MOST_BY_UNIT: Final = {"_bytes": MOST_BYTES, "_us": MOST_COUNT, "_ms": MOST_S * 1e3, "_s": MOST_S}


def text_problem(value: Any) -> str:
    """What is wrong with a text, or with one in a list or table: no name, path or address has control characters."""
    for text in _texts(value):
        if any(char < " " or char == "\x7f" or "\ud800" <= char <= "\udfff" for char in text):
            return f"{text[:40]!r} has a character that cannot be printed; remove it"
        if len(text) > MOST_CHARS:
            return f"{len(text)} characters; use at most {MOST_CHARS}"
    return ""


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(name)
            yield from _texts(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from _texts(item)


def address_problem(key: str, value: str) -> str:
    """What is wrong with an address to listen on or to dial; empty when nothing is, or the key is for none."""
    if key in LISTEN_LOCAL:
        fits = not value or (value.startswith("unix:") and len(value) > len("unix:"))
        return "" if fits else f"{value[:80]!r} is no address of this host alone; write unix:PATH"
    listens = key in LISTEN or key in LISTEN_TCP or key in LISTEN_IF_GIVEN
    if not listens and key not in DIAL and key not in DIAL_IF_GIVEN:
        return ""
    if not value and (key in LISTEN_IF_GIVEN or key in DIAL_IF_GIVEN):
        return ""
    tcp_only = key in LISTEN_TCP or key in LISTEN_IF_GIVEN
    return listen_problem(value, tcp_only=tcp_only) if listens else dial_problem(value)


def listen_problem(address: str, *, tcp_only: bool = False) -> str:
    """Empty for HOST:PORT with a port of 0 (any) to 65535, and for unix:PATH unless `tcp_only`."""
    if not tcp_only and address.startswith("unix:") and len(address) > len("unix:"):
        return ""
    wanted = "HOST:PORT" if tcp_only else "HOST:PORT or unix:PATH"
    found = _HOST_PORT.fullmatch(address)
    if found is None:
        return f"{address[:80]!r} is no address; write {wanted}, as 127.0.0.1:0"
    if int(found[2]) > 65_535:
        return f"{address[:80]!r} has no such port; use 0 (any) to 65535"
    return ""


def dial_problem(address: str) -> str:
    """Empty for HOST:PORT, unix:PATH, and what gRPC resolves, as dns:///scheduler:50051."""
    if _RESOLVED.fullmatch(address):
        return ""
    if problem := listen_problem(address):
        return problem
    return f"{address[:80]!r} has no port that can be dialled; use 1 to 65535" if address.endswith(":0") else ""
