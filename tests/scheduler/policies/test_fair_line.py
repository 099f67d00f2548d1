"""Fair sharing: counters in predicted device time, weights, the lift of newcomers, windows, queues by class."""

from __future__ import annotations

from collections import Counter

from octavo_scheduler.policies.fair_line import MAX_GROUPS, FairLine
from octavo_scheduler.policies.line import OrderedLine
from octavo_scheduler.policies.orders import fcfs
from octavo_scheduler.queues import WaitingQueue

from tests.scheduler.policies.scenes import names, policy_of, queue_of, request, served


def flood(queue: WaitingQueue, tenant: str, count: int, **options: object) -> None:
    for number in range(count):
        queue.push(request(f"{tenant}{number}", tenant=tenant, **options))  # type: ignore[arg-type]


def shares(queue: WaitingQueue, starts: int, cost_us: dict[str, float]) -> Counter[str]:
    got: Counter[str] = Counter()
    for _ in range(starts):
        head = queue.peek(0)
        assert head is not None
        served(queue, 0, cost_us[head.tenant])
        got[head.tenant] += 1
    return got


def test_service_is_time_not_requests() -> None:
    queue = queue_of(policy_of("fair"))
    flood(queue, "a", 200)
    flood(queue, "b", 200)
    got = shares(queue, 120, {"a": 5000.0, "b": 1000.0})
    assert got["b"] == 5 * got["a"]


def test_weights_divide_the_time() -> None:
    queue = queue_of(policy_of("fair", tenant_weights={"a": 3.0}))
    flood(queue, "a", 200)
    flood(queue, "b", 200)
    got = shares(queue, 100, {"a": 1000.0, "b": 1000.0})
    assert got["a"] == 75


def test_a_newly_active_tenant_is_lifted_to_the_least_active_counter() -> None:
    queue = queue_of(policy_of("fair"))
    flood(queue, "a", 200)
    shares(queue, 100, {"a": 1000.0})
    flood(queue, "b", 100)
    # b was idle while a was served 100 ms: it gets half from now on, not all of the past
    assert shares(queue, 20, {"a": 1000.0, "b": 1000.0})["b"] == 10


def test_when_nobody_waits_the_last_one_that_did_sets_the_level() -> None:
    queue = queue_of(policy_of("fair"))
    flood(queue, "a", 3)
    shares(queue, 3, {"a": 1000.0})
    flood(queue, "b", 50)
    flood(queue, "a", 50)
    # the level is what a had when its last one was taken, which was charged for afterwards
    assert shares(queue, 40, {"a": 1000.0, "b": 1000.0})["b"] in (20, 21)


def test_running_streams_count_against_their_tenant() -> None:
    queue = queue_of(policy_of("fair"))
    flood(queue, "a", 10)
    flood(queue, "b", 10)
    first = next(iter(queue))
    for account in first.accounts:
        account.charge(50_000.0)
    assert [served(queue, 0, 1000.0)[0] for _ in range(10)] == ["b"] * 10


def test_urgency_decides_within_the_window_and_not_beyond_it() -> None:
    queue = queue_of(policy_of("slo-fair", fair_window_us=10_000.0))
    for number in range(40):
        queue.push(request(f"tight{number}", tenant="tight", arrival_us=0))
        queue.push(request(f"loose{number}", tenant="loose", arrival_us=500_000))
    order = [served(queue, 0, 1000.0)[:5] for _ in range(60)]
    assert order[:10] == ["tight"] * 10  # ahead of fairness by no more than the window
    got = Counter(order)
    assert got["tight"] - got["loose"] <= 11


def test_alone_slo_fair_is_slo() -> None:
    plain, fair = queue_of(policy_of("slo")), queue_of(policy_of("slo-fair"))
    for number in range(30):
        for queue in (plain, fair):
            queue.push(request(f"r{number}", arrival_us=number * 37 % 11 * 1000, prompt=number * 13 % 7 * 100 + 1))
    assert names(plain) == names(fair)


def test_idle_tenants_are_forgotten_when_there_are_too_many() -> None:
    line = FairLine(lambda item: item.tenant, {}, lambda _name: OrderedLine(fcfs))
    queue = WaitingQueue(line)
    for number in range(2 * MAX_GROUPS):
        queue.push(request("r", tenant=f"t{number}"))
        assert served(queue, 0, 10.0) == "r"
    assert len(line.accounts()) <= MAX_GROUPS + 1


CLASSES = {
    "default": {"ttft_ms": 1000.0},
    "chat": {"ttft_ms": 500.0, "policy": "slo", "weight": 3.0},
    "batch": {"policy": "sjf"},
}


def test_a_class_with_a_policy_has_a_queue_of_its_own_and_queues_share_by_weight() -> None:
    queue = queue_of(policy_of("fcfs", slo_classes=CLASSES))
    for number in range(100):
        for name in CLASSES:
            queue.push(request(f"{name}{number}", slo_class=name, arrival_us=number))
    got: Counter[str] = Counter()
    for _ in range(100):
        got[served(queue, 0, 1000.0).rstrip("0123456789")] += 1
    assert got == {"chat": 60, "default": 20, "batch": 20}


def test_each_queue_keeps_its_own_order() -> None:
    queue = queue_of(policy_of("fcfs", slo_classes=CLASSES))
    queue.push(request("long", slo_class="batch", prompt=4000))
    queue.push(request("short", slo_class="batch", arrival_us=1))
    queue.push(request("first", prompt=4000))
    queue.push(request("second", arrival_us=1))
    order = names(queue)
    assert order.index("short") < order.index("long") and order.index("first") < order.index("second")


def test_a_fair_queue_inside_a_class_charges_class_and_tenant() -> None:
    classes = {"default": {}, "chat": {"policy": "fair"}}
    queue = queue_of(policy_of("fcfs", slo_classes=classes))
    made = request("r", slo_class="chat", tenant="x")
    queue.push(made)
    assert [account.name for account in made.accounts] == ["chat", "x"]
