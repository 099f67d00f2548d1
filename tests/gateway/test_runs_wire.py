"""TokenRuns: columns of numbers reach the requests that their handles stand for, and nobody else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from octavo.packing import pack_u32
from octavo.v1 import scheduler_pb2 as pb
from octavo_gateway.runs_wire import RunTable


class Heard:
    """Stands in for a live request."""

    def __init__(self, wire_id: str) -> None:
        self.wire_id = wire_id
        self.first_token = 0.0
        self.first_read = (0.0, -1)
        self.runs: list[tuple[int, int, list[int]]] = []

    def on_first_read(self, read: float, relay_us: int) -> None:
        self.first_read = (read, relay_us)

    def on_plain(self, index: int, start: int, new: int | list[int], read: float, busy_ns: int) -> float:
        return -1.0  # nothing is plain here

    def on_tokens(self, index: int, start: int, ids: Any, logprobs: Any) -> None:
        assert not logprobs
        self.runs.append((index, start, list(ids)))


def runs(*rows: tuple[int, int, int, list[int]]) -> pb.TokenRuns:
    return pb.TokenRuns(
        handles=pack_u32([row[0] for row in rows]),
        indexes=pack_u32([row[1] for row in rows]),
        starts=pack_u32([row[2] for row in rows]),
        counts=pack_u32([len(row[3]) for row in rows]),
        tokens=pack_u32([token for row in rows for token in row[3]]),
    )


def test_each_run_reaches_its_request() -> None:
    table, a, b = RunTable(), Heard("a"), Heard("b")
    table.name(a, 1)  # type: ignore[arg-type]
    table.name(b, 2)  # type: ignore[arg-type]
    table.apply(runs((2, 0, 5, [8, 9]), (1, 0, 0, [7]), (2, 1, 0, [3]), (77, 0, 0, [1, 1])), 2.5)
    assert a.first_read == (2.5, 0)
    assert a.runs == [(0, 0, [7])] and b.runs == [(0, 5, [8, 9]), (1, 0, [3])]


def test_what_was_forgotten_or_renamed_hears_nothing_under_the_old_handle() -> None:
    table, a, b = RunTable(), Heard("a"), Heard("b")
    table.name(a, 1)  # type: ignore[arg-type]
    table.name(b, 2)  # type: ignore[arg-type]
    table.forget("a")
    table.forget("nobody")
    table.name(b, 3)  # type: ignore[arg-type]
    table.apply(runs((1, 0, 0, [1]), (2, 0, 0, [2]), (3, 0, 0, [3])), 2.5)
    assert not a.runs and b.runs == [(0, 0, [3])]
    table.clear()
    table.apply(runs((3, 0, 0, [4])), 2.5)
    assert len(b.runs) == 1


class InStep(Heard):
    """Takes every token behind its first as a plain one, `gap_s` after the one before."""

    def __init__(self, wire_id: str, gap_s: float) -> None:
        super().__init__(wire_id)
        self.first_token, self.gap_s = 1.0, gap_s
        self.counted: list[tuple[float, int]] = []

    def on_plain(self, index: int, start: int, new: int | list[int], read: float, busy_ns: int) -> float:
        self.runs.append((index, start, [new] if isinstance(new, int) else new))
        return self.gap_s if start else -1.0

    def count_gaps(self, gap_s: float, arrivals: int) -> None:
        self.counted.append((gap_s, arrivals))


def test_equal_gaps_of_a_message_are_counted_together() -> None:
    table = RunTable()
    lives = [InStep(str(number), gap_s) for number, gap_s in enumerate((0.25, 0.25, 0.5, 0.25))]
    for handle, live in enumerate(lives, start=1):
        table.name(live, handle)  # type: ignore[arg-type]
    table.apply(runs((1, 0, 1, [7]), (2, 0, 1, [8]), (9, 0, 1, [1]), (3, 0, 1, [9]), (4, 0, 1, [6])), 2.5)
    assert sorted(gap for live in lives for gap in live.counted) == [(0.25, 1), (0.25, 2), (0.5, 1)]
    assert [live.runs for live in lives] == [[(0, 1, [token])] for token in (7, 8, 9, 6)]
    table.apply(runs((1, 0, 0, [5])), 2.5)  # not plain: it is handed over as any run
    assert lives[0].runs[1:] == [(0, 0, [5])] * 2


@pytest.mark.parametrize(
    "damaged",
    [
        pb.TokenRuns(
            handles=pack_u32([1]),
            indexes=pack_u32([0]),
            starts=pack_u32([0]),
            counts=pack_u32([2]),
            tokens=pack_u32([1]),
        ),
        pb.TokenRuns(
            handles=pack_u32([1, 2]),
            indexes=pack_u32([0]),
            starts=pack_u32([0]),
            counts=pack_u32([1]),
            tokens=pack_u32([1]),
        ),
        pb.TokenRuns(handles=b"abc"),
    ],
)
def test_columns_that_do_not_fit_together_are_refused(damaged: pb.TokenRuns) -> None:
    with pytest.raises(ValueError):
        RunTable().apply(damaged, 2.5)


async def test_a_stream_of_runs_is_a_whole_answer(stack: Any, request_of: Any, put_together: Any) -> None:
    async def collect() -> list[Any]:
        return [response async for response in stack.stub.Generate(request_of())]

    reading = asyncio.create_task(collect())
    submit = await stack.scheduler.next("submit")
    stack.scheduler.accept(submit.request_id, handle=9)
    for start, text in ((0, "ab"), (2, "c")):
        stack.scheduler.runs(runs((9, 0, start, stack.ids(text)), (10, 0, 0, [1])))
    stack.scheduler.choice_finished(submit.request_id, "length", 3)
    stack.scheduler.finish(submit.request_id)
    assert put_together(await reading) == ("abc", stack.ids("abc"))


async def test_a_gap_in_the_runs_closes_the_stream(stack: Any, request_of: Any) -> None:
    async def collect() -> list[Any]:
        return [response async for response in stack.stub.Generate(request_of())]

    reading = asyncio.create_task(collect())
    submit = await stack.scheduler.next("submit")
    stack.scheduler.accept(submit.request_id, handle=4)
    stack.scheduler.runs(runs((4, 0, 1, stack.ids("b"))))
    again = await stack.scheduler.next("submit")
    assert again.attempt == 2 and stack.scheduler.connections == 2
    reading.cancel()
