"""The processes of a cluster, their addresses, and the lines that say why one died."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from octavo.manifest import ManifestError
from octavo.rpc.settings import load_settings
from octavo_cli.console import share_done
from octavo_cli.plan import ServicePlan, plan_cluster
from octavo_cli.ports import PortLeases, reachable
from octavo_cli.service_log import Record, ServiceLog, parse_record, reason_of_death


def test_each_worker_has_its_role(leases: PortLeases) -> None:
    flags = ("--scheduler.max_num_seqs=8",)
    plans = {
        item.name: item
        for item in plan_cluster(load_settings(flags, {}), flags, 2, leases, roles=("prefill", "decode"))
    }
    assert [effective(plans[f"gpuworker-{index}"]).gpuworker.role for index in range(2)] == ["prefill", "decode"]


@pytest.mark.parametrize(
    ("flags", "roles", "says"),
    [
        ((), ("prefill",), "1 roles for 2 workers"),
        ((), ("prefill", "writer"), "'writer' is unknown"),
        (("--cache.tiers=[]",), ("prefill", "decode"), "give cache.tiers"),
    ],
)
def test_roles_that_cannot_be(leases: PortLeases, flags: tuple[str, ...], roles: tuple[str, ...], says: str) -> None:
    with pytest.raises(ManifestError, match=says):
        plan_cluster(load_settings(flags, {}), flags, 2, leases, roles=roles)


def plan(leases: PortLeases, *flags: str, workers: int = 1) -> dict[str, ServicePlan]:
    return {item.name: item for item in plan_cluster(load_settings(flags, {}), flags, workers, leases)}


def effective(service: ServicePlan) -> Any:
    """The manifest that a service makes of its flags: what the user gave and what joins them."""
    return load_settings(service.flags, {}).manifest


@pytest.fixture
def leases(tmp_path: Path) -> Any:
    held = PortLeases(tmp_path)
    yield held
    held.close()


def test_services_find_each_other(leases: PortLeases, tmp_path: Path) -> None:
    plans = plan(leases, "--deployment.run_dir", str(tmp_path), "--engine.threads=3", workers=2)
    assert list(plans) == ["scheduler", "kvstore", "gpuworker-0", "gpuworker-1", "gateway"]
    scheduler = plans["scheduler"].address
    worker, other = effective(plans["gpuworker-0"]), effective(plans["gpuworker-1"])
    local = effective(plans["scheduler"]).scheduler.local_listen
    assert worker.gpuworker.scheduler == effective(plans["gateway"]).gateway.scheduler == local
    assert local == f"unix:{tmp_path}/scheduler.sock"
    assert effective(plans["kvstore"]).kvstore.scheduler == scheduler == effective(plans["scheduler"]).scheduler.listen
    assert worker.gpuworker.kvstore == plans["kvstore"].address
    assert worker.gpuworker.worker_id != other.gpuworker.worker_id and worker.engine.threads == 3
    assert len({item.address for item in plans.values()}) == 5


def test_the_schedulers_socket_is_the_users_or_none_where_the_run_folder_takes_none(
    leases: PortLeases, tmp_path: Path
) -> None:
    own = plan(leases, "--scheduler.local_listen", "unix:/run/octavo.sock")
    assert effective(own["gateway"]).gateway.scheduler == "unix:/run/octavo.sock"
    (deep := tmp_path / ("d" * 100)).mkdir()
    for folder in (deep, tmp_path / "missing"):
        plans = plan(leases, "--deployment.run_dir", str(folder))
        assert effective(plans["scheduler"]).scheduler.local_listen == ""
        assert effective(plans["gateway"]).gateway.scheduler == plans["scheduler"].address
    assert list(deep.iterdir()) == []


def test_cores_are_shared_by_workers_unless_given(leases: PortLeases) -> None:
    assert effective(plan(leases)["gpuworker-0"]).engine.threads == 0
    shared = effective(plan(leases, workers=2)["gpuworker-0"]).engine.threads
    assert shared == max(1, (os.cpu_count() or 1) // 2)


def test_no_tiers_no_kvstore(leases: PortLeases) -> None:
    plans = plan(leases, "--cache.tiers", "[]")
    assert "kvstore" not in plans and effective(plans["gpuworker-0"]).gpuworker.kvstore == ""


def test_given_addresses_are_taken_or_refused(leases: PortLeases) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = f"127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(ManifestError, match=r"scheduler\.listen"):
            plan(leases, "--scheduler.listen", taken)
        found = leases.prefer("gateway.http_listen", taken)
        assert found != taken and leases.moved == {"gateway.http_listen": (taken, found)}
    assert leases.exactly("scheduler.listen", taken) == taken
    with pytest.raises(ManifestError, match="host:port"):
        leases.exactly("scheduler.listen", "localhost")
    with pytest.raises(ManifestError, match="workers"):
        plan(leases, workers=0)


def test_two_clusters_that_start_at_once_choose_different_ports(tmp_path: Path) -> None:
    first, second = PortLeases(tmp_path), PortLeases(tmp_path)
    address = first.free("k", "127.0.0.1")
    assert second.prefer("k", address) != address  # nobody listens there yet
    first.close()
    second.moved.clear()
    assert second.prefer("k", address) == address and not second.moved
    second.close()


def test_wildcards_are_dialled_on_the_loopback() -> None:
    assert reachable("0.0.0.0:5") == "127.0.0.1:5" and reachable("10.0.0.1:5") == "10.0.0.1:5"


def test_a_log_is_read_in_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "s.log"
    log = ServiceLog(path)
    assert log.new_records() == []
    path.write_text('{"level": "info", "message": "one"}\n{"level": "in')
    assert log.new_records() == [Record("info", "one")]
    with path.open("a") as stream:
        stream.write('fo", "message": "two"}\n12:30:01 gateway ERROR three\nTraceback:\n')
    assert log.new_records() == [Record("info", "two"), Record("error", "three"), Record("", "Traceback:")]
    log.mark_end()
    assert log.new_records() == []


@pytest.mark.parametrize(
    ("records", "code", "reason"),
    [
        ([Record("error", "ended with exit code 3: cannot start: weights differ")], 3, "weights differ"),
        ([Record("", "Traceback"), Record("", "ModuleNotFoundError: No module named 'x'")], 1, "No module named 'x'"),
        ([Record("info", "state serving")], -9, "killed by signal 9"),
        ([], 2, "exit code 2"),
    ],
)
def test_the_reason_of_a_death_is_one_line(records: list[Record], code: int, reason: str) -> None:
    said = reason_of_death(records, code)
    assert reason in said and "\n" not in said


def test_lines_of_no_form_are_kept() -> None:
    assert parse_record('["level"]') == Record("", '["level"]')
    assert parse_record("a b c d") == Record("", "a b c d")


@pytest.mark.parametrize(
    ("message", "share"),
    [("loading weights: 40%", 0.4), ("loaded 3/4 tensors", 0.75), ("3 of 4", 0.75), ("loading", None), ("1/0", None)],
)
def test_progress_in_a_message(message: str, share: float | None) -> None:
    assert share_done(message) == share
