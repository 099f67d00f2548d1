"""One client's view of a request under way. Pull-based: what the client has not taken is a position, not a queue."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from blake3 import blake3
from octavo.errors import Cancelled, InternalError
from octavo.packing import pack_u32

from octavo_gateway.choice import ChoiceReader
from octavo_gateway.delta_runs import DeltaColumns
from octavo_gateway.live import LiveRequest
from octavo_gateway.requests import ChoiceEnd, Cost, Event, Finished, Timings, Usage, Wakeup
from octavo_gateway.spans import RequestSpan, wall_ns
from octavo_gateway.tokenizer import Tokenizer


class GenerationView:
    """Implements `octavo_gateway.requests.Generation` over an accepted live request. For one consumer."""

    __slots__ = (
        "_busy_ns", "_clock", "_done", "_iterating", "_live", "_log", "_next", "_readers", "_span", "_tokenized_s",
        "_wakeup", "degraded", "max_tokens", "model", "prompt_tokens", "request_id", "seed", "trace_id",
    )  # fmt: skip

    def __init__(
        self,
        live: LiveRequest,
        span: RequestSpan,
        tokenizer: Tokenizer,
        clock: Callable[[], float],
        log: logging.Logger,
        *,
        tokenized_s: float = 0.0,
        from_byte: int = 0,
    ) -> None:
        admitted = live.admitted
        if admitted is None:
            raise InternalError("a view needs an accepted request")
        self.request_id = admitted.request_id
        self.model = admitted.model
        self.prompt_tokens = len(admitted.prompt_ids)
        self.seed = admitted.seed
        self.degraded = live.degraded
        self.max_tokens = live.max_tokens or admitted.max_tokens
        self.trace_id = span.trace_id
        self._live = live
        self._span = span
        self._clock = clock
        self._log = log
        self._tokenized_s = tokenized_s
        self._readers = [ChoiceReader(choice, tokenizer, from_byte, self.request_id) for choice in live.choices]
        self._next = 0
        self._iterating = asyncio.Event()
        self._wakeup: Wakeup = self._iterating
        self._done = False
        self._busy_ns = 0
        live.wakeups.add(self._iterating)

    def __aiter__(self) -> GenerationView:
        return self

    async def __anext__(self) -> Event:
        if self._done:
            raise StopAsyncIteration
        while True:
            # Cleared before looking: what arrives afterwards sets it again.
            self._iterating.clear()
            event = self.pull()
            if event is not None:
                return event
            await self._iterating.wait()

    def watch(self, wakeup: Wakeup) -> None:
        """From now on `wakeup` is set when there may be something to pull, and nobody iterates."""
        self._live.wakeups.discard(self._wakeup)
        self._wakeup = wakeup
        self._live.wakeups.add(wakeup)

    def give(self, call: int, columns: DeltaColumns) -> bool:
        """Puts plain new tokens into the columns under this number. True: `pull` has what comes next."""
        more = False
        for reader in self._readers:
            if reader.give(call, columns):
                more = True
        live = self._live
        return more or live.finished or live.error is not None

    def pull(self) -> Event | None:
        """The next event that is there. Choices take turns. Raises the terminal error after the last delta."""
        started = time.perf_counter_ns()
        try:
            for _ in self._readers:
                reader = self._readers[self._next]
                self._next = (self._next + 1) % len(self._readers)
                delta = reader.pull()
                if delta is not None:
                    return delta
        finally:
            self._busy_ns += time.perf_counter_ns() - started
        live = self._live
        if live.error is not None:
            self._leave()
            self._record_detokenize()
            self._span.latencies(live)
            self._span.fail(live.error)
            self._log_end(live.error.default_reason, live.error.reason)
            raise live.error
        if live.finished:
            finished = self._finished()
            self._leave()
            self._record_detokenize()
            self._span.finish(live, finished)
            self._log_end("finished", ",".join(choice.finish_reason for choice in finished.choices))
            return finished
        return None

    async def close(self, reason: str) -> None:
        """The client is gone or too slow: cancels, unless another client reads the same request. Idempotent."""
        self.abandon(reason)

    def abandon(self, reason: str) -> None:
        """As `close`, without a loop."""
        if self._done:
            return
        self._leave()
        self._live.leave(reason)
        self._record_detokenize()
        if self._live.cancel_reason and not self._live.ended:  # its cost comes with the scheduler's word
            self._live.at_end.append(lambda: self._close_span(reason))
        else:
            self._close_span(reason)
        self._log_end("cancelled", reason)

    def _close_span(self, reason: str) -> None:
        self._span.latencies(self._live)
        self._span.fail(Cancelled(f"closed: {reason}", reason=reason))

    @property
    def cost(self) -> Cost:
        """What the request took, as of its end."""
        return self._live.cost

    def _leave(self) -> None:
        self._done = True
        self._live.wakeups.discard(self._wakeup)

    def _log_end(self, outcome: str, reason: str) -> None:
        live = self._live
        self._log.info(
            "request %s %s (%s): %d prompt, %d cached, %d output tokens in %.0f ms, trace %s",
            self.request_id,
            outcome,
            reason,
            self.prompt_tokens,
            live.cached_tokens,
            live.completion_tokens,
            ((live.completed or self._clock()) - live.received) * 1e3,
            self.trace_id,
            extra={"request_id": self.request_id, "trace_id": self.trace_id},
        )

    def _record_detokenize(self) -> None:
        live, now = self._live, self._clock()
        if not live.first_token:
            return
        busy_us = (self._busy_ns + live.busy_ns) // 1000
        self._span.child(
            "detokenize",
            wall_ns(live.first_token, now),
            wall_ns(live.last_token, now),
            busy_us=busy_us,
            tokens=live.completion_tokens,
        )

    def _finished(self) -> Finished:
        live = self._live
        usage = Usage(self.prompt_tokens, live.cached_tokens, live.completion_tokens, live.blended_tokens)
        choices = []
        for choice in live.choices:
            if choice.finish_reason is None:
                raise InternalError(f"choice {choice.index} has no end")
            digest = blake3(pack_u32(choice.ids)).digest()
            end = ChoiceEnd(
                choice.index,
                choice.finish_reason,
                len(choice.ids),
                choice.total_bytes,
                digest,
                choice.beam,
            )
            choices.append(end)
        return Finished(usage, self._timings(), choices, live.cost)

    def _timings(self) -> Timings:
        """Moments in order: those of the scheduler and worker are the submit plus durations that travelled."""
        live, times = self._live, self._live.times

        def since(moment: float) -> int:
            return max(0, int((moment - live.received) * 1e6)) if moment else 0

        parts = live.ttft_parts()
        admitted_us = since(live.submitted) + times.queue_us
        prefill_us = admitted_us + times.kv_load_us + times.worker_wait_us
        first_us = since(live.first_token)
        if first_us:
            prefill_us = min(prefill_us, first_us)
            admitted_us = min(admitted_us, prefill_us)
        return Timings(
            t_received_unix_us=max(0, wall_ns(live.received, self._clock()) // 1000),  # a clock may stand before 1970
            t_tokenized_us=since(self._tokenized_s),
            t_admitted_us=admitted_us,
            t_prefill_start_us=prefill_us,
            t_first_token_us=first_us,
            t_last_token_us=since(live.last_token),
            t_complete_us=since(live.completed),
            queue_us=times.queue_us,
            kv_load_us=times.kv_load_us,
            prefill_us=times.prefill_us,
            decode_us=times.decode_us,
            preemptions=times.preemptions,
            attempts=times.attempts,
            ttft=parts[0] if parts is not None else None,
        )
