"""How much of a link handoffs take, live and simulated, and when that is said."""

from __future__ import annotations

import pytest
from octavo_scheduler.moves.rates import HALF_LIFE_US, Moved, link_share, link_warning
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.fleet_run import Plan, run_fleet
from octavo_scheduler.simulate.hardware import BadPlan, Hardware
from octavo_scheduler.simulate.roles import link_shares, role_figures, saturates, warnings_of
from octavo_scheduler.simulate.workload import Row

GIB = 2**30
BLOCKS = 48
FAST = Hardware(
    "fast",
    fixed_us=1000.0,
    prefill_token_us=10.0,
    decode_seq_us=10.0,
    context_token_us=0.0,
    num_blocks=2000,
    block_bytes=round(1.2 * GIB / BLOCKS),
    host_blocks=20_000,
    tier_fixed_us=100.0,
    tier_bytes_per_us=12 * GIB / 1e6,
)


def test_the_example_of_the_issue() -> None:
    share = link_share(1.2 * GIB, 8.0, 12 * GIB)
    assert share == pytest.approx(0.8)
    assert "80%" in link_warning(share, "prefill") and link_warning(0.7, "prefill") == ""


def test_a_simulated_cell_measures_the_same_and_warns() -> None:
    rows = [Row(number * 125_000, ((f"own{number}", BLOCKS * 16 + 1),), 20) for number in range(160)]
    plan = Plan(FAST, Policy(), 2, roles=("prefill", "decode"))
    (result,) = run_fleet(plan, rows)
    assert result.counters["handoffs_done"] == len(rows)
    shares = link_shares(FAST, result, result.ended_us)
    assert shares["prefill"] == pytest.approx(0.8, abs=0.02) == shares["decode"]
    assert [line.partition(":")[0] for line in warnings_of(FAST, result, result.ended_us)] == [
        f"handoffs take {shares[role]:.0%} of the links of the {role} pool, more than 70%"
        for role in ("decode", "prefill")
    ]
    assert saturates(FAST, result, result.ended_us).startswith("links of")
    found = {figure.name: figure.value for figure in role_figures(FAST, result, result.ended_us)}
    assert found["kv_rate"] == pytest.approx(1.2 * GIB * 8, rel=0.03)
    assert 0 < found["idle_prefill"] < 1 and found["handoffs"] == len(rows)


def test_a_faster_link_is_no_warning() -> None:
    rows = [Row(number * 500_000, ((f"own{number}", BLOCKS * 16 + 1),), 4) for number in range(8)]
    (result,) = run_fleet(Plan(FAST, Policy(), 2, roles=("prefill", "decode")), rows)
    assert warnings_of(FAST, result, result.ended_us) == []


@pytest.mark.parametrize(
    ("roles", "says"),
    [(("prefill",), "1 roles must be one for each of 2"), (("prefill", "writer"), "'writer' is unknown")],
)
def test_roles_that_cannot_be(roles: tuple[str, ...], says: str) -> None:
    with pytest.raises(BadPlan, match=says):
        Plan(FAST, Policy(), 2, roles=roles)


def test_recent_bytes_fade() -> None:
    moved = Moved()
    for second in range(60):
        moved.add(second * 1_000_000, 1000, 500 + second)
    assert moved.bytes_per_s(59_000_000) == pytest.approx(1000, rel=0.05)
    assert moved.bytes_per_s(59_000_000 + HALF_LIFE_US) == pytest.approx(500, rel=0.05)
    assert (moved.quantile_us(0.5), moved.quantile_us(0.99)) == (530, 559)
    assert Moved().quantile_us(0.5) == 0 == Moved().bytes_per_s(5)
