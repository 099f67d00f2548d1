"""The gateway's process: it starts with the right artifacts, refuses wrong ones in one line, and drains."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from gguf import GGUFWriter
from grpc_health.v1 import health_pb2, health_pb2_grpc
from octavo.artifacts import chat_template_hash, resolve_model, tokenizer_hash
from octavo.rpc.channels import open_channel
from octavo.v1 import admin_pb2, admin_pb2_grpc, inference_pb2_grpc
from octavo.v1 import inference_pb2 as pb


async def start(run_dir: Path, **settings: str) -> asyncio.subprocess.Process:
    given = {
        "deployment.run_dir": str(run_dir), "gateway.grpc_listen": "127.0.0.1:0", "gateway.http_listen": "127.0.0.1:0",
        **{name.replace("__", "."): value for name, value in settings.items()},
    }  # fmt: skip
    flags = [part for name, value in given.items() for part in (f"--{name}", value)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "octavo_gateway",
        *flags,
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def output_of(process: asyncio.subprocess.Process) -> str:
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    return out.decode()


def gguf_with_template(path: Path, template: str) -> Path:
    """A GGUF that holds only a tiny byte-level tokenizer and a chat template."""
    writer = GGUFWriter(str(path), "llama")
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_string("tokenizer.ggml.pre", "gpt-2")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "ab"])
    writer.add_array("tokenizer.ggml.merges", ["a b"])
    writer.add_string("tokenizer.chat_template", template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("setting", "artifact"),
    [("model__tokenizer_blake3", "tokenizer"), ("model__chat_template_blake3", "chat template")],
)
async def test_another_artifact_than_the_manifests_is_refused(tmp_path: Path, setting: str, artifact: str) -> None:
    process = await start(tmp_path, **{setting: "00" * 32})
    out = await output_of(process)
    assert process.returncode == 3
    assert f"{artifact} of " in out and "the manifest says" in out


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "steps"),
        ("{{ ''.__class__.__mro__ }}", "must not"),
    ],
)
async def test_a_bad_chat_template_is_refused_at_start(tmp_path: Path, template: str, why: str) -> None:
    process = await start(tmp_path, model__ref=str(gguf_with_template(tmp_path / "m.gguf", template)))
    out = await output_of(process)
    assert process.returncode == 3
    assert "chat template" in out and why in out
    assert "Traceback" not in out


@pytest.mark.parametrize("event_loop", ["uvloop", "asyncio"])
async def test_it_serves_reports_health_and_drains(
    tmp_path: Path, make_stack: Any, admission: Any, event_loop: str
) -> None:
    files = resolve_model("smollm2")
    async with make_stack(admission) as stack:
        process = await start(
            tmp_path,
            gateway__scheduler=stack.scheduler.address,
            gateway__gateway_id="process",
            deployment__event_loop=event_loop,
            model__tokenizer_blake3=tokenizer_hash(files),
            model__chat_template_blake3=chat_template_hash(files),
        )
        try:
            hello = await stack.scheduler.next("hello")
            assert hello.gateway_id == "process" and hello.takes_runs
            address = await grpc_address(process)
            async with open_channel(address) as channel:
                await serving(channel)
                stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
                call = stub.Generate(pb.GenerateRequest(text="Hi"))
                _, responses = await asyncio.gather(stack.scheduler.play(stack.ids("yes")), collect(call))
                assert "".join(response.delta.text for response in responses) == "yes"
                admin: Any = admin_pb2_grpc.AdminServiceStub(channel)  # type: ignore[no-untyped-call]
                info = await admin.GetInfo(admin_pb2.GetInfoRequest())
                assert (info.service, info.state) == ("gateway", "serving")
                assert {"grpc", "http", "metrics"} <= set(info.urls)
                # A request under way at SIGTERM runs to its end.
                last = stub.Generate(pb.GenerateRequest(text="Bye"))
                submit = await stack.scheduler.next("submit")
                stack.scheduler.accept(submit.request_id)
                reader = aiter(last)
                assert (await anext(reader)).WhichOneof("event") == "started"
                process.send_signal(signal.SIGTERM)
                stack.scheduler.tokens(submit.request_id, stack.ids("z"))
                stack.scheduler.choice_finished(submit.request_id, "length", 1)
                stack.scheduler.finish(submit.request_id)
                assert (await collect(reader))[-1].WhichOneof("event") == "finished"
            out = await output_of(process)
            assert process.returncode == 0, out
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def collect(call: Any) -> list[Any]:
    return [response async for response in call]


async def grpc_address(process: asyncio.subprocess.Process) -> str:
    """The bound address, from the line that says so."""
    assert process.stdout is not None
    async with asyncio.timeout(60):
        async for line in process.stdout:
            if b"gRPC on " in line:
                return line.decode().split("gRPC on ")[1].split(",")[0]
    raise AssertionError("the gateway ended without saying where it listens")


async def serving(channel: grpc.aio.Channel) -> None:
    """Returns once health says SERVING."""
    stub: Any = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
    service = health_pb2.HealthCheckRequest(service="octavo.v1.InferenceService")
    async with asyncio.timeout(30):
        async for response in stub.Watch(service):
            if response.status == health_pb2.HealthCheckResponse.SERVING:
                return
