"""Small worlds for the simulator's tests: round numbers, so that times can be worked out by hand."""

from __future__ import annotations

from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.cell_run import CellResult, CellRun
from octavo_scheduler.simulate.hardware import Hardware
from octavo_scheduler.simulate.workload import Row

ROUND = Hardware(
    "round",
    fixed_us=10_000.0,
    prefill_token_us=100.0,
    decode_seq_us=1000.0,
    context_token_us=0.0,
    num_blocks=1001,
    block_bytes=1000,
    max_num_seqs=16,
    link_us=0,
    front_us=0,
    back_us=0,
)


def row(at_ms: float, prompt: int = 32, output: int = 4, name: str = "", **options: object) -> Row:
    """A request with a prompt of its own, or of the piece `name`."""
    return Row(round(at_ms * 1000), ((name or f"own{at_ms}", prompt),), output, **options)  # type: ignore[arg-type]


def run(rows: list[Row], hardware: Hardware = ROUND, policy: Policy | None = None, workers: int = 1) -> CellResult:
    """One cell."""
    return CellRun(policy or Policy(), hardware, workers, list(enumerate(rows)), 10_000).run()
