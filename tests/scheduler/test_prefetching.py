"""Hints to a store: what a waiting request will load, once per store, and nothing for what runs at once."""

from __future__ import annotations

from tests.scheduler.scenes import counters, done, make, run, run_until


def hints(simulation) -> list[tuple[str, list[bytes]]]:
    """Everything hinted from here on."""
    told: list[tuple[str, list[bytes]]] = []
    inner = simulation.core.handle

    def handle(event):
        effects = inner(event)
        told.extend(effects.prefetch)
        return effects

    simulation.core.handle = handle
    return told


def stored_prefix(simulation, gateway) -> tuple[list[int], set[bytes]]:
    """A prompt whose blocks are in the store and no longer in the pool."""
    prompt = list(range(40))
    done(simulation, simulation.submit(gateway, prompt, 3))
    run_until(simulation, lambda: counters(simulation)["offloaded_blocks"] >= 9)
    for number in range(4):
        done(simulation, simulation.submit(gateway, [900 + number, *range(90)], 3))
    return prompt, set(simulation.stores["host"][0].held)


def test_a_request_that_waits_has_its_blocks_hinted_once() -> None:
    simulation, gateway = make(store=True, max_seqs=2)
    prompt, held = stored_prefix(simulation, gateway)
    told = hints(simulation)
    running = [simulation.submit(gateway, [500 + number], 60) for number in range(2)]
    run(simulation, 2)
    assert told == [], "nothing of these is in the store"
    waiting = simulation.submit(gateway, [*prompt, 7], 3)
    assert len(told) == 1
    store_id, keys = told[0]
    assert store_id == "host" and keys and set(keys) <= held
    run(simulation, 3)
    assert len(told) == 1, "once, however long it waits"
    done(simulation, *running, waiting)
    assert counters(simulation)["prefetch_hints"] == 1


def test_what_starts_at_once_needs_no_hint() -> None:
    simulation, gateway = make(store=True, max_seqs=2)
    prompt, _ = stored_prefix(simulation, gateway)
    told = hints(simulation)
    done(simulation, simulation.submit(gateway, [*prompt, 7], 3))
    assert told == []


def test_a_stuck_store_and_a_private_prompt_get_none() -> None:
    simulation, gateway = make(store=True, max_seqs=2)
    prompt, _ = stored_prefix(simulation, gateway)
    told = hints(simulation)
    running = [simulation.submit(gateway, [500 + number], 60) for number in range(2)]
    run(simulation, 2)
    private = simulation.submit(gateway, [*prompt, 7], 3, cache_off=True)
    assert told == []
    simulation.core.cell.fleet.stores["host"].stuck(simulation.core.cell.now_us)
    waiting = simulation.submit(gateway, [*prompt, 7], 3)
    assert told == []
    done(simulation, *running, private, waiting)
