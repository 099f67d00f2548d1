"""The sampler in C against its twin, sampler.py: the same tokens and the same bits of every log-probability."""

from __future__ import annotations

import ctypes
import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from octavo_gpuworker.native.abi import ERROR_BYTES
from octavo_gpuworker.native.batch import StepArrays
from octavo_gpuworker.native.library import ISA_CODES, Library
from octavo_gpuworker.orders import Sampling
from octavo_gpuworker.sampler import sample
from octavo_gpuworker.sequence import Sequence

PARAMETERS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 1e-6, 0.3, 0.8, 1.0, 2.5]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.1, 0.999, 1e-6]),
    top_k=st.sampled_from([0, 0, 1, 5, 40, 300, 10_000]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.5, -0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.3]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.8]),
    bias=st.sampled_from([(), (), ((3, 2.5), (7, -100.0)), ((0, 0.1), (0, 0.2))]),
    stop_ids=st.sampled_from([frozenset(), frozenset({2, 5})]),
    min_tokens=st.sampled_from([0, 0, 6]),
    logprobs=st.sampled_from([-1, -1, 0, 1, 5, 64]),
)


def fill(arrays: StepArrays, rows: list[Sequence]) -> None:
    """The rows' parameters as a backend writes them."""
    penalized = [seq.sampling.has_penalties for seq in rows]
    biases = [_biases(seq) for seq in rows]
    history = sum(len(seq.tokens) for seq, wanted in zip(rows, penalized, strict=True) if wanted)
    entries = sum(map(len, biases))
    top = max(1, *(seq.sampling.logprobs for seq in rows))
    arrays.reserve(
        tokens=1, sequences=1, rows=len(rows), columns=1, top=top, history=max(1, history), bias=max(1, entries)
    )
    arrays.history_start[0] = arrays.bias_start[0] = 0
    for row, seq in enumerate(rows):
        s = seq.sampling
        arrays.temperature[row], arrays.top_p[row], arrays.min_p[row] = s.temperature, s.top_p, s.min_p
        arrays.top_k[row], arrays.logprobs[row] = s.top_k, s.logprobs
        arrays.seeds[row], arrays.positions[row] = seq.seed, len(seq.tokens)
        arrays.repetition[row], arrays.presence[row] = s.repetition_penalty, s.presence_penalty
        arrays.frequency[row], arrays.prompt_len[row] = s.frequency_penalty, seq.prompt_len
        start = arrays.history_start[row]
        end = arrays.history_start[row + 1] = start + (len(seq.tokens) if penalized[row] else 0)
        arrays.history[start:end] = seq.tokens[: end - start]
        start = arrays.bias_start[row]
        end = arrays.bias_start[row + 1] = start + len(biases[row])
        arrays.bias_ids[start:end] = [token for token, _ in biases[row]]
        arrays.bias_values[start:end] = [value for _, value in biases[row]]


def _biases(seq: Sequence) -> list[tuple[int, float]]:
    ends = seq.sampling.stop_ids if seq.output_len < seq.sampling.min_tokens else ()
    return [*seq.sampling.bias, *((token, float("-inf")) for token in ends)]


def sample_native(
    library: Library, logits: np.ndarray, rows: list[Sequence], arrays: StepArrays | None = None, isa: str = "auto"
) -> StepArrays:
    arrays = arrays or StepArrays(logits.shape[1])
    fill(arrays, rows)
    error = ctypes.create_string_buffer(ERROR_BYTES)
    batch = arrays.struct(tokens=0, sequences=0, rows=len(rows))
    code = ISA_CODES[isa]
    failed = library.handle.octavo_sample(batch, logits.ctypes.data, logits.shape[1], code, error, ERROR_BYTES)
    if failed:
        raise ValueError(error.value.decode())
    return arrays


def sequence(sampling: Sampling, tokens: list[int], prompt_len: int, seed: int) -> Sequence:
    return Sequence(1, 0, tokens, prompt_len, len(tokens), [], sampling, seed, 10_000, 0, len(tokens))


