"""Loads a `Tokenizer` from model files: a GGUF's tokenizer.ggml.* fields, or the tokenizer.json of a folder.

BadArtifact, one line with what to do, for whatever cannot be served exactly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import tokenizers
from octavo.artifacts import BadArtifact, ModelFiles, read_gguf_metadata, read_json
from tokenizers import decoders, models, normalizers

from octavo_gateway.byte_map import SPACE_PIECE, byte_level_alphabet, byte_level_bytes, sentencepiece_bytes
from octavo_gateway.pretokenizers import BY_NAME
from octavo_gateway.tokenizer import AddedPiece, Tokenizer, TokenizerParts

GGUF_UNKNOWN: Final = 2
GGUF_CONTROL: Final = 3
GGUF_USER_DEFINED: Final = 4
_LOOKS_STRUCTURAL: Final = re.compile(r"<[^\s<>]+>|\[/?[A-Z_]+\]")
"""An added token like <tool_call> is structure even where its file does not call it special."""


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """The tokenizer of a model. BadArtifact when it is missing, damaged or of a kind that is not built."""
    if files.kind == "gguf":
        return Tokenizer(gguf_parts(read_gguf_metadata(files.path), str(files.path)))
    config = files.path / "tokenizer_config.json"
    generation = _generation_config(files)
    model_config = read_json(files.config_json)
    if generation.get("eos_token_id") is not None:
        model_config = {**model_config, "eos_token_id": generation["eos_token_id"]}
    return Tokenizer(
        json_parts(
            read_json(files.tokenizer_json),
            read_json(config) if config.is_file() else {},
            model_config,
            str(files.tokenizer_json),
        )
    )


def _generation_config(files: ModelFiles) -> dict[str, Any]:
    path = files.path / "generation_config.json"
    return read_json(path) if files.kind == "hf" and path.is_file() else {}


def generation_defaults(files: ModelFiles) -> dict[str, Any]:
    """The sampling values of generation_config.json that a request's absent fields take; empty for a GGUF."""
    config = _generation_config(files)
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    return {name: config[name] for name in names if isinstance(config.get(name), (int, float))}


def gguf_parts(metadata: Mapping[str, Any], name: str) -> TokenizerParts:
    """Parts from the tokenizer.ggml.* fields of a GGUF; `name` is for errors."""
    kind = metadata.get("tokenizer.ggml.model")
    pieces = _string_list(metadata, "tokenizer.ggml.tokens", name)
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(pieces)
    if len(types) != len(pieces):
        raise BadArtifact(f"{name}: {len(types)} token types for {len(pieces)} tokens; convert the model again")
    controls = [i for i, kind_ in enumerate(types) if kind_ in (GGUF_CONTROL, GGUF_USER_DEFINED)]
    structural = [i for i in controls if types[i] == GGUF_CONTROL or _LOOKS_STRUCTURAL.fullmatch(pieces[i])]
    if kind == "gpt2":
        plain = _gguf_byte_level(metadata, pieces, frozenset(structural), name)
        alphabet = byte_level_alphabet()
        literal = set(controls)
        token_bytes = [
            piece.encode() if i in literal else byte_level_bytes(piece, alphabet) for i, piece in enumerate(pieces)
        ]
    elif kind == "llama":
        plain = _gguf_sentencepiece(metadata, pieces, name)
        token_bytes = [sentencepiece_bytes(piece) for piece in pieces]
    else:
        raise BadArtifact(
            f"{name}: tokenizer.ggml.model {kind!r} is not built; convert to a model with a gpt2 or llama tokenizer"
        )
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    eos = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot")]
    return TokenizerParts(
        first=plain,
        inner=plain,
        pieces=pieces,
        token_bytes=token_bytes,
        controls=[AddedPiece(i, pieces[i]) for i in structural if pieces[i]],
        literals=[AddedPiece(i, pieces[i]) for i in set(controls) - set(structural) if pieces[i]],
        special_ids=frozenset(i for i, kind_ in enumerate(types) if kind_ in (GGUF_UNKNOWN, GGUF_CONTROL)),
        bos_id=_id_or_none(bos, len(pieces)),
        eos_ids=tuple(dict.fromkeys(i for i in (_id_or_none(e, len(pieces)) for e in eos) if i is not None)),
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", kind == "llama")),
        strips_leading_space=kind == "llama" and bool(metadata.get("tokenizer.ggml.add_space_prefix", True)),
    )


