"""A scheduler that forgets the first block that a sequence gives back: `python -m faulty_scheduler leaked_block <flags>`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable

from octavo.rpc.host import run_service
from octavo_scheduler.__main__ import setup
from octavo_scheduler.blocks import BlockPool

if __name__ == "__main__":
    honest = BlockPool.drop_all
    calls = itertools.count()

    def forgetful(self: BlockPool, blocks: Iterable[int]) -> int:
        given = list(blocks)
        return honest(self, given[1:] if given and next(calls) == 0 else given)

    BlockPool.drop_all = forgetful  # type: ignore[method-assign]
    sys.exit(run_service("scheduler", setup, sys.argv[2:]))
