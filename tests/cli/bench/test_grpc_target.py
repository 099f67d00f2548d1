"""What the gRPC target makes of the server's account of a request."""

from __future__ import annotations

from octavo.client import Timings
from octavo_cli.bench.grpc_target import server_times
from octavo_cli.bench.sample import ServerTimes


def test_what_the_worker_waited_is_told_apart_from_load_and_prefill() -> None:
    said = Timings(t_admitted_us=3000, t_prefill_start_us=60_000, t_first_token_us=90_000, t_complete_us=500_000,
                   queue_us=2000, kv_load_us=7000, prefill_us=28_000)  # fmt: skip
    assert server_times(said) == ServerTimes(90.0, 500.0, queue_ms=2.0, prefill_ms=28.0, worker_wait_ms=50.0)


def test_a_request_without_a_prefill_says_nothing_of_it() -> None:
    assert server_times(Timings(t_complete_us=900)).worker_wait_ms is None
