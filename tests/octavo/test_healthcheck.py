"""The health check's exit code follows grpc.health.v1 and nothing else."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from octavo.rpc import healthcheck
from octavo.rpc.testing import running_host


async def run(*arguments: str) -> int:
    return await asyncio.to_thread(healthcheck.main, list(arguments))


async def test_it_follows_the_state_of_a_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running_host("kvstore", tmp_path) as host:
        address = await host.listen("127.0.0.1:0")
        assert await run(address) == 1
        host.set_state("serving")
        await asyncio.sleep(0)
        assert await run(address) == 0
        assert await run(address, "octavo.v1.AdminService") == 0
        assert await run(address, "no.such.Service") == 1
        host.set_state("draining")
        await asyncio.sleep(0)
        assert await run(address) == 1
    assert capsys.readouterr().out.split() == ["NOT_SERVING", "SERVING", "SERVING", "NOT_FOUND", "NOT_SERVING"]


async def test_nobody_there(tmp_path: Path) -> None:
    assert await run(f"unix:{tmp_path}/nobody.sock") == 1
    assert await run() == 2


async def test_as_a_process(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, healthcheck.__file__, f"unix:{tmp_path}/nobody.sock", stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert (process.returncode, output.strip()) == (1, b"UNAVAILABLE")