def assert_equal(library: Library, logits: np.ndarray, rows: list[Sequence], isa: str = "auto") -> None:
    twin = sample(torch.from_numpy(logits.copy()), rows)
    arrays = sample_native(library, logits, rows, isa=isa)
    assert arrays.out_tokens[: len(rows)].tolist() == twin.tokens
    for row, expected in enumerate(twin.logprobs):
        if expected is None:
            continue
        k = len(expected.top_tokens)
        assert np.float32(expected.logprob) == arrays.out_logprobs[row]
        assert expected.top_tokens == arrays.out_top_ids[row, :k].tolist()
        assert expected.top_logprobs == arrays.out_top_logprobs[row, :k].tolist()


@settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_every_parameter_is_the_twins(data: st.DataObject, library: Library) -> None:
    vocab = data.draw(st.sampled_from([97, 257, 2048]))
    spread = data.draw(st.sampled_from([0.0, 0.01, 1.0, 4.0, 60.0]))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    params = data.draw(st.lists(PARAMETERS, min_size=1, max_size=4))
    logits = (generator.standard_normal((len(params), vocab)) * spread).astype(np.float32)
    if data.draw(st.booleans()):
        logits = np.round(logits * 2) / 2  # many equal values, at every cut
    rows = [
        sequence(
            p, generator.integers(0, vocab, 12).tolist(), int(generator.integers(1, 12)), int(generator.integers(2**63))
        )
        for p in params
    ]
    assert_equal(library, logits, rows, data.draw(st.sampled_from(["auto", "avx2"])))


@pytest.mark.parametrize("isa", ["auto", "avx2"])
@pytest.mark.parametrize("spread", [0.5, 3.0, 12.0])  # nuclei beyond the first reach, of thousands, and of a few
def test_a_real_vocabulary_is_the_twins(isa: str, spread: float, library: Library) -> None:
    generator = np.random.default_rng(3)
    logits = (generator.standard_normal((6, 49152)) * spread).astype(np.float32)
    kinds = [
        Sampling(temperature=0.8), Sampling(temperature=0.8, top_p=0.95), Sampling(top_k=50), Sampling(min_p=0.02),
        Sampling(temperature=1.5, top_p=0.99, logprobs=20), Sampling(top_k=900, top_p=0.9, logprobs=3),
    ]  # fmt: skip
    assert_equal(library, logits, [sequence(kind, [1, 2, 3], 2, 2**64 - 1 - i) for i, kind in enumerate(kinds)], isa)


@pytest.mark.parametrize("isa", ["auto", "avx2"])
@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.99, 0.9999])
def test_a_heavy_tail_is_the_twins(top_p: float, isa: str, library: Library) -> None:
    """One likely token and thousands of unlikely ones at every depth at which candidates are looked for; half of all scores are equal."""
    generator = np.random.default_rng(5)
    depths = np.array([8.9, 9.1, 11.4, 11.6, 14.9, 15.1, 27.9, 28.1, 40.0])
    logits = -np.stack([generator.choice(depths[first:], 30_000) for first in range(len(depths))])
    logits[:, ::2] += generator.uniform(-0.3, 0.3, logits[:, ::2].shape)
    logits[:, 123] = 0
    rows = [sequence(Sampling(top_p=top_p), [1], 1, seed) for seed in range(len(logits))]
    for turn in range(6):
        again = [dataclasses.replace(row, seed=row.seed + 100 * turn) for row in rows]
        assert_equal(library, logits.astype(np.float32), again, isa)


