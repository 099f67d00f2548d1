"""python dying_worker.py ADDRESS ROUNDS MOMENT: workers that die, each by its own kill -9, at one moment of an offload or a load.

MOMENT: `copied` (slots are filled, Commit not sent), `committed` (Commit sent, its answer not read), `loading` (slots are lent
and a copy of them runs). One process a round, forked before any gRPC began. Prints how many died so.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sys
from typing import Any, NoReturn

import numpy as np
from octavo_gpuworker.arena_link import ArenaLink
from octavo_gpuworker.backends.native_pool import NativePool
from octavo_gpuworker.orders import LoadOrder, OffloadOrder, TransferDone
from octavo_gpuworker.transfer import Transfers

LAYOUT = b"l" * 32
BLOCK_BYTES, BLOCKS = 65_536, 4


def keys_of(number: int) -> list[bytes]:
    return [hashlib.sha256(f"{number}/{at}".encode()).digest() for at in range(BLOCKS)]


def payload_of(key: bytes) -> bytes:
    return np.random.default_rng(int.from_bytes(key[:8], "little")).integers(0, 256, BLOCK_BYTES, np.uint8).tobytes()


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("not reached")


async def work(address: str, number: int, moment: str) -> None:
    """One worker's life."""
    pool = NativePool(np.zeros((1 + 2 * BLOCKS, BLOCK_BYTES), np.uint8), 16)
    keys = keys_of(number)
    for at, key in enumerate(keys):
        pool.write_block(1 + at, payload_of(key))
    ended: asyncio.Queue[TransferDone] = asyncio.Queue()

    def post(items: list[Any]) -> None:
        for item in items:
            ended.put_nowait(item)

    transfers = Transfers(address, pool, LAYOUT, post)  # type: ignore[arg-type]
    if moment == "copied":
        copy_in = ArenaLink.copy_in
        ArenaLink.copy_in = lambda self, *given: (copy_in(self, *given), die())  # type: ignore[method-assign,assign,func-returns-value]
    transfers.start(OffloadOrder(1, list(range(1, 1 + BLOCKS)), keys, [bytes(32), *keys[:-1]]))
    if moment == "committed":
        store = transfers._store
        commit = store.Commit

        def sent(request: Any, **more: Any) -> Any:
            asyncio.get_running_loop().call_later(number % 7 / 2000, die)
            return commit(request, **more)

        store.Commit = sent  # type: ignore[method-assign,union-attr]
    assert (await ended.get()).ok_blocks == BLOCKS
    if moment == "loading":
        copy_out = ArenaLink.copy_out
        ArenaLink.copy_out = lambda self, *given: (copy_out(self, *given), die())  # type: ignore[method-assign,assign,func-returns-value]
        transfers.start(LoadOrder(2, keys, list(range(1 + BLOCKS, 1 + 2 * BLOCKS)), 0))
    await asyncio.sleep(20)


def main() -> int:
    """Runs the rounds one after the other."""
    address, rounds, moment = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    died = 0
    for number in range(rounds):
        pid = os.fork()
        if not pid:
            asyncio.run(work(address, number, moment))
            os._exit(1)
        _, status = os.waitpid(pid, 0)
        died += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    print(died)
    return 0


if __name__ == "__main__":
    sys.exit(main())
