"""Requests that wait, for the tests of the policies."""

from __future__ import annotations

from array import array

from octavo_scheduler.events import Calibration, WorkerJoined
from octavo_scheduler.fleet import Fleet, Worker
from octavo_scheduler.history import OutputHistory
from octavo_scheduler.policies.orders import make_lines
from octavo_scheduler.policies.outlook import Outlook
from octavo_scheduler.policy import Policy
from octavo_scheduler.queues import WaitingQueue
from octavo_scheduler.request import Choice, Request
from octavo_scheduler.slo import parse_classes

CALIBRATION = Calibration(fixed_us=1000.0, prefill_token_us=100.0, decode_seq_us=1000.0, context_token_us=0.0)


def policy_of(order: str, **options: object) -> Policy:
    values: dict[str, object] = {"slo_classes": {"default": {"ttft_ms": 1000.0, "itl_p99_ms": 200.0}}, **options}
    return Policy(order=order, **values)  # type: ignore[arg-type]


def outlook_of(policy: Policy) -> Outlook:
    fleet = Fleet()
    fleet.workers[1] = Worker(WorkerJoined(0, 1, "w", 100, 16, 8, 10_000, calibration=CALIBRATION), policy)
    return Outlook(policy, fleet, OutputHistory(16), parse_classes(policy.slo_classes))


def queue_of(policy: Policy) -> WaitingQueue:
    classes = parse_classes(policy.slo_classes)
    return WaitingQueue(make_lines(policy, outlook_of(policy), classes))


def request(name: str, arrival_us: int = 0, prompt: int = 10, tenant: str = "t", **options: object) -> Request:
    values: dict[str, object] = {"max_tokens": 16, "slo_class": "default", **options}
    made = Request(
        name, tenant, array("I", range(prompt)), [], b"", -1, arrival_us=arrival_us, submitted_us=arrival_us, **values
    )  # type: ignore[arg-type]
    made.choices.append(Choice(made, 0, 1, array("I")))
    return made


def names(queue: WaitingQueue, now_us: int = 0) -> list[str]:
    return [item.request_id for item in queue.first(1000, now_us)]


def served(queue: WaitingQueue, now_us: int, charge_us: float = 0.0) -> str:
    """Admits the next one, and charges its groups."""
    head = queue.peek(now_us)
    assert head is not None
    queue.remove(head)
    for account in head.accounts:
        account.charge(charge_us)
    return head.request_id
