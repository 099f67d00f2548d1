"""Tokenizers from GGUF and tokenizer.json give the ids of transformers, and user text never becomes a control token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.artifacts import BadArtifact, ModelFiles, read_gguf_metadata, resolve_model
from octavo_gateway.detokenizer import Detokenizer
from octavo_gateway.tokenizer import Tokenizer
from octavo_gateway.tokenizer_files import generation_defaults, gguf_parts, json_parts, load_tokenizer
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Library

CORPUS = [
    "the quick brown fox jumps over the lazy dog 12345",
    "naïve café 🌶 नमस्ते",
    "def f(x):\n    return x\n\n",
    "  a  b",
] * 8
TEXTS = [
    "the quick  fox",
    " 12 345",
    "é🌶 नम \n\n x",
    "<s>the</s>",
    "<tool>x</tool>",
    "a<|end|> b",
    "",
    " ",
    "▁odd",
    "quick<pad>",
]


def byte_level_library() -> Library:
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>", "<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    library.train_from_iterator(CORPUS, trainer)
    library.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("quick  ", normalized=False)])
    library.add_special_tokens([AddedToken("<pad>", lstrip=True, rstrip=True, normalized=False)])
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", library.token_to_id("<s>"))]
    )
    return library


def sentencepiece_library(scheme: str = "first") -> Library:
    library = Library(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>", "<s>", "</s>", *bytes_])
    library.train_from_iterator(CORPUS, trainer)
    content = json.loads(library.to_str())
    content["added_tokens"] = [t for t in content["added_tokens"] if not t["content"].startswith("<0x")]
    return Library.from_str(json.dumps(content))


def folder(library: Library, path: Path, **config: Any) -> ModelFiles:
    library.save(str(path / "tokenizer.json"))
    (path / "config.json").write_text(json.dumps({"vocab_size": library.get_vocab_size() + 3}))
    (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>", **config}))
    return ModelFiles("tiny", "hf", path, ())


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return load_tokenizer(resolve_model("smollm2"))


@pytest.fixture(scope="module")
def reference() -> Any:
    """transformers' tokenizer of the same GGUF, with the digit splitting that transformers drops."""
    from transformers import AutoTokenizer

    path = resolve_model("smollm2").path
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    return tokenizer


# Some bytes (0x04, 0xF1, ...) have no token in SmolLM2's vocabulary.
REPRESENTABLE = st.text(st.characters(max_codepoint=0x2FFFF, exclude_categories=["Cc", "Cs"]), max_size=40)


@settings(max_examples=150, deadline=None)
@given(text=REPRESENTABLE | st.text("ab 1.\n'sé🌶<|im_end|>", max_size=40))
def test_smollm2_ids_equal_transformers(smollm2: Tokenizer, reference: Any, text: str) -> None:
    ids = smollm2.encode(text, parse_special=True)
    assert ids == reference(text, add_special_tokens=False).input_ids
    assert smollm2.decode(ids) == text


def test_a_byte_without_a_token_is_left_out_as_transformers_does(smollm2: Tokenizer, reference: Any) -> None:
    text = "a\x04b \U00040000"
    assert smollm2.encode(text) == reference(text, add_special_tokens=False).input_ids


@settings(max_examples=100, deadline=None)
@given(text=REPRESENTABLE, typed=st.sampled_from(["<|im_end|>", "<|endoftext|>", "<repo_name>"]))
def test_user_text_never_becomes_a_control_token(smollm2: Tokenizer, text: str, typed: str) -> None:
    ids = smollm2.encode(text + typed + text)
    assert not smollm2.special_ids & set(ids)
    assert smollm2.decode(ids) == text + typed + text


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=40), skip=st.booleans())
def test_deltas_of_random_ids_equal_decoding_them_at_once(smollm2: Tokenizer, ids: list[int], skip: bool) -> None:
    detokenizer = Detokenizer(smollm2.token_bytes, smollm2.special_ids if skip else frozenset())
    text = "".join([*(detokenizer.feed(i) for i in ids), detokenizer.flush()])
    assert text == smollm2.decode(ids, skip_special_tokens=skip)


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(17, 49151), max_size=20))
def test_decode_equals_the_library(smollm2: Tokenizer, reference: Any, ids: list[int]) -> None:
    assert smollm2.decode(ids) == reference.backend_tokenizer.decode(ids, skip_special_tokens=False)


def test_smollm2_facts(smollm2: Tokenizer) -> None:
    assert (smollm2.bos_id, smollm2.eos_ids, smollm2.add_bos, smollm2.vocab_size) == (1, (2,), False, 49152)
    assert len(smollm2.special_ids) == 17
    assert len({data for data in smollm2.token_bytes if len(data) == 1}) > 200


