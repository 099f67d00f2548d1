"""The generator against a server that computes nothing: what it reports is what was done to it."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from null_server import NullServer
from octavo_cli.bench.arrivals import ClosedLoop, OpenLoop
from octavo_cli.bench.http_target import HttpTarget
from octavo_cli.bench.runner import Asking
from octavo_cli.bench.serve import Measured, Plan, measure
from octavo_cli.bench.slo import parse_slo
from octavo_cli.bench.work import BadPlan, Piece, Session, Turn, Workload, with_cancels, with_duplicates
from octavo_cli.bench.workloads import Shape, make_workload

OPEN = OpenLoop("constant", 50.0, 3.0)


async def measured_on(server: NullServer, plan: Plan) -> Measured:
    async with server.running(), HttpTarget(server.url) as target:
        return await measure(target, plan)


def workload(requests: int = 8, prompt: int = 16, output: int = 4) -> Workload:
    return make_workload("random", Shape(requests=requests, prompt_tokens=prompt, max_tokens=output))


async def test_a_stall_of_the_server_is_in_the_p99() -> None:
    """Coordinated omission: requests that should have been sent in the stall count from when they should have been."""
    server = NullServer(stall=(0.8, 2.8))
    measured = await measured_on(server, Plan(workload(200, output=2), OPEN, warmup_requests=0))
    figures = measured.figures
    assert figures.value("ttft_p99") >= 1900.0
    assert figures.value("ttft_p50") >= 500.0  # two of three seconds were stalled
    assert figures.value("errors") == 0
    late = [sample for sample in measured.runs["cold"].samples if sample.scheduled_s < 0.5]
    assert max(sample.ttft_ms or 0.0 for sample in late) < 400.0


async def test_a_stall_between_tokens_is_whole_in_itl_and_stall() -> None:
    server = NullServer(stall=(0.2, 2.2), gap_s=0.02)
    measured = await measured_on(server, Plan(workload(4, output=30), ClosedLoop(4), warmup_requests=0))
    assert measured.figures.value("itl_max") >= 1900.0
    assert measured.figures.value("stall_p50") >= 1900.0
    assert measured.figures.value("itl_p50") < 200.0


async def test_an_open_loop_sends_on_whatever_becomes_of_the_answers() -> None:
    server = NullServer(stall=(0.0, 1.5))
    measured = await measured_on(
        server, Plan(workload(60, output=1), OpenLoop("constant", 50.0, 1.0), warmup_requests=0)
    )
    samples = measured.runs["cold"].samples
    assert len(samples) == 50 and max(sample.sent_s for sample in samples) < 1.4  # before the first answer


async def test_the_generator_keeps_up_with_200_requests_per_second() -> None:
    """Loose on purpose: the machine may be busy. The figure itself is reported, and `make bench` shows it."""
    plan = Plan(workload(250, output=1), OpenLoop("poisson", 200.0, 1.0), warmup_requests=4)
    measured = await measured_on(NullServer(), plan)
    assert measured.figures.value("errors") == 0
    assert measured.figures.value("completed") > 120
    assert 0.0 <= measured.figures.value("send_lag_p50") < 100.0
    assert measured.figures.value("client_cpu") > 0.0


async def test_a_closed_loop_never_has_more_than_its_clients() -> None:
    server = NullServer(gap_s=0.01)
    measured = await measured_on(server, Plan(workload(12), ClosedLoop(3), warmup_requests=0))
    samples = measured.runs["cold"].samples
    edges = sorted([(s.sent_s, 1) for s in samples] + [(s.ended_s, -1) for s in samples])
    running = peak = 0
    for _at_s, step in edges:
        running += step
        peak = max(peak, running)
    assert peak == 3 and measured.figures.value("completed") == 12


async def test_refused_requests_are_no_errors_and_no_answers() -> None:
    measured = await measured_on(NullServer(refuse_share=4), Plan(workload(12), ClosedLoop(2), warmup_requests=0))
    figures = measured.figures
    assert (figures.value("completed"), figures.value("rejected"), figures.value("errors")) == (9, 3, 0)
    assert figures.value("attainment") == pytest.approx(0.75)
    assert any("too many" in line for line in measured.complaints())


@pytest.mark.parametrize("fault", [{"cut_after": 2}, {"error_after": 2}])
async def test_a_broken_stream_is_an_error(fault: dict[str, int]) -> None:
    server = NullServer(**fault)
    async with server.running(), HttpTarget(server.url) as target:
        with pytest.raises(Exception, match="all 3 requests failed"):
            await measure(target, Plan(workload(3), ClosedLoop(1), warmup_requests=0))


async def test_a_client_that_leaves_is_neither_an_error_nor_output() -> None:
    plan = Plan(with_cancels(workload(20, output=8), 0.3, 2, 1), ClosedLoop(2), cost_per_hour=3600.0, warmup_requests=0)
    measured = await measured_on(NullServer(gap_s=0.002), plan)
    figures, run = measured.figures, measured.runs["cold"]
    left = figures.value("cancelled")
    assert 1 <= left < 20 and figures.value("completed") == 20 - left and figures.value("errors") == 0
    assert figures.value("throughput/output") == pytest.approx(8 * (20 - left) / run.wall_s)
    # one unit of money a second: all of the time is paid for, by the whole answers alone
    assert figures.value("cost/request") == pytest.approx(run.wall_s / (20 - left))
    assert figures.value("cost/output_token") == pytest.approx(run.wall_s / (8 * (20 - left)))
    assert figures.value("attainment") == 1.0


async def test_work_sent_twice_costs_twice_and_counts_once() -> None:
    plan = Plan(with_duplicates(workload(10), 1.0, 0), ClosedLoop(2), cost_per_hour=3600.0, warmup_requests=0)
    measured = await measured_on(NullServer(), plan)
    figures, run = measured.figures, measured.runs["cold"]
    assert len(run.samples) == 20 and figures.value("completed") == 10 and figures.value("duplicates") == 10
    assert figures.value("cost/request") == pytest.approx(run.wall_s / 10)


async def test_slo_missed_work_is_paid_by_the_good() -> None:
    plan = Plan(
        workload(12, output=3),
        OpenLoop("constant", 20.0),
        slo=parse_slo("ttft=300ms"),
        cost_per_hour=3600.0,
        warmup_requests=0,
    )
    measured = await measured_on(NullServer(stall=(0.3, 1.2)), plan)
    figures, run = measured.figures, measured.runs["cold"]
    good = round(figures.value("goodput") * run.wall_s)
    assert 0 < good < 12 and figures.value("slo_missed/ttft") == 12 - good
    assert figures.value("cost/slo_request") == pytest.approx(run.wall_s / good)
    assert figures.value("cost/request") == pytest.approx(run.wall_s / 12)


async def test_answers_of_one_token_have_no_tpot_and_meet_gap_bounds() -> None:
    plan = Plan(workload(5, output=1), ClosedLoop(1), slo=parse_slo("itl_p99=1ms,tpot=1ms"), warmup_requests=0)
    figures = (await measured_on(NullServer(), plan)).figures
    names = {item.name for item in figures.results}
    assert not names & {"tpot_p50", "itl_p50", "stall_p50"} and "e2e_p50" in names
    assert figures.value("attainment") == 1.0 and figures.value("throughput/output") > 0


async def test_conversations_grow_and_pause() -> None:
    shape = Shape(requests=4, prompt_tokens=10, max_tokens=5, turns=4, pause_s=0.05)
    server = NullServer()
    measured = await measured_on(server, Plan(make_workload("multi-turn", shape), ClosedLoop(1), warmup_requests=0))
    prompts = [body["prompt"] for body in server.bodies]
    assert [len(prompt) for prompt in prompts] == [10, 25, 40, 55]
    assert all(later[: len(earlier)] == earlier for earlier, later in itertools.pairwise(prompts))
    samples = measured.runs["cold"].samples
    pauses = [turn.pause_s for turn in make_workload("multi-turn", shape).sessions[0].turns]
    for before, after, pause_s in zip(samples, samples[1:], pauses[1:], strict=False):
        assert (
            after.scheduled_s - before.ended_s == pytest.approx(pause_s, abs=0.02) and after.sent_s >= after.scheduled_s
        )


async def test_text_turns_are_chats_with_their_history() -> None:
    turns = (Turn(2, text="hello"), Turn(3, text="and then?"))
    server = NullServer()
    plan = Plan(Workload("talk", (Session("t", turns),)), ClosedLoop(1), warmup_requests=0)
    await measured_on(server, plan)
    roles = [[message["role"] for message in body["messages"]] for body in server.bodies]
    assert roles == [["user"], ["user", "assistant", "user"]]
    assert server.bodies[1]["messages"][1]["content"] == "w1\u2028 w2\u2028 "


async def test_cold_runs_share_no_salt_and_warm_ones_do() -> None:
    server = NullServer()
    await measured_on(server, Plan(workload(2), ClosedLoop(1), cache="cold", warmup_requests=0))
    await measured_on(server, Plan(workload(2), ClosedLoop(1), cache="both", warmup_requests=0))
    salts = [body.get("cache_salt") for body in server.bodies]
    assert len(salts) == 6 and len(set(salts[:2])) == 1 and len(set(salts[2:])) == 1 and salts[0] != salts[2]
    measured = await measured_on(NullServer(), Plan(workload(2), ClosedLoop(1), cache="both", warmup_requests=0))
    names = {item.name for item in measured.figures.results}
    assert {"ttft_p50/cold", "ttft_p50/warm"} <= names and "ttft_p50" not in names


async def test_warm_up_is_in_no_figure() -> None:
    server = NullServer()
    measured = await measured_on(server, Plan(workload(3), ClosedLoop(1), warmup_requests=5))
    assert len(server.bodies) == 8 and len(measured.runs["cold"].samples) == 3
    assert measured.figures.value("completed") == 3


async def test_a_server_that_counts_no_tokens_is_said_to() -> None:
    measured = await measured_on(NullServer(counts_tokens=False), Plan(workload(2), ClosedLoop(1), warmup_requests=0))
    samples = measured.runs["cold"].samples
    assert not any(sample.tokens_known for sample in samples) and samples[0].output_tokens == 4
    assert not any(item.name.startswith("cached_share") for item in measured.figures.results)


async def test_what_still_runs_long_after_the_last_arrival_failed() -> None:
    plan = Plan(workload(4), OpenLoop("constant", 20.0), asking=Asking(give_up_s=0.3), warmup_requests=0, cache="as-is")
    async with NullServer(stall=(0.08, 60.0)).running() as server, HttpTarget(server.url) as target:
        measured = await asyncio.wait_for(measure(target, plan), 10)
    assert measured.figures.value("errors") == 2 and "no end" in measured.complaints()[0]


async def test_what_the_context_cannot_hold_is_refused_before_anything_is_sent() -> None:
    long = Session("long", (Turn(10, (Piece("x", 9000),)),))
    short = Session("short", (Turn(2, (Piece("y", 10),)),))
    server = NullServer()
    async with server.running(), HttpTarget(server.url) as target:
        plan = Plan(Workload("mixed", (long, short)), ClosedLoop(1), warmup_requests=0)
        with pytest.raises(BadPlan, match=r"session long needs 9010 tokens of context and null has 8192; .*--fit"):
            await measure(target, plan)
        assert not server.bodies
        measured = await measure(target, Plan(plan.workload, plan.loop, fit=True, warmup_requests=0))
    assert measured.figures.value("completed") == 1 and measured.figures.config["workload"]["left_out"] == 1


@pytest.mark.parametrize("loop", [OPEN, ClosedLoop(4)], ids=["open", "closed"])
async def test_an_interrupted_run_leaves_nothing_behind(loop: OpenLoop | ClosedLoop) -> None:
    server = NullServer(stall=(0.0, 30.0))
    async with server.running(), HttpTarget(server.url) as target:
        before = asyncio.all_tasks()
        run = asyncio.create_task(measure(target, Plan(workload(40), loop, warmup_requests=0)))
        while len(server.bodies) < 3:
            await asyncio.sleep(0.005)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        ours = [task for task in asyncio.all_tasks() - before if "_session" in repr(task) or "_client" in repr(task)]
        assert ours == []  # or they would go on through a client that is closed
