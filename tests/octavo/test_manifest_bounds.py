"""Every key of the manifest against values that no service can use: refused in one line, never a traceback later."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from octavo.manifest import ManifestError
from octavo.manifest_bounds import address_problem, dial_problem, listen_problem, number_problem, text_problem
from octavo.rpc.settings import field_types, load_settings, to_flags

HUGE = (2**63, 2**70, 1e308)
ODD: tuple[Any, ...] = (None, True, -1, 2**70, "x" * 70_000, "a\0b", [[1]], {"": {}})
NUMBERS = [key for key, hint in field_types().items() if hint in (int, float)]


def test_no_value_of_any_key_gives_more_than_one_line() -> None:
    refused = 0
    for key in field_types():
        for value in ODD:
            try:
                load_settings([f"--{key}", to_flags({key: value})[1]], {})
            except ManifestError as error:
                refused += 1
                assert "\n" not in str(error)
                assert len(str(error)) < 500
                assert str(error).startswith(key.split(".")[0])
    assert refused > 400


@pytest.mark.parametrize("key", NUMBERS)
def test_no_number_is_larger_than_what_a_clock_or_a_message_can_hold(key: str) -> None:
    for value in HUGE:
        if field_types()[key] is int and isinstance(value, float):
            continue
        with pytest.raises(ManifestError):
            load_settings([f"--{key}", f"{value}"], {})


def test_what_a_number_may_be_goes_by_its_unit() -> None:
    assert number_problem("cache.dram_bytes", 2**50) == ""
    assert number_problem("scheduler.max_num_seqs", 2**20) == "1048576 is too large; give at most 65536"
    assert number_problem("scheduler.orphan_grace_s", 2e9) == "2000000000.0 is too large; give at most 1000000000"
    assert number_problem("engine.deterministic", True) == ""


@pytest.mark.parametrize(
    ("key", "most"),
    [("deployment.compute_nice", 19), ("gpuworker.merge_reports_ms", 100.0)],
)
def test_a_number_with_a_bound_of_its_own_is_taken_up_to_it(key: str, most: float) -> None:
    load_settings([f"--{key}", f"{most}"], {})
    with pytest.raises(ManifestError, match=rf"{key}: {most + 1!r} is too large; give at most {most:g}"):
        load_settings([f"--{key}", f"{most + 1}"], {})
    with pytest.raises(ManifestError, match=rf"{key}: -1"):
        load_settings([f"--{key}", "-1"], {})


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:0", ""),
        ("[::1]:65535", ""),
        ("scheduler:50051", ""),
        ("unix:/run/a.sock", ""),
        ("unix:", "is no address"),
        ("", "is no address"),
        ("nowhere", "is no address"),
        ("127.0.0.1:abc", "is no address"),
        ("127.0.0.1:-1", "is no address"),
        ("a b:1", "is no address"),
        ("127.0.0.1:99999", "no such port"),  # gRPC listens on 34463 then
    ],
)
def test_an_address_to_listen_on(address: str, said: str) -> None:
    problem = listen_problem(address)
    assert said in problem
    assert bool(said) == bool(problem)


def test_other_addresses() -> None:
    assert "HOST:PORT, as" in listen_problem("unix:/run/a.sock", tcp_only=True)
    assert dial_problem("dns:///scheduler:50051") == dial_problem("unix:/run/a.sock") == dial_problem("h:1") == ""
    assert "can be dialled" in dial_problem("127.0.0.1:0")
    assert address_problem("kvstore.scheduler", "") == address_problem("scheduler.metrics_listen", "") == ""
    assert address_problem("gateway.scheduler", "") != ""
    local = "scheduler.local_listen"
    assert address_problem(local, "") == address_problem(local, "unix:/run/a.sock") == ""
    assert all("write unix:PATH" in address_problem(local, said) for said in ("unix:", "127.0.0.1:0", "a.sock"))
    assert address_problem("model.ref", "nowhere") == ""


def test_numbers_may_have_an_exponent(tmp_path: Path) -> None:
    manifest = load_settings(["--max-overcommit", "1e1", "--tenants.weights", "{a: 2.5E-1}"], {}).manifest
    assert (manifest.scheduler.max_overcommit, manifest.tenants.weights) == (10.0, {"a": 0.25})
    (tmp_path / "octavo.yaml").write_text("scheduler: {orphan_grace_s: 1e1, max_overcommit: 2}\n")
    scheduler = load_settings(["--manifest", str(tmp_path / "octavo.yaml")], {}).manifest.scheduler
    assert (scheduler.orphan_grace_s, scheduler.max_overcommit) == (10.0, 2.0)
    for given in ("1e", "e3", "1e3e3", "1e999"):
        with pytest.raises(ManifestError, match=r"scheduler\.orphan_grace_s"):
            load_settings(["--scheduler.orphan_grace_s", given], {})


def test_texts_can_be_printed_and_have_a_length() -> None:
    assert text_problem(("fine", "a\x7f")) == "'a\\x7f' has a character that cannot be printed; remove it"
    assert text_problem({"name": {"x\0": 1.0}}) != ""
    assert text_problem("x" * 5000) == "5000 characters; use at most 4096"
    assert text_problem({"é": "ü"}) == ""


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("tenants.keys", "{sk-1: ''}", "is no name"),
        ("tenants.keys", "{sk-1: a/b}", "is no name"),
        ("tenants.keys", "{sk-1: '*'}", "give this one a name"),
        ("tenants.keys", "{'sk-1 ': a}", "cannot be sent in a header"),
        ("tenants.keys", '{"sk-1\\n": a}', "cannot be sent in a header"),
        ("tenants.keys", "sk-1", "must be a mapping"),
        ("tenants.keys", "[sk-1]", "must be a mapping"),
        ("deployment.secret", "", "it is empty"),
    ],
)
def test_a_secret_is_never_repeated(flag: str, value: str, words: str) -> None:
    with pytest.raises(ManifestError, match=words) as caught:
        load_settings([f"--{flag}", value], {})
    assert "sk-1" not in str(caught.value)


def test_a_default_class_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ManifestError, match=r"is no class of scheduler\.slo_classes"):
        load_settings(["--scheduler.default_slo_class", "nope"], {})
    load_settings(["--scheduler.slo_classes", "{chat: {}}"], {})  # `default` may do without targets
    assert get_args(field_types()["scheduler.policy"])[0] == "fcfs"
