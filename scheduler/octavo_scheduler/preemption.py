"""Whom to preempt, by recompute, when running sequences need blocks that nobody can give.

Shortage = need - free - pending release. A victim counts only the blocks that it alone holds. Order of victims: lowest
priority first, then latest admitted; the first in the opposite order is protected, so the oldest can always finish.
"""

from __future__ import annotations

from octavo_scheduler.admission import is_protected
from octavo_scheduler.fleet import Worker
from octavo_scheduler.request import Sequence


def choose_victims(worker: Worker, unmet: list[Sequence]) -> list[Sequence]:
    """The sequences to stop so that `unmet` (each needs one block now) can go on; empty when releases are enough."""
    shortage = len(unmet) + worker.pool.debt - worker.pool.free_blocks - worker.pending_release()
    running = sorted(worker.running(), key=lambda sequence: (-sequence.choice.request.priority, sequence.rank))
    needy = set(unmet)
    victims: dict[Sequence, None] = {}
    while shortage > 0 and len(running) > 1:
        last = running.pop()
        if last in victims or is_protected(last.choice):
            continue
        # an n > 1 group that is not split yet has one prefill and one owner
        members = [member for member in (last.group or (last,)) if not member.stopping]
        if running[0] in members:
            break
        gain = sum(worker.exclusive_blocks(member) + (member in needy) for member in members)
        if gain == 0 or any(is_protected(member.choice) for member in members):
            continue
        victims.update(dict.fromkeys(members))
        shortage -= gain
    return list(victims)
