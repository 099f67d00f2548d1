"""The worker as a service: load, verify, warm up, then join the scheduler and step until told to stop."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import socket
import sys
import time
import uuid
from functools import partial

from blake3 import blake3
from octavo.artifacts import chat_template_hash, resolve_model, tokenizer_hash, weights_hash
from octavo.manifest import Manifest
from octavo.packing import pack_keys, pack_u32
from octavo.rpc.host import EXIT_OK, LEFT, Host
from octavo.rpc.wakeups import run_soon, yield_to_messages
from octavo.step import StepBudget
from octavo.v1 import profile_pb2, profile_pb2_grpc
from octavo.v1 import worker_pb2 as pb

from octavo_gpuworker.backends.backend import Backend
from octavo_gpuworker.backends.opening import open_backend
from octavo_gpuworker.backends.sizes import model_len
from octavo_gpuworker.bell import Bell
from octavo_gpuworker.blending.blend_queue import blend_refusal
from octavo_gpuworker.engine import Engine, LoadedBlock, SequenceEnd
from octavo_gpuworker.link import SchedulerLink
from octavo_gpuworker.metrics import WorkerMetrics
from octavo_gpuworker.orders import LoadOrder, OffloadOrder, Order, Report, TransferDone
from octavo_gpuworker.pipeline import PipelinedEngine
from octavo_gpuworker.pool_pages import PoolPages
from octavo_gpuworker.profile_service import ProfileServicer
from octavo_gpuworker.spans import span_recorder
from octavo_gpuworker.startup import process_age_s
from octavo_gpuworker.steploop import StepLoop
from octavo_gpuworker.transfer import Transfers
from octavo_gpuworker.warmup import ArtifactMismatch, Calibration, calibrate, check_parity

MAX_SEQS_PER_STEP = 256
PROGRESS_LINE_S = 1.0
STORE_POLL_S = 1.0


def verify_artifacts(manifest: Manifest) -> None:
    """Compares the files with the hashes of the manifest. Raises ArtifactMismatch naming the artifact."""
    files = resolve_model(manifest.model.ref)
    checks = (
        ("weights", manifest.model.weights_blake3, weights_hash),
        ("tokenizer", manifest.model.tokenizer_blake3, tokenizer_hash),
        ("chat_template", manifest.model.chat_template_blake3, chat_template_hash),
    )
    for name, expected, compute in checks:
        if expected and (found := compute(files)) != expected.lower():
            raise ArtifactMismatch(
                f"{name} of {files.name}: blake3 is {found}, model.{name}_blake3 says {expected}; serve the artifact that was released, or update the manifest"
            )


class LoadProgress:
    """A bar on a terminal, a line per second elsewhere."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._terminal = sys.stderr.isatty()
        self._last_s = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._terminal:
            filled = 30 * done // max(1, total)
            print(
                f"\rweights [{'#' * filled}{'.' * (30 - filled)}] {done}/{total}",
                end="" if done < total else "\n",
                file=sys.stderr,
                flush=True,
            )
        elif now - self._last_s >= PROGRESS_LINE_S or done == total:
            self._last_s = now
            self._host.log.info("weights: %d of %d tensors", done, total)


def load(manifest: Manifest, progress: LoadProgress) -> Backend:
    """The model of the manifest, verified. Raises OctavoError (BadArtifact, ArtifactMismatch) with one line."""
    verify_artifacts(manifest)
    return open_backend(manifest, progress)


