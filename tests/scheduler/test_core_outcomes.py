"""How requests end in the core: cancel, stop strings, deadlines, replays, orphans."""

from __future__ import annotations

from typing import Any

import pytest
from octavo_scheduler.events import Cancelled
from octavo_scheduler.policy import SECOND_US, Policy

from tests.scheduler.scenes import counters, done, make, run, run_until

# -- cancel, stop strings, deadlines -------------------------------------------------------------------------------


def test_cancel_answers_once_blocks_are_back_and_repeats_attach() -> None:
    simulation, gateway = make()
    client = simulation.submit(gateway, [1, 2, 3], 100)
    run_until(simulation, lambda: client.got[0])
    simulation.cancel(client)
    assert client.cancel_answers == []
    simulation.cancel(client)
    simulation.settle()
    ((found, outcome, freed), second) = client.cancel_answers
    assert found and outcome == "cancelled" and freed >= 1 and second == (found, outcome, freed)
    simulation.check_clean()


@pytest.mark.parametrize("through_its_own_gateway", [True, False])
def test_a_cancel_of_another_tenant_does_nothing(through_its_own_gateway: bool) -> None:
    simulation, gateway = make()
    other = simulation.add_gateway()
    client = simulation.submit(gateway, [1, 2, 3], 20)
    run_until(simulation, lambda: client.got[0])
    asked = gateway if through_its_own_gateway else other
    simulation.feed(Cancelled(simulation.now_us, asked, client.request_id, "client_cancel", "stranger"))
    answers = [update.cancel for update in simulation.core.collect(asked) if update.cancel is not None]
    assert [answer.found for answer in answers] == [False]
    done(simulation, client)


def test_a_cancel_through_another_gateway_is_answered_there() -> None:
    simulation, gateway = make()
    other = simulation.add_gateway()
    client = simulation.submit(gateway, [1, 2, 3], 20)
    run_until(simulation, lambda: client.got[0])
    simulation.feed(Cancelled(simulation.now_us, other, client.request_id, "client_cancel"))
    answers: list[Any] = []
    for _ in range(100):
        simulation.advance(3000)
        for link in simulation.links:
            simulation.run_link(link)
        answers += [update.cancel for update in simulation.core.collect(other) if update.cancel is not None]
    assert [(answer.found, answer.outcome) for answer in answers] == [(True, "cancelled")]
    simulation.settle()
    assert client.outcome == "cancelled"


def test_cancel_of_a_finished_or_unknown_request_does_nothing() -> None:
    simulation, gateway = make()
    client = simulation.submit(gateway, [1, 2, 3], 3)
    simulation.settle()
    simulation.cancel(client)
    simulation.settle()
    assert client.cancel_answers == [(False, "", 0)] and client.outcome == "finished"


