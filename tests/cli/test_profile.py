"""octavo profile: the worker by name or address, the file, the range, and a worker's refusals as one line."""

from __future__ import annotations

import io

import grpc.aio
import pytest
from octavo.manifest import ManifestError
from octavo.v1 import profile_pb2 as pb
from octavo.v1 import profile_pb2_grpc
from octavo_cli.exits import FAILED, NO_CLUSTER, USAGE, exit_code
from octavo_cli.profile import check_steps, check_writable, record, table_of, worker_address
from octavo_cli.state import ServiceState
from rich.console import Console

SERVICES = (
    ServiceState("scheduler", "scheduler", "127.0.0.1:1"),
    ServiceState("gpuworker0", "gpuworker", "127.0.0.1:2"),
    ServiceState("gpuworker1", "gpuworker", "127.0.0.1:3"),
)


class Recorder(profile_pb2_grpc.ProfileServiceServicer):
    def __init__(self, refuses: grpc.StatusCode | None = None, idle: bool = False) -> None:
        self.refuses = refuses
        self.idle = idle
        self.asked: list[pb.ProfileRequest] = []

    async def Profile(self, request, context):
        self.asked.append(request)
        if self.refuses is not None:
            await context.abort(self.refuses, "in these words")
        if self.idle:
            yield pb.ProfileResponse(idle=True)
        yield pb.ProfileResponse(summary=pb.ProfileSummary(steps=request.steps, worker="w1"))
        yield pb.ProfileResponse(trace=b'{"traceEvents"')
        yield pb.ProfileResponse(trace=b": []}")


async def serve(servicer: Recorder | None) -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server()
    if servicer is not None:
        profile_pb2_grpc.add_ProfileServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"


def test_workers_are_found_by_name_or_address() -> None:
    assert worker_address("gpuworker1", SERVICES) == "127.0.0.1:3"
    assert worker_address("127.0.0.1:2", SERVICES) == "127.0.0.1:2"
    for wrong in ("gpuworker9", "scheduler", "127.0.0.1:1"):
        with pytest.raises(
            ManifestError, match="is not a worker of this cluster; there are: gpuworker0, gpuworker1"
        ) as error:
            worker_address(wrong, SERVICES)
        assert exit_code(error.value) == USAGE


@pytest.mark.parametrize("steps", [-1, 0, 101])
def test_steps_out_of_range(steps) -> None:
    with pytest.raises(ManifestError, match=f"--steps: {steps} must be between 1 and 100"):
        check_steps(steps)


def test_a_file_that_cannot_be_written(tmp_path) -> None:
    with pytest.raises(ManifestError, match=r"--out: .* cannot be written .No such file or directory.; name a file"):
        check_writable(tmp_path / "nowhere" / "trace.json")
    with pytest.raises(ManifestError, match="Is a directory"):
        check_writable(tmp_path)
    old = tmp_path / "old.json"
    old.write_text("old")
    check_writable(old)
    assert old.read_text() == "old"
    check_writable(tmp_path / "new.json")
    assert not (tmp_path / "new.json").exists()


async def test_the_trace_comes_in_pieces() -> None:
    recorder = Recorder()
    server, address = await serve(recorder)
    found = await record(address, 7, 2.5)
    assert found.trace == b'{"traceEvents": []}'
    assert (found.summary.steps, found.summary.worker) == (7, "w1")
    assert (recorder.asked[0].steps, recorder.asked[0].limit_ms) == (7, 2500)
    await server.stop(None)


async def test_an_idle_worker_is_told_at_once() -> None:
    server, address = await serve(Recorder(idle=True))
    said: list[str] = []
    found = await record(address, 7, 2.5, lambda: said.append("idle"))
    assert said == ["idle"] and found.summary.steps == 7 and found.trace == b'{"traceEvents": []}'
    await server.stop(None)


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, USAGE),
        (grpc.StatusCode.DEADLINE_EXCEEDED, FAILED),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, FAILED),
        (grpc.StatusCode.FAILED_PRECONDITION, FAILED),
        (grpc.StatusCode.UNAVAILABLE, NO_CLUSTER),
    ],
)
async def test_a_workers_refusal_is_its_own_words(code, ends) -> None:
    server, address = await serve(Recorder(code))
    with pytest.raises(Exception, match="in these words") as error:
        await record(address, 1, 1.0)
    assert exit_code(error.value) == ends
    await server.stop(None)


async def test_what_is_no_worker() -> None:
    server, address = await serve(None)
    with pytest.raises(Exception, match="is no worker that can be profiled") as error:
        await record(address, 1, 1.0)
    assert exit_code(error.value) == NO_CLUSTER
    await server.stop(None)
    with pytest.raises(Exception, match=f"the worker at {address} does not answer"):
        await record(address, 1, 1.0)


def test_the_table() -> None:
    row = pb.ProfiledKernel(
        kind=pb.ProfiledKernel.KIND_OPERATION, name="linear/torch", calls=8, time_us=400, bytes=8_000_000
    )
    kernels = [
        pb.ProfiledKernel(kind=pb.ProfiledKernel.KIND_KERNEL, name=f"k{i}", calls=1, time_us=9 - i) for i in range(5)
    ]
    out = io.StringIO()
    summary = pb.ProfileSummary(steps=4, worker="w1", kernels=[row, *kernels])
    Console(file=out, width=120).print(table_of(summary, kernels=3))
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert any({"linear/torch", "8", "100.0", "100.0%", "2.00", "20.0"} <= set(line) for line in lines)
    assert "k2" in out.getvalue() and "k3" not in out.getvalue()


def test_the_command_refuses_before_it_asks(octavo) -> None:
    done = octavo("profile", "gpuworker0", "--steps", "0")
    assert (done.returncode, done.stderr) == (USAGE, "octavo: --steps: 0 must be between 1 and 100\n")
    done = octavo("profile", "gpuworker0", "--out", "/nowhere/trace.json")
    assert done.returncode == USAGE and "--out: /nowhere/trace.json cannot be written" in done.stderr
    done = octavo("profile", "gpuworker0", "--out", str(octavo.run_dir / "t.json"))
    assert done.returncode == NO_CLUSTER and "no cluster in" in done.stderr
