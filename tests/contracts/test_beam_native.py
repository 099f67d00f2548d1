"""Beam search over the native kernels: what beams inherit by forks is what their tokens give when they are computed alone."""

from __future__ import annotations

import pytest
from octavo_gpuworker.backends.native_backend import NativeBackend

from tests.contracts.beam_cell import BeamCell
from tests.gpuworker.backends.conftest import native_of

PROMPT = [1000 + (i * 7919) % 40000 for i in range(21)]
NEW = 14
ROUNDING = 0.06
"""What prefills in other forms than single steps may move a log-probability by, in bfloat16."""


@pytest.fixture(scope="module")
def native() -> NativeBackend:
    return native_of(kv_block_tokens=4)


def test_each_token_has_the_log_probability_that_its_beam_s_tokens_give(native: NativeBackend) -> None:
    cell = BeamCell(native, max_seqs=40, budget=512)
    told = cell.submit("search", PROMPT, NEW, width=4, logprobs=20)
    cell.run()
    assert cell.core.cell.counters["beam_forks"] > 4
    paths = {index: told.tokens[index] for index in range(4)}
    alone = {
        (index, at): cell.submit(f"{index}/{at}", PROMPT + path[:at], 1, width=1, logprobs=20)
        for index, path in paths.items()
        for at in range(NEW)
    }
    cell.run()
    seen = 0
    for (index, at), one in alone.items():
        found = one.logprobs[0][0]
        ids = memoryview(found.top_tokens).cast("I").tolist()
        by_token = dict(zip(ids, found.top_logprobs, strict=True))
        assert len(by_token) == 20 and max(by_token.values()) == found.logprob
        if (token := paths[index][at]) in by_token:
            seen += 1
            assert told.logprobs[index][at].logprob == pytest.approx(by_token[token], abs=ROUNDING), (index, at)
    assert seen > 4 * NEW - 4, "beams go by likely tokens"
