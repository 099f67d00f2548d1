"""Which tenants are about, for policies that share between them: those that asked for something lately."""

from __future__ import annotations

from collections.abc import Iterator

from octavo_scheduler.cell import Cell
from octavo_scheduler.policy import SECOND_US

ABOUT_US = 60 * SECOND_US
"""A tenant is about for so long after it last asked for something."""
MOST_OTHERS = 8
"""Of the others that asked last, so many are looked at; the tenant itself is none of them."""


def others_about(cell: Cell, tenant: str) -> Iterator[str]:
    """The other tenants that are about, the latest first, MOST_OTHERS at most."""
    left = MOST_OTHERS
    for other, asked_us in reversed(cell.tenants_about.items()):
        if not left or cell.now_us - asked_us >= ABOUT_US:
            return
        if other != tenant:
            left -= 1
            yield other
