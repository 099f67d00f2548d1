"""Between the gateway's nouns and the scheduler's messages: the only place that knows both."""

from __future__ import annotations

from dataclasses import fields

from octavo.packing import pack_u32, unpack_u32
from octavo.v1 import scheduler_pb2, worker_pb2

from octavo_gateway.admission import AdmittedRequest, Limits, Sampling
from octavo_gateway.beams import Beams
from octavo_gateway.choice import RawLogprob
from octavo_gateway.live import LiveRequest, TravelledTimes
from octavo_gateway.request_state import dump_state
from octavo_gateway.requests import Cost
from octavo_gateway.tenants import wire_id


def submit_message(live: LiveRequest, admitted: AdmittedRequest, now: float) -> scheduler_pb2.Submit:
    """A submit, or with attempt > 1 a resubmit that carries what was emitted; `now` in seconds of the live's clock."""
    choices = []
    for choice, seed in zip(live.choices, admitted.seeds, strict=True):
        choices.append(
            scheduler_pb2.ChoiceState(
                seed=seed,
                emitted_tokens=pack_u32(choice.ids) if live.attempt > 1 else b"",
                finished="stop"
                if choice.finish_reason == "tool_calls"
                else choice.finish_reason or "",  # the core knows no text
            )
        )
    remaining_us = 0
    if live.deadline is not None:
        remaining_us = max(1, int((live.deadline - now) * 1e6))
    submit = scheduler_pb2.Submit(
        request_id=live.wire_id,
        attempt=live.attempt,
        tenant=admitted.tenant,
        prompt_tokens=pack_u32(admitted.prompt_ids),
        prompt_keys=admitted.prompt_keys,
        sampling=sampling_message(admitted.sampling),
        max_tokens=live.max_tokens or admitted.max_tokens,  # a resubmit asks for what was agreed on
        choices=choices,
        remaining_deadline_us=remaining_us,
        age_us=int((now - live.submitted) * 1e6),
        priority=admitted.priority,
        slo_class=admitted.slo_class,
        traceparent=live.traceparent,
        idempotency_key=admitted.idempotency_key,
        body_hash=admitted.body_hash,
        gateway_state=dump_state(admitted),
        cache_off=admitted.cache_off,
        namespace_root=admitted.namespace_root,
        namespace_tag=admitted.namespace_tag,
        pause_tool=admitted.pause_tool,
        pause_expected_us=admitted.pause_expected_ms * 1000,
        resumes=wire_id(admitted.tenant, admitted.resumes) if admitted.resumes else "",
        cache=scheduler_pb2.CacheRule(
            ttl_us=round(admitted.cache_ttl_s * 1e6),
            pin=admitted.cache_pin,
            priority=admitted.cache_priority,
            tiers=admitted.cache_tiers,
            generation=admitted.generation,
            layout=admitted.root_key[:8],
            preload=admitted.cache_preload,
            chunks=[
                scheduler_pb2.PromptChunk(name=item.name, start=item.start, tokens=item.tokens, skip=item.skip)
                for item in admitted.chunks
            ],
        ),
    )
    if admitted.beams is not None:
        _write_beams(submit, admitted.beams, admitted.sampling, admitted.n)
    return submit


def _write_beams(submit: scheduler_pb2.Submit, beams: Beams, sampling: Sampling, shown: int) -> None:
    """Makes a submit of `shown` choices the search's: a choice for each beam, and rows as long as its steps need.

    Of a beam's continuations as many may end as there are end tokens; behind them there must be `width` that do not.
    """
    for _ in range(shown, beams.width):
        submit.choices.add()
    message = submit.beams
    message.shown, message.length_penalty, message.early_stopping = shown, beams.length_penalty, beams.early_stopping
    message.stop_ids, message.logprobs = pack_u32(sampling.stop_ids), sampling.logprobs
    row = max(2 * beams.width, beams.width + len(sampling.stop_ids), sampling.logprobs)
    submit.sampling.CopyFrom(worker_pb2.SamplingParams(top_p=1, repetition_penalty=1, logprobs=row, beam=True))


def sampling_message(sampling: Sampling) -> worker_pb2.SamplingParams:
    """Sampling as the worker reads it."""
    biases = sorted(sampling.logit_bias.items())
    return worker_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        bias_ids=pack_u32(token for token, _ in biases),
        bias_values=[bias for _, bias in biases],
        stop_ids=pack_u32(sampling.stop_ids),
        min_tokens=sampling.min_tokens,
        logprobs=sampling.logprobs,
    )


def limits_from(welcome: scheduler_pb2.GatewayWelcome, max_stop_strings: int, max_logprobs: int) -> Limits:
    """What the scheduler's Welcome allows."""
    return Limits(
        root_key=welcome.root_key,
        block_tokens=welcome.block_tokens,
        max_model_len=welcome.max_model_len,
        max_choices=welcome.max_choices,
        max_stop_strings=max_stop_strings,
        max_logprobs=max_logprobs,
        generations=dict(welcome.namespace_generations),
    )


def apply_event(live: LiveRequest, event: scheduler_pb2.RequestEvent, kind: str | None, read: float) -> None:
    """Hands one event of this kind, read at `read` on the live's clock, to its request.

    Raises TokenGap; ValueError when packed ids are damaged.
    """
    if kind == "tokens":
        tokens = event.tokens
        if not live.first_token:
            live.on_first_read(read, tokens.relay_us)
        live.on_tokens(
            tokens.index, getattr(tokens, "from"), unpack_u32(tokens.tokens), [_logprob(raw) for raw in tokens.logprobs]
        )
    elif kind == "accepted":
        accepted = event.accepted
        live.on_accepted(
            attached=accepted.attached,
            state=accepted.gateway_state,
            prompt_ids=unpack_u32(accepted.prompt_tokens),
            degraded=accepted.degraded,
            max_tokens=accepted.max_tokens,
        )
    elif kind == "choice_finished":
        ended = event.choice_finished
        live.on_choice_finished(ended.index, ended.reason, ended.stop_token)
        if ended.HasField("score"):
            live.on_beam(ended.index, ended.score, ended.cumulative_logprob)
    elif kind == "finished":
        end = event.finished
        live.on_finished(
            end.outcome,
            end.reason,
            end.message,
            end.retry_after_us / 1e6,
            end.cached_tokens,
            _times(end.times),
            end.cached_by_tier,
            read_cost(end.cost),
            end.blended_tokens,
        )


def read_cost(cost: scheduler_pb2.RequestCost) -> Cost:
    """A request's cost, field by field of the same name."""
    return Cost(**{item.name: getattr(cost, item.name) for item in fields(Cost)})


def _logprob(raw: worker_pb2.Logprobs) -> RawLogprob:
    return RawLogprob(raw.token, raw.logprob, unpack_u32(raw.top_tokens), tuple(raw.top_logprobs))


def _times(times: scheduler_pb2.RequestTimes) -> TravelledTimes:
    return TravelledTimes(
        queue_us=times.queue_us,
        kv_load_us=times.kv_load_us,
        worker_wait_us=times.worker_wait_us,
        prefill_us=times.prefill_us,
        decode_us=times.decode_us,
        scheduler_us=times.scheduler_us,
        first_token_us=times.first_token_us,
        preemptions=times.preemptions,
        attempts=max(1, times.attempts),
        retry_us=times.retry_us,
        sample_us=times.sample_us,
        dispatch_us=times.dispatch_us,
        report_us=times.report_us,
    )