class Worker:
    """Everything one worker process runs, wired together."""

    def __init__(self, host: Host, backend: Backend) -> None:
        manifest = host.manifest
        self._host = host
        self.backend = backend
        self.pool = pool = backend.pool
        self.max_model_len = model_len(manifest, backend.max_position, pool)
        self.worker_id = manifest.gpuworker.worker_id or f"{socket.gethostname()}-{os.getpid()}"
        self._model_name = manifest.model.name or resolve_model(manifest.model.ref).name
        self._loop = asyncio.get_running_loop()
        self.root_key = backend.fingerprint
        if manifest.engine.deterministic:  # its blocks come from deterministic workers alone, bit by bit
            self.root_key = blake3(b"octavo.deterministic\0" + backend.fingerprint).digest()
        self.metrics = WorkerMetrics(
            host.metrics, pool.num_blocks, backend.kernel_calls, backend.gauges(), backend.limits
        )
        pool_bytes = pool.num_blocks * pool.block_bytes
        self.metrics.watch_memory(lambda: backend.framework_bytes() - pool_bytes)
        self._record = span_recorder(host.tracer, self.worker_id, pool.block_tokens, self.metrics)
        self.engine = (PipelinedEngine if backend.pipelined else Engine)(
            backend,
            budget=StepBudget(
                manifest.scheduler.max_num_batched_tokens, manifest.scheduler.max_num_batched_tokens, MAX_SEQS_PER_STEP
            ),
            start_transfer=self._start_transfer,
            on_end=self._ended,
            abort_transfer=self._abort_transfer,
            merge_ns=round(manifest.gpuworker.merge_reports_ms * 1e6),
        )
        self.calibration = Calibration(0.0, 0.0, 0.0, 0.0)
        self._bell = Bell(self._loop, lambda: self.link.collect())
        self.steps = StepLoop(self.engine, self._emit, self._died, self._bell)
        self._pages = PoolPages(backend, self.engine.hold_back)
        self.transfers = Transfers(
            manifest.gpuworker.kvstore, pool, self.root_key, self._post, exact=manifest.engine.deterministic
        )
        self._store_id = ""
        self._is_joined = self._stuck = False
        self.link = SchedulerLink(
            manifest.gpuworker.scheduler,
            self.worker_id,
            uuid.uuid4().hex,
            self.hello,
            self.steps,
            self.transfers,
            host.log,
            self._joined,
            lambda: host.set_state("draining", "the scheduler ordered this worker to leave"),
        )

    def warm_up(self) -> None:
        """Blocks: one inference, the calibration, and the parity prompt of the manifest."""
        self.backend.warm_up(self._host.manifest.scheduler.max_num_seqs)
        self.metrics.measure_peaks()
        self.calibration = calibrate(self.engine, self.max_model_len)
        model = self._host.manifest.model
        if model.parity_greedy_ids:
            check_parity(self.engine, model.parity_prompt_ids, model.parity_greedy_ids)
        self.engine.reset()
        self.engine.steps = self.engine.mixed_steps = 0

    def hello(self) -> pb.WorkerHello:
        """What the scheduler learns at every connection."""
        blocks, keys, parents = self.engine.labels.resident()
        return pb.WorkerHello(
            root_key=self.root_key,
            block_tokens=self.pool.block_tokens,
            num_blocks=self.pool.num_blocks,
            max_num_seqs=MAX_SEQS_PER_STEP,
            max_model_len=self.max_model_len,
            block_bytes=self.pool.block_bytes,
            store_id=self._store_id,
            resident_blocks=pack_u32(blocks),
            resident_keys=pack_keys(keys),
            resident_parents=pack_u32(parents),
            model=self._model_name,
            pid=os.getpid(),
            calibration=pb.Calibration(**dataclasses.asdict(self.calibration)),
            vocab_size=self.backend.vocab_size,
            role=self._host.manifest.gpuworker.role,
            labels=self._host.manifest.gpuworker.labels,
            capabilities=[] if blend_refusal(self.backend) else ["blending"],
        )

    async def run(self) -> None:
        """Steps and talks to the scheduler until it is cancelled."""
        self.steps.start()
        if self._host.manifest.engine.kv_pool_touch:
            self._pages.start()
        deployment, realtime = self._host.manifest.deployment, self._host.realtime
        if self.backend.computes_aside:
            run_soon(self.steps.thread_id, realtime=realtime, slice_us=deployment.wakeup_slice_us)
        if not realtime:
            computing = [] if self.backend.computes_aside else [self.steps.thread_id]
            yield_to_messages(deployment.compute_nice, computing)
        self._store_id = await self.transfers.store_id()
        self._host.spawn(self._watch_store(), "kvstore watch")
        self._host.spawn(self._watch_progress(), "progress watch")
        await self.link.run()
        self._host.exit(EXIT_OK, LEFT)  # a signal that came first has the first word

    async def drain(self) -> None:
        """What runs goes on to its end; what the drain's time cuts off is resumed elsewhere by the scheduler."""
        try:
            await self.link.leave()
        finally:
            await asyncio.to_thread(self._pages.stop)
            await asyncio.to_thread(self.steps.stop)
            self._bell.close()
            await self.transfers.close()

    async def _watch_store(self) -> None:
        """A kvstore that starts after the worker is told by a new Hello, once no sequence would be lost by it."""
        late = False
        while not self._store_id and self._host.manifest.gpuworker.kvstore:
            await asyncio.sleep(STORE_POLL_S)
            self._store_id, late = await self.transfers.store_id(), True
        self._host.log.info("kvstore %s", self._store_id or "none")
        while late:
            await asyncio.sleep(STORE_POLL_S)
            if not self.engine.busy:
                self.link.rejoin(f"kvstore {self._store_id} has started")
                return

    async def _watch_progress(self) -> None:
        limit_s = self._host.manifest.gpuworker.progress_timeout_s
        while True:
            await asyncio.sleep(min(1.0, limit_s / 4))
            self.metrics.book()
            self._stuck = self.steps.stuck_for_s() > limit_s
            self._show_state()

    def _show_state(self) -> None:
        """Health follows joining and progress; a drain is never taken back."""
        if self._host.state == "draining":
            return
        if self._stuck:
            limit_s = self._host.manifest.gpuworker.progress_timeout_s
            self._host.set_state("not_serving", f"work but no progress for {limit_s:g} s")
        elif not self._is_joined:
            self._host.set_state("not_serving", "no scheduler")
        else:
            self._host.set_state("serving")

    # --- called by the step thread ---------------------------------------------------------------------------------

    def _start_transfer(self, order: OffloadOrder | LoadOrder) -> None:
        self.transfers.start(order)

    def _abort_transfer(self, xfer_id: int) -> None:
        self.transfers.abort(xfer_id)

    def _emit(self, report: Report) -> None:
        self.metrics.observe(report)  # before the link: what a scheduler has heard of, a scrape shows
        self.link.emit(report)

    def _ended(self, end: SequenceEnd) -> None:
        self._loop.call_soon_threadsafe(partial(self._record, end))

    def _died(self, error: BaseException) -> None:
        self._host.log.error("the step thread died", exc_info=error)
        self._loop.call_soon_threadsafe(self._host.exit, 1, f"the step thread died: {type(error).__name__}: {error}")

    # --- called by the loop ----------------------------------------------------------------------------------------

    def _post(self, items: list[Order | LoadedBlock | TransferDone]) -> None:
        self.steps.post(items)

    def _joined(self, joined: bool) -> None:
        self._is_joined = joined
        self._show_state()


