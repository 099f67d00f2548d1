"""Pre-tokenizers by their GGUF name (`tokenizer.ggml.pre`): how text is cut before byte-pair merges.

Patterns are those of llama.cpp's `llm_tokenizer_bpe`, written in the form of the models' own tokenizer.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

_LLAMA3: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2: Final = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True, slots=True)
class PreTokenization:
    pre_tokenizer: PreTokenizer
    normalizer: Normalizer | None = None
    ignore_merges: bool = False  # a whole pre-token that is in the vocabulary is taken as it is


def _gpt2() -> PreTokenization:
    return PreTokenization(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))


def _single_digits() -> PreTokenization:
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return PreTokenization(pre_tokenizers.Sequence([digits, byte_level]))


def _by_pattern(pattern: str) -> PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _llama3() -> PreTokenization:
    return PreTokenization(_by_pattern(_LLAMA3), ignore_merges=True)


def _qwen2() -> PreTokenization:
    return PreTokenization(_by_pattern(_QWEN2), normalizer=normalizers.NFC())


BY_NAME: Final = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _single_digits,
    "starcoder": _single_digits,
    "refact": _single_digits,
    "command-r": _single_digits,
    "codeshell": _single_digits,
    "llama-bpe": _llama3,
    "llama3": _llama3,
    "llama-v3": _llama3,
    "qwen2": _qwen2,
}
