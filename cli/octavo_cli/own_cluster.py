"""A cluster that a command starts for itself, and stops however it ends."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from octavo_cli.exits import NoCluster
from octavo_cli.interrupts import ends_as_interrupted
from octavo_cli.plan import MODULES
from octavo_cli.state import ClusterState
from octavo_cli.up import start_detached, stop_cluster

READY_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class OwnCluster:
    """Ready, in a folder that goes with it."""

    run_dir: Path
    state: ClusterState


@contextlib.contextmanager
def own_cluster(
    flags: Sequence[str] = (),
    *,
    console: Console,
    modules: Mapping[str, str] = MODULES,
    ready_timeout_s: float = READY_TIMEOUT_S,
) -> Iterator[OwnCluster]:
    """A fresh cluster of one worker in a temporary folder, on free ports, with these settings. Raises as `start_detached`."""
    with (
        ends_as_interrupted(),
        tempfile.TemporaryDirectory(prefix="octavo-own-", ignore_cleanup_errors=True) as folder,
    ):
        own = ["--deployment.run_dir", folder]
        own += ["--gateway.grpc_listen", "127.0.0.1:0", "--gateway.http_listen", "127.0.0.1:0"]
        try:
            yield OwnCluster(Path(folder), start_detached([*own, *flags], 1, ready_timeout_s, console, modules))
        finally:
            with contextlib.suppress(NoCluster):  # it has died, which whoever used it has met
                stop_cluster(Path(folder))
