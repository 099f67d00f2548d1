"""The command itself, on real configs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
    "rope_theta": 5e5,
}  # fmt: skip
DEEPSEEK = {
    "architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16,
    "intermediate_size": 10944, "vocab_size": 102400, "max_position_embeddings": 163840, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "moe_intermediate_size": 1408,
    "n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2, "first_k_dense_replace": 1,
}  # fmt: skip


def config(folder: Path, content: dict[str, Any]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content))
    return str(folder)


def test_a_config_alone_is_enough(octavo: Any, tmp_path: Path) -> None:
    done = octavo("size", config(tmp_path / "eight", LLAMA), "--context", "8192", "--concurrency", "4", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["attention"], said["parameters"]) == ("GQA", 8_030_261_248)  # Llama 3 8B
    assert (said["kv"]["token_bytes"], said["kv"]["context_bytes"]) == (131_072, 2**30)
    assert said["concurrency"]["pool_bytes_for_it"] == 4 * 2**30 + said["kv"]["block_bytes"]
    assert said["tiers"]["hbm"]["sequences"] == 0 and said["tiers"]["nvme"]["sequences"] == 4
    assert said["weights"]["bf16"]["total"] == 2 * said["parameters"]


def test_mla_experts_and_text_for_people(octavo: Any, tmp_path: Path) -> None:
    folder = config(tmp_path / "lite", DEEPSEEK)
    said = json.loads(octavo("size", folder, "--json").stdout)
    assert said["kv"]["token_bytes"] == 27 * 576 * 2 and said["attention"] == "MLA"
    assert said["parameters"] == pytest.approx(15.7e9, rel=0.01)  # DeepSeek-V2-Lite
    assert "native-bf16" not in said["weights"]
    text = octavo("size", folder, "--tp", "2").stdout
    assert "2 copies of each" in text and "GiB" in text


def test_the_default_model_is_what_its_pool_says(octavo: Any) -> None:
    said = json.loads(octavo("size", "smollm2", "--json").stdout)
    assert (said["kv"]["block_bytes"], said["kv"]["dtype"]) == (368_640, "auto")
    assert said["parameters"] == pytest.approx(134.5e6, rel=0.01)


@pytest.mark.parametrize(
    ("words", "code", "word"),
    [
        (("no/such/model",), 3, "no such file"),
        (("smollm2", "--context", "-1"), 2, "--context: -1 is negative"),
        (("smollm2", "--concurrency", "-2"), 2, "--concurrency: -2 is negative"),
        (("smollm2", "--tp", "7"), 2, "--tp"),
        (("smollm2", "--kv-dtype", "int3"), 2, "--kv-dtype"),
        (("smollm2", "--reuse", "3"), 2, "--reuse"),
        (("cag", "--chunks", "many"), 2, "--chunks"),
        (("cag", "--cp", "0"), 2, "--cp"),
        (("cag", "--prefill-us", "-1"), 2, "--prefill-us"),
    ],
)
def test_bad_arguments_are_one_line_that_names_the_fix(
    octavo: Any, words: tuple[str, ...], code: int, word: str
) -> None:
    done = octavo("size", *words)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (code, 1), done.stderr
    assert word in done.stderr


def test_cag_without_a_cluster_and_with_rates_of_one_s_own(octavo: Any) -> None:
    words = ("size", "cag", "--context", "100000", "--chunks", "10x500", "--question", "500", "--cp", "3", "--cc", "0.3",
             "--retrieval", "0.02", "--build", "0.375", "--reuse", "200")  # fmt: skip
    plain = json.loads(octavo(*words, "--json").stdout)
    assert plain["self_hosted"] is None
    assert (plain["managed"]["rag"]["equivalents"], plain["managed"]["cag"]["equivalents"]) == (5550, 10550)
    assert plain["managed"]["break_even_reuse"] == 75  # 0.375 / (0.02 - 0.015)
    assert "no rates" in octavo(*words).stdout
    own = json.loads(octavo(*words, "--prefill-us", "100", "--json").stdout)["self_hosted"]
    assert own["cag"]["build_ms"] == pytest.approx(10_050) and own["break_even_reuse"] == pytest.approx(20)
    assert "suffix prefill 50.0" in octavo(*words, "--prefill-us", "100").stdout
