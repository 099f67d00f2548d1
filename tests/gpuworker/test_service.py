"""The worker wired whole, in one process with a scripted scheduler: health, Hello, drain, death of the step thread."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time

import grpc.aio
import pytest
import torch
from octavo.errors import OctavoError
from octavo.manifest import Engine as EngineSettings
from octavo.manifest import Manifest, ManifestError, ModelSettings
from octavo.rpc.testing import running_host
from octavo.v1 import kvstore_pb2_grpc
from octavo_gpuworker import service
from octavo_gpuworker.backends.sizes import model_len
from octavo_gpuworker.backends.torch_backend import torch_backend
from octavo_gpuworker.backends.torch_open import make_pool, open_torch
from octavo_gpuworker.model.pool import KvPool
from octavo_gpuworker.orders import UpdateOrder
from octavo_gpuworker.service import Worker, verify_artifacts
from octavo_gpuworker.warmup import ArtifactMismatch

from tests.gpuworker.conftest import tiny_decoder
from tests.gpuworker.scripted import admit, scripted_scheduler
from tests.gpuworker.test_transfer import ScriptedStore


async def until(condition, limit_s: float = 8.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def running_worker(tmp_path, **settings):
    async with scripted_scheduler() as (scheduler, address):
        given = {"gpuworker.scheduler": address, "gpuworker.worker_id": "w1", "gpuworker.progress_timeout_s": 0.4}
        async with running_host("gpuworker", tmp_path, {**given, **settings}) as host:
            decoder = tiny_decoder()
            pool = KvPool(decoder.config, 100, 4, torch.float32)
            worker = Worker(host, torch_backend(decoder, pool, cuda_graphs=False, max_model_len=64))
            await asyncio.to_thread(worker.warm_up)
            host.on_drain(worker.drain)
            host.spawn(worker.run(), "engine")
            yield worker, host, scheduler


async def test_hello_and_states(tmp_path) -> None:
    async with running_worker(tmp_path) as (worker, host, scheduler):
        assert host.state == "starting", "not ready before it has joined"
        stream = await scheduler.stream()
        hello = await stream.join(1)
        assert (hello.num_blocks, hello.block_tokens, hello.vocab_size, len(hello.root_key)) == (100, 4, 97, 32)
        assert hello.block_bytes == worker.pool.block_bytes and hello.max_model_len == 99 * 4
        assert hello.calibration.fixed_us > 0 and not hello.store_id and hello.pid
        await until(lambda: host.state == "serving")
        scheduler.refuse = "no"
        stream.over.set()
        await until(lambda: (host.state, host.why) == ("not_serving", "no scheduler"))
        scheduler.refuse = ""
        await (await scheduler.stream()).join(2)
        await until(lambda: host.state == "serving")


async def test_health_follows_progress(tmp_path) -> None:
    async with running_worker(tmp_path) as (worker, host, scheduler):
        stream = await scheduler.stream()
        await stream.join(1)
        await stream.orders(admit(1, blocks=(1, 2), max_len=40))  # starves at its ninth position
        await until(lambda: host.state == "not_serving")
        assert host.why.startswith("work but no progress")
        worker.steps.post([UpdateOrder(1, 0, True)])
        await until(lambda: host.state == "serving")  # paused is no work
        stream.over.set()
        again = await scheduler.stream()
        await again.join(2)
        await until(lambda: host.state == "serving")


async def test_a_dead_step_thread_ends_the_process(tmp_path) -> None:
    async with running_worker(tmp_path) as (worker, host, scheduler):
        stream = await scheduler.stream()
        await stream.join(1)

        def broken(inputs, pool):
            raise RuntimeError("kernel launch failed")

        worker.backend.decoder.forward = broken
        await stream.orders(admit(1))
        code, message = await asyncio.wait_for(host.wait_ended(), 5)
        assert code == 1 and "kernel launch failed" in message


async def test_drain_under_load_ends_in_time_and_in_order(tmp_path) -> None:
    async with running_worker(tmp_path) as (worker, host, scheduler):
        stream = await scheduler.stream()
        await stream.join(1)
        await stream.orders(admit(1, blocks=range(1, 90), max_len=350))
        await stream.report(lambda report: report.slots)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert not worker.steps._thread.is_alive() and host.state == "draining"


async def test_a_kvstore_that_starts_late_is_told_once_nothing_runs(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(service, "STORE_POLL_S", 0.05)
    address = f"unix:{tmp_path}/kv.sock"
    async with running_worker(tmp_path, **{"gpuworker.kvstore": address}) as (worker, _, scheduler):
        stream = await scheduler.stream()
        assert not (await stream.join(1)).store_id
        worker.steps.post([])
        await stream.orders(admit(1, blocks=(1, 2), max_len=40))
        await stream.report(lambda report: report.starved)
        server = grpc.aio.server()
        kvstore_pb2_grpc.add_KvStoreServiceServicer_to_server(ScriptedStore(), server)
        server.add_insecure_port(address)
        await server.start()
        await until(lambda: worker._store_id == "host7")
        await asyncio.sleep(0.2)
        assert scheduler.streams.empty(), "a running sequence is worth more than the store"
        from octavo.v1 import worker_pb2 as pb

        await stream.orders(pb.Order(stop=pb.Stop(seq=1, reason="cancel")))
        again = await scheduler.stream()
        assert (await again.join(2)).store_id == "host7"
        await server.stop(None)


async def test_metrics_and_spans(tmp_path) -> None:
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    async with running_worker(tmp_path) as (_, host, scheduler):
        stream = await scheduler.stream()
        await stream.join(1)
        before = host.metrics.get_sample_value("octavo_worker_prefill_tokens_total") or 0
        await stream.orders(admit(1, traceparent=parent, request_id="r1"))
        await stream.report(lambda report: report.finishes)
        await until(lambda: (host.metrics.get_sample_value("octavo_worker_decode_tokens_total") or 0) == 6)
        assert host.metrics.get_sample_value("octavo_worker_prefill_tokens_total") - before == 6
    text = "".join(path.read_text() for path in tmp_path.glob("traces-*.jsonl"))
    assert text.count('"a' + "a" * 31 + '"') == 2
    assert '"prefill"' in text and '"decode"' in text and '"chunk"' in text and '"length"' in text


def test_a_pool_without_room_is_refused(decoder) -> None:
    with pytest.raises(ManifestError, match=r"^engine.kv_num_blocks: .* give at least 3$"):
        make_pool(Manifest(engine=EngineSettings(kv_num_blocks=2)), decoder)
    with pytest.raises(ManifestError, match=r"^engine.kv_pool_bytes: .* give at least \d{4,}$") as refused:
        make_pool(Manifest(engine=EngineSettings(kv_pool_bytes=1)), decoder)
    least = int(str(refused.value).split()[-1])
    assert make_pool(Manifest(engine=EngineSettings(kv_pool_bytes=least)), decoder).num_blocks == 3
    pool = make_pool(Manifest(engine=EngineSettings(kv_num_blocks=5, kv_block_tokens=8)), decoder)
    assert (pool.num_blocks, pool.block_tokens) == (5, 8)


def test_max_model_len_is_bounded_by_model_and_pool(decoder) -> None:
    pool = KvPool(decoder.config, 5, 8, torch.float32)
    assert model_len(Manifest(), decoder.config.max_position, pool) == 32
    assert model_len(Manifest(engine=EngineSettings(max_model_len=20)), 512, pool) == 20
    with pytest.raises(ManifestError, match="give at most 512"):
        model_len(Manifest(engine=EngineSettings(max_model_len=513)), 512, pool)


@pytest.mark.parametrize("name", ["weights", "tokenizer", "chat_template"])
def test_an_artifact_of_another_hash_is_named(name) -> None:
    settings = dataclasses.replace(ModelSettings(), **{f"{name}_blake3": "0" * 64})
    with pytest.raises(ArtifactMismatch, match=f"{name} of smollm2") as caught:
        verify_artifacts(Manifest(model=settings))
    assert caught.value.exit_code == 3 and "\n" not in str(caught.value)


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_a_model_that_is_not_there_ends_with_exit_code_3_on_every_backend(tmp_path, kernels) -> None:
    manifest = Manifest(model=ModelSettings(ref=str(tmp_path / "absent.gguf")), engine=EngineSettings(kernels=kernels))
    with pytest.raises(OctavoError, match="no such file or folder") as caught:
        service.load(manifest, lambda done, total: None)
    assert caught.value.exit_code == 3 and "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the refusal is for machines without CUDA")
def test_cuda_without_cuda_is_refused_in_one_line(tmp_path) -> None:
    manifest = Manifest(engine=EngineSettings(device="cuda"))
    with pytest.raises(
        OctavoError, match=r"engine.device: cuda, but torch sees no CUDA device here; use auto or cpu"
    ) as error:
        open_torch(manifest, lambda done, total: None)
    assert error.value.exit_code == 3
