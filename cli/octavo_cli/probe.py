"""Asks services who they are (AdminService) and the scheduler how it stands (GetStatus)."""

from __future__ import annotations

import grpc.aio
from octavo.errors import Unavailable
from octavo.rpc.channels import open_channel
from octavo.v1 import admin_pb2, admin_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc


class Probe:
    """One channel to one service; close it, or use `async with`."""

    def __init__(self, address: str, timeout_s: float = 2.0) -> None:
        self._timeout_s = timeout_s
        self._channel = open_channel(address)
        self._admin = admin_pb2_grpc.AdminServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._scheduler = scheduler_pb2_grpc.SchedulerServiceStub(self._channel)  # type: ignore[no-untyped-call]

    async def __aenter__(self) -> Probe:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def info(self) -> admin_pb2.GetInfoResponse | None:
        """What the service says of itself; None when it does not answer within the timeout."""
        try:
            answer: admin_pb2.GetInfoResponse = await self._admin.GetInfo(
                admin_pb2.GetInfoRequest(), timeout=self._timeout_s
            )
        except grpc.aio.AioRpcError:
            return None
        return answer

    async def status(self) -> scheduler_pb2.GetStatusResponse | None:
        """The scheduler's view of the cell; None when it does not answer within the timeout."""
        try:
            answer: scheduler_pb2.GetStatusResponse = await self._scheduler.GetStatus(
                scheduler_pb2.GetStatusRequest(), timeout=self._timeout_s
            )
        except grpc.aio.AioRpcError:
            return None
        return answer

    async def decide(self, passed: bool, said: str) -> bool:
        """Tells a gateway's release gate the verdict; whether it is open now. Raises Unavailable when nobody listens."""
        gate = admin_pb2_grpc.ReleaseGateServiceStub(self._channel)  # type: ignore[no-untyped-call]
        try:
            request = admin_pb2.DecideRequest(passed=passed, said=said)
            answer: admin_pb2.DecideResponse = await gate.Decide(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            raise Unavailable(f"the gateway's release gate does not answer: {error.details()}") from error
        return answer.open

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close(None)
