"""Who is connected: workers with their pools, gateways with their deliveries, kvstores with their directories."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import NamedTuple, Protocol

from octavo_scheduler.books.holding import Holding
from octavo_scheduler.costs import PEER_BYTES_PER_US, PEER_FIXED_US, LinkCosts, StepCosts
from octavo_scheduler.events import WorkerJoined
from octavo_scheduler.orders import Label, Order
from octavo_scheduler.policies.pace import Pace
from octavo_scheduler.policy import Policy
from octavo_scheduler.prefix.radix import PrefixIndex
from octavo_scheduler.preloads.leaving import Leaving
from octavo_scheduler.reach import Reach
from octavo_scheduler.request import Cost, Delivery, Request, Sequence
from octavo_scheduler.tiers import Directory, Transfer

EVICTIONS = ("admission", "growth", "shrink")
"""What cached blocks make room for: a newcomer's first table, a running sequence that grows, or a pool that shrinks."""


REUSE_MEMORY = 0.05
SPARE_HEADS = 100_000
QUIET_LEAST_US = 1_500_000
"""An idle worker reports once a second."""


class Keeper(Protocol):
    """Whose blocks stay while nothing of it runs."""

    @property
    def tenant(self) -> str: ...

    def __hash__(self) -> int: ...


class Worker:
    """One worker in one epoch: everything dies with the epoch."""

    __slots__ = (
        "_budget",
        "_quiet_us",
        "_stuck_us",
        "backed_blocks",
        "backlog",
        "batch_due_us",
        "batch_since_us",
        "block_bytes",
        "block_tokens",
        "busy_share",
        "calm_water",
        "closed_until_us",
        "computing",
        "costs",
        "drain_until_us",
        "draining",
        "epoch",
        "evicted",
        "evictions",
        "free_slots",
        "handed_over",
        "healthy",
        "hello",
        "holding",
        "hungry",
        "index",
        "joined_us",
        "kept",
        "labels",
        "last_progress_us",
        "last_report_us",
        "leave_ordered",
        "link",
        "loads_seen",
        "max_seqs",
        "of_tenant",
        "offload_candidates",
        "offloads_in_flight",
        "ordered",
        "orders",
        "orders_wait",
        "pace",
        "peer_link",
        "pool",
        "preempting",
        "prefill_share",
        "promised",
        "recovers_us",
        "reuse",
        "role",
        "says_leaving",
        "sequences",
        "slots",
        "stalled_us",
        "starved",
        "stepped_us",
        "steps",
        "store_id",
        "tier_links",
        "transfers",
        "ungranted",
        "worker_id",
    )

    def __init__(self, hello: WorkerJoined, policy: Policy) -> None:
        self.hello = hello
        self.epoch = hello.epoch
        self.worker_id = hello.worker_id
        self.store_id = hello.store_id
        self.role = hello.role
        self.labels = frozenset(hello.labels)
        self.closed_until_us = 0  # after a failed allocation nothing is admitted until then
        self.recovers_us = 0
        self.block_tokens = hello.block_tokens
        self.block_bytes = hello.block_bytes
        self.max_seqs = min(policy.max_num_seqs, hello.max_num_seqs)
        self.offload_candidates: OrderedDict[int, Leaving] = OrderedDict()  # by block
        self.costs = StepCosts(hello.calibration)
        self._quiet_us = max(policy.worker_silence_us // 2, QUIET_LEAST_US)
        self._stuck_us = max(policy.progress_timeout_us // 2, QUIET_LEAST_US)
        self.healthy = True  # as of the last audit, or since a report: else nothing new is sent, whatever it has cached
        self.reuse = 0.0  # share of an admission's tokens that the cache had, a running mean
        self._budget = policy.max_num_batched_tokens
        self.index = PrefixIndex(hello.num_blocks, self._forgotten, self.block_cost_us, hello.block_bytes)
        self.pool = self.index.pool
        self.slots: list[Sequence | None] = [None] * self.max_seqs
        self.free_slots = list(range(self.max_seqs - 1, -1, -1))
        self.sequences: dict[int, Sequence] = {}
        self.of_tenant: Counter[str] = Counter()  # sequences
        self.transfers: dict[int, Transfer] = {}
        self.computing: dict[bytes, Sequence] = {}
        self.hungry: dict[Sequence, None] = {}
        self.backed_blocks = hello.num_blocks - 1  # usable at most: others have no memory yet
        self.backlog = 0  # tokens that running sequences have still to prefill
        self.ungranted = 0  # blocks that its sequences lack to their last position, the stopping ones included
        self.starved = 0
        self.calm_water = 0  # positions that a calm sequence's table reaches beyond its tokens, at least (reports.py)
        self.stalled_us = (
            0.0  # what decodes stood still for beside prefills, in gaps that missed their target; over all, ever
        )
        self.evicted = 0  # cached blocks taken for others, since the last report
        self.evictions = dict.fromkeys(EVICTIONS, 0)  # the same by what they made room for, since the worker joined
        self.draining = False
        self.drain_until_us = -1  # draining.py's deadline; -1: none
        self.leave_ordered = self.says_leaving = False
        self.handed_over = 0
        self.preempting: set[int] = set()
        self.promised: dict[Request, int] = {}  # blocks for what other workers prefill for this one
        self.offloads_in_flight = 0
        self.kept: dict[Keeper, list[int]] = {}  # blocks of clients that paused, by their pause
        self.pace = Pace(policy.max_num_batched_tokens)
        self.batch_due_us = -1  # when it begins a batch that is not full (policies/joining.py)
        self.batch_since_us = -1  # when the first of the sequences that run now was seated on an idle worker
        self.link = LinkCosts()
        self.loads_seen = False
        self.tier_links: dict[str, LinkCosts] = {}  # by the tier that loads came from
        self.holding = Holding(hello.now_us)
        self.peer_link = LinkCosts(PEER_BYTES_PER_US, PEER_FIXED_US)
        self.orders: list[Order] = []  # not told yet: those of the event at hand, and names that can wait before them
        self.orders_wait = True  # names do
        self.ordered = 0  # orders that were told
        self.steps = 0
        self.stepped_us = hello.now_us  # when a step was last reported
        self.busy_share = 0.0  # of the last seconds, in which it stepped
        self.prefill_share = 0.0  # ... in which it prefilled
        self.joined_us = self.last_report_us = self.last_progress_us = hello.now_us

    def _forgotten(self, block: int) -> None:
        self.offload_candidates.pop(block, None)
        self.holding.leave((block,))
        self.evicted += 1
        self.evictions["shrink"] += 1  # unless take() has another name for it

    def block_cost_us(self, depth: int) -> float:
        """Predicted time to compute block `depth` of a chain again, in a prefill of whole chunks."""
        tokens = self.block_tokens
        context_us = self.costs.context_token_us * depth * tokens / self._budget
        return tokens * (self.costs.prefill_token_us + context_us)

    def order(self, order: Order) -> int:
        """Gives an order; returns its number among all of this epoch, from 1, which the worker's live list comes back to."""
        self.orders.append(order)
        return self.ordered + len(self.orders)

    def name(self, label: Label, *, soon: bool) -> None:
        """Blocks have names now. Not `soon`: the order goes with the next one, at the latest a second later or when nothing runs here."""
        last = self.orders[-1] if self.orders else None
        if isinstance(last, Label) and last.can_wait and label.can_wait:
            last.block_ids += label.block_ids
            last.keys += label.keys
            last.parents += label.parents
        else:
            self.orders.append(label)
        self.orders_wait = self.orders_wait and not soon

    def orders_due(self) -> bool:
        """Whether something is ordered that does not wait."""
        orders = self.orders
        if len(orders) != 1 or not self.orders_wait or not self.sequences:
            return bool(orders)
        return not (isinstance(orders[0], Label) and orders[0].can_wait)

    def take_orders(self) -> list[Order]:
        """What was ordered since the last call."""
        orders, self.orders, self.orders_wait = self.orders, [], True
        self.ordered += len(orders)
        return orders

    def take(self, count: int, why: str) -> list[int]:
        """`count` free blocks for a sequence; cached ones that go for it are booked under `why`. Raises OutOfBlocks."""
        before = self.evicted
        blocks = self.pool.take(count)
        if self.evicted != before:
            self._booked(before, why)
        return blocks

    def _booked(self, before: int, why: str) -> None:
        taken = self.evicted - before
        self.evictions["shrink"] -= taken
        self.evictions[why] += taken

    def fork(self, table: list[int], shared: int, own: int, why: str) -> list[int]:
        """BlockPool.fork, booked as `take` is."""
        before = self.evicted
        blocks = self.pool.fork(table, shared, own)
        if self.evicted != before:
            self._booked(before, why)
        return blocks

    def all_evictions(self) -> dict[str, int]:
        """Blocks that have left the index, by reason."""
        return self.evictions | {"cut": self.index.cut_blocks}

    def note_reuse(self, share: float) -> None:
        """An admission found this share of its tokens in the cache."""
        self.reuse += REUSE_MEMORY * (share - self.reuse)

    def is_well(self, now_us: int) -> bool:
        """It reports, and what runs there advances."""
        if now_us - self.last_report_us > self._quiet_us:
            return False
        return not self.sequences or now_us - self.last_progress_us <= self._stuck_us

    def shape(self) -> Shape:
        """What decides whether a request can ever run here."""
        return Shape(self.block_tokens, self.pool.usable_blocks, self.max_seqs, self.hello.max_model_len)

    def take_evicted(self) -> int:
        """Cached blocks that made room for others since the last call."""
        evicted, self.evicted = self.evicted, 0
        return evicted

    def idle(self) -> bool:
        """Nothing runs here, is copied, or waits to be copied."""
        return not (self.sequences or self.transfers or self.offload_candidates)

    def running(self) -> list[Sequence]:
        """Sequences that step: neither stopping nor finished."""
        return [sequence for sequence in self.sequences.values() if not sequence.stopping]

    def note_behind(self, sequence: Sequence, gone: bool = False) -> None:
        """What `sequence` has still to prefill has changed."""
        over = gone or sequence.stopping
        behind = 0 if over else max(0, sequence.length - sequence.computed_len - 1 - sequence.join_tokens)
        self.backlog += behind - sequence.behind
        sequence.behind = behind

    def pending_release(self) -> int:
        """Blocks that come back when what is stopping has been released, and what is swapped out is away."""
        released = sum(
            sum(map(self.pool.is_held_once, sequence.blocks)) if sequence.swap else self.exclusive_blocks(sequence)
            for sequence in self.sequences.values()
            if sequence.stopping
        )
        leaving = {
            block
            for transfer in self.transfers.values()
            if transfer.kind == "offload"
            for block in transfer.blocks
            if self.pool.is_leaving(block)
        }
        return released + len(leaving)

    def exclusive_blocks(self, sequence: Sequence) -> int:
        """Blocks that only this sequence holds."""
        return sum(map(self.pool.is_exclusive, sequence.blocks))

    def check_integrity(self) -> list[str]:
        """The audit, and every block of pool and index looked at: for tests, and when nothing runs."""
        return self.index.check_integrity() + self.audit()

    def shared_blocks(self) -> int:
        """Holds of sequences beyond the first on each block: what sharing saves now."""
        tables = [sequence.blocks for sequence in self.sequences.values()]
        return sum(map(len, tables)) - len(set().union(*tables))

    def unused_positions(self) -> int:
        """Positions in granted blocks that hold no token: internal fragmentation and grants ahead."""
        tables = self.sequences.values()
        return sum(max(0, len(item.blocks) * self.block_tokens - item.length) for item in tables)

    def audit(self) -> list[str]:
        """Pool, slots and tables agree; returns what is wrong, in words. Costs O(blocks held)."""
        wrong: list[str] = []
        leaked = self.leaked_blocks()
        if leaked:
            wrong.append(f"{leaked} blocks are held by nobody that is known: {self._suspects()}")
        in_slots = {sequence.seq for sequence in self.slots if sequence is not None}
        if in_slots != set(self.sequences):
            wrong.append("slots and sequences differ")
        if self.backlog != sum(item.behind for item in self.sequences.values()):
            wrong.append("the count of tokens to prefill is off")
        if self.ungranted != sum(item.ungranted(self.block_tokens) for item in self.sequences.values()):
            wrong.append("the count of ungranted blocks is off")
        for sequence in self.sequences.values():
            if not sequence.computed_len <= min(sequence.length, len(sequence.blocks) * self.block_tokens):
                wrong.append(f"computed_len beyond length or blocks: {sequence!r}")
        return wrong

    def owners(self, block: int) -> list[str]:
        """Who holds a lease on `block`, in words: sequences, transfers, pins, the index. Costs O(blocks held)."""
        named = [f"seq {item.seq}" for item in self.sequences.values() if block in item.blocks or block in item.sources]
        named += [f"{item.kind} {item.xfer_id}" for item in self.transfers.values() if block in item.blocks]
        named += ["pin"] * self.pool.is_pinned(block)
        return named + ["index"] * (self.index.key_of(block) is not None)

    def _suspects(self) -> str:
        blocks = self.pool.suspects(self._tables(), [item.blocks for item in self.transfers.values()])[:4]
        return "; ".join(f"block {block} of {', '.join(self.owners(block)) or 'nobody'}" for block in blocks)

    def _tables(self) -> list[list[int]]:
        """Every list of blocks that sequences hold, what they copy from included."""
        return [held for item in self.sequences.values() for held in (item.blocks, item.sources) if held]

    def leaked_blocks(self) -> int:
        """Blocks whose counts differ from all tables and transfers."""
        return self.pool.leaked(
            (*self._tables(), *self.kept.values()),
            (transfer.blocks for transfer in self.transfers.values()),
        )


class Gateway:
    """One gateway connection."""

    __slots__ = ("cancel_results", "connection", "deliveries", "dirty", "gateway_id", "pause_results")

    def __init__(self, connection: int, gateway_id: str) -> None:
        self.connection = connection
        self.gateway_id = gateway_id
        self.deliveries: dict[str, Delivery] = {}
        self.dirty: dict[Delivery, None] = {}
        self.cancel_results: list[tuple[str, CancelAnswer]] = []
        self.pause_results: list[tuple[str, str]] = []  # request id, what is done

    def owes(self) -> bool:
        """Something of it may have to be sent."""
        return bool(self.dirty or self.cancel_results or self.pause_results)


class CancelAnswer:
    """What a cancel came to."""

    __slots__ = ("blocks_freed", "cost", "found", "last_step", "latency_us", "outcome")

    def __init__(
        self,
        found: bool,
        outcome: str = "",
        last_step: int = 0,
        blocks_freed: int = 0,
        latency_us: int = 0,
        cost: Cost | None = None,
    ) -> None:
        self.found = found
        self.outcome = outcome
        self.last_step = last_step
        self.blocks_freed = blocks_freed
        self.latency_us = latency_us
        self.cost = cost


class Shape(NamedTuple):
    """What decides whether a request can ever run on a worker."""

    block_tokens: int
    usable_blocks: int
    max_seqs: int
    max_model_len: int


class Fleet:
    """All connections of the cell."""

    __slots__ = (
        "_accepting",
        "_hosts",
        "_longest",
        "_roomiest",
        "_shapes",
        "collected",
        "gateways",
        "has_stores",
        "heads",
        "splits",
        "stores",
        "version",
        "workers",
    )

    def __init__(self) -> None:
        self._shapes: dict[str, list[Shape]] = {}  # by pool
        self._longest = -1
        self._roomiest: dict[str, int] = {}  # by pool
        self._accepting: dict[str, list[Worker]] = {}  # by pool
        self._hosts: dict[str, list[Worker]] = {}  # by store id
        self.version = 0  # counts what `changed` was told
        self.splits = False  # a worker only prefills for others
        self.has_stores = False  # a worker names a kvstore, connected or not
        self.heads: set[bytes] = set()  # first keys that some worker may have or compute: who is not here is nowhere
        self.workers: dict[int, Worker] = {}  # by epoch
        self.collected = object()  # another one after each collect
        self.gateways: dict[int, Gateway] = {}  # by connection
        self.stores: dict[str, Directory] = {}  # by store id

    def directory_of(self, worker: Worker) -> Directory | None:
        """The directory of the worker's own kvstore, when that is connected."""
        return self.stores.get(worker.store_id) if worker.store_id else None

    def reach_of(self, worker: Worker, now_us: int) -> Reach | None:
        """What the worker can load from; None: nothing, its own kvstore is not connected or does not answer."""
        own = self.directory_of(worker)
        if own is None or not own.answers(now_us):
            return None
        if not own.fetches or len(self.stores) == 1:
            return Reach(own)
        others = (store for store in self.stores.values() if store is not own)
        return Reach(own, [store for store in others if store.reachable and store.synced and store.answers(now_us)])

    def touch(self, request: Request, woken: set[int]) -> None:
        """Marks every delivery of `request` dirty, and adds the gateway connections to wake to `woken`."""
        for delivery in request.deliveries:
            gateway = self.gateways.get(delivery.gateway)
            delivery.plain = None
            if gateway is not None and not delivery.finished_sent:
                gateway.dirty[delivery] = None
                woken.add(delivery.gateway)

    def owing(self) -> object:
        """What a sequence's `owed_at` is while all its deliveries are dirty: another after each collect."""
        return self.collected if len(self.gateways) == 1 else object()

    def owe(self, deliveries: list[Delivery], woken: set[int]) -> None:
        """`touch` for deliveries of live requests at once, in this order. Whoever is dirty already may be left out."""
        if len(self.gateways) == 1:
            (gateway,) = self.gateways.values()
            gateway.dirty.update(dict.fromkeys(deliveries))
            if gateway.dirty:
                woken.add(gateway.connection)
            return
        for delivery in deliveries:
            self.gateways[delivery.gateway].dirty[delivery] = None
            woken.add(delivery.gateway)

    def by_name(self, worker_id: str) -> Worker | None:
        """The worker of that name, if it is connected."""
        return next((worker for worker in self.workers.values() if worker.worker_id == worker_id), None)

    def of_host(self, store_id: str) -> list[Worker]:
        """The workers that share a kvstore, and so a host."""
        known = self._hosts.get(store_id)
        if known is None:
            known = self._hosts[store_id] = [item for item in self.workers.values() if item.store_id == store_id]
        return known

    def accepting(self, pool: str = "") -> list[Worker]:
        """Workers that may be given new sequences; with a pool's name only those with that label."""
        known = self._accepting.get(pool)
        if known is None:
            known = self._accepting[pool] = [
                worker
                for worker in self.workers.values()
                if not worker.draining and (not pool or pool in worker.labels)
            ]
        return known

    def open_to(self, pool: str, now_us: int) -> list[Worker]:
        """Those of `accepting` that are healthy, and whose admission no failed allocation has closed."""
        accepting = self.accepting(pool)
        for worker in accepting:
            if not worker.healthy or worker.closed_until_us > now_us:
                return [item for item in accepting if item.healthy and item.closed_until_us <= now_us]
        return accepting  # mostly

    def shapes(self, pool: str = "") -> list[Shape]:
        """The different shapes among the workers that accept, of one pool or of all; few, however many workers there are."""
        known = self._shapes.get(pool)
        if known is None:
            known = self._shapes[pool] = list(dict.fromkeys(worker.shape() for worker in self.accepting(pool)))
        return known

    def longest_context(self) -> int:
        """The largest max_model_len among the workers that accept; 0 without one."""
        if self._longest < 0:
            self._longest = max((shape.max_model_len for shape in self.shapes()), default=0)
        return self._longest

    def most_positions(self, pool: str) -> int:
        """KV positions that a request alone may need, by the pools and contexts of the workers that accept; 0 without one."""
        known = self._roomiest.get(pool)
        if known is None:
            sizes = (shape.usable_blocks * shape.block_tokens for shape in self.shapes(pool))
            known = self._roomiest[pool] = min(max(sizes, default=0), max(0, self.longest_context() - 1))
        return known

    def changed(self) -> None:
        """A worker came, left or began to drain."""
        self._roomiest.clear()
        self._shapes.clear()
        self._longest = -1
        self._accepting.clear()
        self._hosts.clear()
        self.splits = any(worker.role == "prefill" for worker in self.workers.values())
        self.has_stores = any(worker.store_id for worker in self.workers.values())
        for worker in self.workers.values():
            if worker.index.known_heads is not self.heads:
                self.heads |= worker.index.known_heads
                worker.index.known_heads = self.heads
        self.version += 1

    def tidy_heads(self) -> None:
        """Forgets first keys that no worker has any more, once they may be many; call it now and then."""
        if len(self.heads) > SPARE_HEADS:
            held: set[bytes] = set()
            for worker in self.workers.values():
                held.update(worker.index.heads(), worker.computing)
            if 2 * len(held) < len(self.heads):
                self.heads.clear()
                self.heads |= held

    def max_request_blocks(self) -> int:
        """Usable blocks of the largest pool; 0 without a worker."""
        return max((shape.usable_blocks for shape in self.shapes()), default=0)
