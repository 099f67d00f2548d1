"""The state of one cell, which every handler of the core reads and changes, and the effects of the event at hand."""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from typing import Literal

from octavo_scheduler.books.bets import Bets
from octavo_scheduler.books.ledger import Ledger
from octavo_scheduler.books.switches import Switches
from octavo_scheduler.books.withheld import Withheld
from octavo_scheduler.fleet import EVICTIONS, Fleet, Worker
from octavo_scheduler.history import OutputHistory
from octavo_scheduler.limits.accuracy import Correction, CorrectionByLength, Errors
from octavo_scheduler.limits.drain import DrainRate
from octavo_scheduler.limits.rates import Rates
from octavo_scheduler.limits.tenants import Tenants
from octavo_scheduler.loads import Loads
from octavo_scheduler.moves.neighbours import Neighbours
from octavo_scheduler.moves.pause import Pause
from octavo_scheduler.moves.rates import Moved
from octavo_scheduler.moves.tools import Tools
from octavo_scheduler.orders import Effects, Fact
from octavo_scheduler.policies.orders import make_lines
from octavo_scheduler.policies.outlook import Outlook
from octavo_scheduler.policy import Policy
from octavo_scheduler.preloads.state import Caching
from octavo_scheduler.queues import WaitingQueue
from octavo_scheduler.registry import Registry
from octavo_scheduler.request import Request
from octavo_scheduler.slo import SloClass, parse_classes

COUNTERS = (
    "preemptions",
    "swaps",
    "swapped_blocks",
    "exported_blocks",
    "handoffs_started",
    "handoffs_done",
    "handoffs_failed",
    "handoff_blocks",
    "handoff_early_blocks",
    "handoff_bytes",
    "handoff_preloaded_blocks",
    "handoff_recomputed_tokens",
    "handoff_credit_waits",
    "pauses",
    "pauses_keep",
    "pauses_offload",
    "pauses_drop",
    "pauses_demoted",
    "pauses_resumed",
    "pauses_without_return",
    "pause_spared_tokens",
    "priority_preemptions",
    "bring_back_predicted_us",
    "offloaded_blocks",
    "prefetch_hints",
    "loads_started",
    "loaded_blocks",
    "wasted_load_blocks",
    "abandoned_copies",
    "evicted_blocks",
    "yielded_pin_blocks",
    "recomputed_tokens",
    "prefix_hit_tokens",
    "prefix_spreads",
    "passing_starts",
    "tier_hit_tokens",
    "prefill_tokens",
    "decode_tokens",
    "prefill_busy_us",
    "decode_busy_us",
    "untold_device_us",
    "steps",
    "mixed_steps",
    "beam_steps",
    "beam_forks",
    "budget_changes",
    "starved_steps",
    "reports",
    "requests_submitted",
    "requests_attached",
    "requests_finished",
    "requests_cancelled",
    "requests_failed",
    "requests_rejected",
    "requests_deadline",
    "worker_losses",
    "workers_drained",
    "handed_over",
    "protocol_errors",
    "cancel_latency_us_last",
    "admissions",
    "requests_degraded",
    "preloads_built",
    "blended_tokens",
    "chunks_loaded",
    "preloads_swapped",
    "preloads_restored",
    "thrown_out_blocks",
    "expired_blocks",
    "pinned_requests",
    "failed_allocations",
    "promised_blocks",
    "unkept_blocks",
)

PREDICTED = ("ttft", "start", "e2e")
"""What is predicted and held against what happens: at the door, at the admission, at the door for the whole request."""

SWEEP_FIRST = 1024
MAX_TENANTS_ABOUT = 4096

TimerKind = Literal["deadline", "orphan", "join", "move", "no_worker", "wake", "hopeless", "recover", "drain", "ttl"]


class Timers:
    """A heap of (due, what, request). Stale entries are recognised by whoever handles them.

    A request that has ended long before its deadline must not live on in here, so ended ones are swept out whenever
    the heap has doubled.
    """

    __slots__ = ("_heap", "_number", "_sweep_at", "next_us")

    def __init__(self) -> None:
        self.next_us = 0
        """When the first entry is due; 0: never."""
        self._heap: list[tuple[int, int, TimerKind, Request | None]] = []
        self._number = 0
        self._sweep_at = SWEEP_FIRST

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, due_us: int, kind: TimerKind, request: Request | None = None) -> None:
        """Wakes the core at `due_us`."""
        self._number += 1
        heapq.heappush(self._heap, (due_us, self._number, kind, request))
        if len(self._heap) >= self._sweep_at:
            self._heap = [entry for entry in self._heap if entry[3] is None or entry[3].live]
            heapq.heapify(self._heap)
            self._sweep_at = max(SWEEP_FIRST, 2 * len(self._heap))
        self.next_us = self._heap[0][0] if self._heap else 0

    def due(self, now_us: int) -> list[tuple[TimerKind, Request | None]]:
        """Takes out what is due."""
        taken: list[tuple[TimerKind, Request | None]] = []
        while self._heap and self._heap[0][0] <= now_us:
            _due, _number, kind, request = heapq.heappop(self._heap)
            taken.append((kind, request))
        self.next_us = self._heap[0][0] if self._heap else 0
        return taken


