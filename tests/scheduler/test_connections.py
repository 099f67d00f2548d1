"""What a stream notes of the messages that it writes: how long an Admit and a first token were in the scheduler."""

from __future__ import annotations

from array import array

from octavo.v1 import worker_pb2 as wpb
from octavo_scheduler import wire
from octavo_scheduler.connections import WorkerConnection
from octavo_scheduler.orders import Admit, Stop
from octavo_scheduler.outbox import TokensUpdate, Update


def admit(seq: int) -> Admit:
    return Admit(
        seq=seq, slot=0, tokens=b"", prompt_len=1, cached_len=0, block_ids=[1], sampling=b"", seed=0, deadline_us=0,
        rank=0, max_len=2, request_id=f"r{seq}", traceparent="",
    )  # fmt: skip


def written(connection: WorkerConnection, now_us: int) -> list[wpb.Order]:
    batch, connection.orders = connection.orders, []
    found: list[wpb.Order] = []
    for message in wire.write_orders(batch):
        connection.stamp(message, now_us)
        found.extend(message.orders)
    return found


async def test_an_admit_tells_how_long_it_waited_for_its_writing() -> None:
    connection = WorkerConnection(1, "w")
    connection.send([admit(7), Stop(3, "cancel")], 1_000)
    connection.send([admit(8)], 1_400)
    first, stop, second = written(connection, 1_500)
    assert (first.admit.dispatch_us, second.admit.dispatch_us, stop.WhichOneof("order")) == (500, 100, "stop")
    connection.send([admit(9)], 5_000)
    (later,) = written(connection, 4_000)  # a clock that stood still or behind: never negative
    assert later.admit.dispatch_us == 0


def relayed(update: Update, now_us: int) -> list[int]:
    return [event.tokens.relay_us for event in wire.write_update(update, now_us) if event.HasField("tokens")]


def test_only_a_first_token_tells_how_long_it_was_on_its_way_through() -> None:
    first, later = TokensUpdate(0, 0, array("I", [5]), []), TokensUpdate(1, 4, array("I", [6]), [])
    assert relayed(Update("r", tokens=[first, later], first_token_us=700), 1_000) == [300, 0]
    assert relayed(Update("r", tokens=[later]), 1_000) == [0]
