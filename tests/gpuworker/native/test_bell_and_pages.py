"""What a native model does beside its steps: it rings when one has begun, and has the system back the pool with memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from octavo_gpuworker.native.model import PAGE, NativeModel, StepError

from .conftest import TINY, Checkpoint, MakeModel, Step, fill, native

STEP = Step([[1, 2, 3]], [3], 8)


@pytest.fixture
def bell() -> Iterator[int]:
    descriptor = os.eventfd(0, os.EFD_NONBLOCK)
    yield descriptor
    os.close(descriptor)


def rings(descriptor: int) -> int:
    try:
        return os.eventfd_read(descriptor)
    except BlockingIOError:
        return 0


@pytest.mark.parametrize("threads", [1, 2])
def test_a_step_rings_once_and_only_when_it_was_asked_to(
    threads: int, bell: int, checkpoints: Callable[[str], Checkpoint], make_model: MakeModel
) -> None:
    model = make_model(checkpoints("llama"), STEP, threads=threads)
    expected = native(model, STEP)
    assert rings(bell) == 0
    model.ring_at_start(bell)
    assert np.array_equal(native(model, STEP), expected)
    assert rings(bell) == 1
    native(model, STEP)
    assert rings(bell) == 0


def test_a_step_that_is_refused_rings_too(
    bell: int, checkpoints: Callable[[str], Checkpoint], make_model: MakeModel
) -> None:
    model = make_model(checkpoints("llama"), STEP)
    arrays = model.arrays()
    fill(arrays, STEP, [3], [3])
    arrays.token_ids[0] = TINY.vocab_size
    model.ring_at_start(bell)
    with pytest.raises(StepError, match="token_ids"):
        model.step(arrays, tokens=3, sequences=1, rows=0)
    assert rings(bell) == 1


def _backed(model: NativeModel) -> float:
    """Which part of the pool's pages memory backs (mincore)."""
    pages = -(-model.pool.nbytes // PAGE)
    found = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert not libc.mincore(ctypes.c_void_p(model.pool.ctypes.data), ctypes.c_size_t(model.pool.nbytes), found)
    return sum(entry & 1 for entry in found) / pages


def test_touched_blocks_are_backed_and_keep_their_bytes(
    checkpoints: Callable[[str], Checkpoint], make_model: MakeModel
) -> None:
    model = make_model(checkpoints("llama"), STEP)
    fresh = np.frombuffer(
        mmap.mmap(-1, 20_000 * model.pool.shape[1]), np.uint8
    )  # unlike a heap's memory, never written to
    model.pool = fresh.reshape(20_000, -1)
    model.pool[7] = 123
    assert _backed(model) < 0.4
    model.touch(0, 10_000)
    assert 0.5 <= _backed(model) < 0.9
    model.touch(10_000, 10_000)
    assert _backed(model) == 1.0
    assert (model.pool[7] == 123).all()
    assert not model.pool[8:].any()


def test_touching_leaves_what_others_write_meanwhile(
    checkpoints: Callable[[str], Checkpoint], make_model: MakeModel
) -> None:
    """The write that backs a page is one instruction: one that read and wrote in two would put old bytes back."""
    model = make_model(checkpoints("llama"), STEP)
    stop = threading.Event()

    def touching() -> None:
        while not stop.is_set():
            model.touch(0, len(model.pool))

    thread = threading.Thread(target=touching)
    thread.start()
    try:
        for round_ in range(2_000):
            model.pool[:, ::64] = round_ % 251
            assert (model.pool[:, ::64] == round_ % 251).all()
    finally:
        stop.set()
        thread.join()