class Cell:
    """Everything the core knows. `now_us` is the time of the event at hand; nothing here looks at a clock."""

    __slots__ = (
        "_itl_targets_us",
        "_orders",
        "admission_due",
        "arriving",
        "bets",
        "budget_alone",
        "busy_correction",
        "caching",
        "classes",
        "counters",
        "drain",
        "draining",
        "effects",
        "errors",
        "fleet",
        "history",
        "ledger",
        "loads",
        "lost_evictions",
        "moved",
        "neighbours",
        "newcomer",
        "next_number",
        "now_us",
        "outlook",
        "pauses",
        "policy",
        "pool_waits_us",
        "queue",
        "rates",
        "registry",
        "running_priorities",
        "start_correction",
        "started_us",
        "switches",
        "tenants",
        "tenants_about",
        "timers",
        "tools",
        "touched",
        "wait_correction",
        "withheld",
    )

    def __init__(self, policy: Policy, now_us: int) -> None:
        self.policy = policy
        self.budget_alone = policy.budget_alone
        self.now_us = self.started_us = now_us
        self.fleet = Fleet()
        self.registry = Registry(policy.registry_ttl_us, policy.registry_bytes)
        self.timers = Timers()
        self.history = OutputHistory(policy.default_output_tokens)
        self.ledger = Ledger()
        self.loads: dict[str, Loads] = {}  # by pool, of those that a newcomer had a choice in
        self.switches = Switches()
        self.withheld = Withheld()
        self.bets = Bets()
        self.tenants = Tenants(policy.tenant_limits)
        self.rates = Rates()
        self.drain = DrainRate()
        self.wait_correction, self.busy_correction = Correction(), Correction()
        self.start_correction = CorrectionByLength()
        self.errors = {name: Errors() for name in PREDICTED}
        self.caching = Caching()
        self.classes: dict[str, SloClass] = parse_classes(policy.slo_classes)
        self._itl_targets_us = {name: int(item.itl_p99_ms * 1000) for name, item in self.classes.items()}
        self._orders = {name: policy.order_of(name) for name in self.classes}
        self.outlook = Outlook(policy, self.fleet, self.history, self.classes)
        self.queue = WaitingQueue(make_lines(policy, self.outlook, self.classes))
        self.counters: dict[str, float] = dict.fromkeys(COUNTERS, 0)
        self.tools = Tools()
        self.moved = Moved()
        self.neighbours = Neighbours()
        self.pool_waits_us: dict[str, int] = {}  # role -> what requests waited before it took them, in all
        self.pauses: dict[tuple[str, str], Pause] = {}
        self.tenants_about: OrderedDict[str, int] = OrderedDict()  # tenant -> when it last asked, the latest last
        self.lost_evictions = dict.fromkeys((*EVICTIONS, "cut"), 0)  # of workers that have left
        self.running_priorities: Counter[int] = Counter()  # sequences, the stopping ones included
        self.draining = False
        self.admission_due = False
        self.arriving: dict[Request, None] = {}  # prefilled elsewhere, to be decoded: they go before the queue
        self.newcomer: Request | None = None  # what the event at hand brought, until it starts or waits
        self.next_number = 0
        self.touched: dict[Worker, None] = {}  # workers that the event at hand changed; only they can have orders
        self.effects = self.fresh_effects()

    @staticmethod
    def fresh_effects() -> Effects:
        """Nothing to do yet."""
        return Effects([], [], [], set(), [], False, 0, [], [])

    def evictions(self) -> dict[str, int]:
        """Blocks that left the indexes so far, by reason (fleet.EVICTIONS, or cut)."""
        total = dict(self.lost_evictions)
        for worker in self.fleet.workers.values():
            for reason, count in worker.all_evictions().items():
                total[reason] += count
        return total

    def number(self) -> int:
        """A number that was never given before: seqs, transfers and ranks."""
        self.next_number += 1
        return self.next_number

    def order_of(self, slo_class: str) -> str:
        """Policy.order_of, looked up once per class."""
        return self._orders.get(slo_class, self.policy.order)

    def itl_target_us(self, slo_class: str) -> int:
        """Bound of the gaps between the tokens of a class; 0: none."""
        return self._itl_targets_us.get(slo_class, 0)

    def tenant_asked(self, tenant: str) -> None:
        """Notes that the tenant is about."""
        self.tenants_about[tenant] = self.now_us
        self.tenants_about.move_to_end(tenant)
        if len(self.tenants_about) > MAX_TENANTS_ABOUT:
            self.tenants_about.popitem(last=False)

    def touch(self, request: Request) -> None:
        """Something of `request` is to be sent."""
        self.fleet.touch(request, self.effects.dirty_gateways)

    def fact(self, name: str, request: Request, start_us: int, end_us: int, **attributes: str | int | float) -> None:
        """Hands a fact to the shell, which may make a span of it."""
        attributes["octavo.request_id"] = request.request_id
        self.effects.facts.append(Fact(name, request.traceparent, start_us, end_us, attributes))

    def uses(self, technique: str, request: Request) -> bool:
        """Whether this request goes with a technique: its switch and its trial decide (books/switches.py)."""
        return not (self.switches.off or request.sampled) or self.switches.uses(technique, request)

    @property
    def in_grace(self) -> bool:
        """The recovery grace after start is not over."""
        return self.now_us < self.started_us + self.policy.recovery_grace_us
