"""Parity with transformers in float32 on tiny random checkpoints: prefill, uneven chunks, decode, mixed batches."""

from __future__ import annotations

import random

import pytest
import torch
from octavo_gpuworker.kernels import select_kernels
from octavo_gpuworker.model.decoder import StepInputs
from octavo_gpuworker.model.load import load_model
from octavo_gpuworker.model.pool import KvPool

TOLERANCE = 1e-4

VARIANTS = {
    "llama": ("Llama", {"tie_word_embeddings": False}),
    "llama-tied-mha": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama-bias": ("Llama", {"attention_bias": True}),
    "llama-rope3": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}}),
    "llama-gelu": ("Llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "mistral-window": ("Mistral", {"sliding_window": 21, "head_dim": 16}),
    "mistral-full": ("Mistral", {"sliding_window": None, "head_dim": 16}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 24}),
    "qwen3-tied-mqa": ("Qwen3", {"head_dim": 32, "num_key_value_heads": 1, "tie_word_embeddings": True}),
}


def ids_of(count: int, seed: int) -> list[int]:
    return [random.Random(f"{seed}/{i}").randrange(3, 211) for i in range(count)]


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.shape == theirs.shape
    assert theirs.std() > 0.5, "the reference is too flat to show an error"
    assert (ours - theirs).abs().max().item() < TOLERANCE


@pytest.mark.parametrize("variant", VARIANTS)
def test_parity(variant, save_hf, make_runner, reference_logits) -> None:
    kind, changes = VARIANTS[variant]
    model, files = save_hf(kind, **changes)
    decoder = load_model(files, dtype="float32")
    prompts = {length: ids_of(length + 32, length) for length in (61, 150, 7, 1)}
    expected = {length: reference_logits(model, ids) for length, ids in prompts.items()}

    runner = make_runner(decoder)
    whole = runner.add(prompts[150])
    close(runner.step([(whole, 150)])[0], expected[150][:150])
    for position in range(150, 182):
        close(runner.step([(whole, 1)])[0], expected[150][position : position + 1])

    runner = make_runner(decoder, seed=3)
    chunked = runner.add(prompts[150])
    for count in (1, 37, 16, 3, 64, 29):
        start = chunked.computed
        close(runner.step([(chunked, count)])[0], expected[150][start : start + count])


@pytest.mark.parametrize("variant", ["llama-bias", "qwen3"])
def test_parity_of_the_oracle(variant, save_hf, make_runner, reference_logits) -> None:
    """The plain torch row of every operation, whatever this machine would choose."""
    kind, changes = VARIANTS[variant]
    model, files = save_hf(kind, **changes)
    runner = make_runner(load_model(files, dtype="float32", kernels="torch"))
    assert {name for _, name in runner.decoder.kernels.kernel_calls} == {"torch"}
    ids = ids_of(80, 1)
    seq, expected = runner.add(ids), reference_logits(model, ids)
    close(runner.step([(seq, 70)])[0], expected[:70])
    close(torch.cat([runner.step([(seq, 1)])[0] for _ in range(10)]), expected[70:])


@pytest.mark.parametrize("block_tokens", [8, 16, 32])
@pytest.mark.parametrize("variant", ["llama", "mistral-window", "qwen3"])
def test_mixed_batches_and_block_sizes(variant, block_tokens, save_hf, make_runner, reference_logits) -> None:
    """Decodes of unlike context, chunks and whole prompts in one forward, in any order, against each alone."""
    kind, changes = VARIANTS[variant]
    model, files = save_hf(kind, **changes)
    runner = make_runner(load_model(files, dtype="float32"), block_tokens, num_blocks=260)
    lengths = (300, 61, 150, 7, 9, 40)
    seqs = {length: runner.add(ids_of(length + 20, length)) for length in lengths}
    expected = {length: reference_logits(model, seq.ids) for length, seq in seqs.items()}
    plan = [
        {300: 290, 7: 7},
        {61: 13, 300: 1, 7: 1},
        {300: 1, 61: 1, 150: 140, 7: 1, 40: 5},
        {40: 1, 9: 9, 150: 1, 300: 1, 61: 47},
        {300: 1, 150: 1, 61: 1, 40: 1, 9: 1, 7: 1},
        {9: 2, 7: 3},
    ]
    for work in plan:
        before = {length: seqs[length].computed for length in work}
        outputs = runner.step([(seqs[length], count) for length, count in work.items()])
        for (length, count), ours in zip(work.items(), outputs, strict=True):
            close(ours, expected[length][before[length] : before[length] + count])


