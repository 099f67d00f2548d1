"""Steps of arbitrary content: the library answers or names a field; it never crashes, nor writes where it should not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from octavo_gpuworker.native.library import Library
from octavo_gpuworker.native.model import NativeModel, StepError, block_bytes

from .conftest import TINY, Checkpoint, Step, fill

STEP = Step([[1, 2, 3], [4, 5, 6, 7], [8] * 11], [3, 4, 2], 8)
GUARD = 0xA5
INTEGERS = st.sampled_from([-(2**31), -(2**20), -2, -1, 0, 1, 2, 3, 7, 8, 9, 31, 64, 300, 301, 2**20, 2**31 - 1])
FLOATS = st.sampled_from([float("nan"), float("inf"), float("-inf"), -1.0, 0.0, 1e-38, 1e-5, 0.3, 1.0, 1e30, 3e38])
INTEGER_FIELDS = (
    "token_ids", "query_start", "context_len", "block_tables", "sample_rows", "top_k", "logprobs", "history_start", "history",
    "prompt_len", "bias_start", "bias_ids", "positions", "grammar_rows",
)  # fmt: skip
FLOAT_FIELDS = ("temperature", "top_p", "min_p", "repetition", "presence", "frequency", "bias_values")
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(INTEGER_FIELDS), st.integers(0, 30), INTEGERS),
        st.tuples(st.sampled_from(FLOAT_FIELDS), st.integers(0, 30), FLOATS),
    ),
    max_size=6,
)
SIZES = st.tuples(*(st.one_of(st.just(size), st.sampled_from([-1, 0, 1, 3, 9])) for size in (9, 3, 9)))


@pytest.fixture
def guarded(library: Library, checkpoints, packed) -> Callable[..., tuple[NativeModel, np.ndarray]]:
    """A model whose pool lies between guards, and the memory that holds all three."""

    def make(weights: str, kv: str, block_tokens: int = 8) -> tuple[NativeModel, np.ndarray]:
        checkpoint: Checkpoint = checkpoints("llama")
        size = block_bytes(TINY, kv, block_tokens)
        memory = np.full((STEP.num_blocks + 2, size), GUARD, np.uint8)
        memory[1:-1] = 0
        model = NativeModel(
            library, TINY, packed(checkpoint, weights), kv_dtype=kv, pool=memory[1:-1], block_tokens=block_tokens, threads=2
        )  # fmt: skip
        return model, memory

    return make


def test_the_units_of_a_phase_are_counted_before_they_are_handed_out(guarded) -> None:
    """2,100 sequences of 500 spans each, the last four by KV head, would not fit the counter that threads claim from."""
    model, memory = guarded("bf16", "bf16", 512)
    arrays = model.arrays()
    context, count = 512 * 500, 2100
    arrays.reserve(tokens=count, sequences=count, rows=1, columns=context // 512)
    arrays.query_start[: count + 1] = np.arange(count + 1)
    arrays.context_len[:count] = context
    before = memory.copy()
    with pytest.raises(StepError, match="1052000 units in one phase, at most 1048575"):
        model.step(arrays, tokens=count, sequences=count, rows=0)
    assert np.array_equal(memory, before)
    model.close()


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    changes=CHANGES, sizes=SIZES, precision=st.sampled_from([("bf16", "bf16"), ("int8", "int8"), ("int4", "f32")])
)  # fmt: skip
def test_arbitrary_steps_answer_or_name_a_field(changes, sizes, precision, guarded) -> None:
    model, memory = guarded(*precision)
    arrays = model.arrays()
    fill(arrays, STEP, STEP.new, [3, 4, 11])
    arrays.reserve(tokens=9, sequences=3, rows=9, columns=STEP.columns, top=4, history=40, bias=40)
    arrays.history_start[:10], arrays.bias_start[:10] = np.arange(10) * 4, np.arange(10) * 3
    arrays.temperature[:9:2] = 0.8
    arrays.grammar, arrays.grammar_rows = np.full((2, 10), 0xFFFF0F0F, np.uint32), np.full(16, -1, np.int32)
    for name, index, value in changes:
        flat = getattr(arrays, name).reshape(-1)
        flat[index % len(flat)] = value
    before = memory.copy()
    try:
        tokens, sequences, rows = sizes
        model.step(arrays, tokens=tokens, sequences=sequences, rows=rows)
    except ValueError as error:
        assert str(error) and np.array_equal(memory, before), "a step that is refused touches nothing"
        assert not isinstance(error, StepError) or "expected" in str(error) or " is " in str(error)
    else:
        assert ((arrays.out_tokens[:rows] >= -1) & (arrays.out_tokens[:rows] < TINY.vocab_size)).all()
        assert (memory[0] == GUARD).all() and (memory[-1] == GUARD).all()
    finally:
        model.close()
