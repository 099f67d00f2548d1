"""What a worker's stream notes of what it writes: how long an Admit was in the scheduler."""

from __future__ import annotations

from octavo.v1 import worker_pb2 as wpb
from octavo_scheduler import wire
from octavo_scheduler.connections import WorkerConnection
from octavo_scheduler.orders import Admit, Stop


def admit(seq: int) -> Admit:
    return Admit(
        seq=seq, slot=0, tokens=b"", prompt_len=1, cached_len=0, block_ids=[1], sampling=b"", seed=0, deadline_us=0,
        rank=0, max_len=2, request_id=f"r{seq}", traceparent="",
    )  # fmt: skip


def written(connection: WorkerConnection, now_us: int) -> list[wpb.Order]:
    batch, connection.orders = connection.orders, []
    found: list[wpb.Order] = []
    for message in wire.write_orders(batch):
        wire.stamp_admits(message, connection.admitted_us, now_us)
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
