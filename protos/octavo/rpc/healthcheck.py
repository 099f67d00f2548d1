"""`python -m octavo.rpc.healthcheck ADDRESS [SERVICE]`: exit code 0 if and only if grpc.health.v1 says SERVING.

For container health checks and probes; ADDRESS is `host:port` or `unix:path`.
"""

from __future__ import annotations

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 3.0
HEALTHY, UNHEALTHY, USAGE = 0, 1, 2


def check(address: str, service: str = "", timeout_s: float = TIMEOUT_S) -> str:
    """The answer's name (SERVING, NOT_SERVING, ...), or the status of a call that failed."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
        except grpc.RpcError as error:
            return str(error.code().name)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def main(arguments: list[str]) -> int:
    """Prints the answer and returns the exit code."""
    if not 1 <= len(arguments) <= 2:
        print("usage: python -m octavo.rpc.healthcheck HOST:PORT|unix:PATH [SERVICE]", file=sys.stderr)
        return USAGE
    address, service = arguments[0], arguments[1] if len(arguments) == 2 else ""
    answer = check(address, service)
    print(answer)
    return HEALTHY if answer == "SERVING" else UNHEALTHY


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
