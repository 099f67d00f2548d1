"""The native path through the real worker process, where torch, triton and transformers cannot be imported."""

from __future__ import annotations

import asyncio
import sys
import textwrap

import pytest
from octavo.errors import OctavoError
from octavo.packing import pack_u32, unpack_u32
from octavo.v1 import worker_pb2 as pb
from octavo_gpuworker.backends.native_open import NativeRefused, open_native
from octavo_gpuworker.native.library import NativeUnavailable, load_library

from tests.gpuworker.scripted import scripted_scheduler

PROMPT = [1, 4093, 253, 1343, 314, 260, 2240]
CODE = """
    import sys
    for name in ("torch", "triton", "transformers"):
        sys.modules[name] = None
    from octavo_gpuworker.__main__ import main
    sys.argv = ["gpuworker", *{flags!r}]
    sys.exit(main())
"""


def native_missing() -> str:
    try:
        load_library()
    except NativeUnavailable as error:
        return str(error)
    return ""


@pytest.mark.timeout(120)
async def test_it_serves_without_torch_and_draws_what_it_drew_before(tmp_path) -> None:
    if reason := native_missing():
        pytest.skip(reason)
    async with scripted_scheduler() as (scheduler, address):
        flags = [
            "--gpuworker.scheduler", address, "--gpuworker.worker_id", "w1", "--engine.kernels", "native",
            "--engine.kv_num_blocks", "64", "--deployment.run_dir", str(tmp_path), "--engine.max_model_len", "512",
        ]  # fmt: skip
        code = textwrap.dedent(CODE).format(flags=flags)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        assert process.stderr is not None
        said = asyncio.create_task(process.stderr.read())
        try:
            stream = await asyncio.wait_for(scheduler.streams.get(), 90)
            hello = await stream.join(7)
            assert hello.vocab_size == 49152 and hello.num_blocks == 64
            answers = [await tokens_of(stream, seq) for seq in (1, 2)]
            assert len(answers[0]) == 8 and answers[0] == answers[1], "the same seed draws the same tokens"
            scheduler.refuse = "over"
            stream.over.set()
        finally:
            process.terminate()
            code = await asyncio.wait_for(process.wait(), 20)
            log = (await said).decode()
        assert code == 0, log[-2000:]


async def tokens_of(stream, seq: int) -> list[int]:
    """Eight tokens with temperature, penalties, a bias, truncation and logprobs: the whole sampler."""
    sampling = pb.SamplingParams(
        temperature=0.8, top_p=0.95, top_k=40, min_p=0.01, presence_penalty=0.2, frequency_penalty=0.1,
        repetition_penalty=1.1, bias_ids=pack_u32([30]), bias_values=[-1.0], logprobs=2,
    )  # fmt: skip
    admit = pb.Admit(
        seq=seq, slot=seq, tokens=pack_u32(PROMPT), prompt_len=len(PROMPT), block_ids=pack_u32([seq]), seed=5,
        sampling=sampling, max_len=len(PROMPT) + 8,
    )  # fmt: skip
    await stream.orders(pb.Order(admit=admit))
    tokens: list[int] = []
    logprobs = 0
    while len(tokens) < 8:
        report = await stream.report(lambda report: report.slots)
        tokens += unpack_u32(report.tokens)
        logprobs += len(report.logprobs)
    assert logprobs == 8
    return tokens


def test_settings_that_rule_it_out_are_named() -> None:
    from octavo.manifest import Engine, Manifest

    for settings, word in (
        (Engine(device="cuda"), "device"),
        (Engine(device="cpu", dtype="float32"), "dtype is float32"),
        (Engine(device="cpu", kv_dtype="fp8"), "kv_dtype is fp8"),
        (Engine(device="cpu", weights="w8a8"), "weights is w8a8"),
    ):
        with pytest.raises(NativeRefused, match=word):
            open_native(Manifest(engine=settings), lambda done, total: None)


def test_threads_by_the_hundred_are_refused_before_anything_is_packed() -> None:
    from octavo.manifest import Engine, Manifest

    with pytest.raises(OctavoError, match=r"engine\.threads: 4000 on .* would hardly move"):
        open_native(Manifest(engine=Engine(device="cpu", threads=4000)), lambda done, total: None)