async def setup(host: Host) -> None:
    """Loads and verifies the model, listens, warms up, and joins. Raises OctavoError with one line when it cannot."""
    manifest, age_s = host.manifest, process_age_s()
    started = time.monotonic()
    profiles = ProfileServicer()
    profile_pb2_grpc.add_ProfileServiceServicer_to_server(profiles, host.server)  # type: ignore[no-untyped-call]
    host.announce(profile_pb2.DESCRIPTOR)
    address = await host.listen(manifest.gpuworker.listen)
    host.serve_metrics(manifest.gpuworker.metrics_listen)
    backend = await asyncio.to_thread(load, manifest, LoadProgress(host))
    loaded = time.monotonic()
    worker = Worker(host, backend)
    pool = backend.pool
    host.log.info(
        "KV pool: %d blocks of %d tokens, %.0f MiB; maximum concurrency for %d tokens per request: %.2fx",
        pool.num_blocks - 1,
        pool.block_tokens,
        pool.num_blocks * pool.block_bytes / 2**20,
        worker.max_model_len,
        (pool.num_blocks - 1) * pool.block_tokens / worker.max_model_len,
    )
    await asyncio.to_thread(worker.warm_up)
    profiles.attach(worker.worker_id, backend.name, backend.profiler, lambda: worker.engine.busy)
    worker.metrics.started("process", age_s)
    worker.metrics.started("weights", loaded - started)
    worker.metrics.started("warm_up", time.monotonic() - loaded)
    host.log.info(
        "weights in %.1f s, warm-up in %.1f s, listening on %s", loaded - started, time.monotonic() - loaded, address
    )
    host.on_drain(worker.drain)
    host.spawn(worker.run(), "engine")
    # what lives now lives to the end: a collection must not walk it while steps wait for the interpreter
    gc.collect()
    gc.freeze()
