"""A request under way: what the scheduler has said of it so far, and the one end it comes to.

No I/O here: the upstream calls the `on_*` methods, readers look at what changed, orders to the scheduler go through the
`Orders` that it was given. Times are seconds on the gateway's monotonic clock.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.errors import Cancelled, FieldName, InternalError, NoToolCall, OctavoError, from_outcome

from octavo_gateway.admission import AdmittedRequest
from octavo_gateway.choice import ChoiceOutput, RawLogprob
from octavo_gateway.request_state import load_state
from octavo_gateway.requests import BeamScore, Cost, Wakeup
from octavo_gateway.tokenizer import Tokenizer
from octavo_gateway.ttft import Measured, TtftParts, decompose


class Orders(Protocol):
    """What a live request may ask of the scheduler; never blocks."""

    def stop_choice(self, wire_id: str, index: int, at_len: int) -> None: ...

    def cancel(self, wire_id: str, tenant: str, reason: str) -> None: ...

    def forget(self, wire_id: str) -> None: ...


class Observer(Protocol):
    """Who counts; see metrics.py."""

    def first_token(self, seconds: float) -> None: ...

    def token_gaps(self, seconds: float, arrivals: int) -> None: ...

    def ended(self, live: LiveRequest) -> None: ...


@dataclass(slots=True)
class TravelledTimes:
    """Durations in microseconds that the scheduler and the worker measured."""

    queue_us: int = 0
    kv_load_us: int = 0
    worker_wait_us: int = 0
    prefill_us: int = 0
    decode_us: int = 0
    scheduler_us: int = 0
    first_token_us: int = 0
    preemptions: int = 0
    attempts: int = 1
    retry_us: int = 0
    sample_us: int = 0
    dispatch_us: int = 0
    report_us: int = 0


class LiveRequest:
    """`admitted` is None while an attach waits for the state that the scheduler holds.

    `error` or `finished` is set once: the terminal. `wire_id` is the request's name on the scheduler's stream.
    """

    __slots__ = (
        "_clock", "_observer", "_orders", "_tokenizer", "accepted", "admitted", "at_end", "attempt", "blended_tokens",
        "busy_ns", "cached_by_tier", "cached_tokens", "cancel_reason", "choices", "clients", "completed", "cost",
        "deadline", "deadline_timer", "degraded", "error", "finished", "first_read", "first_token", "gap_tokens",
        "gaps_s", "itl_target_s", "joined", "last_token", "late_tokens", "longest_gap_s", "max_tokens", "names",
        "received", "relay_us", "resend_us", "resubmitted", "resubmitted_before_token", "send_us", "submitted",
        "tenant", "times", "times_cover_first_token", "tokenize_us", "traceparent", "wakeups", "wire_id",
    )  # fmt: skip

    def __init__(
        self,
        wire_id: str,
        tenant: str,
        tokenizer: Tokenizer,
        orders: Orders,
        observer: Observer,
        clock: Callable[[], float],
        admitted: AdmittedRequest | None = None,
        received: float | None = None,
    ) -> None:
        self.wire_id = wire_id
        self.tenant = tenant
        self.admitted = admitted
        self.choices: list[ChoiceOutput] = []
        self.attempt = 1
        self.traceparent = ""
        self.submitted = clock()
        self.received = self.submitted if received is None else received
        self.first_token = self.last_token = self.completed = 0.0
        self.deadline: float | None = None
        self.deadline_timer: asyncio.TimerHandle | None = None
        self.cached_tokens = 0
        self.blended_tokens = 0
        self.cached_by_tier: dict[str, int] = {}
        self.busy_ns = 0  # spent on text
        self.times = TravelledTimes()
        self.cost = Cost()
        self.gaps_s = array("f")  # per token, of each arrival after the first
        self.at_end: list[Callable[[], None]] = []
        self.tokenize_us = 0
        self.resubmitted = 0.0  # the last time it was sent again
        self.resubmitted_before_token = 0.0  # the resubmit that a new scheduler took before any token
        self.joined = False  # it was under way or over already when this gateway asked for it
        self.times_cover_first_token = True  # what the scheduler measures is the way to this client's first token
        self.send_us = self.resend_us = 0  # until the submit, and the last resubmit, was written
        self.first_read = 0.0  # when the message with the first token was read
        self.relay_us = 0  # how long that token was in the scheduler
        self.longest_gap_s = 0.0
        self.itl_target_s = 0.0  # of its SLO class; 0: none
        self.gap_tokens = self.late_tokens = 0  # tokens after the first, and those whose gap missed the target
        self.finished = False
        self.error: OctavoError | None = None
        self.cancel_reason = ""
        self.degraded = ""  # what overload made of it, in the scheduler's words
        self.max_tokens = 0  # per choice, as the scheduler took it on; 0: not said
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.wakeups: set[Wakeup] = set()
        self.clients = 0  # who waits for it or reads it
        self.names: list[tuple[dict[tuple[str, str], LiveRequest], tuple[str, str]]] = []
        self._tokenizer = tokenizer
        self._orders = orders
        self._observer = observer
        self._clock = clock
        if admitted is not None:
            self._make_choices(admitted)

    @property
    def ended(self) -> bool:
        """The terminal is known."""
        return self.finished or self.error is not None

    @property
    def outcome(self) -> str:
        """One word: finished, or what the error is."""
        return "finished" if self.finished else (self.error.default_reason if self.error else "running")

    def _make_choices(self, admitted: AdmittedRequest) -> None:
        self.choices = [ChoiceOutput(i, admitted.text, self._tokenizer, admitted.prompt_ids) for i in range(admitted.n)]

    def on_accepted(
        self, *, attached: bool, state: bytes, prompt_ids: list[int], degraded: str = "", max_tokens: int = 0
    ) -> None:
        """The scheduler took it. When it had it already, under this name or key, its state is the one in force."""
        self.degraded, self.max_tokens = degraded, max_tokens
        if attached and state and not self.accepted.done():
            try:
                self.admitted = load_state(state, prompt_ids)
            except OctavoError as error:
                self.fail(error)
                return
            self._make_choices(self.admitted)
        if attached and self.attempt == 1:
            self.joined = True
            self.times_cover_first_token = False  # another client's request: its times began before this one
        elif not attached and self.attempt > 1:
            self.times_cover_first_token = self.times_cover_first_token and not self.first_token
            self.resubmitted_before_token = self.resubmitted
            self.send_us = self.resend_us
        if not self.accepted.done():
            self.accepted.set_result(None)

    def on_sent(self) -> None:
        """Its submit, or the latest resubmit, was written to the stream."""
        waited_us = max(0, round((self._clock() - (self.resubmitted or self.submitted)) * 1e6))
        if self.attempt > 1:
            self.resend_us = waited_us
        else:
            self.send_us = waited_us

    def on_first_read(self, read: float, relay_us: int) -> None:
        """A message with the first token was read at `read`; it was in the scheduler for `relay_us`."""
        self.first_read, self.relay_us = read, relay_us

    def on_tokens(self, index: int, start: int, ids: Sequence[int], logprobs: Sequence[RawLogprob]) -> None:
        """New tokens of a choice. Raises TokenGap when some are missing: the stream cannot be trusted any more."""
        if self.ended or index >= len(self.choices):
            return
        choice = self.choices[index]
        before = len(choice.ids)
        started = time.perf_counter_ns()
        try:
            stopped = choice.finish_reason is None and choice.accept(start, ids, logprobs)
        except IndexError:
            self.cancel("failed")
            self.fail(InternalError(f"the worker sent a token id that is not in the vocabulary: {max(ids)}"))
            return
        self.busy_ns += time.perf_counter_ns() - started
        if stopped:
            self._orders.stop_choice(self.wire_id, index, len(choice.ids))
        if len(choice.ids) > before:
            self._note_tokens(len(choice.ids) - before)
            self.wake()

    def on_plain(self, index: int, start: int, new: int | list[int], read: float, busy_ns: int) -> float:
        """A plain token, or some, in a message read at `read`, whose text cost about `busy_ns`: seconds per token since the one before.

        Negative: they are not plain, and need `on_tokens`. Nobody counts the gap here: see `count_gaps`.
        """
        choices = self.choices
        if index >= len(choices) or not self.first_token:
            return -1.0
        if not isinstance(new, int):
            return self._on_plain_run(choices[index], start, new, read, busy_ns)
        if not choices[index].take_plain(start, new):
            return -1.0
        self.busy_ns += busy_ns
        gap_s = read - self.last_token
        if gap_s < 0.0:
            gap_s = 0.0
        self.last_token = read
        self.gaps_s.append(gap_s)  # _note_gap, in line
        if gap_s > self.longest_gap_s:
            self.longest_gap_s = gap_s
        self.gap_tokens += 1
        if 0.0 < self.itl_target_s < gap_s:
            self.late_tokens += 1
        for event in self.wakeups:
            event.set()
        return gap_s

    def _on_plain_run(self, choice: ChoiceOutput, start: int, new: list[int], read: float, busy_ns: int) -> float:
        if not new or not choice.take_plain_run(start, new):
            return -1.0
        self.busy_ns += busy_ns
        gap_s, self.last_token = max(0.0, read - self.last_token), read
        self._note_gap(gap_s, len(new))
        self.wake()
        return gap_s / len(new)

    def count_gaps(self, gap_s: float, arrivals: int) -> None:
        """Tells who counts of so many arrivals with this gap, of requests with the same observer."""
        self._observer.token_gaps(gap_s, arrivals)

    def _note_tokens(self, count: int) -> None:
        now = self._clock()
        if not self.first_token:
            self.first_token = now
            self._observer.first_token(now - self.received)
        else:
            gap_s = now - self.last_token
            self._note_gap(gap_s, count)
            self._observer.token_gaps(gap_s / count, 1)
        self.last_token = now

    def _note_gap(self, gap_s: float, count: int) -> None:
        self.gaps_s.append(gap_s / count)
        if gap_s > self.longest_gap_s:
            self.longest_gap_s = gap_s
        self.gap_tokens += count
        if self.itl_target_s and gap_s > self.itl_target_s * count:
            self.late_tokens += count

    def on_choice_finished(self, index: int, reason: str, stop_token: int) -> None:
        """A choice ended at the worker: `stop` by a token, or `length`."""
        if self.ended or index >= len(self.choices):
            return
        if reason == "stop":
            self.choices[index].finish("stop", str(stop_token))
        else:
            self.choices[index].finish("length")
        self.wake()

    def on_beam(self, index: int, score: float, cumulative_logprob: float) -> None:
        """What a beam that came back counts."""
        if index < len(self.choices):
            self.choices[index].beam = BeamScore(score, cumulative_logprob)

    def on_finished(
        self,
        outcome: str,
        reason: str,
        message: str,
        retry_after_s: float,
        cached_tokens: int,
        times: TravelledTimes,
        cached_by_tier: Mapping[str, int] | None = None,
        cost: Cost | None = None,
        blended_tokens: int = 0,
    ) -> None:
        """The scheduler's terminal."""
        if self.ended:
            return
        self.times, self.cached_tokens, self.cached_by_tier = times, cached_tokens, dict(cached_by_tier or {})
        self.cost, self.blended_tokens = cost or Cost(), blended_tokens
        if outcome != "finished":
            self.fail(from_outcome(outcome, reason or self.cancel_reason, message, retry_after_s))
            return
        unfinished = [choice.index for choice in self.choices if choice.finish_reason is None]
        if unfinished or not self.choices:
            self.fail(InternalError(f"the scheduler finished the request, but not choices {unfinished}"))
            return
        if (missing := self._missing_call()) is not None:
            return self.fail(missing)
        self.finished = True
        self._end()

    def _missing_call(self) -> OctavoError | None:
        """What is wrong with answers that had to be calls."""
        if self.admitted is None or not self.admitted.text.opening:
            return None
        for choice in self.choices:
            if choice.call_fault:
                problem = f"choice {choice.index}: {choice.call_fault}; ask again, or use "
                return NoToolCall((problem, FieldName("tool_choice"), " auto"), reason="bad-arguments")
            if choice.tool_calls:
                continue
            if choice.finish_reason == "length":
                problem = (
                    f"choice {choice.index}: no call yet when it was cut off after {len(choice.ids)} tokens; raise "
                )
                return NoToolCall((problem, FieldName("max_tokens")))
            problem = f"choice {choice.index}: what the model wrote is no call in valid JSON of an offered function; ask again, or use "
            return NoToolCall((problem, FieldName("tool_choice"), " auto"))
        return None

    def cancel(self, reason: str) -> None:
        """Asks for its end; the terminal comes from the scheduler. First reason wins."""
        if not self.ended and not self.cancel_reason:
            self.cancel_reason = reason
            self._orders.cancel(self.wire_id, self.tenant, reason)

    def leave(self, reason: str) -> None:
        """A client is gone; the last one to go cancels."""
        self.clients -= 1
        if self.clients <= 0:
            self.cancel(reason)

    def fail(self, error: OctavoError) -> None:
        """The terminal, when it is not the scheduler that says so."""
        if not self.ended:
            self.error = error
            self._end()

    def on_cancel_result(self) -> None:
        """The scheduler is done with a cancel; without a terminal before it, it knew nothing of the request."""
        if self.cancel_reason:
            self.fail(Cancelled(f"cancelled: {self.cancel_reason}", reason=self.cancel_reason))

    def _end(self) -> None:
        self.completed = self._clock()
        for choice in self.choices:
            choice.plain = False
        if not self.accepted.done():
            self.accepted.set_result(None)
        self._orders.forget(self.wire_id)
        self._observer.ended(self)
        for done in self.at_end:
            done()
        self.at_end.clear()
        self.wake()

    def wake(self) -> None:
        """Tells every reader that something is new."""
        for event in self.wakeups:
            event.set()

    def ttft_parts(self) -> tuple[TtftParts, int] | None:
        """Where the time to the first token went, and the overlap in microseconds; None when nobody can say."""
        times = self.times
        if not self.first_token or not times.first_token_us or not self.times_cover_first_token:
            return None

        def us(seconds: float) -> int:
            return max(0, round(seconds * 1e6))

        lost_s = self.resubmitted_before_token - self.submitted if self.resubmitted_before_token else 0.0
        return decompose(
            Measured(
                total=us(self.first_token - self.received),
                before_submit=us(self.submitted - self.received),
                send=self.send_us,
                tokenize=self.tokenize_us,
                lost_scheduler=us(lost_s),
                queue=times.queue_us,
                retry=times.retry_us,
                dispatch=times.dispatch_us,
                kv_load=times.kv_load_us,
                worker_wait=times.worker_wait_us,
                prefill=times.prefill_us,
                sample=times.sample_us,
                report=times.report_us,
                relay=self.relay_us,
                detokenize=us(self.first_token - self.first_read) if self.first_read else 0,
            )
        )

    @property
    def completion_tokens(self) -> int:
        """Output tokens over all choices; nothing after a stop string."""
        return sum(len(choice.ids) for choice in self.choices)
