"""A scheduler that forgets the first block that a sequence gives back: `python -m faulty_scheduler leaked_block <flags>`."""

from __future__ import annotations

import itertools
import sys

from octavo.rpc.host import run_service
from octavo_scheduler.__main__ import setup
from octavo_scheduler.blocks import BlockPool

if __name__ == "__main__":
    honest = BlockPool.drop
    drops = itertools.count()

    def forgetful(self: BlockPool, block: int) -> bool:
        return False if next(drops) == 0 else honest(self, block)

    BlockPool.drop = forgetful  # type: ignore[method-assign]
    sys.exit(run_service("scheduler", setup, sys.argv[2:]))
