"""Threads that pass messages on run soon although compute threads hold the cores: as real-time ones where that is allowed, else by
shorter time slices and a larger part.

Linux 6.12 and later (EEVDF) let a thread state its slice: a waking thread with a shorter slice takes the core from one
with a longer slice, instead of waiting for the end of that one's. It changes latency, not shares: each thread still gets
its fair part. Elsewhere nothing happens. See sched_setattr(2) and "EEVDF Scheduler" in the kernel's documentation.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

SLICES_SINCE: Final = (6, 12)
SYSCALLS: Final = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""Machine -> numbers of sched_setattr and sched_getattr."""
ATTR: Final = struct.Struct("<IIQiIQQQII")
"""struct sched_attr: size, policy, flags, nice, priority, runtime (here the slice, ns), deadline, period, util min and max."""
MESSAGE_THREADS: Final = ("event_engine", "grpc", "lifeguard")
"""How the names of gRPC's own threads begin. With direct polling (octavo.polling) they run its timers, without it they read the sockets."""
PYTHON_THREADS: Final = ("_poll_wrapper", "OtelBatch")
"""In the names of Python threads (the system calls those as the process): the one that tells the event loop what gRPC has completed and,
with direct polling, reads the sockets; and the exporters of spans, which no message passes, but which hold the interpreter while they
wait for a core."""
SWITCH_INTERVAL_S: Final = 0.0005
"""How soon a thread that waits for the interpreter gets it; Python's own 5 ms is longer than a message may take."""


def shorten_slices(slice_us: int) -> int:
    """Gives the calling thread and gRPC's threads of this process a slice of `slice_us`; returns how many took it.

    Compute threads keep theirs. 0 where the system knows no slices, or `slice_us` is 0.
    """
    if not slice_us or not known_here():
        return 0
    taken = 0
    for thread in _message_threads():
        taken += _set_slice(thread, slice_us * 1000)
    return taken


def realtime_allowed() -> bool:
    """Whether threads of this process may run as real-time ones: tried on the calling thread, which is an ordinary one afterwards.

    It takes CAP_SYS_NICE, or an RLIMIT_RTPRIO of 1.
    """
    if sys.platform != "linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    try:  # without SCHED_RESET_ON_FORK, which only CAP_SYS_NICE may take back
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except PermissionError:
        return False
    return True


def run_realtime() -> int:
    """The calling thread and gRPC's of this process take a core as soon as they wake (SCHED_RR); returns how many do from now on.

    Slices and nice values only say who is before whom within one scheduling group, and only as long as a thread has not had its part.
    Threads that these make begin as ordinary ones: they may compute. What stays for others when message threads spin is the system's
    reserve (sched_rt_runtime_us, 5%). 0 where the system does not allow it.
    """
    return sum(_run_realtime(thread) for thread in _message_threads()) if sys.platform == "linux" else 0


def _run_realtime(thread: int) -> bool:
    try:
        if os.sched_getscheduler(thread) != os.SCHED_OTHER:
            return False
        os.sched_setscheduler(thread, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except (PermissionError, ProcessLookupError):  # not allowed, or it ended meanwhile
        return False
    return True


def run_soon(thread: int, *, realtime: bool, slice_us: int) -> bool:
    """Has one thread of this process (its system's id) run as those that pass messages do; whether it does.

    For a thread that starts what others compute, and only waits for them.
    """
    if sys.platform != "linux":
        return False
    if realtime:
        return _run_realtime(thread)
    return bool(slice_us and known_here() and _set_slice(thread, slice_us * 1000))


def yield_to_messages(nice: int, also: Iterable[int] = ()) -> int:
    """Adds `nice` to the nice value of the compute threads of this process; returns how many it was.

    Those are the native ones that are not gRPC's, and the threads named by their system's ids in `also`. A waking thread takes a core
    at once while it has had less than its part, which a message thread behind a burst has not, unless its part is the larger one.
    Between processes that count holds where they share a scheduling group (a session, a container). 0 changes nothing.
    """
    if not nice or sys.platform != "linux":
        return 0
    told = set(_message_threads()) | {thread.native_id for thread in threading.enumerate()}
    compute = {int(folder.name) for folder in Path("/proc/self/task").iterdir()} - told | set(also)
    lowered = 0
    for thread in compute - {os.getpid()}:
        try:
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + nice)
        except ProcessLookupError:  # it ended meanwhile
            continue
        lowered += 1
    return lowered


def known_here() -> bool:
    """Whether this system's threads may state a slice."""
    if sys.platform != "linux" or platform.machine() not in SYSCALLS:
        return False
    words = platform.release().split("-")[0].split(".")
    return words[0].isdecimal() and words[1:2] != [] and tuple(map(int, words[:2])) >= SLICES_SINCE


def slice_ns(thread: int = 0) -> int:
    """The slice of a thread (0: the calling one), nanoseconds; 0 when the system does not say."""
    buffer = ctypes.create_string_buffer(ATTR.size)
    number = SYSCALLS[platform.machine()][1]
    if ctypes.CDLL(None, use_errno=True).syscall(number, thread, buffer, ATTR.size, 0):
        return 0
    return int(ATTR.unpack(buffer.raw)[5])


def _message_threads() -> list[int]:
    found = [0]
    ours = (thread for thread in threading.enumerate() if any([name in thread.name for name in PYTHON_THREADS]))
    found += [thread.native_id for thread in ours if thread.native_id is not None]
    for folder in Path("/proc/self/task").iterdir():
        try:
            name = (folder / "comm").read_text()
        except OSError:  # it ended meanwhile
            continue
        if name.startswith(MESSAGE_THREADS):
            found.append(int(folder.name))
    return found


def _set_slice(thread: int, ns: int) -> bool:
    """Keeps policy and nice value as they are; False when the system refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    set_number, get_number = SYSCALLS[platform.machine()]
    buffer = ctypes.create_string_buffer(ATTR.size)
    if libc.syscall(get_number, thread, buffer, ATTR.size, 0):
        return False
    _size, policy, flags, nice, priority, _slice, *rest = ATTR.unpack(buffer.raw)
    if policy not in (os.SCHED_OTHER, os.SCHED_BATCH):
        return False
    wanted = ATTR.pack(ATTR.size, policy, flags, nice, priority, ns, *rest)
    return bool(libc.syscall(set_number, thread, wanted, 0) == 0)
