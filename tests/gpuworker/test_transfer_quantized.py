"""An int8 or fp8 cache through the kvstore: values and scales come back as one block, damage is found, dtypes never meet."""

from __future__ import annotations

import random

import pytest
import torch
from octavo_gpuworker.backends.torch_backend import torch_backend
from octavo_gpuworker.kernels import select_kernels
from octavo_gpuworker.model.decoder import Decoder
from octavo_gpuworker.model.pool import KvPool
from octavo_gpuworker.orders import LoadOrder, OffloadOrder
from octavo_kvstore.pins import PinTable
from octavo_kvstore.service import KvStoreServicer
from octavo_kvstore.store import Store
from octavo_kvstore.tiers.heap import HeapTier

from tests.gpuworker.conftest import VOCAB, tiny_decoder
from tests.gpuworker.model.conftest import Runner
from tests.gpuworker.test_transfer import KEYS, Bench, ScriptedStore, serving

DTYPES = [torch.int8, torch.float8_e4m3fn]
IDS = [random.Random(i).randrange(VOCAB) for i in range(16)]


def decoder_with(kv: torch.dtype) -> Decoder:
    base = tiny_decoder()
    kernels = select_kernels("cpu", torch.float32, "torch")
    return Decoder(base.config, base.weights, kernels, kv_dtype=kv, fingerprint=base.fingerprint)


def filled(kv: torch.dtype) -> tuple[Runner, list[int]]:
    """A runner, and the blocks that hold the cache of twelve tokens in it."""
    runner = Runner(decoder_with(kv), block_tokens=4, num_blocks=20)
    runner.step([(seq := runner.add(IDS), 12)])
    return runner, seq.blocks


def rest(runner: Runner, blocks: list[int]) -> torch.Tensor:
    """Logits of the last four tokens over the cache that lies in `blocks`."""
    seq = runner.add(IDS)
    seq.computed, seq.blocks = 12, list(blocks)
    return runner.step([(seq, 4)])[0]


@pytest.mark.parametrize("kv", DTYPES, ids=str)
async def test_a_quantized_cache_comes_back_and_answers_as_before(kv) -> None:
    runner, mine = filled(kv)
    assert runner.pool.scales is not None
    expected = rest(runner, mine)
    servicer = KvStoreServicer(Store(HeapTier(2**24), None, PinTable()), "host0", "boot")
    async with serving(servicer) as (address, _):
        bench = Bench(runner.pool, address)
        assert (await bench.run(OffloadOrder(1, mine, KEYS[:3]))).ok_blocks == 3
        other = Runner(decoder_with(kv), block_tokens=4, num_blocks=20, seed=1)
        elsewhere = Bench(other.pool, address)
        targets = other.free[:3]
        other.free = other.free[3:]
        done = await elsewhere.run(LoadOrder(2, KEYS[:3], targets, 0))
        assert (done.ok_blocks, done.bytes) == (3, 3 * runner.pool.block_bytes)
        for ours, theirs in zip(mine, targets, strict=True):
            assert other.pool.read_block(theirs) == runner.pool.read_block(ours)
            assert torch.equal(other.pool.scales[theirs], runner.pool.scales[ours])
        assert torch.equal(rest(other, targets), expected)
        await bench.transfers.close()
        await elsewhere.transfers.close()
    servicer.close()


@pytest.mark.parametrize("kv", DTYPES, ids=str)
@pytest.mark.parametrize("part", ["values", "scales"])
async def test_one_flipped_bit_in_values_or_scales_is_found(kv, part) -> None:
    runner, _ = filled(kv)
    store = ScriptedStore()
    async with serving(store) as (address, _):
        bench = Bench(runner.pool, address)
        await bench.run(OffloadOrder(1, [1, 2, 3], KEYS[:3]))
        store.flip = 0 if part == "values" else runner.pool.block_bytes - 1
        store.mode, store.after = "flipped bit", 1
        before = runner.pool.read_block(12)
        done = await bench.run(LoadOrder(2, KEYS[:3], [11, 12, 13], 0))
        assert done.ok_blocks == 1
        assert runner.pool.read_block(12) == before, "a damaged block is not written"
        await bench.transfers.close()


async def test_a_block_of_another_dtype_never_fits() -> None:
    """Same key by mistake, other dtype: the length differs, and nothing is written."""
    (ints, _), (floats, _) = filled(torch.int8), filled(torch.float32)
    store = ScriptedStore()
    async with serving(store) as (address, _):
        bench, other = Bench(ints.pool, address), Bench(floats.pool, address)
        await bench.run(OffloadOrder(1, [1, 2], KEYS[:2]))
        assert (await other.run(LoadOrder(2, KEYS[:2], [11, 12], 0))).ok_blocks == 0
        await bench.transfers.close()
        await other.transfers.close()


def test_the_root_of_block_keys_differs_by_dtype_and_layout() -> None:
    """int8 and fp8 blocks have the same length, so only the keys' root tells them apart."""
    roots = {}
    for kv in (*DTYPES, torch.float32, torch.bfloat16):
        for size in (4, 8):
            decoder = decoder_with(kv)
            pool = KvPool(decoder.config, 5, size, kv)
            backend = torch_backend(decoder, pool, cuda_graphs=False, max_model_len=64)
            roots[kv, size] = backend.fingerprint
    assert len(set(roots.values())) == len(roots)
    sizes = {kv: KvPool(tiny_decoder().config, 5, 4, kv).block_bytes for kv in DTYPES}
    assert sizes[torch.int8] == sizes[torch.float8_e4m3fn]
