"""Between the edge-neutral nouns and the messages of octavo.v1.InferenceService."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from octavo.errors import InvalidRequest
from octavo.packing import RepeatingColumn, pack_u32
from octavo.v1 import inference_pb2 as pb

from octavo_gateway.caching.rules import one_salt
from octavo_gateway.delta_runs import DeltaColumns
from octavo_gateway.requests import (
    CancelOutcome,
    ChatMessage,
    Cost,
    Delta,
    Event,
    Finished,
    Generation,
    ModelInfo,
    RequestParams,
    TokenLogprob,
    ToolCall,
)
from octavo_gateway.tool_calls import parse_json

FINISH_REASONS: Final = {
    "stop": pb.FINISH_REASON_STOP,
    "length": pb.FINISH_REASON_LENGTH,
    "tool_calls": pb.FINISH_REASON_TOOL_CALLS,
}

StreamResponse = pb.GenerateResponse | pb.ChatResponse | pb.AttachResponse | pb.CallEvent


def generate_params(request: pb.GenerateRequest) -> RequestParams:
    """A raw prompt as the client sent it."""
    prompt = request.WhichOneof("prompt")
    params = _common("generate", request.context, request.sampling, request.options)
    params.prompt_text = request.text if prompt == "text" else None
    params.prompt_ids = list(request.token_ids.ids) if prompt == "token_ids" else None
    return params


def chat_params(request: pb.ChatRequest) -> RequestParams:
    """Messages as the client sent them."""
    params = _common("chat", request.context, request.sampling, request.options)
    params.messages = chat_messages(request.messages)
    if request.HasField("add_generation_prompt"):
        params.add_generation_prompt = request.add_generation_prompt
    params.tools, params.tool_choice = [_tool(i, tool) for i, tool in enumerate(request.tools)], request.tool_choice
    return params


def _tool(index: int, tool: pb.Tool) -> dict[str, Any]:
    """In the shape that templates know. InvalidRequest when its parameters are no JSON object."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters:
        function["parameters"] = parse_json(tool.parameters)
        if not isinstance(function["parameters"], dict):
            field = f"tools[{index}].parameters"
            raise InvalidRequest(f"{field}: no JSON object; send a JSON schema of type object as text", field=field)
    return {"type": "function", "function": function}


def chat_messages(messages: Sequence[pb.Message]) -> list[ChatMessage]:
    """Plain messages."""
    return [
        ChatMessage(
            message.role,
            message.content,
            message.name,
            [ToolCall(call.id, call.name, call.arguments) for call in message.tool_calls],
            message.tool_call_id,
        )
        for message in messages
    ]


def _common(kind: str, context: pb.RequestContext, sampling: pb.Sampling, options: pb.Options) -> RequestParams:
    params = RequestParams(kind="chat" if kind == "chat" else "generate")
    for name in ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
                 "repetition_penalty", "seed"):  # fmt: skip
        if sampling.HasField(name):
            setattr(params, name, getattr(sampling, name))
    params.logit_bias = dict(sampling.logit_bias)
    for name in ("max_tokens", "n", "logprobs", "skip_special_tokens", "length_penalty"):
        if options.HasField(name):
            setattr(params, name, getattr(options, name))
    params.min_tokens = options.min_tokens
    params.beam_width, params.early_stopping = options.beam_width, options.early_stopping
    params.stop = list(options.stop)
    params.stop_token_ids = list(options.stop_token_ids)
    params.ignore_eos = options.ignore_eos
    params.include_stop_str = options.include_stop_str
    params.echo = options.echo
    params.model = context.model
    params.request_id = context.request_id
    params.idempotency_key = context.idempotency_key
    params.priority = context.priority
    params.slo_class = context.slo_class
    params.deadline_ms = context.deadline_ms
    params.pause_tool, params.pause_expected_ms = context.pause.tool, context.pause.expected_ms
    params.resumes = context.resumes
    cache = context.cache
    params.cache_off = context.cache_off or cache.off
    params.cache_salt = one_salt(context.cache_salt, cache.salt)
    params.cache_ttl_s = cache.ttl
    params.cache_pin = cache.pin
    params.cache_priority = cache.priority
    params.cache_tiers = tuple(cache.tiers)
    params.cache_preload = cache.preload
    params.cache_chunks = tuple(cache.chunks)
    return params


def started_message(generation: Generation) -> pb.Started:
    """The first message of a stream."""
    return pb.Started(
        request_id=generation.request_id,
        model=generation.model,
        trace_id=generation.trace_id,
        prompt_tokens=generation.prompt_tokens,
        seed=generation.seed,
        degraded=generation.degraded,
        max_tokens=generation.max_tokens,
    )


