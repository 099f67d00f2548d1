"""Beam search at the gateway: what may be asked for, what is refused with which words, how it travels."""

from __future__ import annotations

from typing import Any

import pytest
from octavo.errors import InternalError, InvalidRequest, from_outcome
from octavo.packing import unpack_u32
from octavo.v1 import inference_pb2 as pb
from octavo_gateway.admission import Admission, Limits
from octavo_gateway.beams import MAX_WIDTH, Beams, check_beams
from octavo_gateway.choice import ChoiceReader
from octavo_gateway.http.bodies import ChatBody, CompletionBody, decode_body
from octavo_gateway.http.names import in_clients_words
from octavo_gateway.http.params import chat_params, completion_params
from octavo_gateway.inference_wire import generate_params
from octavo_gateway.live import LiveRequest
from octavo_gateway.request_state import dump_state, load_state
from octavo_gateway.requests import ChatMessage, RequestParams
from octavo_gateway.scheduler_wire import apply_event, submit_message
from octavo_gateway.spans import RequestSpan
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

LIMITS = Limits(root_key=b"r" * 32, block_tokens=16, max_model_len=256, max_choices=16)


def asked(**given: Any) -> RequestParams:
    return RequestParams(**{"kind": "chat", "messages": [ChatMessage("user", "Hi")], "beam_width": 4, **given})


