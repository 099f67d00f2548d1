"""A core and an engine in one process, joined by the very messages that travel between them: no socket, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.packing import pack_u32
from octavo.step import StepBudget
from octavo.v1 import scheduler_pb2 as pb
from octavo.v1 import worker_pb2 as wpb
from octavo_gpuworker.backends.backend import Backend
from octavo_gpuworker.engine import Engine
from octavo_gpuworker.wire import fill_report, orders_from
from octavo_scheduler.core import Core
from octavo_scheduler.events import Cancelled, Event, GatewayJoined, WorkerJoined, WorkerLost
from octavo_scheduler.policy import Policy
from octavo_scheduler.report_wire import ReportReader
from octavo_scheduler.update_wire import UpdateWriter
from octavo_scheduler.wire import read_submit, write_orders


@dataclass
class Told:
    """What a gateway has read of one request."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[wpb.Logprobs]] = field(default_factory=dict)
    ends: dict[int, pb.ChoiceFinished] = field(default_factory=dict)
    outcome: str = ""
    finished: pb.RequestFinished | None = None

    def best(self, index: int = 0) -> list[int]:
        return self.tokens[index]


class BeamCell:
    """One worker over `backend`, one gateway."""

    def __init__(
        self,
        backend: Backend,
        kind: type[Engine] = Engine,
        *,
        num_blocks: int = 0,
        max_seqs: int = 16,
        budget: int = 32,
    ) -> None:
        self.now_us = 1_000_000
        self.core = Core(Policy(max_num_seqs=max_seqs, default_output_tokens=1, max_overcommit=8.0), self.now_us)
        self.kind, self.backend, self.max_seqs, self.budget = kind, backend, max_seqs, budget
        self.num_blocks = num_blocks or backend.pool.num_blocks
        self.epoch = 0
        self.told: dict[str, Told] = {}
        self.writer = UpdateWriter(runs=False)
        self.feed(GatewayJoined(self.now_us, 1, "g"))
        self.join()

    def join(self) -> None:
        """A new epoch with an engine that knows nothing."""
        if self.epoch:
            self.feed(WorkerLost(self.now_us, self.epoch))
        self.epoch += 1
        self.reports = ReportReader(self.epoch)
        self.engine = self.kind(
            self.backend,
            budget=StepBudget(self.budget, self.budget, self.max_seqs),
            start_transfer=lambda order: None,
        )
        size = self.backend.pool.block_tokens
        self.feed(
            WorkerJoined(self.now_us, self.epoch, "w", self.num_blocks, size, self.max_seqs, self.backend.max_position)
        )

    def feed(self, event: Event) -> None:
        effects = self.core.handle(event)
        assert not [why for _epoch, why in effects.close_workers if "protocol" in why], effects.close_workers
        for epoch, batch in effects.orders:
            for message in write_orders(batch) if epoch == self.epoch else ():
                for order in orders_from(wpb.Orders.FromString(message.SerializeToString())):
                    self.engine.post(order)
        message = self.writer.write(self.core.collect(1), self.now_us)
        for update in message.events.events if message is not None else ():
            self._read(update)

    def _read(self, event: pb.RequestEvent) -> None:
        told = self.told[event.request_id]
        kind = event.WhichOneof("event")
        if kind == "tokens":
            tokens = memoryview(event.tokens.tokens).cast("I").tolist()
            told.tokens.setdefault(event.tokens.index, []).extend(tokens)
            told.logprobs.setdefault(event.tokens.index, []).extend(event.tokens.logprobs)
        elif kind == "choice_finished":
            told.ends[event.choice_finished.index] = event.choice_finished
        elif kind == "finished":
            assert not told.outcome
            told.outcome, told.finished = event.finished.outcome, event.finished

    def submit(
        self,
        name: str,
        prompt: list[int],
        max_tokens: int,
        *,
        width: int = 0,
        shown: int = 0,
        penalty: float = 1.0,
        early: bool = False,
        stop_ids: tuple[int, ...] = (),
        logprobs: int = -1,
    ) -> Told:
        """A beam search of this width, or a greedy request."""
        told = self.told[name] = Told()
        message = pb.Submit(
            request_id=name,
            tenant="default",
            prompt_tokens=pack_u32(prompt),
            max_tokens=max_tokens,
            choices=[pb.ChoiceState(seed=at) for at in range(max(1, width))],
        )
        message.sampling.temperature = 0
        if width:
            message.sampling.beam, message.sampling.logprobs = True, max(2 * width, width + len(stop_ids), logprobs)
            beams = message.beams
            beams.shown, beams.length_penalty, beams.early_stopping = shown or width, penalty, early
            beams.stop_ids, beams.logprobs = pack_u32(stop_ids), logprobs
        else:
            message.sampling.logprobs, message.sampling.stop_ids = -1, pack_u32(stop_ids)
        self.feed(read_submit(pb.Submit.FromString(message.SerializeToString()), 1, self.now_us))
        return told

    def cancel(self, name: str) -> None:
        self.feed(Cancelled(self.now_us, 1, name, "client_cancel"))

    def step(self) -> None:
        self.engine.run_once()
        self.now_us += 5_000
        for report in self.engine.take_reports(force=True, live=True):
            message = wpb.Report()
            fill_report(message, report, 0)
            self.feed(self.reports.read(wpb.Report.FromString(message.SerializeToString()), self.now_us))

    def run(self, limit: int = 3000) -> None:
        """Until every request has its end and every block is back."""
        for _ in range(limit):
            if all(told.outcome for told in self.told.values()) and not self.engine.busy:
                break
            self.step()
        assert all(told.outcome for told in self.told.values()), "not done"
        for worker in self.core.cell.fleet.workers.values():
            assert worker.check_integrity() == [] and not worker.sequences
            assert worker.pool.free_blocks == worker.pool.usable_blocks
