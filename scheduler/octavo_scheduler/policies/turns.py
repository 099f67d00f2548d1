"""In which order the prefills of one worker share the step budget: a long prompt does not starve the short ones.

The turn is a virtual time. By default it is admission plus STRETCH x the predicted prefill: a prompt that comes later goes first
when it is so much shorter that its virtual time is smaller; one that waits is overtaken only by those admitted within
STRETCH times its own prefill after it. The number never changes, so `compose` sorts by it and no Update is needed.

- `fcfs`: admission alone.
- `slo`, `slo-fair`: the latest start that meets the first token's target. What is lost already, or has no target, goes as by default
  but LOST_US later; a stream that goes on after a preemption goes at once.
- `fair`, `slo-fair`: a further stretch for each sequence that the tenant runs there already, so that a flood's prefills do
  not stand before a newcomer's.
"""

from __future__ import annotations

from octavo_scheduler.policies.outlook import Outlook
from octavo_scheduler.policy import FAIR, SECOND_US
from octavo_scheduler.request import Request

STRETCH = 2.0
MAX_BESIDE = 15
LOST_US = 10 * SECOND_US
URGENT_US = 600 * SECOND_US
"""What one step of priority is worth, under the policies that go by priority."""
MAX_PRIORITY = 1000
_NUMBERS = 1 << 12
_BASE_US = (MAX_PRIORITY + 1) * URGENT_US + 3600 * SECOND_US


def prefill_turn(
    order: str, outlook: Outlook, request: Request, prefill_us: float, beside: float, now_us: int, number: int
) -> int:
    """The `rank` of an Admit under the policy `order`, below 2^64. The tenant runs `beside` others there; `number` decides between equal times."""
    stretch = STRETCH * (1 + min(beside, MAX_BESIDE)) if order in FAIR else STRETCH
    virtual_us = now_us
    if order in ("slo", "slo-fair"):
        virtual_us = _by_slack(outlook, request, prefill_us, now_us) + int((stretch - STRETCH) * prefill_us)
    elif order != "fcfs":
        virtual_us += int(stretch * prefill_us)
    if order in ("priority", "slo"):  # under fair policies a tenant's urgency is no claim on the others' time
        virtual_us -= max(-MAX_PRIORITY, min(MAX_PRIORITY, request.priority)) * URGENT_US
    return (_BASE_US + virtual_us) * _NUMBERS + number % _NUMBERS


def overtaking_us(order: str, prefill_us: float, mean_us: float, beside: float) -> float:
    """For how long after the admission of a prefill one of `mean_us` that is admitted later still gets a turn before it.

    It is what a turn owes to the length of its prefill, against the mean one's: 0 where those that come later go later.
    """
    if order == "fcfs":
        return 0.0
    stretch = STRETCH * (1 + min(beside, MAX_BESIDE)) if order in FAIR else STRETCH
    if order in ("slo", "slo-fair"):  # by slack long ones go first
        stretch -= STRETCH + 1
    return max(0.0, stretch * (prefill_us - mean_us))


def _by_slack(outlook: Outlook, request: Request, prefill_us: float, now_us: int) -> int:
    if request.first_token_us >= 0:
        return now_us
    latest_us = request.latest_start_us or outlook.latest_start_us(request)
    if outlook.has_deadline(request) and now_us <= latest_us:
        return latest_us
    return now_us + LOST_US + int(STRETCH * prefill_us)
