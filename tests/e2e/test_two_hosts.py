"""Two hosts on one machine: each with a worker and a kvstore. What one host computed is fetched by the other, and its death costs a miss.

And whatever a request said: no word of it, and no byte of its blocks, in any log or span, at the most talkative level.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
from cluster import Answer, Cluster, free_port, read
from octavo.packing import pack_u32
from octavo.rpc.channels import open_channel
from octavo.v1 import inference_pb2 as pb
from octavo.v1 import kvstore_pb2, kvstore_pb2_grpc

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

WORDS = "The quixotic zyzzyva hid seventeen marzipan obelisks beneath the vermilion lighthouse. "
PREFIX_TOKENS = 512


@dataclass
class TwoHosts(Cluster):
    """The second host's kvstore and worker; the worker starts when a test says so."""

    peer_ports: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ports["kvstore2"] = free_port()
        self.peer_ports = {"kvstore": free_port(), "kvstore2": free_port()}

    def names(self) -> list[str]:
        return ["scheduler", "kvstore", "kvstore2", "gpuworker0", "gateway"]

    def flags(self, name: str) -> list[str]:
        words = super().flags(name)
        if name in self.peer_ports:
            words = [word for word in words if not word.startswith(("--kvstore.listen", "--kvstore.store_id"))]
            words += [
                f"--kvstore.listen=127.0.0.1:{self.ports[name]}",
                f"--kvstore.store_id={name}",
                f"--kvstore.peer_listen=127.0.0.1:{self.peer_ports[name]}",
                f"--cache.nvme_path={self.run_dir / name}",
            ]
        if name == "gpuworker1":
            words = [word for word in words if not word.startswith("--gpuworker.kvstore")]
            words.append(f"--gpuworker.kvstore=127.0.0.1:{self.ports['kvstore2']}")
        return words

    async def counters(self, name: str) -> dict[str, float]:
        async with open_channel(f"127.0.0.1:{self.ports[name]}") as channel:
            stub = kvstore_pb2_grpc.KvStoreServiceStub(channel)
            return dict((await stub.GetStats(kvstore_pb2.GetStatsRequest(), timeout=5)).counters)


def prompt(start: int) -> list[int]:
    return [1000 + (start * 7919 + i * 31) % 40000 for i in range(PREFIX_TOKENS)]


async def ask(cluster: Cluster, ids: Sequence[int]) -> Answer:
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=ids),
        sampling=pb.Sampling(temperature=0.0, seed=1),
        options=pb.Options(max_tokens=4, ignore_eos=True),
    )
    async with cluster.channel() as channel:
        return await read(cluster.inference(channel).Generate(request))


async def say(cluster: Cluster, text: str) -> Answer:
    request = pb.GenerateRequest(text=text, options=pb.Options(max_tokens=8, ignore_eos=True))
    async with cluster.channel() as channel:
        return await read(cluster.inference(channel).Generate(request))


async def until(true: object, timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not await true():  # type: ignore[operator]
            await asyncio.sleep(0.1)


@dataclass
class World:
    cluster: TwoHosts
    first: dict[int, Answer]
    """What the first host's worker answered, by prompt."""
    payload: bytes = b""
    """Of a block that both hosts moved."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Prompts were computed on the first host, whose worker is gone; the second host's worker is there."""
    cluster = TwoHosts(
        tmp_path_factory.mktemp("hosts"),
        settings={
            "deployment.log_level": "debug",
            "cache.nvme_bytes": 64 * 2**20,
            "cache.dram_bytes": 64 * 2**20,
            "cache.load_path": "load",
        },
    )
    try:
        await cluster.up()
        first = {number: await ask(cluster, prompt(number)) for number in range(3)}
        await say(cluster, WORDS * 8)

        async def handed_down() -> bool:
            return (await cluster.counters("kvstore"))["held_keys"] >= 3 * PREFIX_TOKENS // 16

        await until(handed_down)
        cluster.start("gpuworker1")

        async def both() -> bool:
            return len([w for w in (await cluster.status()).workers if w.state == "serving"]) == 2

        await until(both)
        cluster.kill("gpuworker0", signal.SIGTERM)

        async def one() -> bool:
            return [w.worker_id for w in (await cluster.status()).workers] == ["gpuworker1"]

        await until(one)
        yield World(cluster, first)
    finally:
        cluster.down()


async def test_a_prefix_comes_from_the_other_host(world: World) -> None:
    cluster = world.cluster
    again = await ask(cluster, prompt(0))
    assert again.ids == world.first[0].ids, "the same answer from blocks that another process computed"
    usage = again.finished.usage
    assert usage.cached_tokens >= PREFIX_TOKENS - 32
    near, far = await cluster.counters("kvstore2"), await cluster.counters("kvstore")
    assert near["remote_blocks"] == far["peer_blocks_sent"] >= (PREFIX_TOKENS - 32) // 16
    assert near["peers"] == near["peers_answering"] == 1 and near["remote_corrupt"] == 0
    counters = (await cluster.settle()).counters
    assert counters["loaded_blocks"] >= (PREFIX_TOKENS - 32) // 16


async def test_a_host_that_hangs_costs_a_miss_and_no_answer(world: World) -> None:
    cluster = world.cluster
    cluster.kill("kvstore", signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        again = await ask(cluster, prompt(1))
        took_s = time.monotonic() - began_s
    finally:
        cluster.kill("kvstore", signal.SIGCONT)
    assert again.ids == world.first[1].ids
    assert again.finished.usage.cached_tokens == 0 and took_s < 30
    assert (await cluster.counters("kvstore2"))["remote_failed"] >= 1
    await cluster.settle()


async def test_a_host_that_dies_is_forgotten(world: World) -> None:
    cluster = world.cluster
    cluster.kill("kvstore", signal.SIGKILL)

    async def gone() -> bool:
        return [store.store_id for store in (await cluster.status()).stores] == ["kvstore2"]

    await until(gone)
    again = await ask(cluster, prompt(2))
    assert again.ids == world.first[2].ids and again.finished.usage.cached_tokens == 0

    async def forgotten() -> bool:
        return (await cluster.counters("kvstore2"))["peers"] == 0

    await until(forgotten)
    assert (await ask(cluster, prompt(0))).finished.usage.cached_tokens > 0, "what was fetched is this host's own now"
    await cluster.settle()


async def test_no_text_and_no_tokens_in_logs_or_spans(world: World) -> None:
    """After all of the above, at log level debug."""
    said = world.first[0].texts[0].strip()
    tokens = prompt(0)
    needles = [
        *(word.encode() for word in ("quixotic", "zyzzyva", "marzipan", "vermilion")),
        ", ".join(map(str, tokens[:4])).encode(),
        " ".join(map(str, tokens[:4])).encode(),
        pack_u32(tokens[:4]).hex().encode(),
        pack_u32(tokens[:4]),
    ]
    files = [path for path in Path(world.cluster.run_dir).rglob("*") if path.suffix in (".log", ".jsonl", ".json")]
    assert len([path for path in files if path.name.startswith("traces-")]) >= 4
    for path in files:
        content = path.read_bytes()
        found = [needle for needle in needles if needle in content]
        assert not found, f"{path.name} has {found}"
    assert said or world.first[0].ids