def test_sampled_rows_only_and_kv_of_unsampled_chunks(save_hf, make_runner, reference_logits) -> None:
    model, files = save_hf("Llama")
    decoder = load_model(files, dtype="float32")
    runner = make_runner(decoder)
    ids = ids_of(70, 5)
    seq, other = runner.add(ids), runner.add(ids_of(12, 6))
    nothing = decoder.forward(runner.inputs([(seq, 40)], sample=[]), runner.pool)
    assert nothing.shape == (0, decoder.config.vocab_size)
    seq.computed = 40
    # Rows 29 and 41: the last of each; asked for in reverse order.
    logits = decoder.forward(runner.inputs([(seq, 30), (other, 12)], sample=[41, 29]), runner.pool)
    assert logits.dtype == torch.float32
    close(logits[1:], reference_logits(model, ids)[69:])
    close(logits[:1], reference_logits(model, other.ids)[11:])


def test_copied_and_moved_blocks_are_the_same_context(save_hf, make_runner, reference_logits) -> None:
    """A block that went out as bytes and came back elsewhere, or was copied, answers like the original."""
    model, files = save_hf("Qwen2")
    runner = make_runner(load_model(files, dtype="float32"))
    ids = ids_of(60, 8)
    seq = runner.add(ids)
    runner.step([(seq, 48)])
    for index, block in enumerate(seq.blocks):
        target = runner.free.pop()
        if index % 2:
            runner.pool.copy_block(block, target)
        else:
            runner.pool.write_block(target, runner.pool.read_block(block))
        runner.pool.tensor[block].fill_(7.0)
        seq.blocks[index] = target
    close(runner.step([(seq, 12)])[0], reference_logits(model, ids)[48:])


def test_null_block_writes_disturb_nobody(save_hf, make_runner, reference_logits) -> None:
    model, files = save_hf("Llama")
    runner = make_runner(load_model(files, dtype="float32"))
    ids = ids_of(40, 9)
    seq, homeless = runner.add(ids), runner.add(ids_of(5, 10))
    runner.step([(seq, 39)])
    inputs = runner.inputs([(seq, 1), (homeless, 5)], sample=[0])
    inputs.slot_mapping[1:] = torch.arange(5)
    close(runner.decoder.forward(inputs, runner.pool), reference_logits(model, ids)[39:])


def test_bfloat16_stays_near_float32(save_hf, make_runner, reference_logits) -> None:
    model, files = save_hf("Llama")
    decoder = load_model(files, dtype="bfloat16")
    assert decoder.kv_dtype == torch.bfloat16
    runner = make_runner(decoder)
    ids = ids_of(64, 11)
    seq = runner.add(ids)
    expected = reference_logits(model, ids)
    ours = torch.cat([runner.step([(seq, 40)])[0], *(runner.step([(seq, 1)])[0] for _ in range(24))])
    error = (ours - expected).norm() / expected.norm()
    assert error < 0.05


def test_a_step_without_tokens_computes_nothing(save_hf) -> None:
    _, files = save_hf("Llama")
    decoder = load_model(files, dtype="float32")
    pool = KvPool(decoder.config, 4, 16, decoder.kv_dtype)
    none, zero = torch.empty(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int32)
    inputs = StepInputs(none, none, none, zero, none.int(), torch.empty(0, 3, dtype=torch.int32), none)
    assert decoder.forward(inputs, pool).shape == (0, decoder.config.vocab_size)
    assert not pool.tensor.any()


def test_short_block_table_is_refused(save_hf, make_runner) -> None:
    _, files = save_hf("Llama")
    runner = make_runner(load_model(files, dtype="float32"))
    inputs = runner.inputs([(runner.add(ids_of(40, 1)), 40)])
    inputs.block_tables = inputs.block_tables[:, :2]
    with pytest.raises(ValueError, match="context_len 40 is longer than its block table, which covers 32"):
        runner.decoder.forward(inputs, runner.pool)


def test_one_forward_calls_each_operation_once_per_layer(save_hf, make_runner) -> None:
    """Sixteen sequences cost as many calls as one: no loop over sequences."""
    _, files = save_hf("Llama")
    decoder = load_model(files, dtype="float32")
    runner = make_runner(decoder)
    seqs = [runner.add(ids_of(9, i)) for i in range(16)]
    runner.step([(seq, 8) for seq in seqs])
    before = decoder.kernels.kernel_calls
    runner.step([(seq, 1) for seq in seqs])
    after = decoder.kernels.kernel_calls
    made = {name: after[name, chosen] - before[name, chosen] for name, chosen in after}
    made = {name: count for name, count in made.items() if count}
    layers = decoder.config.layers
    assert made == {
        "linear": 4 * layers + 1,
        "rms_norm": 1,
        "add_rms_norm": 2 * layers,
        "store_kv": layers,
        "paged_attention": layers,
        "silu_mul": layers,
    }
    assert not any(select_kernels().kernel_calls.values()), "another table counts for itself"
