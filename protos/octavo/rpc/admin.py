"""octavo.v1.AdminService: who a process is and with which settings it runs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import grpc.aio

from octavo.v1 import admin_pb2, admin_pb2_grpc

if TYPE_CHECKING:
    from octavo.rpc.host import Host


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Answers for its host; registered by the host itself."""

    def __init__(self, host: Host) -> None:
        self._host = host
        # asked twice a second by whoever supervises, and settings do not change
        self._settings = [
            admin_pb2.Setting(key=item.key, value=json.dumps(item.value), source=item.source)
            for item in host.settings.items()
        ]

    async def GetInfo(
        self, request: admin_pb2.GetInfoRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> admin_pb2.GetInfoResponse:
        host = self._host
        return admin_pb2.GetInfoResponse(
            service=host.name,
            pid=os.getpid(),
            state=host.state,
            version=host.version,
            settings=self._settings,
            why=host.why,
            urls=host.urls,
        )
