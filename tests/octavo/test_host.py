"""The process frame: health, admin, drain order, exit codes of real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from octavo.errors import OctavoError
from octavo.rpc.channels import CHANNEL_OPTIONS, open_channel
from octavo.rpc.host import SERVER_OPTIONS
from octavo.rpc.settings import manifest_keys
from octavo.rpc.testing import running_host
from octavo.v1 import admin_pb2, admin_pb2_grpc

ROOT = Path(__file__).parents[2]

SERVICE = """
import sys
from octavo.errors import OctavoError
from octavo.rpc.host import run_service

async def setup(host):
    kind = sys.argv[1]
    if kind == "refuse":
        raise OctavoError("the disk is full; free some space")
    if kind == "mismatch":
        error = OctavoError("weights do not match"); error.exit_code = 3
        raise error
    async def dies():
        raise RuntimeError("boom")
    async def lasting():
        print("drained", flush=True)
    host.on_drain(lasting)
    await host.listen("127.0.0.1:0")
    if kind == "die":
        host.spawn(dies(), "engine")
    host.set_state("serving")
    print("ready", flush=True)

sys.exit(run_service("gateway", setup, sys.argv[2:]))
"""


def start(tmp_path: Path, *argv: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "protos")}
    command = [sys.executable, "-c", SERVICE, *argv]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
    )


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_sigterm_drains_and_exits_0(tmp_path: Path, loop: str) -> None:
    process = start(tmp_path, "run", "--deployment.event_loop", loop)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert out == "drained\n"
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("kind", "flags", "code", "words"),
    [
        ("refuse", [], 1, "free some space"),
        ("mismatch", [], 3, "weights do not match"),
        ("die", [], 1, "task engine died: RuntimeError: boom"),
        ("run", ["--engine.dtpye", "float32"], 2, "did you mean 'engine.dtype'"),
        (
            "run",
            ["--deployment.run_dir", "/dev/null/run"],
            2,
            "deployment.run_dir /dev/null/run: Not a directory; give",
        ),
    ],
)
def test_exit_codes_and_one_line(tmp_path: Path, kind: str, flags: list[str], code: int, words: str) -> None:
    process = start(tmp_path, kind, *flags)
    _, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert words in err.splitlines()[-1]


async def test_health_and_admin_follow_the_state(tmp_path: Path) -> None:
    async with running_host("kvstore", tmp_path, {"engine.max_model_len": 77}) as host:
        address = await host.listen("127.0.0.1:0")
        async with open_channel(address) as channel:
            checks = health_pb2_grpc.HealthStub(channel)
            admin = admin_pb2_grpc.AdminServiceStub(channel)
            request = health_pb2.HealthCheckRequest(service="")
            assert (await checks.Check(request)).status == health_pb2.HealthCheckResponse.NOT_SERVING
            host.set_state("serving")
            await asyncio.sleep(0)
            assert (await checks.Check(request)).status == health_pb2.HealthCheckResponse.SERVING
            host.set_state("not_serving", "no progress")
            await asyncio.sleep(0)
            assert (await checks.Check(request)).status == health_pb2.HealthCheckResponse.NOT_SERVING
            info = await admin.GetInfo(admin_pb2.GetInfoRequest())
            assert (info.service, info.state, info.why) == ("kvstore", "not_serving", "no progress")
            given = next(item for item in info.settings if item.key == "engine.max_model_len")
            assert (json.loads(given.value), given.source) == (77, "flag")


def test_grpc_knows_every_option_that_is_set() -> None:
    """An unknown name is passed over in silence: idle channels were then closed for too many pings every 90 seconds."""
    from grpc._cython import cygrpc

    library = Path(cygrpc.__file__).read_bytes()
    for name, _ in (*SERVER_OPTIONS, *CHANNEL_OPTIONS):
        assert name.encode() in library, name


async def test_a_taken_port_is_refused_not_shared(tmp_path: Path) -> None:
    async with running_host("scheduler", tmp_path) as first, running_host("scheduler", tmp_path) as second:
        address = await first.listen("127.0.0.1:0")
        with pytest.raises(OctavoError, match="choose a free address"):
            await second.listen(address)


async def test_one_server_answers_on_its_socket_too_and_a_dead_ones_file_is_no_hindrance(tmp_path: Path) -> None:
    local = f"unix:{tmp_path}/own.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "own.sock"))
    async with running_host("scheduler", tmp_path) as host:
        address = await host.listen("127.0.0.1:0", local)
        for dialled in (address, local):
            async with open_channel(dialled) as channel:
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=""))
        assert host.urls["grpc"] == address
    async with running_host("scheduler", tmp_path) as host:
        with pytest.raises(OctavoError, match=r"cannot listen on unix:/nowhere/own\.sock"):
            await host.listen("127.0.0.1:0", "unix:/nowhere/own.sock")


async def test_a_second_server_offers_only_what_was_added_and_ends_with_the_first(tmp_path: Path) -> None:
    async with running_host("kvstore", tmp_path) as host:
        first = await host.listen("127.0.0.1:0")
        second = await host.listen_beside(
            "127.0.0.1:0", lambda server: health_pb2_grpc.add_HealthServicer_to_server(host._health, server)
        )
        assert first != second
        with pytest.raises(OctavoError, match="choose a free address"):
            await host.listen_beside(first, lambda server: None)
        async with open_channel(second) as channel:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=""))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await admin_pb2_grpc.AdminServiceStub(channel).GetInfo(admin_pb2.GetInfoRequest())
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            await host.drain()
            with pytest.raises(grpc.aio.AioRpcError):
                await health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(service=""), timeout=2, wait_for_ready=False
                )


async def test_drain_goes_on_after_a_step_that_fails_or_hangs(tmp_path: Path) -> None:
    done = []

    async def fails() -> None:
        raise RuntimeError("no")

    async def hangs() -> None:
        await asyncio.sleep(60)

    async def last() -> None:
        done.append("last")

    async with running_host("gateway", tmp_path, {"deployment.drain_timeout_s": 0.2}) as host:
        for step in (fails, last, hangs):
            host.on_drain(step)
    assert done == ["last"]


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_lists_every_setting_and_ends_with_0(tmp_path: Path, word: str) -> None:
    out, err = start(tmp_path, "run", word).communicate(timeout=20)
    assert err == ""
    keys = [line.split()[0].removeprefix("--") for line in out.splitlines() if line.startswith("  --")]
    assert keys == [key for key, _env, _default in manifest_keys()]
    assert "OCTAVO_ENGINE_MAX_MODEL_LEN = 0" in out and "python -m octavo_gateway" in out


@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_a_client_that_compresses_is_read(compression: grpc.Compression | None) -> None:
    class Echo(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(answer)

    async def answer(request: bytes, context: Any) -> bytes:
        return request

    server = grpc.aio.server(options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers((Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    for options in (CHANNEL_OPTIONS, []):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options, compression=compression) as channel:
            assert await channel.unary_unary("/any/method")(b"x" * 5000, timeout=10) == b"x" * 5000
    await server.stop(0)
