"""The gateway's inside: implements `octavo_gateway.requests.Gateway` for both edges.

start: tenant > checks > tokenize (out of the loop when long) > admit > find the same request here, or submit it > wait for
the scheduler's word. Everything after that happens in LiveRequest (what is known) and GenerationView (what was given out).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from octavo.errors import (
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    FieldName,
    InternalError,
    OctavoError,
    Unavailable,
    UnknownRequest,
)
from opentelemetry.trace import Tracer

from octavo_gateway import sampling_checks as check
from octavo_gateway.admission import MAX_NAME_CHARS, UNKNOWN_LIMITS, Admission, AdmittedRequest, prompt_chars
from octavo_gateway.caching.chunks import join_chunks
from octavo_gateway.caching.preloads import Preloaded, Preloads, adopt_salt, continue_preload
from octavo_gateway.chat import check_messages
from octavo_gateway.generation import GenerationView
from octavo_gateway.live import LiveRequest
from octavo_gateway.metrics import GatewayMetrics
from octavo_gateway.release_gate import Gate
from octavo_gateway.requests import (
    Audience,
    CancelOutcome,
    ChatMessage,
    EdgeContext,
    Encoded,
    Generation,
    ModelInfo,
    PromptChunk,
    RequestParams,
)
from octavo_gateway.spans import RequestSpan
from octavo_gateway.tenants import TenantDirectory, wire_id
from octavo_gateway.tokenizer import THREAD_TEXT_CHARS
from octavo_gateway.tool_turns import ToolTurns
from octavo_gateway.upstream import Upstream

DEADLINE_GRACE_S: Final = 0.5
"""The scheduler ends a request at its deadline; this much later the gateway does it without it."""
MAX_TOKENIZE_CHARS: Final = 1_000_000
KEPT_FOR_ACK: Final = 4096
MAX_ACK_MS: Final = 1e9
CANCEL_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What ListModels says of the model beyond the scheduler's Welcome."""

    architecture: str
    created_unix_s: int