def test_a_row_that_is_not_finite_is_marked_alone(library: Library) -> None:
    logits = np.zeros((3, 40), np.float32)
    logits[0, 7], logits[1, 3] = np.nan, np.inf
    for temperature in (0.0, 1.0):
        rows = [sequence(Sampling(temperature=temperature, logprobs=2), [1], 1, 5) for _ in range(3)]
        arrays = sample_native(library, logits, rows)
        assert arrays.out_tokens[:2].tolist() == [-1, -1] and arrays.out_tokens[2] >= 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_allows_its_tokens_alone(temperature: float, library: Library) -> None:
    vocab = 70
    logits = np.random.default_rng(0).standard_normal((3, vocab)).astype(np.float32)
    arrays = StepArrays(vocab)
    arrays.grammar = np.zeros((2, 3), np.uint32)
    for token in (4, 31, 32, 69):
        arrays.grammar[0, token // 32] |= np.uint32(1 << token % 32)
    arrays.grammar_rows = np.array([0, 1, -1], np.int32)
    rows = [sequence(Sampling(temperature=temperature), [1], 1, seed) for seed in range(3)]
    sample_native(library, logits, rows, arrays)
    allowed = np.where(np.isin(np.arange(vocab), (4, 31, 32, 69)), logits[0], -1e30).astype(np.float32)
    expected = sample(torch.from_numpy(np.stack((allowed, logits[2]))), [rows[0], rows[2]]).tokens
    assert arrays.out_tokens[:3].tolist() == [expected[0], -1, expected[1]]
    arrays.grammar_rows[0] = 2
    with pytest.raises(ValueError, match=r"grammar_rows\[0\] is 2; expected below 2"):
        sample_native(library, logits, rows, arrays)
    arrays.grammar = arrays.grammar[:, :2].copy()
    with pytest.raises(ValueError, match="grammar has 2 words a mask, the vocabulary needs 3"):
        sample_native(library, logits, rows, arrays)


NOTHING: dict[str, Sampling] = {
    "every token forbidden": Sampling(temperature=0.0, stop_ids=frozenset(range(9)), min_tokens=50),
    "every token forbidden, drawn": Sampling(top_p=0.9, stop_ids=frozenset(range(9)), min_tokens=50),
    "a penalty beyond float32": Sampling(repetition_penalty=1e-44),
    "a bias beyond float32": Sampling(temperature=0.0, bias=((4, 3e38), (4, 3e38))),
}


@pytest.mark.parametrize("what", NOTHING)
def test_a_row_without_a_token_to_draw_fails_alone(what: str, library: Library) -> None:
    logits = np.abs(np.random.default_rng(3).standard_normal((3, 9))).astype(np.float32) + 1
    plain = Sampling(temperature=1.0, logprobs=2)
    rows = [sequence(sampling, [1, 2, 4], 2, seed) for seed, sampling in enumerate((plain, NOTHING[what], plain))]
    assert_equal(library, logits, rows)
    tokens = sample_native(library, logits, rows).out_tokens[:3].tolist()
    assert tokens[1] == -1 and min(tokens[0], tokens[2]) >= 0


def test_a_row_does_not_depend_on_those_beside_it(library: Library) -> None:
    logits = np.random.default_rng(1).standard_normal((4, 500)).astype(np.float32)
    rows = [sequence(Sampling(top_p=0.9), [1, 2], 1, seed) for seed in (1, 2, 3, 4)]
    together = sample_native(library, logits, rows).out_tokens[:4].tolist()
    alone = [sample_native(library, logits[i : i + 1].copy(), [row]).out_tokens[0] for i, row in enumerate(rows)]
    assert together == alone
    again = [dataclasses.replace(row.sampling) for row in rows]
    assert again == [row.sampling for row in rows]


@pytest.mark.parametrize("isa", ["auto", "avx2"])
@pytest.mark.parametrize("spread", [0.0, 1.0, 1e4])
def test_a_share_of_nothing_keeps_the_best(spread: float, isa: str, library: Library) -> None:
    """A top_p that is none in float32, of logits that a temperature has taken so far that their last bit is more than any cut."""
    generator = np.random.default_rng(5)
    logits = (generator.standard_normal((8, 2048)) * spread + 20).astype(np.float32)
    for temperature in (2e-5, 1e-3, 0.8):
        for top_p in (5e-324, 1e-300, 1e-46, 1e-44, 1e-9):
            rows = [sequence(Sampling(temperature, top_p, k), [1], 1, k) for k in (0, 0, 0, 0, 5, 5, 300, 2047)]
            assert_equal(library, logits, rows, isa)


@pytest.mark.parametrize("sampling", [Sampling(top_p=0.9), Sampling(top_k=5), Sampling(min_p=0.1), Sampling()])
def test_a_logit_that_leaves_float32_by_the_temperature_is_drawn(sampling: Sampling, library: Library) -> None:
    for best, rest in ((3e38, 1.0), (3e37, 3e36), (-3e37, -3e38)):
        logits = np.full((1, 97), rest, np.float32)
        logits[0, 41] = best
        rows = [sequence(dataclasses.replace(sampling, temperature=1e-3), [1], 1, 7)]
        assert sample_native(library, logits, rows).out_tokens[0] == 41
