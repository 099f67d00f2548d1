"""The GGUF header reader against the gguf library's, and on files cut or damaged at every place."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.gguf_header import BadArtifact, read_gguf_metadata


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_add_bos_token(True)
    writer.add_token_list(["a", "ĠÄ", "", "🙂"])
    writer.add_token_scores([0.5, -1.0, 2.0, 3.0])
    writer.add_token_types([1, 1, 3, 1])
    writer.add_uint64("x.big", 2**40)
    writer.add_int8("x.small", -3)
    writer.add_custom_alignment(64)
    writer.add_tensor("matrix", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("half", np.arange(6, dtype=np.float16).reshape(6))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def same_as_library(path: Path) -> None:
    ours, theirs = read_gguf_metadata(path), gguf.GGUFReader(path)
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert list(ours) == list(fields)
    for name, field in fields.items():
        assert ours[name] == field.contents(), name
    assert ours.data_start == theirs.data_offset
    assert [(t.name, t.type_id, t.offset) for t in ours.tensors] == [
        (t.name, int(t.tensor_type), t.data_offset) for t in theirs.tensors
    ]
    assert [t.shape for t in ours.tensors] == [tuple(reversed(t.shape.tolist())) for t in theirs.tensors]


def test_reads_what_the_library_reads(written) -> None:
    same_as_library(written)
    header = read_gguf_metadata(written)
    assert header["tokenizer.ggml.tokens"] == ["a", "ĠÄ", "", "🙂"]
    assert header["x.small"] == -3
    assert header["tokenizer.ggml.add_bos_token"] is True
    assert header.data_start % 64 == 0
    with pytest.raises(KeyError):
        header["absent"]


def test_typed_access_names_the_field(written) -> None:
    header = read_gguf_metadata(written)
    assert header.integer("llama.block_count") == 2
    assert header.number("llama.attention.layer_norm_rms_epsilon") == pytest.approx(1e-5)
    assert header.integer("absent", 7) == 7
    for call in (lambda: header.integer("absent"), lambda: header.number("general.architecture")):
        with pytest.raises(BadArtifact, match=r"absent|general\.architecture"):
            call()
    with pytest.raises(BadArtifact, match=r"x\.big is int, expected a string"):
        header.text("x.big")
    with pytest.raises(BadArtifact, match="add_bos_token"):
        header.integer("tokenizer.ggml.add_bos_token")


def test_every_cut_of_the_header_is_truncation(written, tmp_path) -> None:
    data, path = written.read_bytes(), tmp_path / "cut.gguf"
    directory_end = data.index(b"half") + 4 + 4 + 8 + 4 + 8
    for size in range(4, directory_end):
        path.write_bytes(data[:size])
        with pytest.raises(BadArtifact, match="truncated GGUF"):
            read_gguf_metadata(path)
    path.write_bytes(data[:directory_end])
    assert len(read_gguf_metadata(path).tensors) == 2
    for size in range(4):
        path.write_bytes(data[:size])
        with pytest.raises(BadArtifact, match="not a GGUF"):
            read_gguf_metadata(path)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damage_is_refused_or_read_but_never_another_error(written, tmp_path_factory, data) -> None:
    raw = bytearray(written.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(4, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(raw)
    try:
        header = read_gguf_metadata(path)
        for key in header:
            header[key]
    except BadArtifact as error:
        assert "\n" not in str(error).replace("\\n", "")


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(BadArtifact, match=r"none\.gguf: cannot be read"):
        read_gguf_metadata(tmp_path / "none.gguf")