@pytest.mark.parametrize("iterations", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("n", [1, 3])
def test_cancel_at_any_moment_gives_everything_back(iterations: int, n: int) -> None:
    simulation, gateway = make(Policy(max_num_batched_tokens=8))
    client = simulation.submit(gateway, list(range(20)), 40, n=n)
    run(simulation, iterations)
    simulation.cancel(client)
    simulation.settle()
    assert client.outcome == "cancelled"
    simulation.check_clean()


def test_cancel_while_queued_is_answered_at_once() -> None:
    simulation, gateway = make(Policy(max_num_seqs=1))
    first = simulation.submit(gateway, [1], 20)
    queued = simulation.submit(gateway, [2], 20)
    simulation.cancel(queued)
    simulation.deliver(gateway)
    assert queued.cancel_answers == [(True, "cancelled", 0)]
    simulation.settle()
    assert first.outcome == "finished"
    simulation.check_clean()


def test_cancel_resolves_when_the_worker_is_lost() -> None:
    simulation, gateway = make()
    client = simulation.submit(gateway, [1, 2, 3], 100)
    run_until(simulation, lambda: client.got[0])
    simulation.cancel(client)
    simulation.disconnect(simulation.links[0], dead=True)
    simulation.deliver(gateway)
    assert client.cancel_answers and client.outcome == "cancelled"


def test_a_stop_string_cuts_the_choice_and_frees_it() -> None:
    simulation, gateway = make()
    client = simulation.submit(gateway, [1, 2, 3], 100)
    run_until(simulation, lambda: len(client.got[0]) > 10)
    simulation.stop_choice(client, 0, 6)
    done(simulation, client)
    assert client.ended[0] == ("stop", 6)


def test_a_deadline_in_the_queue_is_rejected_without_work() -> None:
    simulation, gateway = make(Policy(max_num_seqs=1))
    first = simulation.submit(gateway, [1], 60)
    late = simulation.submit(gateway, [2], 20, deadline_us=20_000)
    simulation.settle()
    assert (late.outcome, late.reason, late.got[0]) == ("deadline", "rejected-deadline", [])
    assert first.outcome == "finished"


def test_a_deadline_while_decoding_stops_it() -> None:
    simulation, gateway = make()
    client = simulation.submit(gateway, [1], 100, deadline_us=60_000)
    simulation.settle()
    assert (client.outcome, client.reason) == ("deadline", "evicted-deadline") and client.got[0]
    simulation.check_clean()


# -- identity ------------------------------------------------------------------------------------------------------


def test_the_same_id_and_body_attaches_and_replays_from_the_first_token() -> None:
    simulation, gateway = make()
    first = simulation.submit(gateway, [1, 2, 3], 20, request_id="same", seeds=[5])
    run_until(simulation, lambda: len(first.got[0]) > 4)
    other = simulation.add_gateway()
    second = simulation.submit(other, [1, 2, 3], 20, request_id="same", seeds=[5])
    done(simulation, first, second)
    late = simulation.submit(simulation.add_gateway(), [1, 2, 3], 20, request_id="same", seeds=[5])
    assert late.outcome == "finished" and late.got == first.got == second.got
    assert counters(simulation)["requests_finished"] == 1


def test_the_same_key_under_another_id_attaches() -> None:
    simulation, gateway = make()
    first = simulation.submit(gateway, [1, 2, 3], 20, key="k", seeds=[5])
    second = simulation.submit(gateway, [1, 2, 3], 20, key="k", seeds=[5])
    done(simulation, first, second)
    assert second.got == first.got and counters(simulation)["requests_finished"] == 1


def test_the_same_id_with_another_body_already_exists_and_hurts_nobody() -> None:
    simulation, gateway = make()
    first = simulation.submit(gateway, [1, 2, 3], 20, request_id="same")
    other = simulation.add_gateway()
    second = simulation.submit(other, [1, 2, 4], 20, request_id="same")
    assert second.outcome == "already_exists"
    done(simulation, first)


def test_attach_to_an_unknown_request_is_not_found() -> None:
    simulation, gateway = make()
    simulation.attach(gateway, "nobody")
    (update,) = simulation.core.collect(gateway)
    assert update.finished is not None and update.finished.outcome == "not_found"


def test_stored_results_expire() -> None:
    simulation, gateway = make(Policy(registry_ttl_us=2 * SECOND_US))
    done(simulation, simulation.submit(gateway, [1], 2, request_id="old"))
    assert len(simulation.core.cell.registry) == 1
    for _ in range(4):
        simulation.advance(SECOND_US)
        run(simulation)
    assert len(simulation.core.cell.registry) == 0


def test_an_orphan_is_cancelled_after_its_grace() -> None:
    simulation, gateway = make(Policy(orphan_grace_us=60_000))
    simulation.submit(gateway, [1, 2], 120)
    run(simulation, 2)
    simulation.lose_gateway(gateway)
    simulation.settle()
    assert counters(simulation)["requests_cancelled"] == 1
    simulation.check_clean()


def test_another_gateway_takes_an_orphan_over() -> None:
    simulation, gateway = make(Policy(orphan_grace_us=60_000))
    client = simulation.submit(gateway, [1, 2], 120)
    run(simulation, 5)
    simulation.lose_gateway(gateway)
    simulation.resubmit(client, simulation.add_gateway())
    done(simulation, client)
    assert counters(simulation)["requests_attached"] == 1
