"""python -m octavo_kvstore.bench.stream_link [--blocks N --block-bytes N]: how fast blocks come from another host's kvstore.

Answers requests on stdin, one JSON object a line, until stdin ends: {"do": "fetch"} and {"do": "raw"} -> {"mb_per_s"}.
`fetch` is a whole chain through the remote tier, checked and handed over block by block; `raw` is the same number of bytes
in messages of the same size through a bare gRPC stream of the same process, which nobody looks at. MB are 10^6 bytes.
`--serve` is the other side.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc.aio
from octavo.rpc.channels import open_channel
from octavo.rpc.host import SERVER_OPTIONS

from octavo_kvstore.codecs.choice import Chooser
from octavo_kvstore.codecs.shapes import ShapeTable
from octavo_kvstore.fetch_link import PeerChannels
from octavo_kvstore.peers.book import PeerBook
from octavo_kvstore.pins import PinTable
from octavo_kvstore.serve_link import PeerServicer
from octavo_kvstore.store import Store
from octavo_kvstore.testing import LAYOUT, key_of, make_block
from octavo_kvstore.tiers.heap import HeapTier
from octavo_kvstore.tiers.remote import RemoteTier, Source

RAW = "/octavo.bench.Raw/Stream"
PEER = "far"


class RawHandler(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Streams chunks as they lie in memory, untouched by any code."""

    def __init__(self, chunks: Sequence[bytes]) -> None:
        self._chunks = chunks

    def service(self, details: Any) -> Any:
        if details.method != RAW:
            return None
        return grpc.unary_stream_rpc_method_handler(self._stream)

    async def _stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk


async def serve(blocks: int, block_bytes: int) -> None:
    """Holds a chain in memory and serves it, and the raw stream, until it is killed; prints its port first."""
    pins = PinTable()
    store = Store(HeapTier(2 * blocks * (block_bytes + 4096), pins.is_pinned), None, pins)
    for number in range(blocks):
        store.put(make_block(number, block_bytes, parent=number - 1 if number else None))
    chunks = [make_block(number, block_bytes).payload for number in range(blocks)]
    server = grpc.aio.server(options=SERVER_OPTIONS)
    servicer = PeerServicer(store, ShapeTable(), Chooser("none"))
    servicer.add_to(server)
    server.add_generic_rpc_handlers((RawHandler([bytes(chunk) for chunk in chunks]),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(json.dumps({"port": port}), flush=True)
    await server.wait_for_termination()


class Measure:
    """The asking side."""

    def __init__(self, address: str, blocks: int, block_bytes: int) -> None:
        self._channels = PeerChannels(open_channel)
        self._remote = RemoteTier(PeerBook("near", {PEER: address}), self._channels.dial, Chooser("none"))
        self._raw_channel = open_channel(address)
        self._keys = [key_of(number) for number in range(blocks)]
        self._size = blocks * block_bytes

    async def fetch(self) -> float:
        """MB/s. Raises RuntimeError when not everything came."""
        began_ns = time.perf_counter_ns()
        source, count = Source(PEER, 0, len(self._keys)), 0
        async for _ in self._remote.fetch(self._keys, LAYOUT, [source], exact=False):
            count += 1
        if count != len(self._keys):
            raise RuntimeError(f"{count} of {len(self._keys)} blocks came")
        return self._size * 1000 / (time.perf_counter_ns() - began_ns)

    async def raw(self) -> float:
        """MB/s."""
        began_ns = time.perf_counter_ns()
        size = 0
        async for chunk in self._raw_channel.unary_stream(RAW, None, None)(b""):
            size += len(chunk)
        if size != self._size:
            raise RuntimeError(f"{size} of {self._size} bytes came")
        return self._size * 1000 / (time.perf_counter_ns() - began_ns)

    async def close(self) -> None:
        await self._channels.close()
        await self._raw_channel.close(None)


async def answer(address: str, blocks: int, block_bytes: int) -> None:
    """Requests from stdin until it ends."""
    measure, loop = Measure(address, blocks, block_bytes), asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            rate = await (measure.fetch() if json.loads(line)["do"] == "fetch" else measure.raw())
            print(json.dumps({"mb_per_s": rate}), flush=True)
        except RuntimeError as error:
            print(json.dumps({"error": str(error)}), flush=True)
    await measure.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--blocks", type=int, default=64)
    parser.add_argument("--block-bytes", type=int, default=368_640)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve(given.blocks, given.block_bytes))
        return 0
    words = ["--serve", "--blocks", str(given.blocks), "--block-bytes", str(given.block_bytes)]
    peer = subprocess.Popen([sys.executable, "-m", __spec__.name, *words], stdout=subprocess.PIPE)
    try:
        assert peer.stdout is not None
        port = json.loads(peer.stdout.readline())["port"]
        asyncio.run(answer(f"127.0.0.1:{port}", given.blocks, given.block_bytes))
    finally:
        peer.kill()
        peer.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
