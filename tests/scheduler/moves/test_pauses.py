"""Tool pauses: kept, offloaded or dropped; what a resume finds; who gives way to whom; auto against each fixed way."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from octavo_scheduler.moves.pause_costs import Costs
from octavo_scheduler.moves.tools import DEFAULT_US, MAX_TOOLS, Tool, Tools
from octavo_scheduler.policy import Policy

from tests.scheduler.harness import Client, Simulation
from tests.scheduler.scenes import counters, done, make, run, run_until

PROMPT = list(range(1, 42))
TOOL = ("search", 400_000)


def scene(way: str = "auto", store: bool = True, **options: Any) -> tuple[Simulation, int]:
    simulation, gateway = make(Policy(pause=way, default_output_tokens=4), store=store, **options)
    if store:
        simulation.add_store(simulation.links[0].worker.store)  # type: ignore[arg-type]
    return simulation, gateway


def finish(simulation: Simulation, *clients: Client) -> None:
    """Until these have their answers and nothing of them runs; pauses go on."""
    run_until(simulation, lambda: all(client.outcome for client in clients))
    fleet = simulation.core.cell.fleet
    run_until(simulation, lambda: not any(worker.sequences or worker.transfers for worker in fleet.workers.values()))


def turn(simulation: Simulation, gateway: int, pause: tuple[str, int] = TOOL) -> Client:
    client = simulation.submit(gateway, PROMPT, 8, pause=pause)
    finish(simulation, client)
    return client


def come_back(simulation: Simulation, gateway: int, client: Client) -> Client:
    again = simulation.submit(gateway, client.prompt + client.got[0] + [7, 8, 9], 4, resumes=client.request_id)
    finish(simulation, again)
    return again


def flood(simulation: Simulation, gateway: int, count: int = 6) -> None:
    """Others whose prompts would push anything that is only cached out of the pool."""
    clients = [simulation.submit(gateway, [100 + number] * 60, 2) for number in range(count)]
    finish(simulation, *clients)


def fact_of(simulation: Simulation) -> dict[str, Any]:
    return next(fact.attributes for fact in reversed(simulation.facts) if fact.name == "pause")


def test_kept_blocks_survive_a_flood_and_the_resume_continues_from_them() -> None:
    simulation, gateway = scene("keep", store=False)
    client = turn(simulation, gateway)
    flood(simulation, gateway)
    again = come_back(simulation, gateway, client)
    had = (len(PROMPT) + 8 - 1) // 4 * 4
    assert again.cached_tokens == had
    said = fact_of(simulation)
    assert (said["tool"], said["decision"], said["spared_tokens"], said["paused_tokens"]) == (
        "search",
        "keep",
        had,
        had,
    )
    assert simulation.core.cell.ledger.books["pause"].saved_ms > 0
    assert not simulation.core.cell.pauses
    simulation.settle()
    simulation.check_clean()


def test_what_is_offloaded_comes_back_by_a_load() -> None:
    simulation, gateway = scene("offload")
    client = turn(simulation, gateway)
    assert counters(simulation)["exported_blocks"] > 0
    flood(simulation, gateway)
    again = come_back(simulation, gateway, client)
    assert fact_of(simulation)["loaded_tokens"] > 0
    assert again.cached_tokens >= len(PROMPT) // 4 * 4
    done(simulation)


def test_what_is_dropped_is_the_first_to_be_evicted() -> None:
    simulation, gateway = scene("drop", store=False)
    older = simulation.submit(gateway, [77] * 41, 4)
    finish(simulation, older)
    client = turn(simulation, gateway)
    flood(simulation, gateway, 1)  # takes more than what was free
    same = simulation.submit(gateway, [77] * 41, 1)
    finish(simulation, same)
    assert same.cached_tokens == 40
    again = come_back(simulation, gateway, client)
    assert again.cached_tokens < len(PROMPT)
    assert fact_of(simulation)["decision"] == "drop"


def test_nobody_wants_the_memory_so_auto_keeps() -> None:
    simulation, gateway = scene()
    turn(simulation, gateway)
    assert counters(simulation)["pauses_keep"] == 1
    worker = next(iter(simulation.core.cell.fleet.workers.values()))
    assert worker.kept and worker.pool.free_blocks < worker.pool.usable_blocks


def test_a_kept_pause_gives_way_to_a_request_that_waits() -> None:
    simulation, gateway = scene(num_blocks=17)
    turn(simulation, gateway, ("build", 60_000_000))
    waiting = simulation.submit(gateway, [5] * 50, 2)
    finish(simulation, waiting)
    assert counters(simulation)["pauses_demoted"] == 1


def test_a_kept_pause_gives_way_to_a_sequence_that_would_starve() -> None:
    """Even where keeping is the rule: the oldest running request can always finish."""
    simulation, gateway = make(Policy(pause="keep", default_output_tokens=1, margin_fraction=0.0), num_blocks=17)
    turn(simulation, gateway, ("build", 60_000_000))
    grows = simulation.submit(gateway, [5] * 9, 40)
    finish(simulation, grows)
    assert counters(simulation)["pauses_demoted"] == 1
    assert counters(simulation)["preemptions"] == 0


def test_two_that_are_back_do_not_block_each_other() -> None:
    """Each waits for room that the other's kept blocks take: on an idle worker all but the first's own go."""
    simulation, gateway = make(Policy(pause="keep", max_num_seqs=4), num_blocks=25)
    clients = [simulation.submit(gateway, [seed] * 40, 4, pause=("slow", 60_000_000)) for seed in (1, 2)]
    finish(simulation, *clients)
    again = [
        simulation.submit(gateway, client.prompt + client.got[0] + [3] * 20, 20, resumes=client.request_id)
        for client in clients
    ]
    done(simulation, *clients, *again)


def test_who_does_not_come_back_is_given_up_and_remembered() -> None:
    simulation, gateway = scene("keep", store=False)
    turn(simulation, gateway)
    tool = simulation.core.cell.tools.of("default", "search")
    before = tool.return_chance(0.0, 1.0)
    run_until(simulation, lambda: counters(simulation)["pauses_without_return"] == 1)
    assert tool.return_chance(0.0, 1.0) < before
    assert not simulation.core.cell.pauses
    simulation.check_clean()


def test_the_pause_that_was_seen_counts_more_than_what_was_said() -> None:
    simulation, gateway = scene("keep", store=False)
    for _ in range(6):
        client = turn(simulation, gateway, ("search", 10_000_000))
        run(simulation, 30)
        come_back(simulation, gateway, client)
    learned_us = simulation.core.cell.tools.of("default", "search").expected_us(10_000_000)
    assert learned_us < 5_000_000


def test_a_pause_may_be_told_after_the_turn() -> None:
    simulation, gateway = scene("keep", store=False, num_blocks=65)
    client = simulation.submit(gateway, PROMPT, 8)
    simulation.pause(client, *TOOL)
    finish(simulation, client)
    simulation.deliver(gateway)
    assert client.pause_answers == ["later"] and counters(simulation)["pauses_keep"] == 1
    other = simulation.submit(gateway, PROMPT[::-1], 8)
    finish(simulation, other)
    simulation.pause(other, *TOOL)
    simulation.deliver(gateway)
    assert other.pause_answers == ["keep"]
    flood(simulation, gateway)
    assert come_back(simulation, gateway, other).cached_tokens > len(PROMPT)


def test_what_the_client_says_of_a_pause_that_began_by_itself_counts() -> None:
    """As the gateway begins one for every tool call, before the client can say how long it will be away."""
    simulation, gateway = scene("keep", store=False)
    client = turn(simulation, gateway, ("search", 200_000))
    (pause,) = simulation.core.cell.pauses.values()
    soon_us = pause.gives_up_us()
    simulation.pause(client, "deploy", 60_000_000)
    simulation.pause(client, "", 0)  # says nothing new
    simulation.deliver(gateway)
    assert client.pause_answers == ["keep", "keep"] and counters(simulation)["pauses"] == 1
    run_until(simulation, lambda: simulation.core.cell.now_us > soon_us)
    assert pause.kept and (pause.tool, pause.given_us) == ("deploy", 60_000_000)
    assert come_back(simulation, gateway, client).cached_tokens > len(PROMPT)
    assert fact_of(simulation)["tool"] == "deploy" and not counters(simulation)["pauses_without_return"]


def test_a_pause_that_turns_out_long_or_short_is_decided_anew() -> None:
    simulation, gateway = scene("auto")
    client = turn(simulation, gateway, ("search", 1))
    (pause,) = simulation.core.cell.pauses.values()
    blocks = list(pause.kept)
    assert blocks
    simulation.core.cell.policy = Policy(pause="offload", default_output_tokens=4)
    simulation.pause(client, "", 60_000_000)
    assert pause.decision == "offload" and not pause.kept
    simulation.core.cell.policy = Policy(pause="keep", default_output_tokens=4)
    simulation.pause(client, "", 5)
    assert pause.kept == blocks
    finish(simulation, client)
    assert come_back(simulation, gateway, client).cached_tokens > len(PROMPT)
    simulation.settle()
    simulation.check_clean()


def test_an_unknown_or_cancelled_turn_has_no_pause() -> None:
    simulation, gateway = scene("keep", store=False)
    client = simulation.submit(gateway, PROMPT, 30, pause=TOOL)
    run(simulation, 5)
    simulation.cancel(client)
    simulation.settle()
    simulation.pause(client, *TOOL)
    client.request_id, known = "nobody", client.request_id
    simulation.gateways[gateway]["nobody"] = client
    simulation.pause(client, *TOOL)
    client.request_id = known
    simulation.deliver(gateway)
    assert client.pause_answers == ["", ""]
    assert counters(simulation)["pauses"] == 0


def test_a_resume_of_nothing_is_a_request_like_any_other() -> None:
    simulation, gateway = scene("keep", store=False)
    client = simulation.submit(gateway, PROMPT, 4, resumes="nobody")
    done(simulation, client)


def test_a_lost_worker_takes_its_pauses_along() -> None:
    simulation, gateway = scene("keep", store=False)
    client = turn(simulation, gateway)
    simulation.disconnect(simulation.links[0], dead=True)
    assert not simulation.core.cell.pauses
    run_until(simulation, lambda: len(simulation.core.cell.fleet.workers) == 1)
    done(simulation, client, come_back(simulation, gateway, client))


def test_a_resume_that_is_cancelled_while_it_waits_ends_the_pause() -> None:
    simulation, gateway = scene("keep", store=False, max_seqs=1)
    client = turn(simulation, gateway)
    running = simulation.submit(gateway, [9] * 5, 30)
    run(simulation, 3)
    again = simulation.submit(gateway, client.prompt + client.got[0] + [1], 4, resumes=client.request_id)
    simulation.cancel(again)
    assert not simulation.core.cell.pauses
    simulation.settle()
    assert running.outcome == "finished"
    simulation.check_clean()


# -- what is learned, and what is weighed ---------------------------------------------------------------------------


def test_the_chance_of_a_return_falls_with_the_wait() -> None:
    tool = Tool()
    chances = [tool.return_chance(waited, 1000.0) for waited in (0, 1000, 3000, 10_000)]
    assert chances == sorted(chances, reverse=True) and chances[0] == pytest.approx(0.9) and chances[-1] < 0.01


def test_an_unknown_tool_has_the_default() -> None:
    assert Tool().expected_us(0) == DEFAULT_US
    assert Tool().expected_us(7000) == 7000


def test_a_tool_that_changes_is_learned_anew() -> None:
    tool = Tool()
    for _ in range(200):
        tool.returned_after(1000)
    for _ in range(60):
        tool.returned_after(50_000)
    assert tool.expected_us(0) > 40_000


def test_tools_are_bounded_and_kept_apart_by_tenant() -> None:
    tools = Tools()
    for number in range(MAX_TOOLS + 10):
        tools.of("a", str(number))
    assert len(tools) == MAX_TOOLS
    tools.of("a", "x").gone()
    assert tools.of("b", "x").ended == 0


@pytest.mark.parametrize(
    ("costs", "best"),
    [(Costs(1.0, 2.0, 3.0), "keep"), (Costs(3.0, 1.0, 2.0), "offload"), (Costs(3.0, 2.0, 1.0), "drop"),
     (Costs(3.0, None, 2.0), "drop"), (Costs(0.0, 0.0, 0.0), "keep")],
)  # fmt: skip
def test_the_cheapest_way_is_taken(costs: Costs, best: str) -> None:
    assert costs.best() == best


# -- auto against each fixed way --------------------------------------------------------------------------------------


def bench() -> Any:
    """bench/pauses.py, which prints the same comparison."""
    spec = importlib.util.spec_from_file_location("bench_pauses", Path(__file__).parents[3] / "bench/pauses.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_auto_is_within_five_percent_of_the_best_and_each_way_is_best_somewhere() -> None:
    module = bench()
    winners = set()
    for setting in module.SETTINGS.values():
        times = {way: module.mean_ms(module.run(setting, way)) for way in module.WAYS}
        auto = times.pop("auto")
        best = min(times, key=times.__getitem__)
        winners.add(best)
        assert auto <= 1.05 * times[best], (setting.why, auto, times)
    assert winners == {"keep", "offload", "drop"}


def test_a_tool_after_which_nobody_has_come_back_for_very_long_is_expected_as_an_unknown_one() -> None:
    """What decays for ever ends as rounding: both sums of the mean would be the smallest number that there is."""
    tool = Tool()
    tool.returned_after(40_000)
    for _ in range(20_000):
        tool.gone()
    assert tool.expected_us(0) == pytest.approx(DEFAULT_US, rel=0.05)
    assert tool.return_chance(0, DEFAULT_US) < 0.25
