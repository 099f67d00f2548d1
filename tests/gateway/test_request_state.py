"""An admitted request survives the trip through the scheduler."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from octavo.errors import InternalError
from octavo_gateway.admission import Admission, Limits
from octavo_gateway.request_state import dump_state, load_state
from octavo_gateway.requests import ChatMessage, PromptChunk, RequestParams

LIMITS = Limits(root_key=b"r" * 32, block_tokens=16, max_model_len=256, max_choices=8)


def test_round_trip(admission: Admission) -> None:
    params = RequestParams(
        "chat", messages=[ChatMessage("user", "Hi")], stop=["é", "\n"], stop_token_ids=[7], logit_bias={5: -1.5}, n=3,
        logprobs=2, seed=2**64 - 1, min_tokens=1, request_id="r", idempotency_key="k", cache_salt="s", slo_class="fast",
        tools=[{"type": "function", "function": {"name": name}} for name in ("weather", "clock")],
    )  # fmt: skip
    admitted = admission.admit(params, admission.encode(params), "acme", 3.0, LIMITS, [PromptChunk("a", 0, 2, 0)])
    state = dump_state(admitted)
    assert len(state) < 1500
    loaded = load_state(state, admitted.prompt_ids)
    assert loaded == dataclasses.replace(
        admitted, prompt_keys=b"", root_key=b"", namespace_root=b"", namespace_tag=b"", deadline_s=None
    )
    again = admission.rekey(loaded, LIMITS)
    assert (again.prompt_keys, again.namespace_root) == (admitted.prompt_keys, admitted.namespace_root)


@pytest.mark.parametrize("state", [b"", b"{", b"[]", b"{}", b'{"version": 2}', b'{"version": 1}', b"\xff"])
def test_foreign_state_is_one_clear_error(state: Any) -> None:
    with pytest.raises(InternalError, match="cannot be read"):
        load_state(state, [])
