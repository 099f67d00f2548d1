"""StepLoop: the thread that runs the engine. It touches no grpc object; two queues join it to the asyncio loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from octavo_gpuworker.bell import Bell
from octavo_gpuworker.engine import Engine, LoadedBlock
from octavo_gpuworker.orders import Order, Report, TransferDone

BUSY_REPORT_S = 0.1
IDLE_REPORT_S = 1.0
LIVE_LIST_S = 1.0
STOP_LIMIT_S = 30.0
FIRST_TOKEN_LIMIT_S = 0.002
"""How long steps wait at most for the loop to send a first token; it takes 0.2 ms."""


class StepLoop:
    """Owns the thread. `emit` is called on it with every report; it must only hand the report over. `bell` then rings.

    A died thread is told through `on_death`, so that the process ends instead of serving nothing.
    """

    def __init__(
        self,
        engine: Engine,
        emit: Callable[[Report], None],
        on_death: Callable[[BaseException], None],
        bell: Bell | None = None,
    ) -> None:
        self.engine = engine
        self._emit = emit
        self._bell = bell
        self._on_death = on_death
        self._wake = threading.Event()
        self._stopping = False
        self._paused = threading.Event()
        self._pause_wanted = False
        self._ready: list[Report] = []
        engine.before_wait = self._hand_over_in_step
        self._thread = threading.Thread(target=self._main, name="steps", daemon=True)
        self.last_progress_s = time.monotonic()

    def start(self) -> None:
        self._thread.start()

    @property
    def thread_id(self) -> int:
        """The system's id of the started thread."""
        return self._thread.native_id or 0

    def stop(self) -> None:
        """Ends the thread after the running step; blocks until then."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=STOP_LIMIT_S)

    def post(self, items: list[Order | LoadedBlock | TransferDone]) -> None:
        """Hands orders (or a transfer's results) to the next boundary."""
        for item in items:
            self.engine.post(item)
        self._wake.set()

    def quiesce(self) -> None:
        """Blocks until no step runs; steps stay off until `resume`. Not for the step thread."""
        self._paused.clear()
        self._pause_wanted = True
        self._wake.set()
        while not self._paused.wait(timeout=0.5):
            if self._stopping or not self._thread.is_alive():
                return

    def resume(self) -> None:
        self._pause_wanted = False
        self._wake.set()

    def stuck_for_s(self) -> float:
        """How long there has been work without a step; 0 when idle. Paused and loading sequences are no work."""
        return time.monotonic() - self.last_progress_s if self.engine.busy else 0.0

    def _main(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # noqa: BLE001 - whatever ends the thread must end the process
            self._on_death(error)

    def _loop(self) -> None:
        engine = self.engine
        last_report_s = last_live_s = 0.0
        while not self._stopping:
            if self._pause_wanted:
                self._land()
                self._hand_over()
                self._paused.set()
                self._wake.wait(timeout=0.5)
                self._wake.clear()
                continue
            self._wake.clear()
            stepped = engine.run_once()
            if stepped:  # what came meanwhile: a copy that has ended is told with this step, not with the next
                engine.apply_inbox()
            now = time.monotonic()
            if stepped or not engine.has_work:
                self.last_progress_s = now
            due_s = BUSY_REPORT_S if engine.busy else IDLE_REPORT_S
            overdue = now - last_report_s >= due_s
            # without a next step there is nothing to merge with
            force = overdue or (not stepped and engine.report_pending)
            firsts = False
            for report in engine.take_reports(force=force, live=now - last_live_s >= LIVE_LIST_S):
                if report.live_seqs is not None:
                    last_live_s = now
                last_report_s = now
                firsts = firsts or bool(report.first_tokens and not report.decode_seqs)
                self._ready.append(report)
            if firsts and not engine.backend.pipelined:
                self._hand_over_first()
            elif not stepped or engine.blending:
                self._hand_over()  # the next step, which would take the reports along, may be seconds away
            if not stepped:
                self._wake.wait(timeout=max(0.001, last_report_s + due_s - now))
        self._land()
        self._hand_over()

    def _land(self) -> None:
        """No step is on afterwards, and what was done ahead is told."""
        self.engine.end_run()
        self._ready += self.engine.take_reports(force=self.engine.report_pending)

    def _hand_over(self) -> None:
        """Emits what is ready."""
        if self._emit_ready() and self._bell is not None:
            self._bell.ring()

    def _hand_over_first(self) -> None:
        """Emits what is ready, and lets the loop send it before the next step is put together: somebody waits for a first token, and
        nobody for the next one of another sequence.
        """
        if self._emit_ready() and self._bell is not None:
            self._bell.ring_and_wait(FIRST_TOKEN_LIMIT_S)

    def _hand_over_in_step(self) -> None:
        """Emits what is ready right before the thread waits for a step. The loop's thread is woken once the step runs on all cores: sooner it
        would take the core of a thread that is about to begin, and the other cores would stand idle until it is done.
        """
        if self._emit_ready() and self._bell is not None and not self.engine.backend.ring_at_start(self._bell.fd):
            self._bell.ring()

    def _emit_ready(self) -> bool:
        ready, self._ready = self._ready, []
        for report in ready:
            self._emit(report)
        return bool(ready)