def _string_list(metadata: Mapping[str, Any], key: str, name: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not value:
        raise BadArtifact(f"{name}: {key} is missing; convert the model again with its tokenizer")
    return value


def _id_or_none(value: Any, vocab_size: int) -> int | None:
    return value if isinstance(value, int) and 0 <= value < vocab_size else None


def _gguf_byte_level(
    metadata: Mapping[str, Any], pieces: list[str], structural: frozenset[int], name: str
) -> tokenizers.Tokenizer:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if pre not in BY_NAME:
        known = ", ".join(sorted(BY_NAME))
        raise BadArtifact(f"{name}: pre-tokenizer {pre!r} is not built (built: {known}); serve the model from a folder")
    how = BY_NAME[pre]()
    merges = []
    for merge in _string_list(metadata, "tokenizer.ggml.merges", name):
        left, _, right = merge.partition(" ")
        merges.append((left, right))
    # Control tokens stay out of the vocabulary, so that no plain text can become one.
    vocab = {piece: i for i, piece in enumerate(pieces) if i not in structural}
    try:
        model = models.BPE(vocab=vocab, merges=merges, ignore_merges=how.ignore_merges)
    except Exception as error:
        raise BadArtifact(f"{name}: vocabulary and merges do not fit ({error}); convert the model again") from error
    plain = tokenizers.Tokenizer(model)
    plain.pre_tokenizer = how.pre_tokenizer
    if how.normalizer is not None:
        plain.normalizer = how.normalizer
    plain.decoder = decoders.ByteLevel()
    return plain


def _gguf_sentencepiece(metadata: Mapping[str, Any], pieces: list[str], name: str) -> tokenizers.Tokenizer:
    """SentencePiece BPE: a merge for every pair of pieces whose union is a piece, best score first."""
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(pieces):
        raise BadArtifact(f"{name}: tokenizer.ggml.scores is missing or of another length; convert the model again")
    vocab = {piece: i for i, piece in enumerate(pieces)}
    ranked: list[tuple[float, int, int, str, str]] = []
    for piece, i in vocab.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab:
                ranked.append((-scores[i], vocab[left], vocab[right], left, right))
    ranked.sort()
    unknown = _id_or_none(metadata.get("tokenizer.ggml.unknown_token_id", 0), len(pieces))
    model = models.BPE(
        vocab=vocab,
        merges=[(left, right) for *_, left, right in ranked],
        unk_token=pieces[unknown] if unknown is not None else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    plain = tokenizers.Tokenizer(model)
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE_PIECE)]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend(SPACE_PIECE))
    plain.normalizer = normalizers.Sequence(steps)
    return plain


def json_parts(
    content: Mapping[str, Any], config: Mapping[str, Any], model_config: Mapping[str, Any], name: str
) -> TokenizerParts:
    """Parts from a tokenizer.json, tokenizer_config.json and config.json; `name` is for errors."""
    model = content.get("model") or {}
    if model.get("type", "BPE") != "BPE" or not isinstance(model.get("vocab"), dict):
        raise BadArtifact(f"{name}: tokenizer model {model.get('type')!r} is not built; only BPE is served")
    added = [token for token in content.get("added_tokens") or [] if token.get("content")]
    structural = [token for token in added if token.get("special") or _LOOKS_STRUCTURAL.fullmatch(token["content"])]
    kind = _decoder_kind(content.get("decoder"), name)
    first = _plain_from_json(content, structural, name)
    inner = first
    if _prepends_only_first(content.get("pre_tokenizer")):
        inner = _plain_from_json(
            {**content, "pre_tokenizer": _never_prepends(content["pre_tokenizer"])}, structural, name
        )
    sized = max(
        [*model["vocab"].values(), *(token["id"] for token in added), int(model_config.get("vocab_size", 0)) - 1]
    )
    pieces = [""] * (sized + 1)
    for piece, i in model["vocab"].items():
        pieces[i] = piece
    alphabet = byte_level_alphabet()
    token_bytes = [
        byte_level_bytes(piece, alphabet) if kind == "byte-level" else sentencepiece_bytes(piece) for piece in pieces
    ]
    for token in added:
        pieces[token["id"]] = token["content"]
        token_bytes[token["id"]] = token["content"].encode("utf-8", "replace")
    by_text = {token["content"]: token["id"] for token in added} | {p: i for i, p in enumerate(pieces) if p}
    bos_text = _token_text(config.get("bos_token"))
    bos_id = by_text.get(bos_text) if bos_text else _id_or_none(model_config.get("bos_token_id"), len(pieces))
    return TokenizerParts(
        first=first,
        inner=inner,
        pieces=pieces,
        token_bytes=token_bytes,
        controls=[_added_piece(token) for token in structural],
        literals=[_added_piece(token) for token in added if token not in structural],
        special_ids=frozenset(token["id"] for token in added if token.get("special")),
        bos_id=bos_id,
        eos_ids=_eos_ids(config, model_config, by_text, len(pieces)),
        add_bos=_adds_bos(content, config, bos_id),
        strips_leading_space=kind == "sentencepiece-strip",
    )


