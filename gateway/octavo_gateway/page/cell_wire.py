"""Asks the scheduler for the live view, and turns its messages into plain values. No token and no text is in them."""

from __future__ import annotations

from typing import Any, Final

import grpc.aio
from octavo.errors import Unavailable, UnknownRequest
from octavo.v1 import scheduler_pb2 as pb
from octavo.v1 import scheduler_pb2_grpc

from octavo_gateway.tenants import own_id, wire_id

ASK_TIMEOUT_S: Final = 2.0
MAX_LISTED: Final = 64
"""Requests of each tenant in each of the three lists; the counts say how many there are."""


class CellWatch:
    """Reads the cell over a channel that it does not own."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)  # type: ignore[no-untyped-call]

    async def live(self) -> dict[str, Any]:
        """One moment of the cell. Raises Unavailable when the scheduler does not answer."""
        try:
            answer: pb.GetLiveResponse = await self._stub.GetLive(
                pb.GetLiveRequest(max_requests=MAX_LISTED), timeout=ASK_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            raise _away(error) from error
        return {
            "ready": answer.ready,
            "why_not_ready": answer.why_not_ready,
            "waiting_count": answer.requests_waiting,
            "running_count": answer.requests_running,
            "waiting_prompt_tokens": answer.waiting_prompt_tokens,
            "workers": [_worker(item) for item in answer.workers],
            "stores": [_store(item) for item in answer.stores],
            "running": [_request(item) for item in answer.running],
            "waiting": [_request(item) for item in answer.waiting],
            "recent": [_request(item) for item in answer.recent],
            "ledger": [_plain(item) for item in answer.ledger],
            "trials": [_plain(item) for item in answer.trials],
            "slo_classes": [_plain(item) for item in answer.slo_classes],
            "gateways": list(answer.gateways),
            "counters": dict(answer.counters),
            "tenants": [_plain(item) for item in answer.tenants],
        }

    async def timeline(self, request_id: str, tenant: str) -> dict[str, Any]:
        """A request's intervals, milliseconds since its submission. Raises UnknownRequest, Unavailable."""
        try:
            answer: pb.GetTimelineResponse = await self._stub.GetTimeline(
                pb.GetTimelineRequest(request_id=wire_id(tenant, request_id), tenant=tenant), timeout=ASK_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            raise _away(error) from error
        if not answer.found:
            raise UnknownRequest("this request is not known here, or its record has been dropped", field="id")
        spans = [
            {
                "name": span.name,
                "service": span.service,
                "start_ms": span.start_us / 1e3,
                "end_ms": span.end_us / 1e3,
                "running": span.running,
                "attributes": dict(span.attributes),
            }
            for span in answer.spans
        ]
        return {"request": _request(answer.request), "spans": spans}


def _away(error: grpc.aio.AioRpcError) -> Unavailable:
    return Unavailable(f"the scheduler does not answer ({error.code().name}); it may be restarting", retry_after_s=1.0)


def _plain(message: Any) -> dict[str, Any]:
    """Every field of a flat message, those at their default too."""
    return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}


def _worker(worker: pb.LiveWorker) -> dict[str, Any]:
    plain = _plain(worker)
    plain["block_map"] = "".join(map(str, worker.block_map))
    return plain


def _store(store: pb.LiveStore) -> dict[str, Any]:
    return _plain(store) | {"tiers": [_plain(tier) for tier in store.tiers]}


def _request(request: pb.LiveRequest) -> dict[str, Any]:
    plain = _plain(request)
    plain["request_id"] = own_id(request.tenant, request.request_id)
    plain["workers"] = list(request.workers)
    plain["cost"] = _plain(request.cost)
    return plain
