"""Beam search through core and engine against transformers' `generate`, token for token, whatever happens on the way."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from octavo.artifacts import resolve_model
from octavo_gpuworker import reporter
from octavo_gpuworker.backends.torch_backend import TorchBackend
from octavo_gpuworker.device_sampler import draw_on_device
from octavo_gpuworker.engine import Engine
from octavo_gpuworker.kernels.sampling_ops import sample_torch
from octavo_gpuworker.model.load import load_model
from octavo_gpuworker.model.pool import KvPool
from octavo_gpuworker.pipeline import PipelinedEngine

from tests.contracts.beam_cell import BeamCell, Told
from tests.gpuworker.model.conftest import hf_model, write_tokenizer

PROMPTS = ([5, 80, 17, 33, 5, 5, 120], [90, 4, 61, 8, 8, 19, 77, 150, 3, 44, 21], [7, 7])
ENGINES = pytest.mark.parametrize("kind", [Engine, PipelinedEngine])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A random transformers model, and the decoder that reads its checkpoint, both float32."""
    torch.set_num_threads(1)
    model = hf_model("Llama")
    folder = Path(tmp_path_factory.mktemp("beams")) / "llama"
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model, load_model(resolve_model(str(folder)), dtype="float32", kernels="torch", block_tokens=4)


@pytest.fixture(autouse=True)
def merge_without_limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(reporter, "MERGE_NS", 10**12)
    yield


def cell_of(pair: tuple[Any, Any], kind: type[Engine] = Engine, num_blocks: int = 300, **options: Any) -> BeamCell:
    decoder = pair[1]
    pool = KvPool(decoder.config, num_blocks, 4, torch.float32)
    pool.tensor[1:].fill_(float("nan"))
    draw = partial(draw_on_device, sample_torch) if kind is PipelinedEngine else None
    return BeamCell(TorchBackend(decoder, pool, draw=draw), kind, num_blocks=num_blocks, **options)


def reference(model: Any, prompt: list[int], width: int, max_tokens: int, **options: Any) -> list[list[int]]:
    """The hypotheses of `generate`, best first, each up to its end token."""
    ends = options.pop("ends", ())
    made = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        num_beams=width,
        num_return_sequences=width,
        do_sample=False,
        max_new_tokens=max_tokens,
        eos_token_id=list(ends) or [VOCAB_END],
        pad_token_id=0,
        **options,
    )
    return [_cut(row[len(prompt) :].tolist(), ends) for row in made]


VOCAB_END = 2**31 - 2  # of no token


def _cut(tokens: list[int], ends: tuple[int, ...]) -> list[int]:
    at = next((at for at, token in enumerate(tokens) if token in ends), len(tokens) - 1)
    return tokens[: at + 1]


def ours(told: Told) -> list[list[int]]:
    assert told.outcome == "finished"
    scores = [told.ends[index].score for index in sorted(told.ends)]
    assert scores == sorted(scores, reverse=True)
    return [told.tokens[index] for index in sorted(told.tokens)]


def frequent(model: Any, prompt: list[int], width: int) -> tuple[int, ...]:
    """Tokens that good beams say soon, to be end tokens."""
    plain = reference(model, prompt, width, 8)
    return tuple({beam[at] for beam in plain[:2] for at in (3, 5)} - {plain[0][0]})


@ENGINES
@pytest.mark.parametrize("width", [1, 2, 5, 10])
def test_beams_are_those_of_transformers(pair: tuple[Any, Any], kind: type[Engine], width: int) -> None:
    cell = cell_of(pair, kind)
    lengths = (1, 18)
    told = {
        (at, most): cell.submit(f"{at}/{most}", prompt, most, width=width)
        for at, prompt in enumerate(PROMPTS)
        for most in lengths
    }
    cell.run()
    for (at, most), got in told.items():
        assert ours(got) == reference(pair[0], PROMPTS[at], width, most), (at, most)
        assert {end.reason for end in got.ends.values()} == {"length"}


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0, -0.5])
def test_end_tokens_end_hypotheses_as_there(pair: tuple[Any, Any], early: bool, penalty: float) -> None:
    stopped = 0
    cell = cell_of(pair)
    cases = []
    for at, prompt in enumerate(PROMPTS):
        for width in (3,) if at else (2, 4):
            ends = frequent(pair[0], prompt, width)
            told = cell.submit(f"{at}/{width}", prompt, 16, width=width, penalty=penalty, early=early, stop_ids=ends)
            cases.append((prompt, width, ends, told))
    cell.run()
    for prompt, width, ends, told in cases:
        options = {"ends": ends, "length_penalty": penalty, "early_stopping": early}
        assert ours(told) == reference(pair[0], prompt, width, 16, **options)
        stopped += sum(end.reason == "stop" and end.stop_token in ends for end in told.ends.values())
    assert stopped > 2 or penalty > 1, "the end tokens ended next to nothing"


