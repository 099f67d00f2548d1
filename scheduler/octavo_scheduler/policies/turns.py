"""In which order the prefills of one worker share the step budget: a long prompt does not starve the short ones.

The turn is a virtual time: admission plus STRETCH x the predicted prefill. A prompt that comes later goes first when it is
so much shorter that its virtual time is smaller; one that waits is overtaken only by those admitted within STRETCH times
its own prefill after it. The number never changes, so `compose` sorts by it and no Update is needed. `fcfs` has stretch 0.
"""

from __future__ import annotations

from octavo_scheduler.policy import SECOND_US, Policy
from octavo_scheduler.request import Request

STRETCH = 2.0
URGENT_US = 10 * SECOND_US
"""What one step of priority is worth, under the policies that go by priority."""
MAX_PRIORITY = 1000
_NUMBERS = 1 << 12
_BASE_US = (MAX_PRIORITY + 1) * URGENT_US


def prefill_turn(policy: Policy, request: Request, prefill_us: float, now_us: int, number: int) -> int:
    """The `rank` of an Admit, below 2^64; `number` decides between equal virtual times."""
    order = policy.order_of(request.slo_class)
    virtual_us = _BASE_US + now_us
    if order != "fcfs":
        virtual_us += int(STRETCH * prefill_us)
    if order in ("priority", "slo"):  # under fair policies a tenant's urgency is no claim on the others' time
        virtual_us -= max(-MAX_PRIORITY, min(MAX_PRIORITY, request.priority)) * URGENT_US
    return virtual_us * _NUMBERS + number % _NUMBERS
