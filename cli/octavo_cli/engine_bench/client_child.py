"""python -m octavo_cli.engine_bench.client_child URL: a client of the SDK in a process of its own, one JSON object a line each way, until stdin ends.

{"do": "open", "seed": 1} -> {"seconds"}: to the first token of a new client, which connects and opens its session for it
{"do": "ask", "seed": 2} -> {"seconds"}: to the first token of one more request on that session
An error is {"error": "..."} and the process goes on. A client has a machine of its own: here, beside a worker that computes on all
cores, its threads run as the services' do.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from typing import Any

from octavo.errors import OctavoError
from octavo.rpc.wakeups import run_realtime, shorten_slices

from octavo_cli.bench.grpc_target import GrpcTarget
from octavo_cli.bench.sample import ServerTimes
from octavo_cli.bench.target import Request, Target, Usage
from octavo_cli.bench.work import Piece, draw_tokens

PROMPT_TOKENS = 128
OUTPUT_TOKENS = 2
WAKEUP_SLICE_US = 200
"""As deployment.wakeup_slice_us has it for the services: where threads may not be real-time ones."""


class _FirstPart:
    """Notes when the first chunk with tokens arrives."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def part(self, tokens: int, token_ids: tuple[int, ...] = (), text: str = "") -> bool:
        if tokens and not self.at_s:
            self.at_s = time.perf_counter()
        return False

    def usage(self, usage: Usage, server: ServerTimes) -> None:
        """The server's account is not looked at: the client's clock counts."""


async def first_token_s(target: Target, vocab_size: int, seed: int) -> float:
    """Seconds from asking, with a prompt of its own, to the first token; greedy. Returns once the answer is whole, so that nothing of
    it runs beside the next one. Raises OctavoError when the request failed.
    """
    tokens = tuple(draw_tokens([Piece(f"first token {seed}", PROMPT_TOKENS)], vocab_size))
    heard = _FirstPart()
    began_s = time.perf_counter()
    await target.send(Request(OUTPUT_TOKENS, tokens), heard)
    if not heard.at_s:
        raise OctavoError("an answer without a token")
    return heard.at_s - began_s


class Client:
    """One session, from `open` to the next `open`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._vocab_size = 0
        self._target: GrpcTarget | None = None

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """One measurement."""
        if request["do"] == "open":
            await self.close()
            if not self._vocab_size:
                async with GrpcTarget(self._url) as before:
                    self._vocab_size = (await before.describe()).vocab_size
            self._target = GrpcTarget(self._url)
        if self._target is None:
            raise OctavoError("no session; say open first")
        seconds = await first_token_s(self._target, self._vocab_size, request["seed"])
        if request["do"] == "open":  # by now gRPC's threads are there
            run_realtime() or shorten_slices(WAKEUP_SLICE_US)
            gc.collect()
            gc.freeze()  # a collection of what was loaded long ago would show as the server's
        return {"seconds": seconds}

    async def close(self) -> None:
        if self._target is not None:
            await self._target.__aexit__()
            self._target = None


async def serve(client: Client) -> None:
    """Answers until stdin ends; the loop goes on meanwhile, as a client's does between two requests."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            answer = await client.answer(json.loads(line))
        except (OctavoError, ValueError, KeyError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    await client.close()


if __name__ == "__main__":
    asyncio.run(serve(Client(sys.argv[1])))
