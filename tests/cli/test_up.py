"""octavo up: ready lines, death at start, restart, drain order, Ctrl-C, detach; all against stand-in services."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from octavo.rpc.settings import load_settings
from octavo_cli.doctor import port_checks
from octavo_cli.state import ClusterState, Process, running_state, write_state


def gone(pids: Any) -> bool:
    return not [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def wait_ready(octavo: Any, eventually: Any) -> None:
    eventually(lambda: (octavo.run_dir / "state.json").exists() and octavo.state()["ready"])


def test_foreground_prints_ready_lines_and_ctrl_c_drains_in_order(octavo: Any, eventually: Any) -> None:
    octavo.script("gpuworker-0", say=["loading weights: 50%", "loading weights: 100%"])
    child = octavo.up("--workers", "2")
    wait_ready(octavo, eventually)
    pids = octavo.service_pids()
    assert set(pids) == {"scheduler", "kvstore", "gpuworker-0", "gpuworker-1", "gateway"}
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 0, err
    for name in pids:
        assert any(line.startswith(name) and " ready " in line for line in out.splitlines()), out
    assert "gpuworker-0: loading weights: 50%" in out
    final = next(line for line in out.splitlines() if line.startswith("octavo is ready"))
    assert "grpc grpc://127.0.0.1:" in final and "http http://127.0.0.1:" in final and "/metrics" in final
    assert gone(pids.values())
    order = (octavo.run_dir / "stop-order").read_text().split()
    assert order[0] == "gateway" and order[-1] == "scheduler" and len(order) == 5
    assert not (octavo.run_dir / "state.json").exists()


def test_a_death_at_start_ends_everything_with_its_reason_and_code(octavo: Any) -> None:
    octavo.script("gpuworker-0", die=[3, "model.tokenizer_blake3: the tokenizer differs; give its own"])
    child = octavo.up()
    out, err = child.communicate(timeout=30)
    assert child.returncode == 3
    assert "differs" not in out and "draining" not in out, out  # said once, on stderr; nobody asked to drain
    assert err.count("\n") == 1 and "gpuworker-0 did not start" in err and "model.tokenizer_blake3" in err, err
    left = [item for item in psutil.process_iter(["cmdline"]) if str(octavo.run_dir) in (item.info["cmdline"] or [])]
    assert left == []


def test_a_service_that_cannot_be_imported_is_one_line(octavo: Any) -> None:
    octavo.up_flags[1] = "--module=kvstore=no_such_module"
    done = octavo.up_detached()
    assert done.returncode == 1
    assert "kvstore did not start" in done.stderr and "no_such_module" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_cluster_outlives_the_reader_of_its_lines(octavo: Any, eventually: Any, words: tuple[str, ...]) -> None:
    child = octavo.up(*words)
    wait_ready(octavo, eventually)
    assert child.stdout is not None
    child.stdout.close()
    before = octavo.service_pids()
    os.kill(before["kvstore"], signal.SIGKILL)
    store = lambda: next(item for item in octavo.state()["services"] if item["name"] == "kvstore")  # noqa: E731
    eventually(lambda: store()["restarts"] == 1 and store()["state"] == "serving")
    os.kill(store()["process"]["pid"], signal.SIGKILL)
    eventually(lambda: store()["restarts"] == 2 and store()["state"] == "serving")
    pids = octavo.service_pids()
    child.send_signal(signal.SIGINT)
    child.wait(timeout=30)
    assert gone(pids.values()) and not (octavo.run_dir / "state.json").exists()


def test_an_unknown_setting_is_refused_before_anything_starts(octavo: Any) -> None:
    for words in (("--engine.max_modle_len", "5"), ("--detach", "--engine.max_modle_len", "5")):
        done = octavo("up", *octavo.up_flags, *words)
        assert done.returncode == 2
        assert "engine.max_model_len" in done.stderr and done.stderr.count("\n") == 1
    assert not (octavo.run_dir / "logs").exists()


def test_detach_status_and_down(octavo: Any) -> None:
    done = octavo.up_detached("--json", "--engine.threads", "1")
    assert done.returncode == 0, done.stderr
    urls = json.loads(done.stdout)["urls"]
    assert set(urls) == {"grpc", "http", "metrics"}
    status = octavo.status()
    assert status["ready"] is True and status["urls"] == urls
    assert {item["name"]: item["state"] for item in status["services"]}["gateway"] == "serving"
    assert status["blocks"] == {"total": 64, "free": 60, "cached": 5, "leaked": 0, "out_of_use": 0}
    config = json.loads(octavo("status", "--config", "--json").stdout)["settings"]
    threads = next(item for item in config["gpuworker-0"] if item["key"] == "engine.threads")
    assert threads == {"key": "engine.threads", "value": 1, "source": "flag"}
    again = octavo.up_detached()
    assert again.returncode == 1 and "already runs" in again.stderr
    pids = octavo.service_pids()
    down = octavo("down")
    assert down.returncode == 0 and gone(pids.values())
    assert octavo("status").returncode == 4
    assert octavo.status()["ready"] is False
    assert octavo("down").returncode == 0


def test_what_dies_later_comes_back_on_the_same_address(octavo: Any, eventually: Any) -> None:
    octavo.up_detached()
    before = {item["name"]: item for item in octavo.state()["services"]}
    for name in ("kvstore", "gpuworker-0", "scheduler", "gateway"):
        os.kill(before[name]["process"]["pid"], signal.SIGKILL)

    def all_back() -> bool:
        services = {item["name"]: item for item in octavo.state()["services"]}
        return all(item["state"] == "serving" and item["restarts"] == 1 for item in services.values())

    eventually(all_back)
    after = {item["name"]: item for item in octavo.state()["services"]}
    assert {name: item["address"] for name, item in after.items()} == {
        name: item["address"] for name, item in before.items()
    }
    assert not {item["process"]["pid"] for item in after.values()} & {
        item["process"]["pid"] for item in before.values()
    }
    assert octavo.status()["ready"] is True
    assert "killed by signal 9" in (octavo.run_dir / "logs" / "up.log").read_text()
    assert octavo("down").returncode == 0


def test_a_restart_that_fails_is_tried_again_until_it_works(octavo: Any, eventually: Any) -> None:
    octavo.up_detached()
    octavo.script("kvstore", die=[1, "disk: full"])
    os.kill(octavo.service_pids()["kvstore"], signal.SIGKILL)
    store = lambda: next(item for item in octavo.state()["services"] if item["name"] == "kvstore")  # noqa: E731
    eventually(lambda: store()["restarts"] >= 2)
    assert octavo("status").returncode == 1
    octavo.unscript("kvstore")
    eventually(lambda: store()["state"] == "serving")
    assert octavo("down").returncode == 0


def test_not_ready_in_time_says_who_and_why(octavo: Any) -> None:
    octavo.script("gpuworker-0", not_serving="the warm-up inference failed")
    done = octavo.up_detached("--ready-timeout-s", "3")
    assert done.returncode == 1
    assert done.stderr.count("gpuworker-0 is not_serving (the warm-up inference failed)") == 1


def test_a_service_that_ignores_the_drain_is_killed_and_told(octavo: Any, eventually: Any) -> None:
    octavo.script("kvstore", ignore_term=True)
    child = octavo.up("--deployment.drain_timeout_s", "1")
    wait_ready(octavo, eventually)
    pids = octavo.service_pids()
    child.send_signal(signal.SIGINT)
    eventually(lambda: gone([pids["gateway"], pids["gpuworker-0"]]))
    child.send_signal(signal.SIGINT)  # twice: at once
    child.communicate(timeout=30)
    assert child.returncode == 1 and gone(pids.values())


def test_services_of_a_killed_supervisor_are_ended_by_down(octavo: Any, eventually: Any) -> None:
    octavo.up_detached()
    state = octavo.state()
    os.kill(state["supervisor"]["pid"], signal.SIGKILL)
    eventually(lambda: gone([state["supervisor"]["pid"]]))
    refused = octavo("status")
    assert refused.returncode == 4 and "octavo down" in refused.stderr
    assert octavo("down").returncode == 0
    assert gone(octavo_pids := [item["process"]["pid"] for item in state["services"]]), octavo_pids


def test_serve_becomes_the_service(octavo: Any) -> None:
    done = octavo("serve", "gatway")
    assert done.returncode == 2 and "gateway" in done.stderr


def test_serve_hands_its_flags_to_the_service(octavo: Any, tmp_path: Any) -> None:
    package = tmp_path / "shadow" / "octavo_kvstore"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("import json, sys; print(json.dumps(sys.argv[1:])); raise SystemExit(7)")
    octavo.environ["PYTHONPATH"] = f"{package.parent}{os.pathsep}{octavo.environ['PYTHONPATH']}"
    done = octavo("serve", "kvstore", "--model", "m", "--cache.dram_bytes=5", "--engine.threads", "-1")
    assert done.returncode == 7, done.stderr
    assert json.loads(done.stdout) == ["--model.ref", "m", "--cache.dram_bytes=5", "--engine.threads", "-1"]


def test_an_interrupted_detached_start_leaves_nothing(octavo: Any, eventually: Any) -> None:
    octavo.script("gpuworker-0", hang_s=60)
    child = octavo.up("--detach")
    eventually(lambda: (octavo.run_dir / "state.json").exists() and all(octavo.service_pids().values()))
    pids = [*octavo.service_pids().values(), octavo.state()["supervisor"]["pid"]]
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=90)  # a service that does not hear is killed after its drain
    assert child.returncode != 0 and gone(pids)


def test_logs_hold_one_run(octavo: Any) -> None:
    for _ in range(2):
        assert octavo.up_detached().returncode == 0
        assert octavo("down").returncode == 0
    logs = octavo.run_dir / "logs"
    for path in (logs / "kvstore.log", logs / "kvstore.log.old"):
        assert path.read_text().count("state serving") == 1


def test_a_run_folder_that_cannot_be_used_is_one_line(octavo: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for words in ((), ("--detach",)):
        done = octavo("up", *octavo.up_flags, *words, "--deployment.run_dir", str(tmp_path / "file"))
        assert done.returncode == 2
        assert "deployment.run_dir" in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_cluster_that_stops_is_not_called_starting(octavo: Any) -> None:
    write_state(octavo.run_dir, ClusterState(Process.of(os.getpid()), stopping=True))
    done = octavo("chat", "hi")
    assert done.returncode == 4 and "is stopping" in done.stderr


def test_detached_urls_are_printed_once(octavo: Any) -> None:
    done = octavo.up_detached()
    assert (done.stdout + done.stderr).count("grpc://") == 1 and done.stdout.startswith("grpc "), done
    assert octavo("down").returncode == 0


def test_doctor_knows_the_ports_of_its_own_cluster(octavo: Any) -> None:
    assert octavo.up_detached().returncode == 0
    address = octavo.status()["urls"]["grpc"].removeprefix("grpc://")
    state = running_state(octavo.run_dir)
    manifest = load_settings(
        ["--deployment.run_dir", str(octavo.run_dir), "--gateway.grpc_listen", address], {}
    ).manifest
    found = {check.name: check for check in port_checks(manifest)}
    assert state.ready and found["port gateway.grpc_listen"].verdict == "ok"
    assert "this run folder" in found["port gateway.grpc_listen"].found
    assert octavo("down").returncode == 0
