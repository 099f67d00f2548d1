"""SmolLM2 itself against transformers, greedy, in float32: 20 prompts, 48 tokens each, the same ids.

transformers loads the same GGUF with its own reader. A divergence is allowed only where the reference's best two logits
tie within TIE, and the test measures that.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from octavo.artifacts import read_gguf_metadata, resolve_model
from octavo_gpuworker.model.load import load_model

NEW_TOKENS = 48
TIE = 1e-3
QUESTIONS = (
    "What is the capital of France?",
    "Explain photosynthesis in one sentence.",
    "Write a haiku about the sea.",
    "List three prime numbers.",
    "Who wrote Hamlet?",
    "Translate 'good morning' to Spanish.",
    "What is 12 times 12?",
    "Name the planets of the solar system.",
    "Why is the sky blue?",
    "Give me a recipe for pancakes.",
    "def fibonacci(n):",
    "The quick brown fox",
    "Once upon a time there was a small lighthouse keeper who",
    "import numpy as np\n\n",
    "In 1969, humans first",
    "SELECT name FROM users WHERE",
    "Dear Sir or Madam,\n\nI am writing to",
    "1, 1, 2, 3, 5, 8,",
    "La capitale de la France est",
    "Hello",
)
CHAT = QUESTIONS[:10]


def prompts_of(path) -> list[list[int]]:
    """Ids by the GGUF's own vocabulary and merges; the first ten as chat turns."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    header = read_gguf_metadata(path)
    tokens, merges = header["tokenizer.ggml.tokens"], header["tokenizer.ggml.merges"]
    assert isinstance(tokens, list)
    assert isinstance(merges, list)
    bpe = models.BPE({token: i for i, token in enumerate(tokens)}, [tuple(merge.split(" ", 1)) for merge in merges])
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|im_start|>", "<|im_end|>")])
    turns = [f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n" if q in CHAT else q for q in QUESTIONS]
    return [tokenizer.encode(turn).ids for turn in turns]


def reference_model(path) -> Any:
    """What from_pretrained(gguf_file=...) builds, by the same reader, without the accelerate package that it asks for."""
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = transformers.LlamaConfig(**load_gguf_checkpoint(path)["config"])
    model = transformers.LlamaForCausalLM(config)
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert (missing, unexpected) in (([], []), (["lm_head.weight"], []))
    model.tie_weights()
    return model.float().eval()


@torch.inference_mode()
def theirs(path, prompts: list[list[int]]) -> tuple[list[list[int]], list[list[float]]]:
    """Greedy ids of transformers, left-padded in one batch, and the gap of the best two logits at each step."""
    import transformers

    model = reference_model(path)
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    chosen, gaps, cache = [], [], transformers.DynamicCache()
    for _ in range(NEW_TOKENS):
        output = model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1)
        best = output.logits[:, -1].topk(2)
        ids, positions = best.indices[:, :1], positions[:, -1:] + 1
        mask = torch.cat((mask, torch.ones_like(ids)), dim=1)
        chosen.append(ids[:, 0])
        gaps.append(best.values[:, 0] - best.values[:, 1])
    return torch.stack(chosen, 1).tolist(), torch.stack(gaps, 1).tolist()


def ours(path, prompts: list[list[int]], make_runner) -> list[list[int]]:
    """Greedy ids of the decoder: all prompts in one mixed step, then all decodes together."""
    runner = make_runner(load_model(resolve_model(str(path)), dtype="float32"), num_blocks=160)
    seqs = [runner.add(prompt) for prompt in prompts]
    counts = [len(prompt) for prompt in prompts]
    for _ in range(NEW_TOKENS):
        ends = torch.tensor(counts).cumsum(0).sub(1).tolist()
        logits = runner.decoder.forward(runner.inputs(list(zip(seqs, counts, strict=True)), sample=ends), runner.pool)
        for seq, count, token in zip(seqs, counts, logits.argmax(1).tolist(), strict=True):
            seq.computed += count
            seq.ids.append(token)
        counts = [1] * len(seqs)
    return [seq.ids[len(prompt) :] for seq, prompt in zip(seqs, prompts, strict=True)]


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_greedy_ids_are_those_of_transformers(monkeypatch, make_runner) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = resolve_model("smollm2").path
    prompts = prompts_of(path)
    assert len(prompts) == 20
    expected, gaps = theirs(path, prompts)
    found = ours(path, prompts, make_runner)
    assert len({tuple(ids) for ids in expected}) == len(prompts), "twenty different answers"
    for question, mine, reference, gap in zip(QUESTIONS, found, expected, gaps, strict=True):
        assert len(mine) == NEW_TOKENS
        first = next((i for i in range(NEW_TOKENS) if mine[i] != reference[i]), None)
        assert first is None or gap[first] < TIE, (
            f"{question!r} diverges at token {first}, where the logits differ by {gap[first]}"
        )