def admit(admission: Admission, params: RequestParams, limits: Limits = LIMITS) -> Any:
    admission.check(params, limits)
    return admission.admit(params, admission.encode(params), "default", None, limits)


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({"temperature": 0.7}, "temperature", "leave it out"),
        ({"top_p": 0.9}, "top_p", "leave it out"),
        ({"top_k": 5}, "top_k", "leave it out"),
        ({"min_p": 0.1}, "min_p", "leave it out"),
        ({"presence_penalty": 0.5}, "presence_penalty", "leave it out"),
        ({"frequency_penalty": -0.5}, "frequency_penalty", "leave it out"),
        ({"repetition_penalty": 1.1}, "repetition_penalty", "leave it out"),
        ({"min_tokens": 3}, "min_tokens", "leave it out"),
        ({"logit_bias": {5: 1.0}}, "logit_bias", "leave it out"),
        ({"n": 5}, "n", "at most beam_width (4)"),
        ({"beam_width": MAX_WIDTH + 1}, "beam_width", f"from 1 to {MAX_WIDTH}"),
        ({"beam_width": -1}, "beam_width", "from 1 to"),
        ({"length_penalty": float("nan")}, "length_penalty", "a number in"),
        ({"length_penalty": 11.0}, "length_penalty", "a number in"),
        ({"beam_width": 0, "length_penalty": 2.0}, "length_penalty", "set beam_width"),
        ({"beam_width": 0, "early_stopping": True}, "early_stopping", "set beam_width"),
    ],
)
def test_what_does_not_go_with_it_is_refused(admission: Admission, given: dict, field: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{field}: ") as caught:
        admit(admission, asked(**given))
    assert caught.value.field == field and words in caught.value.message
    with pytest.raises(InvalidRequest, match=f"^{field}: "):  # also before a scheduler has said its limits
        admission.check_sampling(asked(**given), LIMITS)


def test_the_cell_s_own_limit_holds_too(admission: Admission) -> None:
    with pytest.raises(InvalidRequest, match=r"^beam_width: 4 is out of range; use an integer from 1 to 3"):
        admit(admission, asked(), Limits(b"r" * 32, 16, 256, max_choices=3))


def test_a_vocabulary_of_fewer_tokens_than_beams_is_named(admission: Admission) -> None:
    with pytest.raises(InvalidRequest, match=r"^beam_width: 4 is out of range; use an integer from 1 to 3"):
        check_beams(asked(), LIMITS, vocab_size=3)
    assert check_beams(asked(), LIMITS, vocab_size=4) == Beams(4)
    error = from_outcome("failed", "too-few-continuations", "the search ended with 2 different answers for 4")
    assert isinstance(error, InvalidRequest)


def test_values_that_change_nothing_are_taken_and_defaults_do_not_hold(admission: Admission) -> None:
    admitted = admit(admission, asked(temperature=0, top_p=1, top_k=-1, repetition_penalty=1, seed=7, n=2))
    assert (admitted.n, admitted.beams) == (2, Beams(4, 1.0, False)) and admitted.sampling.temperature == 0
    assert admit(admission, asked()).n == 4
    assert admit(admission, asked(beam_width=0, length_penalty=1.0, early_stopping=False)).beams is None


def test_it_survives_the_trip_through_the_scheduler(admission: Admission) -> None:
    admitted = admit(admission, asked(length_penalty=0.5, early_stopping=True))
    loaded = load_state(dump_state(admitted), admitted.prompt_ids)
    assert loaded.beams == admitted.beams == Beams(4, 0.5, True)
    assert admitted.body_hash != admit(admission, asked(length_penalty=0.6, early_stopping=True)).body_hash


class _Nobody:
    """Takes orders and observations, and does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **more: None


async def test_the_submit_has_a_choice_for_each_beam_and_rows_that_suffice(admission: Admission) -> None:
    admitted = admit(admission, asked(n=2, stop_token_ids=list(range(9, 20)), logprobs=3, length_penalty=0.5))
    live = LiveRequest("w", "default", admission.tokenizer, _Nobody(), _Nobody(), lambda: 0.0, admitted)
    submit = submit_message(live, admitted, 0.0)
    assert len(submit.choices) == 4 and submit.beams.shown == 2 and submit.beams.length_penalty == 0.5
    ends = unpack_u32(submit.beams.stop_ids)
    assert set(ends) == set(admitted.sampling.stop_ids) and len(ends) > 8
    assert submit.beams.logprobs == 3 and submit.sampling.logprobs == 4 + len(ends)
    assert submit.sampling.beam and submit.sampling.temperature == 0 and not submit.sampling.stop_ids

    ended = pb_event(index=1, reason="length", tokens=5, score=-1.5, cumulative_logprob=-7.5)
    apply_event(live, ended, "choice_finished", 0.0)
    assert live.choices[1].beam == (-1.5, -7.5) and live.choices[0].beam is None


async def test_the_score_comes_with_the_delta_that_ends_the_choice(admission: Admission) -> None:
    """Also of a beam whose text a stop string has cut before its end was told."""
    admitted = admit(admission, asked(n=2, beam_width=2, stop=["a"]))
    live = LiveRequest("w", "default", admission.tokenizer, _Nobody(), _Nobody(), lambda: 0.0, admitted)
    words = admission.tokenizer.encode("ba" * 5000), admission.tokenizer.encode(" ok" * 5000)
    for index, ids in enumerate(words):
        live.on_tokens(index, 0, ids, ())
        ended = pb_event(index=index, reason="length", tokens=len(ids), score=-1.0 - index, cumulative_logprob=-7.5)
        apply_event(live, ended, "choice_finished", 0.0)
    for index, choice in enumerate(live.choices):
        reader, deltas = ChoiceReader(choice, admission.tokenizer), []
        while (delta := reader.pull()) is not None:
            deltas.append(delta)
        assert [delta.beam for delta in deltas if delta.finish_reason is None] == [None] * (len(deltas) - 1)
        assert deltas[-1].beam == (-1.0 - index, -7.5) and (len(deltas) > 1) == bool(index)


def pb_event(**given: Any) -> Any:
    from octavo.v1 import scheduler_pb2

    return scheduler_pb2.RequestEvent(request_id="w", choice_finished=scheduler_pb2.ChoiceFinished(**given))


def test_grpc_fields() -> None:
    options = pb.Options(beam_width=3, length_penalty=0.0, early_stopping=True)
    params = generate_params(pb.GenerateRequest(text="a", options=options))
    assert (params.beam_width, params.length_penalty, params.early_stopping) == (3, 0.0, True)
    params = generate_params(pb.GenerateRequest(text="a"))
    assert (params.beam_width, params.length_penalty) == (0, None) and not params.early_stopping


@pytest.mark.parametrize(
    ("body", "width", "n"),
    [
        ('"use_beam_search": true', 1, 1),
        ('"use_beam_search": true, "n": 3', 3, 3),
        ('"use_beam_search": true, "best_of": 4', 4, 1),
        ('"use_beam_search": true, "n": 2, "best_of": 4', 4, 2),
        ('"use_beam_search": false, "n": 2', 0, 2),
        ('"use_beam_search": true, "n": 0', 0, 0),  # which is refused, as it is without beams
    ],
)
def test_http_names_are_vllm_s(body: str, width: int, n: int) -> None:
    (params,) = completion_params(decode_body(b'{"prompt": "a", %s}' % body.encode(), CompletionBody))
    assert (params.beam_width, params.n) == (width, n)
    chat = b'{"messages": [{"role": "user", "content": "a"}], "length_penalty": 0.5, "early_stopping": true, %s}'
    params = chat_params(decode_body(chat % body.encode(), ChatBody))
    assert (params.beam_width, params.n, params.length_penalty, params.early_stopping) == (width, n, 0.5, True)


@pytest.mark.parametrize(
    ("body", "field"), [('"best_of": 3', "use_beam_search"), ('"use_beam_search": true, "n": 3, "best_of": 2', "n = 3")]
)
def test_best_of_alone_or_below_n_is_refused(body: str, field: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^best_of: ") as caught:
        completion_params(decode_body(b'{"prompt": "a", %s}' % body.encode(), CompletionBody))
    assert field in caught.value.message


def test_http_errors_name_the_field_that_was_sent(admission: Admission) -> None:
    for given, named in (('"n": 40', "n"), ('"best_of": 40', "best_of"), ('"n": 0', "n")):
        body = decode_body(b'{"prompt": "a", "use_beam_search": true, %s}' % given.encode(), CompletionBody)
        (params,) = completion_params(body)
        with pytest.raises(InvalidRequest) as caught:
            admission.check(params, LIMITS)
            admission.check_sampling(params, LIMITS)
        told = in_clients_words(caught.value, body)
        assert told.field == named and told.message.startswith(f"{named}: {given.split()[1]} is")
    body = decode_body(b'{"prompt": "a", "early_stopping": true}', CompletionBody)
    with pytest.raises(InvalidRequest) as caught:
        admission.check_sampling(completion_params(body)[0], LIMITS)
    assert "set use_beam_search" in in_clients_words(caught.value, body).message


@pytest.mark.parametrize(("width", "said"), [(4, 4), (0, None)])
def test_the_span_of_a_search_says_how_wide_it_is(admission: Admission, width: int, said: int | None) -> None:
    """Whoever reads traces tells by it that the steps stand before the first token."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    span = RequestSpan(provider.get_tracer("x"), "grpc", "chat", "m", "", 1)
    span.admitted(admit(admission, asked(beam_width=width)))
    span.fail(InternalError("over"))
    (found,) = exporter.get_finished_spans()
    assert (found.attributes or {}).get("octavo.beam_width") == said
