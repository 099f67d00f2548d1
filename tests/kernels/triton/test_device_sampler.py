"""The engine's sampler on the device draws what the host's sampler draws, from the same sequences."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from octavo_gpuworker.device_sampler import sample_on_device, sampler_of
from octavo_gpuworker.kernels import select_kernels
from octavo_gpuworker.kernels.sampling_ops import sample_torch
from octavo_gpuworker.kernels.triton.sampling import sample_triton
from octavo_gpuworker.orders import Sampling
from octavo_gpuworker.sampler import sample
from octavo_gpuworker.sequence import Sequence

VOCABULARY = 1500


@st.composite
def sequences(draw) -> Sequence:
    some = st.sampled_from
    sampling = Sampling(
        temperature=draw(some([0.0, 1e-6, 0.7, 1.5])),
        top_p=draw(some([1.0, 0.9, 0.4])),
        top_k=draw(some([0, 5, 2**31 - 1])),
        min_p=draw(some([0.0, 0.1])),
        presence_penalty=draw(some([0.0, 0.7])),
        frequency_penalty=draw(some([0.0, 0.3])),
        repetition_penalty=draw(some([1.0, 1.2])),
        bias=draw(some([(), ((3, 4.0), (700, -50.0))])),
        stop_ids=draw(some([frozenset(), frozenset({3, 9})])),
        min_tokens=draw(some([0, 100])),
        logprobs=draw(some([-1, 0, 3])),
    )
    tokens = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30))
    prompt_len = draw(st.integers(1, len(tokens)))
    seed = draw(st.integers(0, 2**64 - 1))
    return Sequence(1, 0, tokens, prompt_len, len(tokens), [], sampling, seed, 10_000, 0, len(tokens))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(sequences(), max_size=3), broken=st.booleans())
def test_the_hosts_tokens_and_logprobs(rows, broken) -> None:
    logits = torch.randn(len(rows), VOCABULARY) * 3
    if broken and rows:
        logits[0, 5] = float("nan")
    expected = sample(logits.clone(), rows)
    for operation in (sample_torch, sample_triton):
        found = sample_on_device(operation, logits.clone(), rows)
        assert found.tokens == expected.tokens
        for mine, theirs in zip(found.logprobs, expected.logprobs, strict=True):
            assert (mine is None) == (theirs is None)
            if mine is not None and theirs is not None:
                assert (mine.token, list(mine.top_tokens)) == (theirs.token, list(theirs.top_tokens))
                assert abs(mine.logprob - theirs.logprob) < 1e-5


def test_the_table_decides_which_sampler_runs() -> None:
    assert sampler_of(select_kernels("cpu", torch.float32, "torch")) is sample
    table = select_kernels("cpu", torch.float32, "triton")
    rows = [Sequence(1, 0, [1], 1, 1, [], Sampling(temperature=0.0), 1, 10, 0, 1)]
    assert sampler_of(table)(torch.arange(9.0)[None], rows).tokens == [8]
    assert table.kernel_calls["sample", "triton"] == 1
