"""A whole cell on a virtual clock: the core, chaos workers behind lossy-by-disconnect links, gateways that check what they get."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

from octavo.keys import extend_keys
from octavo_scheduler.beams.rule import BeamRule
from octavo_scheduler.core import Core
from octavo_scheduler.events import (
    AttachRequested,
    Cancelled,
    ChoiceStart,
    ChoiceStopped,
    DrainRequested,
    Event,
    GatewayJoined,
    GatewayLost,
    Paused,
    StoreChanged,
    StoreInventory,
    StoreJoined,
    StoreLost,
    Submitted,
    Tick,
    WorkerLost,
)
from octavo_scheduler.orders import Effects, Fact, Forget, Keep, Order
from octavo_scheduler.policy import Policy
from octavo_scheduler.preloads.rule import CacheRule
from octavo_scheduler.token_runs import TokenRuns

from tests.scheduler.chaos import ChaosWorker, expected_output, sampling_of, tokens_of
from tests.scheduler.chaos_beams import beam_sampling, expected_beams
from tests.scheduler.chaos_store import ChaosStore
from tests.scheduler.invariants import check_cell

TERMINAL_REASONS = ("finished", "rejected", "cancelled", "deadline", "failed", "already_exists", "not_found")


@dataclass(eq=False)
class Client:
    """One request as a gateway sees it; survives the gateway's connections."""

    request_id: str
    gateway: int
    prompt: list[int]
    max_tokens: int
    seeds: list[int]
    stop_ids: list[int]
    key: str = ""
    deadline_us: int = 0
    priority: int = 0
    tenant: str = "default"
    slo_class: str = ""
    attempt: int = 1
    got: list[list[int]] = field(default_factory=list)
    ended: dict[int, tuple[str, int]] = field(default_factory=dict)
    cuts: dict[int, int] = field(default_factory=dict)
    outcome: str = ""
    reason: str = ""
    cached_tokens: int = 0
    accepted: int = 0
    cancels: int = 0
    cancel_answers: list[tuple[bool, str, int]] = field(default_factory=list)
    pause_answers: list[str] = field(default_factory=list)
    gone: bool = False  # its gateway died and nobody resubmitted
    agreed_tokens: int = 0  # max_tokens as the scheduler took it on; 0: not known yet
    degraded: str = ""
    retry_after_us: int = 0
    message: str = ""
    times: object = None
    beams: BeamRule | None = None  # there is a seed for each beam
    scores: dict[int, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.got = self.got or [[] for _ in (self.seeds if self.beams is None else range(self.beams.shown))]

    def check(self) -> None:
        """What was delivered is what the token function says, as far as the outcome promises."""
        if self.beams is not None:
            self._check_beams(self.beams)
            return
        for index, seed in enumerate(self.seeds):
            want, reason = expected_output(seed, len(self.prompt), self.agreed_tokens or self.max_tokens, self.stop_ids)
            got = self.got[index]
            assert got == want[: len(got)], f"{self.request_id}[{index}] got wrong tokens"
            if index in self.ended:
                ended_reason, count = self.ended[index]
                if index in self.cuts and count == self.cuts[index] and ended_reason == "stop":
                    assert len(got) >= count
                else:
                    assert (got, ended_reason, count) == (want, reason, len(want)), f"{self.request_id}[{index}]"
            if self.outcome == "finished":
                assert index in self.ended, f"{self.request_id}[{index}] finished without an end"

    def _check_beams(self, rule: BeamRule) -> None:
        assert not any(self.got) or self.accepted
        if any(self.got):
            best = expected_beams(self.prompt, len(self.seeds), rule, self.agreed_tokens or self.max_tokens)
            for index, (want, reason, score) in enumerate(best):
                got = self.got[index]
                assert got == want[: len(got)], f"{self.request_id}[{index}] got the tokens of another beam"
                if index in self.ended:
                    assert (got, *self.ended[index]) == (want, reason, len(want)), f"{self.request_id}[{index}]"
                    assert abs((self.scores[index] or 0.0) - score) < 1e-9
        if self.outcome == "finished":
            assert len(self.ended) == rule.shown


@dataclass(eq=False)
class Link:
    """One worker's connection: FIFO both ways with delays, cut all at once."""

    worker: ChaosWorker
    epoch: int = 0  # 0: not connected
    down: deque[tuple[int, list[Order]]] = field(default_factory=deque)
    up: deque[tuple[int, object]] = field(default_factory=deque)
    down_ready_us: int = 0
    up_ready_us: int = 0
    reconnect_at_us: int = 0


class Simulation:
    """Drives everything; every assertion of the chaos parts and of the clients fires inside its methods."""

    def __init__(self, rng: Random, policy: Policy | None = None, delay_us: int = 2000) -> None:
        self.rng = rng
        self.now_us = 1_000_000
        self.policy = policy or Policy()
        self.core = Core(self.policy, self.now_us)
        self.links: list[Link] = []
        self.stores: dict[str, tuple[ChaosStore, int]] = {}
        self.gateways: dict[int, dict[str, Client]] = {}
        self.runs: dict[int, TokenRuns] = {}
        self.clients: list[Client] = []
        self.facts: list[Fact] = []
        self.events = 0
        self.checked = False
        """Every invariant after every event, for walks."""
        self.delay_us = delay_us
        self._next_id = 0
        self._next_epoch = 0
        self.closed: list[str] = []
        self.told: list[tuple[str, Forget | Keep]] = []
        self.root = b"n" * 32
        self.generation = 0
        self.next_wakeup_us = 0

    # -- the shell -------------------------------------------------------------------------------------------------

    def feed(self, event: Event) -> Effects:
        self.events += 1
        effects = self.core.handle(event)
        if self.checked:
            check_cell(self.core.cell)
        self.facts.extend(effects.facts)
        self.next_wakeup_us = effects.next_wakeup_us
        by_epoch = {link.epoch: link for link in self.links if link.epoch}
        for epoch, why in effects.close_workers:
            self.closed.append(why)
            if epoch in by_epoch:
                link = by_epoch.pop(epoch)
                self._cut(link)
                if link.worker.draining:  # it ends with its stream; a new process dials in later
                    link.worker.die()
        for epoch, orders in effects.orders:
            link = by_epoch.get(epoch)
            if link is not None:
                link.down_ready_us = max(link.down_ready_us, self.now_us + self.rng.randint(0, self.delay_us))
                link.down.append((link.down_ready_us, orders))
        for store_id, keys in effects.prefetch:
            directory = self.core.cell.fleet.stores[store_id]
            assert keys and len(set(keys)) == len(keys) and all(key in directory for key in keys), (
                "a hint names what is held"
            )
        for store_id in effects.ask_inventory:
            self._send_inventory(store_id)
        for store_id, told in effects.stores:
            if store_id in self.stores and isinstance(told, Forget):
                self.stores[store_id][0].forget(told.keys, told.namespace)
            self.told.append((store_id, told))
        return effects

    def _cut(self, link: Link, reconnect_us: int = 50_000) -> None:
        link.epoch = 0
        link.down.clear()
        link.up.clear()
        link.reconnect_at_us = self.now_us + reconnect_us

    def add_worker(self, worker: ChaosWorker) -> Link:
        link = Link(worker)
        self.links.append(link)
        self.connect(link)
        return link

    def connect(self, link: Link) -> None:
        self._next_epoch += 1
        link.worker.quiesce()
        link.epoch = self._next_epoch
        link.down_ready_us = link.up_ready_us = self.now_us
        self.feed(link.worker.hello(self.now_us, link.epoch))

    def disconnect(self, link: Link, dead: bool = False, tell: bool = True) -> None:
        epoch = link.epoch
        self._cut(link, self.rng.randint(1, 300_000))
        if dead:
            link.worker.die()
        if tell and epoch:
            self.feed(WorkerLost(self.now_us, epoch, "cut"))

    def drain(self, link: Link, deadline_us: int) -> None:
        self.feed(DrainRequested(self.now_us, link.worker.worker_id, deadline_us))

    # -- kvstores --------------------------------------------------------------------------------------------------

    def add_store(self, store: ChaosStore) -> None:
        connection = self._number()
        self.stores[store.store_id] = (store, connection)
        store.alive = True
        store.events.clear()
        self.feed(StoreJoined(self.now_us, store.store_id, connection, bool(store.peers), bool(store.peers)))

    def kill_store(self, store_id: str) -> None:
        store, connection = self.stores.pop(store_id)
        store.alive = False
        self.feed(StoreLost(self.now_us, store_id, connection))

    def _send_inventory(self, store_id: str) -> None:
        store, connection = self.stores[store_id]
        keys = sorted(store.held)
        store.events.clear()
        half = len(keys) // 2
        number = store.next_number - 1
        self.feed(StoreInventory(self.now_us, store_id, connection, number, keys[:half], False))
        self.feed(StoreInventory(self.now_us, store_id, connection, number, keys[half:], True))

    def flush_store(self, store_id: str, lose: bool = False) -> None:
        store, connection = self.stores[store_id]
        events, store.events = store.events, []
        if lose:
            events = events[1:]
        if events:
            changes = [(key, removed) for _number, key, removed in events]
            self.feed(StoreChanged(self.now_us, store_id, connection, events[0][0], changes))

    # -- gateways --------------------------------------------------------------------------------------------------

    def add_gateway(self) -> int:
        connection = self._number()
        self.gateways[connection] = {}
        self.feed(GatewayJoined(self.now_us, connection, f"g{connection}"))
        return connection

    def lose_gateway(self, connection: int) -> list[Client]:
        """Cuts a gateway; returns its unfinished clients, which somebody may resubmit."""
        served = list(self.gateways.pop(connection).values())
        clients = [client for client in served if not client.outcome]
        for client in served:
            client.cancels = len(client.cancel_answers)  # answers to a dead gateway are lost
        for client in clients:
            client.gone = True
        self.feed(GatewayLost(self.now_us, connection))
        return clients

    def submit(self, gateway: int, prompt: list[int], max_tokens: int, **options: object) -> Client:
        self._next_id += 1
        request_id = str(options.pop("request_id", f"r{self._next_id}"))
        seeds = list(options.pop("seeds", [self._next_id * 1000 + i for i in range(int(options.pop("n", 1)))]))  # type: ignore[call-overload]
        stop_ids = list(options.pop("stop_ids", []))  # type: ignore[call-overload]
        cache_off = bool(options.pop("cache_off", False))
        tool, expected_us = options.pop("pause", ("", 0))  # type: ignore[misc]
        resumes = str(options.pop("resumes", ""))
        rule = options.pop("cache", CacheRule(generation=self.generation))
        client = Client(request_id, gateway, prompt, max_tokens, seeds, stop_ids, **options)  # type: ignore[arg-type]
        self.clients.append(client)
        self.gateways[gateway][request_id] = client
        event = self._submitted(client, cache_off, rule)  # type: ignore[arg-type]
        event.pause_tool, event.pause_expected_us, event.resumes = tool, expected_us, resumes
        self.feed(event)
        self.deliver(gateway)
        return client

    def pause(self, client: Client, tool: str = "t", expected_us: int = 0) -> None:
        """The client says, after the fact, that it pauses."""
        self.feed(Paused(self.now_us, client.gateway, client.request_id, tool, expected_us, client.tenant))

    def resubmit(self, client: Client, gateway: int) -> None:
        client.attempt += 1
        client.gateway, client.gone = gateway, False
        self.gateways[gateway][client.request_id] = client
        self.feed(self._submitted(client, False, CacheRule(generation=self.generation)))

    def _submitted(self, client: Client, cache_off: bool, rule: CacheRule) -> Submitted:
        block_tokens = self.links[0].worker.block_tokens if self.links else 4
        starts = []
        for index, seed in enumerate(client.seeds):
            ended = client.ended.get(index)
            emitted = client.got[index] if index < len(client.got) else []
            starts.append(
                ChoiceStart(seed, tokens_of(emitted[: ended[1]] if ended else emitted), ended[0] if ended else "")
            )
        return Submitted(
            self.now_us,
            client.gateway,
            client.request_id,
            tokens_of(client.prompt),
            client.agreed_tokens or client.max_tokens,
            starts,
            attempt=client.attempt,
            prompt_keys=[] if cache_off else extend_keys(self.root, client.prompt, block_tokens),
            sampling=sampling_of(client.stop_ids) if client.beams is None else beam_sampling(2 * len(starts) + 2),
            beams=client.beams,
            remaining_deadline_us=client.deadline_us,
            priority=client.priority,
            tenant=client.tenant,
            slo_class=client.slo_class,
            idempotency_key=client.key,
            namespace_root=b"" if cache_off else self.root,
            cache=rule,
            body_hash=repr((client.prompt, client.max_tokens, client.seeds)).encode(),
            traceparent="",
        )

    def cancel(self, client: Client, reason: str = "client_cancel") -> None:
        client.cancels += 1
        self.feed(Cancelled(self.now_us, client.gateway, client.request_id, reason, client.tenant))

    def stop_choice(self, client: Client, index: int, at_len: int) -> None:
        if index not in client.ended:
            client.cuts.setdefault(index, at_len)
        self.feed(ChoiceStopped(self.now_us, client.gateway, client.request_id, index, at_len))

    def attach(self, gateway: int, request_id: str) -> None:
        self.feed(AttachRequested(self.now_us, gateway, request_id))

    def deliver(self, gateway: int) -> None:
        """The gateway's stream is writable: everything owed arrives."""
        clients = self.gateways[gateway]
        runs = self.runs.setdefault(gateway, TokenRuns()) if gateway % 2 else None  # not every gateway reads them
        while (updates := self.core.collect(gateway, runs)) or (runs is not None and runs.who):
            self._deliver_runs(clients, runs)
            for update in updates:
                client = clients[update.request_id]
                if runs is not None and update.accepted:
                    runs.give(update.request_id)
                if runs is not None and update.finished is not None:
                    runs.handles.pop(update.request_id, None)
                if update.pause is not None:
                    client.pause_answers.append(update.pause)
                    continue
                if update.cancel is not None:
                    answer = update.cancel
                    client.cancel_answers.append((answer.found, answer.outcome, answer.blocks_freed))
                    continue
                assert not client.outcome, f"{client.request_id}: something came after its terminal event"
                client.accepted += update.accepted
                if update.accepted:
                    client.agreed_tokens, client.degraded = update.max_tokens, update.degraded
                for part in update.tokens:
                    assert part.start == len(client.got[part.index]), "a token was lost or repeated"
                    client.got[part.index].extend(part.tokens)
                for end in update.ended:
                    assert end.index not in client.ended, "a choice ended twice"
                    client.ended[end.index] = (end.reason, end.tokens)
                    client.scores[end.index] = end.score
                if update.finished is not None:
                    assert update.finished.outcome in TERMINAL_REASONS
                    client.outcome, client.reason = update.finished.outcome, update.finished.reason
                    client.retry_after_us, client.message = update.finished.retry_after_us, update.finished.message
                    client.cached_tokens, client.times = update.cached_tokens, update.times
                client.check()

    def _deliver_runs(self, clients: dict[str, Client], runs: TokenRuns | None) -> None:
        """What went as columns instead of updates."""
        if runs is None:
            return
        named, at = {handle: name for name, handle in runs.handles.items()}, 0
        for handle, index, start, count in zip(runs.who, runs.indexes, runs.starts, runs.counts, strict=True):
            client = clients[named[handle]]
            assert client.accepted and not client.outcome and index not in client.ended, "a run came after the end"
            assert start == len(client.got[index]) > 0, "a token was lost or repeated"
            client.got[index].extend(runs.tokens[at : at + count])
            at += count
            client.check()
        assert at == len(runs.tokens)
        runs.take()

    # -- time ------------------------------------------------------------------------------------------------------

    def advance(self, step_us: int) -> None:
        self.now_us += step_us
        if self.next_wakeup_us and self.now_us >= self.next_wakeup_us:
            self.feed(Tick(self.now_us))

    def run_link(self, link: Link) -> None:
        """One iteration boundary of one worker, with what its link has delivered by now."""
        if not link.epoch:
            if self.now_us >= link.reconnect_at_us:
                self.connect(link)
            return
        while link.down and link.down[0][0] <= self.now_us:
            link.worker.receive(link.down.popleft()[1])
        report = link.worker.iterate(self.now_us)
        if report is not None:
            report.epoch = link.epoch
            link.up_ready_us = max(link.up_ready_us, self.now_us + self.rng.randint(0, self.delay_us))
            link.up.append((link.up_ready_us, report))
        while link.up and link.up[0][0] <= self.now_us:
            arrived = link.up.popleft()[1]
            arrived.now_us = self.now_us  # type: ignore[attr-defined]
            self.feed(arrived)  # type: ignore[arg-type]

    def settle(self, limit: int = 20_000) -> None:
        """Runs without new chaos until every client has its terminal event and nothing is held."""
        for link in self.links:
            link.reconnect_at_us = min(link.reconnect_at_us, self.now_us)
            link.worker.backed_blocks = 0  # there is memory again: who fits nowhere else waits for it
        for _ in range(limit):
            self.advance(3000)
            for link in self.links:
                self.run_link(link)
            for gateway in self.gateways:
                self.deliver(gateway)
            fleet = self.core.cell.fleet
            busy = any(worker.sequences or worker.transfers or worker.kept for worker in fleet.workers.values())
            waiting = [c for c in self.clients if not c.gone and (not c.outcome or len(c.cancel_answers) < c.cancels)]
            if not busy and not waiting and not len(self.core.cell.queue):
                return
        state = [(c.request_id, c.outcome, c.attempt) for c in waiting]
        raise AssertionError(f"not settled: busy {busy}, waiting {state}, queue {len(self.core.cell.queue)}")

    def check_clean(self) -> None:
        """Everything is free, nothing leaked, every client is served."""
        for worker in self.core.cell.fleet.workers.values():
            assert worker.check_integrity() == []
            assert worker.pool.free_blocks + worker.pool.pinned_blocks == worker.pool.usable_blocks
            assert not worker.sequences and not worker.transfers and not worker.computing and not worker.hungry
            assert not worker.kept and not worker.promised
            assert sorted(worker.free_slots) == list(range(worker.max_seqs))
        for client in self.clients:
            client.check()
            if not client.gone:
                assert client.outcome, f"{client.request_id} has no terminal event"
                assert client.accepted <= client.attempt
                assert len(client.cancel_answers) == client.cancels
        assert self.core.cell.counters["protocol_errors"] == 0, self.closed

    def check_integrity(self) -> None:
        for worker in self.core.cell.fleet.workers.values():
            assert worker.check_integrity() == []

    def _number(self) -> int:
        self._next_id += 1
        return self._next_id
