"""Who may import whom: the contracts of .importlinter, and what they cannot say."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "octavo": ROOT / "protos/octavo",
    "octavo_gateway": ROOT / "gateway/octavo_gateway",
    "octavo_scheduler": ROOT / "scheduler/octavo_scheduler",
    "octavo_gpuworker": ROOT / "gpuworker/octavo_gpuworker",
    "octavo_kvstore": ROOT / "kvstore/octavo_kvstore",
    "octavo_cli": ROOT / "cli/octavo_cli",
}
SEARCH_PATH = os.pathsep.join(str(folder.parent) for folder in PACKAGES.values())

EDGES = {
    "octavo_gateway": {"__main__", "service", "session", "upstream", "gateway"},
    "octavo_scheduler": {"__main__", "service", "driver", "connections", "status"},
    "octavo_gpuworker": {"__main__", "service", "transfer", "profile_service"},
    "octavo_kvstore": {"__main__", "service", "announce"},
    "octavo_cli": {"status", "probe", "supervisor", "profile", "engine_bench", "cache_bench"},
    "octavo": {"client", "rpc"},
}
"""Modules (and their submodules) that may see generated types; a name that ends in `wire` or `link` is an edge too."""

SCHEDULER_LOOP = {"__main__", "service", "driver", "connections", "observer", "metrics", "spans"}
"""What in the scheduler may wait, read a clock or speak to others; everything else decides. Wires and links too."""
IMPURE = {"asyncio", "datetime", "grpc", "os", "random", "secrets", "socket", "subprocess", "threading", "time", "uuid"}


def modules_of(package: str) -> Iterator[tuple[str, Path]]:
    """(dotted name below the package, path) of every hand-written module."""
    root = PACKAGES[package]
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[0] != "v1":
            yield ".".join(part for part in parts if part != "__init__"), path


def imports_of(path: Path) -> set[str]:
    """Every module that a file names in an import, `if TYPE_CHECKING` included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def is_edge(package: str, module: str) -> bool:
    known = EDGES[package]
    parents = {module, *(module[:at] for at, letter in enumerate(module) if letter == ".")}
    return bool(parents & known) or module.rpartition(".")[2].endswith(("wire", "link"))


def test_import_linter_keeps_every_contract() -> None:
    command = [
        str(Path(sys.executable).with_name("lint-imports")),
        "--no-cache",
        "--config",
        str(ROOT / ".importlinter"),
    ]
    environment = {**os.environ, "PYTHONPATH": SEARCH_PATH}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]
    assert "0 broken" in result.stdout


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_generated_types_stop_at_the_edges(package: str) -> None:
    inside = [
        module
        for module, path in modules_of(package)
        if not is_edge(package, module) and any(name.startswith("octavo.v1") for name in imports_of(path))
    ]
    assert inside == [], "these convert at an edge instead (service, wire, link), or are edges that EDGES does not name"


def test_the_schedulers_decisions_are_pure() -> None:
    impure = {}
    for module, path in modules_of("octavo_scheduler"):
        if module.partition(".")[0] in SCHEDULER_LOOP or is_edge("octavo_scheduler", module):
            continue
        found = {name.partition(".")[0] for name in imports_of(path)} & IMPURE
        if found:
            impure[module] = sorted(found)
    assert impure == {}


def test_the_environment_is_read_in_one_place() -> None:
    readers = [
        f"{package}.{module}"
        for package in PACKAGES
        for module, path in modules_of(package)
        if "environ" in (text := path.read_text(encoding="utf-8")) and ("os.environ" in text or "getenv" in text)
    ]
    # run_service hands the environment to octavo.rpc.settings; the command line hands it on to the processes it starts;
    # octavo.polling sets what gRPC reads, for as long as it is imported
    allowed = {"octavo.rpc.settings", "octavo.rpc.host", "octavo.polling"}
    assert [reader for reader in readers if reader not in allowed and not reader.startswith("octavo_cli.")] == []


@pytest.mark.parametrize("package", ["octavo", "octavo_gateway", "octavo_scheduler", "octavo_kvstore", "octavo_cli"])
def test_every_module_imports_without_torch(package: str) -> None:
    """In a fresh interpreter where torch and triton (and lmdb, but for the kvstore) cannot be imported."""
    blocked = {"torch", "triton"} | (set() if package == "octavo_kvstore" else {"lmdb"})
    names = [f"{package}.{module}".rstrip(".") for module, _ in modules_of(package)]
    code = f"""
        import importlib, sys
        for name in {sorted(blocked)!r}:
            sys.modules[name] = None
        for name in {names!r}:
            importlib.import_module(name)
        print(len({names!r}))
    """
    environment = {**os.environ, "PYTHONPATH": SEARCH_PATH}
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True, timeout=110
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert int(result.stdout) == len(names)


def test_the_sdk_brings_no_server(tmp_path: Path) -> None:
    code = """
        import sys
        import octavo.client
        heavy = {"torch", "numpy", "uvloop", "prometheus_client", "starlette", "yaml", "opentelemetry.sdk", "lmdb"}
        print(sorted(name for name in sys.modules if name in heavy or name.startswith("octavo_")))
    """
    environment = {**os.environ, "PYTHONPATH": SEARCH_PATH}
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.stdout.strip() == "[]", result.stdout + result.stderr