@ENGINES
def test_beside_each_other_and_ordinary_requests(pair: tuple[Any, Any], kind: type[Engine]) -> None:
    """One step holds beams of two searches, prefills and greedy requests; nobody's answer knows of the others."""
    cell = cell_of(pair, kind, budget=5)
    plain = [cell.submit("plain", PROMPTS[1], 30)]
    first = cell.submit("first", PROMPTS[0], 20, width=4)
    for _ in range(6):
        cell.step()
    second = cell.submit("second", PROMPTS[1], 12, width=3, shown=1)
    plain.append(cell.submit("more", PROMPTS[2], 30))
    cell.run()
    assert ours(first) == reference(pair[0], PROMPTS[0], 4, 20)
    assert ours(second) == reference(pair[0], PROMPTS[1], 3, 12)[:1]
    for told, prompt in zip(plain, PROMPTS[1:], strict=True):
        assert told.best() == reference(pair[0], prompt, 1, 30)[0]


@ENGINES
def test_a_preempted_search_comes_to_the_same_beams(pair: tuple[Any, Any], kind: type[Engine]) -> None:
    """Its beams leave as a group, compute all that they have said again behind what is common, and go on."""
    cell = cell_of(pair, kind, num_blocks=30, budget=7)
    long = cell.submit("long", PROMPTS[1], 60)
    search = cell.submit("search", PROMPTS[0], 24, width=4)
    cell.run()
    counters = cell.core.cell.counters
    assert counters["preemptions"] >= 4 and counters["beam_steps"] == 24
    assert ours(search) == reference(pair[0], PROMPTS[0], 4, 24)
    assert long.best() == reference(pair[0], PROMPTS[1], 1, 60)[0]


@ENGINES
def test_a_lost_worker_is_made_good(pair: tuple[Any, Any], kind: type[Engine]) -> None:
    cell = cell_of(pair, kind)
    search = cell.submit("search", PROMPTS[0], 24, width=4)
    for _ in range(11):
        cell.step()
    assert cell.core.cell.counters["beam_steps"] > 3
    cell.join()
    cell.run()
    assert ours(search) == reference(pair[0], PROMPTS[0], 4, 24) and cell.core.cell.counters["beam_steps"] == 24


@ENGINES
def test_a_cancel_gives_every_block_back(pair: tuple[Any, Any], kind: type[Engine]) -> None:
    cell = cell_of(pair, kind)
    search = cell.submit("search", PROMPTS[0], 40, width=5)
    for _ in range(9):
        cell.step()
    cell.cancel("search")
    cell.run()
    assert search.outcome == "cancelled" and not search.tokens


def test_what_is_told_of_a_beam(pair: tuple[Any, Any]) -> None:
    """Its log-probabilities are those of the raw logits; their sum, divided by its length, is its score."""
    cell = cell_of(pair)
    told = cell.submit("search", PROMPTS[0], 8, width=3, shown=2, logprobs=2)
    cell.run()
    for index in (0, 1):
        tokens, items, end = told.tokens[index], told.logprobs[index], told.ends[index]
        assert [item.token for item in items] == tokens and all(len(item.top_logprobs) == 2 for item in items)
        with torch.inference_mode():
            logits = pair[0](torch.tensor([PROMPTS[0] + tokens])).logits[0].log_softmax(-1)
        for place, (token, item) in enumerate(zip(tokens, items, strict=True)):
            want = logits[len(PROMPTS[0]) - 1 + place]
            assert item.logprob == pytest.approx(want[token].item(), abs=1e-3)
            assert list(item.top_logprobs) == pytest.approx(want.topk(2).values.tolist(), abs=1e-3)
        assert end.cumulative_logprob == pytest.approx(math.fsum(item.logprob for item in items), abs=1e-4)
        assert end.score == pytest.approx(end.cumulative_logprob / 8)
    assert set(told.tokens) == {0, 1}
