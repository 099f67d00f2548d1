"""The scheduler's figures: every name of the table, from the cell and from facts."""

from __future__ import annotations

from types import SimpleNamespace

import prometheus_client
from octavo_scheduler.costs import LinkCosts
from octavo_scheduler.instruments import PREFIX, SCRAPED
from octavo_scheduler.metrics import CellCollector, FactMetrics, figures
from octavo_scheduler.policy import Policy

from tests.scheduler.scenes import done, make, run_until


def test_a_scrape_has_every_figure_of_the_table_and_audits_are_0() -> None:
    limits = {"default": {"rate_tokens_per_s": 1000.0, "burst_tokens": 1e6}}
    simulation, gateway = make(Policy(tenant_limits=limits))
    client = simulation.submit(gateway, list(range(40)), 60)
    run_until(simulation, lambda: client.got[0])
    waiting = [simulation.submit(gateway, list(range(number, number + 20)), 60) for number in range(8)]
    (worker,) = simulation.core.cell.fleet.workers.values()
    worker.tier_links["dram"] = LinkCosts()  # as after a load
    trial = simulation.core.cell.switches.of("join", 3).trial
    for used in (True, False):
        trial.observe(used, 1.0, 2.0, 1.0)
    registry = prometheus_client.CollectorRegistry()
    registry.register(CellCollector(SimpleNamespace(core=simulation.core)))  # type: ignore[arg-type]
    text = prometheus_client.generate_latest(registry).decode()
    absent = [item.shown for item in SCRAPED if f"\n{item.shown}" not in text]
    assert absent == []
    sample = registry.get_sample_value
    assert sample(PREFIX + "blocks_leaked") == 0
    queued = sample(PREFIX + "requests_waiting")
    assert queued and sample(PREFIX + "queue_prompt_tokens") == 20 * queued
    assert sample(PREFIX + "queue_blocks") and sample(PREFIX + "queue_work_seconds")
    assert sample(PREFIX + "blocks_used") == sample(PREFIX + "blocks") - sample(PREFIX + "blocks_free")
    running = len(next(iter(simulation.core.cell.fleet.workers.values())).sequences)
    assert sample(PREFIX + "worker_running", {"worker": "w0"}) == running >= 1
    assert sample(PREFIX + "busy_seconds_total", {"phase": "prefill"}) > 0
    done(simulation, client, *waiting)
    assert figures(simulation.core.cell)["blocks_used"] == {(): 0}
    assert figures(simulation.core.cell)["queue_age_max_seconds"] == {(): 0.0}


def test_facts_become_counts_by_outcome_tier_and_cache() -> None:
    simulation, gateway = make(store=True)
    prompt = list(range(24))
    first = simulation.submit(gateway, prompt, 12)
    done(simulation, first)
    again = simulation.submit(gateway, prompt, 12)
    cancelled = simulation.submit(gateway, [9, 9, 9], 90)
    run_until(simulation, lambda: cancelled.got[0])
    simulation.cancel(cancelled)
    simulation.settle()
    registry = prometheus_client.CollectorRegistry()
    counted = FactMetrics(registry)
    for fact in simulation.facts:
        counted.record(fact)
    sample = registry.get_sample_value
    ended = {"outcome": "finished", "reason": "", "slo_class": "default"}
    assert sample(PREFIX + "requests_ended_total", ended) == 2
    assert sample(PREFIX + "cancel_seconds_count", {"reason": "client_cancel"}) == 1
    assert sample(PREFIX + "prompt_tokens_total", {"source": "all"}) == 24 + 24 + 3
    assert again.cached_tokens and sample(PREFIX + "prompt_tokens_total", {"source": "hbm"}) == again.cached_tokens
    assert sample(PREFIX + "hit_length_tokens_sum", {"tier": "hbm"}) == again.cached_tokens
    assert sample(PREFIX + "first_token_seconds_count", {"cache": "hit"}) == 1
    assert sample(PREFIX + "first_token_seconds_count", {"cache": "miss"}) == 2
    assert sample(PREFIX + "output_prediction_error_ratio_count") == 2
    assert sample(PREFIX + "queue_seconds_count", {"prompt": "128", "outcome": "admitted"}) == 3
