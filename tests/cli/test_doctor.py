"""octavo doctor: findings, advice and exit codes; torch stays in a child process."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import Any

import pytest
from octavo.errors import OctavoError
from octavo.manifest import Engine, Manifest
from octavo.memory import Room
from octavo_cli import doctor


def verdicts(checks: list[doctor.Check]) -> dict[str, doctor.Check]:
    return {check.name: check for check in checks}


@pytest.fixture(autouse=True)
def no_torch_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing torch in a child takes seconds; the probe itself has a test of its own."""
    monkeypatch.setattr(doctor, "_ask_python", lambda *_: {"torch": "9.9", "threads": 2, "cuda": False})


def test_a_taken_port_and_a_bad_manifest_are_told_with_what_to_do() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        found = verdicts(doctor.examine(["--gateway.http_listen", f"127.0.0.1:{port}"]))
    taken = found["port gateway.http_listen"]
    assert taken.verdict == "warn" and str(port) in taken.found and taken.advice
    found = verdicts(doctor.examine(["--engine.kv_dtype", "bflota16"]))
    assert found["manifest"].verdict == "fail" and "engine.kv_dtype" in found["manifest"].found
    assert found["cpu"].verdict == "ok"


def test_an_impossible_model_fails_and_names_it(tmp_path: Any) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    for ref in (str(tmp_path / "broken.gguf"), str(tmp_path / "absent.gguf"), "no-such-model"):
        found = verdicts(doctor.examine(["--model.ref", ref]))["model"]
        assert found.verdict == "fail" and found.advice, ref


def test_more_memory_than_there_is_warns() -> None:
    found = verdicts(doctor.examine(["--engine.kv_pool_bytes", str(2**50), "--cache.nvme_bytes", str(2**60)]))
    assert found["memory"].verdict == found["disk"].verdict == "warn"
    assert "engine.kv_pool_bytes" in found["memory"].advice


def test_the_limit_of_a_control_group_is_the_memory_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "tightest", lambda: Room(2**30, 2**31, "/sys/fs/cgroup/a"))
    found = verdicts(doctor.examine([]))["memory"]
    assert found.verdict == "warn" and found.found.startswith(
        "1.0 GiB free of 2.0 GiB of the control group /sys/fs/cgroup/a"
    )


def test_a_torch_that_cannot_be_imported_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(doctor, "_TORCH_PROBE", "import no_such_torch")
    found = verdicts(doctor._torch(Manifest()))
    assert found["torch"].verdict == "fail" and "no_such_torch" in found["torch"].found
    monkeypatch.setattr(doctor, "_TORCH_PROBE", 'print(\'{"torch": "1", "threads": 1, "cuda": false}\')')
    found = verdicts(doctor._torch(Manifest()))
    assert found["torch"].verdict == found["gpu"].verdict == "ok"


def test_a_device_that_the_settings_name_and_nobody_has_fails() -> None:
    found = verdicts(doctor._torch(Manifest(engine=Engine(device="cuda"))))["gpu"]
    assert found.verdict == "fail" and "engine.device is cuda" in found.found and "auto or cpu" in found.advice


@pytest.mark.parametrize(
    ("answer", "flags", "verdict", "word"),
    [
        ({"isas": ["avx512", "avx2"]}, {}, "ok", "avx512"),
        ({"isas": ["avx2"]}, {}, "ok", "int8"),
        ({"isas": ["avx512", "avx2"]}, {"native_isa": "amx"}, "warn", "native_isa is amx"),
        ({"reason": "no C++ compiler found (c++, g++, clang++)"}, {}, "warn", "g++"),
        ({"isas": ["avx2"], "refused": "engine.dtype is float32"}, {}, "warn", "dtype is float32"),
        ({"isas": ["avx2"], "elsewhere": "a GPU is there"}, {}, "ok", "not used: a GPU is there"),
        ({"isas": ["avx2"], "elsewhere": "a GPU is there"}, {"kernels": "native"}, "fail", "auto lets torch serve"),
        ({"isas": ["avx2"], "refused": "engine.dtype is float32"}, {"kernels": "native"}, "fail", "no worker starts"),
        ({"reason": "no C++ compiler found"}, {"kernels": "native"}, "fail", "no worker starts"),
        ({"isas": ["avx2"], "refused": "anything"}, {"kernels": "torch"}, "ok", "engine.kernels is torch"),
    ],
)
def test_what_is_lost_without_the_native_kernels_is_told(
    monkeypatch: pytest.MonkeyPatch, answer, flags, verdict, word
) -> None:
    monkeypatch.setattr(doctor, "_ask_python", lambda *_: answer)
    found = doctor._native(Manifest(engine=Engine(**flags)))
    assert found.verdict == verdict and word in found.found + found.advice
    if "reason" in answer:
        assert "torch" in found.advice


def test_settings_that_the_native_kernels_do_not_take_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker itself is asked what it would do with these settings."""
    monkeypatch.undo()
    found = doctor._native(Manifest(engine=Engine(device="cpu", weights="w8a8")))
    assert found.verdict == "warn" and "engine.weights is w8a8" in found.found and "torch" in found.advice
    found = doctor._native(Manifest(engine=Engine(device="cuda")))
    assert found.verdict == "ok" and "engine.device is cuda" in found.found


def test_what_a_child_tells_is_shown_and_its_last_word_is_the_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    tell = "import logging; logging.getLogger('octavo_gpuworker.native.library').info('compiling'); print('[1]')"
    assert doctor._ask_python(tell, "x") == [1]
    assert capfd.readouterr().err == "octavo: compiling\n"
    with pytest.raises(OctavoError, match="x cannot be asked: ValueError: no more"):
        doctor._ask_python("import logging; logging.error('a'); raise ValueError('no more')", "x")
    assert capfd.readouterr().err == "octavo: a\n"
    with pytest.raises(OctavoError, match="x did not answer within 0 s"):
        doctor._ask_python("import time; time.sleep(60)", "x", 0.2)


def test_the_command_prints_json_and_ends_with_1_when_something_fails(octavo: Any) -> None:
    done = octavo("doctor", "--json", "--model", "no-such-model")
    assert done.returncode == 1
    content = json.loads(done.stdout)
    assert content["ok"] is False
    names = {check["name"]: check["verdict"] for check in content["checks"]}
    assert names["model"] == "fail" and names["torch"] == "ok"


def test_the_fingerprint_of_a_model_that_is_not_there_is_one_line_and_exit_code_3(octavo: Any) -> None:
    done = octavo("manifest", "fingerprint", "--model", "no-such-model")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("octavo: model 'no-such-model': no such file") and done.stderr.count("\n") == 1


def test_the_command_line_never_imports_torch() -> None:
    code = "import sys, octavo_cli.main, octavo_cli.doctor; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False False"
