"""Settings: four sources, one winner, and errors that name the key and the fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from octavo.manifest import ManifestError
from octavo.rpc.settings import env_name, load_settings, manifest_keys, to_flags


def test_flag_beats_env_beats_file_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "octavo.yaml"
    file.write_text("scheduler:\n  max_num_seqs: 4\n  max_num_batched_tokens: 99\nengine:\n  max_model_len: 1024\n")
    settings = load_settings(
        ["--manifest", str(file), "--max-num-seqs", "8"],
        {"OCTAVO_SCHEDULER_MAX_NUM_SEQS": "6", "OCTAVO_SCHEDULER_MAX_NUM_BATCHED_TOKENS": "77"},
    )
    assert settings.manifest.scheduler.max_num_seqs == 8
    assert settings.manifest.scheduler.max_num_batched_tokens == 77
    assert settings.manifest.engine.max_model_len == 1024
    sources = {item.key: item.source for item in settings.items()}
    assert sources["scheduler.max_num_seqs"] == "flag"
    assert sources["scheduler.max_num_batched_tokens"] == "env"
    assert sources["engine.max_model_len"] == "file"
    assert sources["engine.dtype"] == "default"


def test_every_key_has_an_environment_variable_and_a_flag() -> None:
    for key, env, default in manifest_keys():
        assert env == env_name(key)
        round_trip = load_settings(to_flags({key: default}), {})
        section, name = key.split(".")
        assert getattr(getattr(round_trip.manifest, section), name) == default
        assert round_trip.sources[key] == "flag"


@pytest.mark.parametrize(
    ("argv", "field", "words"),
    [
        (["--engine.max_modl_len", "1"], "engine.max_modl_len", "did you mean 'engine.max_model_len'"),
        (["--engine.tensor_parallel", "2"], "engine.tensor_parallel", "not built yet"),
        (
            ["--scheduler.slo_classes", "{chat: {policy: fare}}"],
            "scheduler.slo_classes",
            "policy: 'fare' is unknown; choose from fcfs",
        ),
        (["--scheduler.slo_classes", "{chat: {weight: 0}}"], "scheduler.slo_classes", "must be above 0"),
        (["--scheduler.slo_classes", "{chat: {ttft_ms: fast}}"], "scheduler.slo_classes", "must be a number of at"),
        (["--scheduler.slo_classes", "{chat: {tttf_ms: 9}}"], "scheduler.slo_classes", "'tttf_ms' is unknown"),
        (["--scheduler.slo_classes", "{chat: {ttft_ms: [1]}}"], "scheduler.slo_classes", "is no str"),
        (["--tenants.weights", "{a: -1}"], "tenants.weights", "must be above 0"),
        (["--scheduler.policy", "fcsf"], "scheduler.policy", "did you mean 'fcfs'"),
        (["--engine.kv_block_tokens", "12"], "engine.kv_block_tokens", "choose from 8, 16, 32"),
        (["--cache.pin_quota_bytes", "{a: .inf}"], "cache.pin_quota_bytes", "finite"),
        (["--cache.quota_bytes", "{a: {dram: .nan}}"], "cache.quota_bytes", "finite"),
        (["--scheduler.worker_silence_s", ".inf"], "scheduler.worker_silence_s", "finite"),
        (["--scheduler.worker_silence_s", "9" * 400], "scheduler.worker_silence_s", "finite"),
        (["--scheduler.orphan_grace_s", "-1"], "scheduler.orphan_grace_s", "at least 0"),
        (["--cache.tiers", "{"], "cache.tiers", "'{' is unknown"),
        (["--max-num-seqs", "0"], "scheduler.max_num_seqs", "at least 1"),
        (["--max-num-seqs", "many"], "scheduler.max_num_seqs", "is no int"),
        (["--listen", "x"], "listen", "several"),
        (["--max-num-seqs"], "max-num-seqs", "needs a value"),
        (["stray"], "stray", "is no flag"),
        (["--cache.tiers", "dram,tape"], "cache.tiers", "tape"),
        (["--observability.trace_sample", "2"], "observability.trace_sample", "[0, 1]"),
        (["--engine.tensor_parallel", "2"], "engine.tensor_parallel", "not built yet"),
        (["--speculative.method", "ngram"], "speculative.method", "not built yet"),
    ],
)
def test_bad_flags_name_the_key_and_the_fix(argv: list[str], field: str, words: str) -> None:
    with pytest.raises(ManifestError) as caught:
        load_settings(argv, {})
    assert caught.value.field == field
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("scheduller:\n  policy: fcfs\n", "did you mean 'scheduler'"),
        ("scheduler:\n  polcy: fcfs\n", "did you mean 'scheduler.policy'"),
        ("- a\n", "top level"),
        ("scheduler: 3\n", "must hold keys"),
        ("a: [\n", "not YAML"),
    ],
)
def test_bad_files_name_the_key_and_the_fix(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "octavo.yaml"
    file.write_text(content)
    with pytest.raises(ManifestError, match="manifest") as caught:
        load_settings(["--manifest", str(file)], {})
    assert words in str(caught.value)


def test_missing_file_and_unknown_variable_are_refused() -> None:
    with pytest.raises(ManifestError, match="check the path"):
        load_settings(["--manifest", "/nowhere.yaml"], {})
    with pytest.raises(ManifestError, match="OCTAVO_ENGINE_DTYPE"):
        load_settings([], {"OCTAVO_ENGINE_DTPE": "float32"})


def test_secrets_are_masked() -> None:
    settings = load_settings(["--deployment.secret", "hush", "--tenants.keys", '{"sk-1": "acme"}'], {})
    shown = {item.key: str(item.value) for item in settings.items()}
    assert "hush" not in shown["deployment.secret"]
    assert "sk-1" not in shown["tenants.keys"]
    assert "acme" in shown["tenants.keys"]


def test_foreign_otel_variable_is_honoured() -> None:
    settings = load_settings([], {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4317"})
    assert settings.manifest.observability.otlp_endpoint == "http://localhost:4317"


def test_a_password_in_the_valkey_url_is_masked() -> None:
    settings = load_settings(["--cache.valkey_url=rediss://octavo:hunter2@cache.internal:6379/0"], {})
    shown = next(item for item in settings.items() if item.key == "cache.valkey_url")
    assert shown.value == "rediss://***@cache.internal:6379/0"
    plain = load_settings(["--cache.valkey_url=valkey://cache.internal/0"], {})
    assert "valkey://cache.internal/0" in [item.value for item in plain.items()]
