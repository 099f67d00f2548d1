"""A worker whose artifacts do not match the manifest never serves: exit code 3 and one line that names the artifact."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import Cluster
from octavo.artifacts import resolve_model, weights_hash
from octavo.rpc.settings import load_settings

pytestmark = pytest.mark.e2e


def ended(cluster: Cluster) -> tuple[int, str]:
    """The worker's exit code and its last log line."""
    cluster.start("gpuworker0")
    try:
        code = cluster.processes["gpuworker0"].wait(timeout=60)
    except subprocess.TimeoutExpired:
        pytest.fail("the worker serves although an artifact does not match")
    return code, cluster.log_text("gpuworker0")


@pytest.mark.parametrize("artifact", ["weights", "tokenizer", "chat_template"])
def test_another_hash_is_refused(make_cluster: Callable[..., Cluster], artifact: str) -> None:
    code, log = ended(make_cluster(settings={f"model.{artifact}_blake3": "0" * 64}))
    assert code == 3
    assert artifact.replace("_", " ") in log.replace("_", " ")
    assert "Traceback" not in log


def test_one_flipped_weight_block_is_refused(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    files = resolve_model("smollm2")
    content = bytearray(files.path.read_bytes())
    content[len(content) // 2] ^= 1
    flipped = tmp_path / "flipped.gguf"
    flipped.write_bytes(content)
    code, log = ended(make_cluster(settings={"model.ref": str(flipped), "model.weights_blake3": weights_hash(files)}))
    assert code == 3
    assert "weights" in log


def test_other_parity_ids_are_refused(make_cluster: Callable[..., Cluster]) -> None:
    code, log = ended(
        make_cluster(settings={"model.parity_prompt_ids": [504, 3575, 282], "model.parity_greedy_ids": [1, 2, 3, 4]})
    )
    assert code == 3
    assert "parity" in log


async def test_the_shipped_manifest_serves_the_shipped_model(make_cluster: Callable[..., Cluster]) -> None:
    manifest = Path(__file__).parents[2] / "octavo.yaml"
    settings = load_settings(["--manifest", str(manifest)], {}).manifest.model
    assert all(
        (settings.weights_blake3, settings.tokenizer_blake3, settings.chat_template_blake3, settings.parity_greedy_ids)
    )
    cluster = make_cluster(settings={"manifest": str(manifest)})
    await cluster.up()
    assert (await cluster.status()).ready
