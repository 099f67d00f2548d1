"""`python -m octavo_scheduler.simulate [settings]`: a task and its input as JSON lines in, the answer as JSON out.

First line: the task.
- {"hardware": name or object, "workers": N, "cell_workers"?, "cost_per_hour"?, "roles"?, "autoscale"?}: simulate; each further
  line is one row (workload.Row). "autoscale": {"rules": [...], "delay_s", "spare"} compares rules in one cell that begins with
  N workers. The settings are those of the scheduler (`--max-num-seqs 64`, `--manifest FILE`).
- {"replay": true}: each further line is one of an event log; answers with the number of events and the first difference.
- {"calibrate": name}: the same input; answers with the worker's cost model.
One line naming the field and the fix goes to standard error, with exit code 2, when the input cannot be used.
"""

from __future__ import annotations

import gc
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from octavo.figures import Figures, to_json
from octavo.manifest import ManifestError
from octavo.rpc.settings import load_settings

from octavo_scheduler.event_log import BadLog, replay
from octavo_scheduler.policy import SECOND_US, Policy
from octavo_scheduler.settings import policy_from
from octavo_scheduler.simulate.autoscale import Scaling, compare
from octavo_scheduler.simulate.calibrate import hardware_of_log
from octavo_scheduler.simulate.fleet_run import CELL_WORKERS, Plan, run_fleet
from octavo_scheduler.simulate.hardware import BadPlan, hardware_from, hardware_to
from octavo_scheduler.simulate.roles import saturates, warnings_of
from octavo_scheduler.simulate.summary import summarise
from octavo_scheduler.simulate.workload import Row, row_from

USAGE = 2
_PLAN = ("hardware", "workers", "cell_workers", "cost_per_hour", "roles", "autoscale")
YOUNG_OBJECTS = 200_000
"""The core leaves no cycle behind for each request, so the collector need not look after every 700 new objects."""


def read_line(where: str, line: str) -> Any:
    """One JSON value. Raises BadPlan."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadPlan(where, f"is not JSON: {error}") from error


def read_plan(head: dict[str, Any], lines: Iterable[str], policy: Policy) -> tuple[Plan, float, list[Row]]:
    """The plan, the cost per worker hour and the rows. Raises BadPlan."""
    rows = [row_from(number, read_line(f"requests[{number}]", line)) for number, line in enumerate(lines)]
    for name in head:
        if name not in _PLAN:
            raise BadPlan(name, f"is no field of the plan; the fields are {', '.join(_PLAN)}")
    for name in ("workers", "cell_workers"):
        if type(head.get(name, 1)) is not int:
            raise BadPlan(name, f"{head[name]!r} must be a whole number")
    cost = head.get("cost_per_hour", 0.0)
    if not isinstance(cost, int | float) or not 0 <= cost < math.inf:
        raise BadPlan("cost_per_hour", f"{cost!r} must be a number of at least 0")
    if not rows:
        raise BadPlan("requests", "there are none; give at least one")
    hardware = hardware_from(head.get("hardware", ""))
    roles = head.get("roles", [])
    if not isinstance(roles, list):
        raise BadPlan("roles", f"{roles!r} must be a list, one role for each worker")
    if roles and not hardware.host_blocks:
        hardware = replace(hardware, host_blocks=hardware.num_blocks)  # what is handed over goes through a kvstore
    plan = Plan(hardware, policy, head.get("workers", 1), head.get("cell_workers", CELL_WORKERS), tuple(roles))
    return plan, float(cost), rows


def read_scalings(given: Any, plan: Plan) -> list[Scaling]:
    """{"rules": [name, ...], "delay_s": seconds, "spare": N}. Raises BadPlan."""
    if not isinstance(given, dict) or set(given) != {"rules", "delay_s", "spare"}:
        raise BadPlan("autoscale", 'must be {"rules": [...], "delay_s": seconds, "spare": N}')
    rules, delay_s, spare = given["rules"], given["delay_s"], given["spare"]
    if not isinstance(rules, list) or not rules or len(set(map(str, rules))) < len(rules):
        raise BadPlan("autoscale", f"{rules!r} must be a list of different rules")
    if not isinstance(delay_s, int | float) or not 0 <= delay_s < math.inf:
        raise BadPlan("scale_delay", f"{delay_s!r} must be a number of seconds of at least 0")
    if type(spare) is not int:
        raise BadPlan("spare", f"{spare!r} must be a whole number")
    return [Scaling(str(rule), int(delay_s * SECOND_US), spare, plan.cell_workers) for rule in rules]


def run(lines: Iterable[str], argv: Sequence[str]) -> dict[str, Any]:
    """The answer to a task. Raises BadPlan, BadLog and ManifestError."""
    lines = iter(lines)
    head = read_line("task", next(lines, "null"))
    if not isinstance(head, dict):
        raise BadPlan("task", "the first line must be an object: a plan with hardware and workers, replay or calibrate")
    if "replay" in head:
        return asdict(replay(lines))
    if "calibrate" in head:
        return hardware_to(hardware_of_log(lines, str(head["calibrate"])))
    policy = policy_from(load_settings(argv, {}).manifest)  # a function of its input: the environment is the caller's
    plan, cost, rows = read_plan(head, lines, policy)
    if "autoscale" in head:
        figures = compare(policy, plan.hardware, plan.workers, rows, read_scalings(head["autoscale"], plan), cost)
        return {
            "hardware": hardware_to(plan.hardware),
            "policy": asdict(policy),
            "cells": [plan.workers],
            "figures": to_json(Figures("simulate", tuple(figures), machine={}, commit="")),
            "points": [],
        }
    results = run_fleet(plan, rows)
    summary = summarise(plan, results, cost)
    answer: dict[str, Any] = {
        "hardware": hardware_to(plan.hardware),
        "policy": asdict(policy),
        "cells": plan.cells(),
        "figures": to_json(Figures("simulate", summary.figures, machine={}, commit="")),
        "points": [asdict(point) for point in summary.points],
    }
    if plan.roles:
        answer["saturates"] = saturates(plan.hardware, results[0], results[0].ended_us or 1)
        answer["warnings"] = warnings_of(plan.hardware, results[0], results[0].ended_us or 1)
    return answer


def main(argv: Sequence[str]) -> int:
    """Exit code of the process."""
    gc.set_threshold(YOUNG_OBJECTS, 50, 100)
    try:
        answer = run(sys.stdin, argv)
    except (BadPlan, BadLog, ManifestError) as error:
        print(error, file=sys.stderr)
        return USAGE
    json.dump(answer, sys.stdout, allow_nan=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
