"""The process: `python -m octavo_scheduler` serves, answers health and admin, and drains at SIGTERM with exit code 0."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from octavo.rpc.channels import open_channel
from octavo.v1 import admin_pb2, admin_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
async def test_the_process_serves_and_drains(tmp_path: Path, loop: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "octavo_scheduler",
        "--scheduler.listen=127.0.0.1:0",
        f"--deployment.run_dir={tmp_path}",
        f"--deployment.event_loop={loop}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    output = ""
    async with asyncio.timeout(30):
        while not (found := re.search(r"listening on (127\.0\.0\.1:\d+)", output)):
            line = (await process.stdout.readline()).decode()
            assert line, output
            output += line
        async with open_channel(found.group(1)) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            answer = None
            while answer != health_pb2.HealthCheckResponse.SERVING:
                request = health_pb2.HealthCheckRequest(service="octavo.v1.SchedulerService")
                answer = (await health.Check(request)).status
            info = await admin_pb2_grpc.AdminServiceStub(channel).GetInfo(admin_pb2.GetInfoRequest())  # type: ignore[no-untyped-call]
            assert info.service == "scheduler" and info.pid == process.pid and "metrics" in info.urls
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)  # type: ignore[no-untyped-call]
            status = await stub.GetStatus(scheduler_pb2.GetStatusRequest())
            assert not status.ready and status.why_not_ready == "no worker is ready"
            url = info.urls["metrics"]
            host, _, rest = url.removeprefix("http://").partition("/")
            reader, writer = await asyncio.open_connection(*host.split(":"))
            writer.write(f"GET /{rest} HTTP/1.0\r\n\r\n".encode())
            text = (await reader.read()).decode()
            writer.close()
            assert "octavo_scheduler_preemptions_total" in text and "octavo_scheduler_blocks_leaked 0.0" in text
        process.send_signal(signal.SIGTERM)
        rest_of_output = (await process.stdout.read()).decode()
        assert await process.wait() == 0, output + rest_of_output
