"""A real OTLP gRPC receiver gets one tree per request: parents, times inside their parents, and a cancel span."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio
import pytest
from cluster import Cluster, free_port, read
from octavo.v1 import inference_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

pytestmark = pytest.mark.e2e


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Collects spans as dicts, like the collector in front of Jaeger."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []

    async def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            service = next(
                item.value.string_value for item in resource.resource.attributes if item.key == "service.name"
            )
            for scope in resource.scope_spans:
                for span in scope.spans:
                    attributes = {
                        item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes
                    }
                    self.spans.append(
                        {
                            "service": service,
                            "name": span.name,
                            "trace": span.trace_id.hex(),
                            "id": span.span_id.hex(),
                            "parent": span.parent_span_id.hex(),
                            "start": span.start_time_unix_nano,
                            "end": span.end_time_unix_nano,
                            "attributes": attributes,
                            "events": [event.name for event in span.events],
                        }
                    )
        return trace_service_pb2.ExportTraceServiceResponse()

    async def tree(self, trace_id: str, names: set[str]) -> dict[str, dict[str, Any]]:
        """The spans of a trace by name, once all of `names` have come."""
        async with asyncio.timeout(60):
            while True:
                found = {span["name"]: span for span in self.spans if span["trace"] == trace_id}
                if names <= set(found):
                    return found
                await asyncio.sleep(0.1)


SLACK_NS = 5_000_000  # processes read their own wall clocks


async def test_spans_of_a_finished_and_of_a_cancelled_request(make_cluster: Callable[..., Cluster]) -> None:
    receiver, port = Receiver(), free_port()
    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    cluster = make_cluster(environment={"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"})
    await cluster.up()
    trace_id, parent_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    request = pb.GenerateRequest(
        text="Once upon a time",
        sampling=pb.Sampling(temperature=0.0),
        options=pb.Options(max_tokens=20, ignore_eos=True),
    )
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        answer = await read(stub.Generate(request, metadata=(("traceparent", f"00-{trace_id}-{parent_id}-01"),)))
        assert answer.trace_id == trace_id
        spans = await receiver.tree(trace_id, {"tokenize", "queue", "prefill", "decode", "detokenize"})
        roots = [span for span in spans.values() if span["parent"] == parent_id]
        assert len(roots) == 1
        root = roots[0]
        assert root["service"] == "octavo-gateway"
        assert root["attributes"]["gen_ai.usage.output_tokens"] == 20
        for name in ("tokenize", "queue", "prefill", "decode", "detokenize"):
            span = spans[name]
            assert span["parent"] == root["id"], name
            assert root["start"] - SLACK_NS <= span["start"] <= span["end"] <= root["end"] + SLACK_NS, name
        assert spans["queue"]["end"] <= spans["prefill"]["end"] <= spans["decode"]["end"] + SLACK_NS
        assert spans["queue"]["service"] == "octavo-scheduler"
        assert spans["prefill"]["service"] == spans["decode"]["service"] == "octavo-gpuworker"

        request.options.max_tokens = 4000
        call = stub.Generate(request)
        async for response in call:
            if response.WhichOneof("event") == "started":
                cancelled_trace = response.started.trace_id
            elif len(response.delta.token_ids):
                break
        call.cancel()
        spans = await receiver.tree(cancelled_trace, {"cancel", "queue", "prefill"})
        cancel = spans["cancel"]
        assert cancel["service"] == "octavo-scheduler"
        assert cancel["attributes"]["octavo.reason"] == "client_disconnect"
        assert cancel["attributes"]["octavo.latency_us"] > 0
        assert cancel["attributes"]["octavo.blocks_freed"] > 0
        async with asyncio.timeout(60):
            while not (
                root_spans := [
                    span for span in receiver.spans if span["trace"] == cancelled_trace and not span["parent"]
                ]
            ):
                await asyncio.sleep(0.1)
        assert root_spans[0]["attributes"]["octavo.outcome"] == "cancelled"
        assert cancel["parent"] == root_spans[0]["id"]
    await server.stop(0)
