"""The internal channel of a closed release gate: a unix socket in the run folder that its owner alone may dial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc.aio
from octavo.errors import OctavoError
from octavo.rpc.host import SERVER_OPTIONS, Host
from octavo.v1 import admin_pb2, admin_pb2_grpc

from octavo_gateway.release_gate import Gate
from octavo_gateway.requests import Gateway
from octavo_gateway.service import InferenceServicer, register

SOCKET = "release-gate.sock"
MAX_PATH_BYTES = 100
"""A unix socket's path has room for little more."""


class GateServicer(admin_pb2_grpc.ReleaseGateServiceServicer):
    """Takes the verdict."""

    def __init__(self, gate: Gate, host: Host) -> None:
        self._gate = gate
        self._host = host

    async def Decide(self, request: admin_pb2.DecideRequest, context: Any) -> admin_pb2.DecideResponse:
        self._host.log.info("release gate %s: %s", "passed" if request.passed else "failed", request.said)
        self._gate.decide(request.passed, request.said)
        return admin_pb2.DecideResponse(open=self._gate.open)


async def start_gate(gateway: Gateway, gate: Gate, host: Host) -> Path:
    """Serves everything the gateway can do on the socket, beside the verdict. Raises OctavoError when it cannot."""
    path = host.run_dir / SOCKET
    if len(str(path).encode()) > MAX_PATH_BYTES:
        raise OctavoError(
            f"deployment.run_dir: {path} is too long for a unix socket; the release gate needs a folder with a path of at"
            f" most {MAX_PATH_BYTES - len(SOCKET) - 1} bytes"
        )
    host.run_dir.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # a gateway that was killed leaves it
    server = grpc.aio.server(options=SERVER_OPTIONS)
    register(InferenceServicer(gateway, host.log, internal=True), server, host.manifest.gateway.max_body_bytes)
    admin_pb2_grpc.add_ReleaseGateServiceServicer_to_server(GateServicer(gate, host), server)  # type: ignore[no-untyped-call]
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise OctavoError(f"the release gate cannot listen on {path}: {error}") from error
    await server.start()
    path.chmod(0o600)

    async def stop() -> None:
        await server.stop(grace=1.0)

    host.on_drain(stop)
    host.log.info("release gate closed; its checks may dial unix:%s", path)
    return path