class OctavoGateway:
    """See `octavo_gateway.requests.Gateway` for the contract of each method."""

    def __init__(
        self,
        admission: Admission,
        upstream: Upstream,
        tenants: TenantDirectory,
        facts: ModelFacts,
        metrics: GatewayMetrics,
        tracer: Tracer,
        log: logging.Logger,
        clock: Callable[[], float],
        slow_client_timeout_s: float = 10.0,
        gate: Gate | None = None,
        on_end: Callable[[LiveRequest], None] = lambda live: None,
        preloads: Preloads | None = None,
    ) -> None:
        self._preloads = preloads
        self._on_end = on_end
        self.slow_client_timeout_s = slow_client_timeout_s
        self._admission = admission
        self._tokenizer = admission.tokenizer
        self._upstream = upstream
        self._tenants = tenants
        self._facts = facts
        self._metrics = metrics
        self._tracer = tracer
        self._log = log
        self._clock = clock
        self._gate = gate or Gate(open=True)
        self._turns = ToolTurns(upstream)
        self._live: dict[tuple[str, str], LiveRequest] = {}  # (tenant, request id)
        self._by_key: dict[tuple[str, str], LiveRequest] = {}  # (tenant, idempotency key)
        self._ackable: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._draining = False

    @property
    def ready(self) -> bool:
        return not self.why_not_ready

    @property
    def why_not_ready(self) -> str:
        if self._draining:
            return "draining"
        if not self._upstream.ready:
            return "no worker is ready"
        return "" if self._gate.open else self._gate.why

    @property
    def live_count(self) -> int:
        """Requests under way."""
        return self._upstream.live_count

    async def start(self, params: RequestParams, edge: EdgeContext) -> Generation:
        received, received_ns = self._clock(), time.time_ns()
        operation = "chat" if params.kind == "chat" else "text_completion"
        # a name that is not served is a client's own text, of any length: not for a span
        model = self._admission.model if params.model in ("", self._admission.model) else ""
        span = RequestSpan(self._tracer, edge.edge, operation, model, edge.traceparent, received_ns)
        try:
            return await self._start(params, edge, span, received)
        except OctavoError as error:
            self._refused(span, error)
            raise
        except asyncio.CancelledError:
            span.fail(Cancelled("the client left before the first token", reason="client_disconnect"))
            raise
        except BaseException as error:
            span.fail(InternalError(str(error)))
            raise

    async def _start(self, params: RequestParams, edge: EdgeContext, span: RequestSpan, received: float) -> Generation:
        tenant = self._tenants.tenant_of(edge.api_key)
        if self._draining:
            raise Unavailable(
                "this gateway is shutting down; try another", reason="rejected-draining", retry_after_s=1.0
            )
        if not edge.internal:
            self._gate.check()
        if not self._upstream.ready:  # a bad request is told so at once, whoever is away
            self._admission.check(params, self._upstream.limits or UNKNOWN_LIMITS)
            self._admission.check_sampling(params, self._upstream.limits or UNKNOWN_LIMITS)
        limits = await self._upstream.wait_ready()
        self._admission.check(params, limits)
        tokenizing_ns = time.time_ns()
        tokenizing = self._clock()
        preload, chunks = await self._continued(params, tenant)
        encoded = await self._encode(params, preload)
        tokenized = self._clock()
        span.child("tokenize", tokenizing_ns, time.time_ns(), tokens=len(encoded.prompt_ids))
        deadline_s = _shortest(edge.deadline_s, params.deadline_ms / 1e3 if params.deadline_ms else None)
        admitted = self._admission.admit(params, encoded, tenant, deadline_s, limits, chunks)
        if not admitted.resumes and (turn := self._turns.continued(tenant, params.messages)):
            admitted = replace(
                admitted, resumes=turn
            )  # no part of what was asked: another gateway does not know the turn
        span.admitted(admitted)
        live = await self._same_request(admitted)
        if live is None:
            live = self._submit(admitted, span, received)
            live.tokenize_us = int((tokenized - tokenizing) * 1e6)
        await self._accepted(live, span)
        return GenerationView(live, span, self._tokenizer, self._clock, self._log, tokenized_s=tokenized)

    async def _continued(self, params: RequestParams, tenant: str) -> tuple[Preloaded | None, list[PromptChunk]]:
        """What the request continues, as it is now, and the chunks in it. Raises UnknownPreload, InvalidRequest, Unavailable."""
        field = "cache.chunks" if params.cache_chunks else "cache.preload"
        names = list(params.cache_chunks) or [name for name in (params.cache_preload,) if name]
        if not names:
            return None, []
        if self._preloads is None:
            raise check.invalid(field, "this gateway serves no preloads; leave it out")
        found = {name: await self._preloads.use(tenant, name, field) for name in dict.fromkeys(names)}
        preload, chunks = join_chunks(names, [found[name] for name in names], self._tokenizer.bos_id)
        adopt_salt(params, preload)
        return preload, chunks if params.cache_chunks else []

    async def _encode(self, params: RequestParams, preload: Preloaded | None) -> Encoded:
        def encode() -> Encoded:
            if preload is None:
                return self._admission.encode(params)
            return Encoded(continue_preload(self._admission, params, preload))

        return encode() if prompt_chars(params) < THREAD_TEXT_CHARS else await asyncio.to_thread(encode)

    async def _same_request(self, admitted: AdmittedRequest) -> LiveRequest | None:
        """The live request of this id or key. AlreadyExists when its body is another."""
        names = admitted.tenant, admitted.request_id, admitted.idempotency_key
        found = self._find(*names)
        while found is not None and found.admitted is None and not found.accepted.done():
            await asyncio.shield(found.accepted)  # an attach that does not know yet whether there is one
            found = self._find(*names)
        if found is None or found.admitted is None:
            return None
        if found.admitted.body_hash != admitted.body_hash:
            raise AlreadyExists(
                "a request of this id or idempotency key exists with another body; use a new one", field="request_id"
            )
        return found

    def _find(self, tenant: str, request_id: str, idempotency_key: str) -> LiveRequest | None:
        """What runs under this id, or else under this key."""
        for table, name in ((self._live, request_id), (self._by_key, idempotency_key)):
            found = table.get((tenant, name)) if name else None
            if found is not None and not found.ended:
                return found
        return None

    def _submit(self, admitted: AdmittedRequest, span: RequestSpan, received: float) -> LiveRequest:
        deadline = None if admitted.deadline_s is None else received + admitted.deadline_s
        if deadline is not None and deadline <= self._clock():
            raise DeadlineExceeded("the deadline had passed on arrival", reason="rejected-deadline")
        live = self._new_live(admitted.tenant, admitted.request_id, admitted, received)
        live.traceparent = span.traceparent
        live.deadline = deadline
        live.itl_target_s = self._metrics.itl_target_s(admitted.slo_class)
        self._upstream.submit(live)
        self._name(live, admitted.tenant, admitted.request_id, admitted.idempotency_key)
        if deadline is not None:
            self._watch_deadline(live, deadline)
        return live

    def _name(self, live: LiveRequest, tenant: str, request_id: str, idempotency_key: str) -> None:
        """Lets others find the request until it ends."""
        for table, name in ((self._live, request_id), (self._by_key, idempotency_key)):
            if name and not live.ended and (tenant, name) not in table:
                table[tenant, name] = live
                live.names.append((table, (tenant, name)))

    def _new_live(self, tenant: str, request_id: str, admitted: AdmittedRequest | None, received: float) -> LiveRequest:
        name = wire_id(tenant, request_id)
        return LiveRequest(name, tenant, self._tokenizer, self._upstream, self, self._clock, admitted, received)

    def _watch_deadline(self, live: LiveRequest, deadline: float) -> None:
        def too_late() -> None:
            if not live.ended:
                live.cancel("deadline")
                live.fail(DeadlineExceeded("the deadline has passed", reason="evicted-deadline"))

        delay = deadline - self._clock() + DEADLINE_GRACE_S
        live.deadline_timer = asyncio.get_running_loop().call_later(delay, too_late)

    async def _accepted(self, live: LiveRequest, span: RequestSpan) -> None:
        """Waits for the scheduler's first word; raises when it is a refusal. A caller that leaves cancels."""
        live.clients += 1
        try:
            await asyncio.shield(live.accepted)
        except asyncio.CancelledError:
            live.leave("client_disconnect")
            raise
        if live.error is not None and not live.completion_tokens:
            live.clients -= 1
            self._log_refused(span, live.error)
            raise live.error
        if live.admitted is not None:  # one that was attached to may have other names than it was asked for by
            self._name(live, live.admitted.tenant, live.admitted.request_id, live.admitted.idempotency_key)

    async def attach(self, request_id: str, idempotency_key: str, from_byte: int, edge: EdgeContext) -> Generation:
        span = RequestSpan(self._tracer, edge.edge, "attach", self._admission.model, edge.traceparent, time.time_ns())
        try:
            tenant = self._tenants.tenant_of(edge.api_key)
            if not edge.internal:
                self._gate.check()
            check.name("request_id", request_id, MAX_NAME_CHARS)
            check.name("idempotency_key", idempotency_key, MAX_NAME_CHARS)
            if not request_id and not idempotency_key:
                raise check.invalid(
                    "request_id", "neither it nor ", FieldName("idempotency_key"), " is given; send one"
                )
            live = self._find(tenant, request_id, idempotency_key)
            if live is None:
                await self._upstream.wait_ready()
                live = self._attach_upstream(tenant, request_id, idempotency_key)
            await self._accepted(live, span)
            if live.admitted is None:
                raise live.error or UnknownRequest("this request is not known here", reason="request_not_found")
            span.admitted(live.admitted)
            return GenerationView(live, span, self._tokenizer, self._clock, self._log, from_byte=from_byte)
        except OctavoError as error:
            self._refused(span, error)
            raise
        except asyncio.CancelledError:
            span.fail(Cancelled("the client left", reason="client_disconnect"))
            raise

    def _attach_upstream(self, tenant: str, request_id: str, idempotency_key: str) -> LiveRequest:
        live = self._new_live(tenant, request_id or self._admission.draw_id(), None, self._clock())
        # Known at once, so that a second attach waits for the same answer.
        self._name(live, tenant, request_id, idempotency_key)
        self._upstream.attach(live, idempotency_key)
        return live

    async def cancel(self, request_id: str, reason: str, edge: EdgeContext) -> CancelOutcome:
        tenant = self._tenants.tenant_of(edge.api_key)
        if not check.name("request_id", request_id, MAX_NAME_CHARS):
            raise check.invalid("request_id", "it is empty; send the id of Started")
        live = self._live.get((tenant, request_id))
        name = live.wire_id if live is not None else wire_id(tenant, request_id)
        word = reason if reason in ("client_disconnect", "slow_client", "shutdown") else "client_cancel"
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                return await self._upstream.cancel_and_wait(name, tenant, word)
        except TimeoutError:
            raise Unavailable("the scheduler did not confirm the cancel in time", reason="scheduler-slow") from None

    async def pause(self, request_id: str, tool: str, expected_ms: int, edge: EdgeContext) -> str:
        tenant = self._tenants.tenant_of(edge.api_key)
        if not check.name("request_id", request_id, MAX_NAME_CHARS):
            raise check.invalid("request_id", "it is empty; send the id of Started")
        check.name("pause.tool", tool, MAX_NAME_CHARS)
        check.integer("pause.expected_ms", expected_ms, 0, 2**32 - 1)
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                return await self._upstream.pause_and_wait(wire_id(tenant, request_id), tenant, tool, expected_ms)
        except TimeoutError:
            raise Unavailable("the scheduler did not answer the pause in time", reason="scheduler-slow") from None

    def ack(
        self, request_id: str, byte_end: int, first_token_ms: float, last_token_ms: float, edge: EdgeContext
    ) -> bool:
        name = (self._tenants.tenant_of(edge.api_key), request_id)
        for field, value in (("first_token_ms", first_token_ms), ("last_token_ms", last_token_ms)):
            check.number(field, value, 0, MAX_ACK_MS)
        if name not in self._live and name not in self._ackable:
            return False
        self._ackable.pop(name, None)
        self._metrics.acked(first_token_ms)
        self._log.info(
            "request %s acknowledged: %d bytes, first token after %.1f ms, last after %.1f ms at the client",
            request_id, byte_end, first_token_ms, last_token_ms,
        )  # fmt: skip
        return True

    def tokenize(
        self,
        model: str,
        text: str | None,
        messages: Sequence[ChatMessage] | None,
        edge: EdgeContext,
        *,
        parse_special: bool = False,
        add_bos: bool | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        self._tenants.tenant_of(edge.api_key)
        self._admission.check_model(model)
        if messages is not None:
            check_messages(messages)
            return self._admission.chat.encode(messages, add_generation_prompt=add_generation_prompt)
        if text is None:
            raise check.invalid("text", "neither it nor messages is given; send one")
        if len(check.text("text", text)) > MAX_TOKENIZE_CHARS:
            raise check.invalid("text", f"{len(text)} characters; send at most {MAX_TOKENIZE_CHARS}")
        return self._tokenizer.with_bos(self._tokenizer.encode(text, parse_special=parse_special), add_bos)

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        return self._tokenizer.pieces(check.token_ids("token_ids", token_ids, self._tokenizer.vocab_size))

    def detokenize(
        self, model: str, token_ids: Sequence[int], edge: EdgeContext, *, skip_special_tokens: bool = False
    ) -> str:
        self._tenants.tenant_of(edge.api_key)
        self._admission.check_model(model)
        ids = check.token_ids("token_ids", token_ids, self._tokenizer.vocab_size)
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def models(self, edge: EdgeContext) -> list[ModelInfo]:
        self._tenants.tenant_of(edge.api_key)
        limits = self._upstream.limits
        return [
            ModelInfo(
                id=self._admission.model,
                max_model_len=limits.max_model_len if limits else 0,
                vocab_size=self._tokenizer.vocab_size,
                architecture=self._facts.architecture,
                fingerprint=limits.root_key.hex() if limits else "",
                created_unix_s=self._facts.created_unix_s,
            )
        ]

    def audience(self, edge: EdgeContext) -> Audience:
        tenant = self._tenants.tenant_of(edge.api_key)
        return Audience(tenant, self._tenants.sees_all(tenant))

    async def drain(self) -> None:
        """No new requests; waits for live ones, and cancels the rest when the caller's time is over."""
        self._draining = True
        try:
            await self._upstream.wait_idle()
        except asyncio.CancelledError:
            for live in list(self._live.values()):
                live.cancel("shutdown")
                live.fail(Unavailable("this gateway is shutting down", reason="shutdown", retry_after_s=1.0))
            raise

    def first_token(self, seconds: float) -> None:
        """Observer of live requests: the first token came, seconds after the request was received."""
        self._metrics.first_token(seconds)

    def token_gaps(self, seconds: float, arrivals: int) -> None:
        """Observer of live requests: tokens came so many times, each after `seconds` per token."""
        self._metrics.token_gaps(seconds, arrivals)

    def ended(self, live: LiveRequest) -> None:
        """Observer of live requests: one came to its terminal. Its names are free again, an Ack may still come."""
        if live.deadline_timer is not None:
            live.deadline_timer.cancel()
        for table, name in live.names:
            if table.get(name) is live:
                del table[name]
        if live.admitted is not None:
            self._ackable[live.admitted.tenant, live.admitted.request_id] = None
            while len(self._ackable) > KEPT_FOR_ACK:
                self._ackable.popitem(last=False)
        self._metrics.ended(live)
        self._turns.ended(live)
        self._on_end(live)

    def _refused(self, span: RequestSpan, error: OctavoError) -> None:
        if not span.ended:  # otherwise a live request was counted when it ended
            self._metrics.refused(error)
            self._log_refused(span, error)

    def _log_refused(self, span: RequestSpan, error: OctavoError) -> None:
        span.fail(error)
        self._log.info("request refused: %s (%s), trace %s", error.default_reason, error.reason, span.trace_id)


def _shortest(*seconds: float | None) -> float | None:
    given = [value for value in seconds if value is not None]
    return min(given) if given else None