def _added_piece(token: Mapping[str, Any]) -> AddedPiece:
    return AddedPiece(token["id"], token["content"], bool(token.get("lstrip")), bool(token.get("rstrip")))


def _plain_from_json(content: Mapping[str, Any], structural: list[Any], name: str) -> tokenizers.Tokenizer:
    """The tokenizer without its added tokens: they are matched by `Tokenizer`, and no text becomes a structural one."""
    left_out = {token["content"] for token in structural}
    plain = {**content, "added_tokens": [], "truncation": None, "padding": None, "post_processor": None}
    if content["model"].get("ignore_merges"):
        unknown = content["model"].get("unk_token")
        vocab = {p: i for p, i in content["model"]["vocab"].items() if p not in left_out or p == unknown}
        plain["model"] = {**content["model"], "vocab": vocab}
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(plain))
    except Exception as error:
        raise BadArtifact(f"{name}: the tokenizers library refuses it ({error}); copy the folder again") from error


def _steps(node: Any) -> list[Any]:
    if not node:
        return []
    if node.get("type") == "Sequence":
        return list(node.get("pretokenizers") or node.get("decoders") or node.get("processors") or [])
    return [node]


def _prepends_only_first(pre_tokenizer: Any) -> bool:
    return any(
        step.get("type") == "Metaspace" and step.get("prepend_scheme") == "first" for step in _steps(pre_tokenizer)
    )


def _never_prepends(pre_tokenizer: Any) -> Any:
    steps = [
        {**step, "prepend_scheme": "never"} if step.get("type") == "Metaspace" else step
        for step in _steps(pre_tokenizer)
    ]
    return {"type": "Sequence", "pretokenizers": steps}


def _decoder_kind(decoder: Any, name: str) -> str:
    kinds = [step.get("type") for step in _steps(decoder)]
    if kinds == ["ByteLevel"]:
        return "byte-level"
    if "ByteFallback" in kinds or kinds == ["Metaspace"]:
        return "sentencepiece-strip" if "Strip" in kinds or kinds == ["Metaspace"] else "sentencepiece"
    raise BadArtifact(f"{name}: decoder {kinds} is not built; byte-level BPE and SentencePiece BPE are")


def _token_text(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


def _eos_ids(
    config: Mapping[str, Any], model_config: Mapping[str, Any], by_text: Mapping[str, int], vocab_size: int
) -> tuple[int, ...]:
    text = _token_text(config.get("eos_token"))
    listed = model_config.get("eos_token_id")
    found = [by_text.get(text)] if text else []
    found += listed if isinstance(listed, list) else [listed]
    return tuple(dict.fromkeys(i for i in (_id_or_none(e, vocab_size) for e in found) if i is not None))


def _adds_bos(content: Mapping[str, Any], config: Mapping[str, Any], bos_id: int | None) -> bool:
    """Whether the post-processor puts BOS in front of a single text."""
    if bos_id is None:
        return False
    if "add_bos_token" in config and config["add_bos_token"] is not None:
        return bool(config["add_bos_token"])
    for step in _steps(content.get("post_processor")):
        single = step.get("single") or []
        for special, following in pairwise(single):
            name = (special.get("SpecialToken") or {}).get("id")
            ids = ((step.get("special_tokens") or {}).get(name) or {}).get("ids")
            if "Sequence" in following and ids == [bos_id]:
                return True
    return False
