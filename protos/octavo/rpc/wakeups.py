"""Shorter time slices for the threads that pass messages on, so that they run soon although compute threads hold the cores.

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
from pathlib import Path
from typing import Final

SLICES_SINCE: Final = (6, 12)
SYSCALLS: Final = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""Machine -> numbers of sched_setattr and sched_getattr."""
ATTR: Final = struct.Struct("<IIQiIQQQII")
"""struct sched_attr: size, policy, flags, nice, priority, runtime (here the slice, ns), deadline, period, util min and max."""
MESSAGE_THREADS: Final = ("event_engine", "grpc", "lifeguard")
"""How the names of gRPC's own threads begin. With direct polling (octavo.polling) they run its timers, without it they read the sockets."""
QUEUE_THREAD: Final = "_poll_wrapper"
"""In the name of the thread that tells the event loop what gRPC has completed, and with direct polling reads the sockets: a Python
thread, so the system calls it as the process."""


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
    queues = (thread for thread in threading.enumerate() if QUEUE_THREAD in thread.name)
    found += [thread.native_id for thread in queues if thread.native_id is not None]
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
