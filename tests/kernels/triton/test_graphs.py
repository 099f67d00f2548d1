"""Captured decode steps with a recording fake graph over the real kernels: a replay may read nothing but the static buffer."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from octavo_gpuworker.backends.torch_backend import TorchBackend
from octavo_gpuworker.graphs import BATCH_BUCKETS, GraphedForward, bucket_of, context_buckets
from octavo_gpuworker.kernels import select_kernels
from octavo_gpuworker.metrics import WorkerMetrics
from octavo_gpuworker.model.config import ModelConfig
from octavo_gpuworker.model.decoder import Decoder
from octavo_gpuworker.model.inputs import StepInputs
from octavo_gpuworker.model.needs import needs_of
from octavo_gpuworker.model.pool import KvPool
from octavo_gpuworker.model.weights import LayerWeights, Weights
from octavo_gpuworker.step_buffer import StepBuffer
from prometheus_client import CollectorRegistry

CONFIG = ModelConfig(
    architecture="llama", layers=1, d_model=32, q_heads=2, kv_heads=1, head_dim=32, ffn=32, vocab_size=31, max_position=4096,
    norm_eps=1e-5, rope_theta=10000.0, tied_embeddings=True,
)  # fmt: skip
# Rows of padding compute on whatever their memory held; nobody reads them.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
CPU = torch.device("cpu")


class FakeGraph:
    """Keeps what was captured and does it again, into the same memory, as a CUDA graph would."""

    def __init__(self, run) -> None:
        self.run, self.result, self.replays = run, run().clone(), 0

    def replay(self) -> None:
        self.replays += 1
        self.result.copy_(self.run())


class FakeBackend:
    def __init__(self) -> None:
        self.graphs: list[FakeGraph] = []

    def capture(self, run):
        self.graphs.append(FakeGraph(run))
        return self.graphs[-1], self.graphs[-1].result


def decoder_of() -> Decoder:
    torch.manual_seed(5)
    d, dim = CONFIG.d_model, CONFIG.head_dim
    layer = LayerWeights(
        torch.ones(d), torch.randn(CONFIG.qkv_rows, d) / 6, None, None, None, torch.randn(d, 2 * dim) / 8, None,
        torch.ones(d), torch.randn(2 * CONFIG.ffn, d) / 6, torch.randn(d, CONFIG.ffn) / 6,
    )  # fmt: skip
    embedding = torch.randn(CONFIG.vocab_size, d)
    needs = needs_of(CONFIG, device=CPU, dtype=torch.float32, kv_dtype=torch.float32, block_tokens=8)
    table = select_kernels("cpu", torch.float32, "triton", needs)
    return Decoder(CONFIG, Weights(embedding, [layer], torch.ones(d), embedding), table, kv_dtype=torch.float32, fingerprint=bytes(32))  # fmt: skip


def step(contexts: list[int], new: list[int] | None = None, sampled: int | None = None) -> StepInputs:
    """A step of sequences whose block tables are 1, 2, 3, ... in turn."""
    new = new or [1] * len(contexts)
    width = max(-(-context // 8) for context in contexts)
    tables = torch.arange(1, len(contexts) * width + 1, dtype=torch.int32).view(len(contexts), width)
    positions = torch.cat(
        [torch.arange(context - count, context) for context, count in zip(contexts, new, strict=True)]
    )
    owner = torch.repeat_interleave(torch.arange(len(contexts)), torch.tensor(new))
    slots = tables[owner, positions // 8].long() * 8 + positions % 8
    starts = torch.tensor([0, *torch.tensor(new).cumsum(0)], dtype=torch.int32)
    rows = starts[1:].long() - 1
    return StepInputs(
        positions % CONFIG.vocab_size, positions, slots, starts, torch.tensor(contexts, dtype=torch.int32), tables,
        rows[:sampled], new_tokens=new, contexts=contexts,
    )  # fmt: skip


@pytest.fixture
def graphed():
    decoder, backend = decoder_of(), FakeBackend()
    pool = KvPool(CONFIG, 300, 8, torch.float32)
    pool.tensor.normal_()
    return GraphedForward(decoder, pool, backend, max_model_len=2048, batch_buckets=(1, 2, 4)), decoder, pool, backend


def test_a_replay_equals_the_eager_step_for_every_batch_in_its_bucket(graphed) -> None:
    forward, decoder, pool, backend = graphed
    for contexts in ([9, 30, 5], [40, 8, 9, 1], [7, 2, 3], [600, 17]):
        inputs = step(contexts)
        other = KvPool(CONFIG, 300, 8, torch.float32)
        other.tensor.copy_(pool.tensor)
        expected = decoder.forward(inputs, other)
        assert torch.allclose(forward.forward(inputs, pool), expected, atol=1e-5)
        assert torch.equal(pool.tensor[1:], other.tensor[1:]), "padding wrote outside the null block"
    assert forward.stats.replays == {(4, 1024): 3, (2, 1024): 1}
    assert [graph.replays for graph in backend.graphs] == [3, 1]
    assert forward.stats.captures == 2
    assert (forward.stats.tokens, forward.stats.padded_tokens) == (12, 2)
    assert forward.stats.hit_rate == 1.0


def test_drawn_tokens_take_their_places_on_the_device(graphed) -> None:
    """Two steps are packed before the first is read; tokens of the step before never pass the host."""
    forward, decoder, pool, _ = graphed
    for contexts, pending in (([9, 30, 5], [2, -1, 0]), ([10, 31, 6], [0, 1, 2]), ([600, 17], [1, 0])):
        inputs = step(contexts)
        drawn = torch.tensor([7, 11, -1])
        rows = torch.tensor(pending)
        known = dataclasses.replace(
            inputs, token_ids=torch.where(rows >= 0, drawn[rows.clamp(min=0)].clamp(min=0), inputs.token_ids)
        )
        other = KvPool(CONFIG, 300, 8, torch.float32)
        other.tensor.copy_(pool.tensor)
        expected = decoder.forward(known, other)
        lacking = dataclasses.replace(inputs, pending=rows, drawn=drawn)
        lacking.token_ids = torch.where(rows >= 0, 0, inputs.token_ids)
        assert torch.allclose(forward.forward(lacking, pool), expected, atol=1e-5)
        assert torch.equal(pool.tensor[1:], other.tensor[1:])
    plain = step([9, 30], [1, 3])
    known = dataclasses.replace(plain, token_ids=torch.tensor([20, *plain.token_ids[1:].tolist()]))
    lacking = dataclasses.replace(plain, pending=torch.tensor([1, -1, -1, -1]), drawn=torch.tensor([3, 20]))
    assert torch.equal(forward.forward(lacking, pool), decoder.forward(known, pool)), "a step without a graph as well"
    assert torch.equal(lacking.token_ids, step([9, 30], [1, 3]).token_ids), "the caller's arrays stay as they are"


def test_a_step_buffer_holds_two_steps_on_the_host() -> None:
    """The copy of a step may begin after the next step was packed."""
    buffer = StepBuffer(4, 6, CPU)
    buffer.load(step([9, 30, 5]))
    first = buffer._hosts[buffer._turn].clone()
    buffer.load(step([10, 31, 6]))
    assert torch.equal(buffer._hosts[1 - buffer._turn], first)
    assert not torch.equal(buffer._hosts[buffer._turn], first)


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        (step([9, 30], [1, 3]), "prefill"),
        (step([9] * 5), "more sequences than the largest bucket"),
        (step([9, 9], sampled=1), "not every row is sampled"),
        (dataclasses.replace(step([9]), contexts=None), "lengths unknown to the host"),
    ],
)
def test_what_no_bucket_holds_runs_eagerly_and_says_why(graphed, inputs, reason) -> None:
    forward, decoder, pool, backend = graphed
    other = KvPool(CONFIG, 300, 8, torch.float32)
    other.tensor.copy_(pool.tensor)
    assert torch.equal(forward.forward(inputs, pool), decoder.forward(inputs, other))
    assert forward.stats.eager == {reason: 1}
    assert not backend.graphs
    assert forward.stats.hit_rate == 0.0
    forward.forward(step([4]), pool)
    assert forward.stats.hit_rate == 0.5
    registry = CollectorRegistry()
    WorkerMetrics(registry, 1, dict, TorchBackend(decoder, pool, graphs=forward).gauges())
    assert registry.get_sample_value("octavo_worker_graph_hit_ratio") == 0.5
    assert registry.get_sample_value("octavo_worker_graph_eager_steps") == 1


def test_a_context_beyond_the_largest_bucket(graphed) -> None:
    forward, _, _, _ = graphed
    inputs = dataclasses.replace(step([9]), contexts=[2049])
    assert forward.choose(inputs) == "longer context than the largest bucket"
    assert forward.choose(dataclasses.replace(inputs, contexts=[2048])) == (1, 2048)


def test_warm_up_captures_each_bucket_once_largest_first(graphed) -> None:
    forward, _, pool, backend = graphed
    before = pool.tensor[1:].clone()
    forward.warm_up(2)
    assert forward.stats.captures == 4  # batches 1, 2; contexts 1024, 2048
    assert [graph.result.shape[0] for graph in backend.graphs] == [2, 1, 2, 1]
    assert torch.equal(pool.tensor[1:], before), "capturing wrote outside the null block"
    forward.forward(step([9, 10]), pool)
    assert forward.stats.captures == 4


def test_another_pool_is_refused(graphed) -> None:
    forward, _, _, _ = graphed
    with pytest.raises(ValueError, match="captured over another KV pool"):
        forward.forward(step([9]), KvPool(CONFIG, 3, 8, torch.float32))


def test_buckets() -> None:
    assert [bucket_of(BATCH_BUCKETS, count) for count in (1, 3, 16, 17, 256, 257)] == [1, 4, 16, 24, 256, None]
    assert context_buckets(100) == (1024,)
    assert context_buckets(8192) == (1024, 2048, 4096, 8192)
