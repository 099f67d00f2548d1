"""The gate on the real cluster: it passes as it stands, and each planted fault fails it by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
from cluster import ROOT, Cluster, free_port
from gguf import GGUFReader
from octavo.artifacts import resolve_model
from octavo_cli.bench.arrivals import OpenLoop
from octavo_cli.bench.options import target_of
from octavo_cli.bench.serve import Plan, measure
from octavo_cli.bench.work import with_cancels
from octavo_cli.bench.workloads import Shape, make_workload
from octavo_cli.check.gate import CHECKS, Report, run_checks
from octavo_cli.check.reference import shipped
from octavo_cli.check.subject import Subject

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]
FAULTS = ROOT / "tests/e2e/faults"
SETTINGS = {"model.name": "smollm2", "engine.dtype": "float32"}
"""In float32 the reference is met to the fifth decimal, so that one row among thousands shows."""


@dataclass
class FaultyCluster(Cluster):
    """A cluster in which a process may be one of the stand-ins of tests/e2e/faults."""

    faults: dict[str, str] = field(default_factory=dict)
    """Process -> its fault."""

    def flags(self, name: str) -> list[str]:
        words = super().flags(name)
        if name not in self.faults:
            return words
        service = name.rstrip("0123456789")
        return [words[0], str(FAULTS / f"faulty_{service}.py"), self.faults[name], *words[3:]]

    async def with_gateway(self, fault: str) -> str:
        """A second gateway with this fault; its address. The one before is ended."""
        if "gateway2" in self.processes and self.processes["gateway2"].poll() is None:
            self.kill("gateway2")
        self.ports["grpc2"], self.ports["http2"] = free_port(), free_port()
        self.faults["gateway2"] = fault
        self.start("gateway2")
        await self.wait_ready(url=f"http://127.0.0.1:{self.ports['http2']}")
        return f"grpc://127.0.0.1:{self.ports['grpc2']}"

    async def checked(self, names: list[str], url: str = "") -> Report:
        scheduler = f"127.0.0.1:{self.ports['scheduler']}"
        async with Subject(url or f"grpc://{self.grpc_address}", scheduler, precision="float32") as subject:
            return await run_checks(subject, shipped("smollm2"), names)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FaultyCluster]:
    shared = FaultyCluster(tmp_path_factory.mktemp("check"), kvstore=False, settings=SETTINGS)
    try:
        await shared.up()
        yield shared
    finally:
        shared.down()


@pytest.mark.parametrize("protocol", ["grpc", "grpc-plain", "http"])
async def test_the_generator_on_the_real_gateway(cluster: FaultyCluster, protocol: str) -> None:
    """Both protocols, and a stream each, send and count the same work; conversations find what was said before in the cache."""
    url = f"{cluster.http_url}/v1" if protocol == "http" else f"grpc://{cluster.grpc_address}"
    shape = Shape(requests=6, prompt_tokens=40, max_tokens=8, turns=2, pause_s=0.01)
    work = with_cancels(make_workload("multi-turn", shape), 0.3, 2, 1)
    async with target_of(url, multiplex=protocol == "grpc") as target:
        measured = await measure(target, Plan(work, OpenLoop("constant", 20.0), warmup_requests=1))
        if protocol != "http":
            assert (await target.describe()).facts["multiplex"] is (protocol == "grpc")
    figures, run = measured.figures, measured.runs["cold"]
    left = [sample for sample in run.samples if sample.outcome == "cancelled"]
    assert left and figures.value("errors") == 0 and figures.value("completed") == len(run.samples) - len(left)
    for sample in run.samples:
        if sample.outcome == "ok":
            assert (sample.prompt_tokens, sample.output_tokens) == ([40, 88][sample.turn], 8)
            assert (sample.cached_tokens or 0) >= 32 * sample.turn or protocol == "http"
    if protocol != "http":
        assert all(sample.server.ttft_ms <= sample.ttft_ms for sample in run.samples if sample.server.ttft_ms)
    assert (await cluster.settle()).blocks_leaked == 0


def fails(report: Report) -> dict[str, str]:
    """Check -> what it says; one that did not fail says how it ended."""
    return {
        item.name: item.said if item.verdict == "fail" else f"{item.verdict}: {item.said} {item.facts}"
        for item in report.results
    }


async def test_the_cluster_as_it_stands_passes(cluster: FaultyCluster) -> None:
    names = [name for name in CHECKS if name != "quality"]  # test_bench_gate makes it
    report = await cluster.checked(names)
    assert {item.name: (item.verdict, item.said) for item in report.results} == dict.fromkeys(names, ("pass", ""))
    assert report.passed and report.claim == "the reference model"


@pytest.mark.parametrize(
    ("fault", "check", "said"),
    [
        ("stop_rule", "stops", "stop "),
        ("seed_ignored", "sampling", "the same seed gave the same answer 0 of 4 times"),
        ("logprob_shift", "logprobs", "no position reaches a probability"),
        ("shared_namespace", "isolation", "another cache_salt found 80 tokens"),
        ("tool_json_cut", "tools", "are no JSON"),
    ],
)
async def test_a_planted_fault_of_the_gateway_fails(cluster: FaultyCluster, fault: str, check: str, said: str) -> None:
    url = await cluster.with_gateway(fault)
    found = fails(await cluster.checked([check], url))
    assert said in found.get(check, "passed")


async def test_one_changed_weight_row_fails(cluster: FaultyCluster, tmp_path: Path) -> None:
    """The worker alone serves other weights; everything else is as it was."""
    cluster.kill("gpuworker0")
    cluster.per_service = {"gpuworker": {"model.ref": str(with_a_row_zeroed(tmp_path / "row.gguf"))}}
    cluster.start("gpuworker0")
    await cluster.wait_ready()
    found = fails(await cluster.checked(["parity"]))
    assert found["parity"].startswith("logprobs differ by ") or "left the reference, one: token" in found["parity"]


async def test_a_leaked_block_fails(cluster: FaultyCluster) -> None:
    cluster.per_service = {}
    for name in ("gpuworker0", "scheduler"):
        cluster.kill(name)
    cluster.faults["scheduler"] = "leaked_block"
    for name in ("scheduler", "gpuworker0"):
        cluster.start(name)
    await cluster.wait_ready()
    found = fails(await cluster.checked(["reclaim"]))
    assert "held by nobody" in found["reclaim"] or "blocks that nobody holds" in found["reclaim"]


def with_a_row_zeroed(path: Path, tensor: str = "blk.15.ffn_down.weight", row: int = 100) -> Path:
    """The default model with one output row of one matrix set to zero."""
    source = resolve_model("smollm2").path
    found = next(item for item in GGUFReader(str(source)).tensors if item.name == tensor)
    row_bytes = int(found.n_bytes) // int(found.shape[1])
    content = bytearray(source.read_bytes())
    start = int(found.data_offset) + row * row_bytes
    assert any(content[start : start + row_bytes])
    content[start : start + row_bytes] = bytes(row_bytes)
    path.write_bytes(content)
    return path
