"""An InferenceService that echoes the prompt word by word, with a span per request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from octavo.v1 import inference_pb2 as pb
from octavo.v1 import inference_pb2_grpc
from opentelemetry import trace


class FakeInference(inference_pb2_grpc.InferenceServiceServicer):
    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        text = request.text or "word " * 64  # token ids are answered with words of our own
        async for event in self._answer(request.context, text, request.options, context, pb.GenerateResponse):
            yield event

    async def Chat(self, request: pb.ChatRequest, context: Any) -> AsyncIterator[pb.ChatResponse]:
        text = request.messages[-1].content
        async for event in self._answer(request.context, text, request.options, context, pb.ChatResponse):
            yield event

    async def _answer(self, who: Any, text: str, options: Any, context: Any, kind: Any) -> AsyncIterator[Any]:
        if text == "refuse":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "prompt: refuse is refused; say something else")
        if text == "locked":
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "an API key is needed")
        if text == "context":
            text = f"{who.slo_class} {who.priority} {who.cache.preload}"
        with self._tracer.start_as_current_span("request", attributes={"request.id": who.request_id}) as span:
            trace_id = f"{span.get_span_context().trace_id:032x}"
            yield kind(started=pb.Started(request_id=who.request_id, model="fake", trace_id=trace_id, prompt_tokens=3))
            words = [f"{word} " for word in text.split()][: options.max_tokens or 16]
            bytes_so_far = 0
            for number, word in enumerate(words, start=1):
                await asyncio.sleep(0)
                bytes_so_far += len(word.encode())
                yield kind(
                    delta=pb.Delta(
                        text=word,
                        token_ids=[number],
                        token_end=number,
                        byte_end=bytes_so_far,
                        finish_reason=pb.FINISH_REASON_STOP if number == len(words) else pb.FINISH_REASON_UNSPECIFIED,
                    )
                )
            end = pb.ChoiceEnd(finish_reason=pb.FINISH_REASON_STOP, tokens=len(words), bytes=bytes_so_far)
            usage = pb.Usage(prompt_tokens=3, completion_tokens=len(words))
            yield kind(finished=pb.Finished(usage=usage, choices=[end]))

    async def Ack(self, request: pb.AckRequest, context: Any) -> pb.AckResponse:
        return pb.AckResponse(found=True)

    async def ListModels(self, request: pb.ListModelsRequest, context: Any) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=[pb.Model(id="fake", max_model_len=8192, vocab_size=49152)])
