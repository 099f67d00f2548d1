"""Slices of message threads: stated where the system knows them, and nothing else about a thread changes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from octavo.rpc import wakeups
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


def printed_by(program: str) -> list[str]:
    """The lines of a program that has a process of its own."""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.split("\n")


def in_a_thread(work: object) -> list[object]:
    """Runs `work` in a thread of its own, so that this process's threads stay as they are."""
    said: list[object] = []
    thread = threading.Thread(target=lambda: said.append(work()))  # type: ignore[operator]
    thread.start()
    thread.join()
    return said


@pytest.mark.skipif(not wakeups.known_here(), reason="this system's threads state no slice")
def test_the_calling_thread_takes_the_slice_and_keeps_its_nice_value() -> None:
    def work() -> tuple[int, int, int]:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 3)
        taken = wakeups.shorten_slices(300)
        return taken, wakeups.slice_ns(), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before_ns = wakeups.slice_ns()
    ((taken, slice_ns, nice),) = in_a_thread(work)  # type: ignore[misc]
    assert taken >= 1 and (slice_ns, nice) == (300_000, 3)
    assert wakeups.slice_ns() == before_ns  # another thread's


@pytest.mark.skipif(not wakeups.known_here(), reason="this system's threads state no slice")
def test_another_thread_is_told_to_run_soon_by_slice_or_as_a_real_time_one() -> None:
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait, daemon=True)
    thread.start()
    waits = thread.native_id or 0
    own_ns = wakeups.slice_ns()
    try:
        assert not wakeups.run_soon(waits, realtime=False, slice_us=0)
        assert wakeups.run_soon(waits, realtime=False, slice_us=300)
        assert (wakeups.slice_ns(waits), wakeups.slice_ns()) == (300_000, own_ns)
        if wakeups.realtime_allowed():
            assert wakeups.run_soon(waits, realtime=True, slice_us=300)
            assert os.sched_getscheduler(waits) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR
            assert os.sched_getscheduler(0) == os.SCHED_OTHER
    finally:
        go_on.set()
        thread.join()


def test_zero_and_another_system_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wakeups.shorten_slices(0) == 0
    monkeypatch.setattr("platform.release", lambda: "6.11.0-generic")
    assert wakeups.shorten_slices(300) == 0
    monkeypatch.setattr("platform.release", lambda: "unknown")
    assert not wakeups.known_here()
    monkeypatch.setattr("platform.release", lambda: "7.0.1")
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert not wakeups.known_here()


@pytest.mark.skipif(not wakeups.known_here(), reason="this system's threads state no slice")
def test_the_thread_of_grpcs_completion_queue_takes_the_slice_and_a_compute_thread_does_not() -> None:
    """A process of its own: the queue and its thread live as long as the process."""
    program = (
        "import asyncio, threading, grpc.aio\n"
        "from octavo.rpc import wakeups\n"
        "async def main():\n"
        "    server = grpc.aio.server()\n"
        "    compute = threading.Thread(target=threading.Event().wait, daemon=True)\n"
        "    compute.start()\n"
        "    before_ns = wakeups.slice_ns(compute.native_id)\n"
        "    wakeups.shorten_slices(300)\n"
        "    found = {t.name: wakeups.slice_ns(t.native_id) for t in threading.enumerate()}\n"
        "    queue = [ns for name, ns in found.items() if '_poll_wrapper' in name]\n"
        "    del server\n"
        "    print(queue, found[compute.name] == before_ns)\n"
        "asyncio.run(main())\n"
    )
    assert printed_by(program)[0] == "[300000] True"


@pytest.mark.skipif(sys.platform != "linux", reason="nice values of threads are Linux's")
def test_compute_threads_yield_to_messages_and_nobody_else_does() -> None:
    """A process of its own: a nice value cannot be taken back."""
    program = (
        "import asyncio, os, threading, grpc.aio\n"
        "from octavo.rpc import wakeups\n"
        "nice_of = lambda thread: os.getpriority(os.PRIO_PROCESS, thread)\n"
        "async def main():\n"
        "    server = grpc.aio.server()\n"
        "    steps, other = (threading.Thread(target=threading.Event().wait, daemon=True) for _ in range(2))\n"
        "    steps.start(), other.start()\n"
        "    before = nice_of(0)\n"
        "    grpcs = wakeups._message_threads()\n"
        "    print(wakeups.yield_to_messages(0, [steps.native_id]), nice_of(steps.native_id) - before)\n"
        "    print(wakeups.yield_to_messages(3, [steps.native_id]) >= 1, nice_of(steps.native_id) - before)\n"
        "    print({nice_of(thread) - before for thread in (*grpcs, other.native_id, os.getpid())}, len(grpcs) > 2)\n"
        "    del server\n"
        "asyncio.run(main())\n"
    )
    assert printed_by(program)[:3] == ["0 0", "True 3", "{0} True"]


@pytest.mark.skipif(not wakeups.known_here(), reason="this system's threads state no slice")
def test_an_exporter_of_spans_takes_the_slice() -> None:
    """It holds the interpreter that the loop waits for."""

    def work() -> int:
        exporting = BatchSpanProcessor(InMemorySpanExporter())
        try:
            wakeups.shorten_slices(300)
            (thread,) = [item for item in threading.enumerate() if "OtelBatch" in item.name and item not in before]
            return wakeups.slice_ns(thread.native_id or -1)
        finally:
            exporting.shutdown()

    before = threading.enumerate()
    assert in_a_thread(work) == [300_000]


@pytest.mark.skipif(sys.platform != "linux", reason="policies of threads are Linux's")
def test_message_threads_run_as_real_time_where_they_may_and_what_they_start_does_not() -> None:
    """A process of its own: its gRPC threads keep what they were given."""
    program = (
        "import asyncio, os, threading, grpc.aio\n"
        "from octavo.rpc import wakeups\n"
        "policy = lambda thread: os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK\n"
        "async def main():\n"
        "    server = grpc.aio.server()\n"
        "    compute = threading.Thread(target=threading.Event().wait, daemon=True)\n"
        "    compute.start()\n"
        "    allowed = wakeups.realtime_allowed()\n"
        "    print(policy(0) == os.SCHED_OTHER)\n"
        "    taken = wakeups.run_realtime()\n"
        "    child = await asyncio.to_thread(policy, 0)\n"
        "    queue = [policy(t.native_id) for t in threading.enumerate() if '_poll_wrapper' in t.name]\n"
        "    wanted = os.SCHED_RR if allowed else os.SCHED_OTHER\n"
        "    print((taken > 1) == allowed, [policy(0), *queue] == [wanted] * 2)\n"
        "    print(policy(compute.native_id) == child == os.SCHED_OTHER, wakeups.run_realtime())\n"
        "    del server\n"
        "asyncio.run(main())\n"
    )
    assert printed_by(program)[:3] == ["True", "True True", "True 0"]


def test_a_system_that_refuses_leaves_everything_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.sched_setscheduler", refuse)
    assert not wakeups.realtime_allowed() and wakeups.run_realtime() == 0
