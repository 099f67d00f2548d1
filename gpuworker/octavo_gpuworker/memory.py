"""How much memory this process has of the system."""

from __future__ import annotations

import os
from pathlib import Path

STATM = Path("/proc/self/statm")
"""Pages of this process: size, resident, ... (Linux)."""


def resident_bytes(statm: Path = STATM) -> int:
    """Memory of this process that is backed by pages now; 0 where the system does not say."""
    try:
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
