"""Addresses that a command is given: whether somebody can be dialled there, and which option to mend when not."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from octavo.client.targets import dial_address
from octavo.errors import InvalidRequest

HTTP: Final = ("http://", "https://")


def checked_gateway(url: str) -> str:
    """`--url` of a gateway's gRPC edge, as it was given. Raises InvalidRequest with the fix."""
    try:
        dial_address(url)
    except InvalidRequest as error:
        hint = " (its HTTP address is another; `octavo status` shows both)" if url.startswith(HTTP) else ""
        raise InvalidRequest(f"--url: {url!r} is no gRPC address; write grpc://host:port{hint}", field="url") from error
    return url


def checked_http(url: str, form: str = "http://host:port") -> str:
    """`--url` of an HTTP server, without a slash at its end. Raises InvalidRequest that shows `form`."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and " " not in parts.netloc and parts.port != 0:
            return url.rstrip("/")
    except ValueError:  # a bad port or bracket
        pass
    raise InvalidRequest(f"--url: {url!r} is no HTTP address; write {form}", field="url")


def checked_scheduler(address: str) -> str:
    """`--scheduler` as it is dialled. Raises InvalidRequest with the fix."""
    try:
        return dial_address(address)
    except InvalidRequest as error:
        raise InvalidRequest(
            f"--scheduler: {address!r} is no address of a scheduler; write host:port", field="scheduler"
        ) from error