def fill_event(response: StreamResponse, event: Event) -> None:
    """Puts one event into a stream's response."""
    if isinstance(event, Delta):
        _fill_delta(response.delta, event)
    else:
        response.finished.CopyFrom(_finished_message(event))


def _fill_delta(message: pb.Delta, delta: Delta) -> None:
    message.index = delta.index
    message.text = delta.text
    message.token_ids.extend(delta.token_ids)
    message.logprobs.extend(_logprob_message(logprob) for logprob in delta.logprobs)
    message.token_end = delta.token_end
    message.byte_end = delta.byte_end
    message.call_parts.extend(pb.ToolCallPart(**asdict(part)) for part in delta.call_parts)
    if delta.finish_reason is not None:
        message.finish_reason = FINISH_REASONS[delta.finish_reason]
        message.stop_hit = delta.stop_hit
        message.tool_calls.extend(pb.ToolCall(**asdict(call)) for call in delta.tool_calls)


def _logprob_message(logprob: TokenLogprob) -> pb.TokenLogprob:
    return pb.TokenLogprob(
        token_id=logprob.token_id,
        text=logprob.text,
        token_bytes=logprob.token_bytes,
        logprob=logprob.logprob,
        top=[_logprob_message(top) for top in logprob.top],
    )


def _finished_message(finished: Finished) -> pb.Finished:
    usage, timings = finished.usage, finished.timings
    return pb.Finished(
        usage=pb.Usage(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            blended_tokens=usage.blended_tokens,
        ),
        timings=pb.Timings(
            t_received_unix_us=timings.t_received_unix_us,
            t_tokenized_us=timings.t_tokenized_us,
            t_admitted_us=timings.t_admitted_us,
            t_prefill_start_us=timings.t_prefill_start_us,
            t_first_token_us=timings.t_first_token_us,
            t_last_token_us=timings.t_last_token_us,
            t_complete_us=timings.t_complete_us,
            queue_us=timings.queue_us,
            kv_load_us=timings.kv_load_us,
            prefill_us=timings.prefill_us,
            decode_us=timings.decode_us,
            preemptions=timings.preemptions,
            attempts=timings.attempts,
            ttft=pb.TtftParts(**asdict(timings.ttft)) if timings.ttft is not None else None,
        ),
        choices=[
            pb.ChoiceEnd(
                index=choice.index,
                finish_reason=FINISH_REASONS[choice.finish_reason],
                tokens=choice.tokens,
                bytes=choice.bytes,
                ids_blake3=choice.ids_blake3,
                score=choice.beam.score if choice.beam else None,
                cumulative_logprob=choice.beam.cumulative_logprob if choice.beam else None,
            )
            for choice in finished.choices
        ],
        cost=cost_message(finished.cost),
    )


def cost_message(cost: Cost) -> pb.Cost:
    """A request's cost."""
    return pb.Cost(**asdict(cost))


def cancel_response(outcome: CancelOutcome) -> pb.CancelResponse:
    """What a cancel came to."""
    return pb.CancelResponse(
        found=outcome.found,
        outcome=outcome.outcome,
        last_step=outcome.last_step,
        blocks_freed=outcome.blocks_freed,
        latency_us=outcome.latency_us,
        cost=cost_message(outcome.cost),
    )


class DeltaWriter:
    """Packs the columns of one session's messages."""

    __slots__ = ("_calls", "_counts")

    def __init__(self) -> None:
        self._calls, self._counts = RepeatingColumn(), RepeatingColumn()

    def fill(self, runs: pb.DeltaRuns, columns: DeltaColumns) -> None:
        """`columns`, of which there is at least one row, as a message."""
        calls, indexes, counts, token_ends, byte_ends = zip(*columns.rows, strict=True)
        runs.calls = self._calls.pack(calls)
        if any(indexes):
            runs.indexes = pack_u32(indexes)
        runs.counts = self._counts.pack(counts)
        runs.token_ends = pack_u32(token_ends)
        runs.byte_ends = pack_u32(byte_ends)
        runs.tokens = pack_u32(columns.tokens)
        runs.texts.extend(columns.texts)


def model_message(model: ModelInfo) -> pb.Model:
    """One served model."""
    return pb.Model(
        id=model.id,
        max_model_len=model.max_model_len,
        vocab_size=model.vocab_size,
        architecture=model.architecture,
        fingerprint=model.fingerprint,
        created_unix_s=model.created_unix_s,
    )
