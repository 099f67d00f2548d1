"""How long this process has been there, for the split of a worker's start-up time."""

from __future__ import annotations

import os
from pathlib import Path


def process_age_s() -> float:
    """Seconds since the kernel started this process; 0 where there is no /proc."""
    try:
        stat = Path("/proc/self/stat").read_text()
        uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return 0.0
    started_ticks = int(stat.rpartition(")")[2].split()[19])
    return max(0.0, uptime_s - started_ticks / os.sysconf("SC_CLK_TCK"))
