"""engine.deterministic: the same bits in any batch, however a prompt is chunked, and after a preemption by recompute."""

from __future__ import annotations

import numpy as np
import pytest
from octavo.manifest import Engine as EngineSettings
from octavo.manifest import Manifest, ManifestError
from octavo.step import StepBudget
from octavo_gpuworker.backends.native_backend import NativeBackend
from octavo_gpuworker.backends.opening import open_backend
from octavo_gpuworker.engine import Engine
from octavo_gpuworker.orders import AdmitOrder, Sampling

from tests.gpuworker.backends.conftest import native_of

GREEDY = Sampling(temperature=0.0, logprobs=2)
SAMPLED = Sampling(temperature=0.9, top_p=0.95, logprobs=2)
NEW = 24


@pytest.fixture(scope="module")
def exact() -> NativeBackend:
    return native_of(deterministic=True)


def prompt_of(length: int, seed: int = 1) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(1000, 40_000, length)]


class Served:
    """One engine; what every sequence said, with its logprobs as they came."""

    def __init__(self, backend: NativeBackend, budget: int) -> None:
        self.engine = Engine(backend, budget=StepBudget(budget, budget, 64), start_transfer=lambda order: None)
        self.engine.reset()
        self.said: dict[int, list[tuple[int, float, tuple[float, ...]]]] = {}
        self.blocks: dict[int, list[int]] = {}
        self._next_block = 1

    def admit(self, seq: int, tokens: list[int], prompt_len: int, most: int, sampling: Sampling) -> None:
        count = -(-most // self.engine.pool.block_tokens)
        self.blocks[seq] = list(range(self._next_block, self._next_block + count))
        self._next_block += count
        self.engine.post(
            AdmitOrder(seq, seq, list(tokens), prompt_len, 0, self.blocks[seq], sampling, 7 + seq % 10, most)
        )

    def run(self) -> None:
        self.engine.apply_inbox()
        while self.engine.busy:
            self.engine.run_once()
            for report in self.engine.take_reports(force=True):
                for slot, items in zip(report.slots, report.logprobs, strict=True):
                    said = self.said.setdefault(slot, [])
                    said += [(item.token, item.logprob, tuple(item.top_logprobs)) for item in items]

    def kv(self, seq: int, positions: int) -> list[bytes]:
        """Bytes of the full blocks below `positions`."""
        full = positions // self.engine.pool.block_tokens
        return [bytes(self.engine.pool.read_block(block)) for block in self.blocks[seq][:full]]


def alone(backend: NativeBackend, prompt: list[int], sampling: Sampling, budget: int = 256) -> Served:
    served = Served(backend, budget)
    served.admit(1, prompt, len(prompt), len(prompt) + NEW, sampling)
    served.run()
    return served


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("length", [5, 70, 600])
def test_neither_batch_nor_chunks_change_a_bit(exact: NativeBackend, length: int, sampling: Sampling) -> None:
    """600 tokens: past the span of keys that one unit of attention takes."""
    prompt = prompt_of(length)
    wanted = alone(exact, prompt, sampling)
    kv = wanted.kv(1, length + NEW - 1)  # every engine here has the same pool
    crowd = Served(exact, 37)
    for other in range(2, 7):
        crowd.admit(other, prompt_of(13 * other, other), 13 * other, 13 * other + NEW, GREEDY)
    crowd.admit(1, prompt, len(prompt), len(prompt) + NEW, sampling)
    crowd.run()
    assert crowd.said[1] == wanted.said[1]
    assert crowd.kv(1, length + NEW - 1) == kv


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("after", [1, 9, 20])
def test_a_recompute_goes_on_bit_for_bit(exact: NativeBackend, after: int, sampling: Sampling) -> None:
    """What a preemption does: prompt and output so far are prefilled again, then decoding goes on."""
    prompt = prompt_of(100)
    wanted = alone(exact, prompt, sampling)
    kv = wanted.kv(1, 100 + NEW - 1)
    again = Served(exact, 64)
    had = [token for token, _logprob, _top in wanted.said[1][:after]]
    again.admit(1, prompt + had, len(prompt), len(prompt) + NEW, sampling)
    again.run()
    assert again.said[1] == wanted.said[1][after:]
    assert again.kv(1, 100 + NEW - 1) == kv


def test_without_it_the_bits_do_depend_on_the_batch(native: NativeBackend) -> None:
    """Else the tests above would show nothing."""
    prompt = prompt_of(100)
    wanted = alone(native, prompt, GREEDY)
    again = Served(native, 64)
    again.admit(1, [*prompt, wanted.said[1][0][0]], 100, 100 + NEW, GREEDY)
    again.run()
    assert [item[1] for item in again.said[1]] != [item[1] for item in wanted.said[1][1:]]


@pytest.mark.parametrize("kernels", ["torch", "triton"])
def test_other_kernels_are_refused_in_words(kernels: str) -> None:
    settings = EngineSettings(device="cpu", kernels=kernels, deterministic=True)  # type: ignore[arg-type]
    with pytest.raises(
        ManifestError, match=f"engine.deterministic needs the native kernels, and engine.kernels is {kernels}"
    ):
        open_backend(Manifest(engine=settings), lambda done, total: None)


def test_settings_that_native_kernels_do_not_take_are_refused() -> None:
    settings = EngineSettings(device="cpu", dtype="float16", deterministic=True)
    with pytest.raises(ManifestError, match="deterministic needs the native kernels, but"):
        open_backend(Manifest(engine=settings), lambda done, total: None)


def test_native_kernels_that_are_insisted_on_and_do_not_fit_name_the_setting_to_change() -> None:
    settings = EngineSettings(device="cpu", dtype="float32", kernels="native")
    with pytest.raises(ManifestError, match=r"engine.dtype is float32.*; set engine.kernels to auto") as caught:
        open_backend(Manifest(engine=settings), lambda done, total: None)
    assert caught.value.field == "engine.kernels"
