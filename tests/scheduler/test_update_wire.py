"""A gateway's updates on the wire: nothing is lost or reordered within a request, whether it goes by name or by handle."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import pytest
from octavo.packing import unpack_u32
from octavo.v1 import scheduler_pb2 as pb
from octavo.v1 import worker_pb2 as wpb
from octavo_scheduler import token_runs
from octavo_scheduler.outbox import ChoiceEnded, TokensUpdate, Update
from octavo_scheduler.request import Outcome
from octavo_scheduler.update_wire import UpdateWriter


def tokens(start: int, *ids: int, index: int = 0, logprobs: tuple[bytes, ...] = ()) -> TokensUpdate:
    return TokensUpdate(index, start, array("I", ids), list(logprobs))


def accepted(name: str) -> Update:
    return Update(name, accepted=True, max_tokens=9)


def runs_of(message: pb.AttachGatewayResponse) -> Iterator[tuple[int, int, int, list[int]]]:
    runs, at = message.events.runs, 0
    ids = unpack_u32(runs.tokens)
    columns = [unpack_u32(column) for column in (runs.handles, runs.indexes, runs.starts, runs.counts)]
    for handle, index, start, count in zip(*columns, strict=True):
        yield handle, index, start, ids[at : at + count]
        at += count
    assert at == len(ids)


def sent(writer: UpdateWriter, updates: list[Update]) -> pb.AttachGatewayResponse:
    message = writer.write(updates, now_us=1000)
    assert message is not None
    return message


def kinds(message: pb.AttachGatewayResponse) -> list[tuple[str, str | None]]:
    return [(event.request_id, event.WhichOneof("event")) for event in message.events.events]


def test_tokens_alone_go_as_runs_under_the_handle_that_the_acceptance_told() -> None:
    writer = UpdateWriter(runs=True)
    first = sent(writer, [accepted("a"), accepted("b")])
    a, b = (event.accepted.handle for event in first.events.events)
    assert 0 < a != b > 0
    both = Update("b", tokens=[tokens(2, 7, 8), tokens(4, 9, index=1)])
    message = sent(writer, [Update("a", tokens=[tokens(1, 5)]), both])
    assert message.WhichOneof("message") == "events" and not message.events.events
    assert list(runs_of(message)) == [(a, 0, 1, [5]), (b, 0, 2, [7, 8]), (b, 1, 4, [9])]


def test_whatever_comes_with_other_events_stays_with_them_in_order() -> None:
    writer = UpdateWriter(runs=True)
    everything = Update("a", accepted=True, tokens=[tokens(0, 5)])
    assert kinds(sent(writer, [everything])) == [("a", "accepted"), ("a", "tokens")]
    last = Update(
        "a", tokens=[tokens(1, 6)], ended=[ChoiceEnded(0, "length", 2, 0)], finished=Outcome("finished", "", "")
    )
    message = sent(writer, [last])
    assert kinds(message) == [("a", "tokens"), ("a", "choice_finished"), ("a", "finished")]
    assert not message.events.HasField("runs")
    # the handle ended with the request
    assert kinds(sent(writer, [Update("a", tokens=[tokens(2, 7)])])) == [("a", "tokens")]


def test_logprobs_go_by_name() -> None:
    writer = UpdateWriter(runs=True)
    sent(writer, [accepted("a")])
    item = wpb.Logprobs(token=5, logprob=-1.5).SerializeToString()
    message = sent(writer, [Update("a", tokens=[tokens(1, 5, logprobs=(item,))])])
    assert [event.tokens.logprobs[0].logprob for event in message.events.events] == [-1.5]


def test_a_gateway_that_takes_no_runs_gets_none() -> None:
    writer = UpdateWriter(runs=False)
    assert sent(writer, [accepted("a")]).events.events[0].accepted.handle == 0
    message = sent(writer, [Update("a", tokens=[tokens(3, 5, 6)])])
    (event,) = message.events.events
    assert (getattr(event.tokens, "from"), unpack_u32(event.tokens.tokens)) == (3, [5, 6])


def test_requests_beyond_the_most_handles_go_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_runs, "MOST_HANDLES", 1)
    writer = UpdateWriter(runs=True)
    handles = [event.accepted.handle for event in sent(writer, [accepted("a"), accepted("b")]).events.events]
    assert handles[0] and handles[1] == 0
    message = sent(writer, [Update("a", tokens=[tokens(1, 1)]), Update("b", tokens=[tokens(1, 2)])])
    assert [run[3] for run in runs_of(message)] == [[1]] and kinds(message) == [("b", "tokens")]


def test_an_answer_to_a_cancel_or_a_pause_takes_no_handle_away() -> None:
    writer = UpdateWriter(runs=True)
    sent(writer, [accepted("a")])
    assert kinds(sent(writer, [Update("a", pause="keep")])) == [("a", "pause_result")]
    assert [run[3] for run in runs_of(sent(writer, [Update("a", tokens=[tokens(1, 4)])]))] == [[4]]


def test_accepted_anew_is_a_new_handle() -> None:
    writer = UpdateWriter(runs=True)
    one, two = (sent(writer, [accepted("a")]).events.events[0].accepted.handle for _ in range(2))
    assert one != two
    assert [run[0] for run in runs_of(sent(writer, [Update("a", tokens=[tokens(1, 4)])]))] == [two]


def test_the_first_tokens_of_a_choice_say_how_long_they_lay_here() -> None:
    writer = UpdateWriter(runs=True)
    sent(writer, [accepted("a")])
    (event,) = sent(writer, [Update("a", tokens=[tokens(0, 4)], first_token_us=940)]).events.events
    assert event.tokens.relay_us == 60
