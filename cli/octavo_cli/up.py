"""`octavo up`: the local cluster in the foreground, or detached and ready."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from octavo.manifest import ManifestError
from octavo.rpc.settings import Settings, load_settings
from rich.console import Console

from octavo_cli.console import READY_LINE, ConsoleWatcher, LastingConsole
from octavo_cli.exits import FAILED, OK, NoCluster, StartFailed
from octavo_cli.plan import MODULES, plan_cluster
from octavo_cli.ports import PortLeases
from octavo_cli.state import ClusterState, read_state, remove_state
from octavo_cli.supervisor import Supervisor, Watcher

UP_LOG = "up.log"
ERROR_PREFIX = "octavo: "


def run_foreground(
    flags: Sequence[str],
    workers: int,
    ready_timeout_s: float,
    watcher: Watcher | None = None,
    modules: Mapping[str, str] = MODULES,
    roles: Sequence[str] = (),
) -> int:
    """Runs a cluster until SIGINT, SIGTERM or SIGHUP; returns the exit code.

    Raises ManifestError for unusable settings, StartFailed when the cluster did not become ready.
    """
    settings = load_settings(flags, os.environ)
    run_dir = Path(settings.manifest.deployment.run_dir).absolute()
    watcher = watcher or ConsoleWatcher(LastingConsole(file=sys.stdout))
    with owned_run_dir(run_dir):
        end_leftovers(run_dir)
        set_logs_aside(run_dir)
        leases = PortLeases()
        try:
            plans = plan_cluster(settings, flags, workers, leases, modules, roles)
            for key, (taken, address) in leases.moved.items():
                watcher.moved(key, taken, address)
            drain_timeout_s = settings.manifest.deployment.drain_timeout_s
            gate_flags = flags if settings.manifest.release_gate.enabled else None
            supervisor = Supervisor(plans, run_dir, drain_timeout_s, watcher, gate_flags)
            clean = asyncio.run(_supervise(supervisor, ready_timeout_s))
        finally:
            leases.close()
            remove_state(run_dir)
    return OK if clean else FAILED


async def _supervise(supervisor: Supervisor, ready_timeout_s: float) -> bool:
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(signum, supervisor.ask_to_stop)
    return await supervisor.run(ready_timeout_s)


@contextlib.contextmanager
def owned_run_dir(run_dir: Path) -> Iterator[None]:
    """Holds the run folder for one cluster.

    Raises StartFailed when another one has it, ManifestError when it is no folder that can be written.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        opened = (run_dir / "up.lock").open("ab")
    except OSError as error:
        raise ManifestError(
            f"deployment.run_dir: {run_dir} cannot be used ({error.strerror}); choose a folder that can be written",
            field="deployment.run_dir",
        ) from error
    with opened as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StartFailed(
                f"a cluster already runs in {run_dir}; `octavo down` stops it, --deployment.run_dir takes another folder"
            ) from error
        yield


def end_leftovers(run_dir: Path) -> int:
    """Ends services whose supervisor was killed; returns how many there were."""
    try:
        state = read_state(run_dir)
    except NoCluster:
        return 0
    left = [item for item in state.processes() if item.pid != os.getpid()]
    for signum, patience_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        for item in left:
            item.signal(signum)
        deadline_s = time.monotonic() + patience_s
        while any(item.alive() for item in left) and time.monotonic() < deadline_s:
            time.sleep(0.02)
    remove_state(run_dir)
    return len(left)


def set_logs_aside(run_dir: Path) -> None:
    """Keeps the logs of the run before as `<name>.log.old`, so that a log holds one run."""
    for path in (run_dir / "logs").glob("*.log"):
        if path.name != UP_LOG:
            path.replace(path.with_name(path.name + ".old"))


def start_detached(
    flags: Sequence[str],
    workers: int,
    ready_timeout_s: float,
    console: Console,
    modules: Mapping[str, str] = MODULES,
    roles: Sequence[str] = (),
) -> ClusterState:
    """Starts a cluster in the background and returns its state once it is ready.

    Raises ManifestError, or StartFailed with the reason when it does not become ready.
    """
    settings: Settings = load_settings(flags, os.environ)
    run_dir = Path(settings.manifest.deployment.run_dir).absolute()
    with owned_run_dir(run_dir):  # fails here, in words, rather than in the background
        remove_finished(run_dir)
    log_path = run_dir / "logs" / UP_LOG
    log_path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "octavo_cli", "up", "--workers", str(workers)]
    command += ["--ready-timeout-s", str(ready_timeout_s)]
    command += ["--roles", ",".join(roles)] if roles else []
    for kind, module in modules.items():
        if module != MODULES[kind]:
            command += ["--module", f"{kind}={module}"]
    with log_path.open("wb") as log:
        child = subprocess.Popen(
            [*command, *flags], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        return _wait_ready(child, run_dir, log_path, console)
    except BaseException:  # an interrupted start leaves nothing running
        child.terminate()
        child.wait()
        raise


def _wait_ready(child: subprocess.Popen[bytes], run_dir: Path, log_path: Path, console: Console) -> ClusterState:
    shown = 0
    while True:
        code = child.poll()
        lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        if code is not None:
            raise StartFailed.with_code(last_line(lines, log_path), code)
        for line in lines[shown:]:
            if line.startswith(ERROR_PREFIX):  # its last word, which becomes our error
                continue
            if line.startswith(READY_LINE):  # the URLs are the caller's to print
                line = line.partition(":")[0]
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        shown = len(lines)
        if lines and lines[-1].startswith(READY_LINE):
            return read_state(run_dir)
        time.sleep(0.1)


def last_line(lines: Sequence[str], log_path: Path) -> str:
    """The reason in a background supervisor's log."""
    said = [line.strip() for line in lines if line.strip()]
    return said[-1].removeprefix(ERROR_PREFIX) if said else f"the cluster ended without a word; see {log_path}"


def remove_finished(run_dir: Path) -> None:
    """Forgets an earlier cluster, so that its state is not taken for the new one's."""
    end_leftovers(run_dir)
    remove_state(run_dir)


def stop_cluster(run_dir: Path) -> int:
    """Drains the cluster of a run folder; returns the exit code. Raises NoCluster when nothing of it runs."""
    state = read_state(run_dir)
    if not state.supervisor.alive():
        ended = end_leftovers(run_dir)
        if ended == 0:
            remove_state(run_dir)
            raise NoCluster(f"nothing runs in {run_dir}")
        return OK
    state.supervisor.signal(signal.SIGTERM)
    while state.supervisor.alive():  # a zombie that nobody reaps counts as ended
        time.sleep(0.02)
    left = list(state.processes())
    return FAILED if left else OK
