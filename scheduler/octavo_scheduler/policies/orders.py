"""The policies by name: which line each makes. A new one is one key function, or one line, and an entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from octavo_scheduler.policies.fair_line import FairLine
from octavo_scheduler.policies.line import KeyOf, Line, OrderedLine
from octavo_scheduler.policies.outlook import Outlook
from octavo_scheduler.policies.slo_line import SloLine
from octavo_scheduler.policy import Policy
from octavo_scheduler.request import QueueKey, Request
from octavo_scheduler.slo import SloClass

SJF_STRETCH = 8.0
"""A job is overtaken by those that arrive within this many times its own predicted time after it, by no later one."""


def fcfs(request: Request) -> QueueKey:
    """Arrival; priority breaks ties."""
    return (request.arrival_us, -request.priority, request.queue_number)


def by_priority(request: Request) -> QueueKey:
    """Larger priority, then arrival."""
    return (-request.priority, request.arrival_us, request.queue_number)


def shortest_first(outlook: Outlook) -> KeyOf:
    """Arrival + stretch x predicted job: shortest first among what came together, and age counts from the beginning."""

    def key(request: Request) -> QueueKey:
        return (
            request.arrival_us + int(SJF_STRETCH * outlook.job_us(request)),
            -request.priority,
            request.queue_number,
        )

    return key


def make_line(name: str, policy: Policy, outlook: Outlook) -> Line:
    """The line of a policy's name. Raises KeyError on an unknown one."""
    makers: dict[str, Callable[[], Line]] = {
        "fcfs": lambda: OrderedLine(fcfs),
        "priority": lambda: OrderedLine(by_priority),
        "sjf": lambda: OrderedLine(shortest_first(outlook)),
        "slo": lambda: SloLine(outlook),
        "fair": lambda: FairLine(_tenant, policy.tenant_weights, lambda _tenant: OrderedLine(fcfs)),
        "slo-fair": lambda: FairLine(
            _tenant, policy.tenant_weights, lambda _tenant: SloLine(outlook), policy.fair_window_us
        ),
    }
    return makers[name]()


def make_lines(policy: Policy, outlook: Outlook, classes: Mapping[str, SloClass]) -> Line:
    """The line of the whole queue: one per SLO class that names a policy of its own, sharing by weight, or just one.

    Classes that name none share the queue of `Policy.order`, whose weight is 1.
    """
    own = {name: item for name, item in classes.items() if item.policy}
    if not own:
        return make_line(policy.order, policy, outlook)

    def queue_of(request: Request) -> str:
        return request.slo_class if request.slo_class in own else ""

    def line_of(name: str) -> Line:
        return make_line(own[name].policy if name else policy.order, policy, outlook)

    return FairLine(queue_of, {name: item.weight for name, item in own.items()}, line_of, by_tenant=False)


def _tenant(request: Request) -> str:
    return request.tenant