@pytest.mark.parametrize("make", [byte_level_library, sentencepiece_library])
@pytest.mark.parametrize("text", TEXTS)
def test_tokenizer_json_with_special_tokens_equals_transformers(tmp_path: Path, make: Any, text: str) -> None:
    from transformers import PreTrainedTokenizerFast

    library = make()
    tokenizer = load_tokenizer(folder(library, tmp_path))
    reference = PreTrainedTokenizerFast(tokenizer_object=Library.from_str(library.to_str()))
    assert tokenizer.encode(text, parse_special=True) == reference(text, add_special_tokens=False).input_ids
    plain = tokenizer.encode(text)
    assert not tokenizer.special_ids & set(plain)
    assert tokenizer.decode(plain) == library.decode(plain)


def test_byte_level_json_facts(tmp_path: Path) -> None:
    library = byte_level_library()
    tokenizer = load_tokenizer(folder(library, tmp_path))
    bos = library.token_to_id("<s>")
    assert (tokenizer.bos_id, tokenizer.add_bos, tokenizer.eos_ids) == (bos, True, (library.token_to_id("</s>"),))
    assert tokenizer.with_bos([9]) == [bos, 9] and tokenizer.with_bos([bos, 9]) == [bos, 9]
    assert tokenizer.vocab_size == library.get_vocab_size() + 3
    assert tokenizer.token_bytes[-1] == b""
    assert "<tool>" in tokenizer.control_texts and "quick  " not in tokenizer.control_texts


def test_generation_config_gives_ends_and_defaults(tmp_path: Path) -> None:
    files = folder(byte_level_library(), tmp_path)
    assert generation_defaults(files) == {}
    content = {"eos_token_id": [1, 2], "temperature": 0.6, "top_p": 0.9, "max_length": 9}
    (tmp_path / "generation_config.json").write_text(json.dumps(content))
    assert load_tokenizer(files).eos_ids == (1, 2)
    assert generation_defaults(files) == {"temperature": 0.6, "top_p": 0.9}


def test_sentencepiece_leading_space_rules(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder(sentencepiece_library("always"), tmp_path))
    for text in ("the fox", "fox  the", "🌶"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    prompt = tokenizer.encode("the")
    rest = tokenizer.encode("fox")
    detokenizer = Detokenizer(tokenizer.token_bytes, prompt_ids=prompt)
    assert "".join(map(detokenizer.feed, rest)) == " fox"


def test_gguf_sentencepiece(tmp_path: Path) -> None:
    library = Library(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>", "<s>", "</s>", *bytes_])
    library.train_from_iterator(CORPUS, trainer)
    pieces = [library.id_to_token(i) for i in range(library.get_vocab_size())]
    types = [2, 3, 3, *[6] * 256] + [1] * (len(pieces) - 259)
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": [0.0 if i < 259 else float(-i) for i in range(len(pieces))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    tokenizer = Tokenizer(gguf_parts(metadata, "tiny"))
    assert tokenizer.add_bos and tokenizer.special_ids == {0, 1, 2}
    for text in ("the quick fox", " lazy  dog", "café 🌶", "</s>"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert 2 not in ids
    assert tokenizer.encode("the</s>", parse_special=True)[-1] == 2
    del metadata["tokenizer.ggml.scores"]
    with pytest.raises(BadArtifact, match="scores"):
        gguf_parts(metadata, "tiny")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "bert"}, "bert"),
        ({"tokenizer.ggml.pre": "martian"}, "martian"),
        ({"tokenizer.ggml.tokens": None}, "tokens is missing"),
        ({"tokenizer.ggml.merges": []}, "merges is missing"),
        ({"tokenizer.ggml.merges": ["zz qq"]}, "do not fit"),
        ({"tokenizer.ggml.token_type": [1, 2]}, "token types"),
    ],
)
def test_a_gguf_that_cannot_be_served_is_refused_with_its_reason(change: dict[str, Any], message: str) -> None:
    metadata = dict(read_gguf_metadata(resolve_model("smollm2").path))
    with pytest.raises(BadArtifact, match=message):
        gguf_parts({**metadata, **change}, "model.gguf")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model": {"type": "Unigram", "vocab": []}}, "Unigram"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "decoder": {"type": "CTC"}}, "CTC"),
        (
            {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["b c"]}, "decoder": {"type": "ByteLevel"}},
            "refuses it",
        ),
        ({}, "None"),
    ],
)
def test_a_tokenizer_json_that_cannot_be_served_is_refused(content: dict[str, Any], message: str) -> None:
    with pytest.raises(BadArtifact, match=message):
        json_parts(content, {}, {}, "tokenizer.json")
