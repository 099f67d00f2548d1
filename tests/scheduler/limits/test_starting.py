"""The time to a first token, step by step."""

from __future__ import annotations

from array import array

import pytest
from octavo_scheduler.events import Calibration, WorkerJoined
from octavo_scheduler.fleet import Worker
from octavo_scheduler.limits.starting import start_us
from octavo_scheduler.policy import Policy
from octavo_scheduler.request import Choice, Request, Sequence

POLICY = Policy(max_num_batched_tokens=512, max_num_batched_tokens_alone=2048)
FIXED_US, TOKEN_US, SEQ_US = 5000.0, 30.0, 100.0


def worker_of() -> Worker:
    hello = WorkerJoined(0, 1, "w", 4096, 16, 64, 8192, calibration=Calibration(FIXED_US, TOKEN_US, SEQ_US, 0.0001))
    return Worker(hello, POLICY)


def seat(worker: Worker, prompt: int, computed: int = 0, admitted_us: int = 0, turn: int = 0) -> Sequence:
    request = Request("r", "t", array("I", bytes(4 * prompt)), [], b"", -1, 8, 0, 0)
    choice = Choice(request, 0, 1, [])
    number = len(worker.sequences) + 1
    blocks = list(range(1, prompt // 16 + 2))
    sequence = Sequence(
        number, number, number, 1, choice, blocks, prompt, computed, 0, prompt + 8, admitted_us, turn=turn
    )
    worker.sequences[number] = sequence
    return sequence


def predicted(worker: Worker, tokens: int, now_us: int, turn: int = 10, **more: float) -> float:
    return start_us(worker, tokens, POLICY, now_us, turn, **more)  # type: ignore[arg-type]


def step_us(tokens: int, decodes: int = 0) -> float:
    return FIXED_US + tokens * TOKEN_US + decodes * SEQ_US


def test_on_an_idle_worker_it_is_the_prompts_own_step() -> None:
    assert predicted(worker_of(), 400, 0) == pytest.approx(step_us(400), rel=0.001)


def test_the_step_under_way_holds_what_had_joined_before_the_last_report_and_nothing_later() -> None:
    worker = worker_of()
    worker.stepped_us = 1000
    seat(worker, 100, computed=99)  # decodes
    left_us = step_us(0, 1) - 2000
    seat(worker, 300, admitted_us=2000, turn=1)  # came while the step ran
    expected = left_us + step_us(100 + 300, 1)
    assert predicted(worker, 100, 3000) == pytest.approx(expected, rel=0.001)


def test_a_prefill_that_had_joined_is_under_way() -> None:
    worker = worker_of()
    worker.stepped_us = 1000
    seat(worker, 100, computed=99)
    seat(worker, 300, admitted_us=500, turn=1)
    expected = step_us(300, 1) - 2000 + step_us(100, 2)
    assert predicted(worker, 100, 3000) == pytest.approx(expected, rel=0.001)


def test_an_idle_worker_began_with_the_first_that_came() -> None:
    worker = worker_of()
    worker.stepped_us = 1000
    seat(worker, 300, admitted_us=50_000)
    seat(worker, 200, admitted_us=52_000, turn=1)
    expected = step_us(300) - 3000 + step_us(200 + 100, 1)
    assert predicted(worker, 100, 53_000) == pytest.approx(expected, rel=0.001)


def test_the_last_step_is_filled_by_what_comes_behind() -> None:
    worker = worker_of()
    worker.stepped_us = 1000
    seat(worker, 100, computed=99)
    seat(worker, 5000, admitted_us=2000, turn=20)  # its turn is after
    room = 512 - 1
    full = step_us(room, 1)
    assert predicted(worker, 100, 1000) == pytest.approx(step_us(0, 1) + full, rel=0.001)
    worker.sequences.popitem()
    none, some, flood = (predicted(worker, 100, 1000, arriving=rate) for rate in (0.0, 0.001, 10.0))
    assert none == pytest.approx(step_us(0, 1) + step_us(100, 1), rel=0.001)
    assert none < some < flood == pytest.approx(step_us(0, 1) + full, rel=0.001)


def test_itself_and_choices_that_fork_are_not_ahead_of_it() -> None:
    worker = worker_of()
    own = seat(worker, 400, turn=10)
    sibling = seat(worker, 400, turn=10)
    own.group = sibling.group = (own, sibling)
    assert start_us(worker, 400, POLICY, 0, 10, own=own) == pytest.approx(step_us(400), rel=0.001)


def test_a_sequence_whose_load_runs_is_not_ahead_of_it() -> None:
    worker = worker_of()
    seat(worker, 800, turn=1).wait_xfer = 7
    assert predicted(worker, 400, 0) == pytest.approx(step_us(400), rel=0.001)


def test_a_long_prompt_alone_decodes_beside_the_next() -> None:
    worker = worker_of()
    seat(worker, 2048, admitted_us=1000, turn=1)
    expected = step_us(2048) - 500 + step_us(511, 1) + step_us(89, 1)
    assert predicted(worker, 600, 1500) == pytest.approx(expected, rel=0.001)


def test_what_arrives_while_it_still_goes_first_is_computed_first() -> None:
    worker, share = worker_of(), 0.4
    arriving = share / TOKEN_US  # takes so much of the worker's time
    alone_us = predicted(worker, 1000, 0, arriving=arriving)
    assert predicted(worker, 1000, 0, arriving=arriving, overtaken_us=1000.0) == pytest.approx(alone_us + share * 1000)
    # as long as it waits, those come that go before it: it waits for them too
    assert predicted(worker, 1000, 0, arriving=arriving, overtaken_us=1e9) == pytest.approx(alone_us / (1 - share))
    assert predicted(worker, 1000, 0, overtaken_us=1e9) == pytest.approx(predicted(worker, 1000, 0)), "nobody comes"
    beyond = predicted(worker, 1000, 0, arriving=5 / TOKEN_US, overtaken_us=1e9)
    assert beyond < 1e9, "more than a worker can do comes to no worker for ever"
