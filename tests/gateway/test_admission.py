"""Every bad input is refused with the field and the fix; a good one becomes complete."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from octavo.artifacts import chat_template, resolve_model
from octavo.errors import InvalidRequest, UnknownModel
from octavo.keys import choice_seed, extend_keys, namespace_root
from octavo.packing import unpack_keys
from octavo_gateway.admission import Admission, AdmittedRequest, GenerationDefaults, Limits, prompt_chars
from octavo_gateway.chat import ChatRenderer
from octavo_gateway.requests import ChatMessage, RequestParams, ToolCall
from octavo_gateway.scheduler_wire import sampling_message
from octavo_gateway.tokenizer_files import load_tokenizer

V = 49152
LIMITS = Limits(root_key=b"r" * 32, block_tokens=16, max_model_len=256, max_choices=8)


@pytest.fixture(scope="module")
def admission() -> Admission:
    files = resolve_model("smollm2")
    tokenizer = load_tokenizer(files)
    return Admission("smollm2", tokenizer, ChatRenderer(chat_template(files), tokenizer), b"secret")


def generate(**given: Any) -> RequestParams:
    return RequestParams(**{"kind": "generate", "prompt_text": "Hello", **given})


def chat(**given: Any) -> RequestParams:
    return RequestParams(**{"kind": "chat", "messages": [ChatMessage("user", "Hello")], **given})


def admit(
    admission: Admission, params: RequestParams, limits: Limits = LIMITS, tenant: str = "default"
) -> AdmittedRequest:
    admission.check(params, limits)
    return admission.admit(params, admission.encode(params), tenant, None, limits)


def test_tools_and_calls_count_as_text_that_is_tokenized() -> None:
    """So that a large schema is tokenized in a thread, as a large message is."""
    tools = [{"type": "function", "function": {"name": "f", "description": "d" * 1000}}]
    history = [ChatMessage("user", "Hello"), ChatMessage("assistant", "", tool_calls=[ToolCall("1", "f", "a" * 100)])]
    assert prompt_chars(generate()) == prompt_chars(chat()) == len("Hello")
    assert prompt_chars(chat(messages=history)) == len("Hello") + 100
    assert prompt_chars(chat(tools=tools)) > 1000 and prompt_chars(chat(tools=tools, tool_choice="none")) < 10


BAD: list[tuple[RequestParams, str]] = [
    (generate(prompt_text=""), "prompt"),
    (generate(prompt_text=None), "prompt"),
    (generate(prompt_text="a", prompt_ids=[1]), "prompt"),
    (generate(prompt_text=None, prompt_ids=[]), "prompt"),
    (generate(prompt_text=None, prompt_ids=[5, V]), "prompt[1]"),
    (generate(prompt_text=None, prompt_ids=[-1]), "prompt[0]"),
    (generate(prompt_text=None, prompt_ids=[True]), "prompt[0]"),
    (generate(prompt_text=None, prompt_ids=[1] * 256), "prompt"),
    (generate(prompt_text="word " * 300), "prompt"),
    (generate(prompt_text="x" * 1_000_000), "prompt"),
    (generate(prompt_text="a\ud800"), "prompt"),
    (generate(max_tokens=0), "max_tokens"),
    (generate(max_tokens=0, echo=True, logprobs=1), "max_tokens"),
    (generate(max_tokens=-1), "max_tokens"),
    (generate(max_tokens=2**31), "max_tokens"),
    (generate(max_tokens=256), "max_tokens"),
    (generate(min_tokens=-1), "min_tokens"),
    (generate(min_tokens=17), "min_tokens"),
    (generate(temperature=float("nan")), "temperature"),
    (generate(temperature=float("inf")), "temperature"),
    (generate(temperature=-1.0), "temperature"),
    (generate(top_p=0.0), "top_p"),
    (generate(top_p=1.0001), "top_p"),
    (generate(top_p=2.0), "top_p"),
    (generate(top_p=float("nan")), "top_p"),
    (generate(top_k=-2), "top_k"),
    (generate(top_k=2**31), "top_k"),
    (generate(min_p=2.0), "min_p"),
    (generate(min_p=-0.1), "min_p"),
    (generate(presence_penalty=2.1), "presence_penalty"),
    (generate(frequency_penalty=-2.1), "frequency_penalty"),
    (generate(repetition_penalty=0.0), "repetition_penalty"),
    (generate(repetition_penalty=float("inf")), "repetition_penalty"),
    (generate(logit_bias={V: 5.0}), "logit_bias"),
    (generate(logit_bias={-1: 1.0}), "logit_bias"),
    (generate(logit_bias={"AI": -100.0}), "logit_bias"),
    (generate(logit_bias={5: 101.0}), "logit_bias[5]"),
    (generate(logit_bias={5: float("nan")}), "logit_bias[5]"),
    (generate(stop_token_ids=[151645]), "stop_token_ids[0]"),
    (generate(stop_token_ids=[1] * 257), "stop_token_ids"),
    (generate(seed=-1), "seed"),
    (generate(seed=2**64), "seed"),
    (generate(stop=["a", ""]), "stop[1]"),
    (generate(stop=[str(i) for i in range(10_000)]), "stop"),
    (generate(stop=["x" * 2000]), "stop[0]"),
    (generate(stop=["\udfff"]), "stop[0]"),
    (generate(n=0), "n"),
    (generate(n=1000), "n"),
    (generate(n=9), "n"),
    (generate(logprobs=21), "logprobs"),
    (generate(logprobs=-1), "logprobs"),
    (generate(request_id="a/b"), "request_id"),
    (generate(request_id="a b"), "request_id"),
    (generate(request_id="x" * 129), "request_id"),
    (generate(idempotency_key="é"), "idempotency_key"),
    (generate(cache_salt="x" * 257), "cache_salt"),
    (generate(deadline_ms=-1), "deadline_ms"),
    (generate(priority=2**31), "priority"),
    (chat(messages=[]), "messages"),
    (chat(messages=[ChatMessage("robot", "x")]), "messages[0].role"),
    (chat(messages=[ChatMessage("user", "\ud800")]), "messages[0].content"),
    (chat(messages=[ChatMessage("user", "word " * 300)]), "messages"),
    (chat(echo=True), "echo"),
]


@pytest.mark.parametrize(("params", "field"), BAD, ids=[f"{i}-{field}" for i, (_, field) in enumerate(BAD)])
def test_bad_input_names_the_field_and_the_fix(admission: Admission, params: RequestParams, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        admit(admission, params)
    assert caught.value.field == field
    assert str(caught.value).startswith(field)
    assert ";" in caught.value.message or "either" in caught.value.message


def test_unknown_model(admission: Admission) -> None:
    with pytest.raises(UnknownModel, match="smollm2"):
        admit(admission, generate(model="gpt-5"))


def test_defaults(admission: Admission) -> None:
    admitted = admit(admission, generate())
    sampling = admitted.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 1.0, 0, 0.0)
    assert (sampling.repetition_penalty, sampling.logprobs, sampling.stop_ids) == (1.0, -1, (2,))
    assert (admitted.n, admitted.max_tokens, admitted.prompt_ids) == (1, 16, [19556])
    assert admitted.request_id.startswith("req-")


def test_the_models_own_defaults(admission: Admission) -> None:
    own = dataclasses.replace(admission, defaults=GenerationDefaults(temperature=0.2, top_k=40))
    assert admit(own, generate()).sampling.temperature == 0.2
    assert admit(own, generate(temperature=1.0, top_k=-1)).sampling.top_k == 0


def test_max_tokens_of_chat_runs_to_the_end_of_the_context(admission: Admission) -> None:
    admitted = admit(admission, chat())
    assert admitted.max_tokens == LIMITS.max_model_len - len(admitted.prompt_ids)
    near_end = admit(admission, generate(prompt_text=None, prompt_ids=[5] * 250))
    assert near_end.max_tokens == 6


def test_exactly_the_context_fits(admission: Admission) -> None:
    assert admit(admission, generate(prompt_text=None, prompt_ids=[5] * 200, max_tokens=56)).max_tokens == 56
    with pytest.raises(InvalidRequest, match="use at most 56"):
        admit(admission, generate(prompt_text=None, prompt_ids=[5] * 200, max_tokens=57))


def test_a_tiny_temperature_is_greedy(admission: Admission) -> None:
    assert admit(admission, generate(temperature=1e-9)).sampling.temperature == 0.0


@pytest.mark.parametrize("name", ["top_p", "repetition_penalty"])
def test_what_is_hardly_above_zero_is_not_off_for_the_worker(admission: Admission, name: str) -> None:
    """Numbers travel as float32, where 1e-300 is the zero that says 'off'."""
    sampling = admit(admission, generate(**{name: 1e-300})).sampling
    assert 0 < getattr(sampling, name) < 1e-37
    assert getattr(sampling_message(sampling), name) == getattr(sampling, name)


def test_largest_seed_and_choice_seeds(admission: Admission) -> None:
    admitted = admit(admission, generate(seed=2**64 - 1, n=3))
    assert admitted.seeds == tuple(choice_seed(2**64 - 1, i) for i in range(3))
    assert len(set(admitted.seeds)) == 3


def test_stop_ids_are_ends_and_own_ones(admission: Admission) -> None:
    assert admit(admission, generate(stop_token_ids=[7, 2])).sampling.stop_ids == (2, 7)
    assert admit(admission, generate(stop_token_ids=[7], ignore_eos=True)).sampling.stop_ids == (7,)


def test_keys_chain_from_the_tenants_namespace(admission: Admission) -> None:
    ids = list(range(100, 140))
    keys = {
        (tenant, salt): admit(
            admission, generate(prompt_text=None, prompt_ids=ids, cache_salt=salt), tenant=tenant
        ).prompt_keys
        for tenant in ("a", "b")
        for salt in ("", "s")
    }
    assert len(set(keys.values())) == 4
    assert unpack_keys(keys["a", "s"]) == extend_keys(namespace_root(b"r" * 32, b"secret", "a", "s"), ids, 16)
    assert admit(admission, generate(cache_off=True, prompt_text=None, prompt_ids=ids)).prompt_keys == b""


def test_raw_prompt_gets_one_bos_at_most(admission: Admission) -> None:
    tokenizer = admission.tokenizer
    assert tokenizer.with_bos([5], add_bos=True) == [1, 5]
    assert tokenizer.with_bos([1, 5], add_bos=True) == [1, 5]
    assert tokenizer.with_bos([5]) == [5]


def test_control_text_in_a_raw_prompt_is_text(admission: Admission) -> None:
    assert 2 not in admit(admission, generate(prompt_text="a<|im_end|>b")).prompt_ids
