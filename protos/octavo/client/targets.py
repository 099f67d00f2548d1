"""The gateways a client may speak to: one channel each, the next one after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio

from octavo.errors import InvalidRequest
from octavo.rpc.channels import open_channel
from octavo.v1 import inference_pb2_grpc


@dataclass(frozen=True, slots=True)
class Target:
    """An open channel to one gateway. `stub` is the generated InferenceServiceStub, which has no types."""

    address: str
    channel: grpc.aio.Channel
    stub: Any


class Targets:
    """Channels are opened on first use, inside the loop that uses them."""

    def __init__(self, addresses: str | Sequence[str]) -> None:
        listed = [addresses] if isinstance(addresses, str) else list(addresses)
        self._addresses = [dial_address(item) for item in listed]
        if not self._addresses:
            raise InvalidRequest("address: none given; write grpc://host:port", field="address")
        self._open: dict[str, Target] = {}
        self._current = 0

    def current(self) -> Target:
        """The gateway in use."""
        address = self._addresses[self._current]
        if address not in self._open:
            channel = open_channel(address, small_window=True)
            stub = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
            self._open[address] = Target(address, channel, stub)
        return self._open[address]

    def failed(self, target: Target) -> None:
        """Turns to the next gateway, unless somebody did so already."""
        if target.address == self._addresses[self._current]:
            self._current = (self._current + 1) % len(self._addresses)

    async def close(self) -> None:
        """Closes every channel; calls that still run on them are cancelled."""
        opened, self._open = list(self._open.values()), {}
        await asyncio.gather(*(target.channel.close(None) for target in opened))


def dial_address(url: str) -> str:
    """`host:port` or `unix:path` of grpc://host:port, host:port or unix:path. Raises InvalidRequest."""
    if url.startswith("unix:") and len(url) > len("unix:"):
        return url
    address = url.removeprefix("grpc://").rstrip("/")
    host, _, port = address.rpartition(":")
    if "/" in host or " " in host or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidRequest(f"address: {url!r} is no gRPC address; write grpc://host:port", field="address")
    return address
